/* The second form of rotary embedding, attention and MLA: cases worked out by hand, and what must not change them. */
#include <math.h>
#include <string.h>

#include "oracle/quad/tests/quad_case.h"

static const double pi = 3.141592653589793;

static assay_rope_config plain_rope(int64_t dim)
{
    return (assay_rope_config){.dim = dim,
                               .rope_max_timescale = 10000,
                               .max_position_embeddings = 163840,
                               .original_max_position_embeddings = 163840};
}

static assay_rope_config yarn(int64_t dim, int64_t original)
{
    return (assay_rope_config){.dim = dim,
                               .yarn = true,
                               .rope_max_timescale = 10000,
                               .rope_factor = 40,
                               .beta_fast = 32,
                               .beta_slow = 1,
                               .max_position_embeddings = 163840,
                               .original_max_position_embeddings = original,
                               .interleave = true,
                               .truncate = true};
}

/* One token and head of `dim` numbers. */
static void rotate(quad_case *c, const assay_rope_config *config, int32_t position, const double *x)
{
    case_start(c, 1);
    case_values(c, "inputs/x", x, DIMS(1, 1, 1, config->dim));
    case_indices(c, "inputs/positions", &position, DIMS(1, 1));
    assert_ok(&c->ctx, case_evaluate(c, quad_yarn_rope, config));
}

/* Pairs (1,2), (3,4), (5,6) in either layout stay at position 0, and turn by 1 radian and by two small angles at 1. */
TEST(test_layouts)
{
    static const struct {
        bool interleave, pairwise;
        double x[6];
        int order[6]; /* where the components a_0, b_0, a_1, b_1, a_2, b_2 of y stand */
    } table[] = {
        {false, false, {1, 3, 5, 2, 4, 6}, {0, 3, 1, 4, 2, 5}},
        {true, false, {1, 2, 3, 4, 5, 6}, {0, 3, 1, 4, 2, 5}},
        {true, true, {1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 4, 5}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        for (int32_t position = 0; position < 2; position++) {
            quad_case c;
            assay_rope_config config = plain_rope(6);
            config.interleave = table[i].interleave;
            config.pairwise = table[i].pairwise;
            double expected[6];
            for (int pair = 0; pair < 3; pair++) {
                double angle = position * pow(10000, -pair / 3.0), a = 2 * pair + 1, b = a + 1;
                expected[table[i].order[2 * pair]] = a * cos(angle) - b * sin(angle);
                expected[table[i].order[2 * pair + 1]] = a * sin(angle) + b * cos(angle);
            }
            rotate(&c, &config, position, table[i].x);
            assert_result(&c, "outputs/y", 6, expected, position == 0 ? 0 : 1e-15);
            case_end(&c);
        }
    }
}

/* The frequencies, from where (1,0) of each pair goes at position 1. */
static void frequencies(const assay_rope_config *config, double *found)
{
    quad_case c;
    double x[64];
    for (int64_t i = 0; i < config->dim; i++) x[i] = i % 2 == 0;
    rotate(&c, config, 1, x);
    for (int64_t i = 0; i < config->dim / 2; i++) {
        int64_t a = config->pairwise ? 2 * i : i, b = config->pairwise ? 2 * i + 1 : i + config->dim / 2;
        found[i] = atan2(result_at(&c, "outputs/y", b), result_at(&c, "outputs/y", a));
    }
    case_end(&c);
}

/* DeepSeek-V3: corr(32) = 10.47 and corr(1) = 22.51, so the ramp runs from 10 to 23. base_i = 10^(-i/8). The numbers
 * are from decimal arithmetic with 50 digits. */
TEST(test_deepseek_frequencies)
{
    static const struct {
        int64_t i;
        double frequency;
    } table[] = {{0, 1},
                 {1, 0.74989420933245582730},
                 {10, 0.056234132519034908039},
                 {11, 0.039006926567143857993},
                 {16, 0.0055},
                 {17, 0.0035619974943291651797},
                 {22, 0.00017782794100389228012},
                 {23, 0.00003333803580408310064},
                 {31, 0.000003333803580408310064}};
    const assay_rope_config config = yarn(64, 4096);
    double found[32];
    frequencies(&config, found);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_close(&found[table[i].i], &table[i].frequency, 1, 1e-15, 0);
    }
}

/* base_i = 10^-i at width 8. */
TEST(test_ramps)
{
    static const struct {
        double beta_fast, beta_slow;
        int64_t original;
        bool truncate, pairwise;
        double ramp[4]; /* how much of the frequency is divided by 40 */
    } table[] = {
        {1, 1, 4096, false, false, {0, 0, 0, 1}},                /* low = high = 2.81: a step */
        {1, 1, 4096, true, false, {0, 0, 0, 1}},                 /* 2 to 3 */
        {32, 1, 4, true, false, {0, 1, 1, 1}},                   /* low = high = 0 */
        {32, 4, 1, true, false, {0, 0, 0, 0}},                   /* low = 0, high = -1: the divisor is negative */
        {32, 4, 1, true, true, {0, 1, 1, 1}},                    /* ... and 0.001 in the batch-split model */
        {32, 1e-9, 4096, true, false, {0, 0, 1 / 6.0, 1 / 3.0}}, /* 1 to 7: never past Dr - 1 */
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_rope_config config = yarn(8, table[i].original);
        config.beta_fast = table[i].beta_fast;
        config.beta_slow = table[i].beta_slow;
        config.truncate = table[i].truncate;
        config.pairwise = table[i].pairwise;
        double found[4], expected[4];
        frequencies(&config, found);
        for (int j = 0; j < 4; j++) expected[j] = pow(10, -j) * (1 - table[i].ramp[j] * (1 - 1 / 40.0));
        assert_close(found, expected, 4, 1e-15, 0);
    }
    /* Not truncated: the ramp from 1.3090 to 2.8142 gives pair 2 a share. */
    assay_rope_config config = yarn(8, 4096);
    config.truncate = false;
    double low = 8 * log(4096 / (64 * pi)) / (2 * log(10000)), high = 8 * log(4096 / (2 * pi)) / (2 * log(10000));
    double found[4], expected = 0.01 * (1 - (2 - low) / (high - low) * (1 - 1 / 40.0));
    frequencies(&config, found);
    assert_close(&found[2], &expected, 1, 1e-14, 0);
}

/* A rotation keeps each pair's length, however far the position; attention_scaling multiplies it. */
TEST(test_lengths)
{
    const double x[6] = {3, 4, -5, 12, 8, 15}, lengths[3] = {5, 13, 17};
    for (int scaled = 0; scaled < 2; scaled++) {
        quad_case c;
        assay_rope_config config = yarn(6, 4096);
        config.attention_scaling = scaled;
        rotate(&c, &config, 163839, x);
        for (int64_t i = 0; i < 3; i++) {
            double length = hypot(result_at(&c, "outputs/y", i), result_at(&c, "outputs/y", i + 3));
            double expected = lengths[i] * (scaled ? 1.3688879454113936 : 1); /* 0.1 ln 40 + 1 */
            assert_close(&length, &expected, 1, 1e-15, 0);
        }
        case_end(&c);
    }
}

TEST(test_rope_refusals)
{
    const assay_rope_config good = yarn(6, 4096);
    assay_rope_config bad[] = {good, good, good, good, good, good, good};
    bad[0].dim = 5;
    bad[1].rope_max_timescale = 1;
    bad[2].rope_factor = 0;
    bad[3].beta_slow = 33;
    bad[4].pairwise = true;
    bad[4].interleave = false;
    bad[5].max_position_embeddings = 7; /* the position is 7 */
    bad[6].dim = 4;                     /* x has 6 */
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        quad_case c;
        rotate(&c, &good, 7, (double[]){1, 2, 3, 4, 5, 6});
        quad_tensors out = {0};
        assert_int_equal(case_evaluate(&c, quad_yarn_rope, &bad[i]), ASSAY_BAD_INPUT);
        assert_true(c.ctx.message[0] != '\0');
        quad_tensors_free(&out);
        case_end(&c);
    }
}

/* Segments 1 0 1 2: token 2 sees tokens 0 and 2, the others that see anything see themselves. What padding holds, and
 * what is to come, is NaN. */
TEST(test_attention_by_hand)
{
    for (int mask_padding = 0; mask_padding < 2; mask_padding++) {
        quad_case c;
        case_start(&c, 1);
        const double padding = mask_padding ? NAN : 3;
        case_values(&c, "inputs/query", (double[]){1, 0, padding, padding, 1, 2, 1, 1}, DIMS(1, 4, 1, 2));
        case_values(&c, "inputs/key", (double[]){.5, 7, padding, padding, 1, 0, 4, 5}, DIMS(1, 4, 1, 2));
        case_values(&c, "inputs/value", (double[]){8, padding, 16, -1}, DIMS(1, 4, 1, 1));
        case_indices(&c, "inputs/segment_ids", (int32_t[]){1, 0, 1, 2}, DIMS(1, 4));
        const assay_attention_config config = {
            .batch = 1, .sequence = 4, .heads = 1, .qk_dim = 2, .v_dim = 1, .mask_padding = mask_padding};
        assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
        double away = exp(14.5 - 1), out = (8 * away + 16) / (away + 1); /* scores 14.5 and 1 */
        double lse = 14.5 + log1p(exp(1 - 14.5));
        assert_result(&c, "outputs/attention_out", 4, (double[]){8, mask_padding ? 0 : 3, out, -1}, 1e-15);
        assert_result(&c, "outputs/lse", 4, (double[]){.5, mask_padding ? -INFINITY : 18, lse, 9}, 1e-15);
        case_end(&c);
    }
}

/* Equal scores: the mean of the values so far, and lse grows with the log of their number. Heads and rows are apart. */
TEST(test_equal_scores)
{
    enum { B = 2, S = 5, N = 3 };
    quad_case c;
    case_start(&c, 1);
    double query[B * S * N], key[B * S * N], value[B * S * N], out[B * S * N], lse[B * N * S];
    for (int i = 0; i < B * S * N; i++) {
        int b = i / (S * N), s = i / N % S, n = i % N;
        query[i] = 1 + n;
        key[i] = 10 * b;
        value[i] = 100 * b + 10 * n + s;
        out[i] = 100 * b + 10 * n + s / 2.0;
        lse[(b * N + n) * S + s] = 10 * b * (1 + n) + log(s + 1);
    }
    case_values(&c, "inputs/query", query, DIMS(B, S, N, 1));
    case_values(&c, "inputs/key", key, DIMS(B, S, N, 1));
    case_values(&c, "inputs/value", value, DIMS(B, S, N, 1));
    const assay_attention_config config = {.batch = B, .sequence = S, .heads = N, .qk_dim = 1, .v_dim = 1};
    assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
    assert_result(&c, "outputs/attention_out", B * S * N, out, 1e-15);
    assert_result(&c, "outputs/lse", B * N * S, lse, 1e-15);
    case_end(&c);
}

/* One token at position 0, all sizes 1 but the rotary dimension, which is 2. */
TEST(test_mla_by_hand)
{
    static const struct {
        double mscale;
        int64_t original;
        double factor; /* of the softmax scale: (0.1 mscale ln 40 + 1)^2 */
    } table[] = {{1, 163840, 1}, {1, 4096, 1.8738542070926265}, {.5, 4096, 1.4029075244788534}, {0, 4096, 1}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        case_start(&c, 1);
        case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
        case_indices(&c, "inputs/positions", (int32_t[]){0}, DIMS(1, 1));
        case_values(&c, "weights/query/kernel", (double[]){1, 2, 3}, DIMS(1, 1, 3));
        case_values(&c, "weights/wkv_a/kernel", (double[]){3, 5, 7}, DIMS(1, 3));
        case_values(&c, "weights/kv_norm/scale", (double[]){4}, DIMS(1));
        case_values(&c, "weights/wkv_b/kernel", (double[]){.5, 10}, DIMS(1, 1, 2));
        case_values(&c, "weights/out/kernel", (double[]){3}, DIMS(1, 1, 1));
        const assay_mla_config config = {.batch = 1,
                                         .sequence = 1,
                                         .emb_dim = 1,
                                         .heads = 1,
                                         .qk_nope_head_dim = 1,
                                         .v_head_dim = 1,
                                         .kv_lora_rank = 1,
                                         .mscale = table[i].mscale,
                                         .rope = yarn(2, table[i].original)};
        assert_ok(&c.ctx, case_evaluate(&c, quad_mla, &(quad_mla_config){.mla = config}));
        assert_result(&c, "outputs/y", 1, (double[]){120}, 0);
        double scale = table[i].factor / sqrt(3);
        assert_result(&c, "checkpoints/kv_wa_proj", 3, (double[]){6, 10, 14}, 0);
        assert_result(&c, "checkpoints/mla_kv", 1, (double[]){4}, 0);
        assert_result(&c, "checkpoints/query_proj", 3, (double[]){2 * scale, 4 * scale, 6 * scale}, 1e-15);
        assert_result(&c, "checkpoints/key_proj", 3, (double[]){2, 10, 14}, 0);
        assert_result(&c, "checkpoints/value_proj", 1, (double[]){40}, 0);
        assert_result(&c, "checkpoints/attention_out", 1, (double[]){40}, 0);
        assert_result(&c, "checkpoints/lse", 1, (double[]){128 * scale}, 1e-15);
        assert_result(&c, "checkpoints/out_proj", 1, (double[]){120}, 0);
        assert_null(quad_tensors_find(&c.out, "checkpoints/mla_q"));
        case_end(&c);
    }
}

/* Head h has the value 10^h times 2; shards are numbered (expert, mlp_tensor), heads lie by (mlp_tensor, expert). */
TEST(test_heads_over_a_mesh)
{
    quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_indices(&c, "inputs/positions", (int32_t[]){0}, DIMS(1, 1));
    case_values(&c, "weights/query/kernel", (double[]){0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0}, DIMS(1, 4, 3));
    case_values(&c, "weights/wkv_a/kernel", (double[]){1, 0, 0}, DIMS(1, 3));
    case_values(&c, "weights/kv_norm/scale", (double[]){1}, DIMS(1));
    case_values(&c, "weights/wkv_b/kernel", (double[]){1, 1, 2, 10, 3, 100, 4, 1000}, DIMS(1, 4, 2));
    case_values(&c, "weights/out/kernel", (double[]){1, 1, 1, 1}, DIMS(4, 1, 1));
    const assay_mla_config config = {.batch = 1,
                                     .sequence = 1,
                                     .emb_dim = 1,
                                     .heads = 4,
                                     .qk_nope_head_dim = 1,
                                     .v_head_dim = 1,
                                     .kv_lora_rank = 1,
                                     .mscale = 1,
                                     .rope = yarn(2, 163840)};
    const assay_mesh mesh = {{1, 1, 2, 2}}, other = {{1, 1, 3, 1}};
    assert_ok(&c.ctx, case_evaluate(&c, quad_mla, &(quad_mla_config){config, mesh}));
    assert_result(&c, "checkpoints/value_proj", 4, (double[]){1, 100, 10, 1000}, 0);
    assert_result(&c, "checkpoints/attention_out", 4, (double[]){1, 100, 10, 1000}, 0);
    assert_result(&c, "checkpoints/key_proj", 12, (double[]){1, 0, 0, 3, 0, 0, 2, 0, 0, 4, 0, 0}, 0);
    assert_result(&c, "checkpoints/lse", 4, (double[]){0, 12 / sqrt(3), 4 / sqrt(3), 24 / sqrt(3)}, 1e-15);
    assert_result(&c, "checkpoints/mla_kv", 1, (double[]){1}, 0);
    assert_result(&c, "checkpoints/out_proj", 1, (double[]){1111}, 0);
    const assay_shape shape = quad_tensors_find(&c.out, "checkpoints/lse")->shape, expected = DIMS(4, 1, 1, 1);
    assert_true(assay_shape_equal(&shape, &expected));
    assert_int_equal(case_evaluate(&c, quad_mla, &(quad_mla_config){config, other}), ASSAY_BAD_INPUT);
    case_end(&c);
}

/* With query compression: random weights, the same tensors at positions that are 100000 apart. */
static void shifted(quad_case *c, int32_t start, bool interleave, bool pairwise)
{
    case_start(c, 3);
    int32_t positions[5];
    for (int32_t i = 0; i < 5; i++) positions[i] = start + 3 * i;
    case_random(c, "inputs/x", 1, DIMS(1, 5, 4));
    case_indices(c, "inputs/positions", positions, DIMS(1, 5));
    case_random(c, "weights/wq_a/kernel", 1, DIMS(4, 3));
    case_random(c, "weights/q_norm/scale", 1, DIMS(3));
    case_random(c, "weights/wq_b/kernel", 1, DIMS(3, 2, 7));
    case_random(c, "weights/wkv_a/kernel", 1, DIMS(4, 6));
    case_random(c, "weights/kv_norm/scale", 1, DIMS(2));
    case_random(c, "weights/wkv_b/kernel", 1, DIMS(2, 2, 5));
    case_random(c, "weights/out/kernel", 1, DIMS(2, 2, 4));
    assay_mla_config config = {.batch = 1,
                               .sequence = 5,
                               .emb_dim = 4,
                               .heads = 2,
                               .qk_nope_head_dim = 3,
                               .v_head_dim = 2,
                               .q_lora_rank = 3,
                               .kv_lora_rank = 2,
                               .epsilon = 1e-6,
                               .mscale = 1,
                               .rope = yarn(4, 4096)};
    config.rope.interleave = interleave;
    config.rope.pairwise = pairwise;
    assert_ok(&c->ctx, case_evaluate(c, quad_mla, &(quad_mla_config){.mla = config}));
}

/* Scores know positions by their differences alone, and not how the rotated dimensions are laid out. */
TEST(test_positions_are_relative)
{
    quad_case here, there, pairwise, halves;
    shifted(&here, 0, true, false);
    shifted(&there, 100000, true, false);
    shifted(&pairwise, 17, true, true);
    shifted(&halves, 0, false, false);
    double y[20], other[20];
    for (int64_t i = 0; i < 20; i++) {
        y[i] = result_at(&here, "outputs/y", i);
        other[i] = result_at(&halves, "outputs/y", i);
    }
    assert_result(&there, "outputs/y", 20, y, 1e-15);
    assert_result(&pairwise, "outputs/y", 20, y, 1e-15);
    assert_false(assay_is_close(y, other, 20, 1e-3, 1e-3)); /* other pairs */
    double largest = 0;
    for (int64_t i = 0; i < 70; i++) {
        const char *query = "checkpoints/query_proj";
        largest = fmax(largest, fabs(result_at(&here, query, i) - result_at(&pairwise, query, i)));
    }
    assert_true(largest > 1e-3); /* the tensors do know */
    case_end(&here);
    case_end(&there);
    case_end(&pairwise);
    case_end(&halves);
}

/* One token, so that no gradient comes from scores. Scales are powers of two: 17 becomes 16 in e4m3, and 27, of kv_wa_proj's
 * gradient, 28; all else stays. With an epsilon of 12 the latent is 2 / 4, and the norm's slope 1 / 4 - 2^2 / 4^3. */
TEST(test_quantised_mla)
{
    quad_case c;
    const assay_mla_config config = {
        .batch = 1,
        .sequence = 1,
        .emb_dim = 1,
        .heads = 1,
        .qk_nope_head_dim = 1,
        .v_head_dim = 1,
        .kv_lora_rank = 1,
        .epsilon = 12,
        .mscale = 1,
        .rope = yarn(2, 163840),
        .recipe = {.recipe = assay_quant_recipe_by_name("deepseek_v3"), .powers = true, .type = ASSAY_FLOAT32}};
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){1}, DIMS(1, 1, 1));
    case_indices(&c, "inputs/positions", (int32_t[]){0}, DIMS(1, 1));
    case_values(&c, "weights/query/kernel", (double[]){1, 2, 3}, DIMS(1, 1, 3));
    case_values(&c, "weights/wkv_a/kernel", (double[]){2, 0, 0}, DIMS(1, 3));
    case_values(&c, "weights/kv_norm/scale", (double[]){3}, DIMS(1));
    case_values(&c, "weights/wkv_b/kernel", (double[]){1, 1.5}, DIMS(1, 1, 2));
    case_values(&c, "weights/out/kernel", (double[]){2}, DIMS(1, 1, 1));
    case_values(&c, "cotangents/y", (double[]){17}, DIMS(1, 1, 1));
    assert_ok(&c.ctx, case_differentiate(&c, quad_mla, &(quad_mla_config){.mla = config}));
    assert_result(&c, "outputs/y", 1, (double[]){4.5}, 0);
    assert_result(&c, "checkpoints/mla_kv", 1, (double[]){1.5}, 0);
    assert_result(&c, "checkpoints/q_gradient", 3, (double[]){0, 0, 0}, 0);
    assert_result(&c, "checkpoints/kv_gradient", 2, (double[]){0, 32}, 0);
    assert_result(&c, "checkpoints/kv_wa_proj_gradient", 3, (double[]){27, 0, 0}, 1e-15);
    assert_result(&c, "gradients/weights/out/kernel", 1, (double[]){36}, 0);
    assert_result(&c, "gradients/weights/wkv_b/kernel", 2, (double[]){0, 48}, 0);
    assert_result(&c, "gradients/weights/kv_norm/scale", 1, (double[]){24}, 0);
    assert_result(&c, "gradients/weights/wkv_a/kernel", 3, (double[]){28, 0, 0}, 0);
    assert_result(&c, "gradients/weights/query/kernel", 3, (double[]){0, 0, 0}, 0);
    assert_result(&c, "gradients/inputs/x", 1, (double[]){56}, 0);
    assert_null(quad_tensors_find(&c.out, "checkpoints/query_wa_proj_gradient"));
    case_end(&c);
}

TEST(test_mla_refusals)
{
    quad_case c;
    case_start(&c, 1);
    quad_mla_config config = {.mla = {.batch = 1, .sequence = 1, .emb_dim = 1, .heads = 1, .qk_nope_head_dim = 1}};
    assert_int_equal(case_evaluate(&c, quad_mla, &config), ASSAY_BAD_INPUT); /* no v_head_dim */
    config.mla.v_head_dim = config.mla.kv_lora_rank = 1;
    config.mla.rope = plain_rope(2);
    assert_int_equal(case_evaluate(&c, quad_mla, &config), ASSAY_BAD_INPUT);
    assert_non_null(strstr(c.ctx.message, "'inputs/x' is missing"));
    case_end(&c);
}
