/* Attention over a cache by a plan of what is read. */
#pragma once

#include "oracle/ops/decode_attention.h"

enum { DECODE_ROWS = 128 }; /* queries at a time */

assay_key_range decode_overlap(assay_key_range a, assay_key_range b);

static inline assay_key_range *decode_seen(const assay_decode_plan *plan, int64_t list, int64_t token, int64_t split)
{
    return plan->seen + (list * plan->tokens + token) * plan->splits + split;
}

/* The same of equal splits, as long as a multiple of `unit` keys; whole: of one split, and it is to be there as long. */
assay_status decode_cut(assay_context *ctx, const assay_decode_config *config, const assay_decode_plan *whole,
                        int64_t splits, int64_t unit, assay_decode_plan *cut);

/* In [B,N,S], of a row of [B,S,N]. */
int64_t decode_place_of_lse(const assay_decode_config *config, int64_t row);

/* out [splits,B,S,N,V], lse [splits,B,N,S], of absorbed queries or of heads of their own. */
assay_status decode_attend(assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                           const assay_decode_plan *plan, const double *query, double *out, double *lse);
assay_status decode_back(assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                         const assay_decode_plan *plan, const assay_decode_call *call, const assay_decode_gradients *g);
