/* Multi-head latent attention (SPEC 4; DeepSeek-V2 2.1; MaxText layers/attention_mla.py MLA).
 *
 * x [B,S,D], positions [B,S], segment_ids [B,S]? -> y [B,S,D]. Intermediates by their checkpoint names:
 *   query_wa_proj = x wq_a [T,Lq];  mla_q = rms_norm(query_wa_proj, q_norm) [T,Lq]           (q_lora_rank > 0)
 *   kv_wa_proj = x wkv_a [T,Lkv+Dr];  mla_kv = rms_norm(first Lkv of kv_wa_proj, kv_norm) [T,Lkv]
 *   query_proj = (q_nope, rope(q_pe)) * softmax_scale, q = mla_q wq_b, or x query [T,N,Dn+Dr]
 *   key_proj = (k_nope, rope(k_pe) for every head) [T,N,Dn+Dr];  value_proj [T,N,Dv];  (k_nope, value) = mla_kv wkv_b
 *   attention_out [T,N,Dv], lse [B,N,S] (attention.h);  out_proj = y = attention_out out
 * softmax_scale = (Dn+Dr)^-0.5, times m^2 with m = 0.1 mscale ln(rope_factor) + 1 where max_position_embeddings >
 * original_max_position_embeddings.
 *
 * By a training recipe (quant_recipe.h) each product with a kernel, and each of its two of backward, takes what the recipe makes
 * of its operands as matrices: x [T,K], w [K,N], of wkv_b all heads' columns in one, of out all heads' rows. What is computed is
 * quantised as it is, in float64. Attention, rope, norms and the softmax scale are not touched.
 *
 * Each intermediate is computed by itself from those before it, so that it can be dropped and computed again with the
 * same bits (rematerialisation). Refused: sizes below 1 (q_lora_rank: below 0), epsilon below 0, an mscale that is not
 * finite, rope_factor <= 0 where the scale needs it, what yarn_rope.h refuses. */
#ifndef ASSAY_OPS_MLA_H
#define ASSAY_OPS_MLA_H

#include "oracle/base/tensor_table.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/yarn_rope.h"

typedef struct assay_mla_config {
    int64_t batch, sequence, emb_dim, heads;
    int64_t qk_nope_head_dim, v_head_dim; /* Dn, Dv; Dr is rope.dim */
    int64_t q_lora_rank, kv_lora_rank;    /* q_lora_rank 0: no query compression */
    double epsilon;                       /* of q_norm and kv_norm */
    double mscale;
    assay_rope_config rope;
    bool mask_padding;
    assay_recipe_config recipe; /* its recipe is NULL: none */
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

typedef struct assay_mla_weights {
    const double *w[ASSAY_MLA_WEIGHTS]; /* NULL: not there */
} assay_mla_weights;

assay_mla_weights assay_mla_weights_of(double *const weights[ASSAY_MLA_WEIGHTS]);

typedef struct assay_mla_inputs {
    const double *x;            /* [B,S,D] */
    const int32_t *positions;   /* [B,S] */
    const int32_t *segment_ids; /* [B,S] or NULL */
} assay_mla_inputs;

/* In the order of the data flow: each needs x and some of those before it. */
typedef enum assay_mla_tensor {
    ASSAY_MLA_QUERY_WA_PROJ,
    ASSAY_MLA_MLA_Q,
    ASSAY_MLA_KV_WA_PROJ,
    ASSAY_MLA_MLA_KV,
    ASSAY_MLA_QUERY_PROJ,
    ASSAY_MLA_KEY_PROJ,
    ASSAY_MLA_VALUE_PROJ,
    ASSAY_MLA_ATTENTION_OUT, /* with lse */
    ASSAY_MLA_OUT_PROJ,
    ASSAY_MLA_TENSORS,
    ASSAY_MLA_LSE = ASSAY_MLA_TENSORS, /* this and those below: rows of the table alone */
    /* What backward quantises by a recipe, and computed itself: gradients of what products give. */
    ASSAY_MLA_Q_GRADIENT,        /* [T,N,Dn+Dr]: of q, before its rotation and the softmax scale */
    ASSAY_MLA_QUERY_WA_GRADIENT, /* [T,Lq] */
    ASSAY_MLA_KV_GRADIENT,       /* [T,N,Dn+Dv]: of k_nope and value */
    ASSAY_MLA_KV_WA_GRADIENT,    /* [T,Lkv+Dr] */
    ASSAY_MLA_ROWS
} assay_mla_tensor;

/* One row each, at the sizes of the configuration; without a name: what it does not have. */
assay_tensor_row assay_mla_weight_row(const assay_mla_config *config, int weight);
assay_tensor_table assay_mla_weight_table(const assay_mla_config *config);
assay_tensor_row assay_mla_tensor_row(const assay_mla_config *config, assay_mla_tensor tensor);
int64_t assay_mla_tensor_count(const assay_mla_config *config, assay_mla_tensor tensor); /* elements; 0: not there */

/* NULL: not there (dropped, or not computed yet). Each is its own allocation. */
typedef struct assay_mla_residuals {
    double *values[ASSAY_MLA_TENSORS];
    double *lse; /* comes and goes with attention_out */
    /* Of what a recipe quantises (quantised_spread.h): mla_q, mla_kv, attention_out, gradients. NULL: exact. The caller's. */
    const double *spread[ASSAY_MLA_ROWS];
} assay_mla_residuals;
void assay_mla_residuals_free(assay_mla_residuals *r); /* safe on a zeroed struct */

assay_status assay_mla_check(assay_context *ctx, const assay_mla_config *config);
double assay_mla_softmax_scale(const assay_mla_config *config);
/* Operations of the products that computing it takes; a multiply and an add are 2. */
double assay_mla_tensor_flops(const assay_mla_config *config, assay_mla_tensor tensor);

/* Allocates and computes one intermediate; those it needs must be there. Does nothing where it is there already, or
 * where its count is 0. After a failure it is not there. */
assay_status assay_mla_compute(assay_context *ctx, assay_mla_residuals *r, assay_mla_tensor tensor,
                               const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config);

/* Results of backward, laid out as what they are gradients of; a NULL one is skipped. All are overwritten. */
typedef struct assay_mla_gradients {
    double *dx;
    double *g[ASSAY_MLA_WEIGHTS];
    /* NULL, or is shown each gradient that a recipe quantises before it is, in the order of their rows; it may change it. */
    assay_status (*take)(assay_context *ctx, void *self, assay_mla_tensor gradient, double *values);
    void *self;
} assay_mla_gradients;

assay_mla_gradients assay_mla_gradients_of(double *dx, double *const gradients[ASSAY_MLA_WEIGHTS]);

/* Every intermediate but out_proj must be there. */
assay_status assay_mla_backward(assay_context *ctx, const assay_mla_gradients *g, const double *dy,
                                const assay_mla_residuals *r, const assay_mla_inputs *in, const assay_mla_weights *w,
                                const assay_mla_config *config);
/* Of the products of backward. */
double assay_mla_backward_flops(const assay_mla_config *config);

/* The absorbed form (DeepSeek-V3 inference/model.py, attn_impl "absorb"): scores from mla_kv and the rotated k_pe, with
 * the key half of wkv_b multiplied into the query and the value half into the attention's output; key_proj and
 * value_proj are never formed. y [B,S,D]: that of assay_mla_compute up to rounding. */
assay_status assay_mla_absorbed_forward(assay_context *ctx, double *y, const assay_mla_inputs *in,
                                        const assay_mla_weights *w, const assay_mla_config *config);

#endif
