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
 * Refused: sizes below 1, kv_heads that do not divide heads, a negative window, epsilon below 0, a query_scale that is not above
 * 0 and finite, what yarn_rope.h refuses. */
#pragma once

#include "oracle/blocks/attention_operands.h"

typedef struct assay_gqa_config {
    int64_t batch, sequence, emb_dim;
    int64_t heads, kv_heads, head_dim; /* N, Nkv, Dh; the first rope.dim numbers of a head are turned */
    int64_t window;                    /* keys that a query sees, itself the last; 0: all before it */
    double query_scale;                /* Dh^-0.5, or 1 where the query's kernel has it */
    bool fused_qkv;
    bool bias;      /* attention_bias: of all four projections */
    bool qk_norm;   /* use_qk_norm */
    bool sinks;     /* attention_sink */
    double epsilon; /* normalization_layer_epsilon, of query_norm and key_norm */
    assay_rope_config rope;
    bool mask_padding;
    double soft_cap; /* of attention.h; so is variant */
    assay_attention_variant variant;
    assay_quant_recipe_config recipe; /* its recipe is NULL: none */
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

assay_status assay_gqa_check(assay_context *ctx, const assay_gqa_config *config);

/* Without a name: the configuration does not have it. */
assay_tensor_row assay_gqa_weight_row(const assay_gqa_config *config, int weight);

/* Inputs x, positions and segment_ids; checkpoints as above, and by a recipe the gradients that it quantises: query_gradient,
 * key_gradient and value_gradient before norm and rotation, or qkv_proj_gradient. */
void assay_gqa_graph(graph *g, const assay_gqa_config *config);
/* Its steps within another graph, whose axes are others afterwards (graph_within); gives out_proj. */
int assay_gqa_steps(graph *g, const assay_gqa_config *config, const assay_attention_operands *in, const int *w);
