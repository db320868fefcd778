/* The float64 MLA, forward and backward, certified in binary128. */
#include <string.h>

#include "oracle/ops/mla.h"
#include "oracle/spec/tests/spec_mla_case.h"

typedef struct mla_variant {
    assay_mla_config config;
    segment_kind segments;
    int32_t first_position, step;
} mla_variant;

typedef struct mla_problem {
    assay_mla_inputs in;
    assay_mla_weights w;
    assay_mla_gradients g;
} mla_problem;

/* A weight and its gradient. */
static const double *add_weight(spec_case *c, const char *path, const char *gradient, assay_shape shape, double **g)
{
    *g = case_output(c, gradient, shape);
    return case_random(c, path, 1, shape);
}
#define WEIGHT(path, g, ...) add_weight(c, "weights/" path, "gradients/weights/" path, DIMS(__VA_ARGS__), g)

static void add_weights(spec_case *c, const assay_mla_config *config, mla_problem *m)
{
    const int64_t d = config->emb_dim, n = config->heads, nope = config->qk_nope_head_dim, rope = config->rope.dim;
    const int64_t lq = config->q_lora_rank, lkv = config->kv_lora_rank, value = config->v_head_dim;
    if (lq > 0) {
        m->w.wq_a = WEIGHT("wq_a/kernel", &m->g.dwq_a, d, lq);
        m->w.q_norm = WEIGHT("q_norm/scale", &m->g.dq_norm, lq);
        m->w.wq_b = WEIGHT("wq_b/kernel", &m->g.dwq_b, lq, n, nope + rope);
    } else {
        m->w.query = WEIGHT("query/kernel", &m->g.dquery, d, n, nope + rope);
    }
    m->w.wkv_a = WEIGHT("wkv_a/kernel", &m->g.dwkv_a, d, lkv + rope);
    m->w.kv_norm = WEIGHT("kv_norm/scale", &m->g.dkv_norm, lkv);
    m->w.wkv_b = WEIGHT("wkv_b/kernel", &m->g.dwkv_b, lkv, n, nope + value);
    m->w.out = WEIGHT("out/kernel", &m->g.dout, n, value, d);
}

static void keep(spec_case *c, const char *path, assay_shape shape, const double *values)
{
    memcpy(case_output(c, path, shape), values, (size_t)assay_shape_count(&shape) * sizeof *values);
}

static void keep_checkpoints(spec_case *c, const assay_mla_config *config, const assay_mla_residuals *r)
{
    const int64_t b = config->batch, s = config->sequence, n = config->heads, lkv = config->kv_lora_rank;
    const int64_t qk = config->qk_nope_head_dim + config->rope.dim, value = config->v_head_dim;
    if (config->q_lora_rank > 0) {
        const assay_shape latent = DIMS(b, s, config->q_lora_rank);
        keep(c, "checkpoints/query_wa_proj", latent, r->values[ASSAY_MLA_QUERY_WA_PROJ]);
        keep(c, "checkpoints/mla_q", latent, r->values[ASSAY_MLA_MLA_Q]);
    }
    keep(c, "checkpoints/kv_wa_proj", DIMS(b, s, lkv + config->rope.dim), r->values[ASSAY_MLA_KV_WA_PROJ]);
    keep(c, "checkpoints/mla_kv", DIMS(b, s, lkv), r->values[ASSAY_MLA_MLA_KV]);
    keep(c, "checkpoints/query_proj", DIMS(b, s, n, qk), r->values[ASSAY_MLA_QUERY_PROJ]);
    keep(c, "checkpoints/key_proj", DIMS(b, s, n, qk), r->values[ASSAY_MLA_KEY_PROJ]);
    keep(c, "checkpoints/value_proj", DIMS(b, s, n, value), r->values[ASSAY_MLA_VALUE_PROJ]);
    keep(c, "checkpoints/attention_out", DIMS(b, s, n, value), r->values[ASSAY_MLA_ATTENTION_OUT]);
    keep(c, "checkpoints/lse", DIMS(b, n, s), r->lse);
    keep(c, "checkpoints/out_proj", DIMS(b, s, config->emb_dim), r->values[ASSAY_MLA_OUT_PROJ]);
}

static void run_mla(spec_case *c, const mla_variant *v)
{
    const assay_mla_config *config = &v->config;
    const int64_t b = config->batch, s = config->sequence;
    const assay_shape shape = DIMS(b, s, config->emb_dim);
    int32_t positions[64];
    mla_problem m = {0};
    assay_mla_residuals r = {0};
    for (int64_t i = 0; i < b * s; i++) positions[i] = v->first_position + v->step * (int32_t)(i % s);
    m.in.x = add_weight(c, "inputs/x", "gradients/inputs/x", shape, &m.g.dx);
    m.in.positions = case_indices(c, "inputs/positions", positions, DIMS(b, s));
    m.in.segment_ids = case_segments(c, v->segments, b, s);
    add_weights(c, config, &m);
    const double *dy = case_random(c, "cotangents/y", 1, shape);
    assert_ok(&c->ctx, assay_mla_check(&c->ctx, config));
    for (int i = 0; i < ASSAY_MLA_TENSORS; i++) {
        assert_ok(&c->ctx, assay_mla_compute(&c->ctx, &r, (assay_mla_tensor)i, &m.in, &m.w, config));
    }
    keep(c, "outputs/y", shape, r.values[ASSAY_MLA_OUT_PROJ]);
    keep_checkpoints(c, config, &r);
    assert_ok(&c->ctx, assay_mla_backward(&c->ctx, &m.g, dy, &r, &m.in, &m.w, config));
    assay_mla_residuals_free(&r);
}

static mla_variant small_mla(int64_t batch, int64_t sequence)
{
    return (mla_variant){.config = {.batch = batch,
                                    .sequence = sequence,
                                    .emb_dim = 5,
                                    .heads = 2,
                                    .qk_nope_head_dim = 3,
                                    .v_head_dim = 2,
                                    .q_lora_rank = 3,
                                    .kv_lora_rank = 4,
                                    .epsilon = 1e-6,
                                    .mscale = 1,
                                    .rope = deepseek3_rope(4),
                                    .mask_padding = true},
                         .step = 1};
}

static void certify_mla(const mla_variant *v, uint64_t seed)
{
    spec_case c;
    mla_case_start(&c, seed);
    run_mla(&c, v);
    case_certify_outputs(&c, "mla", &v->config, OUTPUT_LIMIT);
    case_certify_gradients(&c, "mla", &v->config, GRADIENT_LIMIT);
    case_end(&c);
}

static void test_mla_variants(void **state)
{
    (void)state;
    mla_variant table[11];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) table[i] = small_mla(2, 7);
    table[1].config.q_lora_rank = 0;
    table[2].config.v_head_dim = 7;
    table[2].first_position = 163833;
    table[3].config.rope.pairwise = true;
    table[3].segments = PADDED_TAIL;
    table[4].config.rope.interleave = false;
    table[4].segments = SCATTERED;
    table[5].segments = SCATTERED;
    table[5].config.mask_padding = false;
    table[6].config.mscale = .707;
    table[6].config.rope.attention_scaling = true;
    table[6].step = 27000;
    table[7].config.rope.original_max_position_embeddings = 163840;
    table[8].config.rope.yarn = false;
    table[8].config.rope.truncate = false;
    table[9].config.rope.truncate = false;
    table[9].config.heads = 3;
    table[10].segments = ALL_PADDING;
    table[10].config.mask_padding = false;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify_mla(&table[i], 300 + i);
}

static void test_mla_sizes(void **state)
{
    (void)state;
    mla_variant table[] = {small_mla(1, 1), small_mla(1, 1), small_mla(3, 1), small_mla(1, 17)};
    table[1].config.emb_dim = table[1].config.heads = table[1].config.qk_nope_head_dim = 1;
    table[1].config.v_head_dim = table[1].config.q_lora_rank = table[1].config.kv_lora_rank = 1;
    table[1].config.rope.dim = 2;
    table[1].config.epsilon = .25; /* without one the norms of single numbers are signs, with gradient 0 */
    table[3].segments = PADDED_TAIL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) certify_mla(&table[i], 400 + i);
}

/* Computed under one configuration, certified under another. */
static void test_other_configurations(void **state)
{
    (void)state;
    const mla_variant right = {.config = small_mla(2, 7).config, .segments = SCATTERED, .step = 20000};
    assay_mla_config table[9];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) table[i] = right.config;
    table[0].mask_padding = false;
    table[1].mscale = 1 + 0x1p-8;
    table[2].rope.original_max_position_embeddings = 163840;
    table[3].rope.interleave = false;
    table[4].rope.truncate = false;
    table[5].rope.attention_scaling = true;
    table[6].rope.yarn = false;
    table[7].epsilon = 1e-3;
    table[8].rope.beta_slow = 32;
    spec_case c;
    mla_case_start(&c, 7);
    run_mla(&c, &right);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double output = case_worst(&c, "mla", &table[i], false), gradient = case_worst(&c, "mla", &table[i], true);
        if (!(output > 1e-6 && gradient > 1e-6)) fail_msg("configuration %d: %g, %g", (int)i, output, gradient);
    }
    assert_true(case_worst(&c, "mla", &right.config, false) <= OUTPUT_LIMIT);
    assert_true(case_worst(&c, "mla", &right.config, true) <= GRADIENT_LIMIT);
    /* y, ten checkpoints, and the gradients of x and seven weights */
    assert_int_equal(case_assert_tampering_shows(&c, "mla", &right.config), 1 + 10 + 8);
    case_end(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mla_variants),
        cmocka_unit_test(test_mla_sizes),
        cmocka_unit_test(test_other_configurations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
