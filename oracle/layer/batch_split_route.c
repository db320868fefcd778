/* Copies of tokens gathered over the expert axis and sorted by rolled expert id, and back. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe.h"
#include "oracle/mesh/collectives.h"
#include "oracle/moe/permute.h"

/* Between each shard's own rows, or numbers of copies, and those of its expert axis sorted: sorted [M,R,width] from all that are gathered;
 * back, the transpose: unsorted, summed over K ascending, psum_scattered. Rows may be stored before they are summed over shards. */
static assay_status move(assay_context *ctx, const bs_run *run, bs_microbatch *b, bs_tensor sorted, bs_tensor own,
                         const int32_t *rolled, bool back)
{
    const bool of_copies = sorted == MB_ROW_WEIGHTS;
    const int64_t copies = run->sizes.copies, shards = run->sizes.shards;
    const int64_t tokens = of_copies ? copies : run->sizes.gathered, width = of_copies ? 1 : run->mla.emb_dim;
    const assay_permute_dims dims = {tokens, copies / tokens, run->routing.num_experts, width};
    const assay_shape local = assay_shape_of(2, tokens / run->sizes.expert_shards, width);
    const assay_shape all = assay_shape_of(2, tokens, width);
    OWNED double *gathered = NULL;
    OWNED int32_t *order = NULL;
    MUST(bs_make(ctx, run, b, back ? own : sorted));
    MUST(bs_alloc_shards(ctx, run, "gathered rows", tokens, width, sizeof *gathered, &gathered));
    MUST(assay_alloc_i32(ctx, "order of copies", copies + dims.experts, &order));
    if (!back) assay_all_gather(gathered, b->values[own], sizeof *gathered, &local, 0, run->mesh, ASSAY_AXIS_EXPERT);
    for (int64_t shard = 0; shard < shards; shard++) {
        double *rows = gathered + shard * tokens * width, *in_order = b->values[sorted] + shard * copies * width;
        MUST(assay_permute_order(ctx, order, order + copies, rolled + shard * copies, &dims));
        if (back) MUST(assay_unpermute_forward(ctx, rows, in_order, order, NULL, &dims));
        if (!back) assay_permute_forward(in_order, rows, order, &dims);
    }
    if (!back) return ASSAY_OK;
    if (!of_copies && run->sizes.expert_shards > 1)
        assay_round(ctx, ASSAY_ROUND_STORAGE, shards * tokens * width, gathered);
    assay_psum_scatter(ctx, b->values[own], gathered, &all, 0, run->mesh, ASSAY_AXIS_EXPERT);
    return ASSAY_OK;
}

assay_status bs_gather_choices(assay_context *ctx, const bs_run *run, bs_microbatch *b)
{
    const int64_t copies = run->sizes.copies, experts = run->routing.num_experts, local = run->sizes.local_experts;
    const assay_shape own = assay_shape_of(1, copies / run->sizes.expert_shards);
    const assay_mesh_axis axis = ASSAY_AXIS_EXPERT;
    MUST(bs_make(ctx, run, b, MB_ROLLED));
    MUST(bs_make(ctx, run, b, MB_OWN_COUNTS));
    assay_all_gather(b->indices[MB_ROLLED], b->indices[MB_CHOICES], sizeof(int32_t), &own, 0, run->mesh, axis);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int64_t first = assay_mesh_index(run->mesh, shard, axis) * local;
        assay_roll_experts(b->indices[MB_ROLLED] + shard * copies, copies, first, experts);
        for (int64_t e = 0; e < local; e++) {
            int32_t *sum = &b->indices[MB_OWN_COUNTS][shard * local + e];
            *sum = 0;
            for (int64_t part = 0; part < run->sizes.expert_shards; part++)
                *sum += b->indices[MB_COUNTS][assay_mesh_peer(run->mesh, shard, axis, part) * experts + first + e];
        }
    }
    return ASSAY_OK;
}

assay_status bs_route(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_gather_choices(ctx, at->run, b));
    MUST(move(ctx, at->run, b, MB_ROW_WEIGHTS, MB_CHOICE_WEIGHTS, b->indices[MB_ROLLED], false));
    return bs_route_impl(ctx, at, b);
}

assay_status bs_route_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    MUST(move(ctx, at->run, d, MB_ROW_WEIGHTS, MB_CHOICE_WEIGHTS, b->indices[MB_ROLLED], true));
    return bs_route_impl_bwd(ctx, at, b, d);
}

assay_status bs_route_impl(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    return move(ctx, at->run, b, MB_ROWS, MB_X_NORM, b->indices[MB_ROLLED], false);
}

assay_status bs_route_impl_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    return move(ctx, at->run, d, MB_ROWS, MB_X_NORM, b->indices[MB_ROLLED], true);
}

assay_status bs_unroute(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    return move(ctx, at->run, b, MB_ROUTED_OUT, MB_EXPERTS_OUT, b->indices[MB_ROLLED], true);
}

assay_status bs_unroute_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    return move(ctx, at->run, d, MB_ROUTED_OUT, MB_EXPERTS_OUT, b->indices[MB_ROLLED], false);
}
