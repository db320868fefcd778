#include "oracle/ops/quantize.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

static assay_quantize_config config_of(const char *format, int64_t rows, int64_t columns)
{
    const assay_block_format *f = assay_block_format_by_name(format);
    assert_non_null(f);
    return (assay_quantize_config){.rows = rows,
                                   .columns = columns,
                                   .format = f,
                                   .rule = f->tensor_scale ? ASSAY_SCALE_INVERT : ASSAY_SCALE_DIVIDE,
                                   .rounding = f->scale == ASSAY_FLOAT8_E8M0FNU ? ASSAY_SCALE_UP : ASSAY_SCALE_NEAREST,
                                   .subnormal_scale = true,
                                   .saturate = true,
                                   .negative_zero = true,
                                   .largest_of_input = 0x1.fep127};
}

typedef struct result {
    int32_t *codes, *scale, tensor_scale;
} result;

enum { UNSET = -7777 };

static result quantize(const assay_quantize_config *c, const double *x, int threads)
{
    assay_context ctx = assay_context_default(threads);
    const int64_t codes = c->rows * assay_quantize_row(c), scales = assay_quantize_scales(c);
    result r = {malloc((size_t)codes * sizeof *r.codes), malloc((size_t)scales * sizeof *r.scale), UNSET};
    for (int64_t i = 0; i < codes; i++) r.codes[i] = UNSET;
    for (int64_t i = 0; i < scales; i++) r.scale[i] = UNSET;
    assert_ok(&ctx, assay_quantize(&ctx, r.codes, r.scale, &r.tensor_scale, x, c));
    return r;
}

static void result_free(result *r)
{
    free(r->codes);
    free(r->scale);
}

static double scale_number(const assay_quantize_config *c, int32_t code)
{
    double x = NAN;
    assay_dtype_decode(c->format->scale, 1, &code, &x);
    return x;
}

/* One block: its scale's code, and the code of its first number. */
static void expect(const assay_quantize_config *c, const double *x, int32_t scale, int32_t code)
{
    OWNED_BY(result_free) result r = quantize(c, x, 1);
    if (r.scale[0] != scale || r.codes[0] != code)
        fail_msg("%s of %a: scale %d, code %d; expected %d, %d", c->format->name, x[0], (int)r.scale[0],
                 (int)r.codes[0], (int)scale, (int)code);
}

/* By hand. 127 is 2^0. */
TEST(scales_by_hand)
{
    assay_quantize_config c = config_of("mxfp4", 1, 1);
    expect(&c, &(double){6}, 127, 7);
    expect(&c, &(double){nextafterf(6, 7)}, 128, 5); /* over 6, so twice the scale: 3 */
    expect(&c, &(double){-4}, 127, 14);              /* 4 / 6 rounded up is 1 */
    expect(&c, &(double){3}, 126, 7);
    expect(&c, &(double){0}, 0, 0);
    expect(&c, &(double){-0.0}, 0, 8);
    expect(&c, &(double){0x1p-149}, 0, 0); /* 2^-149 over 2^-127 */
    c.rounding = ASSAY_SCALE_DOWN;
    expect(&c, &(double){6}, 127, 7);
    expect(&c, &(double){7.5}, 127, 7); /* beyond 6 */
    expect(&c, &(double){8}, 128, 6);
    expect(&c, &(double){0x1p-126}, 0, 4); /* 2^-128 is no scale: 2^-126 over 2^-127 is 2 */
    c.subnormal_scale = false;
    expect(&c, &(double){0x1p-126}, 0, 0);
    c.rounding = ASSAY_SCALE_UP;
    expect(&c, &(double){0x1p-126}, 1, 2); /* the least scale, 2^-126 */
    c = config_of("mxfp8_e4m3", 1, 1);
    expect(&c, &(double){448}, 127, 0x7e);
    expect(&c, &(double){449}, 128, 0x76);
    c.rounding = ASSAY_SCALE_DOWN;
    expect(&c, &(double){496}, 127, 0x7e); /* saturates */
    c.saturate = false;
    expect(&c, &(double){496}, 127, 0x7f);
    c = config_of("fp8_e4m3_1x128", 1, 1);
    expect(&c, &(double){448}, 0x3f800000, 0x7e);
    expect(&c, &(double){0}, 0, 0);
    expect(&c, &(double){0.140625}, 0x39a49249, 0x7e); /* over 448 in float32 */
    c.rule = ASSAY_SCALE_MULTIPLY;
    expect(&c, &(double){0.140625}, 0x39a4924a, 0x7e); /* times 1 / 448 */
    c.rule = ASSAY_SCALE_INVERT;
    expect(&c, &(double){0}, 0x3f800000, 0);
    c.smallest_amax = 448;
    expect(&c, &(double){0}, 0x3f800000, 0);
    expect(&c, &(double){1}, 0x3f800000, 0x38);
}

TEST(ties_and_zeros)
{
    /* below each tie the code, and of even and down */
    static const struct {
        double tie;
        int even, down;
    } rows[] = {{0.25, 0, 0}, {0.75, 2, 1}, {1.25, 2, 2}, {1.75, 4, 3}, {2.5, 4, 4}, {3.5, 6, 5}, {5, 6, 6}};
    assay_quantize_config c = config_of("mxfp4", 1, 2);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int sign = 0; sign < 2; sign++) {
            const double x[] = {sign ? -rows[i].tie : rows[i].tie, 6};
            c.pack = true;
            c.ties_down = false;
            expect(&c, x, 127, 7 << 4 | (rows[i].even + 8 * sign));
            c.ties_down = true;
            expect(&c, x, 127, 7 << 4 | (rows[i].down + 8 * sign));
            const double above[] = {nextafterf((float)x[0], sign ? -9 : 9), 6};
            const int next = rows[i].even > rows[i].down ? rows[i].even : rows[i].down + 1;
            expect(&c, above, 127, 7 << 4 | (next + 8 * sign));
            c.pack = false;
        }
    }
    c.negative_zero = false;
    expect(&c, (double[]){-0.125, 6}, 127, 0);
    c.negative_zero = true;
    expect(&c, (double[]){-0.125, 6}, 127, 8);
}

/* One scale for a row of 300, and one for all rows: by hand. */
TEST(whole_rows_and_tensors_have_one_scale)
{
    enum { ROWS = 2, COLUMNS = 300 };
    double x[ROWS * COLUMNS];
    for (int i = 0; i < ROWS * COLUMNS; i++) x[i] = i == 0 ? 448 : i == COLUMNS + 299 ? 896 : 2;
    const assay_quantize_config row = config_of("fp8_e4m3_row", ROWS, COLUMNS),
                                tensor = config_of("fp8_e4m3_tensor", ROWS, COLUMNS);
    OWNED_BY(result_free) result of_rows = quantize(&row, x, 1), of_all = quantize(&tensor, x, 1);
    const float scales[] = {1, 2};
    assert_int_equal(assay_quantize_scales(&row), 2);
    assert_int_equal(assay_quantize_scales(&tensor), 1);
    assert_memory_equal(of_rows.scale, scales, sizeof scales);
    assert_memory_equal(of_all.scale, scales + 1, sizeof *scales);
    assert_int_equal(of_rows.codes[0], 0x7E);
    assert_int_equal(of_rows.codes[299], 0x40); /* 2 */
    assert_int_equal(of_rows.codes[300], 0x38); /* 1 */
    assert_int_equal(of_all.codes[299], 0x38);
    assert_int_equal(of_all.codes[599], 0x7E);
}

TEST_WITH_CONTEXT(refusals)
{
    const assay_quantize_config c = config_of("mxfp4", 1, 3);
    int32_t codes[3], scale, of_tensor;
    for (int i = 0; i < 3; i++) {
        const double bad[] = {NAN, INFINITY, -INFINITY};
        const double x[] = {1, 2, bad[i]};
        assert_bad_input(&ctx, assay_quantize(&ctx, codes, &scale, &of_tensor, x, &c), "inputs/x[0,2]");
    }
    assert_null(assay_block_format_by_name("mxfp6"));
    assert_null(assay_block_format_by_name(""));
}

/* Scales that are all different: tile, line and piece of each, and padding of 0. */
TEST(swizzled_scales_lie_in_tiles)
{
    static const struct {
        int64_t row, column, place;
    } table[] = {{0, 0, 0},    {0, 3, 3},     {1, 0, 16},  {31, 2, 498},   {32, 0, 4},
                 {95, 1, 505}, {127, 3, 511}, {0, 4, 512}, {128, 0, 1024}, {129, 4, 1552}};
    assay_quantize_config c = config_of("mxfp8_e4m3", 130, 160);
    c.rounding = ASSAY_SCALE_UP, c.swizzle = true;
    assert_int_equal(assay_quantize_scales(&c), 256 * 8);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        assert_int_equal(assay_quantize_scale_place(&c, table[i].row, table[i].column), table[i].place);
    OWNED double *x = test_nans(c.rows * c.columns);
    for (int64_t i = 0; i < c.rows * c.columns; i++) x[i] = ldexp(1, (int)(i / c.columns % 64 - i % c.columns / 32));
    OWNED_BY(result_free) result r = quantize(&c, x, 2);
    int64_t there = 0;
    for (int64_t i = 0; i < c.rows; i++) {
        for (int64_t j = 0; j < 5; j++, there++) {
            const double scale = scale_number(&c, r.scale[assay_quantize_scale_place(&c, i, j)]);
            assert_true(scale == ldexp(1, (int)(i % 64 - j) - 8)); /* up: over 448 */
        }
    }
    for (int64_t i = 0; i < assay_quantize_scales(&c); i++) there -= r.scale[i] != 0;
    assert_int_equal(there, 0);
}
