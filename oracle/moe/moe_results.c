/* What the sink wants of a block, asked once. */
#include <stdio.h>
#include <string.h>

#include "oracle/moe/moe_block.h"

static const char *const result_paths[MOE_ROUTED] = {
    [MOE_Y] = "outputs/y",
    [MOE_LB_LOSS] = "outputs/lb_loss",
    [MOE_Z_LOSS] = "outputs/z_loss",
    [MOE_BIAS_UPDATES] = "outputs/bias_updates",
    [MOE_WEIGHTS] = "routing/weights",
    [MOE_SLOT_WEIGHTS] = "routing/topk_weights",
    [MOE_DX] = "gradients/inputs/x",
    [MOE_DKERNEL] = "gradients/weights/gate/kernel",
    [MOE_DBIAS] = "gradients/weights/gate/bias",
    [MOE_DSCALE] = "gradients/weights/per_expert_scale",
    [MOE_DROUTING_WEIGHTS] = "gradients/inputs/routing_weights",
    [MOE_DSHARED_GATE] = "gradients/weights/shared_expert_gate/kernel",
};

/* Of a result of the routed experts or of the shared one. */
static bool mlp_path(const assay_moe_config *config, int result, char path[ASSAY_PATH_SIZE])
{
    const bool shared = result >= MOE_SHARED;
    const int own = result - (shared ? MOE_SHARED : MOE_ROUTED);
    const assay_mlp_place place = shared ? ASSAY_MLP_SHARED : ASSAY_MLP_ROUTED;
    const assay_gated_mlp_config mlp = shared ? assay_moe_shared_config(config, 0) : assay_moe_expert_config(config, 0);
    if (own < ASSAY_MLP_CHECKPOINTS) return assay_mlp_checkpoint_path(&mlp, place, own, path) > 0;
    const assay_tensor_row row = assay_mlp_weight_row(&mlp, place, own - MLP_GRADIENT);
    if (row.name != NULL) assay_tensor_path("gradients/weights/", "", &row, path);
    return row.name != NULL;
}

/* The path of a result; false: the block has no such result. */
static bool result_path(const assay_moe_config *config, int result, char path[ASSAY_PATH_SIZE])
{
    const assay_routing_config *routing = &config->routing;
    const bool balance = routing->hash_rows == 0 && routing->family != ASSAY_ROUTER_FUSED;
    if (result >= MOE_ROUTED) return mlp_path(config, result, path);
    snprintf(path, ASSAY_PATH_SIZE, "%s", result_paths[result]);
    if (result == MOE_Z_LOSS) return routing->z_loss_weight > 0;
    if (result == MOE_LB_LOSS) return balance && routing->load_balance_loss_weight > 0;
    if (result == MOE_SLOT_WEIGHTS) return config->fused_shared_experts > 0;
    return result != MOE_BIAS_UPDATES || (balance && routing->routed_bias_update_rate > 0);
}

/* Whether the block has that result. Of a tensor that is not there (a bias) there is no gradient. */
static bool is_there(const assay_moe_config *config, const assay_source *in, int result, char path[ASSAY_PATH_SIZE])
{
    static const char gradients[] = "gradients/";
    if (!result_path(config, result, path)) return false;
    return strncmp(path, gradients, sizeof gradients - 1) != 0 || in->has(in->self, path + sizeof gradients - 1);
}

void moe_results_open(moe_results *r, const assay_moe_config *config, const assay_source *in, const assay_sink *out)
{
    char path[ASSAY_PATH_SIZE];
    r->out = out;
    r->config = config;
    for (int result = 0; result < MOE_RESULTS; result++)
        r->wanted[result] = is_there(config, in, result, path) && assay_wants(out, path);
}

bool moe_wants(const moe_results *r, int result)
{
    return r->wanted[result];
}

bool moe_wants_any(const moe_results *r, int first, int count)
{
    bool any = false;
    for (int result = first; result < first + count; result++) any |= r->wanted[result];
    return any;
}

bool moe_wants_gradient_checkpoints(const moe_results *r, int first)
{
    return moe_wants_any(r, first + ASSAY_MLPWI_GRADIENT, ASSAY_MLPWO_GRADIENT + 1 - ASSAY_MLPWI_GRADIENT);
}

bool assay_moe_wants_gradient(const assay_moe_config *config, const assay_source *in, const assay_sink *out)
{
    moe_results r;
    moe_results_open(&r, config, in, out);
    return moe_wants_any(&r, MOE_DX, MOE_ROUTED - MOE_DX) ||
           moe_wants_any(&r, MOE_ROUTED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS) ||
           moe_wants_any(&r, MOE_SHARED + MLP_GRADIENT, ASSAY_MLP_WEIGHTS) ||
           moe_wants_gradient_checkpoints(&r, MOE_ROUTED) || moe_wants_gradient_checkpoints(&r, MOE_SHARED);
}

assay_status moe_write(assay_context *ctx, const moe_results *r, int result, int64_t count, const double *values)
{
    char path[ASSAY_PATH_SIZE];
    if (!r->wanted[result]) return ASSAY_OK;
    result_path(r->config, result, path);
    return r->out->write(ctx, r->out->self, path, count, values);
}
