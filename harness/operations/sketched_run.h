/* A sink before another that wants sketches: large gradients, and their error scales, stream into these, everything else
 * passes. */
#pragma once

#include "harness/operations/operation.h"

typedef struct assay_sketching {
    const assay_case *c;
    const assay_sink *out;
    const assay_precision *precisions; /* whose error scales come */
    int precision_count;
    struct assay_sketched *tensors;
    int count;
} assay_sketching;

/* Those of list->sketched of which `out` wants a part, for results of the case. All that is given must outlive it. */
assay_status assay_sketching_open(assay_context *ctx, assay_sketching *s, const assay_case *c,
                                  const assay_tensor_list *list, const assay_sink *out,
                                  const assay_precision *precisions, int precision_count);
assay_sink assay_sketching_sink(assay_sketching *s);
void assay_sketching_close(assay_sketching *s); /* safe on a zeroed struct */
