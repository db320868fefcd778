#include "oracle/ops/gmm.h"

#include <inttypes.h>
#include <stddef.h>

#include "oracle/arithmetic/arithmetic.h"

static assay_status check_groups(assay_context *ctx, const int32_t *group_sizes, const assay_gmm_dims *dims,
                                 int64_t *rows) {
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

static void zero(double *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = 0.0;
}

assay_status assay_gmm_forward(assay_context *ctx, double *y, const double *lhs, const double *rhs,
                               const int32_t *group_sizes, const assay_gmm_dims *dims) {
    assay_status status;
    int64_t rows, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; g++) {
        assay_matmul_args product = {.c = y + first * dims->n,
                                     .ldc = dims->n,
                                     .a = lhs + first * dims->k,
                                     .lda = dims->k,
                                     .b = rhs + g * dims->k * dims->n,
                                     .ldb = dims->n,
                                     .m = group_sizes[g],
                                     .n = dims->n,
                                     .k = dims->k};
        TRY(assay_matmul(ctx, &product));
        first += group_sizes[g];
    }
    zero(y + rows * dims->n, (dims->m - rows) * dims->n);
cleanup:
    return status;
}

/* The two products of one group's backward. */
static assay_matmul_args dlhs_product(double *dlhs, const double *dy, const double *rhs, int64_t first, int64_t count,
                                      int64_t g, const assay_gmm_dims *dims) {
    return (assay_matmul_args){.c = dlhs + first * dims->k,
                               .ldc = dims->k,
                               .a = dy + first * dims->n,
                               .lda = dims->n,
                               .b = rhs + g * dims->k * dims->n,
                               .ldb = dims->n,
                               .transpose_b = true,
                               .m = count,
                               .n = dims->k,
                               .k = dims->n};
}

static assay_matmul_args drhs_product(double *drhs, const double *dy, const double *lhs, int64_t first, int64_t count,
                                      int64_t g, const assay_gmm_dims *dims) {
    return (assay_matmul_args){.c = drhs + g * dims->k * dims->n,
                               .ldc = dims->n,
                               .a = lhs + first * dims->k,
                               .lda = dims->k,
                               .transpose_a = true,
                               .b = dy + first * dims->n,
                               .ldb = dims->n,
                               .m = dims->k,
                               .n = dims->n,
                               .k = count};
}

assay_status assay_gmm_backward(assay_context *ctx, double *dlhs, double *drhs, const double *dy, const double *lhs,
                                const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims) {
    assay_status status;
    int64_t rows, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; g++) {
        int64_t count = group_sizes[g];
        assay_matmul_args left = dlhs_product(dlhs, dy, rhs, first, count, g, dims);
        assay_matmul_args right = drhs_product(drhs, dy, lhs, first, count, g, dims);
        TRY(assay_matmul(ctx, &left));
        TRY(assay_matmul(ctx, &right)); /* no rows: exactly 0 */
        first += count;
    }
    zero(dlhs + rows * dims->k, (dims->m - rows) * dims->k);
cleanup:
    return status;
}

assay_status assay_gmm_gauge(assay_context *ctx, const assay_precision *precision, double *variance_y,
                             double *variance_dlhs, double *variance_drhs, const double *dy, const double *lhs,
                             const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims) {
    assay_status status;
    int64_t rows, first = 0;
    TRY(check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; g++) {
        int64_t count = group_sizes[g];
        if (variance_y != NULL) {
            assay_matmul_args product = {.c = variance_y + first * dims->n,
                                         .ldc = dims->n,
                                         .a = lhs + first * dims->k,
                                         .lda = dims->k,
                                         .b = rhs + g * dims->k * dims->n,
                                         .ldb = dims->n,
                                         .m = count,
                                         .n = dims->n,
                                         .k = dims->k};
            TRY(assay_gauge_matmul(ctx, precision, &product, NULL, NULL));
        }
        if (variance_dlhs != NULL) {
            assay_matmul_args left = dlhs_product(variance_dlhs, dy, rhs, first, count, g, dims);
            TRY(assay_gauge_matmul(ctx, precision, &left, NULL, NULL));
        }
        if (variance_drhs != NULL) {
            assay_matmul_args right = drhs_product(variance_drhs, dy, lhs, first, count, g, dims);
            TRY(assay_gauge_matmul(ctx, precision, &right, NULL, NULL));
        }
        first += count;
    }
    if (variance_y != NULL) zero(variance_y + rows * dims->n, (dims->m - rows) * dims->n);
    if (variance_dlhs != NULL) zero(variance_dlhs + rows * dims->k, (dims->m - rows) * dims->k);
cleanup:
    return status;
}
