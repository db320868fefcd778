/* The gate of a gated MLP, h = u(a) v(b), in the three forms of gated_mlp.h. Shared by the operation and its error
 * scales. Nothing here is threaded; arrays are contiguous. */
#ifndef ASSAY_OPS_GLU_H
#define ASSAY_OPS_GLU_H

#include "oracle/ops/gated_mlp.h"

void assay_glu_forward(const assay_context *ctx, double *h, const double *a, const double *b, int64_t count,
                       const assay_gated_mlp_config *config);

/* da = dh u'(a) v(b), db = dh u(a) v'(b); da or db may be dh. */
void assay_glu_backward(const assay_context *ctx, double *da, double *db, const double *dh, const double *a,
                        const double *b, int64_t count, const assay_gated_mlp_config *config);

/* One of the two factors at a point, for error scales. `sigma`: by how much an implementation's argument may be off. A
 * kink at a distance of d sigma counts with the weight exp(-d^2/16), and not at all beyond 8. */
typedef struct assay_glu_factor {
    double value, first, second;
    double first_size; /* sum of the sizes of the terms of `first` */
    double slope;      /* |first|, or the weighted slope beyond a kink where that is steeper */
    double jump;       /* how far the derivative jumps there, weighted */
    bool elementary;   /* whether elementary functions went into it */
} assay_glu_factor;
assay_glu_factor assay_glu_gate(const assay_gated_mlp_config *config, double a, double sigma); /* u */
assay_glu_factor assay_glu_up(const assay_gated_mlp_config *config, double b, double sigma);   /* v */

#endif
