/* The gate of a gated MLP, h = A(a') B(b') for the three forms of gated_mlp.h, with its derivatives. Shared by the
 * operation and its error propagation. */
#ifndef ASSAY_OPS_GLU_H
#define ASSAY_OPS_GLU_H

#include "oracle/ops/gated_mlp.h"

/* For one row of n elements: h = A B; fa = A' B, fb = A B' (0 beyond a clamp). fa and fb may be NULL. */
void assay_glu_row(const assay_context *ctx, const assay_gated_mlp_config *config, int64_t n, const double *a,
                   const double *b, double *h, double *fa, double *fb);

/* Second derivatives and, where a kink lies within `reach` of a or b, how far the first derivatives jump there. */
typedef struct assay_glu_curvature {
    double aa, ab, bb;
    double jump_a, jump_b;
} assay_glu_curvature;

assay_glu_curvature assay_glu_curvature_at(const assay_context *ctx, const assay_gated_mlp_config *config, double a,
                                           double b, double reach_a, double reach_b);

#endif
