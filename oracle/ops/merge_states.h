/* The merge of attention states: parts of one attention over disjoint keys, each with its log-sum-exp (docs/operations.md,
 * "merge_states"; vLLM merge_attn_states, FlashInfer merge_states, FlashMLA's combine).
 *
 * partial_out [P,B,S,N,Dv], partial_lse [P,B,N,S], sinks [N]? -> attention_out [B,S,N,Dv], lse [B,N,S]
 *   l_p = partial_lse_p, times ln 2 where it is in base 2; w_p = exp(l_p - L), L = log sum exp l_p
 *   attention_out = g sum w_p partial_out_p, g as in attention.h; lse = L, over ln 2 in base 2, without the sink
 *   dl_p = w_p (g <dout, partial_out_p> - g D + dL), D = <dout, attention_out>; dpartial_out_p = w_p g dout;
 *   dsink = -sum over rows of D (1 - g)
 * A part without keys has an lse of either infinity: it adds nothing, whatever it holds, NaN too, and its gradients are 0. Where
 * no part has keys, attention_out is `blind` and lse is `empty_row`. Sums run over ascending parts.
 *
 * Refused: a partial_lse that is NaN. */
#pragma once

#include "oracle/base/status.h"

typedef struct assay_merge_states_config {
    int64_t states, batch, sequence, heads, v_dim; /* P, B, S, N, Dv */
    bool base_2;
    double empty_row; /* an infinity */
    double blind;     /* out where no part has keys: 0 */
} assay_merge_states_config;

typedef struct assay_merge_states_inputs {
    const double *partial_out, *partial_lse;
    const double *sinks; /* NULL: none */
} assay_merge_states_inputs;

assay_status assay_merge_states_forward(assay_context *ctx, double *attention_out, double *lse,
                                        const assay_merge_states_inputs *in, const assay_merge_states_config *config);

typedef struct assay_merge_states_call {
    const assay_merge_states_config *config;
    const assay_merge_states_inputs *in;
    const double *attention_out, *lse, *dout, *dlse; /* dlse may be NULL */
} assay_merge_states_call;

/* NULL: nobody wants it. */
typedef struct assay_merge_states_gradients {
    double *dpartial_out, *dpartial_lse, *dsinks;
} assay_merge_states_gradients;
assay_status assay_merge_states_backward(assay_context *ctx, const assay_merge_states_gradients *g,
                                         const assay_merge_states_call *call);
