/* The reference arithmetic against one fma() after another, bit for bit; the blas arithmetic against the reference. */

#include <float.h>
#include <inttypes.h>

#include "oracle/arithmetic/tests/matrices.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

typedef struct problem {
    int64_t m, n, k;
    int64_t padding; /* of every leading dimension */
} problem;

static matrices make(const problem *p, int transposed)
{
    return matrices_make(p->m, p->n, p->k, transposed, 0, p->padding);
}

/* The definition; on top of what is in C where the product is accumulated. */
static void chains(const assay_matmul_args *x, double *c)
{
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            double sum = x->accumulate ? c[i * x->ldc + j] : 0.0;
            for (int64_t p = 0; p < x->k; p++) sum = fma(matrices_a(x, i, p), matrices_b(x, p, j), sum);
            c[i * x->ldc + j] = sum;
        }
    }
}

/* NaN for NaN (which NaN is not promised), else the same bits. */
static void assert_same_numbers(const matrices *x, const char *what)
{
    for (int64_t i = 0; i < x->c_size; i++) {
        if (isnan(x->c[i]) && isnan(x->expected[i])) continue;
        if (x->c[i] == x->expected[i] && signbit(x->c[i]) == signbit(x->expected[i])) continue;
        print_error("%s, m %" PRId64 " n %" PRId64 " k %" PRId64 " transposed %d %d: element %" PRId64
                    " is %a, expected %a\n",
                    what, x->args.m, x->args.n, x->args.k, x->args.transpose_a, x->args.transpose_b, i, x->c[i],
                    x->expected[i]);
        fail();
    }
}

static const assay_isa isas[] = {ASSAY_ISA_SCALAR, ASSAY_ISA_AVX2, ASSAY_ISA_AVX512};

/* Every instruction set of this processor and every number of threads against x->expected. */
static void check_all_forms(matrices *x)
{
    assay_context ctx = assay_context_default(1);
    for (int form = 0; test_next_context(&form, &ctx);) {
        assay_fill_nan(x->c, x->c_size);
        assert_ok(&ctx, assay_matmul(&ctx, &x->args));
        assert_same_numbers(x, assay_isa_name(ctx.isa));
    }
}

static void check(const problem *p)
{
    for (int transposed = 0; transposed < 4; transposed++) {
        OWNED_BY(matrices_free) matrices x = make(p, transposed);
        chains(&x.args, x.expected);
        check_all_forms(&x);
    }
}

TEST(test_small_shapes)
{
    static const int64_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 17}, columns[] = {1, 3, 4, 8, 11, 12, 13, 23, 24, 25, 49},
                         steps[] = {1, 2, 7, 8, 9, 31};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++) {
            for (size_t p = 0; p < sizeof steps / sizeof *steps; p++) {
                check(&(problem){.m = rows[i], .n = columns[j], .k = steps[p], .padding = (int64_t)(i + j + p) % 3});
            }
        }
    }
}

/* k and m beyond one block, enough work for threads, and regions that the grid leaves empty (7 threads on one tile). */
TEST(test_shapes_beyond_a_block)
{
    static const problem problems[] = {
        {.m = 9, .n = 26, .k = 385, .padding = 1},
        {.m = 67, .n = 73, .k = 131, .padding = 5},
        {.m = 521, .n = 25, .k = 29},
        {.m = 1031, .n = 7, .k = 41, .padding = 1},
        {.m = 3, .n = 2053, .k = 53, .padding = 3},
        {.m = 8, .n = 24, .k = 2111},
        {.m = 131, .n = 521, .k = 5, .padding = 1},
        {.m = 19, .n = 2101, .k = 8},
        {.m = 1, .n = 1, .k = 5003},
        {.m = 17, .n = 49, .k = 797, .padding = 2},
        {.m = 523, .n = 29, .k = 401, .padding = 1},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) check(&problems[i]);
}

/* Steps [first, first + k) of a product, added to what is in C. */
static assay_matmul_args piece(const assay_matmul_args *whole, int64_t first, int64_t k)
{
    assay_matmul_args args = *whole;
    args.a += whole->transpose_a ? first * whole->lda : first;
    args.b += whole->transpose_b ? first : first * whole->ldb;
    args.k = k;
    args.accumulate = true;
    return args;
}

/* The product over [0, cut), then, accumulated, [cut, 2 cut) and the rest: the bits of the whole. */
static void check_pieces(const problem *p, int transposed, int64_t cut)
{
    OWNED_BY(matrices_free) matrices x = make(p, transposed);
    chains(&x.args, x.expected);
    assay_context ctx = assay_context_default(1);
    for (int form = 0; test_next_context(&form, &ctx);) {
        assay_fill_nan(x.c, x.c_size);
        assay_matmul_args args = piece(&x.args, 0, cut);
        args.accumulate = false;
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        args = piece(&x.args, cut, cut);
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        args = piece(&x.args, 2 * cut, p->k - 2 * cut);
        assert_ok(&ctx, assay_matmul(&ctx, &args));
        assert_same_numbers(&x, assay_isa_name(ctx.isa));
    }
}

static void check_pieces_transposed(problem p, int64_t cut)
{
    for (int transposed = 0; transposed < 4; transposed++) check_pieces(&p, transposed, cut);
}

TEST(test_pieces_over_k_give_the_bits_of_one_chain)
{
    static const int64_t rows[] = {1, 3, 5, 8, 9, 17}, columns[] = {1, 4, 13, 24, 49}, steps[] = {2, 7, 19, 31};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++) {
            for (size_t q = 0; q < sizeof steps / sizeof *steps; q++) {
                problem p = {.m = rows[i], .n = columns[j], .k = steps[q], .padding = (int64_t)(i + j + q) % 3};
                check_pieces_transposed(p, steps[q] / 3);
            }
        }
    }
    /* Beyond a block of k, of columns of a stream, and with enough work for threads. */
    check_pieces_transposed((problem){.m = 67, .n = 73, .k = 1201, .padding = 5}, 401);
    check_pieces_transposed((problem){.m = 3, .n = 2053, .k = 151, .padding = 3}, 50);
    check_pieces_transposed((problem){.m = 131, .n = 2101, .k = 20}, 7);
}

/* The value that is there is the start of the chain, an infinity too; and what lies between the rows of C stays. */
TEST(test_accumulation_starts_from_c)
{
    static const int64_t rows[] = {2, 19};
    for (int form = 0; form < 12; form++) {
        assay_context ctx = assay_context_default(2);
        problem p = {.m = rows[form % 2], .n = 27, .k = 11, .padding = 2};
        OWNED_BY(matrices_free) matrices x = make(&p, form / 2 % 2 == 1 ? B_TRANSPOSED : 0);
        if (!assay_isa_supported(isas[form / 4]))
            ctx.isa = ASSAY_ISA_SCALAR;
        else
            ctx.isa = isas[form / 4];
        x.args.accumulate = true;
        for (int64_t i = 0; i < p.m; i++) {
            for (int64_t j = 0; j < p.n; j++) {
                double sum = i == 1 ? INFINITY : (double)(i - j) / 3;
                x.c[i * x.args.ldc + j] = sum;
                for (int64_t q = 0; q < p.k; q++) sum = fma(matrices_a(&x.args, i, q), matrices_b(&x.args, q, j), sum);
                x.expected[i * x.args.ldc + j] = sum;
            }
        }
        assert_ok(&ctx, assay_matmul(&ctx, &x.args));
        assert_same_numbers(&x, assay_isa_name(ctx.isa));
    }
}

TEST(test_accumulating_nothing_leaves_c)
{
    static const double before[6] = {1, -0.0, 3, INFINITY, 5, 6};
    const assay_arithmetic *const arithmetics[] = {&assay_arithmetic_reference, &assay_arithmetic_blas};
    for (int form = 0; form < 6; form++) {
        assay_context ctx = assay_context_default(2);
        double c[6];
        if (!assay_isa_supported(isas[form / 2])) continue;
        ctx.arithmetic = arithmetics[form % 2];
        ctx.isa = isas[form / 2];
        memcpy(c, before, sizeof c);
        assert_ok(&ctx, assay_matmul(&ctx, &(assay_matmul_args){.c = c, .ldc = 3, .m = 2, .n = 3, .accumulate = true}));
        assert_same_bits(c, before, 6);
    }
}

TEST(test_empty)
{
    assay_context ctx = assay_context_default(2);
    const assay_arithmetic *const arithmetics[] = {&assay_arithmetic_reference, &assay_arithmetic_blas};
    for (int i = 0; i < 2; i++) {
        double c[6];
        ctx.arithmetic = arithmetics[i];
        for (int isa = 0; isa < 3; isa++) {
            static const double zeros[6] = {0};
            if (!assay_isa_supported(isas[isa])) continue;
            ctx.isa = isas[isa];
            assay_fill_nan(c, 6);
            assert_ok(&ctx, assay_matmul(&ctx, &(assay_matmul_args){.c = c, .ldc = 3, .m = 2, .n = 3}));
            assert_same_bits(c, zeros, 6);
            assay_fill_nan(c, 6);
            assert_ok(&ctx, assay_matmul(&ctx, &(assay_matmul_args){.c = c, .ldc = 3, .n = 3, .k = 4, .ldb = 3}));
            assert_ok(&ctx, assay_matmul(&ctx, &(assay_matmul_args){.c = c, .m = 2, .k = 4, .lda = 4}));
            assert_all_nan(c, 6);
        }
    }
}

static void check_special(double a_value, double b_value)
{
    const problem p = {.m = 19, .n = 50, .k = 270};
    for (int transposed = 0; transposed < 4; transposed++) {
        OWNED_BY(matrices_free) matrices x = make(&p, transposed);
        x.a[x.args.transpose_a ? 265 * x.args.lda + 17 : 17 * x.args.lda + 265] = a_value;
        x.b[x.args.transpose_b ? 48 * x.args.ldb + 5 : 5 * x.args.ldb + 48] = b_value;
        chains(&x.args, x.expected);
        check_all_forms(&x);
        for (int64_t i = 0; i < p.m; i++) {
            for (int64_t j = 0; j < p.n; j++) {
                bool from_a = i == 17 && !isfinite(a_value), from_b = j == 48 && !isfinite(b_value);
                assert_int_equal(!isfinite(x.c[i * x.args.ldc + j]), from_a || from_b);
            }
        }
    }
}

TEST(test_nan_and_infinity_reach_their_row_or_column_only)
{
    check_special(NAN, 0.5);
    check_special(0.5, NAN);
    check_special(INFINITY, -INFINITY);
    check_special(NAN, INFINITY);
}

/* 0 * infinity is NaN: no zero may be skipped. */
TEST(test_zero_times_infinity)
{
    for (int i = 0; i < 2; i++) {
        assay_context ctx = assay_context_default(1);
        double a[18] = {0}, b[2 * 30], c[9 * 30];
        if (i == 1) ctx.arithmetic = &assay_arithmetic_blas;
        for (int j = 0; j < 60; j++) b[j] = INFINITY;
        for (int64_t m = 1; m <= 9; m += 8) {
            for (int j = 0; j < 270; j++) c[j] = 1;
            const assay_matmul_args args = assay_product_ab(c, a, b, m, 30, 2);
            assert_ok(&ctx, assay_matmul(&ctx, &args));
            assert_all_nan(c, m * 30);
        }
    }
}

/* Sums of k products and what C held, in whatever order and with or without fused steps, lie within gamma (|c| + sum
 * |a||b|) of the exact value, gamma = n u / (1 - n u) for the n = k + 1 roundings of a term and u = eps / 2 (Higham,
 * Accuracy and Stability, 3.1). Two of them lie within twice that of each other, however the sum cancels. */
static bool blas_agrees(const matrices *x, const double *start)
{
    const double n = (double)x->args.k + 1, gamma = n * DBL_EPSILON / 2 / (1 - n * DBL_EPSILON / 2);
    bool agrees = true;
    for (int64_t i = 0; i < x->args.m; i++) {
        for (int64_t j = 0; j < x->args.n; j++) {
            const int64_t at = i * x->args.ldc + j;
            double size = start != NULL ? fabs(start[at]) : 0;
            for (int64_t q = 0; q < x->args.k; q++)
                size += fabs(matrices_a(&x->args, i, q) * matrices_b(&x->args, q, j));
            agrees &= fabs(x->c[at] - x->expected[at]) <= 2 * gamma * size;
        }
    }
    return agrees;
}

TEST(test_blas_agrees_with_the_reference)
{
    for (int transposed = 0; transposed < 4; transposed++) {
        const problem p = {.m = 37, .n = 61, .k = 301, .padding = 2};
        OWNED_BY(matrices_free) matrices x = make(&p, transposed);
        OWNED double *start = malloc((size_t)x.c_size * sizeof *start);
        assert_non_null(start);
        assay_context ctx = assay_context_default(2);
        ctx.arithmetic = &assay_arithmetic_blas;
        chains(&x.args, x.expected);
        assert_ok(&ctx, assay_matmul(&ctx, &x.args));
        assert_true(blas_agrees(&x, NULL));
        /* Once more on top; and what a product that is not added, or added twice, would be is told from it. */
        x.args.accumulate = true;
        memcpy(start, x.c, (size_t)x.c_size * sizeof *start);
        memcpy(x.expected, start, (size_t)x.c_size * sizeof *start);
        chains(&x.args, x.expected);
        assert_false(blas_agrees(&x, start));
        assert_ok(&ctx, assay_matmul(&ctx, &x.args));
        assert_true(blas_agrees(&x, start));
        assert_ok(&ctx, assay_matmul(&ctx, &x.args));
        assert_false(blas_agrees(&x, start));
    }
}

TEST_WITH_CONTEXT(test_blas_refuses_what_its_integers_cannot_hold)
{
    double x[1] = {3};
    ctx.arithmetic = &assay_arithmetic_blas;
    assay_matmul_args args = assay_product_atb(x, x, x, 1, 1, 2);
    args.lda = INT64_C(1) << 40;
    assert_bad_input(&ctx, assay_matmul(&ctx, &args), "1099511627776");
    assert_true(x[0] == 3);
}

void *__real_dlopen(const char *name, int flags);
void *__wrap_dlopen(const char *name, int flags);
static const char *other_library; /* opened instead, if there is one */

void *__wrap_dlopen(const char *name, int flags)
{
    return __real_dlopen(other_library != NULL ? other_library : name, flags);
}

TEST_WITH_CONTEXT(test_blas_says_that_its_library_is_missing)
{
    static const struct {
        const char *library, *said;
    } rows[] = {{"libopenblas-that-is-not-there.so.0", "libopenblas-that-is-not-there.so.0: cannot open"},
                {"libm.so.6", "undefined symbol"}};
    double c = 3, a = 1;
    const assay_matmul_args args = assay_product_ab(&c, &a, &a, 1, 1, 1);
    ctx.arithmetic = &assay_arithmetic_blas;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        other_library = rows[i].library;
        const assay_status loaded = ctx.arithmetic->load(&ctx), multiplied = assay_matmul(&ctx, &args);
        other_library = NULL;
        assert_int_equal(loaded, ASSAY_BAD_INPUT);
        assert_bad_input(&ctx, multiplied, rows[i].said);
        assert_true(c == 3);
    }
    assert_ok(&ctx, ctx.arithmetic->load(&ctx));
}

TEST(test_names)
{
    assay_isa isa = ASSAY_ISA_SCALAR;
    assert_ptr_equal(assay_arithmetic_by_name("reference"), &assay_arithmetic_reference);
    assert_ptr_equal(assay_arithmetic_by_name("blas"), &assay_arithmetic_blas);
    assert_null(assay_arithmetic_by_name("blast"));
    for (int i = 0; i < 3; i++) {
        assert_true(assay_isa_from_name(assay_isa_name(isas[i]), &isa));
        assert_int_equal(isa, isas[i]);
    }
    assert_false(assay_isa_from_name("sse", &isa));
    assert_int_equal(isa, ASSAY_ISA_AVX512);
    assert_true(assay_isa_supported(assay_isa_best()));
    assert_true(assay_isa_supported(ASSAY_ISA_SCALAR));
    assert_int_equal(assay_context_default(0).threads, 1);
    assert_int_equal(assay_context_default(3).threads, 3);
    assert_ptr_equal(assay_context_default(3).arithmetic, &assay_arithmetic_reference);
}

/* What tests/support makes of ASSAY_ISA: ci/test relies on it. */
TEST(test_a_lesser_processor_can_be_pretended)
{
    const char *set = getenv("ASSAY_ISA");
    OWNED char *before = set != NULL ? strdup(set) : NULL;
    assert_int_equal(setenv("ASSAY_ISA", "scalar", 1), 0);
    assert_int_equal(assay_isa_best(), ASSAY_ISA_SCALAR);
    assert_int_equal(assay_context_default(1).isa, ASSAY_ISA_SCALAR);
    assert_true(assay_isa_supported(ASSAY_ISA_SCALAR));
    assert_false(assay_isa_supported(ASSAY_ISA_AVX2) || assay_isa_supported(ASSAY_ISA_AVX512));
    assert_int_equal(setenv("ASSAY_ISA", "avx2", 1), 0);
    assert_false(assay_isa_supported(ASSAY_ISA_AVX512));
    assert_int_equal(before != NULL ? setenv("ASSAY_ISA", before, 1) : unsetenv("ASSAY_ISA"), 0);
}
