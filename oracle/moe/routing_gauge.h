/* Error scales of routing at fixed choices: the running gauge of precision.h through routing.h. */
#ifndef ASSAY_MOE_ROUTING_GAUGE_H
#define ASSAY_MOE_ROUTING_GAUGE_H

#include "oracle/moe/routing.h"

/* Variances; NULL ones are skipped. The rounding of the results themselves is in none but `weights`, `d_logits` (held at
 * precision->router by whoever uses them next): those have it. */
typedef struct assay_routing_variances {
    double *weights;            /* [T,K] */
    double *lb_loss;            /* [1] */
    double *d_logits;           /* [T,E] */
    double *d_bias;             /* [E] */
    double *d_per_expert_scale; /* [E] */
} assay_routing_variances;

/* variance_logits [T,E] (NULL: exact); variance_d_weights [T,K] (NULL: they are given, precision.h). d_weights may be NULL
 * when no gradient is asked for. */
assay_status assay_routing_gauge(assay_context *ctx, const assay_precision *precision, const assay_routing_variances *v,
                                 const double *variance_logits, const double *d_weights,
                                 const double *variance_d_weights, double d_lb_loss, const assay_routing *r,
                                 const assay_routing_inputs *in, const assay_routing_config *config);

#endif
