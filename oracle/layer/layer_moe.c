/* The block of experts of a layer, whose tensors are the stack's. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"
#include "oracle/layer/sub_block.h"

/* The checkpoints of a MoE block. */
static const struct {
    int slot;
    const char *path;
} moe_checkpoints[] = {
    {ASSAY_REMAT_MLPWI_0, "checkpoints/mlpwi_0"},
    {ASSAY_REMAT_MLPWI_1, "checkpoints/mlpwi_1"},
    {ASSAY_REMAT_MLPWO, "checkpoints/mlpwo"},
    {ASSAY_REMAT_MOE_MLPWI, "checkpoints/moe_mlpwi"},
    {ASSAY_REMAT_MOE_MLPWI_0, "checkpoints/moe_mlpwi_0"},
    {ASSAY_REMAT_MOE_MLPWI_1, "checkpoints/moe_mlpwi_1"},
    {ASSAY_REMAT_MOE_MLPWO, "checkpoints/moe_mlpwo"},
};

enum { MOE_CHECKPOINTS = sizeof moe_checkpoints / sizeof *moe_checkpoints };

typedef struct moe_view {
    char prefix[LAYER_PREFIX_SIZE], weights[LAYER_PREFIX_SIZE + 4];
    sub_block block;
    double *held[MOE_CHECKPOINTS];
} moe_view;

static void open_view(const stack_run *run, int64_t layer, moe_view *view)
{
    *view = (moe_view){0};
    layer_prefix(run, layer, view->prefix);
    strcat(strcpy(view->weights, view->prefix), "moe/");
    view->block = (sub_block){.in = run->in, .out = run->out, .prefix = view->prefix, .weights = view->weights};
}

static void close_view(moe_view *view)
{
    for (int i = 0; i < MOE_CHECKPOINTS; i++) free(view->held[i]);
}

/* Elements of a checkpoint of the block that backward is given; 0: it computes them again. */
static int64_t kept_count(const stack_run *run, int64_t layer, int checkpoint)
{
    const int slot = moe_checkpoints[checkpoint].slot;
    const bool kept = assay_remat_action_of(&run->config->policy, slot) != ASSAY_REMAT;
    return kept ? layer_checkpoint_count(run->config, layer, slot) : 0;
}

bool layer_moe_wants_gradient(const stack_run *run, int64_t layer)
{
    moe_view view;
    open_view(run, layer, &view);
    view.block.backward = true;
    const assay_source in = sub_block_source(&view.block);
    const assay_sink out = sub_block_sink(&view.block);
    return assay_moe_wants_gradient(&run->config->moe, &in, &out);
}

static assay_status run_moe(assay_context *ctx, const stack_run *run, moe_view *view)
{
    const assay_stack_config *config = run->config;
    const assay_source in = sub_block_source(&view->block);
    const assay_sink out = sub_block_sink(&view->block);
    return assay_is_sharded(&config->moe, &config->sharding)
               ? assay_sharded_moe_run(ctx, &config->moe, &config->sharding, &in, &out)
               : assay_moe_run(ctx, &config->moe, &in, &out);
}

assay_status layer_moe_forward(assay_context *ctx, const stack_run *run, int64_t layer, const double *h_norm,
                               double **y)
{
    OWNED_BY(close_view) moe_view view = {0};
    open_view(run, layer, &view);
    sub_block_give(&view.block, "inputs/x", h_norm, run->size);
    sub_block_take(&view.block, "outputs/y", y, run->size, false);
    for (int i = 0; i < MOE_CHECKPOINTS; i++) {
        const int64_t count = kept_count(run, layer, i);
        if (run->store == NULL || count == 0) continue;
        sub_block_take(&view.block, moe_checkpoints[i].path, &view.held[i], count, true);
    }
    MUST(run_moe(ctx, run, &view));
    for (int i = 0; i < MOE_CHECKPOINTS; i++) {
        MUST(layer_release(ctx, run, layer, moe_checkpoints[i].slot, &view.held[i]));
    }
    return ASSAY_OK;
}

/* Operations of the gate, where the case gives the routing weights and there is none. */
static double gate_left_out(const stack_run *run, const assay_source *in)
{
    const double size = (double)run->size, experts = (double)run->config->moe.routing.num_experts;
    return in->has(in->self, "inputs/routing_weights") ? 2 * size * experts : 0;
}

assay_status layer_moe_backward(assay_context *ctx, const stack_run *run, int64_t layer, const double *h_norm,
                                const double *dy, double **dh_norm)
{
    bool kept[ASSAY_REMAT_SLOTS] = {false};
    OWNED_BY(close_view) moe_view view = {0};
    open_view(run, layer, &view);
    view.block.backward = true;
    sub_block_give(&view.block, "inputs/x", h_norm, run->size);
    sub_block_give(&view.block, "cotangents/y", dy, run->size);
    sub_block_take(&view.block, "gradients/inputs/x", dh_norm, run->size, false);
    for (int i = 0; i < MOE_CHECKPOINTS; i++) {
        const int slot = moe_checkpoints[i].slot;
        MUST(assay_remat_take(ctx, run->store, layer, slot, &view.held[i]));
        kept[slot] = view.held[i] != NULL;
        if (!kept[slot] || slot == ASSAY_REMAT_MLPWO) continue;
        sub_block_give(&view.block, moe_checkpoints[i].path, view.held[i],
                       layer_checkpoint_count(run->config, layer, slot));
    }
    const assay_source in = sub_block_source(&view.block);
    MUST(run_moe(ctx, run, &view));
    assay_remat_recomputed(run->store, layer_moe_recomputed(run->config, kept) - gate_left_out(run, &in));
    return ASSAY_OK;
}

double layer_moe_recomputed(const assay_stack_config *config, const bool kept[ASSAY_REMAT_SLOTS])
{
    const assay_moe_config *moe = &config->moe;
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const double tokens = (double)sizes.batch * (double)sizes.sequence, dim = (double)sizes.emb_dim;
    /* of one branch; a fused product is two */
    const double shared = 2 * tokens * dim * (double)moe->shared_mlp_dim;
    const double rows =
        tokens * (double)(moe->path == ASSAY_MOE_DENSE ? moe->routing.num_experts : assay_moe_slots(moe));
    const double routed = 2 * rows * dim * (double)moe->moe_mlp_dim;
    double sum = 2 * tokens * dim * (double)moe->routing.num_experts; /* the gate, whose logits have no name */
    if (!kept[ASSAY_REMAT_MLPWI_0]) sum += shared;
    if (!kept[ASSAY_REMAT_MLPWI_1]) sum += shared;
    if (moe->fused_weights) {
        if (!kept[ASSAY_REMAT_MOE_MLPWI]) sum += 2 * routed;
    } else {
        if (!kept[ASSAY_REMAT_MOE_MLPWI_0]) sum += routed;
        if (!kept[ASSAY_REMAT_MOE_MLPWI_1]) sum += routed;
    }
    if (!kept[ASSAY_REMAT_MOE_MLPWO]) sum += routed; /* the gradient of the routing weights needs it */
    return sum;
}
