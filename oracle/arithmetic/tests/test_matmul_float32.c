/* The product with chains in float32 against one fmaf() after another, bit for bit; and who is told of what. */
#include "oracle/arithmetic/matmul_float32.h"

#include <inttypes.h>

#include "oracle/arithmetic/tests/matrices.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

typedef struct product {
    matrices x;
    double *before; /* what c is at first */
} product;

/* No operand is a float32. */
static product make(int64_t m, int64_t n, int64_t k, int form, int64_t padding)
{
    product p = {.x = matrices_make(m, n, k, form, 0, padding)};
    p.before = malloc((size_t)p.x.c_size * sizeof *p.before);
    assert_non_null(p.before);
    memcpy(p.before, p.x.c, (size_t)p.x.c_size * sizeof *p.before);
    return p;
}

static void product_free(product *p)
{
    matrices_free(&p->x);
    free(p->before);
}

/* The definition. */
static void chains_from(const product *p, int64_t start)
{
    const assay_matmul_args *x = &p->x.args;
    for (int64_t i = 0; i < x->m; i++) {
        for (int64_t j = 0; j < x->n; j++) {
            float sum = x->accumulate ? (float)p->before[i * x->ldc + j] : 0;
            for (int64_t q = 0; q < x->k; q++) {
                const int64_t at = (q + start) % x->k;
                sum = fmaf((float)matrices_a(x, i, at), (float)matrices_b(x, at, j), sum);
            }
            p->x.expected[i * x->ldc + j] = (double)sum;
        }
    }
}

/* How often each element was told of; 1000 more where what is said of it is wrong. */
typedef struct tally {
    const product *product;
    int64_t start;
    int *told;
} tally;

static bool is_root(float found, const double *x, int64_t step, int64_t start, int64_t k)
{
    float sum = 0;
    for (int64_t q = 0; q < k; q++) {
        const float value = (float)x[(q + start) % k * step];
        sum = fmaf(value, value, sum);
    }
    return found == sqrtf(sum);
}

static void count_element(const tally *t, int64_t i, int64_t j, float of_row, float of_column)
{
    const assay_matmul_args *x = &t->product->x.args;
    int *told = &t->told[i * x->n + j];
    const double *a = x->a + (x->transpose_a ? i : i * x->lda), *b = x->b + (x->transpose_b ? j * x->ldb : j);
    *told += 1;
    if (x->c[i * x->ldc + j] != t->product->x.expected[i * x->ldc + j]) *told += 1000;
    if (!is_root(of_row, a, x->transpose_a ? x->lda : 1, t->start, x->k)) *told += 1000;
    if (!is_root(of_column, b, x->transpose_b ? 1 : x->ldb, t->start, x->k)) *told += 1000;
}

static void count_elements(const void *self, const assay_chains_ended *where)
{
    for (int64_t i = 0; i < where->rows; i++) {
        for (int64_t j = 0; j < where->columns; j++) {
            count_element(self, where->row + i, where->column + j, where->of_rows[i], where->of_columns[j]);
        }
    }
}

static const assay_isa isas[] = {ASSAY_ISA_SCALAR, ASSAY_ISA_AVX2, ASSAY_ISA_AVX512};

static void check_form(assay_context *ctx, const product *p, int64_t start)
{
    const int64_t elements = p->x.args.m * p->x.args.n;
    tally t = {.product = p, .start = start, .told = calloc((size_t)elements + 1, sizeof *t.told)};
    assert_non_null(t.told);
    for (int64_t i = 0; i < p->x.c_size; i++) p->x.c[i] = p->before[i];
    const assay_chains chains = {.start = start, .ended = count_elements, .self = &t};
    assert_ok(ctx, assay_matmul_float32(ctx, &p->x.args, &chains));
    for (int64_t i = 0; i < p->x.args.m; i++)
        assert_same_bits(p->x.c + i * p->x.args.ldc, p->x.expected + i * p->x.args.ldc, p->x.args.n);
    for (int64_t i = 0; i < elements; i++) assert_int_equal(t.told[i], 1);
    free(t.told);
}

static void check(int64_t m, int64_t n, int64_t k, int64_t start, int64_t padding)
{
    for (int form = 0; form < 8; form++) {
        OWNED_BY(product_free) product p = make(m, n, k, form, padding);
        chains_from(&p, start);
        assay_context ctx = assay_context_default(1);
        for (int i = 0; test_next_context(&i, &ctx);) check_form(&ctx, &p, start);
    }
}

TEST(test_small_shapes)
{
    static const int64_t rows[] = {1, 3, 4, 7, 8, 9}, columns[] = {1, 7, 23, 24, 25, 47, 48, 49},
                         steps[] = {1, 2, 8, 17};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (size_t j = 0; j < sizeof columns / sizeof *columns; j++) {
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                check(rows[i], columns[j], steps[s], (int64_t)(i + j) % steps[s], (int64_t)(i + s) % 3);
            }
        }
    }
}

/* Of rows and steps, with work for threads; chains that begin within a block, at its edge and at the last step. */
TEST(test_shapes_beyond_a_block)
{
    check(521, 51, 29, 0, 1);
    check(67, 101, 801, 400, 0);
    check(19, 97, 797, 796, 2);
    check(19, 97, 768, 384, 0);
    check(9, 50, 2111, 8, 1);
}

TEST(test_nothing_to_do)
{
    assay_context ctx = assay_context_default(2);
    const assay_chains chains = {.start = 0};
    double c[6], x[4] = {1, 2, 3, 4};
    assay_fill_nan(c, 6);
    const assay_matmul_args no_rows = {.c = c, .ldc = 3, .a = x, .lda = 2, .b = x, .ldb = 3, .n = 3, .k = 2};
    const assay_matmul_args no_columns = {.c = c, .a = x, .lda = 2, .b = x, .m = 2, .k = 2};
    assert_ok(&ctx, assay_matmul_float32(&ctx, &no_rows, &chains));
    assert_ok(&ctx, assay_matmul_float32(&ctx, &no_columns, &chains));
    assert_all_nan(c, 6);
}

/* Too large for float32, and 0 times infinity. */
TEST(test_what_is_not_finite)
{
    for (int i = 0; i < 3; i++) {
        assay_context ctx = assay_context_default(1);
        const assay_chains chains = {.start = 1};
        const double a[] = {1e300, 1, 0, 1, 1e30, 1}, b[] = {1, 1e30, INFINITY, 0, 1, 1};
        double c[3];
        if (!assay_isa_supported(isas[i])) continue;
        ctx.isa = isas[i];
        for (int form = 0; form < 3; form++) {
            const assay_matmul_args args = assay_product_ab(c + form, a + 2 * form, b + 2 * form, 1, 1, 2);
            assert_ok(&ctx, assay_matmul_float32(&ctx, &args, &chains));
        }
        assert_true(c[0] == INFINITY && isnan(c[1]) && c[2] == (double)1e30f);
    }
}
