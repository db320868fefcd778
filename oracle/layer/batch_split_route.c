/* Copies of tokens gathered over the expert axis and sorted by rolled expert id, and back. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/mesh/collectives.h"
#include "oracle/moe/shard_rows.h"

/* Of one shard's gathered tokens, each of which has K copies; or of what there is one number of for each copy. */
static assay_permute_dims dims_of(const bs_run *run, bs_tensor sorted)
{
    const int64_t k = run->routing.num_experts_per_tok, experts = run->routing.num_experts;
    return sorted == MB_ROW_WEIGHTS ? (assay_permute_dims){run->sizes.copies, 1, experts, 1}
                                    : (assay_permute_dims){run->sizes.gathered, k, experts, run->mla.emb_dim};
}

/* The order [M,R] of the copies, and room for gathered rows; allocated. */
static assay_status open_rows(assay_context *ctx, const bs_run *run, const assay_permute_dims *dims,
                              const int32_t *rolled, double **gathered, int32_t **order)
{
    const int64_t copies = run->sizes.copies, shards = run->sizes.shards, experts = run->routing.num_experts;
    MUST(bs_alloc_shards(ctx, run, "gathered rows", dims->tokens, dims->emb_dim, gathered));
    MUST(bs_alloc_shards_i32(ctx, run, "order of copies", copies + experts, 1, order));
    for (int64_t shard = 0; shard < shards; shard++) {
        int32_t *sizes = *order + shards * copies + shard * experts;
        MUST(assay_permute_order(ctx, *order + shard * copies, sizes, rolled + shard * copies, dims));
    }
    return ASSAY_OK;
}

/* sorted [M,R,width] from each shard's own [M,T,width], gathered over the expert axis. */
static assay_status sort(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor sorted, bs_tensor own,
                         const int32_t *rolled)
{
    const assay_permute_dims dims = dims_of(run, sorted);
    const assay_shape local = assay_shape_of(2, dims.tokens / run->sizes.expert_shards, dims.emb_dim);
    OWNED double *gathered = NULL;
    OWNED int32_t *order = NULL;
    MUST(bs_make(ctx, run, b, sorted));
    MUST(open_rows(ctx, run, &dims, rolled, &gathered, &order));
    assay_all_gather(ctx, gathered, b->values[own], &local, 0, run->mesh, ASSAY_AXIS_EXPERT);
    assay_sort_rows(b->values[sorted], gathered, order, run->sizes.shards, &dims);
    return ASSAY_OK;
}

/* Its transpose: unsorted, summed over K ascending, psum_scattered over expert. Rows may be stored before they are summed over shards. */
static assay_status unsort(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor own, bs_tensor sorted,
                           const int32_t *rolled)
{
    const assay_permute_dims dims = dims_of(run, sorted);
    const assay_shape gathered = assay_shape_of(2, dims.tokens, dims.emb_dim);
    OWNED double *sums = NULL;
    OWNED int32_t *order = NULL;
    MUST(bs_make(ctx, run, b, own));
    MUST(open_rows(ctx, run, &dims, rolled, &sums, &order));
    MUST(assay_unsort_rows(ctx, sums, b->values[sorted], order, run->sizes.shards, &dims));
    if (sorted != MB_ROW_WEIGHTS && run->sizes.expert_shards > 1)
        assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * assay_shape_count(&gathered), sums);
    assay_psum_scatter(ctx, b->values[own], sums, &gathered, 0, run->mesh, ASSAY_AXIS_EXPERT);
    return ASSAY_OK;
}

assay_status bs_gather_choices(assay_context *ctx, const bs_run *run, bs_microbatch *b)
{
    const int64_t copies = run->sizes.copies, experts = run->routing.num_experts, local = run->sizes.local_experts;
    const assay_shape own = assay_shape_of(1, copies / run->sizes.expert_shards);
    OWNED int32_t *sums = NULL;
    MUST(bs_make(ctx, run, b, MB_ROLLED));
    MUST(bs_make(ctx, run, b, MB_OWN_COUNTS));
    MUST(bs_alloc_shards_i32(ctx, run, "group_sizes", experts, 1, &sums));
    assay_all_gather_i32(b->indices[MB_ROLLED], b->indices[MB_CHOICES], &own, 0, run->mesh, ASSAY_AXIS_EXPERT);
    assay_psum_i32(sums, b->indices[MB_COUNTS], experts, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT) * local;
        int32_t *ids = b->indices[MB_ROLLED] + shard * copies;
        assay_roll_experts(ids, ids, copies, first, experts);
        memcpy(b->indices[MB_OWN_COUNTS] + shard * local, sums + shard * experts + first, (size_t)local * sizeof *sums);
    }
    return ASSAY_OK;
}

assay_status bs_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_gather_choices(ctx, at->run, b));
    MUST(sort(ctx, at->run, b, MB_ROW_WEIGHTS, MB_CHOICE_WEIGHTS, b->indices[MB_ROLLED]));
    return bs_route_impl(ctx, at, b);
}

assay_status bs_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    MUST(unsort(ctx, at->run, d, MB_CHOICE_WEIGHTS, MB_ROW_WEIGHTS, b->indices[MB_ROLLED]));
    return bs_route_impl_bwd(ctx, at, b, d);
}

assay_status bs_route_impl(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    return sort(ctx, at->run, b, MB_ROWS, MB_X_NORM, b->indices[MB_ROLLED]);
}

assay_status bs_route_impl_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    return unsort(ctx, at->run, d, MB_X_NORM, MB_ROWS, b->indices[MB_ROLLED]);
}

assay_status bs_unroute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    return unsort(ctx, at->run, b, MB_EXPERTS_OUT, MB_ROUTED_OUT, b->indices[MB_ROLLED]);
}

assay_status bs_unroute_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    return sort(ctx, at->run, d, MB_ROUTED_OUT, MB_EXPERTS_OUT, b->indices[MB_ROLLED]);
}
