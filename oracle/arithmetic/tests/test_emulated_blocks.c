/* Accumulators that truncate or take blocks, and block-scaled operands: the emulated arithmetic against an independent kernel
 * (fp8_kernel.h). */

#include "oracle/arithmetic/emulated.h"
#include "oracle/arithmetic/tests/fp8_kernel.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

#define ROOT_3RD 0.57735026918962576451

static double *filled(uint64_t *state, double mean, int64_t count)
{
    double *x = malloc((size_t)count * sizeof *x + 1);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = assay_dtype_round(ASSAY_BFLOAT16, mean + test_normal(state), false);
    return x;
}

/* --- accumulators --- */

enum { MIXED, POSITIVE, KINDS, LONGEST = 4096 };

static void fill(int kind, int64_t count, uint64_t *state, double *a, double *b)
{
    for (int64_t i = 0; i < count; i++) {
        a[i] = test_normal(state);
        b[i] = test_normal(state);
        if (kind == POSITIVE) a[i] = fabs(a[i]), b[i] = fabs(b[i]);
    }
}

static double summed(const assay_precision *p, int bits, const double *a, const double *b, int64_t count)
{
    const int64_t block = p->accumulator.block > 0 ? p->accumulator.block : count;
    double sum = 0;
    for (int64_t first = 0; first < count; first += block) {
        double part = 0;
        for (int64_t i = first; i < first + block && i < count; i++) {
            part += a[i] * b[i];
            part = p->accumulator.truncate ? fp8_truncated(part, bits) : rint(ldexp(part, 9)) * 0x1p-9;
        }
        sum = p->accumulator.block > 0 ? (double)(float)(sum + part) : sum + part;
    }
    return sum;
}

/* The mean square of the errors of emulated members of one sum. */
static double emulated_squares(const assay_precision *p, const double *a, const double *b, int64_t count, double exact)
{
    enum { MEMBERS = 8 };
    assay_context ctx = assay_context_default(1);
    double squares = 0;
    for (uint64_t seed = 0; seed < MEMBERS; seed++) {
        const assay_emulation e = {.precision = *p, .storage = ASSAY_FLOAT64, .multiply = ASSAY_FLOAT64, .seed = seed};
        double sum = NAN;
        const assay_matmul_args args = assay_product_ab(&sum, a, b, 1, 1, count);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &e;
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        squares += (sum - exact) * (sum - exact) / MEMBERS;
    }
    return squares;
}

/* The mean of truncation grows with the length of the sum, and the members' errors with it: they cover it and are not far. (Not
 * where terms lie in an order in which partial sums are far larger than the sum: members take them in any order.) */
TEST(test_truncating_sums_lie_under_members_and_not_far)
{
    enum { TRIALS = 60 };
    static const int64_t blocks[] = {0, 32, 128};
    static double a[LONGEST], b[LONGEST];
    uint64_t seed = 4;
    for (int which = 0; which < 3; which++) {
        const assay_precision p = {.accumulate = 0x1p-13 * ROOT_3RD, .accumulator = {true, blocks[which]}};
        for (int64_t count = 16; count <= LONGEST; count *= 4) {
            for (int kind = 0; kind < KINDS; kind++) {
                double squares = 0, emulated = 0;
                for (int trial = 0; trial < TRIALS; trial++) {
                    double exact = 0;
                    fill(kind, count, &seed, a, b);
                    for (int64_t i = 0; i < count; i++) exact = fma(a[i], b[i], exact);
                    const double error = summed(&p, 13, a, b, count) - exact;
                    squares += error * error;
                    emulated += emulated_squares(&p, a, b, count, exact);
                }
                const double ratio = sqrt(squares / emulated);
                if (!(ratio <= 1 && ratio >= 0.25))
                    fail_msg("block %lld, %lld terms of kind %d: %g", (long long)blocks[which], (long long)count, kind,
                             ratio);
            }
        }
    }
}

/* --- emulated sums --- */

typedef struct product {
    double *exact, *c;
    assay_matmul_args args;
    int64_t size;
} product;

static product product_of(int64_t m, int64_t n, int64_t k, double mean, int transposed, assay_product kind)
{
    const bool ta = (transposed & 1) != 0, tb = (transposed & 2) != 0;
    uint64_t seed = 11;
    product p = {.exact = calloc((size_t)(m * n) + 1, sizeof *p.exact),
                 .c = calloc((size_t)(m * n) + 1, sizeof *p.c),
                 .size = m * n};
    assay_context ctx = assay_context_default(1);
    assert_true(p.exact != NULL && p.c != NULL);
    p.args = (assay_matmul_args){.c = p.exact,
                                 .ldc = n,
                                 .a = filled(&seed, mean, m * k),
                                 .lda = ta ? m : k,
                                 .transpose_a = ta,
                                 .b = filled(&seed, mean, k * n),
                                 .ldb = tb ? k : n,
                                 .transpose_b = tb,
                                 .m = m,
                                 .n = n,
                                 .k = k,
                                 .kind = kind};
    assert_ok(&ctx, assay_matmul(&ctx, &p.args));
    p.args.c = p.c;
    return p;
}

static void product_free(product *p)
{
    free((double *)(uintptr_t)p->args.a);
    free((double *)(uintptr_t)p->args.b);
    free(p->exact);
    free(p->c);
}

static const assay_precision fp8_precision = {.name = "fp8",
                                              .storage = 0x1p-8 * ROOT_3RD,
                                              .accumulate = 0x1p-13 * ROOT_3RD,
                                              .accumulator = {.truncate = true, .block = 128},
                                              .scaled = {ASSAY_FLOAT8_E4M3FN, 128}};

static assay_emulation member(const assay_precision *precision, uint64_t seed)
{
    return (assay_emulation){
        .precision = *precision, .storage = ASSAY_BFLOAT16, .multiply = ASSAY_BFLOAT16, .seed = seed};
}

static void evaluate(product *p, const assay_arithmetic *arithmetic, const assay_emulation *emulation, int threads)
{
    assay_context ctx = assay_context_default(threads);
    ctx.arithmetic = arithmetic;
    ctx.emulation = emulation;
    assay_fill_nan(p->c, p->size);
    assert_ok(&ctx, assay_matmul(&ctx, &p->args));
}

static double mean_square(const product *p)
{
    double squares = 0;
    for (int64_t i = 0; i < p->size; i++) squares += (p->c[i] - p->exact[i]) * (p->c[i] - p->exact[i]);
    return squares / (double)p->size;
}

/* The share of the golden that is lost: minus the slope of error on it. */
static double lost_share(const product *p)
{
    double along = 0, squares = 0;
    for (int64_t i = 0; i < p->size; i++) {
        along += (p->exact[i] - p->c[i]) * p->exact[i];
        squares += p->exact[i] * p->exact[i];
    }
    return along / squares;
}

/* Each member loses a share of its own, up to sqrt(3) times what a sum of one product after the other loses on average. */
TEST(test_emulated_truncation)
{
    enum { MEMBERS = 64 };
    for (int form = 0; form < 8; form++) {
        assay_precision precision = {.accumulate = 0x1p-13 * ROOT_3RD,
                                     .accumulator = {.truncate = true, .block = form & 1 ? 32 : 0}};
        OWNED_BY(product_free)
        product p = product_of(23, 31, form & 2 ? 200 : 64, form & 4 ? 3 : 0, form & 3, ASSAY_PRODUCT_OTHER);
        double least = 1, most = 0;
        const int64_t length = form & 1 ? 32 : p.args.k;
        const double worst = 0x1p-13 / 4 * (double)(length + 1) * sqrt(3);
        for (uint64_t seed = 0; seed < MEMBERS; seed++) {
            const assay_emulation e = {
                .precision = precision, .storage = ASSAY_FLOAT64, .multiply = ASSAY_FLOAT64, .seed = seed};
            evaluate(&p, &assay_arithmetic_emulated, &e, 1);
            least = fmin(least, lost_share(&p));
            most = fmax(most, lost_share(&p));
        }
        const double noise = form & 4 ? 0.01 : 0.15;
        if (!(most < (1 + noise) * worst && most > 0.75 * worst && fabs(least) < (0.2 + noise) * worst))
            fail_msg("form %d: share lost from %g to %g, worst %g", form, least, most, worst);
    }
}

/* --- block-scaled operands --- */

static double deviation_of_members(product *p, const assay_precision *precision)
{
    enum { MEMBERS = 16 };
    double squares = 0;
    for (uint64_t seed = 0; seed < MEMBERS; seed++) {
        const assay_emulation e = member(precision, seed);
        evaluate(p, &assay_arithmetic_emulated, &e, 1);
        squares += mean_square(p) / MEMBERS;
    }
    return sqrt(squares);
}

/* An independent kernel errs by some tenths of the members' spread, whatever its scales and accumulators. By less where
 * terms are of one sign: truncation is most of that spread, and sums of numbers of 4 bits often have no bits to lose.
 */
TEST(test_scaled_products_against_a_kernel)
{
    static const int64_t depths[] = {3, 61, 128, 300, 640};
    for (int d = 0; d < 5; d++) {
        for (int form = 0; form < 16; form++) {
            const assay_product kind = form & 4 ? ASSAY_PRODUCT_LINEAR : ASSAY_PRODUCT_LINEAR_GRADIENT;
            OWNED_BY(product_free) product p = product_of(37, 41, depths[d], form & 8 ? 2 : 0, form & 3, kind);
            const double deviation = deviation_of_members(&p, &fp8_precision);
            for (int way = 0; way < 4; way++) {
                const fp8_kernel kernel = {
                    .types.storage = ASSAY_BFLOAT16, .power_of_two = (way & 1) != 0, .bits = way & 2 ? 13 : 0};
                evaluate(&p, &fp8_arithmetic, &kernel.types, 1);
                const double ratio = sqrt(mean_square(&p)) / deviation;
                if (!(ratio > (form & 8 ? 0.2 : 0.4) && ratio < 1.05))
                    fail_msg("depth %lld, form %d, kernel %d: %g", (long long)depths[d], form, way, ratio);
            }
        }
    }
}

/* The least of all elements' relative errors over many members. */
static double least_error(product *p, bool staged)
{
    enum { MEMBERS = 32 };
    double *squares = calloc((size_t)p->size, sizeof *squares), least = INFINITY;
    assert_non_null(squares);
    for (uint64_t seed = 0; seed < MEMBERS; seed++) {
        assay_emulation e = member(&fp8_precision, seed);
        e.staged = staged;
        e.second_form = seed % 2 != 0;
        evaluate(p, &assay_arithmetic_emulated, &e, 1);
        for (int64_t i = 0; i < p->size; i++) squares[i] += (p->c[i] / p->exact[i] - 1) * (p->c[i] / p->exact[i] - 1);
    }
    for (int64_t i = 0; i < p->size; i++) least = fmin(least, sqrt(squares[i] / MEMBERS));
    free(squares);
    return least;
}

/* A number alone in its tile lies on its own grid, but not on that of a kernel that weighed it before: stage by stage, no
 * element is without the error of that. It is 1/28 to 1/16 of a number at most, two of them. */
TEST(test_stage_by_stage_grids_lie_anywhere)
{
    OWNED_BY(product_free) product p = product_of(29, 31, 1, 0, 0, ASSAY_PRODUCT_LINEAR_GRADIENT);
    assert_true(least_error(&p, false) < 0.01);
    const double least = least_error(&p, true);
    assert_true(least > 0.02 && least < 0.06);
}

/* Tiles of a that shrink and blocks of b that grow by 2^18 contribute alike: with a scale each, errors are as ever,
 * with one for all nothing is left. */
TEST(test_each_block_has_its_scale)
{
    for (int form = 0; form < 4; form++) {
        OWNED_BY(product_free) product p = product_of(19, 23, 256, 0, form, ASSAY_PRODUCT_LINEAR);
        double *a = (double *)(uintptr_t)p.args.a, *b = (double *)(uintptr_t)p.args.b;
        const double usual = deviation_of_members(&p, &fp8_precision);
        for (int64_t i = 0; i < 19 * 128; i++) {
            const int64_t outer = i / 128, inner = 128 + i % 128;
            a[p.args.transpose_a ? inner * 19 + outer : outer * 256 + inner] *= 0x1p-18;
        }
        for (int64_t i = 0; i < 23 * 128; i++) {
            const int64_t outer = i / 128, inner = 128 + i % 128;
            b[p.args.transpose_b ? outer * 256 + inner : inner * 23 + outer] *= 0x1p18;
        }
        const double scaled = deviation_of_members(&p, &fp8_precision);
        assert_true(scaled > 0.8 * usual && scaled < 1.25 * usual);
        for (int fault = 0; fault < 2; fault++) {
            const fp8_kernel kernel = {.types.storage = ASSAY_BFLOAT16,
                                       .fault = fault ? FP8_TENSOR_SCALE : FP8_CORRECT};
            evaluate(&p, &fp8_arithmetic, &kernel.types, 1);
            const double ratio = sqrt(mean_square(&p)) / scaled;
            assert_true(fault ? ratio > 8 : ratio < 1.05);
        }
    }
}

/* Numbers that every block can hold, small whole ones, come through: what is left is the accumulator. */
TEST(test_what_fits_is_exact)
{
    assay_precision exact = fp8_precision;
    exact.accumulate = 0;
    exact.accumulator = (assay_accumulator){0};
    for (int kind = ASSAY_PRODUCT_LINEAR; kind <= ASSAY_PRODUCT_LINEAR_GRADIENT; kind++) {
        OWNED_BY(product_free) product p = product_of(7, 9, 131, 0, 1, (assay_product)kind);
        double *a = (double *)(uintptr_t)p.args.a, *b = (double *)(uintptr_t)p.args.b;
        assay_context ctx = assay_context_default(1);
        for (int64_t i = 0; i < 7 * 131; i++) a[i] = (double)(i % 3 - 1) * 448;
        for (int64_t i = 0; i < 9 * 131; i++) b[i] = 7 * (double)(i % 2) * 64; /* 448 */
        for (int64_t i = 0; i < 7; i++) a[i + 3 * 7] = 0;
        p.args.c = p.exact;
        assert_ok(&ctx, assay_matmul(&ctx, &p.args));
        p.args.c = p.c;
        for (uint64_t seed = 0; seed < 4; seed++) {
            const assay_emulation e = member(&exact, seed);
            evaluate(&p, &assay_arithmetic_emulated, &e, 1);
            assert_same_bits(p.c, p.exact, p.size);
        }
    }
}

/* Blocks of zeros have a scale too; NaN and infinity stay with the row that has them. */
TEST(test_zeros_and_what_is_no_number)
{
    OWNED_BY(product_free) product p = product_of(3, 2, 130, 0, 0, ASSAY_PRODUCT_LINEAR);
    double *a = (double *)(uintptr_t)p.args.a;
    for (int64_t i = 0; i < 130; i++) a[i] = 0;
    a[130 + 7] = NAN;
    a[2 * 130 + 129] = INFINITY;
    const assay_emulation e = member(&fp8_precision, 3);
    evaluate(&p, &assay_arithmetic_emulated, &e, 1);
    assert_true(p.c[0] == 0 && p.c[1] == 0 && isnan(p.c[2]) && isnan(p.c[3]) && !isfinite(p.c[4]));
}

/* Other products than those of linear layers are in the profile's types, with float32 sums. */
TEST_WITH_CONTEXT(test_other_products_are_not_scaled)
{
    const assay_precision bf16 = {.name = "bf16", .storage = 0x1p-8 * ROOT_3RD, .accumulate = ASSAY_FLOAT32_RMS};
    OWNED_BY(product_free) product p = product_of(17, 19, 256, 0, 2, ASSAY_PRODUCT_OTHER);
    const assay_emulation scaled = member(&fp8_precision, 9), plain = member(&bf16, 9);
    double *expected = calloc((size_t)p.size, sizeof *expected), x = 1.0 / 3, y = 1.0 / 3;
    assert_non_null(expected);
    evaluate(&p, &assay_arithmetic_emulated, &plain, 1);
    memcpy(expected, p.c, (size_t)p.size * sizeof *expected);
    evaluate(&p, &assay_arithmetic_emulated, &scaled, 1);
    assert_same_bits(p.c, expected, p.size);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &scaled;
    assay_round(&ctx, ASSAY_ROUND_ACCUMULATE, 1, &x);
    ctx.emulation = &plain;
    assay_round(&ctx, ASSAY_ROUND_ACCUMULATE, 1, &y);
    assert_true(x == y && x != 1.0 / 3);
    free(expected);
}

/* A sum that goes on from what is there, in pieces, errs as much as one in blocks. */
TEST(test_sums_in_pieces)
{
    OWNED_BY(product_free) product p = product_of(29, 31, 384, 0, 0, ASSAY_PRODUCT_LINEAR);
    const double deviation = deviation_of_members(&p, &fp8_precision);
    double squares = 0;
    for (uint64_t seed = 0; seed < 16; seed++) {
        const assay_emulation e = member(&fp8_precision, seed);
        product piece = p;
        piece.args.k = 192;
        evaluate(&piece, &assay_arithmetic_emulated, &e, 1);
        piece.args.a += 192;
        piece.args.b += 192 * 31;
        piece.args.accumulate = true;
        assay_context ctx = assay_context_default(1);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &e;
        assert_ok(&ctx, assay_matmul(&ctx, &piece.args));
        squares += mean_square(&p) / 16;
    }
    assert_true(sqrt(squares) > 0.9 * deviation && sqrt(squares) < 1.1 * deviation);
}

TEST(test_no_steps_and_no_rows)
{
    static const int64_t sizes[][3] = {{2, 3, 0}, {0, 3, 5}, {2, 0, 5}, {1, 1, 1}};
    for (int i = 0; i < 4; i++) {
        OWNED_BY(product_free)
        product p = product_of(sizes[i][0], sizes[i][1], sizes[i][2], 0, 0, ASSAY_PRODUCT_LINEAR);
        const assay_emulation e = member(&fp8_precision, 1);
        evaluate(&p, &assay_arithmetic_emulated, &e, 2);
        for (int64_t j = 0; j < p.size; j++) assert_true(sizes[i][2] == 0 ? p.c[j] == 0 : isfinite(p.c[j]));
    }
}

TEST_WITH_CONTEXT(test_threads_and_instruction_sets)
{
    OWNED_BY(product_free) product p = product_of(131, 137, 301, 1, 3, ASSAY_PRODUCT_LINEAR);
    const assay_emulation e = member(&fp8_precision, 21), other = member(&fp8_precision, 22);
    OWNED double *expected = calloc((size_t)p.size, sizeof *expected);
    assert_non_null(expected);
    evaluate(&p, &assay_arithmetic_emulated, &e, 1);
    memcpy(expected, p.c, (size_t)p.size * sizeof *expected);
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &e;
    for (int form = 0; test_next_context(&form, &ctx);) {
        assay_fill_nan(p.c, p.size);
        assert_ok(&ctx, assay_matmul(&ctx, &p.args));
        assert_same_bits(p.c, expected, p.size);
    }
    evaluate(&p, &assay_arithmetic_emulated, &other, 1);
    assert_true(memcmp(p.c, expected, (size_t)p.size * sizeof *expected) != 0);
}
