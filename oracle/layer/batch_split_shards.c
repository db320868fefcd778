/* Arrays and weights of all shards; what a layer keeps and defers. */
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

void bs_accumulate(const assay_context *ctx, double *sum, const double *term, int64_t count)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += PIECE)
        assay_add_scaled(ctx, count - first < PIECE ? count - first : PIECE, 1, term + first, sum + first);
}

void bs_sum_over_shards(const assay_context *ctx, const bs_run *run, double *values, int64_t count)
{
    const int64_t shards = run->sizes.shards;
    if (values == NULL || shards == 1) return;
    assay_round(ctx, ASSAY_ROUND_STORAGE, shards * count, values);
    for (int64_t shard = 1; shard < shards; shard++) bs_accumulate(ctx, values, values + shard * count, count);
    for (int64_t shard = 1; shard < shards; shard++)
        memcpy(values + shard * count, values, (size_t)count * sizeof *values);
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
