/* A choice that is given: slots without an expert, weights, random routing. */

#include "oracle/moe/tests/one_token.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { B = 2, S = 5, T = B * S, E = 6, K = 4, FEWER = K - 1 };

typedef struct problem {
    double logits[T * E], bias[E], d_weights[T * K], d_fewer[T * FEWER];
    int32_t with_none[T * K],
        fewer[T * FEWER]; /* the same experts; the first has a slot of none, at a place that varies */
    double d_logits[T * E], d_bias[E];
} problem;

static void problem_make(problem *p)
{
    uint64_t seed = 7;
    for (int i = 0; i < T * E; i++) p->logits[i] = (double)(int64_t)test_bits(&seed) * 0x1p-62;
    for (int i = 0; i < E; i++) p->bias[i] = (double)(int64_t)test_bits(&seed) * 0x1p-65;
    for (int t = 0; t < T; t++) {
        for (int k = 0, next = 0; k < K; k++) {
            const bool none = k == t % K;
            p->d_weights[t * K + k] = none ? 1e3 : (double)(int64_t)test_bits(&seed) * 0x1p-63;
            p->with_none[t * K + k] = none ? -1 : (t * 5 + k * 2 + (k > 2)) % E;
            if (none) continue;
            p->fewer[t * FEWER + next] = p->with_none[t * K + k];
            p->d_fewer[t * FEWER + next++] = p->d_weights[t * K + k];
        }
    }
}

static void run(problem *p, assay_routing *r, const assay_routing_config *config, const int32_t *given,
                const double *d_weights, int threads)
{
    assay_context ctx = assay_context_default(threads);
    const assay_routing_inputs in = {
        .logits = p->logits, .bias = p->bias, .given_experts = given, .choice_is_input = true};
    assay_fill_nan(p->d_logits, T * E);
    assay_fill_nan(p->d_bias, E);
    assert_ok(&ctx, assay_routing_alloc(&ctx, r, config));
    assert_ok(&ctx, assay_routing_forward(&ctx, r, &in, config));
    assert_ok(&ctx, assay_routing_backward(&ctx, p->d_logits, p->d_bias, NULL, d_weights, 0.5, 0, r, &in, config));
}

static assay_routing_config config_of(assay_router_family family, assay_score_func score_func)
{
    assay_routing_config config = one_token(family, score_func, E, K);
    config.batch = B, config.sequence = S;
    config.routed_scaling_factor = 2.5;
    config.norm_topk_prob = family == ASSAY_ROUTER_DEFAULT || family == ASSAY_ROUTER_FUSED;
    return config;
}

/* A slot of none is as if the token had one choice fewer: the same bits, forward and backward. */
TEST(test_a_slot_of_none_is_no_choice)
{
    static const struct {
        assay_router_family family;
        assay_score_func score_func;
        bool random;
    } table[] = {
        {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, false}, {ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, true},
        {ASSAY_ROUTER_DEEPSEEK2, ASSAY_SCORE_SOFTMAX, false}, {ASSAY_ROUTER_DEFAULT, ASSAY_SCORE_NONE, false},
        {ASSAY_ROUTER_GEMMA4, ASSAY_SCORE_NONE, false},       {ASSAY_ROUTER_FUSED, ASSAY_SCORE_SQRTSOFTPLUS, false},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        static problem p;
        OWNED_BY(assay_routing_free) assay_routing with_none, fewer;
        double d_logits[T * E], d_bias[E];
        problem_make(&p);
        assay_routing_config config = config_of(table[i].family, table[i].score_func);
        config.use_random_routing = table[i].random;
        config.load_balance_loss_weight = config.family == ASSAY_ROUTER_FUSED ? 0 : 0.25;
        config.routed_bias_update_rate = 0.125;
        run(&p, &with_none, &config, p.with_none, p.d_weights, 7);
        memcpy(d_logits, p.d_logits, sizeof d_logits);
        memcpy(d_bias, p.d_bias, sizeof d_bias);
        config.num_experts_per_tok = FEWER;
        run(&p, &fewer, &config, p.fewer, p.d_fewer, 1);
        assert_same_bits(d_logits, p.d_logits, T * E);
        assert_same_bits(d_bias, p.d_bias, E);
        assert_memory_equal(with_none.group_sizes, fewer.group_sizes, E * sizeof(int32_t));
        assert_same_bits(&with_none.lb_loss, &fewer.lb_loss, 1);
        if (fewer.bias_updates != NULL) assert_same_bits(with_none.bias_updates, fewer.bias_updates, E);
        for (int t = 0; t < T; t++) {
            assert_true(with_none.margin[t] == INFINITY);
            for (int k = 0, next = 0; k < K; k++) {
                const double expected = k == t % K ? 0.0 : fewer.weights[t * FEWER + next++];
                assert_same_bits(&with_none.weights[t * K + k], &expected, 1);
            }
        }
    }
}

/* An expert that a token has twice gets both gradients through one score. */
TEST_WITH_CONTEXT(test_random_routing_may_repeat)
{
    const double logits[] = {0.5, -1, 2}, bias[] = {0.25, 0, -0.5}, d_weights[] = {3, 5, 7};
    const int32_t given[] = {2, 0, 2};
    OWNED_BY(assay_routing_free) assay_routing r;
    double d_logits[3], d_bias[3];
    assay_routing_config config = one_token(ASSAY_ROUTER_DEEPSEEK3, ASSAY_SCORE_SIGMOID, 3, 3);
    config.routed_scaling_factor = 2.5;
    config.use_random_routing = true;
    const assay_routing_inputs in = {.logits = logits, .bias = bias, .given_experts = given, .choice_is_input = true};
    assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
    assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, d_weights, 0, 0, &r, &in, &config));
    const double s0 = 1 / (1 + exp(-0.5)), s2 = 1 / (1 + exp(-2.0));
    const double weights[] = {s2 - 0.5, s0 + 0.25, s2 - 0.5}, of_bias[] = {5, 0, 10};
    const double of_logits[] = {5 * s0 * (1 - s0), 0, 10 * s2 * (1 - s2)};
    assert_close(r.weights, weights, 3, 1e-15, 0);
    assert_close(d_bias, of_bias, 3, 1e-15, 0);
    assert_close(d_logits, of_logits, 3, 1e-14, 0);
    assert_memory_equal(r.group_sizes, ((int32_t[]){1, 0, 2}), 3 * sizeof(int32_t));
    const assay_routing_inputs none = {.logits = logits, .bias = bias};
    assert_bad_input(&ctx, assay_routing_forward(&ctx, &r, &none, &config), "use_random_routing");
}
