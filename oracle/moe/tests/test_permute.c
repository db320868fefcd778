#include "oracle/moe/permute.h"

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/dtype.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

static double *numbers(uint64_t *seed, int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = (float)((double)(int64_t)test_bits(seed) * 0x1p-62);
    return values;
}

static double *nans(int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    assay_fill_nan(values, count);
    return values;
}

/* Random choices with a sorted order; x, dy [T,D], rows and d_rows [T*K,D], weights [T,K]. */
typedef struct problem {
    assay_permute_dims dims;
    int64_t copies, outer, inner; /* T*K, T*D, T*K*D */
    int32_t *selected, *order, *sizes;
    double *x, *dy, *rows, *weights;
} problem;

static void problem_make(assay_context *ctx, problem *p, const assay_permute_dims *dims)
{
    uint64_t seed = 12;
    *p = (problem){.dims = *dims, .copies = dims->tokens * dims->experts_per_token};
    p->outer = dims->tokens * dims->emb_dim;
    p->inner = p->copies * dims->emb_dim;
    p->selected = malloc((size_t)(p->copies + 1) * sizeof *p->selected);
    p->order = malloc((size_t)(p->copies + 1) * sizeof *p->order);
    p->sizes = malloc((size_t)(dims->experts + 1) * sizeof *p->sizes);
    memset(p->order, 0xff, (size_t)p->copies * sizeof *p->order);
    memset(p->sizes, 0xff, (size_t)dims->experts * sizeof *p->sizes);
    for (int64_t i = 0; i < p->copies; i++) p->selected[i] = (int32_t)(test_bits(&seed) % (uint64_t)dims->experts);
    p->x = numbers(&seed, p->outer);
    p->dy = numbers(&seed, p->outer);
    p->rows = numbers(&seed, p->inner);
    p->weights = numbers(&seed, p->copies);
    assert_ok(ctx, assay_permute_order(ctx, p->order, p->sizes, p->selected, dims));
}

static void problem_free(problem *p)
{
    free(p->selected);
    free(p->order);
    free(p->sizes);
    free(p->x);
    free(p->dy);
    free(p->rows);
    free(p->weights);
}

static const assay_permute_dims CASES[] = {
    {1, 1, 1, 1}, {5, 3, 4, 7}, {17, 2, 1, 3}, {4, 8, 300, 5}, {0, 2, 3, 4}, {29, 6, 13, 31}, {3, 2, 5, 0},
};
enum { CASE_COUNT = sizeof CASES / sizeof *CASES };

/* The place of copy i: how many copies come before it by (expert, position). */
static int64_t place_of(const problem *p, int64_t i)
{
    int64_t place = 0;
    for (int64_t other = 0; other < p->copies; other++) {
        place += p->selected[other] < p->selected[i] || (p->selected[other] == p->selected[i] && other < i);
    }
    return place;
}

TEST_WITH_CONTEXT(test_order_is_the_stable_argsort)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        OWNED_BY(problem_free) problem p;
        problem_make(&ctx, &p, &CASES[c]);
        for (int64_t i = 0; i < p.copies; i++) assert_int_equal(p.order[place_of(&p, i)], i);
        for (int64_t e = 0; e < p.dims.experts; e++) {
            int32_t count = 0;
            for (int64_t i = 0; i < p.copies; i++) count += p.selected[i] == e;
            assert_int_equal(p.sizes[e], count);
        }
    }
}

static void check_values(assay_context *ctx, const problem *p)
{
    const int64_t dim = p->dims.emb_dim, k = p->dims.experts_per_token;
    double *sorted = nans(p->inner), *y = nans(p->outer), *plain = nans(p->outer), *dx = nans(p->outer);
    double *d_rows = nans(p->inner), *d_weights = nans(p->copies), *d_plain = nans(p->inner);
    assay_permute_forward(sorted, p->x, p->order, &p->dims);
    assert_ok(ctx, assay_permute_backward(ctx, dx, p->rows, p->order, &p->dims));
    assert_ok(ctx, assay_unpermute_forward(ctx, y, p->rows, p->order, p->weights, &p->dims));
    assert_ok(ctx, assay_unpermute_forward(ctx, plain, p->rows, p->order, NULL, &p->dims));
    assert_ok(ctx, assay_unpermute_backward(ctx, d_rows, d_weights, p->dy, p->rows, p->order, p->weights, &p->dims));
    assert_ok(ctx, assay_unpermute_backward(ctx, d_plain, NULL, p->dy, p->rows, p->order, NULL, &p->dims));
    for (int64_t t = 0; t < p->dims.tokens; t++) {
        for (int64_t d = 0; d < dim; d++) {
            double sum = 0, weighted = 0;
            for (int64_t i = t * k; i < (t + 1) * k; i++) {
                const int64_t at = place_of(p, i) * dim + d;
                assert_same_bits(&sorted[at], &p->x[t * dim + d], 1);
                sum += p->rows[at];
                weighted = fma(p->weights[i], p->rows[at], weighted);
                double product = p->weights[i] * p->dy[t * dim + d];
                assert_same_bits(&d_rows[at], &product, 1);
                assert_same_bits(&d_plain[at], &p->dy[t * dim + d], 1);
            }
            assert_same_bits(&y[t * dim + d], &weighted, 1);
            assert_same_bits(&plain[t * dim + d], &sum, 1);
            assert_same_bits(&dx[t * dim + d], &sum, 1);
        }
        for (int64_t i = t * k; i < (t + 1) * k; i++) {
            double sum = 0;
            for (int64_t d = 0; d < dim; d++) sum = fma(p->rows[place_of(p, i) * dim + d], p->dy[t * dim + d], sum);
            assert_same_bits(&d_weights[i], &sum, 1);
        }
    }
    double *const all[] = {sorted, y, plain, dx, d_rows, d_weights, d_plain};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

TEST_WITH_CONTEXT(test_values)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        for (int i = 0; test_next_context(&i, &ctx);) {
            OWNED_BY(problem_free) problem p;
            problem_make(&ctx, &p, &CASES[c]);
            check_values(&ctx, &p);
        }
    }
}

/* A wrong id, or an order that is none: refused, naming the place. */
TEST_WITH_CONTEXT(test_refused)
{
    const assay_permute_dims dims = {2, 2, 3, 1};
    const int32_t high[] = {0, 1, 3, 2}, low[] = {0, 1, 2, -2};
    const int32_t repeated[] = {0, 1, 1, 2}, outside[] = {0, 4, 1, 2}, negative[] = {-2, 0, 1, 2};
    const int32_t *const orders[] = {repeated, outside, negative};
    const char *const words[] = {"[2] is 1", "[1] is 4", "[0] is -2"};
    int32_t order[4], sizes[3];
    double values[4] = {0}, out[4];
    assert_bad_input(&ctx, assay_permute_order(&ctx, order, sizes, high, &dims),
                     "selected_experts[1,0] is 3, expected -1 to 2");
    assert_int_equal(assay_permute_order(&ctx, order, sizes, low, &dims), ASSAY_BAD_INPUT);
    assert_non_null(strstr(ctx.message, "selected_experts[1,1] is -2"));
    for (int i = 0; i < 3; i++) {
        assert_bad_input(&ctx, assay_unpermute_forward(&ctx, out, values, orders[i], values, &dims), words[i]);
        assert_int_equal(assay_permute_backward(&ctx, out, values, orders[i], &dims), ASSAY_BAD_INPUT);
        assert_int_equal(assay_unpermute_backward(&ctx, out, out, values, values, orders[i], values, &dims),
                         ASSAY_BAD_INPUT);
    }
    const assay_permute_dims huge = {INT32_MAX, 2, 3, 1};
    assert_bad_input(&ctx, assay_permute_order(&ctx, order, sizes, high, &huge), "copies of tokens");
}

/* Slots of no expert: what they hold, and the weights of their choices, reach nothing. */
TEST(test_slots_of_no_expert)
{
    const assay_permute_dims dims = {3, 2, 4, 2};
    const int32_t selected[] = {3, -1, -1, -1, 0, 3}, sorted[] = {4, 0, 5, -1, -1, -1};
    const double x[] = {1, 2, 3, 4, 5, 6}, copies[] = {5, 6, 1, 2, 5, 6, 0, 0, 0, 0, 0, 0};
    const double rows[] = {10, 20, 30, 40, 50, 60, NAN, NAN, INFINITY, 1, NAN, 2}, weights[] = {2, NAN, NAN, NAN, 3, 4};
    const double y[] = {60, 80, 0, 0, 230, 300}, dy[] = {1, 1, 1, 1, 1, 2};
    const double d_rows[] = {3, 6, 2, 2, 4, 8, 0, 0, 0, 0, 0, 0}, d_weights[] = {70, 0, 0, 0, 50, 170};
    const double dx[] = {30, 40, 0, 0, 60, 80};
    assay_context ctx = assay_context_default(2);
    int32_t order[6], sizes[4];
    double out[12], of_weights[6];
    assert_ok(&ctx, assay_permute_order(&ctx, order, sizes, selected, &dims));
    assert_memory_equal(order, sorted, sizeof sorted);
    assert_memory_equal(sizes, ((int32_t[]){1, 0, 0, 2}), sizeof sizes);
    assay_fill_nan(out, 12);
    assay_permute_forward(out, x, order, &dims);
    assert_same_bits(out, copies, 12);
    assay_fill_nan(out, 12);
    assert_ok(&ctx, assay_unpermute_forward(&ctx, out, rows, order, weights, &dims));
    assert_same_bits(out, y, 6);
    assay_fill_nan(out, 12);
    assay_fill_nan(of_weights, 6);
    assert_ok(&ctx, assay_unpermute_backward(&ctx, out, of_weights, dy, rows, order, weights, &dims));
    assert_same_bits(out, d_rows, 12);
    assert_same_bits(of_weights, d_weights, 6);
    assay_fill_nan(out, 12);
    assert_ok(&ctx, assay_permute_backward(&ctx, out, rows, order, &dims));
    assert_same_bits(out, dx, 6);
}
