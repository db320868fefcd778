/* Copies of tokens gathered over the expert axis and sorted by rolled expert id, and back. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/mesh/collectives.h"
#include "oracle/moe/permute.h"

/* The sort of one shard's gathered copies. */
static assay_permute_dims sort_dims(const bs_run *run)
{
    return (assay_permute_dims){run->sizes.gathered, run->routing.num_experts_per_tok, run->routing.num_experts,
                                run->mla.emb_dim};
}

/* Room for an order [R], and the group sizes [E] that come with it behind. */
static assay_status alloc_order(assay_context *ctx, const bs_run *run, int32_t **order)
{
    return assay_alloc_i32(ctx, "order of copies", run->sizes.copies + run->routing.num_experts, order);
}

static assay_status order_of(assay_context *ctx, const bs_run *run, int32_t *order, const int32_t *selected_experts,
                             int64_t shard)
{
    const assay_permute_dims dims = sort_dims(run);
    return assay_permute_order(ctx, order, order + run->sizes.copies, selected_experts + shard * run->sizes.copies,
                               &dims);
}

assay_status bs_routed_gradients_alloc(assay_context *ctx, const bs_run *run, bs_routed_gradients *gradients)
{
    assay_status status = ASSAY_OK;
    TRY(bs_alloc_shards(ctx, run, "gradient of sorted rows", run->sizes.copies, run->mla.emb_dim, &gradients->x));
    TRY(bs_alloc_shards(ctx, run, "gradient of sorted weights", run->sizes.copies, 1, &gradients->weights));
cleanup:
    return status;
}

void bs_routed_gradients_free(bs_routed_gradients *gradients)
{
    free(gradients->x);
    free(gradients->weights);
    *gradients = (bs_routed_gradients){0};
}

/* Every shard gets the choices of its expert axis, its own experts being 0 to E/P - 1. */
static assay_status gather_choices(assay_context *ctx, const bs_run *run, bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const int64_t chosen = run->routing.num_experts_per_tok, copies = run->sizes.copies;
    const int32_t experts = (int32_t)run->routing.num_experts;
    const assay_shape local = assay_shape_of(2, run->sizes.tokens, chosen);
    TRY(bs_alloc_shards_i32(ctx, run, "selected_experts", run->sizes.gathered, chosen, &routed->selected_experts));
    assay_all_gather_i32(routed->selected_experts, routed->selection.selected_experts, &local, 0, run->mesh,
                         ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t place = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT);
        const int32_t shift = experts - (int32_t)(place * run->sizes.local_experts);
        int32_t *ids = routed->selected_experts + shard * copies;
        for (int64_t i = 0; i < copies; i++) ids[i] = (ids[i] + shift) % experts;
    }
cleanup:
    return status;
}

static assay_status sort_weights(assay_context *ctx, const bs_run *run, bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const int64_t chosen = run->routing.num_experts_per_tok, copies = run->sizes.copies;
    const assay_shape local = assay_shape_of(2, run->sizes.tokens, chosen);
    double *gathered = NULL;
    int32_t *order = NULL;
    TRY(alloc_order(ctx, run, &order));
    TRY(bs_alloc_shards(ctx, run, "gathered weights", run->sizes.gathered, chosen, &gathered));
    TRY(bs_alloc_shards(ctx, run, "sorted weights", copies, 1, &routed->weights));
    assay_all_gather(ctx, gathered, routed->selection.weights, &local, 0, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(order_of(ctx, run, order, routed->selected_experts, shard));
        for (int64_t j = 0; j < copies; j++) routed->weights[shard * copies + j] = gathered[shard * copies + order[j]];
    }
cleanup:
    free(gathered);
    free(order);
    return status;
}

/* How many copies each of a shard's own experts gets from its expert axis. */
static assay_status local_group_sizes(assay_context *ctx, const bs_run *run, bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = run->routing.num_experts, local = run->sizes.local_experts;
    int32_t *sums = NULL;
    TRY(bs_alloc_shards_i32(ctx, run, "group_sizes", experts, 1, &sums));
    TRY(bs_alloc_shards_i32(ctx, run, "group_sizes", local, 1, &routed->group_sizes));
    assay_psum_i32(sums, routed->selection.group_sizes, experts, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t place = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT);
        memcpy(routed->group_sizes + shard * local, sums + shard * experts + place * local,
               (size_t)local * sizeof *sums);
    }
cleanup:
    free(sums);
    return status;
}

assay_status bs_route(assay_context *ctx, const bs_run *run, bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    TRY(gather_choices(ctx, run, routed));
    TRY(sort_weights(ctx, run, routed));
    TRY(local_group_sizes(ctx, run, routed));
    TRY(bs_alloc_shards(ctx, run, "sorted rows", run->sizes.copies, run->mla.emb_dim, &routed->x));
    TRY(bs_route_impl(ctx, run, routed->x, routed->x_norm, routed->selected_experts));
cleanup:
    return status;
}

/* The transpose of gathering and sorting the weights: back in the order of choices, and added up over the expert axis.
 */
static assay_status route_weights_bwd(assay_context *ctx, const bs_run *run, double *d_weights, const double *d_sorted,
                                      const int32_t *selected_experts)
{
    assay_status status = ASSAY_OK;
    const int64_t copies = run->sizes.copies, chosen = run->routing.num_experts_per_tok;
    const assay_shape gathered = assay_shape_of(2, run->sizes.gathered, chosen);
    double *unsorted = NULL;
    int32_t *order = NULL;
    TRY(alloc_order(ctx, run, &order));
    TRY(bs_alloc_shards(ctx, run, "gradient of gathered weights", run->sizes.gathered, chosen, &unsorted));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(order_of(ctx, run, order, selected_experts, shard));
        for (int64_t j = 0; j < copies; j++) unsorted[shard * copies + order[j]] = d_sorted[shard * copies + j];
    }
    assay_psum_scatter(ctx, d_weights, unsorted, &gathered, 0, run->mesh, ASSAY_AXIS_EXPERT);
cleanup:
    free(unsorted);
    free(order);
    return status;
}

assay_status bs_route_bwd(assay_context *ctx, const bs_run *run, double *dx, double *d_weights,
                          const bs_routed_gradients *gradients, const int32_t *selected_experts)
{
    const assay_status status = route_weights_bwd(ctx, run, d_weights, gradients->weights, selected_experts);
    return status != ASSAY_OK ? status : bs_unroute(ctx, run, dx, gradients->x, selected_experts);
}

assay_status bs_route_impl(assay_context *ctx, const bs_run *run, double *sorted, const double *x,
                           const int32_t *selected_experts)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = run->mla.emb_dim, copies = run->sizes.copies;
    const assay_permute_dims dims = sort_dims(run);
    const assay_shape local = assay_shape_of(2, run->sizes.tokens, dim);
    double *gathered = NULL;
    int32_t *order = NULL;
    TRY(alloc_order(ctx, run, &order));
    TRY(bs_alloc_shards(ctx, run, "gathered rows", run->sizes.gathered, dim, &gathered));
    assay_all_gather(ctx, gathered, x, &local, 0, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(order_of(ctx, run, order, selected_experts, shard));
        assay_permute_forward(sorted + shard * copies * dim, gathered + shard * dims.tokens * dim, order, &dims);
    }
cleanup:
    free(gathered);
    free(order);
    return status;
}

assay_status bs_unroute(assay_context *ctx, const bs_run *run, double *x, const double *sorted,
                        const int32_t *selected_experts)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = run->mla.emb_dim, copies = run->sizes.copies, tokens = run->sizes.gathered;
    const assay_permute_dims dims = sort_dims(run);
    const assay_shape gathered = assay_shape_of(2, tokens, dim);
    double *sums = NULL;
    int32_t *order = NULL;
    TRY(alloc_order(ctx, run, &order));
    TRY(bs_alloc_shards(ctx, run, "unsorted rows", tokens, dim, &sums));
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(order_of(ctx, run, order, selected_experts, shard));
        TRY(assay_unpermute_forward(ctx, sums + shard * tokens * dim, sorted + shard * copies * dim, order, NULL,
                                    &dims));
    }
    if (run->sizes.expert_shards > 1) assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * tokens * dim, sums);
    assay_psum_scatter(ctx, x, sums, &gathered, 0, run->mesh, ASSAY_AXIS_EXPERT);
cleanup:
    free(sums);
    free(order);
    return status;
}

assay_status bs_unroute_bwd(assay_context *ctx, const bs_run *run, double *d_sorted, const double *dx,
                            const int32_t *selected_experts)
{
    return bs_route_impl(ctx, run, d_sorted, dx, selected_experts);
}
