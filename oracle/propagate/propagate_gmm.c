#include <string.h>

#include "oracle/propagate/propagate_ops.h"

/* Each product of each group; what lies beyond the groups is exactly 0. */
assay_status assay_propagate_gmm(assay_context *ctx, const assay_precision *precision, const assay_gmm_variances *v,
                                 const assay_gmm_run *run)
{
    const int64_t m = run->dims.m, k = run->dims.k, n = run->dims.n;
    if (v->y != NULL) memset(v->y, 0, (size_t)(m * n) * sizeof *v->y);
    if (v->dlhs != NULL) memset(v->dlhs, 0, (size_t)(m * k) * sizeof *v->dlhs);
    for (int64_t g = 0, first = 0; g < run->dims.groups; first += run->group_sizes[g], g++) {
        const int64_t rows = run->group_sizes[g];
        const double *lhs = run->lhs + first * k, *dy = run->dy + first * n, *rhs = run->rhs + g * k * n;
        if (v->y != NULL) {
            const assay_matmul_args args = assay_product_ab(v->y + first * n, lhs, rhs, rows, n, k);
            MUST(assay_propagate_product(ctx, precision, false, &args, NULL, NULL));
        }
        if (v->dlhs != NULL) {
            const assay_matmul_args args = assay_product_abt(v->dlhs + first * k, dy, rhs, rows, k, n);
            MUST(assay_propagate_product(ctx, precision, false, &args, NULL, NULL));
        }
        if (v->drhs != NULL) {
            const assay_matmul_args args = assay_product_atb(v->drhs + g * k * n, lhs, dy, k, n, rows);
            MUST(assay_propagate_product(ctx, precision, false, &args, NULL, NULL));
        }
    }
    return ASSAY_OK;
}
