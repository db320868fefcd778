/* Multi-head latent attention (DeepSeek-V2 2.1; MaxText layers/attention_mla.py MLA).
 *
 * x [B,S,D], positions [B,S], segment_ids [B,S]? -> y [B,S,D]. Intermediates by their checkpoint names:
 *   query_wa_proj = x wq_a [T,Lq];  mla_q = rms_norm(query_wa_proj, q_norm) [T,Lq]           (q_lora_rank > 0)
 *   kv_wa_proj = x wkv_a [T,Lkv+Dr];  mla_kv = rms_norm(first Lkv of kv_wa_proj, kv_norm) [T,Lkv]
 *   query_proj = (q_nope, rope(q_pe)) * softmax_scale, q = mla_q wq_b, or x query [T,N,Dn+Dr]
 *   key_proj = (k_nope, rope(k_pe) for every head) [T,N,Dn+Dr];  value_proj [T,N,Dv];  (k_nope, value) = mla_kv wkv_b
 *   attention_out [T,N,Dv], lse [B,N,S] (attention.h);  out_proj = y = attention_out out
 * softmax_scale = query_scale; where that is 0 (Dn+Dr)^-0.5, times m^2 with m = 0.1 mscale ln(rope_factor) + 1 where
 * max_position_embeddings > original_max_position_embeddings.
 *
 * By a training recipe (quant_recipe.h) each product with a kernel, and each of its two of backward, takes what the recipe makes
 * of its operands as matrices: x [T,K], w [K,N], of wkv_b all heads' columns in one, of out all heads' rows. What is computed is
 * quantised as it is, in float64. Attention, rope, norms and the softmax scale are not touched.
 *
 * Refused: sizes below 1 (q_lora_rank: below 0), epsilon below 0, an mscale that is not finite, a query_scale below 0,
 * rope_factor <= 0 where the scale needs it, what yarn_rope.h refuses. */
#pragma once

#include "oracle/blocks/attention_operands.h"

typedef struct assay_mla_config {
    int64_t batch, sequence, emb_dim, heads;
    int64_t qk_nope_head_dim, v_head_dim; /* Dn, Dv; Dr is rope.dim */
    int64_t q_lora_rank, kv_lora_rank;    /* q_lora_rank 0: no query compression */
    double epsilon;                       /* of q_norm and kv_norm */
    double mscale;
    assay_rope_config rope;
    bool mask_padding;
    assay_quant_recipe_config recipe; /* its recipe is NULL: none */
    double soft_cap;                  /* of attention.h; so is variant */
    assay_attention_variant variant;
    int64_t window;     /* likewise */
    double query_scale; /* the softmax scale; 0: what follows from the sizes and mscale */
} assay_mla_config;

/* Of wq_a, q_norm and wq_b, or query: which there are says q_lora_rank. */
typedef enum assay_mla_weight {
    ASSAY_MLA_WQ_A,    /* [D,Lq] */
    ASSAY_MLA_Q_NORM,  /* [Lq] */
    ASSAY_MLA_WKV_A,   /* [D,Lkv+Dr] */
    ASSAY_MLA_KV_NORM, /* [Lkv] */
    ASSAY_MLA_WQ_B,    /* [Lq,N,Dn+Dr] */
    ASSAY_MLA_QUERY,   /* [D,N,Dn+Dr] */
    ASSAY_MLA_WKV_B,   /* [Lkv,N,Dn+Dv] */
    ASSAY_MLA_OUT,     /* [N,Dv,D] */
    ASSAY_MLA_WEIGHTS
} assay_mla_weight;

assay_status assay_mla_check(assay_context *ctx, const assay_mla_config *config);
double assay_mla_softmax_scale(const assay_mla_config *config);

/* Without a name: the configuration does not have it. */
assay_tensor_row assay_mla_weight_row(const assay_mla_config *config, int weight);

/* Inputs x, positions and segment_ids; checkpoints as above, and by a recipe the gradients that it quantises: q_gradient
 * [T,N,Dn+Dr], before the rotation and the softmax scale, query_wa_proj_gradient, kv_gradient [T,N,Dn+Dv] of k_nope and value, and
 * kv_wa_proj_gradient. */
void assay_mla_graph(graph *g, const assay_mla_config *config);
/* Its steps within another graph, whose axes are others afterwards (graph_within); gives out_proj. */
int assay_mla_steps(graph *g, const assay_mla_config *config, const assay_attention_operands *in, const int *w);
