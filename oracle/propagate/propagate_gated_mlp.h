/* Error scales of the gated MLP, forward and backward. A correct implementation may round a, b, h, dh, da, db to storage,
 * and products before a bias or another product is added. Near a clamp or relu's kink (within 8 standard deviations of a
 * or b, with a weight that falls from 1 to 0.02) the jump of the derivative counts as an error of its own. */
#ifndef ASSAY_PROPAGATE_PROPAGATE_GATED_MLP_H
#define ASSAY_PROPAGATE_PROPAGATE_GATED_MLP_H

#include "oracle/ops/gated_mlp.h"
#include "oracle/propagate/rules.h"

/* What a run was given and kept. Weights are given, and so are x and dy without a variance: the MoE block of llama4 scales
 * and stores x before the expert, and dy carries the error of a routing weight. */
typedef struct assay_gated_mlp_run {
    const double *x, *dy;                   /* [rows,D]; dy may be NULL when no gradient is asked for */
    const double *variance_x, *variance_dy; /* [rows,D] or NULL */
    const double *weighted;                 /* [rows,H]: what h has more in the gradient of wo; or NULL */
    const assay_gated_mlp_residuals *r;
    const assay_gated_mlp_weights *w;
    const assay_gated_mlp_config *config;
} assay_gated_mlp_run;

typedef struct assay_gated_mlp_variances {
    double *a, *b;                       /* rows r->ld apart, as the residuals are */
    double *h;                           /* [rows,H] */
    double *y;                           /* [rows,D] */
    assay_gated_mlp_gradients gradients; /* the variance of each gradient, in the gradient's place */
} assay_gated_mlp_variances;

assay_status assay_propagate_gated_mlp(assay_context *ctx, const assay_precision *precision,
                                       const assay_gated_mlp_variances *v, const assay_gated_mlp_run *run);

#endif
