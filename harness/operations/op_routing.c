#include "harness/operations/op_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"
#include "oracle/propagate/propagate_routing.h"
#include "oracle/propagate/scales.h"

/* Logits are given directly when the case says how they are filled; else they are x gate.kernel. */
static bool logits_given(const assay_case *c)
{
    for (int i = 0; i < c->input_count; i++) {
        if (strcmp(c->inputs[i].path, "logits") == 0 || strcmp(c->inputs[i].path, "inputs/logits") == 0) return true;
    }
    return false;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_routing_config config;
    assay_status status = assay_routing_config_of(ctx, c, &config);
    if (status == ASSAY_OK && assay_gives_routing_weights(c, "")) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs.routing_weights: op routing makes them");
    }
    if (status == ASSAY_OK && !logits_given(c)) {
        status = assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim);
    }
    return status;
}

static assay_status describe_inputs(assay_context *ctx, const assay_case *c, assay_tensor_list *list,
                                    const assay_routing_config *r)
{
    assay_status status;
    assay_dims e = {"E", {r->num_experts}};
    assay_fill one = assay_fill_normal(1.0, 0.0);
    if (logits_given(c)) {
        TRY(assay_describe_variable(ctx, list, c, "inputs/logits", one,
                                    (assay_dims){"BSE", {r->batch, r->sequence, r->num_experts}}));
    } else {
        int64_t dim = c->config.base_emb_dim;
        TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, (assay_dims){"BSD", {r->batch, r->sequence, dim}}));
        TRY(assay_describe_variable(ctx, list, c, "weights/gate/kernel", assay_fill_fan_in(dim),
                                    (assay_dims){"DE", {dim, r->num_experts}}));
    }
    if (c->config.routed_bias) {
        TRY(assay_describe_variable(ctx, list, c, "weights/gate/bias", assay_fill_normal(0.1, 0.0), e));
    }
    if (assay_has_per_expert_scale(c)) {
        TRY(assay_describe_variable(ctx, list, c, "weights/per_expert_scale", assay_fill_normal(0.25, 1.0), e));
    }
    if (r->hash_rows > 0) {
        assay_fill ids = assay_fill_range(ASSAY_INTEGERS, 0.0, (double)(r->hash_rows - 1));
        assay_fill table = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(r->num_experts - 1));
        TRY(assay_describe(ctx, list, "inputs/input_ids", ASSAY_INT32, &ids,
                           (assay_dims){"BS", {r->batch, r->sequence}}));
        TRY(assay_describe(ctx, list, "weights/tid2eid", ASSAY_INT32, &table,
                           (assay_dims){"VK", {r->hash_rows, r->num_experts_per_tok}}));
    }
cleanup:
    return status;
}

static void second_form(quad_tape *t, const void *c)
{
    assay_routing_config config;
    if (quad_try(t, assay_routing_config_of(quad_context(t), c, &config))) quad_routing(t, &config);
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    assay_routing_config r;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    TRY(assay_routing_config_of(ctx, c, &r));
    assay_dims chosen = {"BSK", {r.batch, r.sequence, r.num_experts_per_tok}}, e = {"E", {r.num_experts}};
    assay_fill one = assay_fill_normal(1.0, 0.0), unit = {.distribution = ASSAY_CONSTANT, .scale = 1.0, .mean = 1.0};
    TRY(describe_inputs(ctx, c, list, &r));
    TRY(assay_describe_given_choice(&d, &r));
    TRY(assay_describe(ctx, list, "routing/selected_experts", ASSAY_INT32, NULL, chosen));
    TRY(assay_describe_output(ctx, list, c, "weights", &one, chosen));
    TRY(assay_describe(ctx, list, "routing/margin", ASSAY_FLOAT64, NULL, (assay_dims){"BS", {r.batch, r.sequence}}));
    TRY(assay_describe(ctx, list, "routing/group_sizes", ASSAY_INT32, NULL, e));
    if (r.load_balance_loss_weight > 0.0 && r.hash_rows == 0) {
        TRY(assay_describe_output(ctx, list, c, "lb_loss", &unit, (assay_dims){"", {0}}));
    }
    if (r.z_loss_weight > 0.0) TRY(assay_describe_output(ctx, list, c, "z_loss", &unit, (assay_dims){"", {0}}));
    if (r.routed_bias_update_rate > 0.0 && r.hash_rows == 0) {
        TRY(assay_describe_output(ctx, list, c, "bias_updates", NULL, e));
    }
    TRY(assay_describe(ctx, list, "routing/sorted_selected_experts", ASSAY_INT32, NULL,
                       (assay_dims){"r", {r.batch * r.sequence * r.num_experts_per_tok}}));
cleanup:
    return status;
}

/* Everything that one evaluation holds. Unused pointers stay NULL. */
typedef struct routing_run {
    assay_routing_config config;
    int64_t tokens, experts, chosen, dim;
    double *x, *kernel, *logits, *bias, *per_expert_scale, *d_weights, *d_lb_loss, *d_z_loss;
    int32_t *tid2eid, *input_ids, *given;
    bool choice_is_input;
    double *d_logits, *d_bias, *d_scale, *dx, *d_kernel;
    assay_routing routing;
} routing_run;

static void run_free(routing_run *r)
{
    double *const doubles[] = {r->x,         r->kernel,    r->logits,   r->bias,     r->per_expert_scale,
                               r->d_weights, r->d_lb_loss, r->d_z_loss, r->d_logits, r->d_bias,
                               r->d_scale,   r->dx,        r->d_kernel};
    for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) free(doubles[i]);
    free(r->tid2eid);
    free(r->input_ids);
    free(r->given);
    assay_routing_free(&r->routing);
}

static assay_matmul_args logits_product(const routing_run *r, double *c)
{
    return assay_product_of_router(assay_product_ab(c, r->x, r->kernel, r->tokens, r->experts, r->dim));
}

static assay_matmul_args dx_product(const routing_run *r, double *c)
{
    return assay_product_of_router(assay_product_abt(c, r->d_logits, r->kernel, r->tokens, r->dim, r->experts));
}

static assay_matmul_args kernel_product(const routing_run *r, double *c)
{
    return assay_product_of_router(assay_product_atb(c, r->x, r->d_logits, r->dim, r->experts, r->tokens));
}

static assay_status load(assay_context *ctx, routing_run *r, const assay_source *in)
{
    assay_status status;
    int64_t table = r->config.hash_rows * r->config.num_experts_per_tok;
    TRY(assay_read_whole(ctx, in, "inputs/x", r->tokens * r->dim, &r->x));
    TRY(assay_read_whole(ctx, in, "weights/gate/kernel", r->dim * r->experts, &r->kernel));
    TRY(assay_read_whole(ctx, in, "inputs/logits", r->tokens * r->experts, &r->logits));
    TRY(assay_read_whole(ctx, in, "weights/gate/bias", r->experts, &r->bias));
    TRY(assay_read_whole(ctx, in, "weights/per_expert_scale", r->experts, &r->per_expert_scale));
    TRY(assay_read_whole_i32(ctx, in, "weights/tid2eid", table, &r->tid2eid));
    TRY(assay_read_whole_i32(ctx, in, "inputs/input_ids", r->tokens, &r->input_ids));
    r->choice_is_input = in->has(in->self, "inputs/selected_experts");
    TRY(assay_read_whole_i32(ctx, in, "routing/selected_experts", r->chosen, &r->given));
    if (r->given == NULL) TRY(assay_read_whole_i32(ctx, in, "inputs/selected_experts", r->chosen, &r->given));
    TRY(assay_read_whole(ctx, in, "cotangents/weights", r->chosen, &r->d_weights));
    TRY(assay_read_whole(ctx, in, "cotangents/lb_loss", 1, &r->d_lb_loss));
    TRY(assay_read_whole(ctx, in, "cotangents/z_loss", 1, &r->d_z_loss));
    TRY(assay_alloc_f64(ctx, "routing", r->tokens * r->experts, &r->d_logits));
    TRY(assay_alloc_f64(ctx, "routing", r->experts, &r->d_bias));
    TRY(assay_alloc_f64(ctx, "routing", r->experts, &r->d_scale));
    TRY(assay_routing_alloc(ctx, &r->routing, &r->config));
    if (r->x != NULL) {
        TRY(assay_alloc_f64(ctx, "routing", r->tokens * r->experts, &r->logits));
        TRY(assay_alloc_f64(ctx, "routing", r->tokens * r->dim, &r->dx));
        TRY(assay_alloc_f64(ctx, "routing", r->dim * r->experts, &r->d_kernel));
    }
cleanup:
    return status;
}

static assay_routing_inputs inputs_of(const routing_run *r)
{
    return (assay_routing_inputs){.logits = r->logits,
                                  .bias = r->bias,
                                  .per_expert_scale = r->per_expert_scale,
                                  .tid2eid = r->tid2eid,
                                  .input_ids = r->input_ids,
                                  .given_experts = r->given,
                                  .choice_is_input = r->choice_is_input};
}

static assay_status write_order(assay_context *ctx, const routing_run *r, const assay_sink *out)
{
    assay_status status;
    int32_t *order = NULL, *group_sizes = NULL;
    assay_permute_dims dims = {
        .tokens = r->tokens, .experts_per_token = r->config.num_experts_per_tok, .experts = r->experts};
    TRY(assay_alloc_i32(ctx, "routing", r->chosen, &order));
    TRY(assay_alloc_i32(ctx, "routing", r->experts, &group_sizes));
    TRY(assay_permute_order(ctx, order, group_sizes, r->routing.selected_experts, &dims));
    TRY(assay_write_result_i32(ctx, out, "routing/selected_experts", r->chosen, r->routing.selected_experts));
    TRY(assay_write_result_i32(ctx, out, "routing/group_sizes", r->experts, group_sizes));
    TRY(assay_write_result_i32(ctx, out, "routing/sorted_selected_experts", r->chosen, order));
cleanup:
    free(order);
    free(group_sizes);
    return status;
}

/* What a backend's own choice is judged by; in no fixture. */
static assay_status write_selecting(assay_context *ctx, const routing_run *r, const assay_sink *out)
{
    assay_status status;
    double *selecting = NULL;
    const assay_routing_inputs in = inputs_of(r);
    if (!assay_wants(out, "routing/biased_scores")) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "biased scores", r->tokens * r->experts, &selecting));
    TRY(assay_routing_selecting(ctx, selecting, &in, 0, r->tokens, &r->config));
    TRY(assay_write_result(ctx, out, "routing/biased_scores", r->tokens * r->experts, selecting));
cleanup:
    free(selecting);
    return status;
}

static assay_status write_results(assay_context *ctx, const routing_run *r, const assay_sink *out)
{
    assay_status status;
    TRY(assay_write_result(ctx, out, "outputs/weights", r->chosen, r->routing.weights));
    TRY(assay_write_result(ctx, out, "outputs/lb_loss", 1, &r->routing.lb_loss));
    TRY(assay_write_result(ctx, out, "outputs/z_loss", 1, &r->routing.z_loss));
    if (r->routing.bias_updates != NULL) {
        TRY(assay_write_result(ctx, out, "outputs/bias_updates", r->experts, r->routing.bias_updates));
    }
    TRY(write_selecting(ctx, r, out));
    TRY(write_order(ctx, r, out));
    TRY(assay_write_result(ctx, out, "routing/margin", r->tokens, r->routing.margin));
    TRY(assay_write_result(ctx, out, "gradients/inputs/logits", r->tokens * r->experts, r->d_logits));
    if (r->x != NULL) {
        TRY(assay_write_result(ctx, out, "gradients/inputs/x", r->tokens * r->dim, r->dx));
        TRY(assay_write_result(ctx, out, "gradients/weights/gate/kernel", r->dim * r->experts, r->d_kernel));
    }
    TRY(assay_write_result(ctx, out, "gradients/weights/gate/bias", r->experts, r->d_bias));
    TRY(assay_write_result(ctx, out, "gradients/weights/per_expert_scale", r->experts, r->d_scale));
cleanup:
    return status;
}

static assay_status write_scales(assay_context *ctx, routing_run *r, const assay_sink *out, const assay_precision *p)
{
    assay_status status;
    double *variance_logits = NULL, *weights = NULL, *d_logits = NULL, *small = NULL;
    int64_t size = r->tokens * r->experts;
    assay_routing_inputs in = inputs_of(r);
    TRY(assay_alloc_f64(ctx, "error scale of routing", r->chosen, &weights));
    TRY(assay_alloc_f64(ctx, "error scale of routing", size, &d_logits));
    TRY(assay_alloc_f64(ctx, "error scale of routing", 2 * r->experts + 1, &small));
    assay_routing_variances v = {.weights = weights,
                                 .lb_loss = small,
                                 .d_logits = d_logits,
                                 .d_bias = small + 1,
                                 .d_per_expert_scale = r->per_expert_scale == NULL ? NULL : small + 1 + r->experts};
    if (r->x != NULL) {
        TRY(assay_alloc_f64(ctx, "error scale of routing", size, &variance_logits));
        assay_matmul_args product = logits_product(r, variance_logits);
        TRY(assay_propagate_product(ctx, p, false, &product, NULL, NULL));
        assay_propagate_store(p->router, 0, size, r->logits, variance_logits);
    }
    const assay_routing_run run = {.variance_logits = variance_logits,
                                   .d_weights = r->d_weights,
                                   .d_lb_loss = r->d_lb_loss == NULL ? 0.0 : r->d_lb_loss[0],
                                   .r = &r->routing,
                                   .in = &in,
                                   .config = &r->config};
    TRY(assay_propagate_routing(ctx, p, &v, &run));
    TRY(assay_write_scale(ctx, out, p, "outputs/weights", r->chosen, weights));
    TRY(assay_write_scale(ctx, out, p, "outputs/lb_loss", 1, v.lb_loss));
    TRY(assay_write_scale(ctx, out, p, "gradients/inputs/logits", size, d_logits));
    TRY(assay_write_scale(ctx, out, p, "gradients/weights/gate/bias", r->experts, v.d_bias));
    if (v.d_per_expert_scale != NULL) {
        TRY(assay_write_scale(ctx, out, p, "gradients/weights/per_expert_scale", r->experts, v.d_per_expert_scale));
    }
    if (r->x != NULL) {
        assay_matmul_args dx = dx_product(r, r->dx), kernel = kernel_product(r, r->d_kernel);
        TRY(assay_propagate_product(ctx, p, false, &dx, d_logits, NULL));
        TRY(assay_propagate_product(ctx, p, false, &kernel, NULL, d_logits));
        TRY(assay_write_scale(ctx, out, p, "gradients/inputs/x", r->tokens * r->dim, r->dx));
        TRY(assay_write_scale(ctx, out, p, "gradients/weights/gate/kernel", r->dim * r->experts, r->d_kernel));
    }
    for (int64_t e = 0; e < r->experts; e++) small[e] = 0.0; /* a rate times a sign is exact */
    TRY(assay_write_scale(ctx, out, p, "outputs/bias_updates", r->experts, small));
cleanup:
    free(variance_logits);
    free(weights);
    free(d_logits);
    free(small);
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    routing_run r = {.tokens = c->batch * c->sequence, .experts = c->config.num_experts, .dim = c->config.base_emb_dim};
    r.chosen = r.tokens * c->config.num_experts_per_tok;
    TRY(assay_routing_config_of(ctx, c, &r.config));
    TRY(load(ctx, &r, in));
    if (r.x != NULL) {
        assay_matmul_args product = logits_product(&r, r.logits);
        TRY(assay_matmul(ctx, &product));
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, r.tokens * r.experts, r.logits);
    assay_routing_inputs inputs = inputs_of(&r);
    TRY(assay_routing_forward(ctx, &r.routing, &inputs, &r.config));
    TRY(assay_routing_backward(ctx, r.d_logits, r.bias == NULL ? NULL : r.d_bias,
                               r.per_expert_scale == NULL ? NULL : r.d_scale, r.d_weights,
                               r.d_lb_loss == NULL ? 0.0 : r.d_lb_loss[0], r.d_z_loss == NULL ? 0.0 : r.d_z_loss[0],
                               &r.routing, &inputs, &r.config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, assay_routing_propagates(&r.config) ? 0 : r.tokens * r.experts, r.d_logits);
    if (r.x != NULL) {
        assay_matmul_args dx = dx_product(&r, r.dx), kernel = kernel_product(&r, r.d_kernel);
        TRY(assay_matmul(ctx, &dx));
        TRY(assay_matmul(ctx, &kernel));
    }
    TRY(write_results(ctx, &r, out));
    const int propagated = assay_routing_propagates(&r.config) ? precision_count : 0;
    for (int i = 0; i < propagated; i++) TRY(write_scales(ctx, &r, out, &precisions[i]));
cleanup:
    run_free(&r);
    return status;
}

bool assay_routing_propagates(const assay_routing_config *config)
{
    const bool whole = config->load_balance_loss_weight > 0.0 && config->balance_scope != ASSAY_BALANCE_SEQUENCE;
    return config->z_loss_weight <= 0.0 && !whole;
}

static bool ensemble(const assay_case *c)
{
    assay_context ctx = {0};
    assay_routing_config config;
    return assay_gives_choice(c) ||
           (assay_routing_config_of(&ctx, c, &config) == ASSAY_OK && !assay_routing_propagates(&config));
}

static double flops(const assay_case *c, bool backward)
{
    double product = logits_given(c) ? 0.0
                                     : (double)(c->batch * c->sequence) * (double)c->config.base_emb_dim *
                                           (double)c->config.num_experts;
    return (backward ? 6.0 : 2.0) * product;
}

static int64_t memory(const assay_case *c)
{
    int64_t tokens = c->batch * c->sequence, experts = c->config.num_experts, dim = c->config.base_emb_dim;
    return 8 *
           (10 * tokens * experts + 4 * tokens * dim + 4 * dim * experts + 8 * tokens * c->config.num_experts_per_tok);
}

const assay_operation assay_op_routing = {.name = "routing",
                                          .parts = ASSAY_PART_ROUTER,
                                          .summary = "which experts a token goes to, and with which weights",
                                          .check = check,
                                          .describe = describe,
                                          .run = run,
                                          .ensemble = ensemble,
                                          .second_form = {.form = second_form},
                                          .flops = flops,
                                          .memory = memory};
