/* The loops of the emulated arithmetic: the same bits with every instruction set, and numbers of the grid are known. */
#include <float.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/arithmetic/emulated_loops.h"
#include "tests/support/assay_test.h"

enum { COUNT = 1031 };

static const assay_dtype types[] = {ASSAY_FLOAT32, ASSAY_BFLOAT16, ASSAY_FLOAT16, ASSAY_FLOAT8_E4M3FN, ASSAY_FLOAT64};
enum { TYPES = sizeof types / sizeof *types };

static const double special[] = {0.0,     -0.0,      NAN,      INFINITY,  -INFINITY, DBL_MAX,   -DBL_MIN, 0x1p-1074,
                                 0x1p-24, 0x1p-149,  0x1p-133, -65504.0,  65520.0,   0x1p127,   3.5e38,   448.0,
                                 449.0,   0x1.8p-10, 1.0,      -0x1.fp-1, 0x1p-126,  -0x1p-127, 0x1p-14,  0x1p-15};
enum { SPECIAL = sizeof special / sizeof *special };

/* Numbers over many powers of two, and all that is special. */
static void fill(double *values, int64_t count)
{
    uint64_t state = 7;
    for (int64_t i = 0; i < count; i++) {
        state = emulated_hash(state + (uint64_t)i);
        values[i] = i < SPECIAL ? special[i] : ldexp((double)(int64_t)state, (int)(state % 97) - 110);
    }
}

static assay_context context_of(assay_isa isa, const assay_emulation *emulation)
{
    return (assay_context){.arithmetic = &assay_arithmetic_emulated, .emulation = emulation, .isa = isa, .threads = 1};
}

TEST(rounding_does_not_depend_on_isa)
{
    static const assay_isa isas[] = {ASSAY_ISA_SCALAR, ASSAY_ISA_AVX2, ASSAY_ISA_AVX512};
    double values[COUNT], expected[COUNT], found[COUNT];
    fill(values, COUNT);
    for (int form = 0; form < TYPES * 4 * 3; form++) {
        const assay_emulation emulation = {
            .precision = {.router = 1e-3, .elementary = 1e-7, .accumulate = form % 2 == 0 ? 1e-7 : 1e-18},
            .storage = types[form / 12],
            .multiply = ASSAY_FLOAT32,
            .nearest = form == 3,
            .seed = 11};
        if (!assay_isa_supported(isas[form % 3])) continue;
        const assay_context plain = context_of(ASSAY_ISA_SCALAR, &emulation),
                            ctx = context_of(isas[form % 3], &emulation);
        for (int64_t count = COUNT; count > 0; count = count > 40 ? count / 7 : count - 1) {
            memcpy(expected, values, sizeof values);
            memcpy(found, values, sizeof values);
            assay_round(&plain, (assay_rounding)(form / 3 % 4), count, expected);
            assay_round(&ctx, (assay_rounding)(form / 3 % 4), count, found);
            assert_same_bits(found, expected, COUNT);
        }
    }
}

TEST(errors_of_sums_do_not_depend_on_isa)
{
    static const assay_isa isas[] = {ASSAY_ISA_AVX2, ASSAY_ISA_AVX512};
    const emulated_sum_error error = {.of_result = 1e-14, .of_norm = 1e-15, .mean = 1e-9};
    double values[COUNT], columns[COUNT], expected[COUNT], found[COUNT];
    float float32_columns[COUNT], rows[2] = {0.25f, 3};
    fill(values, COUNT);
    for (int64_t i = 0; i < COUNT; i++) columns[i] = fabs(values[COUNT - 1 - i]);
    for (int64_t i = 0; i < COUNT; i++) float32_columns[i] = (float)columns[i];
    for (size_t n = 0; n < sizeof isas / sizeof *isas; n++) {
        if (!assay_isa_supported(isas[n])) continue;
        for (int64_t count = 0; count < COUNT; count = 3 * count + 1) {
            memcpy(expected, values, sizeof values);
            memcpy(found, values, sizeof values);
            emulated_loops_scalar.add_sum_error(&error, 5, count, expected, 0.25, columns);
            emulated_loops_for(isas[n])->add_sum_error(&error, 5, count, found, 0.25, columns);
            assert_same_bits(found, expected, COUNT);
            for (int64_t i = 0; i < COUNT; i++) expected[i] = found[i] = (double)(float)values[i];
            const emulated_block block = {
                .rows = 2, .columns = count / 2, .ld = count / 2, .of_rows = rows, .of_columns = float32_columns};
            emulated_loops_scalar.add_float32_errors(&error, 5, &block, expected);
            emulated_loops_for(isas[n])->add_float32_errors(&error, 5, &block, found);
            assert_same_bits(found, expected, COUNT);
        }
    }
}

/* A product leaves operands on the grid as they are, wherever in a row the one stands that is not. */
TEST(one_number_off_the_grid_is_found)
{
    static const assay_isa isas[] = {ASSAY_ISA_SCALAR, ASSAY_ISA_AVX2, ASSAY_ISA_AVX512};
    const emulated_grid g = {.normal = 0x1p-126, .max = FLT_MAX, .below = (UINT64_C(1) << 29) - 1};
    static const double off[] = {1 + 0x1p-24, 0x1p-127, 0x1p128, NAN, INFINITY, -(0x1p-126 + 0x1p-150), DBL_MIN};
    static const double on[] = {0.0, -0.0, 1 + 0x1p-23, -0x1p-126, FLT_MAX, -FLT_MAX, 0x1.8p100};
    double values[67];
    for (size_t n = 0; n < 3; n++) {
        if (!assay_isa_supported(isas[n])) continue;
        const emulated_loops *loops = emulated_loops_for(isas[n]);
        for (int64_t i = 0; i < 67; i++) values[i] = on[i % 7];
        assert_true(loops->are_on_grid(&g, 67, values));
        assert_true(loops->are_on_grid(&g, 0, values));
        for (int64_t i = 0; i < 67; i++) {
            const double kept = values[i];
            for (int k = 0; k < 7; k++) {
                values[i] = off[k];
                assert_false(loops->are_on_grid(&g, 67, values));
                assert_true(loops->are_on_grid(&g, i, values));
            }
            values[i] = kept;
        }
    }
}

/* C = A B with operands that are rounded, or are on the grid already: the same bits as if they had been rounded before.
 */
TEST(operands_on_the_grid_are_used_as_they_are)
{
    enum { M = 5, K = 37, N = 11 };
    const assay_emulation emulation = {
        .precision = {.accumulate = 3e-8}, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = 3};
    const assay_context rounding = context_of(ASSAY_ISA_SCALAR, &emulation);
    double a[M * K], b[K * N], expected[M * N], found[M * N];
    for (int i = 0; i < M * K; i++) a[i] = (double)(int64_t)emulated_hash((uint64_t)i) * 0x1p-63;
    for (int i = 0; i < K * N; i++) b[i] = (double)(int64_t)emulated_hash(~(uint64_t)i) * 0x1p-63;
    assay_matmul_args args = {.c = expected, .ldc = N, .a = a, .lda = K, .b = b, .ldb = N, .m = M, .n = N, .k = K};
    assay_context ctx = rounding;
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    assay_round(&rounding, ASSAY_ROUND_STORAGE, M * K, a);
    assay_round(&rounding, ASSAY_ROUND_STORAGE, K * N, b);
    args.c = found;
    assay_fill_nan(found, M * N);
    assert_ok(&ctx, assay_matmul(&ctx, &args));
    assert_same_bits(found, expected, M * N);
}
