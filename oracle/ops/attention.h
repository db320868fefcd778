/* Causal attention (docs/operations.md, "attention"; Dao 2023 for the backward; MaxText layers/attention_op.py; sinks: FlashMLA
 * flash_mla_interface.py, transformers modeling_gpt_oss.py).
 *
 * query [B,S,N,Dq], key [B,S,Nkv,Dq], value [B,S,Nkv,Dv], sinks [N]?, segment_ids [B,S]?
 *   -> attention_out [B,S,N,Dv], lse [B,N,S]; query head n has key and value of head n / (N / Nkv)
 *   s_ij = <query_i, key_j> for j <= i of the same segment and, in a window, i - j < window; soft_cap: s_ij is
 *     soft_cap tanh(<query_i, key_j> / soft_cap) (Gemma 2; MaxText attn_logits_soft_cap); p = softmax over j;
 *   out_i = g_i sum p_ij value_j; lse_i = log sum exp s_ij (natural), without the sink. The query comes already scaled.
 *   g_i = exp(lse_i) / (exp(lse_i) + exp(sink)) of the head, 1 without sinks
 *   D_i = <dout_i, out_i>; ds_ij = p_ij (g_i <dout_i, value_j> - g_i D_i + dlse_i), p_ij = exp(s_ij - lse_i);
 *   ds_ij of a capped score times 1 - (s_ij / soft_cap)^2;
 *   dquery = ds key, dkey = ds^T query, dvalue = p^T (g dout), summed over the heads that share it;
 *   dsink = -sum over rows of D_i (1 - g_i)
 * Sums run over ascending key (dkey, dvalue: ascending query, then ascending head), one chain each. A token with segment 0 is padding when
 * mask_padding: it sees nothing and nobody sees it (out 0, lse -inf, gradients 0, whatever it holds, NaN too). Tokens
 * of a segment need not be adjacent; a window counts all tokens. What a query does not see never reaches it, NaN
 * neither, but for a key of its segment outside of the window, which is to be finite.
 *
 * Memory: O(S) a head and thread besides the tensors, never [S,S]. */
#pragma once

#include "oracle/base/status.h"

/* What some kernel defines otherwise; zeros: as above. */
typedef struct assay_attention_variant {
    bool sees_next; /* query i sees key i + 1 of its segment, too */
    bool in_turns;  /* query head n has key and value of head n % Nkv */
    double blind;   /* out of a row that sees no key */
} assay_attention_variant;

typedef struct assay_attention_config {
    int64_t batch, sequence, heads, qk_dim, v_dim;
    bool mask_padding;
    int64_t kv_heads; /* Nkv; 0: N */
    int64_t window;   /* sliding_window_size; 0: none */
    double soft_cap;  /* attn_logits_soft_cap; 0: none */
    assay_attention_variant variant;
} assay_attention_config;

typedef struct assay_attention_inputs {
    const double *query;        /* [B,S,N,Dq] */
    const double *key, *value;  /* [B,S,Nkv,Dq], [B,S,Nkv,Dv] */
    const int32_t *segment_ids; /* [B,S] or NULL: one segment */
    const double *sinks;        /* [N] or NULL: none */
} assay_attention_inputs;

/* "base_num_kv_heads is 3, expected a divisor of base_num_query_heads (8)" */
assay_status assay_attention_check(assay_context *ctx, const assay_attention_config *config);
int64_t assay_attention_kv_heads(const assay_attention_config *config);

/* "inputs/segment_ids[3] is -1, expected 0 or more" */
assay_status assay_attention_check_segments(assay_context *ctx, const int32_t *segment_ids, int64_t tokens);
/* Of [B,S,width] values, tokens * width of them, those of padding may be NaN or infinite, and no others. segment_ids NULL: no
 * token is padding. */
assay_status assay_attention_check_tokens(assay_context *ctx, const char *path, const double *values, int64_t tokens,
                                          int64_t sequence, int64_t width, const int32_t *segment_ids);
/* A token that holds such a number counts as 0; cleared [tokens], which may be NULL, says which do. */
void assay_attention_clear_padding(double *x, bool *cleared, int64_t tokens, int64_t width);

assay_status assay_attention_forward(assay_context *ctx, double *attention_out, double *lse,
                                     const assay_attention_inputs *in, const assay_attention_config *config);

/* dlse [B,N,S] may be NULL. All results are overwritten. */
typedef struct assay_attention_gradients {
    double *dquery, *dkey, *dvalue;
    double *dsinks; /* NULL: skipped, as where there are none */
} assay_attention_gradients;
assay_status assay_attention_backward(assay_context *ctx, const assay_attention_gradients *g, const double *dout,
                                      const double *dlse, const double *attention_out, const double *lse,
                                      const assay_attention_inputs *in, const assay_attention_config *config);

/* Rounded as a kernel has it, in the emulated runs. */
double assay_rounded_log(const assay_context *ctx, double x);

/* Products alone; a multiply and an add are 2. Segments are not looked at. */
double assay_attention_flops(const assay_attention_config *config, bool backward);
