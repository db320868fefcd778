/* Multi-head latent attention as the attention of a layer. */
#include "oracle/layer/attention_kind.h"

/* -1: it has none there. */
static int tensor_of(int slot)
{
    static const int slots[ASSAY_MLA_TENSORS + 1] = {
        [ASSAY_MLA_QUERY_WA_PROJ] = ASSAY_REMAT_QUERY_WA_PROJ, [ASSAY_MLA_MLA_Q] = ASSAY_REMAT_MLA_Q,
        [ASSAY_MLA_KV_WA_PROJ] = ASSAY_REMAT_KV_WA_PROJ,       [ASSAY_MLA_MLA_KV] = ASSAY_REMAT_MLA_KV,
        [ASSAY_MLA_QUERY_PROJ] = ASSAY_REMAT_QUERY_PROJ,       [ASSAY_MLA_KEY_PROJ] = ASSAY_REMAT_KEY_PROJ,
        [ASSAY_MLA_VALUE_PROJ] = ASSAY_REMAT_VALUE_PROJ,       [ASSAY_MLA_ATTENTION_OUT] = ASSAY_REMAT_ATTENTION_OUT,
        [ASSAY_MLA_OUT_PROJ] = ASSAY_REMAT_OUT_PROJ,           [ASSAY_MLA_LSE] = ASSAY_REMAT_LSE,
    };
    for (int tensor = 0; tensor <= ASSAY_MLA_TENSORS; tensor++) {
        if (slots[tensor] == slot) return tensor;
    }
    return -1;
}

static assay_stack_sizes sizes(const assay_stack_config *config)
{
    return (assay_stack_sizes){config->mla.batch, config->mla.sequence, config->mla.emb_dim};
}

static const assay_rope_config *rope(const assay_stack_config *config)
{
    return &config->mla.rope;
}

static assay_status check(assay_context *ctx, const assay_stack_config *config)
{
    return assay_mla_check(ctx, &config->mla);
}

static assay_tensor_row weight_row(const assay_stack_config *config, int weight)
{
    return assay_mla_weight_row(&config->mla, weight);
}

static assay_tensor_row tensor_row(const assay_stack_config *config, int slot)
{
    const int tensor = tensor_of(slot);
    return tensor < 0 ? (assay_tensor_row){0} : assay_mla_tensor_row(&config->mla, (assay_mla_tensor)tensor);
}

static double tensor_flops(const assay_stack_config *config, int64_t layer, int slot)
{
    (void)layer;
    return assay_mla_tensor_flops(&config->mla, (assay_mla_tensor)tensor_of(slot));
}

static double backward_flops(const assay_stack_config *config, int64_t layer)
{
    (void)layer;
    return assay_mla_backward_flops(&config->mla);
}

static void tensor_shares(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer,
                          int slot)
{
    (void)layer;
    assay_mla_tensor_shares(shares, least, &config->mla, (assay_mla_tensor)tensor_of(slot));
}

static void backward_shares(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer)
{
    (void)layer;
    assay_mla_backward_shares(shares, least, &config->mla);
}

static double **value(attention_residuals *r, int slot)
{
    return slot == ASSAY_REMAT_LSE ? &r->mla.lse : &r->mla.values[tensor_of(slot)];
}

static void free_residuals(attention_residuals *r)
{
    assay_mla_residuals_free(&r->mla);
}

static assay_mla_inputs inputs_of(const attention_call *call)
{
    return (assay_mla_inputs){.x = call->x, .positions = call->positions, .segment_ids = call->segment_ids};
}

static assay_status compute(assay_context *ctx, attention_residuals *r, int slot, const attention_call *call)
{
    const assay_mla_inputs in = inputs_of(call);
    const assay_mla_weights w = assay_mla_weights_of(call->weights);
    return assay_mla_compute(ctx, &r->mla, (assay_mla_tensor)tensor_of(slot), &in, &w, &call->config->mla);
}

static assay_status backward(assay_context *ctx, double *dx, double *const *gradients, const double *dy,
                             const attention_residuals *r, const attention_call *call)
{
    const assay_mla_inputs in = inputs_of(call);
    const assay_mla_weights w = assay_mla_weights_of(call->weights);
    const assay_mla_gradients g = assay_mla_gradients_of(dx, gradients);
    return assay_mla_backward(ctx, &g, dy, &r->mla, &in, &w, &call->config->mla);
}

const attention_kind attention_mla = {.weights = ASSAY_MLA_WEIGHTS,
                                      .sizes = sizes,
                                      .rope = rope,
                                      .check = check,
                                      .weight_row = weight_row,
                                      .tensor_row = tensor_row,
                                      .tensor_flops = tensor_flops,
                                      .backward_flops = backward_flops,
                                      .tensor_shares = tensor_shares,
                                      .backward_shares = backward_shares,
                                      .value = value,
                                      .free = free_residuals,
                                      .compute = compute,
                                      .backward = backward};
