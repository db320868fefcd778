/* What the files of routing share. */
#pragma once

#include <stddef.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/permute.h"
#include "oracle/moe/routing_rule.h"
#include "oracle/ops/vector_sums.h"

/* What the normalised weight of an expert is multiplied by. */
static inline double assay_routing_scale(const assay_routing_rule *rule, const double *per_expert_scale, int32_t expert)
{
    return per_expert_scale != NULL && expert != ASSAY_NO_EXPERT ? rule->factor * per_expert_scale[expert]
                                                                 : rule->factor;
}

static inline double routing_rounded(const assay_context *ctx, double x)
{
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &x);
    return x;
}

assay_status assay_routing_check_inputs(assay_context *ctx, const assay_routing_inputs *in,
                                        const assay_routing_config *config);

/* The first token of a part: tokens are cut into as many parts as there are threads. */
static inline int64_t assay_token_range_begin(const assay_context *ctx, int64_t tokens, int part)
{
    return tokens / ctx->threads * part + tokens % ctx->threads * part / ctx->threads;
}

/* scores_t [E] and what selects [E] of one token. */
void assay_routing_scores(const assay_context *ctx, double *scores, double *selecting, const double *logits,
                          const double *bias, int64_t experts, const assay_routing_rule *rule);
/* The naive form of a softmax over the chosen (assay_routing_has_naive_form), rounded step by step: emulated runs alone take
 * it. p [E] is the softmax over all. False: the chosen have too little of it for that form, and nothing is set. */
bool assay_routing_naive_forward(const assay_context *ctx, double *gathered, double *p, const double *selecting,
                                 const int32_t *selected, const assay_routing_config *config);
/* Adds to d [E], which takes what selects, from d_normalized [K] and what the forward gave. */
bool assay_routing_naive_backward(const assay_context *ctx, double *d, double *p, const double *selecting,
                                  const double *d_normalized, const double *gathered, const int32_t *selected,
                                  const assay_routing_config *config);
