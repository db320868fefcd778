/* What the files of mla_decode and gqa_decode share. */
#pragma once

#include "harness/operations/op_block.h"
#include "harness/operations/op_cache.h"

typedef struct decode_config {
    quad_decode_config quad;         /* the first, since it is what the second form gets */
    bool sinks, paged, lse, lengths; /* lse is an output; lists have lengths */
    int32_t padding;                 /* of the block table */
} decode_config;

static inline const assay_decode_config *decode_of(const void *config)
{
    return &((const decode_config *)config)->quad.decode;
}

assay_status decode_derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices);
assay_status decode_used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *source, bool **used);
