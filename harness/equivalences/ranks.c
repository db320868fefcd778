/* A block as the sum of ranks that have some of its experts each: weights of a rank's experts are a stretch of the whole
 * tensors, gradients of them another; all else is added up. */
#include <string.h>

#include "harness/equivalences/other_runs.h"
#include "harness/operations/op_support.h"
#include "oracle/base/tensor_set.h"

/* One rank's view of the whole. */
typedef struct rank {
    const assay_source *in;
    const assay_sink *out;
    const assay_tensor_list *list;
    int64_t experts, first; /* E, and the first of its own */
    assay_tensor_set part;  /* what is added up */
    assay_sink sink;        /* of it */
} rank;

/* Elements of one expert in a tensor [E,...] of the routed experts; 0: it is no such tensor. */
static int64_t size_of_expert(const rank *r, const char *path)
{
    static const char *const weights[] = {"wi", "wi_0", "wi_1", "wo", "wi_0_bias", "wi_1_bias", "wo_bias"};
    const char *name = strrchr(path, '/');
    const assay_tensor_entry *entry = assay_tensor_list_find(r->list, path);
    bool routed = false;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) routed |= strcmp(name + 1, weights[i]) == 0;
    return entry != NULL && routed ? assay_shape_count(&entry->spec.shape) / r->experts : 0;
}

static bool has(void *self, const char *path)
{
    const rank *r = self;
    return r->in->has(r->in->self, path);
}

static assay_status read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out)
{
    const rank *r = self;
    return r->in->read(ctx, r->in->self, path, first + r->first * size_of_expert(r, path), count, out);
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out)
{
    const rank *r = self;
    return r->in->read_i32(ctx, r->in->self, path, first, count, out);
}

static bool wants(void *self, const char *path)
{
    const rank *r = self;
    const bool of_experts = size_of_expert(r, path) > 0 && assay_wants(r->out, path);
    return of_experts || r->sink.wants(r->sink.self, path);
}

static assay_status write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const rank *r = self;
    const assay_sink *to = size_of_expert(r, path) > 0 ? r->out : &r->sink;
    return to->write(ctx, to->self, path, count, values);
}

/* Outputs and gradients that are not one expert's. */
static assay_status add_sums(assay_context *ctx, const rank *r, assay_tensor_set *sums)
{
    for (int i = 0; i < r->list->count; i++) {
        const assay_tensor_spec *spec = &r->list->entries[i].spec;
        const bool summed = spec->role == ASSAY_ROLE_OUTPUT || spec->role == ASSAY_ROLE_GRADIENT;
        if (!summed || size_of_expert(r, spec->path) > 0 || !assay_wants(r->out, spec->path)) continue;
        MUST(assay_tensor_set_add(ctx, sums, spec, NULL));
    }
    return ASSAY_OK;
}

static void accumulate(assay_tensor_set *sums, const assay_tensor_set *part)
{
    for (int i = 0; i < part->count; i++) {
        const assay_tensor *term = &part->items[i];
        assay_tensor *sum = assay_tensor_set_find(sums, term->spec.path);
        for (int64_t k = 0; assay_tensor_is_complete(term) && k < term->count; k++)
            sum->values[k] = sum->written > 0 ? sum->values[k] + term->values[k] : term->values[k];
        if (assay_tensor_is_complete(term)) sum->written = sum->count;
    }
}

/* The shared expert and what belongs to the choice are the first rank's. */
static assay_moe_config config_of(const assay_moe_config *whole, int64_t first, int64_t count)
{
    assay_moe_config config = *whole;
    config.local_expert_offset = first;
    config.local_num_experts = count;
    if (first == 0) return config;
    config.shared_mlp_dim = 0;
    config.shared_gate = false;
    config.routing.z_loss_weight = 0;
    config.routing.load_balance_loss_weight = 0;
    config.routing.routed_bias_update_rate = 0;
    return config;
}

assay_status assay_run_ranks(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out)
{
    assay_status status;
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    assay_tensor_set sums = {0};
    assay_moe_config whole;
    rank r = {.in = in, .out = out, .list = &list};
    const assay_source own = {.self = &r, .has = has, .read = read, .read_i32 = read_i32};
    const assay_sink sink = {.self = &r, .wants = wants, .write = write};
    TRY(assay_operation_prepare(ctx, c, &operation, &list));
    TRY(assay_moe_config_of(ctx, c, &whole));
    r.experts = whole.routing.num_experts;
    TRY(add_sums(ctx, &r, &sums));
    /* three ranks, the last of which may have more or fewer */
    const int64_t each = (r.experts + 2) / 3;
    for (r.first = 0; r.first < r.experts; r.first += each) {
        const assay_moe_config config =
            config_of(&whole, r.first, r.first + each < r.experts ? each : r.experts - r.first);
        TRY(add_sums(ctx, &r, &r.part));
        r.sink = assay_tensor_set_sink(&r.part);
        TRY(assay_moe_run(ctx, &config, &own, &sink, NULL));
        accumulate(&sums, &r.part);
        assay_tensor_set_free(&r.part);
    }
    for (int i = 0; i < sums.count; i++)
        TRY(out->write(ctx, out->self, sums.items[i].spec.path, sums.items[i].count, sums.items[i].values));
cleanup:
    assay_tensor_set_free(&r.part);
    assay_tensor_set_free(&sums);
    assay_tensor_list_free(&list);
    return status;
}
