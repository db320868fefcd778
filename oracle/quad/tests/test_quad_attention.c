/* The second form of rotary embedding and attention, worked out by hand. */

#include "oracle/quad/tests/quad_case.h"

static const double pi = 3.141592653589793;

static assay_rope_config plain_rope(int64_t dim)
{
    return (assay_rope_config){dim, false, 10000, 0, 0, 0, 163840, 163840, false, false, false, false, NULL};
}

static assay_rope_config yarn(int64_t dim, int64_t original)
{
    return (assay_rope_config){dim, true, 10000, 40, 32, 1, 163840, original, true, true, false, false, NULL};
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
            OWNED_BY(case_end) quad_case c;
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
        }
    }
}

/* The frequencies, from where (1,0) of each pair goes at position 1. */
static void frequencies(const assay_rope_config *config, double *found)
{
    OWNED_BY(case_end) quad_case c;
    double x[64];
    for (int64_t i = 0; i < config->dim; i++) x[i] = i % 2 == 0;
    rotate(&c, config, 1, x);
    for (int64_t i = 0; i < config->dim / 2; i++) {
        int64_t a = config->pairwise ? 2 * i : i, b = config->pairwise ? 2 * i + 1 : i + config->dim / 2;
        found[i] = atan2(result_at(&c, "outputs/y", b), result_at(&c, "outputs/y", a));
    }
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
        OWNED_BY(case_end) quad_case c;
        assay_rope_config config = yarn(6, 4096);
        config.attention_scaling = scaled;
        rotate(&c, &config, 163839, x);
        for (int64_t i = 0; i < 3; i++) {
            double length = hypot(result_at(&c, "outputs/y", i), result_at(&c, "outputs/y", i + 3));
            double expected = lengths[i] * (scaled ? 1.3688879454113936 : 1); /* 0.1 ln 40 + 1 */
            assert_close(&length, &expected, 1, 1e-15, 0);
        }
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
        OWNED_BY(case_end) quad_case c;
        rotate(&c, &good, 7, (double[]){1, 2, 3, 4, 5, 6});
        assert_int_equal(case_evaluate(&c, quad_yarn_rope, &bad[i]), ASSAY_BAD_INPUT);
        assert_true(c.ctx.message[0] != '\0');
    }
}

/* Segments 1 0 1 2: token 2 sees tokens 0 and 2, the others that see anything see themselves. What padding holds, and
 * what is to come, is NaN. */
TEST(test_attention_by_hand)
{
    for (int mask_padding = 0; mask_padding < 2; mask_padding++) {
        OWNED_BY(case_end) quad_case c;
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
    }
}

/* Queries of zero: every key that is seen weighs the same. 4 heads on 2 of values that tell head and token. */
static void flat(quad_case *c, const assay_attention_config *config)
{
    const int64_t s = config->sequence;
    case_start(c, 1);
    case_values(c, "inputs/query", (double[16]){0}, DIMS(1, s, 4, 1));
    case_values(c, "inputs/key", (double[]){5, 6, 7, 8, 9, 1, 2, 3}, DIMS(1, s, 2, 1));
    case_values(c, "inputs/value", (double[]){0, 10, 1, 11, 2, 12, 3, 13}, DIMS(1, s, 2, 1));
}

static assay_attention_config shared(int64_t window)
{
    return (assay_attention_config){
        .batch = 1, .sequence = 4, .heads = 4, .qk_dim = 1, .v_dim = 1, .kv_heads = 2, .window = window};
}

TEST(test_windows_and_shared_keys)
{
    static const double FIRST[][4] = {/* of head 0: no window, 1, 2, 3, as long as the sequence */
                                      {0, .5, 1, 1.5},
                                      {0, 1, 2, 3},
                                      {0, .5, 1.5, 2.5},
                                      {0, .5, 1, 2},
                                      {0, .5, 1, 1.5}};
    for (int64_t window = 0; window < 5; window++) {
        const assay_attention_config config = shared(window);
        double out[16], lse[16];
        OWNED_BY(case_end) quad_case c;
        flat(&c, &config);
        assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
        for (int i = 0; i < 16; i++) {
            const int64_t seen = window > 0 && i % 4 + 1 > window ? window : i % 4 + 1;
            out[i] = FIRST[window][i / 4] + (i % 4 < 2 ? 0 : 10); /* heads 0 and 1, 2 and 3 */
            lse[i] = log((double)seen);
        }
        assert_result(&c, "outputs/attention_out", 16, out, 1e-15);
        assert_result(&c, "outputs/lse", 16, lse, 1e-15);
    }
}

/* A sink of ln n is n more keys whose values are zero; lse does not know it. */
TEST(test_sinks)
{
    const assay_attention_config config = shared(0);
    static const double SINKS[] = {-INFINITY, 0, 0.69314718055994531, 1.0986122886681098}, MEAN[] = {0, .5, 1, 1.5};
    double out[16], lse[16];
    OWNED_BY(case_end) quad_case c;
    flat(&c, &config);
    case_values(&c, "weights/sinks", SINKS, DIMS(4));
    assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
    for (int i = 0; i < 16; i++) {
        const double seen = i / 4 + 1, head = i % 4;
        out[i] = (MEAN[i / 4] + (i % 4 < 2 ? 0 : 10)) * seen / (seen + head);
        lse[i] = log(i % 4 + 1.0);
    }
    assert_result(&c, "outputs/attention_out", 16, out, 1e-15);
    assert_result(&c, "outputs/lse", 16, lse, 1e-15);
}

/* Two states of weights 1/4 and 3/4, whose sum of exponentials is 4: with a sink of ln 4 half of it is left. The second head has keys
 * in one part alone, the third in none. */
TEST(test_merge_states)
{
    const double l3 = log(3), none = INFINITY;
    const assay_merge_states_config config = {
        .states = 2, .batch = 1, .sequence = 1, .heads = 3, .v_dim = 2, .empty_row = -INFINITY};
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/partial_out", (double[]){4, 8, 5, 6, NAN, NAN, 8, -8, NAN, 0, 1, NAN}, DIMS(2, 1, 1, 3, 2));
    case_values(&c, "inputs/partial_lse", (double[]){0, l3, -none, l3, -none, none}, DIMS(2, 1, 3, 1));
    case_values(&c, "weights/sinks", (double[]){log(4), l3, 0}, DIMS(3));
    assert_ok(&c.ctx, case_evaluate(&c, quad_merge_states, &config));
    assert_result(&c, "outputs/attention_out", 6, (double[]){3.5, -2, 2.5, 3, 0, 0}, 1e-15);
    assert_result(&c, "outputs/lse", 3, (double[]){log(4), l3, -none}, 1e-15);
}

static quad_decode_config one_head(int64_t pages, int64_t page, int64_t stride, double empty_row)
{
    return (quad_decode_config){.decode = {.batch = 1,
                                           .sequence = 1,
                                           .heads = 1,
                                           .kv_heads = 1,
                                           .width = 1,
                                           .v_dim = 1,
                                           .pages = pages,
                                           .page = page,
                                           .stride = stride,
                                           .empty_row = empty_row},
                                .query_scale = 1};
}

/* Two keys of scores 0 and ln 3, so weights 1/4 and 3/4, in the second and the first row of page 1: the token before sees the first alone.
 * Two splits, in base 2. */
TEST(test_decode)
{
    quad_decode_config config = one_head(3, 1, 1, INFINITY);
    config.decode.sequence = config.decode.splits = 2;
    config.query_scale = 2;
    config.decode.max_pages = 3;
    config.decode.base_2 = true;
    const double l3 = log(3);
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/query", (double[]){5, l3 / 2}, DIMS(1, 2, 1, 1));
    case_values(&c, "inputs/key_cache", (double[]){1, NAN, 0}, DIMS(3, 1, 1, 1));
    case_values(&c, "inputs/value_cache", (double[]){8, NAN, 4}, DIMS(3, 1, 1, 1));
    case_indices(&c, "inputs/cache_seqlens", (int32_t[]){2}, DIMS(1));
    case_indices(&c, "inputs/block_table", (int32_t[]){2, 0, -1}, DIMS(1, 3));
    assert_ok(&c.ctx, case_evaluate(&c, quad_decode, &config));
    assert_result(&c, "outputs/attention_out", 2, (double[]){4, 7}, 1e-15);
    assert_result(&c, "outputs/lse", 2, (double[]){0, 2}, 1e-15);
    assert_result(&c, "checkpoints/partial_out", 4, (double[]){4, 4, 0, 8}, 1e-15);
    assert_result(&c, "checkpoints/partial_lse", 4, (double[]){0, 0, INFINITY, l3 / log(2)}, 1e-15);
}

/* A context of two keys of scores 0 and ln 3 in one chunk, and of 0 keys in the next one; the new token's own key of score 0. */
TEST(test_decode_chunks)
{
    quad_decode_config config = one_head(1, 6, 6, -INFINITY);
    config.decode.splits = 3, config.decode.chunk = 2;
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/query", (double[]){1}, DIMS(1, 1, 1, 1));
    case_values(&c, "inputs/key_cache", (double[]){0, log(3), 0, NAN, NAN, NAN}, DIMS(1, 6, 1, 1));
    case_values(&c, "inputs/value_cache", (double[]){4, 8, 12, NAN, NAN, NAN}, DIMS(1, 6, 1, 1));
    case_indices(&c, "inputs/cache_seqlens", (int32_t[]){3}, DIMS(1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_decode, &config));
    assert_result(&c, "checkpoints/partial_out", 3, (double[]){7, 0, 12}, 1e-15);
    assert_result(&c, "checkpoints/partial_lse", 3, (double[]){log(4), -INFINITY, 0}, 1e-15);
    assert_result(&c, "outputs/attention_out", 1, (double[]){8}, 1e-15);
}

/* Of 2 keys in each page of 3 rows: index 3 is row 4 and index 0 row 0, -1 and 4 are none, and what stands behind four entries is not read. */
TEST(test_decode_lists)
{
    quad_decode_config config = one_head(2, 2, 3, INFINITY);
    config.decode.topk = 5;
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/query", (double[]){1}, DIMS(1, 1, 1, 1));
    case_values(&c, "inputs/key_cache", (double[]){0, NAN, NAN, NAN, log(3), NAN}, DIMS(2, 3, 1, 1));
    case_values(&c, "inputs/value_cache", (double[]){4, NAN, NAN, NAN, 8, NAN}, DIMS(2, 3, 1, 1));
    case_indices(&c, "inputs/indices", (int32_t[]){3, -1, 4, 0, 1}, DIMS(1, 1, 5));
    case_indices(&c, "inputs/topk_length", (int32_t[]){4}, DIMS(1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_decode, &config));
    assert_result(&c, "outputs/attention_out", 1, (double[]){7}, 1e-15);
    assert_result(&c, "outputs/lse", 1, (double[]){log(4)}, 1e-15);
}
