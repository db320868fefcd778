/* Grouped-query attention as the attention of a layer. */
#include "oracle/layer/attention_kind.h"

/* -1: it has none there. */
static int tensor_of(int slot)
{
    static const int slots[ASSAY_GQA_TENSORS + 1] = {
        [ASSAY_GQA_QKV_PROJ] = ASSAY_REMAT_QKV_PROJ,
        [ASSAY_GQA_QUERY_PROJ] = ASSAY_REMAT_QUERY_PROJ,
        [ASSAY_GQA_KEY_PROJ] = ASSAY_REMAT_KEY_PROJ,
        [ASSAY_GQA_VALUE_PROJ] = ASSAY_REMAT_VALUE_PROJ,
        [ASSAY_GQA_ATTENTION_OUT] = ASSAY_REMAT_ATTENTION_OUT,
        [ASSAY_GQA_OUT_PROJ] = ASSAY_REMAT_OUT_PROJ,
        [ASSAY_GQA_LSE] = ASSAY_REMAT_LSE,
    };
    for (int tensor = 0; tensor <= ASSAY_GQA_TENSORS; tensor++) {
        if (slots[tensor] == slot) return tensor;
    }
    return -1;
}

/* Of one layer. */
static assay_gqa_config config_of(const assay_stack_config *config, int64_t layer)
{
    const bool odd = layer % 2 == 1;
    assay_gqa_config gqa = config->gqa;
    if (config->windows == (odd ? ASSAY_WINDOWS_EVEN : ASSAY_WINDOWS_ODD)) gqa.window = 0;
    return gqa;
}

static assay_stack_sizes sizes(const assay_stack_config *config)
{
    return (assay_stack_sizes){config->gqa.batch, config->gqa.sequence, config->gqa.emb_dim};
}

static const assay_rope_config *rope(const assay_stack_config *config)
{
    return &config->gqa.rope;
}

static assay_status check(assay_context *ctx, const assay_stack_config *config)
{
    return assay_gqa_check(ctx, &config->gqa);
}

static assay_tensor_row weight_row(const assay_stack_config *config, int weight)
{
    return assay_gqa_weight_row(&config->gqa, weight);
}

static assay_tensor_row tensor_row(const assay_stack_config *config, int slot)
{
    const int tensor = tensor_of(slot);
    return tensor < 0 ? (assay_tensor_row){0} : assay_gqa_tensor_row(&config->gqa, (assay_gqa_tensor)tensor);
}

static double tensor_flops(const assay_stack_config *config, int64_t layer, int slot)
{
    const assay_gqa_config gqa = config_of(config, layer);
    return assay_gqa_tensor_flops(&gqa, (assay_gqa_tensor)tensor_of(slot));
}

static double backward_flops(const assay_stack_config *config, int64_t layer)
{
    const assay_gqa_config gqa = config_of(config, layer);
    return assay_gqa_backward_flops(&gqa);
}

static void tensor_shares(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer,
                          int slot)
{
    const assay_gqa_config gqa = config_of(config, layer);
    assay_gqa_tensor_shares(shares, least, &gqa, (assay_gqa_tensor)tensor_of(slot));
}

static void backward_shares(assay_run_shares *shares, double least, const assay_stack_config *config, int64_t layer)
{
    const assay_gqa_config gqa = config_of(config, layer);
    assay_gqa_backward_shares(shares, least, &gqa);
}

static double **value(attention_residuals *r, int slot)
{
    return slot == ASSAY_REMAT_LSE ? &r->gqa.lse : &r->gqa.values[tensor_of(slot)];
}

static void free_residuals(attention_residuals *r)
{
    assay_gqa_residuals_free(&r->gqa);
}

static assay_gqa_inputs inputs_of(const attention_call *call)
{
    return (assay_gqa_inputs){.x = call->x, .positions = call->positions, .segment_ids = call->segment_ids};
}

static assay_status compute(assay_context *ctx, attention_residuals *r, int slot, const attention_call *call)
{
    const assay_gqa_config gqa = config_of(call->config, call->layer);
    const assay_gqa_inputs in = inputs_of(call);
    const assay_gqa_weights w = assay_gqa_weights_of(call->weights);
    return assay_gqa_compute(ctx, &r->gqa, (assay_gqa_tensor)tensor_of(slot), &in, &w, &gqa);
}

static assay_status backward(assay_context *ctx, double *dx, double *const *gradients, const double *dy,
                             const attention_residuals *r, const attention_call *call)
{
    const assay_gqa_config gqa = config_of(call->config, call->layer);
    const assay_gqa_inputs in = inputs_of(call);
    const assay_gqa_weights w = assay_gqa_weights_of(call->weights);
    const assay_gqa_gradients g = assay_gqa_gradients_of(dx, gradients);
    return assay_gqa_backward(ctx, &g, dy, &r->gqa, &in, &w, &gqa);
}

const attention_kind attention_gqa = {.weights = ASSAY_GQA_WEIGHTS,
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
