/* The rules against differences: the very computation, in which each source in turn is moved a little. */
#include "oracle/propagate/shared_errors.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support/assay_test.h"

enum { N = 5, KINDS = 4, MEANS = 2, VECTORS = 6, SOURCES = KINDS * N + MEANS };

/* What every source adds where it enters: kinds of roundings of vectors, then roundings of sums. */
typedef struct moves {
    double of[SOURCES];
} moves;

static const double X[N] = {0.3, -1.2, 0.8, 2.1, -0.4}, D[N] = {1.5, -0.7, 0.2, 0.9, -2.2}, CHOSEN[N] = {1, 0, 1, 1, 0};

static double variance_of(int source)
{
    return 1e-4 * (1 + source % 7);
}

/* Softmax over all, a gather, division by the sum of what is left, the gradient of that softmax and of that division,
 * and a product of two vectors with errors in common. */
static void compute(double *out, const moves *m)
{
    const double *of_x = m->of, *of_s = m->of + N, *of_d = m->of + 2 * N, *of_n = m->of + 3 * N;
    const double *of_sums = m->of + KINDS * N;
    double s[N], n[N], d[N], total = 0, sum = 0, mean = 0;
    for (int i = 0; i < N; i++) total += exp(X[i] + of_x[i]);
    for (int i = 0; i < N; i++) s[i] = exp(X[i] + of_x[i]) / total + of_s[i];
    for (int i = 0; i < N; i++) sum += CHOSEN[i] * s[i];
    sum += of_sums[0];
    for (int i = 0; i < N; i++) n[i] = CHOSEN[i] * s[i] / sum + of_n[i];
    for (int i = 0; i < N; i++) d[i] = D[i] + of_d[i];
    for (int i = 0; i < N; i++) mean += n[i] * d[i];
    mean += of_sums[1];
    for (int i = 0; i < N; i++) out[i] = n[i] * (d[i] - mean) * s[i];
}

static void by_rules(double *variance)
{
    const int64_t size = assay_errors_size(N), each = assay_uncertain_size(N);
    double *memory = malloc((size_t)(size + VECTORS * each) * sizeof *memory), kind[KINDS][N], slope[N], ones[N];
    assay_errors space;
    assay_uncertain v[VECTORS], *x = &v[0], *s = &v[1], *gathered = &v[2], *n = &v[3], *d = &v[4], *out = &v[5];
    assert_non_null(memory);
    assay_fill_nan(memory, size + VECTORS * each);
    assay_errors_start(&space, memory, N);
    for (int i = 0; i < VECTORS; i++) assay_uncertain_start(&v[i], memory + size + i * each, N);
    for (int i = 0; i < KINDS * N; i++) kind[i / N][i % N] = variance_of(i);
    double total = 0, sum = 0;
    for (int i = 0; i < N; i++) total += exp(X[i]);
    for (int i = 0; i < N; i++) {
        s->value[i] = exp(X[i]) / total;
        d->value[i] = D[i];
        ones[i] = 1;
        sum += CHOSEN[i] * s->value[i];
    }
    assay_errors_add(&space, x, kind[0]);
    assay_errors_softmax(&space, s, x);
    assay_errors_add(&space, s, kind[1]);
    assay_errors_combine(&space, gathered, s, CHOSEN, NULL, NULL);
    const int divisor = assay_errors_sum(&space, gathered, variance_of(KINDS * N));
    for (int i = 0; i < N; i++) {
        n->value[i] = CHOSEN[i] * s->value[i] / sum;
        slope[i] = 1 / sum;
    }
    assay_errors_combine(&space, n, gathered, slope, NULL, NULL);
    for (int i = 0; i < N; i++) slope[i] = -n->value[i] / sum;
    assay_errors_add_sum(&space, n, divisor, slope);
    assay_errors_add(&space, d, kind[2]);
    assay_errors_add(&space, n, kind[3]);
    assay_errors_center(&space, out, n, d, variance_of(KINDS * N + 1));
    /* In place. */
    assay_errors_combine(&space, out, out, s->value, s, out->value);
    assay_errors_variance(&space, out, variance);
    /* The variance of a sum is that of a vector of it. */
    const int whole = assay_errors_sum(&space, out, 0);
    x->rows = 0;
    assay_errors_add_sum(&space, x, whole, ones);
    assay_errors_variance(&space, x, slope);
    assert_close(slope, &space.covariance[whole][whole], 1, 1e-12, 0);
    free(memory);
}

TEST(test_every_rule_by_differences)
{
    double expected[N] = {0}, found[N];
    for (int source = 0; source < SOURCES; source++) {
        const double step = 1e-5;
        double above[N], below[N];
        moves m = {{0}};
        m.of[source] = step;
        compute(above, &m);
        m.of[source] = -step;
        compute(below, &m);
        for (int i = 0; i < N; i++) expected[i] += pow((above[i] - below[i]) / (2 * step), 2) * variance_of(source);
    }
    by_rules(found);
    assert_close(found, expected, N, 1e-7, 0);
}

/* An error that comes back with the other sign is gone, and does not come out as one of its own. */
TEST(test_what_cancels_is_gone)
{
    double memory[16 * (1 + ASSAY_ERROR_ROWS) + 1024], ones[N], minus[N], zero[N] = {0}, found[N];
    assay_errors space;
    assay_uncertain x, y;
    assert_true(assay_errors_size(N) + 2 * assay_uncertain_size(N) <= (int64_t)(sizeof memory / sizeof *memory));
    assay_errors_start(&space, memory, N);
    assay_uncertain_start(&x, memory + assay_errors_size(N), N);
    assay_uncertain_start(&y, x.value + assay_uncertain_size(N), N);
    for (int i = 0; i < N; i++) {
        ones[i] = 1;
        minus[i] = -1;
    }
    assay_errors_add(&space, &x, CHOSEN);
    assay_errors_combine(&space, &y, &x, ones, &x, minus);
    assay_errors_variance(&space, &y, found);
    assert_same_bits(found, zero, N);
}
