/* What the operations over a cache give to other ways of computing the same. */
#pragma once

#include "harness/operations/op_work.h"
#include "oracle/ops/decode_attention.h"

/* Caches as attention reads them, where they are not given so. */
typedef struct assay_decode_caches {
    double *key, *value;
} assay_decode_caches;
void assay_decode_release_caches(assay_decode_caches *caches);

assay_status assay_decode_read_inputs(assay_context *ctx, const assay_work *w, assay_decode_caches *made,
                                      assay_decode_inputs *in);
