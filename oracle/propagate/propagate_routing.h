/* Error scales of routing at fixed choices. */
#pragma once

#include "oracle/moe/routing.h"
#include "oracle/propagate/rules.h"

typedef struct assay_routing_run {
    const double *variance_logits;    /* [T,E]; NULL: exact */
    const double *d_weights;          /* [T,K]; NULL: zero */
    const double *variance_d_weights; /* [T,K]; NULL: they are given */
    double d_lb_loss;
    const assay_routing *r;
    const assay_routing_inputs *in;
    const assay_routing_config *config;
} assay_routing_run;

/* `weights` and `d_logits` (held at precision->router by whoever uses them next) have the rounding of the results
 * themselves in them. */
typedef struct assay_routing_variances {
    double *weights;            /* [T,K] */
    double *lb_loss;            /* [1] */
    double *d_logits;           /* [T,E] */
    double *d_bias;             /* [E] */
    double *d_per_expert_scale; /* [E] */
} assay_routing_variances;

assay_status assay_propagate_routing(assay_context *ctx, const assay_precision *precision,
                                     const assay_routing_variances *v, const assay_routing_run *run);
