#include "oracle/arithmetic/tests/matrices.h"
#include "tests/support/assay_test.h"

static double *normals(uint64_t seed, double mean, int64_t rows, int64_t columns, int64_t ld)
{
    double *x = malloc((size_t)(rows * ld) * sizeof *x + 1);
    assert_non_null(x);
    for (int64_t i = 0; i < rows * ld; i++) x[i] = i % ld < columns ? mean + test_normal(&seed) : NAN;
    return x;
}

matrices matrices_make(int64_t m, int64_t n, int64_t k, int form, double mean, int64_t padding)
{
    const bool ta = (form & A_TRANSPOSED) != 0, tb = (form & B_TRANSPOSED) != 0;
    const int64_t lda = (ta ? m : k) + padding, ldb = (tb ? k : n) + padding, ldc = n + padding;
    matrices x = {.a_size = (ta ? k : m) * lda, .b_size = (tb ? n : k) * ldb, .c_size = m * ldc};
    x.a = normals(1, mean, ta ? k : m, lda - padding, lda);
    x.b = normals(2, mean, tb ? n : k, ldb - padding, ldb);
    x.c = normals(3, 0, m, n, ldc);
    x.expected = normals(3, 0, m, n, ldc);
    x.args = assay_product_ab(x.c, x.a, x.b, m, n, k);
    x.args.lda = lda, x.args.ldb = ldb, x.args.ldc = ldc;
    x.args.transpose_a = ta, x.args.transpose_b = tb;
    x.args.accumulate = (form & ACCUMULATED) != 0;
    if (x.args.accumulate) return x;
    assay_fill_nan(x.c, x.c_size);
    assay_fill_nan(x.expected, x.c_size);
    return x;
}

void matrices_free(matrices *x)
{
    free(x->a);
    free(x->b);
    free(x->c);
    free(x->expected);
}

double matrices_a(const assay_matmul_args *x, int64_t i, int64_t p)
{
    return x->transpose_a ? x->a[p * x->lda + i] : x->a[i * x->lda + p];
}

double matrices_b(const assay_matmul_args *x, int64_t p, int64_t j)
{
    return x->transpose_b ? x->b[j * x->ldb + p] : x->b[p * x->ldb + j];
}
