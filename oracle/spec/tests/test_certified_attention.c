/* The float64 rotary embedding and attention, forward and backward, certified in binary128. */
#include <math.h>

#include "oracle/ops/attention.h"
#include "oracle/ops/yarn_rope.h"
#include "oracle/spec/tests/spec_mla_case.h"

/* Two rows of 4 tokens: both ends of the range, and what lies between. */
static void run_rope(spec_case *c, const assay_rope_config *config, int64_t heads)
{
    enum { TOKENS = 8 };
    static const int32_t positions[TOKENS] = {0, 1, 4095, 163839, 163838, 99991, 31, 2};
    const assay_shape shape = DIMS(2, TOKENS / 2, heads, config->dim);
    assay_rope_table table = {0};
    const double *x = case_random(c, "inputs/x", 1, shape);
    const double *dy = case_random(c, "cotangents/y", 1, shape);
    case_indices(c, "inputs/positions", positions, DIMS(2, TOKENS / 2));
    assay_rope_rows rows = {.y = case_output(c, "outputs/y", shape),
                            .y_token_stride = heads * config->dim,
                            .y_head_stride = config->dim,
                            .x = x,
                            .x_token_stride = heads * config->dim,
                            .x_head_stride = config->dim,
                            .heads = heads};
    assert_ok(&c->ctx, assay_rope_check(&c->ctx, config));
    assert_ok(&c->ctx, assay_rope_table_make(&c->ctx, &table, positions, TOKENS, config));
    assay_rope_forward(&c->ctx, &rows, &table, config);
    rows.y = case_output(c, "gradients/inputs/x", shape);
    rows.x = dy;
    assay_rope_backward(&c->ctx, &rows, &table, config);
    assay_rope_table_free(&table);
}

static void certify_rope(const assay_rope_config *config, int64_t heads, uint64_t seed)
{
    spec_case c;
    mla_case_start(&c, seed);
    run_rope(&c, config, heads);
    case_certify_outputs(&c, "yarn_rope", config, OUTPUT_LIMIT);
    case_certify_gradients(&c, "yarn_rope", config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_yarn_rope(void **state)
{
    (void)state;
    const int64_t sizes[] = {2, 6, 64};
    uint64_t seed = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        /* default and yarn, halves, interleaved and pairwise, with and without truncation and scaling */
        for (int bits = 0; bits < 24; bits++) {
            assay_rope_config config = deepseek3_rope(sizes[i]);
            config.yarn = bits & 1;
            config.truncate = bits & 2;
            config.attention_scaling = bits & 4;
            config.interleave = bits / 8 > 0;
            config.pairwise = bits / 8 > 1;
            certify_rope(&config, 1 + bits % 3, seed++);
        }
    }
}

static void test_ramps(void **state)
{
    (void)state;
    static const struct {
        double beta_fast, beta_slow, rope_factor, theta;
        int64_t original;
        bool truncate, pairwise;
    } table[] = {
        {1, 1, 40, 10000, 4096, false, false}, /* low = high */
        {1, 1, 40, 10000, 4096, false, true},  {32, 1, 40, 10000, 4, true, false},
        {32, 4, 40, 10000, 1, true, false},                                              /* low > high */
        {32, 4, 40, 10000, 1, true, true},     {32, 1e-9, 40, 10000, 4096, true, false}, /* high is Dr - 1 */
        {32, 1, .5, 10000, 4096, true, false}, {32, 1, 1, 1.5, 4096, true, true},
        {32, 1, 40, 5e6, 8192, false, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_rope_config config = deepseek3_rope(10);
        config.beta_fast = table[i].beta_fast;
        config.beta_slow = table[i].beta_slow;
        config.rope_factor = table[i].rope_factor;
        config.rope_max_timescale = table[i].theta;
        config.original_max_position_embeddings = table[i].original;
        config.truncate = table[i].truncate;
        config.pairwise = table[i].pairwise;
        config.attention_scaling = true;
        certify_rope(&config, 2, 100 + i);
    }
}

typedef struct attention_variant {
    assay_attention_config config;
    double scale; /* of query and key */
    segment_kind segments;
} attention_variant;

static void run_attention(spec_case *c, const attention_variant *v)
{
    const assay_attention_config *config = &v->config;
    const int64_t b = config->batch, s = config->sequence, n = config->heads;
    const assay_shape qk = DIMS(b, s, n, config->qk_dim), value = DIMS(b, s, n, config->v_dim), lse = DIMS(b, n, s);
    assay_attention_inputs in = {.query = case_random(c, "inputs/query", v->scale, qk),
                                 .key = case_random(c, "inputs/key", v->scale, qk),
                                 .value = case_random(c, "inputs/value", 1, value)};
    in.segment_ids = case_segments(c, v->segments, b, s);
    const double *dout = case_random(c, "cotangents/attention_out", 1, value);
    double *dlse = case_random(c, "cotangents/lse", 1, lse);
    double *out = case_output(c, "outputs/attention_out", value), *sums = case_output(c, "outputs/lse", lse);
    const assay_attention_gradients g = {.dquery = case_output(c, "gradients/inputs/query", qk),
                                         .dkey = case_output(c, "gradients/inputs/key", qk),
                                         .dvalue = case_output(c, "gradients/inputs/value", value)};
    assert_ok(&c->ctx, assay_attention_forward(&c->ctx, out, sums, &in, config));
    assert_ok(&c->ctx, assay_attention_backward(&c->ctx, &g, dout, dlse, out, sums, &in, config));
}

static void certify_attention(const attention_variant *v, uint64_t seed)
{
    spec_case c;
    mla_case_start(&c, seed);
    run_attention(&c, v);
    case_certify_outputs(&c, "attention", &v->config, OUTPUT_LIMIT);
    case_certify_gradients(&c, "attention", &v->config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_attention(void **state)
{
    (void)state;
    static const attention_variant table[] = {
        {{1, 1, 1, 1, 1, true}, 1, NO_SEGMENTS},    {{1, 1, 1, 1, 1, true}, 1, ALL_PADDING},
        {{1, 1, 1, 1, 1, false}, 1, ALL_PADDING},   {{2, 7, 3, 5, 2, true}, 1, NO_SEGMENTS},
        {{2, 7, 3, 5, 2, true}, 1, PADDED_TAIL},    {{2, 7, 3, 5, 2, false}, 1, SCATTERED},
        {{1, 17, 2, 3, 7, true}, 1, NO_SEGMENTS},   {{1, 17, 2, 3, 7, true}, 1, PADDED_TAIL},
        {{1, 17, 2, 3, 7, true}, 1, SCATTERED},     {{1, 17, 2, 3, 7, false}, 1, SCATTERED},
        {{3, 2, 1, 1, 13, true}, 1, NO_SEGMENTS},   {{1, 17, 1, 16, 16, true}, 3, NO_SEGMENTS},
        {{1, 7, 2, 4, 4, true}, 12, NO_SEGMENTS},   /* sharp */
        {{1, 7, 2, 4, 4, true}, 1e-8, NO_SEGMENTS}, /* flat */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify_attention(&table[i], 200 + i);
}

static void test_rejects(void **state)
{
    (void)state;
    spec_case c;
    const assay_rope_config rope = deepseek3_rope(6);
    mla_case_start(&c, 1);
    run_rope(&c, &rope, 2);
    assert_int_equal(case_assert_tampering_shows(&c, "yarn_rope", &rope), 2);
    case_end(&c);
    const attention_variant attention = {{2, 7, 3, 5, 2, true}, 1, SCATTERED};
    mla_case_start(&c, 1);
    run_attention(&c, &attention);
    assert_int_equal(case_assert_tampering_shows(&c, "attention", &attention.config), 5);
    assay_attention_config unmasked = attention.config;
    unmasked.mask_padding = false;
    assert_true(case_worst(&c, "attention", &unmasked, false) > 1e-6);
    assert_true(case_worst(&c, "attention", &unmasked, true) > 1e-6);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_yarn_rope),
        cmocka_unit_test(test_ramps),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_rejects),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
