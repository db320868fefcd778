/* Routing of oracle/moe, forward and backward, certified in binary128: the choice itself (both forms
 * choose), weights, margins, losses; then every gradient at that choice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/spec/tests/spec_case.h"

static void start(spec_case *c, uint64_t seed)
{
    case_start(c, seed);
    c->ctx = assay_context_default(1);
}

typedef struct routing_variant {
    assay_routing_config config;
    bool bias, scale;
    double size, shift; /* of the logits */
    double bias_size, bias_shift;
    double grid; /* logits are multiples of it: ties; 0 for none */
    bool given;  /* a choice from outside */
} routing_variant;

#define SIZES .batch = 2, .sequence = 5, .num_experts = 6, .num_experts_per_tok = 2
#define NO_GROUPS .n_routing_groups = -1, .topk_routing_group = -1

/* What routing leaves in its own buffers, as results. */
static void take_routing(spec_case *c, const assay_routing *r, const assay_routing_config *config)
{
    int64_t b = config->batch, s = config->sequence, k = config->num_experts_per_tok, e = config->num_experts;
    size_t choices = (size_t)(b * s * k), experts = (size_t)e;
    memcpy(case_index_output(c, "routing/selected_experts", DIMS(b, s, k)), r->selected_experts,
           choices * sizeof(int32_t));
    memcpy(case_index_output(c, "routing/group_sizes", DIMS(e)), r->group_sizes, experts * sizeof(int32_t));
    memcpy(case_output(c, "outputs/weights", DIMS(b, s, k)), r->weights, choices * sizeof(double));
    memcpy(case_output(c, "routing/margin", DIMS(b, s)), r->margin, (size_t)(b * s) * sizeof(double));
    if (config->load_balance_loss_weight > 0 && config->hash_rows == 0) {
        *case_output(c, "outputs/lb_loss", dims(0, NULL)) = r->lb_loss;
    }
    if (config->routed_bias_update_rate > 0 && config->hash_rows == 0) {
        assert_non_null(r->bias_updates);
        memcpy(case_output(c, "outputs/bias_updates", DIMS(e)), r->bias_updates, experts * sizeof(double));
    }
}

static const double *add_logits(spec_case *c, const routing_variant *v)
{
    double logits[256];
    int64_t count = v->config.batch * v->config.sequence * v->config.num_experts;
    assert_true(count <= 256);
    for (int64_t i = 0; i < count; i++) {
        logits[i] = v->shift + v->size * case_draw(c);
        if (v->grid > 0) logits[i] = v->grid * nearbyint(logits[i] / v->grid);
    }
    return case_values(c, "inputs/logits", logits, DIMS(v->config.batch, v->config.sequence, v->config.num_experts));
}

static const double *add_bias(spec_case *c, const routing_variant *v)
{
    double bias[16];
    if (!v->bias) return NULL;
    for (int64_t e = 0; e < v->config.num_experts; e++) bias[e] = v->bias_shift + v->bias_size * case_draw(c);
    return case_values(c, "weights/gate/bias", bias, DIMS(v->config.num_experts));
}

static void add_choices(spec_case *c, const routing_variant *v, assay_routing_inputs *in)
{
    int64_t b = v->config.batch, s = v->config.sequence, k = v->config.num_experts_per_tok, rows = v->config.hash_rows;
    int32_t ids[64], table[64];
    for (int64_t t = 0; t < b * s; t++) ids[t] = (int32_t)(rows > 0 ? t * 3 % rows : 0);
    /* k = 2 different experts in each row. */
    for (int64_t i = 0; i < 32; i++) {
        table[2 * i] = (int32_t)(i % v->config.num_experts);
        table[2 * i + 1] = (int32_t)((i + 1 + i % 3) % v->config.num_experts);
    }
    if (rows > 0) {
        in->tid2eid = case_indices(c, "weights/tid2eid", table, DIMS(rows, k));
        in->input_ids = case_indices(c, "inputs/input_ids", ids, DIMS(b, s));
    }
    if (v->given) in->given_experts = case_indices(c, "routing/selected_experts", table, DIMS(b, s, k));
}

static void certify_routing(const routing_variant *v, uint64_t seed)
{
    spec_case c;
    start(&c, seed);
    const assay_routing_config *config = &v->config;
    int64_t b = config->batch, s = config->sequence, e = config->num_experts, k = config->num_experts_per_tok;
    bool loss = config->load_balance_loss_weight > 0 && config->hash_rows == 0;
    assay_routing_inputs in = {0};
    in.logits = add_logits(&c, v);
    in.bias = add_bias(&c, v);
    if (v->scale) in.per_expert_scale = case_random(&c, "weights/per_expert_scale", 2, DIMS(e));
    add_choices(&c, v, &in);
    const double *d_weights = case_random(&c, "cotangents/weights", 1, DIMS(b, s, k));
    double d_loss = loss ? *case_random(&c, "cotangents/lb_loss", 1, dims(0, NULL)) : 0;
    double *d_logits = case_output(&c, "gradients/inputs/logits", DIMS(b, s, e));
    double *d_bias = v->bias ? case_output(&c, "gradients/weights/gate/bias", DIMS(e)) : NULL;
    double *d_scale = v->scale ? case_output(&c, "gradients/weights/per_expert_scale", DIMS(e)) : NULL;
    assay_routing r = {0};
    assert_ok(&c.ctx, assay_routing_check(&c.ctx, config));
    assert_ok(&c.ctx, assay_routing_alloc(&c.ctx, &r, config));
    assert_ok(&c.ctx, assay_routing_forward(&c.ctx, &r, &in, config));
    assert_ok(&c.ctx, assay_routing_backward(&c.ctx, d_logits, d_bias, d_scale, d_weights, d_loss, &r, &in, config));
    take_routing(&c, &r, config);
    assay_routing_free(&r);
    case_certify_outputs(&c, "routing", config, OUTPUT_LIMIT);
    if (!v->given) case_fix_choice(&c);
    case_certify_gradients(&c, "routing", config, GRADIENT_LIMIT);
    case_end(&c);
}

/* Every family, with and without what it may have. */
static void test_families(void **state)
{
    (void)state;
    static const routing_variant table[] = {
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID,
          .routed_scaling_factor = 2.5},
         .bias = true,
         .size = 3,
         .bias_size = .5},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID,
          .routed_scaling_factor = 2.5, .renormalize_exactly = true},
         .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SOFTMAX,
          .routed_scaling_factor = 16},
         .bias = true,
         .size = 3,
         .bias_size = .2},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS,
          .routed_scaling_factor = 1.5},
         .bias = true,
         .size = 3,
         .bias_size = .5},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_NONE,
          .routed_scaling_factor = 1},
         .bias = true,
         .size = 3,
         .bias_size = .5},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX,
          .routed_scaling_factor = 16},
         .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK2, .score_func = ASSAY_SCORE_SOFTMAX,
          .routed_scaling_factor = 16},
         .bias = true,
         .size = 3,
         .bias_size = .2},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT}, .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT}, .bias = true, .size = 3, .bias_size = 1},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT, .norm_topk_prob = true}, .scale = true, .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_GEMMA4}, .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_GEMMA4, .norm_topk_prob = true}, .scale = true, .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_FUSED, .score_func = ASSAY_SCORE_SOFTMAX, .norm_topk_prob = true},
         .size = 3},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_FUSED, .score_func = ASSAY_SCORE_SIGMOID, .norm_topk_prob = true},
         .bias = true,
         .size = 3,
         .bias_size = 1},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_FUSED, .score_func = ASSAY_SCORE_SIGMOID}, .size = 3},
        {{.batch = 1,
          .sequence = 7,
          .num_experts = 5,
          .num_experts_per_tok = 1,
          NO_GROUPS,
          .family = ASSAY_ROUTER_LLAMA4},
         .size = 3},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify_routing(&table[i], i);
}

static void test_groups(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        routing_variant v = {{SIZES, .n_routing_groups = i & 1 ? 3 : 2, .topk_routing_group = i & 1 ? 2 : 1,
                              .family = i & 4 ? ASSAY_ROUTER_DEEPSEEK2 : ASSAY_ROUTER_DEEPSEEK3,
                              .score_func = i & 4 ? ASSAY_SCORE_SOFTMAX : ASSAY_SCORE_SIGMOID,
                              .group_score = i & 2 ? ASSAY_GROUP_MAX : ASSAY_GROUP_TOP2_SUM,
                              .routed_scaling_factor = 2.5},
                             .size = 3,
                             .bias = !(i & 4),
                             .bias_size = .5};
        certify_routing(&v, 100 + i);
        v.bias_shift = -2; /* all negative: what is not allowed must not win */
        certify_routing(&v, 200 + i);
    }
}

static void test_ties(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 6; i++) {
        routing_variant v = {{SIZES, .n_routing_groups = i & 1 ? 3 : -1, .topk_routing_group = i & 1 ? 2 : -1,
                              .family = i < 4 ? ASSAY_ROUTER_DEEPSEEK3 : ASSAY_ROUTER_DEFAULT,
                              .score_func = i & 2 ? ASSAY_SCORE_SIGMOID : ASSAY_SCORE_NONE, .routed_scaling_factor = 1},
                             .size = 2,
                             .shift = 4,
                             .grid = 1};
        if (i >= 4) v.config.n_routing_groups = -1;
        certify_routing(&v, 300 + i);
    }
}

static void test_balance(void **state)
{
    (void)state;
    static const struct {
        assay_router_family family;
        assay_score_func f;
    } table[] = {{ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID},      {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SOFTMAX},
                 {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SQRTSOFTPLUS}, {ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SOFTMAX},
                 {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE},           {ASSAY_ROUTER_GEMMA4, ASSAY_SCORE_NONE}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        certify_routing(&(routing_variant){{SIZES, NO_GROUPS, .family = table[i].family, .score_func = table[i].f,
                                            .routed_scaling_factor = 2.5, .load_balance_loss_weight = .7,
                                            .routed_bias_update_rate = 1e-3},
                                           .bias = true,
                                           .size = 2,
                                           .bias_size = .5},
                        400 + i);
    }
}

static void test_hash_and_given_choice(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 4; i++) {
        certify_routing(&(routing_variant){{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3,
                                            .score_func = i & 1 ? ASSAY_SCORE_SQRTSOFTPLUS : ASSAY_SCORE_SIGMOID,
                                            .routed_scaling_factor = 1.5, .hash_rows = i & 2 ? 0 : 11,
                                            .load_balance_loss_weight = i & 2 ? .5 : 0},
                                           .bias = i & 2,
                                           .size = 2,
                                           .bias_size = .5,
                                           .given = i & 2},
                        500 + i);
    }
}

/* Sigmoid about 1e-8 below a bias of 12; E = K; all logits negative and large. */
static void test_values(void **state)
{
    (void)state;
    static const routing_variant table[] = {
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SIGMOID,
          .routed_scaling_factor = 2.5},
         .bias = true,
         .size = 1,
         .shift = -18,
         .bias_size = 1,
         .bias_shift = 12},
        {{.batch = 1,
          .sequence = 3,
          .num_experts = 5,
          .num_experts_per_tok = 5,
          NO_GROUPS,
          .family = ASSAY_ROUTER_DEFAULT},
         .size = 2},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEFAULT}, .size = 2, .shift = -900},
        {{SIZES, NO_GROUPS, .family = ASSAY_ROUTER_DEEPSEEK3, .score_func = ASSAY_SCORE_SQRTSOFTPLUS,
          .routed_scaling_factor = 1},
         .size = 30},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify_routing(&table[i], 600 + i);
}

/* One expert divided by itself: the weight is the factor, and the scores' gradient is of the order of 1e-20 / score,
 * far below what float64 can tell from 0. */
static void test_one_choice(void **state)
{
    (void)state;
    spec_case c;
    start(&c, 700);
    const routing_variant v = {{.batch = 1,
                                .sequence = 4,
                                .num_experts = 3,
                                .num_experts_per_tok = 1,
                                NO_GROUPS,
                                .family = ASSAY_ROUTER_DEEPSEEK3,
                                .score_func = ASSAY_SCORE_SIGMOID,
                                .routed_scaling_factor = 2.5},
                               .size = 3};
    const assay_routing_inputs in = {.logits = add_logits(&c, &v)};
    double d_logits[12];
    assay_fill_nan(d_logits, 12);
    assay_routing r = {0};
    assert_ok(&c.ctx, assay_routing_alloc(&c.ctx, &r, &v.config));
    assert_ok(&c.ctx, assay_routing_forward(&c.ctx, &r, &in, &v.config));
    assert_ok(&c.ctx,
              assay_routing_backward(&c.ctx, d_logits, NULL, NULL, (double[]){1, -1, .7, .3}, 0, &r, &in, &v.config));
    take_routing(&c, &r, &v.config);
    assay_routing_free(&r);
    case_certify_outputs(&c, "routing", &v.config, OUTPUT_LIMIT);
    assert_close(d_logits, (double[12]){0}, 12, 0, 1e-15);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_balance),
        cmocka_unit_test(test_hash_and_given_choice),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_one_choice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
