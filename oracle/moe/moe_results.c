/* What the sink wants of a block, asked once. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static const char *const result_paths[MOE_ROUTED] = {
    [MOE_Y] = "outputs/y",
    [MOE_LB_LOSS] = "outputs/lb_loss",
    [MOE_BIAS_UPDATES] = "outputs/bias_updates",
    [MOE_DX] = "gradients/inputs/x",
    [MOE_DKERNEL] = "gradients/weights/gate/kernel",
    [MOE_DBIAS] = "gradients/weights/gate/bias",
    [MOE_DSCALE] = "gradients/weights/per_expert_scale",
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
    if (result == MOE_LB_LOSS) return balance && routing->load_balance_loss_weight > 0;
    return result != MOE_BIAS_UPDATES || (balance && routing->routed_bias_update_rate > 0);
}

/* Whether the block has that result. Of a tensor that is not there (a bias) there is no gradient. */
static bool is_there(const moe_results *r, const assay_source *in, int result)
{
    static const char gradients[] = "gradients/";
    char path[ASSAY_PATH_SIZE];
    if (!result_path(r->config, result, path)) return false;
    return strncmp(path, gradients, sizeof gradients - 1) != 0 || in->has(in->self, path + sizeof gradients - 1);
}

static assay_status path_of(assay_context *ctx, const moe_results *r, int precision, int result, char *path)
{
    char value[ASSAY_PATH_SIZE];
    const char *name = precision < 0 ? "" : r->precisions[precision].name;
    result_path(r->config, result, value);
    const int length = precision < 0 ? snprintf(path, ASSAY_PATH_SIZE, "%s", value)
                                     : snprintf(path, ASSAY_PATH_SIZE, "error_scale/%s/%s", name, value);
    if (length < ASSAY_PATH_SIZE) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "precision '%s': the name is too long for a path of %d characters", name,
                      ASSAY_PATH_SIZE - 1);
}

assay_status moe_results_open(assay_context *ctx, moe_results *r, const assay_source *in)
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
            if (!is_there(r, in, result)) continue;
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
