/* Copies of tokens gathered over the expert axis and sorted by rolled expert id, and back. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/mesh/collectives.h"
#include "oracle/moe/shard_rows.h"

/* Of one shard's gathered tokens, each of which has K copies; and of what there is one number of for each copy. */
static assay_permute_dims row_dims(const bs_run *run)
{
    return (assay_permute_dims){run->sizes.gathered, run->routing.num_experts_per_tok, run->routing.num_experts,
                                run->mla.emb_dim};
}

static assay_permute_dims weight_dims(const bs_run *run)
{
    return (assay_permute_dims){run->sizes.copies, 1, run->routing.num_experts, 1};
}

/* The order [M,R] of the copies, and behind it the sizes [M,E] of all groups; allocated. */
static assay_status make_order(assay_context *ctx, const bs_run *run, int32_t **order, const int32_t *selected_experts)
{
    const int64_t copies = run->sizes.copies, shards = run->sizes.shards, experts = run->routing.num_experts;
    const assay_permute_dims dims = row_dims(run);
    MUST(bs_alloc_shards_i32(ctx, run, "order of copies", copies + experts, 1, order));
    for (int64_t shard = 0; shard < shards; shard++) {
        int32_t *sizes = *order + shards * copies + shard * experts;
        MUST(assay_permute_order(ctx, *order + shard * copies, sizes, selected_experts + shard * copies, &dims));
    }
    return ASSAY_OK;
}

/* sorted [M,R,width] from each shard's own [M,T/P,width]. */
static assay_status gather_and_sort(assay_context *ctx, const bs_run *run, const assay_permute_dims *dims,
                                    double *sorted, const double *own, const int32_t *selected_experts)
{
    const assay_shape local = assay_shape_of(2, dims->tokens / run->sizes.expert_shards, dims->emb_dim);
    OWNED double *gathered = NULL;
    OWNED int32_t *order = NULL;
    MUST(bs_alloc_shards(ctx, run, "gathered rows", dims->tokens, dims->emb_dim, &gathered));
    MUST(make_order(ctx, run, &order, selected_experts));
    assay_all_gather(ctx, gathered, own, &local, 0, run->mesh, ASSAY_AXIS_EXPERT);
    assay_sort_rows(sorted, gathered, order, run->sizes.shards, dims);
    return ASSAY_OK;
}

/* Its transpose; `stored`: what is summed over shards may be stored before. */
static assay_status unsort_and_scatter(assay_context *ctx, const bs_run *run, const assay_permute_dims *dims,
                                       bool stored, double *own, const double *sorted, const int32_t *selected_experts)
{
    const assay_shape gathered = assay_shape_of(2, dims->tokens, dims->emb_dim);
    OWNED double *sums = NULL;
    OWNED int32_t *order = NULL;
    MUST(bs_alloc_shards(ctx, run, "unsorted rows", dims->tokens, dims->emb_dim, &sums));
    MUST(make_order(ctx, run, &order, selected_experts));
    MUST(assay_unsort_rows(ctx, sums, sorted, order, run->sizes.shards, dims));
    if (stored && run->sizes.expert_shards > 1)
        assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * assay_shape_count(&gathered), sums);
    assay_psum_scatter(ctx, own, sums, &gathered, 0, run->mesh, ASSAY_AXIS_EXPERT);
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
    const bs_run *run = at->run;
    const assay_permute_dims weights = weight_dims(run);
    MUST(bs_gather_choices(ctx, run, b));
    MUST(bs_make(ctx, run, b, MB_ROW_WEIGHTS));
    MUST(gather_and_sort(ctx, run, &weights, b->values[MB_ROW_WEIGHTS], b->values[MB_CHOICE_WEIGHTS],
                         b->indices[MB_ROLLED]));
    return bs_route_impl(ctx, at, b);
}

assay_status bs_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const assay_permute_dims weights = weight_dims(at->run);
    MUST(bs_make(ctx, at->run, d, MB_CHOICE_WEIGHTS));
    MUST(unsort_and_scatter(ctx, at->run, &weights, false, d->values[MB_CHOICE_WEIGHTS], d->values[MB_ROW_WEIGHTS],
                            b->indices[MB_ROLLED]));
    return bs_route_impl_bwd(ctx, at, b, d);
}

/* sorted [M,R,D] from x [M,T,D], gathered over the expert axis and sorted; and back: unsorted, summed over K ascending,
 * psum_scattered over expert. */
static assay_status sort(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor sorted, bs_tensor x,
                         const int32_t *rolled)
{
    const assay_permute_dims rows = row_dims(run);
    const assay_status status = bs_make(ctx, run, b, sorted);
    return status != ASSAY_OK ? status : gather_and_sort(ctx, run, &rows, b->values[sorted], b->values[x], rolled);
}

static assay_status unsort(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor x, bs_tensor sorted,
                           const int32_t *rolled)
{
    const assay_permute_dims rows = row_dims(run);
    const assay_status status = bs_make(ctx, run, b, x);
    return status != ASSAY_OK ? status
                              : unsort_and_scatter(ctx, run, &rows, true, b->values[x], b->values[sorted], rolled);
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
