/* Small DeepSeek layers and stacks with random weights, run by oracle/layer through its source and sink. */
#ifndef ASSAY_SPEC_TESTS_SPEC_LAYER_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_LAYER_CASE_H

#include "oracle/spec/tests/spec_mla_case.h"

typedef struct layer_variant {
    assay_stack_config config;
    segment_kind segments;
} layer_variant;

/* Width 8, 2 heads, 4 experts and a shared one, with load-balance loss and bias updates; of the layers the first
 * `dense` are dense. */
layer_variant small_stack(int64_t layers, int64_t dense, int64_t batch, int64_t sequence);

/* Makes the inputs, runs the stack and leaves all it gives, gradients too, in the case's results. */
void layer_case_start(spec_case *c, const layer_variant *v, uint64_t seed);

#endif
