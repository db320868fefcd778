#include <float.h>

#include "oracle/base/dtype_kernels.h"
#include "tests/support/assay_test.h"

static const assay_dtype SMALL_TYPES[] = {ASSAY_BFLOAT16, ASSAY_FLOAT16, ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT8_E5M2};
enum { SMALL_TYPE_COUNT = 4, MOST_CODES = 65536 };

/* All tests run by the public functions, and by the loops of each instruction set. NULL: the public functions. */
static const assay_dtype_kernels *body;

static bool by_public_functions(assay_dtype type)
{
    return body == NULL || type == ASSAY_FLOAT64 || type == ASSAY_INT32 || type == ASSAY_FLOAT8_E8M0FNU;
}

static void round_many(assay_dtype type, int64_t count, const double *x, double *y)
{
    if (by_public_functions(type)) {
        assay_dtype_round_many(type, count, x, y);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type);
        body->round(&grid, count, x, y);
    }
}

static void encode(assay_dtype type, int64_t count, const double *x, void *bytes)
{
    if (by_public_functions(type)) {
        assay_dtype_encode(type, count, x, bytes);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type);
        body->encode(&grid, count, x, bytes);
    }
}

static void decode(assay_dtype type, int64_t count, const void *bytes, double *x)
{
    if (by_public_functions(type)) {
        assay_dtype_decode(type, count, bytes, x);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type == ASSAY_TFLOAT32 ? ASSAY_FLOAT32 : type);
        body->decode(&grid, count, bytes, x);
    }
}

/* One number is tested as two vectors of it and a rest. */
enum { COPIES = 9 };

static void encode_copies(assay_dtype type, double x, void *code)
{
    double copies[COPIES];
    unsigned char codes[COPIES * sizeof(double)];
    size_t size = assay_dtype_size(type);
    for (int i = 0; i < COPIES; i++) copies[i] = x;
    memset(codes, 0xad, sizeof codes);
    encode(type, COPIES, copies, codes);
    for (int i = 1; i < COPIES; i++) assert_memory_equal(codes + (size_t)i * size, codes, size);
    memcpy(code, codes, size);
}

static double decode_copies(assay_dtype type, const void *code)
{
    double values[COPIES];
    unsigned char codes[COPIES * sizeof(double)];
    size_t size = assay_dtype_size(type);
    for (int i = 0; i < COPIES; i++) memcpy(codes + (size_t)i * size, code, size);
    assay_fill_nan(values, COPIES);
    decode(type, COPIES, codes, values);
    for (int i = 1; i < COPIES; i++) assert_same_bits(&values[i], values, 1);
    return values[0];
}

/* The test's own idea of a type. */
typedef struct layout {
    int exponent_bits, fraction_bits, bias;
    bool has_infinity;
} layout;

static layout layout_of(assay_dtype type)
{
    switch (type) {
    case ASSAY_BFLOAT16:
        return (layout){8, 7, 127, true};
    case ASSAY_FLOAT16:
        return (layout){5, 10, 15, true};
    case ASSAY_FLOAT8_E4M3FN:
        return (layout){4, 3, 7, false};
    default:
        return (layout){5, 2, 15, true};
    }
}

static double decode_slowly(assay_dtype type, int code)
{
    layout l = layout_of(type);
    int fraction = code & ((1 << l.fraction_bits) - 1);
    int exponent = code >> l.fraction_bits & ((1 << l.exponent_bits) - 1);
    double sign = code >> (l.fraction_bits + l.exponent_bits) ? -1.0 : 1.0;
    int last = (1 << l.exponent_bits) - 1;
    if (l.has_infinity && exponent == last) return fraction == 0 ? sign * INFINITY : NAN;
    if (!l.has_infinity && exponent == last && fraction == (1 << l.fraction_bits) - 1) return NAN;
    if (exponent == 0) return sign * ldexp(fraction, 1 - l.bias - l.fraction_bits);
    return sign * ldexp(fraction + (1 << l.fraction_bits), exponent - l.bias - l.fraction_bits);
}

static int code_count(assay_dtype type)
{
    return 1 << (8 * assay_dtype_size(type));
}

static void decode_codes(assay_dtype type, double *values)
{
    static uint16_t codes16[MOST_CODES];
    static uint8_t codes8[256];
    for (int i = 0; i < code_count(type); i++) codes16[i] = (uint16_t)i;
    for (int i = 0; i < 256; i++) codes8[i] = (uint8_t)i;
    assay_fill_nan(values, code_count(type));
    decode(type, code_count(type), assay_dtype_size(type) == 2 ? (void *)codes16 : (void *)codes8, values);
}

static unsigned encode_one(assay_dtype type, double x)
{
    uint16_t code16 = 0;
    uint8_t code8 = 0;
    encode_copies(type, x, assay_dtype_size(type) == 2 ? (void *)&code16 : (void *)&code8);
    return assay_dtype_size(type) == 2 ? code16 : code8;
}

static void assert_rounds_to(assay_dtype type, double x, double expected)
{
    double copies[COPIES], actual[COPIES + 1];
    for (int i = 0; i < COPIES; i++) copies[i] = x;
    assay_fill_nan(actual, COPIES + 1);
    round_many(type, COPIES, copies, actual);
    actual[COPIES] = assay_dtype_round(type, x, false);
    for (int i = 0; i <= COPIES; i++) {
        bool same = isnan(expected) ? isnan(actual[i]) : memcmp(&actual[i], &expected, sizeof expected) == 0;
        if (!same) fail_msg("%s: %a rounds to %a, expected %a", assay_dtype_name(type), x, actual[i], expected);
    }
}

TEST(names_sizes_and_constants)
{
    static const struct {
        const char *name, *other;
        assay_dtype type;
        size_t size;
        double max, unit_roundoff, least_subnormal;
    } rows[] = {{"float64", "f64", ASSAY_FLOAT64, 8, DBL_MAX, 0x1p-53, 0x1p-1074},
                {"float32", "f32", ASSAY_FLOAT32, 4, (double)FLT_MAX, 0x1p-24, 0x1p-149},
                {"tfloat32", "tf32", ASSAY_TFLOAT32, 4, 0x1.ffcp127, 0x1p-11, 0x1p-136},
                {"bfloat16", "bf16", ASSAY_BFLOAT16, 2, 0x1.fep127, 0x1p-8, 0x1p-133},
                {"float16", "f16", ASSAY_FLOAT16, 2, 65504, 0x1p-11, 0x1p-24},
                {"float8_e4m3fn", NULL, ASSAY_FLOAT8_E4M3FN, 1, 448, 0x1p-4, 0x1p-9},
                {"float8_e5m2", NULL, ASSAY_FLOAT8_E5M2, 1, 57344, 0x1p-3, 0x1p-16},
                {"float4_e2m1fn", NULL, ASSAY_FLOAT4_E2M1FN, 1, 6, 0.25, 0.5},
                {"float8_e8m0fnu", NULL, ASSAY_FLOAT8_E8M0FNU, 1, 0x1p127, 0.5, 0x1p-127},
                {"int32", NULL, ASSAY_INT32, 4, 2147483647, 0, 1}};
    assert_int_equal(sizeof rows / sizeof *rows, ASSAY_DTYPE_COUNT);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_dtype type = ASSAY_DTYPE_COUNT, other = rows[i].type;
        assert_true(assay_dtype_from_name(rows[i].name, &type));
        if (rows[i].other != NULL) assert_true(assay_dtype_from_name(rows[i].other, &other));
        assert_true(type == rows[i].type && other == rows[i].type);
        assert_int_equal(assay_dtype_size(type), rows[i].size);
        assert_string_equal(assay_dtype_name(type), rows[i].name);
        assert_true(assay_dtype_max(type) == rows[i].max);
        assert_true(assay_dtype_unit_roundoff(type) == rows[i].unit_roundoff);
        assert_true(assay_dtype_least_subnormal(type) == rows[i].least_subnormal);
    }
    assay_dtype untouched = ASSAY_INT32;
    assert_false(assay_dtype_from_name("float", &untouched));
    assert_false(assay_dtype_from_name("", &untouched));
    assert_int_equal(untouched, ASSAY_INT32);
}

TEST(every_code_decodes_and_encodes_back)
{
    static double values[MOST_CODES];
    static uint16_t codes16[MOST_CODES];
    static uint8_t codes8[256];
    for (int t = 0; t < SMALL_TYPE_COUNT; t++) {
        assay_dtype type = SMALL_TYPES[t];
        bool wide = assay_dtype_size(type) == 2;
        decode_codes(type, values);
        encode(type, code_count(type), values, wide ? (void *)codes16 : (void *)codes8);
        for (int code = 0; code < code_count(type); code++) {
            double expected = decode_slowly(type, code);
            int encoded = wide ? codes16[code] : codes8[code];
            if (isnan(expected)) {
                assert_true(isnan(values[code]));
                assert_true(isnan(decode_slowly(type, encoded)));
            } else {
                assert_same_bits(&values[code], &expected, 1);
                assert_int_equal(encoded, code);
                assert_rounds_to(type, expected, expected);
            }
        }
    }
}

/* Every midpoint of neighbours, its float64 neighbours, and those of the grid's own values; of both signs. The value
 * after the largest finite one is where the next exponent would begin (e4m3fn: the place of its NaN). */
TEST(every_tie_goes_to_even)
{
    for (int t = 0; t < SMALL_TYPE_COUNT; t++) {
        assay_dtype type = SMALL_TYPES[t];
        layout l = layout_of(type);
        double beyond = l.has_infinity ? INFINITY : NAN;
        for (int code = 0; decode_slowly(type, code) <= assay_dtype_max(type); code++) {
            double low = decode_slowly(type, code);
            bool last = low == assay_dtype_max(type);
            double spacing = last ? low - decode_slowly(type, code - 1) : decode_slowly(type, code + 1) - low;
            double high = low + spacing, middle = low + spacing / 2, result = last ? beyond : high;
            double even = code % 2 == 0 ? low : result;
            for (double sign = -1; sign <= 1; sign += 2) {
                assert_rounds_to(type, sign * nextafter(low, INFINITY), sign * low);
                assert_rounds_to(type, sign * nextafter(middle, 0), sign * low);
                assert_rounds_to(type, sign * middle, sign * even);
                assert_rounds_to(type, sign * nextafter(middle, INFINITY), sign * result);
                assert_rounds_to(type, sign * nextafter(high, 0), sign * result);
            }
        }
    }
}

static void assert_code(assay_dtype type, double x, unsigned code)
{
    const unsigned found = encode_one(type, x);
    if (found != code) fail_msg("%s: %a has the code %#x, expected %#x", assay_dtype_name(type), x, found, code);
}

/* All numbers of e2m1 from its definition's table; a code a byte, whose high bits are not looked at. */
TEST(e2m1)
{
    static const double numbers[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    const assay_dtype type = ASSAY_FLOAT4_E2M1FN;
    for (int i = 0; i < 256; i++) {
        const uint8_t code = (uint8_t)i;
        const double found = decode_copies(type, &code), expected = i & 8 ? -numbers[i & 7] : numbers[i & 7];
        assert_same_bits(&found, &expected, 1);
        if (i < 16) assert_code(type, expected, code);
    }
    for (int sign = 0; sign < 2; sign++) {
        const double one = sign ? -1 : 1;
        for (int code = 0; code < 7; code++) {
            const double low = numbers[code], high = numbers[code + 1], middle = (low + high) / 2;
            const double even = code % 2 == 0 ? low : high;
            assert_rounds_to(type, one * middle, one * even);
            assert_rounds_to(type, one * nextafter(middle, 0), one * low);
            assert_rounds_to(type, one * nextafter(middle, 9), one * high);
            assert_code(type, one * middle, (unsigned)(code + code % 2 + 8 * sign));
            assert_code(type, one * nextafter(middle, 9), (unsigned)(code + 1 + 8 * sign));
        }
        const double large[] = {6.5, 7, 8, 1e300, INFINITY};
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            assert_rounds_to(type, one * large[i], one * 6);
            assert_code(type, one * large[i], 7 + 8 * (unsigned)sign);
        }
    }
    assert_rounds_to(type, NAN, NAN);
    assert_code(type, NAN, 8); /* it has none: -0 */
    assert_code(type, -NAN, 8);
}

TEST(e8m0)
{
    const assay_dtype type = ASSAY_FLOAT8_E8M0FNU;
    for (int i = 0; i < 256; i++) {
        const uint8_t code = (uint8_t)i;
        const double found = decode_copies(type, &code), power = ldexp(1, i - 127), tie = 1.5 * power;
        if (i == 255) {
            assert_true(isnan(found));
            assert_code(type, found, 255);
            continue;
        }
        assert_same_bits(&found, &power, 1);
        assert_code(type, power, code);
        assert_rounds_to(type, power, power);
        assert_rounds_to(type, nextafter(tie, 0), power);
        assert_rounds_to(type, tie, i == 254 ? (double)NAN : 2 * power); /* the significand of the larger is even */
        assert_code(type, nextafter(tie, INFINITY), code + 1U);
    }
    static const double least[] = {0, -0.0, 0x1p-128, 0x1p-1074, 0x1.7p-127};
    for (size_t i = 0; i < sizeof least / sizeof *least; i++) assert_code(type, least[i], 0);
    static const double none[] = {-1, -0x1p-1074, INFINITY, -INFINITY, NAN, 0x1p128, 0x1.8p127};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_code(type, none[i], 255);
        assert_rounds_to(type, none[i], NAN);
    }
}

/* The neighbours found by bisection in the table of values, the nearer one taken. */
static double round_slowly(assay_dtype type, const double *values, double x)
{
    if (isnan(x)) return x;
    int low = 0, high = code_count(type) / 2 - 1;
    while (!(values[high] <= assay_dtype_max(type))) high--;
    if (fabs(x) > values[high]) {
        double spacing = values[high] - values[high - 1];
        bool tie_is_even = high % 2 == 0;
        double excess = fabs(x) - values[high];
        if (excess < spacing / 2 || (excess == spacing / 2 && tie_is_even)) return copysign(values[high], x);
        return copysign(layout_of(type).has_infinity ? (double)INFINITY : (double)NAN, x);
    }
    while (high - low > 1) {
        int middle = (low + high) / 2;
        *(values[middle] <= fabs(x) ? &low : &high) = middle;
    }
    long double below = (long double)fabs(x) - values[low], above = values[high] - (long double)fabs(x);
    bool down = below < above || (below == above && low % 2 == 0);
    return copysign(values[down ? low : high], x);
}

static double random_bits_as_double(uint64_t *state)
{
    uint64_t bits = test_bits(state);
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Magnitudes from far below the least subnormal to beyond the largest value of any type below float64. */
static double random_of_wide_range(uint64_t *state)
{
    int exponent = (int)(test_bits(state) % 310) - 170;
    double x = ldexp(1 + (double)(test_bits(state) >> 12) * 0x1p-52, exponent);
    return test_bits(state) % 2 == 0 ? x : -x;
}

TEST(random_values_round_to_the_nearest)
{
    static double values[MOST_CODES];
    uint64_t random = 1;
    for (int t = 0; t < SMALL_TYPE_COUNT; t++) {
        assay_dtype type = SMALL_TYPES[t];
        decode_codes(type, values);
        for (int i = 0; i < 60000; i++) {
            double x = i % 2 == 0 ? random_of_wide_range(&random)
                                  : 100 * (random_of_wide_range(&random) > 0 ? 1 : -1) *
                                        (double)(test_bits(&random) >> 11) * 0x1p-53;
            double expected = round_slowly(type, values, x);
            assert_rounds_to(type, x, expected);
            double decoded = decode_slowly(type, (int)encode_one(type, x));
            if (isnan(expected)) {
                assert_true(isnan(decoded));
            } else {
                assert_same_bits(&decoded, &expected, 1);
            }
        }
    }
}

TEST(float32_is_the_hardware_s)
{
    uint64_t random = 2;
    for (int i = 0; i < 400000; i++) {
        double x = i % 2 == 0 ? random_of_wide_range(&random) : random_bits_as_double(&random);
        float expected = (float)x, encoded = -1;
        encode_copies(ASSAY_FLOAT32, x, &encoded);
        double decoded = decode_copies(ASSAY_FLOAT32, &encoded);
        if (isnan(x)) {
            assert_true(isnan(encoded) && isnan(decoded));
        } else {
            assert_memory_equal(&encoded, &expected, sizeof expected);
            assert_true(decoded == (double)expected);
            assert_rounds_to(ASSAY_FLOAT32, x, (double)expected);
        }
    }
    /* Every tie of a float32 binade, and of the subnormals' end. */
    for (int i = -40; i < 40; i++) {
        double ties[] = {1 + (2 * i + 1) * 0x1p-24, 0x1p-126 + (2 * i + 1) * 0x1p-150, (2 * i + 1) * 0x1p-150};
        for (size_t k = 0; k < 3; k++) assert_rounds_to(ASSAY_FLOAT32, ties[k], (double)(float)ties[k]);
    }
}

static double round_by_scaling(double x, int digits, int least_exponent, double max)
{
    int exponent = x == 0 ? least_exponent : ilogb(x);
    int spacing = (exponent > least_exponent ? exponent : least_exponent) - digits + 1;
    double rounded = ldexp(rint(ldexp(x, -spacing)), spacing);
    return fabs(rounded) > max ? copysign(INFINITY, x) : copysign(rounded, x);
}

TEST(tfloat32_has_eleven_digits)
{
    uint64_t random = 3;
    for (int i = 0; i < 200000; i++) {
        double x = random_of_wide_range(&random);
        if (i % 2 == 0) x = round_by_scaling(x, 12, -126, DBL_MAX); /* grid values and ties */
        double expected = round_by_scaling(x, 11, -126, 0x1.ffcp127);
        assert_rounds_to(ASSAY_TFLOAT32, x, expected);
        float encoded = -1;
        encode_copies(ASSAY_TFLOAT32, x, &encoded);
        assert_true((double)encoded == expected);
    }
    float stored = 1.0f + FLT_EPSILON; /* what is stored is read as it is */
    assert_true(decode_copies(ASSAY_TFLOAT32, &stored) == (double)stored);
}

TEST(overflow_and_saturation)
{
    const struct {
        assay_dtype type;
        double largest_that_stays, least_that_overflows, overflowed;
    } rows[] = {{ASSAY_FLOAT32, 0x1.fffffefffffffp127, 0x1.ffffffp127, INFINITY},
                {ASSAY_TFLOAT32, 0x1.ffdffffffffffp127, 0x1.ffep127, INFINITY},
                {ASSAY_BFLOAT16, 0x1.fefffffffffffp127, 0x1.ffp127, INFINITY},
                {ASSAY_FLOAT16, 0x1.ffdffffffffffp15, 65520, INFINITY},
                {ASSAY_FLOAT8_E4M3FN, 464, 0x1.d000000000001p8, NAN},
                {ASSAY_FLOAT8_E5M2, 0x1.dffffffffffffp15, 61440, INFINITY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_dtype type = rows[i].type;
        double max = assay_dtype_max(type);
        bool saturates = assay_dtype_size(type) == 1;
        assert_rounds_to(type, rows[i].largest_that_stays, max);
        assert_rounds_to(type, -rows[i].largest_that_stays, -max);
        const double beyond[] = {rows[i].least_that_overflows, 0x1p300, DBL_MAX, INFINITY};
        for (size_t k = 0; k < 4; k++) {
            assert_rounds_to(type, beyond[k], rows[i].overflowed);
            assert_rounds_to(type, -beyond[k], -rows[i].overflowed);
            if (saturates) {
                assert_true(assay_dtype_round(type, beyond[k], true) == max);
                assert_true(assay_dtype_round(type, -beyond[k], true) == -max);
            } else {
                assert_true(assay_dtype_round(type, beyond[k], true) == INFINITY);
            }
        }
        assert_true(isnan(assay_dtype_round(type, NAN, true)));
        assert_rounds_to(type, NAN, NAN);
        assert_rounds_to(type, 0.0, 0.0);
        assert_rounds_to(type, -0.0, -0.0);
        assert_rounds_to(type, -0x1p-1074, -0.0);
    }
    assert_rounds_to(ASSAY_FLOAT64, DBL_MAX, DBL_MAX);
    assert_rounds_to(ASSAY_FLOAT64, 0x1p-1074, 0x1p-1074);
    assert_rounds_to(ASSAY_FLOAT64, NAN, NAN);
}

TEST(nan_has_one_code)
{
    const uint64_t payloads[] = {UINT64_C(0x7ff8000000000000), UINT64_C(0xfff8000000000000),
                                 UINT64_C(0x7ff0000000000001), UINT64_C(0xffffffffffffffff)};
    for (size_t i = 0; i < sizeof payloads / sizeof *payloads; i++) {
        double x, f64 = 0;
        uint32_t f32 = 0;
        memcpy(&x, &payloads[i], sizeof x);
        assert_int_equal(encode_one(ASSAY_BFLOAT16, x), 0x7fc0);
        assert_int_equal(encode_one(ASSAY_FLOAT16, x), 0x7e00);
        assert_int_equal(encode_one(ASSAY_FLOAT8_E4M3FN, x), 0x7f);
        assert_int_equal(encode_one(ASSAY_FLOAT8_E5M2, x), 0x7e);
        encode_copies(ASSAY_FLOAT32, x, &f32);
        assert_int_equal(f32, 0x7fc00000);
        encode_copies(ASSAY_FLOAT64, x, &f64);
        assert_same_bits(&f64, (double *)(uintptr_t)&payloads[0], 1);
    }
    assert_int_equal(encode_one(ASSAY_FLOAT8_E4M3FN, 1e9), 0x7f);
    assert_int_equal(encode_one(ASSAY_FLOAT8_E4M3FN, -INFINITY), 0x7f);
    assert_int_equal(encode_one(ASSAY_FLOAT8_E5M2, -INFINITY), 0xfc);
}

TEST(integers)
{
    const double x[] = {0, -1, 2147483647, -2147483648.0, 123456789};
    int32_t stored[5] = {0};
    double back[5];
    assay_fill_nan(back, 5);
    encode(ASSAY_INT32, 5, x, stored);
    assert_int_equal(stored[2], INT32_MAX);
    assert_int_equal(stored[3], INT32_MIN);
    decode(ASSAY_INT32, 5, stored, back);
    assert_same_bits(back, x, 5);
    assert_rounds_to(ASSAY_INT32, 2.5, 2);
    assert_rounds_to(ASSAY_INT32, -3.5, -4);
    assert_rounds_to(ASSAY_INT32, 1e10, 2147483647);
    assert_rounds_to(ASSAY_INT32, -1e10, -2147483648.0);
}

TEST(lengths_and_places_do_not_matter)
{
    enum { COUNT = 1537 };
    static double x[COUNT], whole[COUNT], part[COUNT];
    uint64_t random = 4;
    for (int i = 0; i < COUNT; i++) x[i] = i % 97 == 0 ? NAN : random_of_wide_range(&random);
    for (int t = 0; t < ASSAY_INT32; t++) {
        assay_dtype type = (assay_dtype)t;
        size_t size = assay_dtype_size(type);
        static unsigned char whole_bytes[COUNT * 8 + 8], part_bytes[COUNT * 8 + 8];
        encode(type, COUNT, x, whole_bytes);
        decode(type, COUNT, whole_bytes, whole);
        for (int first = 0, step = 1; first < COUNT; first += step, step = step * 3 % 601 + 1) {
            int count = first + step < COUNT ? step : COUNT - first;
            encode(type, count, x + first, part_bytes + (size_t)first * size);
            decode(type, count, part_bytes + (size_t)first * size, part + first);
        }
        assert_memory_equal(part_bytes, whole_bytes, COUNT * size);
        assert_same_bits(part, whole, COUNT);
        memcpy(part, x, sizeof x);
        round_many(type, COUNT, part, part); /* in place */
        for (int i = 0; i < COUNT; i++) {
            const bool stored = isnan(whole[i]) || type == ASSAY_FLOAT4_E2M1FN; /* which has no NaN to store */
            assert_true(part[i] == whole[i] || (isnan(part[i]) && stored));
        }
        part_bytes[0] = 0xee;
        encode(type, 0, x, part_bytes); /* nothing */
        assert_int_equal(part_bytes[0], 0xee);
    }
}

/* NaN payloads included. */
TEST(bits_are_those_of_the_public_functions)
{
    enum { COUNT = 20011 };
    static double x[COUNT], values[2][COUNT];
    static unsigned char bytes[2][COUNT * 8];
    static uint64_t codes[COUNT];
    uint64_t random = 5;
    for (int i = 0; i < COUNT; i++) {
        x[i] = i % 2 == 0 ? random_of_wide_range(&random) : random_bits_as_double(&random);
        codes[i] = test_bits(&random);
        if (i % 7 == 0) x[i] = copysign(NAN, x[i]);
        if (i % 11 == 0) codes[i] |= UINT64_C(0x7f8000007f807f80); /* infinities and NaN of four types */
    }
    for (int t = 0; t < ASSAY_INT32; t++) {
        assay_dtype type = (assay_dtype)t;
        round_many(type, COUNT, x, values[0]);
        assay_dtype_round_many(type, COUNT, x, values[1]);
        assert_same_bits(values[0], values[1], COUNT);
        encode(type, COUNT, x, bytes[0]);
        assay_dtype_encode(type, COUNT, x, bytes[1]);
        assert_memory_equal(bytes[0], bytes[1], COUNT * assay_dtype_size(type));
        decode(type, COUNT, codes, values[0]);
        assay_dtype_decode(type, COUNT, codes, values[1]);
        assert_same_bits(values[0], values[1], COUNT);
    }
}

#if defined(__SSE2__)
#include <xmmintrin.h>

/* A backend built with -ffast-math sets this in the process that loads it. */
TEST(flush_to_zero_changes_nothing)
{
    static double values[MOST_CODES], again[MOST_CODES];
    float float_value = 0;
    double tiny = 0x1.8p-149;
    static uint16_t codes[MOST_CODES];
    decode_codes(ASSAY_BFLOAT16, values);
    unsigned before = _mm_getcsr();
    _mm_setcsr(before | 0x8040);
    decode_codes(ASSAY_BFLOAT16, again);
    encode(ASSAY_BFLOAT16, MOST_CODES, again, codes);
    encode_copies(ASSAY_FLOAT32, tiny, &float_value);
    double decoded = decode_copies(ASSAY_FLOAT32, &float_value);
    _mm_setcsr(before);
    for (int i = 0; i < MOST_CODES; i++) {
        if (isnan(values[i])) continue;
        assert_same_bits(&again[i], &values[i], 1);
        assert_int_equal(codes[i], i);
    }
    assert_true(decoded == 0x1p-148);
}
#endif

static void decode_past(assay_dtype type, int64_t count, const void *bytes, double *x)
{
    if (by_public_functions(type)) {
        assay_dtype_decode_past(type, count, bytes, x);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type == ASSAY_TFLOAT32 ? ASSAY_FLOAT32 : type);
        body->decode_past(&grid, count, bytes, x);
    }
}

TEST(past_the_caches_come_the_same_numbers)
{
    enum { MOST = 3000, ROOM = MOST + 16 };
    static unsigned char bytes[ROOM * sizeof(double)];
    static double plain[ROOM], past[ROOM];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)test_bits(&seed);
    for (int type = 0; type < ASSAY_DTYPE_COUNT; type++) {
        for (int shift = 0; shift < 9; shift++) {
            const int64_t counts[] = {0, 1, 7, 513, 1024, MOST};
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
                assay_fill_nan(plain, ROOM);
                assay_fill_nan(past, ROOM);
                decode((assay_dtype)type, counts[i], bytes, plain + shift);
                decode_past((assay_dtype)type, counts[i], bytes, past + shift);
                assert_same_bits(past, plain, ROOM);
            }
        }
    }
}

int main(void)
{
    int failed = assay_run_tests("public functions", NULL, NULL);
    body = &assay_dtype_scalar;
    failed += assay_run_tests("every machine", NULL, NULL);
    if (__builtin_cpu_supports("avx2")) {
        body = &assay_dtype_avx2;
        failed += assay_run_tests("AVX2", NULL, NULL);
    }
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) {
        body = &assay_dtype_avx512;
        failed += assay_run_tests("AVX-512", NULL, NULL);
    }
    return failed;
}
