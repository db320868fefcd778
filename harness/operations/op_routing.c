#include <stdlib.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "harness/operations/op_work.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/sharded_moe.h"

assay_router_family assay_router_family_of(const assay_model_config *m)
{
    const char *name = m->model_name.text, *block = m->decoder_block.text;
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (m->fused_moe_func) return ASSAY_ROUTER_FUSED;
    if (method != NULL) return method->router;
    const bool deepseek = assay_begins(block, "deepseek") || (block[0] == '\0' && assay_begins(name, "deepseek"));
    if (!deepseek) return assay_block_router(block);
    if (assay_begins(name, "deepseek3") || assay_begins(name, "deepseek4")) return ASSAY_ROUTER_DEEPSEEK3;
    if (assay_begins(name, "deepseek2")) return ASSAY_ROUTER_DEEPSEEK2;
    const bool softmax = strcmp(m->routed_score_func.text, "softmax") == 0;
    return softmax && !m->routed_bias ? ASSAY_ROUTER_DEEPSEEK2 : ASSAY_ROUTER_DEEPSEEK3;
}

/* top2_sum where there is a bias, else max (DeepSeek's own rule), unless group_score says it outright. */
static assay_group_score group_score_of(const assay_model_config *m)
{
    const int said = assay_model_choice(m, ASSAY_KEY_AT_group_score); /* behind "" */
    if (said > 0) return (assay_group_score)(said - 1);
    return m->routed_bias ? ASSAY_GROUP_TOP2_SUM : ASSAY_GROUP_MAX;
}

assay_status assay_routing_config_of(assay_context *ctx, const assay_case *c, assay_routing_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_routing_config){
        .batch = c->batch,
        .sequence = c->sequence,
        .num_experts = m->num_experts,
        .num_experts_per_tok = m->num_experts_per_tok,
        .score_func = (assay_score_func)assay_model_choice(m, ASSAY_KEY_AT_routed_score_func),
        .group_score = group_score_of(m),
        .balance_scope = (assay_balance_scope)assay_model_choice(m, ASSAY_KEY_AT_load_balance_loss_scope),
        .n_routing_groups = m->n_routing_groups,
        .topk_routing_group = m->topk_routing_group,
        .top_k_in_group = m->top_k_in_group,
        .routed_scaling_factor = m->routed_scaling_factor,
        .norm_topk_prob = m->norm_topk_prob,
        .norm_topk_epsilon = m->norm_topk_epsilon,
        .use_random_routing = m->use_random_routing,
        .renormalize_exactly = m->use_batch_split_schedule,
        .other_rule = m->other_rule,
        .load_balance_loss_weight = m->fused_moe_func ? 0.0 : m->load_balance_loss_weight,
        .balance_pre_bias = m->load_balance_loss_pre_bias,
        .z_loss_weight = m->router_z_loss_weight,
        .routed_bias_update_rate = m->fused_moe_func ? 0.0 : m->routed_bias_update_rate,
        .hash_rows = m->first_num_hash_layers > 0 ? m->vocab_size : 0,
    };
    MUST(assay_require_positive(ctx, "num_experts", m->num_experts));
    if (m->first_num_hash_layers > 0) MUST(assay_require_positive(ctx, "vocab_size", m->vocab_size));
    config->family = assay_router_family_of(m);
    const assay_routing_method *method = assay_routing_method_by_name(m->routing_method.text);
    if (method != NULL) {
        config->score_func = method->score_func;
        config->norm_topk_prob = (method->has & ASSAY_METHOD_DIVIDES) != 0;
        config->undivided = config->score_func != ASSAY_SCORE_NONE && !config->norm_topk_prob;
        config->select_by_logits = (method->has & ASSAY_METHOD_BY_LOGITS) != 0;
    }
    if (config->family == ASSAY_ROUTER_FUSED) {
        /* every family divides by the sum but llama4 and gemma4, which do so when norm_topk_prob says so */
        bool own = strcmp(m->decoder_block.text, "llama4") == 0 || strcmp(m->decoder_block.text, "gemma4") == 0;
        config->norm_topk_prob = m->norm_topk_prob || !own;
        config->n_routing_groups = -1;
        config->hash_rows = 0;
    }
    return assay_routing_check(ctx, config);
}

/* Gemma 4 scales each expert's weight by a number of its own. */
static bool has_per_expert_scale(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return strcmp(m->decoder_block.text, "gemma4") == 0 && !m->fused_moe_func && !m->use_random_routing &&
           m->routing_method.text[0] == '\0';
}

int64_t assay_block_axis_size(const void *of, char axis)
{
    const quad_moe_config *config = of;
    return assay_moe_axis_size(&config->moe, &config->sharding, axis);
}

void assay_describe_router(assay_describer *d, const assay_moe_config *config)
{
    const double experts = (double)config->routing.num_experts;
    if (config->emb_dim > 0) assay_describe_weight(d, "gate/kernel", assay_fill_fan_in(config->emb_dim), "DE");
    if (d->c->config.routed_bias) assay_describe_weight(d, "gate/bias", assay_fill_normal(0.1, 0.0), "E");
    if (has_per_expert_scale(d->c)) assay_describe_weight(d, "per_expert_scale", assay_fill_normal(0.25, 1.0), "E");
    if (config->routing.hash_rows > 0)
        assay_describe_integers(d, "tid2eid", assay_fill_range(ASSAY_EXPERTS, 0.0, experts - 1), "VK");
}

void assay_describe_input_ids(assay_describer *d, const assay_routing_config *config)
{
    const assay_fill ids = assay_fill_range(ASSAY_INTEGERS, 0.0, (double)(config->hash_rows - 1));
    if (config->hash_rows > 0) assay_describe(d, "inputs/input_ids", ASSAY_INT32, &ids, "BS");
}

/* Logits are given directly when the case says how they are filled; else they are x gate.kernel. */
static bool logits_given(const assay_case *c)
{
    return assay_case_input_of(c, "inputs/logits") != NULL;
}

/* A block's router; emb_dim 0: logits are given. */
static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_moe_config *config = to;
    *config =
        (quad_moe_config){.moe.emb_dim = logits_given(c) ? 0 : c->config.base_emb_dim, .sharding = assay_one_device};
    MUST(assay_routing_config_of(ctx, c, &config->moe.routing));
    if (assay_gives_routing_weights(c, "")) {
        return assay_refuse(ctx, "inputs.routing_weights: op routing makes them");
    }
    return logits_given(c) ? ASSAY_OK : assay_require_positive(ctx, "base_emb_dim", c->config.base_emb_dim);
}

static void describe(assay_describer *d, const void *of)
{
    const assay_moe_config *config = &((const quad_moe_config *)of)->moe;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    if (config->emb_dim == 0) assay_describe_variable(d, "inputs/logits", one, "BSE");
    if (config->emb_dim > 0) assay_describe_variable(d, "inputs/x", one, "BSD");
    assay_describe_input_ids(d, &config->routing);
    assay_describe_router(d, config);
    assay_describe_choice_input(d, &config->routing);
    assay_describe(d, "routing/selected_experts", ASSAY_INT32, NULL, "BSK");
    assay_describe_output(d, "weights", &one, "BSK");
    assay_describe(d, "routing/margin", ASSAY_FLOAT64, NULL, "BS");
    assay_describe(d, "routing/group_sizes", ASSAY_INT32, NULL, "E");
    assay_describe_balance(d, &config->routing, false);
    assay_describe(d, "routing/sorted_selected_experts", ASSAY_INT32, NULL, "r");
}

/* What one evaluation has besides its tensors. Logits and their gradient are theirs where these are tensors. */
typedef struct routing_run {
    const assay_routing_config *config;
    assay_permute_dims dims;
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

static assay_status start(assay_context *ctx, const assay_work *w, routing_run *r)
{
    const int64_t size = r->dims.tokens * r->dims.experts;
    r->logits = assay_f64(w, "inputs/logits");
    r->d_logits = assay_f64(w, "gradients/inputs/logits");
    if (r->dims.emb_dim > 0) {
        MUST(assay_alloc_f64(ctx, "routing", size, &r->own_logits));
        MUST(assay_alloc_f64(ctx, "routing", size, &r->own_d_logits));
        r->logits = r->own_logits;
        r->d_logits = r->own_d_logits;
    }
    MUST(assay_read_all_i32(ctx, w->in, "routing/selected_experts", r->dims.tokens * r->dims.experts_per_token,
                            &r->given));
    MUST(assay_routing_alloc(ctx, &r->routing, r->config));
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

static assay_status multiply(assay_context *ctx, assay_matmul_args product)
{
    product = assay_product_of_router(product);
    return assay_matmul(ctx, &product);
}

static assay_status compute(assay_context *ctx, const assay_work *w, routing_run *r)
{
    const int64_t tokens = r->dims.tokens, experts = r->dims.experts, dim = r->dims.emb_dim, size = tokens * experts;
    const double *x = assay_f64(w, "inputs/x"), *kernel = assay_f64(w, "weights/gate/kernel");
    double *dx = assay_f64(w, "gradients/inputs/x"), *d_kernel = assay_f64(w, "gradients/weights/gate/kernel");
    if (dim > 0) MUST(multiply(ctx, assay_product_ab(r->logits, x, kernel, tokens, experts, dim)));
    assay_round(ctx, ASSAY_ROUND_ROUTER, size, r->logits);
    MUST(assay_routing_forward(ctx, &r->routing, &r->in, r->config));
    MUST(assay_routing_backward(ctx, r->d_logits, assay_f64(w, "gradients/weights/gate/bias"),
                                assay_f64(w, "gradients/weights/per_expert_scale"), assay_f64(w, "cotangents/weights"),
                                cotangent(w, "cotangents/lb_loss"), cotangent(w, "cotangents/z_loss"), &r->routing,
                                &r->in, r->config));
    assay_round(ctx, ASSAY_ROUND_ROUTER, size, r->d_logits);
    if (dim == 0) return ASSAY_OK;
    MUST(multiply(ctx, assay_product_abt(dx, r->d_logits, kernel, tokens, dim, experts)));
    return multiply(ctx, assay_product_atb(d_kernel, x, r->d_logits, dim, experts, tokens));
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
    const int64_t choices = r->dims.tokens * r->dims.experts_per_token;
    int32_t *selected = assay_i32(w, "routing/selected_experts");
    for (int64_t i = 0; i < choices; i++) selected[i] = of->selected_experts[i];
    copy_numbers(w, "outputs/weights", choices, of->weights);
    copy_numbers(w, "outputs/lb_loss", 1, &of->lb_loss);
    copy_numbers(w, "outputs/z_loss", 1, &of->z_loss);
    copy_numbers(w, "outputs/bias_updates", r->dims.experts, of->bias_updates);
    copy_numbers(w, "routing/margin", r->dims.tokens, of->margin);
    return assay_permute_order(ctx, assay_i32(w, "routing/sorted_selected_experts"),
                               assay_i32(w, "routing/group_sizes"), of->selected_experts, &r->dims);
}

/* What a backend's own choice is judged by; in no fixture. */
static assay_status write_selecting(assay_context *ctx, const assay_work *w, const routing_run *r)
{
    const int64_t size = r->dims.tokens * r->dims.experts;
    OWNED double *selecting = NULL;
    if (!assay_wants(w->out, "routing/biased_scores")) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "biased scores", size, &selecting));
    MUST(assay_routing_selecting(ctx, selecting, &r->in, 0, r->dims.tokens, r->config));
    return assay_write_result(ctx, w->out, "routing/biased_scores", size, selecting);
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_moe_config *moe = &((const quad_moe_config *)w->config)->moe;
    const assay_routing_config *config = &moe->routing;
    OWNED_BY(run_free)
    routing_run r = {.config = config,
                     .dims = {.tokens = config->batch * config->sequence,
                              .experts_per_token = config->num_experts_per_tok,
                              .experts = config->num_experts,
                              .emb_dim = moe->emb_dim}};
    MUST(start(ctx, w, &r));
    MUST(compute(ctx, w, &r));
    MUST(keep_results(ctx, w, &r));
    return write_selecting(ctx, w, &r);
}

const assay_operation assay_op_routing = {.name = "routing",
                                          .components = ASSAY_USES_ROUTER,
                                          .by_token = true,
                                          .summary = "which experts a token goes to, and with which weights",
                                          .config_of = config_of,
                                          .axis_size = assay_block_axis_size,
                                          .describe = describe,
                                          .compute = forward,
                                          .second_form = {.form = quad_routing},
                                          .count = {"BSDE", 2, 6}};
