#include "oracle/ops/gmm.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"

/* *rows: how many rows belong to a group. */
static assay_status check_groups(assay_context *ctx, const int32_t *group_sizes, const assay_gmm_dims *dims,
                                 int64_t *rows)
{
    *rows = 0;
    for (int64_t g = 0; g < dims->groups; g++) {
        if (group_sizes[g] < 0) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "group_sizes[%" PRId64 "] is %" PRId32 ", expected 0 or more", g,
                              group_sizes[g]);
        }
        *rows += group_sizes[g];
    }
    if (*rows > dims->m) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "group_sizes add up to %" PRId64 ", expected at most the %" PRId64 " rows of lhs", *rows,
                          dims->m);
    }
    return ASSAY_OK;
}

/* The products of group g, whose rows are [first, first + count): into y, dlhs and drhs, or their variances. */
static assay_matmul_args y_product(double *y, const double *lhs, const double *rhs, int64_t g, int64_t first,
                                   int64_t count, const assay_gmm_dims *dims)
{
    assay_matmul_args args = assay_product_ab(y + first * dims->n, lhs + first * dims->k, rhs + g * dims->k * dims->n,
                                              count, dims->n, dims->k);
    args.kind = ASSAY_PRODUCT_LINEAR;
    return args;
}

static assay_matmul_args dlhs_product(double *dlhs, const double *dy, const double *rhs, int64_t g, int64_t first,
                                      int64_t count, const assay_gmm_dims *dims)
{
    assay_matmul_args args = assay_product_abt(dlhs + first * dims->k, dy + first * dims->n,
                                               rhs + g * dims->k * dims->n, count, dims->k, dims->n);
    args.kind = ASSAY_PRODUCT_LINEAR;
    return args;
}

static assay_matmul_args drhs_product(double *drhs, const double *dy, const double *lhs, int64_t g, int64_t first,
                                      int64_t count, const assay_gmm_dims *dims)
{
    assay_matmul_args args = assay_product_atb(drhs + g * dims->k * dims->n, lhs + first * dims->k,
                                               dy + first * dims->n, dims->k, dims->n, count);
    args.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
    return args;
}

/* What lies beyond the groups of a result with `columns` columns. */
static void zero_tail(double *result, int64_t rows, int64_t columns, const assay_gmm_dims *dims)
{
    if (result != NULL) memset(result + rows * columns, 0, (size_t)((dims->m - rows) * columns) * sizeof *result);
}

assay_status assay_gmm_forward(assay_context *ctx, double *y, const double *lhs, const double *rhs,
                               const int32_t *group_sizes, const assay_gmm_dims *dims)
{
    assay_status status = ASSAY_OK;
    int64_t rows = 0, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        const assay_matmul_args args = y_product(y, lhs, rhs, g, first, group_sizes[g], dims);
        TRY(assay_matmul(ctx, &args));
    }
    zero_tail(y, rows, dims->n, dims);
cleanup:
    return status;
}

assay_status assay_gmm_backward(assay_context *ctx, double *dlhs, double *drhs, const double *dy, const double *lhs,
                                const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims)
{
    assay_status status = ASSAY_OK;
    int64_t rows = 0, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        if (dlhs != NULL) {
            const assay_matmul_args args = dlhs_product(dlhs, dy, rhs, g, first, group_sizes[g], dims);
            TRY(assay_matmul(ctx, &args));
        }
        if (drhs != NULL) {
            const assay_matmul_args args = drhs_product(drhs, dy, lhs, g, first, group_sizes[g], dims);
            TRY(assay_matmul(ctx, &args));
        }
    }
    zero_tail(dlhs, rows, dims->k, dims);
cleanup:
    return status;
}

assay_status assay_gmm_gauge(assay_context *ctx, const assay_precision *precision, double *variance_y,
                             double *variance_dlhs, double *variance_drhs, const double *dy, const double *lhs,
                             const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims)
{
    assay_status status = ASSAY_OK;
    int64_t rows = 0, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        if (variance_y != NULL) {
            const assay_matmul_args args = y_product(variance_y, lhs, rhs, g, first, group_sizes[g], dims);
            TRY(assay_gauge_matmul(ctx, precision, &args, NULL, NULL));
        }
        if (variance_dlhs != NULL) {
            const assay_matmul_args args = dlhs_product(variance_dlhs, dy, rhs, g, first, group_sizes[g], dims);
            TRY(assay_gauge_matmul(ctx, precision, &args, NULL, NULL));
        }
        if (variance_drhs != NULL) {
            const assay_matmul_args args = drhs_product(variance_drhs, dy, lhs, g, first, group_sizes[g], dims);
            TRY(assay_gauge_matmul(ctx, precision, &args, NULL, NULL));
        }
    }
    zero_tail(variance_y, rows, dims->n, dims);
    zero_tail(variance_dlhs, rows, dims->k, dims);
cleanup:
    return status;
}
