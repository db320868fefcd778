#include "oracle/ops/gmm.h"

#include "oracle/ops/tests/ops_test.h"

typedef struct problem {
    assay_gmm_dims dims;
    const int32_t *sizes;
    int64_t rows; /* in groups */
    double *lhs, *rhs, *dy, *y, *dlhs, *drhs;
} problem;

/* What lies beyond the groups is NaN. */
static void problem_make(problem *p, const assay_gmm_dims *dims, const int32_t *sizes, assay_dtype grid)
{
    uint64_t seed = 6;
    *p = (problem){.dims = *dims, .sizes = sizes};
    for (int64_t g = 0; g < dims->groups; g++) p->rows += sizes[g];
    p->lhs = test_normals(&seed, 1, grid, dims->m * dims->k);
    p->rhs = test_normals(&seed, 1, grid, dims->groups * dims->k * dims->n);
    p->dy = test_normals(&seed, 1, grid, dims->m * dims->n);
    p->y = test_nans(dims->m * dims->n);
    p->dlhs = test_nans(dims->m * dims->k);
    p->drhs = test_nans(dims->groups * dims->k * dims->n);
    assay_fill_nan(p->lhs + p->rows * dims->k, (dims->m - p->rows) * dims->k);
    assay_fill_nan(p->dy + p->rows * dims->n, (dims->m - p->rows) * dims->n);
}

static void problem_run(assay_context *ctx, problem *p)
{
    assert_ok(ctx, assay_gmm_forward(ctx, p->y, p->lhs, p->rhs, p->sizes, &p->dims));
    assert_ok(ctx, assay_gmm_backward(ctx, p->dlhs, p->drhs, p->dy, p->lhs, p->rhs, p->sizes, &p->dims));
}

static void problem_free(problem *p)
{
    double *const all[] = {p->lhs, p->rhs, p->dy, p->y, p->dlhs, p->drhs};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Row by row, by the formula: the sums are the chains that the library promises. */
static void formula(const problem *p, double *y, double *dlhs, double *drhs)
{
    const int64_t m = p->dims.m, k = p->dims.k, n = p->dims.n;
    int64_t group = 0, end = p->dims.groups > 0 ? p->sizes[0] : 0;
    memset(y, 0, (size_t)(m * n) * sizeof *y);
    memset(dlhs, 0, (size_t)(m * k) * sizeof *dlhs);
    memset(drhs, 0, (size_t)(p->dims.groups * k * n) * sizeof *drhs);
    for (int64_t row = 0; row < p->rows; row++) {
        while (row == end) end += p->sizes[++group];
        const double *w = p->rhs + group * k * n;
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = 0; j < n; j++) {
                double *dw = &drhs[group * k * n + i * n + j];
                y[row * n + j] = fma(p->lhs[row * k + i], w[i * n + j], y[row * n + j]);
                *dw = fma(p->lhs[row * k + i], p->dy[row * n + j], *dw);
                dlhs[row * k + i] = fma(p->dy[row * n + j], w[i * n + j], dlhs[row * k + i]);
            }
        }
    }
}

static const struct {
    assay_gmm_dims dims;
    int32_t sizes[6];
} CASES[] = {
    {{1, 1, 1, 1}, {1}},
    {{7, 3, 5, 3}, {2, 4, 1}},
    {{11, 5, 3, 6}, {0, 3, 0, 0, 4, 0}}, /* empty groups first, last and between; a tail */
    {{9, 4, 2, 4}, {0, 0, 0, 0}},        /* nothing but tail */
    {{6, 3, 3, 2}, {6, 0}},
    {{0, 3, 2, 2}, {0, 0}},
    {{4, 2, 2, 0}, {0}}, /* no groups */
    {{37, 65, 41, 5}, {17, 0, 1, 2, 16}},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

static void check_cases(assay_context *ctx, void *data)
{
    (void)data;
    for (int c = 0; c < CASE_COUNT; c++) {
        OWNED_BY(problem_free) problem p;
        problem_make(&p, &CASES[c].dims, CASES[c].sizes, ASSAY_FLOAT64);
        const int64_t y_count = p.dims.m * p.dims.n, dlhs_count = p.dims.m * p.dims.k;
        const int64_t drhs_count = p.dims.groups * p.dims.k * p.dims.n;
        OWNED double *y = test_nans(y_count), *dlhs = test_nans(dlhs_count), *drhs = test_nans(drhs_count);
        problem_run(ctx, &p);
        formula(&p, y, dlhs, drhs);
        assert_same_bits(p.y, y, y_count);
        assert_same_bits(p.dlhs, dlhs, dlhs_count);
        assert_same_bits(p.drhs, drhs, drhs_count);
        assay_fill_nan(p.dlhs, dlhs_count);
        assay_fill_nan(p.drhs, drhs_count);
        assert_ok(ctx, assay_gmm_backward(ctx, p.dlhs, NULL, p.dy, p.lhs, p.rhs, p.sizes, &p.dims));
        assert_ok(ctx, assay_gmm_backward(ctx, NULL, p.drhs, p.dy, p.lhs, p.rhs, p.sizes, &p.dims));
        assert_same_bits(p.dlhs, dlhs, dlhs_count);
        assert_same_bits(p.drhs, drhs, drhs_count);
    }
}

TEST(test_the_formula_bit_for_bit)
{
    test_each_context(check_cases, NULL);
    assert_int_equal(CASE_COUNT, 8);
}

TEST_WITH_CONTEXT(test_refused_groups)
{
    const assay_gmm_dims dims = {4, 2, 2, 3};
    const int32_t negative[] = {2, -1, 1}, too_many[] = {2, 2, 1}, overflowing[] = {INT32_MAX, INT32_MAX, INT32_MAX};
    const int32_t *const refused[] = {negative, too_many, overflowing};
    const char *const words[] = {"group_sizes[1] is -1", "add up to 5", "at most the 4 rows"};
    double values[12] = {0}, out[12];
    for (int i = 0; i < 3; i++) {
        assert_bad_input(&ctx, assay_gmm_forward(&ctx, out, values, values, refused[i], &dims), words[i]);
        ctx.message[0] = '\0';
        assert_bad_input(&ctx, assay_gmm_backward(&ctx, out, out, values, values, values, refused[i], &dims), words[i]);
    }
}
