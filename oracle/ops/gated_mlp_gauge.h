/* Error scales of the gated MLP: the running gauge of precision.h through gated_mlp.h, forward and backward.
 * x, weights and the cotangent's values are those of the golden run; weights are given (precision.h); v->x (NULL: it is
 * given) is the variance of x, which llama4's MoE block scales and stores before the expert; variance_dy (NULL: it is
 * given) is the variance of dy, which inside a MoE block carries the error of the routing weight. A correct implementation may round
 * a, b, h, dh, da, db to storage, and products before a bias or another product is added. Near a clamp or relu's kink
 * (within 8 standard deviations of a or b, with a weight that falls from 1 to 0.02) the jump of the derivative counts
 * as an error of its own. */
#ifndef ASSAY_OPS_GATED_MLP_GAUGE_H
#define ASSAY_OPS_GATED_MLP_GAUGE_H

#include "oracle/ops/gated_mlp.h"

/* Variances, laid out as the tensors they belong to; NULL ones are skipped. None has the rounding of the tensor itself
 * as a stored result in it (callers add it: assay_gauge_store). */
typedef struct assay_gated_mlp_variances {
    const double *x;                     /* [rows,D], taken and not made; NULL: x is given */
    const double *weighted;              /* [rows,H], taken: what h has more in dwo; NULL: nothing */
    double *a, *b, *h;                   /* [rows,H], contiguous */
    double *y;                           /* [rows,D] */
    assay_gated_mlp_gradients gradients; /* the variance of each gradient, in the gradient's place */
} assay_gated_mlp_variances;

/* dy may be NULL when no gradient is asked for. */
assay_status assay_gated_mlp_gauge(assay_context *ctx, const assay_precision *precision,
                                   const assay_gated_mlp_variances *v, const double *dy, const double *variance_dy,
                                   const assay_gated_mlp_residuals *r, const double *x,
                                   const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config);

#endif
