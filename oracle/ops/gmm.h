/* Grouped matrix product (docs/operations.md, "gmm"; MaxText's gmm, jax.lax.ragged_dot).
 *
 * lhs [M,Kd], rhs [G,Kd,N], group_sizes [G] -> y [M,N]: the rows of group g times rhs[g].
 *   dlhs = dy rhs[g]^T by group;  drhs[g] = lhs_g^T dy_g
 * Rows from sum(group_sizes) to M belong to no group: y and dlhs are exactly 0 there, and what lhs or dy hold there
 * (NaN too) reaches nothing. An empty group's drhs is exactly 0. Refused: a negative group size, a sum beyond M. NULL
 * results of backward are skipped. */
#pragma once

#include "oracle/base/status.h"

typedef struct assay_gmm_dims {
    int64_t m, k, n, groups;
} assay_gmm_dims;

/* Refuses sizes as above; *rows: how many rows belong to a group. */
assay_status assay_gmm_check_groups(assay_context *ctx, const int32_t *group_sizes, const assay_gmm_dims *dims,
                                    int64_t *rows);

assay_status assay_gmm_forward(assay_context *ctx, double *y, const double *lhs, const double *rhs,
                               const int32_t *group_sizes, const assay_gmm_dims *dims);
assay_status assay_gmm_backward(assay_context *ctx, double *dlhs, double *drhs, const double *dy, const double *lhs,
                                const double *rhs, const int32_t *group_sizes, const assay_gmm_dims *dims);
