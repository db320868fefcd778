/* Grouped-query attention with its projections (Ainslie et al. 2023; MaxText layers/attentions.py Attention; GPT-OSS:
 * transformers models/gpt_oss/modeling_gpt_oss.py).
 *
 * x [B,S,D], positions [B,S], segment_ids [B,S]? -> y [B,S,D]. Intermediates by their checkpoint names:
 *   query, key, value = x query + bias [T,N,Dh], x key + bias, x value + bias [T,Nkv,Dh]; with fused_qkv they are the
 *     first N, the next Nkv and the last Nkv heads of qkv_proj = x qkv_proj + bias [T,N+2Nkv,Dh]
 *   qk_norm: query and key are rms_norm of each head over Dh, before the rotation
 *   query_proj = rope(query) * query_scale;  key_proj = rope(key);  value_proj = value
 *   attention_out [T,N,Dh], lse [B,N,S] (attention.h: kv heads, window, sinks);  out_proj = y = attention_out out + bias
 *
 * Each intermediate is computed by itself from those before it, so that it can be dropped and computed again with the
 * same bits (rematerialisation). Backward computes again what has no name: query and key before their norm. Refused:
 * sizes below 1, kv_heads that do not divide heads, a negative window, epsilon below 0, a query_scale that is not above
 * 0 and finite, what yarn_rope.h refuses. */
#ifndef ASSAY_OPS_GQA_H
#define ASSAY_OPS_GQA_H

#include "oracle/base/tensor_table.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/yarn_rope.h"

typedef struct assay_gqa_config {
    int64_t batch, sequence, emb_dim;
    int64_t heads, kv_heads, head_dim; /* N, Nkv, Dh; rope.dim is Dh */
    int64_t window;                    /* keys that a query sees, itself the last; 0: all before it */
    double query_scale;                /* Dh^-0.5, or 1 where the query's kernel has it */
    bool fused_qkv;
    bool bias;      /* attention_bias: of all four projections */
    bool qk_norm;   /* use_qk_norm */
    bool sinks;     /* attention_sink */
    double epsilon; /* normalization_layer_epsilon, of query_norm and key_norm */
    assay_rope_config rope;
    bool mask_padding;
} assay_gqa_config;

/* Of qkv_proj, or query, key and value: which there are says fused_qkv. */
typedef enum assay_gqa_weight {
    ASSAY_GQA_QKV,        /* qkv_proj/kernel [D,N+2Nkv,Dh] */
    ASSAY_GQA_QKV_BIAS,   /* [N+2Nkv,Dh] */
    ASSAY_GQA_QUERY,      /* query/kernel [D,N,Dh] */
    ASSAY_GQA_QUERY_BIAS, /* [N,Dh] */
    ASSAY_GQA_QUERY_NORM, /* query_norm/scale [Dh] */
    ASSAY_GQA_KEY,        /* key/kernel [D,Nkv,Dh] */
    ASSAY_GQA_KEY_BIAS,   /* [Nkv,Dh] */
    ASSAY_GQA_KEY_NORM,   /* key_norm/scale [Dh] */
    ASSAY_GQA_VALUE,      /* value/kernel [D,Nkv,Dh] */
    ASSAY_GQA_VALUE_BIAS, /* [Nkv,Dh] */
    ASSAY_GQA_SINKS,      /* sinks [N] */
    ASSAY_GQA_OUT,        /* out/kernel [N,Dh,D] */
    ASSAY_GQA_OUT_BIAS,   /* [D] */
    ASSAY_GQA_WEIGHTS
} assay_gqa_weight;

typedef struct assay_gqa_weights {
    const double *w[ASSAY_GQA_WEIGHTS]; /* NULL: not there */
} assay_gqa_weights;

assay_gqa_weights assay_gqa_weights_of(double *const weights[ASSAY_GQA_WEIGHTS]);

typedef struct assay_gqa_inputs {
    const double *x;            /* [B,S,D] */
    const int32_t *positions;   /* [B,S] */
    const int32_t *segment_ids; /* [B,S] or NULL */
} assay_gqa_inputs;

/* In the order of the data flow: each needs x and some of those before it. */
typedef enum assay_gqa_tensor {
    ASSAY_GQA_QKV_PROJ, /* with fused_qkv alone */
    ASSAY_GQA_QUERY_PROJ,
    ASSAY_GQA_KEY_PROJ,
    ASSAY_GQA_VALUE_PROJ,
    ASSAY_GQA_ATTENTION_OUT, /* with lse: MaxText's `context` is both */
    ASSAY_GQA_OUT_PROJ,
    ASSAY_GQA_TENSORS,
    ASSAY_GQA_LSE = ASSAY_GQA_TENSORS /* a row of the table alone */
} assay_gqa_tensor;

/* One row each, at the sizes of the configuration; without a name: what it does not have. */
assay_tensor_row assay_gqa_weight_row(const assay_gqa_config *config, int weight);
assay_tensor_table assay_gqa_weight_table(const assay_gqa_config *config);
assay_tensor_row assay_gqa_tensor_row(const assay_gqa_config *config, assay_gqa_tensor tensor);
int64_t assay_gqa_tensor_count(const assay_gqa_config *config, assay_gqa_tensor tensor); /* elements; 0: not there */

/* NULL: not there (dropped, or not computed yet). Each is its own allocation. */
typedef struct assay_gqa_residuals {
    double *values[ASSAY_GQA_TENSORS];
    double *lse; /* comes and goes with attention_out */
} assay_gqa_residuals;
void assay_gqa_residuals_free(assay_gqa_residuals *r); /* safe on a zeroed struct */

assay_status assay_gqa_check(assay_context *ctx, const assay_gqa_config *config);
/* Operations of the products that computing it takes; a multiply and an add are 2. */
double assay_gqa_tensor_flops(const assay_gqa_config *config, assay_gqa_tensor tensor);

/* Allocates and computes one intermediate; those it needs must be there. Does nothing where it is there already, or
 * where its count is 0. After a failure it is not there. */
assay_status assay_gqa_compute(assay_context *ctx, assay_gqa_residuals *r, assay_gqa_tensor tensor,
                               const assay_gqa_inputs *in, const assay_gqa_weights *w, const assay_gqa_config *config);

/* Results of backward, laid out as what they are gradients of; a NULL one is skipped. All are overwritten. */
typedef struct assay_gqa_gradients {
    double *dx;
    double *g[ASSAY_GQA_WEIGHTS];
} assay_gqa_gradients;

assay_gqa_gradients assay_gqa_gradients_of(double *dx, double *const gradients[ASSAY_GQA_WEIGHTS]);

/* Every intermediate but out_proj must be there. */
assay_status assay_gqa_backward(assay_context *ctx, const assay_gqa_gradients *g, const double *dy,
                                const assay_gqa_residuals *r, const assay_gqa_inputs *in, const assay_gqa_weights *w,
                                const assay_gqa_config *config);
/* Of the products of backward. */
double assay_gqa_backward_flops(const assay_gqa_config *config);

#endif
