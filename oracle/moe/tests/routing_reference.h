/* A second, naive form of routing in binary128 for the tests, straight from the formulas of SPEC 5, for a given choice.
 */
#ifndef ASSAY_MOE_TESTS_ROUTING_REFERENCE_H
#define ASSAY_MOE_TESTS_ROUTING_REFERENCE_H

#include "oracle/moe/routing.h"

typedef __float128 quad;

/* As assay_routing_inputs, all of them in binary128. */
typedef struct reference_inputs {
    quad *logits, *bias, *per_expert_scale; /* the latter two may be NULL */
} reference_inputs;

quad reference_exp(quad x);
quad reference_score(assay_score_func score_func, quad x); /* elementwise ones */

/* weights [K] of token t with the experts `selected` [K]. */
void reference_weights(quad *weights, const reference_inputs *in, int64_t t, const int32_t *selected,
                       const assay_routing_config *config);
/* selected [T,K] */
quad reference_lb_loss(const reference_inputs *in, const int32_t *selected, const assay_routing_config *config);

/* The gradients of sum d_weights * weights + d_lb_loss * lb_loss by central differences, experts held; NULL: skipped.
 */
void reference_gradients(double *d_logits, double *d_bias, double *d_per_expert_scale, const double *d_weights,
                         double d_lb_loss, const int32_t *selected, const assay_routing_inputs *in,
                         const assay_routing_config *config);

/* Uniform in [0,1) and about normal, from a state that the caller seeds. */
double reference_uniform(uint64_t *state);
double reference_normal(uint64_t *state);

#endif
