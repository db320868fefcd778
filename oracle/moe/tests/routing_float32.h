/* Routing as a program in float32 computes it, every intermediate rounded: a correct implementation of low precision.
 */
#ifndef ASSAY_MOE_TESTS_ROUTING_FLOAT32_H
#define ASSAY_MOE_TESTS_ROUTING_FLOAT32_H

#include "oracle/moe/tests/routing_cases.h"

typedef struct float32_results {
    float weights[TOKENS * MOST_CHOSEN], lb_loss, d_logits[TOKENS * EXPERTS], d_bias[EXPERTS], d_scale[EXPERTS];
} float32_results;

/* With the experts `selected`; d_weights may be NULL. Naive: a softmax over the chosen as one over all experts, divided by the
 * sum of the chosen, with the gradient that automatic differentiation makes of that. */
void float32_routing(float32_results *results, const case_data *data, const double *d_weights, float d_lb_loss,
                     const int32_t *selected, bool naive);

#endif
