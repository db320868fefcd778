/* Error scales of gmm, unpermute and rms_norm, from what their runs were given and left; all of it is given (rules.h). */
#pragma once

#include "oracle/moe/permute.h"
#include "oracle/ops/gmm.h"
#include "oracle/propagate/rules.h"

typedef struct assay_gmm_run {
    const double *dy, *lhs, *rhs;
    const int32_t *group_sizes;
    assay_gmm_dims dims;
} assay_gmm_run;

typedef struct assay_gmm_variances {
    double *y, *dlhs, *drhs;
} assay_gmm_variances;

assay_status assay_propagate_gmm(assay_context *ctx, const assay_precision *precision, const assay_gmm_variances *v,
                                 const assay_gmm_run *run);

typedef struct assay_unpermute_run {
    const double *dy, *sorted, *weights; /* weights NULL: 1 */
    const int32_t *order;
    assay_permute_dims dims;
} assay_unpermute_run;

typedef struct assay_unpermute_variances {
    double *y, *d_sorted, *d_weights;
} assay_unpermute_variances;

/* permute is exact forward; its dx is an unpermute with weights NULL. */
assay_status assay_propagate_unpermute(assay_context *ctx, const assay_precision *precision,
                                       const assay_unpermute_variances *v, const assay_unpermute_run *run);

typedef struct assay_rms_norm_run {
    const double *dy, *x, *scale, *rstd;
    int64_t rows, dim;
} assay_rms_norm_run;

typedef struct assay_rms_norm_variances {
    double *y, *dx, *dscale;
} assay_rms_norm_variances;

assay_status assay_propagate_rms_norm(assay_context *ctx, const assay_precision *precision,
                                      const assay_rms_norm_variances *v, const assay_rms_norm_run *run);
