/* Arrays and weights of all shards; results of the whole batch; what a layer keeps and defers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/ops/vector_sums.h"

assay_status bs_alloc_shards(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                             size_t element_size, void *out)
{
    int64_t count = 0;
    MUST(assay_checked_count(ctx, what, 3, (int64_t[]){run->sizes.shards, a, b}, &count));
    return assay_alloc(ctx, what, count, element_size, out);
}

void bs_sum_over_shards(const assay_context *ctx, const bs_run *run, double *values, int64_t count)
{
    const int64_t shards = run->sizes.shards;
    if (values == NULL || shards == 1) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, shards * count, values);
    for (int64_t shard = 1; shard < shards; shard++) assay_add(ctx, count, values + shard * count, values);
    for (int64_t shard = 1; shard < shards; shard++)
        memcpy(values + shard * count, values, (size_t)count * sizeof *values);
}

assay_status bs_gradient_sums_open(assay_context *ctx, const bs_run *run, bs_gradient_sums *s, const bs_weights *g,
                                   int first, int end)
{
    *s = (bs_gradient_sums){0};
    for (int weight = first; weight < end; weight++) s->sums.values[weight] = g->values[weight];
    return run->factor == 1 ? ASSAY_OK : bs_weights_alloc(ctx, run, &s->each, true, &s->sums);
}

void bs_gradient_sums_close(bs_gradient_sums *s)
{
    bs_weights_free(&s->each);
}

const bs_weights *bs_gradients_of(const bs_gradient_sums *s, int64_t i)
{
    return i == 0 ? &s->sums : &s->each;
}

void bs_add_gradients(const assay_context *ctx, const bs_run *run, const bs_gradient_sums *s, int64_t i)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        double *sum = s->sums.values[weight], *each = s->each.values[weight];
        if (sum == NULL) continue;
        const int64_t count = run->sizes.shards * bs_weight_count(run, weight, true);
        if (i > 0) {
            assay_round(ctx, ASSAY_ROUND_STORAGE, count, each);
            assay_add(ctx, count, each, sum);
        }
        if (i < run->factor - 1) assay_round(ctx, ASSAY_ROUND_STORAGE, count, sum);
    }
}

bool bs_wants(const bs_run *run, int64_t layer, const char *folder, const char *name, char path[ASSAY_PATH_SIZE])
{
    const assay_sink *out = run->stack->out;
    char prefix[ASSAY_LAYER_PREFIX_SIZE];
    assay_layer_prefix(run->stack->config, layer, prefix);
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s%s", folder, prefix, name);
    return assay_wants(out, path);
}

/* --- what is quantised --- */

const assay_quant_recipe_config *bs_recipe_of(const bs_run *run)
{
    return &run->stack->config->moe.recipe;
}

assay_status bs_show_run(assay_context *ctx, graph_run *r, const bs_layer *at, const bs_microbatch *b, int64_t shard)
{
    if (at->made == NULL) return ASSAY_OK;
    r->in = at->made->in;
    r->out = at->made->out;
    r->prefix = at->made->prefix;
    r->number = b->number * at->run->sizes.shards + shard;
    return graph_read_deviations(ctx, r);
}

/* --- what is computed of a microbatch --- */

static const struct {
    const char *name, *axes;
    bool integers;
} forms[MB_TENSORS] = {
    [MB_ANGLES] = {"rotation angles", "aSh", false},
    [MB_LAYER_INPUTS] = {"layer_inputs", "aSD", false},
    [MB_MLA_INPUTS] = {"input of attention", "aSD", false},
    [MB_LOW_RANK] = {"low_rank_main", "aSl", false},
    [MB_KEY_ROPE] = {"key_rope", "aSR", false},
    [MB_QUERY] = {"query", "aSNq", false},
    [MB_KEY] = {"key", "aSNq", false},
    [MB_VALUE] = {"value", "aSNv", false},
    [MB_ATTN_OUT] = {"attn_out", "aSNv", false},
    [MB_LSE] = {"lse", "aNS", false},
    [MB_OUT_PROJ] = {"out", "aSD", false},
    [MB_MLA_OUT] = {"mla_out", "aSD", false},
    [MB_X_NORM] = {"normalised input", "aSD", false},
    [MB_SHARED_OUT] = {"output of the shared expert", "aSD", false},
    [MB_LOGITS] = {"logits", "TE", false},
    [MB_GIVEN] = {"selected_experts", "TK", true},
    [MB_GIVEN_WEIGHTS] = {"routing_weights", "TK", false},
    [MB_CHOICES] = {"selected_experts", "TK", true},
    [MB_CHOICE_WEIGHTS] = {"routing weights", "TK", false},
    [MB_MARGIN] = {"margin", "T", false},
    [MB_BIASED] = {"biased_scores", "TE", false},
    [MB_COUNTS] = {"group_sizes", "E", true},
    [MB_ROLLED] = {"selected_experts", "GK", true},
    [MB_OWN_COUNTS] = {"group_sizes", "e", true},
    [MB_ROWS] = {"sorted rows", "rD", false},
    [MB_ROW_WEIGHTS] = {"sorted weights", "r", false},
    [MB_GATE] = {"mlpwi_0", "rH", false},
    [MB_UP] = {"mlpwi_1", "rH", false},
    [MB_MLPWI_0] = {"mlpwi_0 kept for backward", "yH", false},
    [MB_MLPWI_1] = {"mlpwi_1 kept for backward", "yH", false},
    [MB_ROUTED_OUT] = {"output of the routed experts", "rD", false},
    [MB_EXPERTS_OUT] = {"output of the experts", "aSD", false},
    [MB_MOE_INPUTS] = {"moe_inputs", "aSD", false},
    [MB_OUTPUTS] = {"outputs", "aSD", false},
};

int64_t bs_axis_size(const bs_run *run, char axis)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const assay_batch_split_sizes *s = &run->sizes;
    const struct {
        char axis;
        int64_t size;
    } sizes[] = {{'m', s->shards},
                 {'j', run->factor},
                 {'o', run->factor - 1},
                 {'d', run->factor * s->rows},
                 {'a', s->rows},
                 {'h', run->mla.rope.dim / 2},
                 {'T', s->tokens},
                 {'G', s->gathered},
                 {'r', s->copies},
                 {'y', s->capacity},
                 {'e', s->local_experts},
                 {'E', moe->routing.num_experts},
                 {'K', moe->routing.num_experts_per_tok},
                 {'H', moe->moe_mlp_dim},
                 {'F', moe->shared_mlp_dim}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].axis == axis) return sizes[i].size;
    return graph_axis(&run->attention, axis);
}

static int64_t count_of_shard(const bs_run *run, bs_tensor tensor)
{
    int64_t count = 1;
    for (const char *axis = forms[tensor].axes; *axis != '\0'; axis++) count *= bs_axis_size(run, *axis);
    return count;
}

int64_t bs_count(const bs_run *run, bs_tensor tensor)
{
    return run->sizes.shards * count_of_shard(run, tensor);
}

assay_status bs_make(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor tensor)
{
    const char *name = forms[tensor].name;
    if (b->values[tensor] != NULL || b->indices[tensor] != NULL) return ASSAY_OK;
    return forms[tensor].integers
               ? bs_alloc_shards(ctx, run, name, count_of_shard(run, tensor), 1, sizeof(int32_t), &b->indices[tensor])
               : bs_alloc_shards(ctx, run, name, count_of_shard(run, tensor), 1, sizeof(double), &b->values[tensor]);
}

void bs_drop(bs_microbatch *b, bs_tensor tensor)
{
    if (!b->lent[tensor]) free(b->values[tensor]);
    if (!b->lent[tensor]) free(b->indices[tensor]);
    b->values[tensor] = NULL;
    b->indices[tensor] = NULL;
    b->lent[tensor] = false;
}

void bs_lend(bs_microbatch *b, bs_tensor tensor, double *values)
{
    b->values[tensor] = values;
    b->lent[tensor] = true;
}

void bs_lend_indices(bs_microbatch *b, bs_tensor tensor, const int32_t *indices)
{
    b->indices[tensor] = (int32_t *)indices;
    b->lent[tensor] = true;
}

void bs_move(bs_microbatch *to, bs_microbatch *from, bs_tensor tensor)
{
    to->values[tensor] = from->values[tensor];
    to->indices[tensor] = from->indices[tensor];
    to->lent[tensor] = from->lent[tensor];
    from->values[tensor] = NULL;
    from->indices[tensor] = NULL;
}

assay_status bs_copy(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor tensor, bs_tensor of)
{
    MUST(bs_make(ctx, run, b, tensor));
    memcpy(b->values[tensor], b->values[of], (size_t)bs_count(run, tensor) * sizeof(double));
    return ASSAY_OK;
}

static void free_runs(graph_run **runs, const bs_run *run)
{
    for (int64_t shard = 0; *runs != NULL && shard < run->sizes.shards; shard++) graph_close(&(*runs)[shard]);
    free(*runs);
    *runs = NULL;
}

void bs_microbatch_free(bs_microbatch *b, const bs_run *run)
{
    for (int tensor = 0; tensor < MB_TENSORS; tensor++) bs_drop(b, (bs_tensor)tensor);
    for (int kind = 0; kind < BS_STEPS_KINDS; kind++) free_runs(&b->runs[kind], run);
    assay_routing_free(&b->routing);
    *b = (bs_microbatch){0};
}

static void move_tensor(const bs_run *run, bs_microbatch *b, bs_tensor tensor, void *whole, bool to_batch)
{
    const size_t all = (size_t)bs_count(run, tensor) * (forms[tensor].integers ? sizeof(int32_t) : sizeof(double));
    for (int64_t m = 0; m < run->factor; m++) {
        void *own = forms[tensor].integers ? (void *)b[m].indices[tensor] : (void *)b[m].values[tensor];
        bs_move_rows(run, m, whole, own, all / (size_t)(run->sizes.shards * run->sizes.rows), to_batch);
    }
}

assay_status bs_write_tensor(assay_context *ctx, const bs_run *run, int64_t layer, const char *folder, const char *name,
                             const bs_microbatch *b, bs_tensor tensor)
{
    const assay_sink *out = run->stack->out;
    const int64_t count = run->factor * bs_count(run, tensor);
    char path[ASSAY_PATH_SIZE];
    OWNED double *whole = NULL;
    if (!bs_wants(run, layer, folder, name, path)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, path, count, &whole));
    move_tensor(run, (bs_microbatch *)(uintptr_t)b, tensor, whole, true);
    return forms[tensor].integers ? out->write_i32(ctx, out->self, path, count, (const int32_t *)whole)
                                  : out->write(ctx, out->self, path, count, whole);
}

assay_status bs_read_tensor(assay_context *ctx, const bs_run *run, const char *path, bs_microbatch *b, bs_tensor tensor)
{
    const assay_source *in = run->stack->in;
    const int64_t count = run->factor * bs_count(run, tensor);
    OWNED double *whole = NULL;
    if (!in->has(in->self, path)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, path, count, &whole));
    if (forms[tensor].integers) MUST(in->read_i32(ctx, in->self, path, 0, count, (int32_t *)whole));
    if (!forms[tensor].integers) MUST(in->read(ctx, in->self, path, 0, count, whole));
    for (int64_t m = 0; m < run->factor; m++) MUST(bs_make(ctx, run, &b[m], tensor));
    move_tensor(run, b, tensor, whole, false);
    return ASSAY_OK;
}
