#include "oracle/moe/shard_rows.h"

void assay_roll_experts(int32_t *rolled, const int32_t *selected_experts, int64_t count, int64_t first, int64_t experts)
{
    for (int64_t i = 0; i < count; i++) {
        const bool none = selected_experts[i] == ASSAY_NO_EXPERT;
        rolled[i] = none ? ASSAY_NO_EXPERT : (int32_t)((selected_experts[i] - first + experts) % experts);
    }
}

/* Numbers of one shard's rows, and of its copies. */
static int64_t row_numbers(const assay_permute_dims *dims)
{
    return dims->tokens * dims->emb_dim;
}

static int64_t copies_of(const assay_permute_dims *dims)
{
    return dims->tokens * dims->experts_per_token;
}

void assay_sort_rows(double *sorted, const double *rows, const int32_t *order, int64_t shards,
                     const assay_permute_dims *dims)
{
    const int64_t copies = copies_of(dims);
    for (int64_t shard = 0; shard < shards; shard++) {
        assay_permute_forward(sorted + shard * copies * dims->emb_dim, rows + shard * row_numbers(dims),
                              order + shard * copies, dims);
    }
}

assay_status assay_unsort_rows(assay_context *ctx, double *rows, const double *sorted, const int32_t *order,
                               int64_t shards, const assay_permute_dims *dims)
{
    const int64_t copies = copies_of(dims);
    for (int64_t shard = 0; shard < shards; shard++) {
        MUST(assay_permute_backward(ctx, rows + shard * row_numbers(dims), sorted + shard * copies * dims->emb_dim,
                                    order + shard * copies, dims));
    }
    return ASSAY_OK;
}
