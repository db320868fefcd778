/* Causal attention (SPEC 3; Dao 2023 for the backward; MaxText layers/attention_op.py).
 *
 * query, key [B,S,N,Dq], value [B,S,N,Dv], segment_ids [B,S]? -> attention_out [B,S,N,Dv], lse [B,N,S]
 *   s_ij = <query_i, key_j> for j <= i of the same segment; p = softmax over j; out_i = sum p_ij value_j;
 *   lse_i = log sum exp s_ij (natural). The query comes already scaled.
 *   D_i = <dout_i, out_i>; ds_ij = p_ij (<dout_i, value_j> - D_i + dlse_i), p_ij = exp(s_ij - lse_i);
 *   dquery = ds key, dkey = ds^T query, dvalue = p^T dout
 * Sums run over ascending key (dkey, dvalue: ascending query), one chain each. A token with segment 0 is padding when
 * mask_padding: it sees nothing and nobody sees it (out 0, lse -inf, gradients 0, whatever it holds, NaN too). Tokens
 * of a segment need not be adjacent. What a query does not see never reaches it, NaN neither.
 *
 * Memory: O(S) a head and thread besides the tensors, never [S,S]. */
#ifndef ASSAY_OPS_ATTENTION_H
#define ASSAY_OPS_ATTENTION_H

#include "oracle/base/status.h"

typedef struct assay_attention_config {
    int64_t batch, sequence, heads, qk_dim, v_dim;
    bool mask_padding;
} assay_attention_config;

typedef struct assay_attention_inputs {
    const double *query, *key;  /* [B,S,N,Dq] */
    const double *value;        /* [B,S,N,Dv] */
    const int32_t *segment_ids; /* [B,S] or NULL: one segment */
} assay_attention_inputs;

/* "inputs/segment_ids[3] is -1, expected 0 or more" */
assay_status assay_attention_check_segments(assay_context *ctx, const int32_t *segment_ids, int64_t tokens);

assay_status assay_attention_forward(assay_context *ctx, double *attention_out, double *lse,
                                     const assay_attention_inputs *in, const assay_attention_config *config);

/* dlse [B,N,S] may be NULL. All results are overwritten. */
typedef struct assay_attention_gradients {
    double *dquery, *dkey, *dvalue;
} assay_attention_gradients;
assay_status assay_attention_backward(assay_context *ctx, const assay_attention_gradients *g, const double *dout,
                                      const double *dlse, const double *attention_out, const double *lse,
                                      const assay_attention_inputs *in, const assay_attention_config *config);

/* Products alone; a multiply and an add are 2. Segments are not looked at. */
double assay_attention_flops(const assay_attention_config *config, bool backward);

#endif
