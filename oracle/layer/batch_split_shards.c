/* Arrays and weights of all shards; results of the whole batch; what a layer keeps and defers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/vector_sums.h"

assay_status bs_alloc_shards(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                             double **out)
{
    int64_t count = 0;
    assay_status status = assay_checked_count(ctx, what, 3, (int64_t[]){run->sizes.shards, a, b}, &count);
    return status != ASSAY_OK ? status : assay_alloc_f64(ctx, what, count, out);
}

assay_status bs_alloc_shards_i32(assay_context *ctx, const bs_run *run, const char *what, int64_t a, int64_t b,
                                 int32_t **out)
{
    int64_t count = 0;
    assay_status status = assay_checked_count(ctx, what, 3, (int64_t[]){run->sizes.shards, a, b}, &count);
    return status != ASSAY_OK ? status : assay_alloc_i32(ctx, what, count, out);
}

double *bs_weight_of(const bs_run *run, const bs_weights *w, int weight, int64_t shard)
{
    double *values = w->values[weight];
    return values == NULL ? NULL : values + shard * bs_weight_count(run, weight, true);
}

int64_t bs_rows_of(const bs_run *run, const int32_t *group_sizes, int64_t shard)
{
    const int64_t experts = run->sizes.local_experts;
    int64_t rows = 0;
    for (int64_t e = 0; e < experts; e++) rows += group_sizes[shard * experts + e];
    return rows;
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
    char prefix[LAYER_PREFIX_SIZE];
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s%s", folder, prefix, name);
    return out->wants(out->self, path);
}

assay_status bs_write_merged(assay_context *ctx, const bs_run *run, int64_t layer, const char *folder, const char *name,
                             double *const *microbatches, int64_t width)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    char path[ASSAY_PATH_SIZE];
    double *whole = NULL;
    if (!bs_wants(run, layer, folder, name, path)) return ASSAY_OK;
    TRY(bs_alloc_shards(ctx, run, path, run->factor * run->sizes.rows, width, &whole));
    bs_merge(whole, (const double *const *)microbatches, run, width);
    TRY(out->write(ctx, out->self, path, run->sizes.shards * run->factor * run->sizes.rows * width, whole));
cleanup:
    free(whole);
    return status;
}

void bs_residuals_free(bs_residuals *r)
{
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        free(r->layer_inputs[i]);
        free(r->mla_out[i]);
        free(r->attn_out[i]);
        free(r->lse[i]);
        free(r->mlpwi_0[i]);
        free(r->mlpwi_1[i]);
    }
    free(r->selected_experts);
    *r = (bs_residuals){0};
}

void bs_deferred_free(bs_deferred *deferred)
{
    free(deferred->moe_inputs);
    free(deferred->routed_out);
    free(deferred->shared_out);
    free(deferred->selected_experts);
    *deferred = (bs_deferred){0};
}
