/* The second form of quantize and dequantize against codes found by hand. */

#include "oracle/quad/tests/quad_case.h"

static assay_quantize_config config_of(const char *format, int64_t rows, int64_t columns)
{
    return (assay_quantize_config){.rows = rows,
                                   .columns = columns,
                                   .format = assay_block_format_by_name(format),
                                   .rounding = ASSAY_SCALE_UP,
                                   .subnormal_scale = true,
                                   .saturate = true,
                                   .negative_zero = true,
                                   .largest_of_input = 0x1.fep127};
}

TEST(two_blocks_of_e2m1)
{
    OWNED_BY(case_end) quad_case c;
    double x[34] = {6, 2.5, -0.25, -5};
    assay_quantize_config config = config_of("mxfp4", 1, 34);
    x[32] = -13, x[33] = 1.6; /* 13 / 6 is between 2 and 4: -3.25 is nearest to -3, 0.4 to 0.5 */
    config.pack = true;
    int32_t codes[17] = {7 | 4 << 4, 8 | 14 << 4};
    codes[16] = 13 | 1 << 4;
    case_start(&c, 1);
    case_values(&c, "inputs/x", x, DIMS(1, 34));
    assert_ok(&c.ctx, case_evaluate(&c, quad_quantize, &config));
    assert_indices(&c, "outputs/codes", 17, codes);
    assert_indices(&c, "outputs/scale", 2, (int32_t[]){127, 129});
}

TEST(scale_of_the_tensor)
{
    OWNED_BY(case_end) quad_case c;
    double x[17] = {2688, -448};
    assay_quantize_config config = config_of("nvfp4", 1, 17);
    config.rule = ASSAY_SCALE_INVERT;
    config.rounding = ASSAY_SCALE_NEAREST;
    x[16] = 6; /* 2688 / 2688 is 1; the scales are 448 and 1 */
    int32_t codes[17] = {7, 10};
    codes[16] = 7;
    case_start(&c, 1);
    case_values(&c, "inputs/x", x, DIMS(1, 17));
    assert_ok(&c.ctx, case_evaluate(&c, quad_quantize, &config));
    assert_indices(&c, "outputs/tensor_scale", 1, (int32_t[]){0x3f800000});
    assert_indices(&c, "outputs/scale", 2, (int32_t[]){0x7e, 0x38});
    assert_indices(&c, "outputs/codes", 17, codes);
}

TEST(beyond_the_largest)
{
    static const struct {
        const char *format;
        double x;
        bool saturate;
        int32_t code;
    } rows[] = {{"mxfp8_e4m3", 464, false, 0x7e},   {"mxfp8_e4m3", 465, false, 0x7f},
                {"mxfp8_e4m3", -511, false, 0x7f},  {"mxfp8_e4m3", -511, true, 0xfe},
                {"mxfp8_e5m2", 61440, false, 0x7c}, {"mxfp8_e5m2", -65000, false, 0xfc},
                {"mxfp8_e5m2", -65000, true, 0xfb}, {"mxfp8_e5m2", 61439, false, 0x7b}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(case_end) quad_case c;
        assay_quantize_config config = config_of(rows[i].format, 1, 1);
        config.rounding = ASSAY_SCALE_DOWN;
        config.saturate = rows[i].saturate;
        case_start(&c, 1);
        case_values(&c, "inputs/x", &rows[i].x, DIMS(1, 1));
        assert_ok(&c.ctx, case_evaluate(&c, quad_quantize, &config));
        assert_indices(&c, "outputs/codes", 1, &rows[i].code);
        assert_indices(&c, "outputs/scale", 1, (int32_t[]){127});
    }
}

TEST(back)
{
    OWNED_BY(case_end) quad_case c;
    assay_quantize_config config = config_of("nvfp4", 2, 2);
    config.pack = true;
    case_start(&c, 1);
    case_indices(&c, "inputs/codes", (int32_t[]){0x9f, 0x21}, DIMS(2, 1));
    case_values(&c, "inputs/scale", (double[]){2, 0.5}, DIMS(2, 1));
    case_values(&c, "inputs/tensor_scale", (double[]){3}, DIMS(1));
    assert_ok(&c.ctx, case_evaluate(&c, quad_dequantize, &config));
    assert_result(&c, "outputs/y", 4, (double[]){-36, -3, 0.75, 1.5}, 0);
}

/* One token into the second of two rows, whose scales lie behind them: 6 / 448 is no power of two. */
TEST(a_page_of_an_indexer)
{
    OWNED_BY(case_end) quad_case c;
    static double x[4] = {6, -3, 0, 0.5};
    assay_cache_append_config config = {
        .tokens = 1, .stream_count = 1, .numbers = {.tokens = 1, .heads = 1, .columns = 4}};
    assay_cache_stream *s = config.streams;
    *s = (assay_cache_stream){.numbers = "key", .bytes = "key_cache", .scales = "s", .scale = "k", .first_columns = 4};
    s->cache = (assay_cache_config){.format = assay_cache_format_by_name("fp8_indexer"),
                                    .pages = 1,
                                    .tokens = 2,
                                    .stride = 2,
                                    .heads = 1,
                                    .columns = 4};
    s->cache.rules = assay_quantize_default(&s->cache.format->block, 1, 4);
    case_start(&c, 1);
    case_values(&c, "inputs/key", x, DIMS(1, 4));
    case_indices(&c, "inputs/slot_mapping", (int32_t[]){1}, DIMS(1));
    case_indices(&c, "inputs/key_cache", (int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
                 DIMS(1, 16));
    assert_ok(&c.ctx, case_evaluate(&c, quad_cache_append, &config));
    /* 0.5 * 448 / 6 is 37.3, 36 in e4m3; 6 / 448 is 0x3c5b6db7 */
    assert_indices(&c, "outputs/key_cache", 16,
                   (int32_t[]){1, 2, 3, 4, 0x7e, 0xf6, 0, 0x61, 9, 10, 11, 12, 0xb7, 0x6d, 0x5b, 0x3c});
}
