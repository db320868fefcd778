/* One layer of a stack's golden as a case of its own, so that a backend is judged, and error scales come, a layer at a time
 * (docs/large.md): `only_layer`, with the layer's input and the gradient of its output that the golden has, rounded to
 * the case's dtype, as a model that keeps its residual stream in that type gives them to the layer. */
#pragma once

#include "harness/plan/golden_open.h"

/* The case NAME-layer-N, to be freed with assay_case_free. It has the profiles of the stack, or bf16 where that has none. Of what
 * the stack's case says of tensors it has what is of the layer. Refuses a golden that is no stack's or lacks the layer's
 * boundaries. */
assay_status assay_layer_case(assay_context *ctx, const assay_golden *stack, int64_t layer, assay_case *c);

/* What is given of that case; the golden is planned, and both outlive it. */
typedef struct assay_layer_given {
    const assay_golden *stack;
    char x[ASSAY_PATH_SIZE], dy[ASSAY_PATH_SIZE]; /* where they stand in the golden */
    assay_source given;
} assay_layer_given;
assay_source assay_layer_source(assay_layer_given *given, const assay_golden *stack, int64_t layer);
