/* Error scales of the gated MLP, forward and backward. A correct implementation may round a, b, h, dh, da, db to storage,
 * and products before a bias or another product is added. Near a clamp or relu's kink (within 8 standard deviations of a
 * or b, with a weight that falls from 1 to 0.02) the jump of the derivative counts as an error of its own. */
#pragma once

#include "oracle/ops/gated_mlp.h"
#include "oracle/propagate/rules.h"

/* What forward kept. a and b are after bias and before the clamp; rows are `ld` apart: fused, they are the two halves of one
 * [rows,2H]. */
typedef struct assay_gated_mlp_values {
    const double *a, *b, *h; /* h [rows,H] */
    int64_t ld;
} assay_gated_mlp_values;

/* What a run was given and kept. Weights are given, and so are x and dy without a variance: the MoE block of llama4 scales
 * and stores x before the expert, and dy carries the error of a routing weight. */
typedef struct assay_gated_mlp_run {
    const double *x, *dy;                   /* [rows,D]; dy may be NULL when no gradient is asked for */
    const double *variance_x, *variance_dy; /* [rows,D] or NULL */
    const double *weighted;                 /* [rows,H]: what h has more in the gradient of wo; or NULL */
    assay_gated_mlp_values r;
    double *const *w; /* [ASSAY_MLP_WEIGHTS] */
    const assay_gated_mlp_config *config;
} assay_gated_mlp_run;

typedef struct assay_gated_mlp_variances {
    double *a, *b;                /* rows r.ld apart, as the values are */
    double *h;                    /* [rows,H] */
    double *y;                    /* [rows,D] */
    double *dx;                   /* [rows,D] */
    double *g[ASSAY_MLP_WEIGHTS]; /* of the weights' gradients */
    double *dh;                   /* [rows,H]: of dy wo^T */
    double *dh_values;            /* [rows,H]: no variance, but that itself */
} assay_gated_mlp_variances;

assay_status assay_propagate_gated_mlp(assay_context *ctx, const assay_precision *precision,
                                       const assay_gated_mlp_variances *v, const assay_gated_mlp_run *run);
