#include "oracle/ops/gmm.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"

assay_status assay_gmm_check_groups(assay_context *ctx, const int32_t *group_sizes, const assay_gmm_dims *dims,
                                    int64_t *rows)
{
    *rows = 0;
    for (int64_t g = 0; g < dims->groups; g++) {
        if (group_sizes[g] < 0) {
            return assay_refuse(ctx, "group_sizes[%" PRId64 "] is %" PRId32 ", expected 0 or more", g, group_sizes[g]);
        }
        *rows += group_sizes[g];
    }
    if (*rows > dims->m) {
        return assay_refuse(ctx, "group_sizes add up to %" PRId64 ", expected at most the %" PRId64 " rows of lhs",
                            *rows, dims->m);
    }
    return ASSAY_OK;
}

/* What lies beyond the groups of a result with `columns` columns. */
static void zero_tail(double *result, int64_t rows, int64_t columns, const assay_gmm_dims *dims)
{
    if (result != NULL) memset(result + rows * columns, 0, (size_t)((dims->m - rows) * columns) * sizeof *result);
}

assay_status assay_gmm_forward(assay_context *ctx, double *y, const double *lhs, const double *rhs,
                               const int32_t *group_sizes, const assay_gmm_dims *dims)
{
    int64_t rows = 0, first = 0;
    MUST(assay_gmm_check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        assay_matmul_args args = assay_product_ab(y + first * dims->n, lhs + first * dims->k,
                                                  rhs + g * dims->k * dims->n, group_sizes[g], dims->n, dims->k);
        args.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &args));
    }
    zero_tail(y, rows, dims->n, dims);
    return ASSAY_OK;
}

assay_status assay_gmm_backward(assay_context *ctx, double *dlhs, double *drhs, const double *dy, const double *lhs,
                                const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims)
{
    int64_t rows = 0, first = 0;
    MUST(assay_gmm_check_groups(ctx, group_sizes, dims, &rows));
    for (int64_t g = 0; g < dims->groups; first += group_sizes[g], g++) {
        if (dlhs != NULL) {
            assay_matmul_args args = assay_product_abt(dlhs + first * dims->k, dy + first * dims->n,
                                                       rhs + g * dims->k * dims->n, group_sizes[g], dims->k, dims->n);
            args.kind = ASSAY_PRODUCT_LINEAR;
            MUST(assay_matmul(ctx, &args));
        }
        if (drhs != NULL) {
            assay_matmul_args args = assay_product_atb(drhs + g * dims->k * dims->n, lhs + first * dims->k,
                                                       dy + first * dims->n, dims->k, dims->n, group_sizes[g]);
            args.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
            MUST(assay_matmul(ctx, &args));
        }
    }
    zero_tail(dlhs, rows, dims->k, dims);
    return ASSAY_OK;
}
