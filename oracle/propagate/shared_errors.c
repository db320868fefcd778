#include "oracle/propagate/shared_errors.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { KINDS = ASSAY_ERROR_KINDS, SUMS = ASSAY_ERROR_SUMS, ROWS = ASSAY_ERROR_ROWS };

int64_t assay_errors_size(int64_t n)
{
    return (KINDS + SUMS * KINDS) * n;
}

int64_t assay_uncertain_size(int64_t n)
{
    return (1 + ROWS) * n;
}

void assay_errors_start(assay_errors *space, double *memory, int64_t n)
{
    memset(space, 0, sizeof *space);
    space->n = n;
    space->variance = memory;
    space->weight = memory + KINDS * n;
}

void assay_uncertain_start(assay_uncertain *x, double *memory, int64_t n)
{
    *x = (assay_uncertain){.value = memory, .error = memory + n};
}

static bool has(const assay_uncertain *x, int row)
{
    return x != NULL && (x->rows >> row & 1) != 0;
}

void assay_errors_add(assay_errors *space, assay_uncertain *x, const double *variance)
{
    const int64_t n = space->n;
    const int kind = space->kinds++;
    assert(kind < KINDS);
    memcpy(space->variance + kind * n, variance, (size_t)n * sizeof *variance);
    for (int64_t i = 0; i < n; i++) x->error[kind * n + i] = 1;
    x->rows |= 1U << kind;
}

void assay_errors_combine(const assay_errors *space, assay_uncertain *y, const assay_uncertain *a,
                          const double *slope_a, const assay_uncertain *b, const double *slope_b)
{
    const int64_t n = space->n;
    const unsigned rows = a->rows | (b == NULL ? 0 : b->rows);
    for (int row = 0; row < ROWS; row++) {
        const double *of_a = a->error + row * n, *of_b = b == NULL ? NULL : b->error + row * n;
        double *out = y->error + row * n;
        const bool in_a = has(a, row), in_b = has(b, row);
        if (in_a && in_b) {
            for (int64_t i = 0; i < n; i++) out[i] = slope_a[i] * of_a[i] + slope_b[i] * of_b[i];
        } else if (in_a) {
            for (int64_t i = 0; i < n; i++) out[i] = slope_a[i] * of_a[i];
        } else if (in_b) {
            for (int64_t i = 0; i < n; i++) out[i] = slope_b[i] * of_b[i];
        }
    }
    y->rows = rows;
}

/* The covariance of two sums. */
static double covariance(const assay_errors *space, int one, int other)
{
    const int64_t n = space->n;
    const int kinds = space->kinds_of_sum[one < other ? one : other];
    const double *a = space->weight + one * KINDS * n, *b = space->weight + other * KINDS * n;
    double sum = 0;
    for (int64_t i = 0; i < kinds * n; i++) sum += a[i] * b[i] * space->variance[i];
    for (int q = 0; q < SUMS; q++) sum += space->own[one][q] * space->own[other][q] * space->rounding[q];
    return sum;
}

int assay_errors_sum(assay_errors *space, const assay_uncertain *x, double rounding)
{
    const int64_t n = space->n;
    const int sum = space->sums++;
    double *weight = space->weight + sum * KINDS * n;
    assert(sum < SUMS);
    for (int kind = 0; kind < space->kinds; kind++) {
        if (has(x, kind)) {
            memcpy(weight + kind * n, x->error + kind * n, (size_t)n * sizeof *weight);
        } else {
            memset(weight + kind * n, 0, (size_t)n * sizeof *weight);
        }
    }
    for (int part = 0; part < sum; part++) {
        const double *of_part = space->weight + part * KINDS * n;
        double factor = 0;
        if (!has(x, KINDS + part)) continue;
        for (int64_t i = 0; i < n; i++) factor += x->error[(KINDS + part) * n + i];
        for (int64_t i = 0; i < space->kinds_of_sum[part] * n; i++) weight[i] += factor * of_part[i];
        for (int q = 0; q < sum; q++) space->own[sum][q] += factor * space->own[part][q];
    }
    space->own[sum][sum] = 1;
    space->rounding[sum] = rounding;
    space->kinds_of_sum[sum] = space->kinds;
    for (int other = 0; other <= sum; other++)
        space->covariance[sum][other] = space->covariance[other][sum] = covariance(space, sum, other);
    return sum;
}

void assay_errors_add_sum(const assay_errors *space, assay_uncertain *x, int sum, const double *factor)
{
    double *row = x->error + (KINDS + sum) * space->n;
    if (!has(x, KINDS + sum)) memset(row, 0, (size_t)space->n * sizeof *row);
    for (int64_t i = 0; i < space->n; i++) row[i] += factor[i];
    x->rows |= 1U << (KINDS + sum);
}

void assay_errors_center(assay_errors *space, assay_uncertain *y, const assay_uncertain *a, const assay_uncertain *b,
                         double rounding)
{
    const int64_t n = space->n;
    double mean = 0;
    for (int64_t i = 0; i < n; i++) mean = fma(a->value[i], b->value[i], mean);
    assay_errors_combine(space, y, b, a->value, a, b->value);
    const int sum = assay_errors_sum(space, y, rounding);
    /* y's value serves as the factors in between. */
    for (int64_t i = 0; i < n; i++) y->value[i] = b->value[i] - mean;
    assay_errors_combine(space, y, b, a->value, a, y->value);
    for (int64_t i = 0; i < n; i++) y->value[i] = -a->value[i];
    assay_errors_add_sum(space, y, sum, y->value);
    for (int64_t i = 0; i < n; i++) y->value[i] = a->value[i] * (b->value[i] - mean);
}

void assay_errors_softmax(assay_errors *space, assay_uncertain *y, const assay_uncertain *x)
{
    assay_errors_combine(space, y, x, y->value, NULL, NULL);
    const int sum = assay_errors_sum(space, y, 0);
    for (int64_t i = 0; i < space->n; i++) y->value[i] = -y->value[i];
    assay_errors_add_sum(space, y, sum, y->value);
    for (int64_t i = 0; i < space->n; i++) y->value[i] = -y->value[i];
}

/* What source i and the others have in element i are squares of different kinds: taking them apart keeps what cancels in
 * the first from what the second is rounded by. */
void assay_errors_variance(const assay_errors *space, const assay_uncertain *x, double *variance)
{
    const int64_t n = space->n;
    for (int64_t i = 0; i < n; i++) {
        double own = 0, others = 0;
        for (int r = 0; r < space->sums; r++) {
            if (!has(x, KINDS + r)) continue;
            for (int s = 0; s < space->sums; s++) {
                if (!has(x, KINDS + s)) continue;
                others += x->error[(KINDS + r) * n + i] * x->error[(KINDS + s) * n + i] * space->covariance[r][s];
            }
        }
        for (int kind = 0; kind < space->kinds; kind++) {
            double common = 0;
            for (int r = 0; r < space->sums; r++) {
                if (has(x, KINDS + r) && kind < space->kinds_of_sum[r])
                    common += x->error[(KINDS + r) * n + i] * space->weight[(r * KINDS + kind) * n + i];
            }
            const double all = common + (has(x, kind) ? x->error[kind * n + i] : 0), v = space->variance[kind * n + i];
            own += all * all * v;
            others -= common * common * v;
        }
        variance[i] = own + (others > 0 ? others : 0);
    }
}
