/* The gate of a gated MLP, h = u(a) v(b), in the three forms of gated_mlp.h. Nothing here is threaded; arrays are contiguous. */
#pragma once

#include "oracle/ops/gated_mlp.h"

void assay_glu_forward(const assay_context *ctx, double *h, const double *a, const double *b, int64_t count,
                       const assay_gated_mlp_config *config);

/* da = dh u'(a) v(b), db = dh u(a) v'(b); da or db may be dh. */
void assay_glu_backward(const assay_context *ctx, double *da, double *db, const double *dh, const double *a,
                        const double *b, int64_t count, const assay_gated_mlp_config *config);
