/* What forward and backward of grouped-query attention share. */
#ifndef ASSAY_OPS_GQA_INTERNAL_H
#define ASSAY_OPS_GQA_INTERNAL_H

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/gqa.h"

assay_attention_config gqa_attention_config(const assay_gqa_config *config);
assay_attention_inputs gqa_attention_inputs(const assay_gqa_residuals *r, const assay_gqa_inputs *in,
                                            const assay_gqa_weights *w);

/* The weights of a projection (norm -1: it has none), and its heads among those of qkv_proj. */
typedef struct gqa_heads {
    int kernel, bias, norm;
    int64_t first, count;
} gqa_heads;
gqa_heads gqa_heads_of(const assay_gqa_config *config, assay_gqa_tensor tensor);

/* x times the kernel plus bias, or, with fused_qkv, its heads of qkv. */
assay_status gqa_project(assay_context *ctx, double *out, assay_gqa_tensor tensor, const double *qkv, const double *x,
                         const assay_gqa_weights *w, const assay_gqa_config *config);

/* Heads [T,count,Dh] that are rotated in place. */
assay_rope_rows gqa_rope_rows(double *heads, int64_t count, const assay_gqa_config *config);
/* The query, or its gradient, times query_scale. */
void gqa_scale_query(const assay_context *ctx, double *query, const assay_gqa_config *config);

#endif
