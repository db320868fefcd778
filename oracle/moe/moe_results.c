/* What the sink wants of a block, asked once. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static const char *const result_paths[MOE_RESULTS] = {
    [MOE_Y] = "outputs/y",
    [MOE_LB_LOSS] = "outputs/lb_loss",
    [MOE_BIAS_UPDATES] = "outputs/bias_updates",
    [MOE_DX] = "gradients/inputs/x",
    [MOE_DKERNEL] = "gradients/weights/gate/kernel",
    [MOE_DBIAS] = "gradients/weights/gate/bias",
    [MOE_DSCALE] = "gradients/weights/per_expert_scale",
    [MOE_ROUTED + MLP_A] = "checkpoints/moe_mlpwi_0",
    [MOE_ROUTED + MLP_B] = "checkpoints/moe_mlpwi_1",
    [MOE_ROUTED + MLP_AB] = "checkpoints/moe_mlpwi",
    [MOE_ROUTED + MLP_Y] = "checkpoints/moe_mlpwo",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WI] = "gradients/weights/wi",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WI_0] = "gradients/weights/wi_0",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WI_1] = "gradients/weights/wi_1",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WO] = "gradients/weights/wo",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WI_0_BIAS] = "gradients/weights/wi_0_bias",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WI_1_BIAS] = "gradients/weights/wi_1_bias",
    [MOE_ROUTED + MLP_GRADIENT + MLP_WO_BIAS] = "gradients/weights/wo_bias",
    [MOE_SHARED + MLP_A] = "checkpoints/mlpwi_0",
    [MOE_SHARED + MLP_B] = "checkpoints/mlpwi_1",
    [MOE_SHARED + MLP_Y] = "checkpoints/mlpwo",
    [MOE_SHARED + MLP_GRADIENT + MLP_WI_0] = "gradients/weights/shared_experts/wi_0/kernel",
    [MOE_SHARED + MLP_GRADIENT + MLP_WI_1] = "gradients/weights/shared_experts/wi_1/kernel",
    [MOE_SHARED + MLP_GRADIENT + MLP_WO] = "gradients/weights/shared_experts/wo/kernel",
};

/* Whether the block has that result at all. */
static bool is_there(const assay_moe_config *config, const assay_source *in, int result)
{
    static const char gradients[] = "gradients/";
    const char *path = result_paths[result];
    const assay_routing_config *routing = &config->routing;
    bool balance = routing->hash_rows == 0 && routing->family != ASSAY_ROUTER_FUSED;
    if (path == NULL || (result >= MOE_SHARED && config->shared_mlp_dim == 0)) return false;
    switch (result) {
    case MOE_LB_LOSS:
        return balance && routing->load_balance_loss_weight > 0;
    case MOE_BIAS_UPDATES:
        return balance && routing->routed_bias_update_rate > 0;
    case MOE_ROUTED + MLP_AB:
    case MOE_ROUTED + MLP_GRADIENT + MLP_WI:
        return config->fused_weights;
    case MOE_ROUTED + MLP_A:
    case MOE_ROUTED + MLP_B:
    case MOE_ROUTED + MLP_GRADIENT + MLP_WI_0:
    case MOE_ROUTED + MLP_GRADIENT + MLP_WI_1:
        return !config->fused_weights;
    default:
        /* Of a tensor that is not there (a bias) there is no gradient. */
        return strncmp(path, gradients, sizeof gradients - 1) != 0 || in->has(in->self, path + sizeof gradients - 1);
    }
}

static assay_status path_of(assay_context *ctx, const moe_results *r, int precision, int result, char *path)
{
    const char *name = precision < 0 ? "" : r->precisions[precision].name;
    int length = precision < 0 ? snprintf(path, ASSAY_PATH_SIZE, "%s", result_paths[result])
                               : snprintf(path, ASSAY_PATH_SIZE, "error_scale/%s/%s", name, result_paths[result]);
    if (length < ASSAY_PATH_SIZE) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "precision '%s': the name is too long for a path of %d characters", name,
                      ASSAY_PATH_SIZE - 1);
}

assay_status moe_results_open(assay_context *ctx, moe_results *r, const assay_moe_config *config,
                              const assay_source *in)
{
    assay_status status = ASSAY_OK;
    void *wanted = NULL;
    char path[ASSAY_PATH_SIZE];
    TRY(assay_alloc(ctx, "wanted results", (int64_t)(1 + r->precision_count) * MOE_RESULTS, sizeof *r->wanted,
                    &wanted));
    r->wanted = wanted;
    for (int precision = -1; precision < r->precision_count; precision++) {
        for (int result = 0; result < MOE_RESULTS; result++) {
            bool *wants = &r->wanted[(precision + 1) * MOE_RESULTS + result];
            *wants = false;
            if (!is_there(config, in, result)) continue;
            TRY(path_of(ctx, r, precision, result, path));
            *wants = r->out->wants(r->out->self, path);
        }
    }
cleanup:
    return status;
}

void moe_results_free(moe_results *r)
{
    free(r->wanted);
    r->wanted = NULL;
}

bool moe_wants(const moe_results *r, int precision, int result)
{
    return r->wanted[(precision + 1) * MOE_RESULTS + result];
}

bool moe_wants_any_scale(const moe_results *r, int result)
{
    for (int precision = 0; precision < r->precision_count; precision++) {
        if (moe_wants(r, precision, result)) return true;
    }
    return false;
}

bool moe_uses(const moe_results *r, int result)
{
    return moe_wants(r, -1, result) || moe_wants_any_scale(r, result);
}

bool moe_uses_any(const moe_results *r, int first, int count)
{
    for (int result = first; result < first + count; result++) {
        if (moe_uses(r, result)) return true;
    }
    return false;
}

assay_status moe_write(assay_context *ctx, const moe_results *r, int precision, int result, int64_t count,
                       double *values)
{
    char path[ASSAY_PATH_SIZE];
    if (!moe_wants(r, precision, result)) return ASSAY_OK;
    assay_status status = path_of(ctx, r, precision, result, path);
    if (status != ASSAY_OK) return status;
    if (precision >= 0) {
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t i = 0; i < count; i++) values[i] = sqrt(values[i]);
    }
    return r->out->write(ctx, r->out->self, path, count, values);
}
