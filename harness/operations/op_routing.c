#include <stdlib.h>

#include "harness/operations/op_work.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"

typedef struct routing_config {
    assay_routing_config routing; /* the first, since it is what the second form gets */
    int64_t emb_dim;              /* 0: logits are given */
    bool bias, per_expert_scale;
} routing_config;

/* Logits are given directly when the case says how they are filled; else they are x gate.kernel. */
static bool logits_given(const assay_case *c)
{
    return assay_case_input_of(c, "inputs/logits") != NULL;
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    routing_config *config = to;
    config->emb_dim = logits_given(c) ? 0 : c->config.base_emb_dim;
    config->bias = c->config.routed_bias;
    config->per_expert_scale = assay_has_per_expert_scale(c);
    MUST(assay_routing_config_of(ctx, c, &config->routing));
    if (assay_gives_routing_weights(c, "")) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "inputs.routing_weights: op routing makes them");
    }
    if (!logits_given(c)) MUST(assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim));
    return ASSAY_OK;
}

static int64_t axis_size(const void *of, char axis)
{
    const routing_config *config = of;
    const assay_routing_config *r = &config->routing;
    if (axis == 'B') return r->batch;
    if (axis == 'S') return r->sequence;
    if (axis == 'D') return config->emb_dim;
    if (axis == 'E') return r->num_experts;
    if (axis == 'K') return r->num_experts_per_tok;
    if (axis == 'V') return r->hash_rows;
    return r->batch * r->sequence * r->num_experts_per_tok;
}

static void describe_inputs(assay_describer *d, const routing_config *config)
{
    const assay_routing_config *r = &config->routing;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    if (config->emb_dim == 0) {
        assay_describe_variable(d, "inputs/logits", one, "BSE");
    } else {
        assay_describe_variable(d, "inputs/x", one, "BSD");
        assay_describe_variable(d, "weights/gate/kernel", assay_fill_fan_in(config->emb_dim), "DE");
    }
    if (config->bias) assay_describe_variable(d, "weights/gate/bias", assay_fill_normal(0.1, 0.0), "E");
    if (config->per_expert_scale)
        assay_describe_variable(d, "weights/per_expert_scale", assay_fill_normal(0.25, 1.0), "E");
    if (r->hash_rows > 0) {
        const assay_fill ids = assay_fill_range(ASSAY_INTEGERS, 0.0, (double)(r->hash_rows - 1));
        const assay_fill table = assay_fill_range(ASSAY_EXPERTS, 0.0, (double)(r->num_experts - 1));
        assay_describe(d, "inputs/input_ids", ASSAY_INT32, &ids, "BS");
        assay_describe(d, "weights/tid2eid", ASSAY_INT32, &table, "VK");
    }
}

static void describe(assay_describer *d, const void *of)
{
    const routing_config *config = of;
    const assay_routing_config *r = &config->routing;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    describe_inputs(d, config);
    assay_describe_given_choice(d, r);
    assay_describe(d, "routing/selected_experts", ASSAY_INT32, NULL, "BSK");
    assay_describe_output(d, "weights", &one, "BSK");
    assay_describe(d, "routing/margin", ASSAY_FLOAT64, NULL, "BS");
    assay_describe(d, "routing/group_sizes", ASSAY_INT32, NULL, "E");
    assay_describe_balance(d, r, false);
    assay_describe(d, "routing/sorted_selected_experts", ASSAY_INT32, NULL, "r");
}

/* What one evaluation has besides its tensors. Logits and their gradient are theirs where these are tensors. */
typedef struct routing_run {
    const routing_config *config;
    int64_t tokens, experts, chosen, dim;
    double *logits, *d_logits;
    double *own_logits, *own_d_logits;
    int32_t *given;
    assay_routing_inputs in;
    assay_routing routing;
} routing_run;

static void run_free(routing_run *r)
{
    free(r->own_logits);
    free(r->own_d_logits);
    free(r->given);
    assay_routing_free(&r->routing);
}

static assay_matmul_args logits_product(const assay_work *w, const routing_run *r, double *c)
{
    return assay_product_of_router(assay_product_ab(c, assay_f64(w, "inputs/x"), assay_f64(w, "weights/gate/kernel"),
                                                    r->tokens, r->experts, r->dim));
}

static assay_matmul_args dx_product(const assay_work *w, const routing_run *r, double *c)
{
    return assay_product_of_router(
        assay_product_abt(c, r->d_logits, assay_f64(w, "weights/gate/kernel"), r->tokens, r->dim, r->experts));
}

static assay_matmul_args kernel_product(const assay_work *w, const routing_run *r, double *c)
{
    return assay_product_of_router(
        assay_product_atb(c, assay_f64(w, "inputs/x"), r->d_logits, r->dim, r->experts, r->tokens));
}

static assay_status start(assay_context *ctx, const assay_work *w, routing_run *r)
{
    r->logits = assay_f64(w, "inputs/logits");
    r->d_logits = assay_f64(w, "gradients/inputs/logits");
    if (r->dim > 0) {
        MUST(assay_alloc_f64(ctx, "routing", r->tokens * r->experts, &r->own_logits));
        MUST(assay_alloc_f64(ctx, "routing", r->tokens * r->experts, &r->own_d_logits));
        r->logits = r->own_logits;
        r->d_logits = r->own_d_logits;
    }
    MUST(assay_read_whole_i32(ctx, w->in, "routing/selected_experts", r->chosen, &r->given));
    MUST(assay_routing_alloc(ctx, &r->routing, &r->config->routing));
    const int32_t *choice = assay_i32(w, "inputs/selected_experts");
    r->in = (assay_routing_inputs){.logits = r->logits,
                                   .bias = assay_f64(w, "weights/gate/bias"),
                                   .per_expert_scale = assay_f64(w, "weights/per_expert_scale"),
                                   .tid2eid = assay_i32(w, "weights/tid2eid"),
                                   .input_ids = assay_i32(w, "inputs/input_ids"),
                                   .given_experts = r->given != NULL ? r->given : choice,
                                   .choice_is_input = choice != NULL};
    return ASSAY_OK;
}

static double cotangent(const assay_work *w, const char *path)
{
    const double *value = assay_f64(w, path);
    return value == NULL ? 0.0 : value[0];
}

static assay_status compute(assay_context *ctx, const assay_work *w, routing_run *r)
{
    const assay_routing_config *config = &r->config->routing;
    const int64_t size = r->tokens * r->experts;
    if (r->dim > 0) {
        const assay_matmul_args product = logits_product(w, r, r->logits);
        MUST(assay_matmul(ctx, &product));
    }
    assay_round(ctx, ASSAY_ROUND_ROUTER, size, r->logits);
    MUST(assay_routing_forward(ctx, &r->routing, &r->in, config));
    MUST(assay_routing_backward(ctx, r->d_logits, assay_f64(w, "gradients/weights/gate/bias"),
                                assay_f64(w, "gradients/weights/per_expert_scale"), assay_f64(w, "cotangents/weights"),
                                cotangent(w, "cotangents/lb_loss"), cotangent(w, "cotangents/z_loss"), &r->routing,
                                &r->in, config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, size, r->d_logits);
    if (r->dim > 0) {
        const assay_matmul_args dx = dx_product(w, r, assay_f64(w, "gradients/inputs/x")),
                                kernel = kernel_product(w, r, assay_f64(w, "gradients/weights/gate/kernel"));
        MUST(assay_matmul(ctx, &dx));
        MUST(assay_matmul(ctx, &kernel));
    }
    return ASSAY_OK;
}

/* Of the routing's own results those that the case has. */
static void copy_numbers(const assay_work *w, const char *path, int64_t count, const double *values)
{
    double *to = assay_f64(w, path);
    for (int64_t i = 0; to != NULL && i < count; i++) to[i] = values[i];
}

static assay_status keep_results(assay_context *ctx, const assay_work *w, const routing_run *r)
{
    const assay_routing *of = &r->routing;
    const assay_permute_dims dims = {
        .tokens = r->tokens, .experts_per_token = r->chosen / r->tokens, .experts = r->experts};
    int32_t *selected = assay_i32(w, "routing/selected_experts");
    for (int64_t i = 0; i < r->chosen; i++) selected[i] = of->selected_experts[i];
    copy_numbers(w, "outputs/weights", r->chosen, of->weights);
    copy_numbers(w, "outputs/lb_loss", 1, &of->lb_loss);
    copy_numbers(w, "outputs/z_loss", 1, &of->z_loss);
    copy_numbers(w, "outputs/bias_updates", r->experts, of->bias_updates);
    copy_numbers(w, "routing/margin", r->tokens, of->margin);
    return assay_permute_order(ctx, assay_i32(w, "routing/sorted_selected_experts"),
                               assay_i32(w, "routing/group_sizes"), of->selected_experts, &dims);
}

/* What a backend's own choice is judged by; in no fixture. */
static assay_status write_selecting(assay_context *ctx, const assay_work *w, const routing_run *r)
{
    OWNED double *selecting = NULL;
    if (!assay_wants(w->out, "routing/biased_scores")) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "biased scores", r->tokens * r->experts, &selecting));
    MUST(assay_routing_selecting(ctx, selecting, &r->in, 0, r->tokens, &r->config->routing));
    return assay_write_result(ctx, w->out, "routing/biased_scores", r->tokens * r->experts, selecting);
}

static assay_status run(assay_context *ctx, const assay_case *c, const void *of, const assay_source *in,
                        const assay_sink *out)
{
    const routing_config *config = of;
    const assay_routing_config *routing = &config->routing;
    OWNED_BY(assay_work_close) assay_work w = {.c = c, .config = config, .in = in, .out = out};
    OWNED_BY(run_free)
    routing_run r = {.config = config,
                     .tokens = routing->batch * routing->sequence,
                     .experts = routing->num_experts,
                     .chosen = axis_size(config, 'r'),
                     .dim = config->emb_dim};
    MUST(assay_work_open(ctx, &w, &assay_op_routing));
    MUST(start(ctx, &w, &r));
    MUST(compute(ctx, &w, &r));
    MUST(keep_results(ctx, &w, &r));
    MUST(assay_work_write(ctx, &w, false));
    MUST(write_selecting(ctx, &w, &r));
    MUST(assay_work_write(ctx, &w, true));
    return ASSAY_OK;
}

static int64_t memory(const void *of)
{
    const routing_config *config = of;
    const int64_t tokens = config->routing.batch * config->routing.sequence, experts = config->routing.num_experts;
    return 8 * (12 * tokens * experts + 6 * tokens * config->emb_dim + 6 * config->emb_dim * experts +
                8 * axis_size(config, 'r'));
}

const assay_operation assay_op_routing = {.name = "routing",
                                          .parts = ASSAY_PART_ROUTER,
                                          .summary = "which experts a token goes to, and with which weights",
                                          .config_of = config_of,
                                          .axis_size = axis_size,
                                          .describe = describe,
                                          .run = run,
                                          .second_form = {.form = quad_routing},
                                          .count = {"BSDE", 2, 6},
                                          .bytes = memory};
