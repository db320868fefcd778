/* Expert routing (docs/operations.md, "routing"; MaxText moe.py GateLogit, get_topk, deepseek_routing, expert_group_mask, load_balance_loss,
 * calculate_load_balance_updates; DeepSeek-V3 inference/model.py Gate).
 *
 * logits [T,E] (+ bias [E]) -> selected_experts [T,K] int32, weights [T,K], margin [T], lb_loss, bias_updates [E].
 * scores = f(logits), biased = scores + bias; the fused family takes scores = f(logits + bias), gemma4 likewise with
 * the softmax for f. What each family chooses by, what it weighs (gathered at the K chosen), and how:
 *   deepseek3  by biased; scores, / (sum + 1e-20) when f is sigmoid or sqrtsoftplus, * routed_scaling_factor; undivided
 *              and by the logits where a serving engine's method says so
 *   deepseek2  by biased; biased, / and * likewise
 *   default    by biased; softmax over the K chosen biased, / sum if norm_topk_prob, * per_expert_scale
 *   llama4     by biased; biased
 *   gemma4     by logits + bias; scores, / sum if norm_topk_prob, * per_expert_scale
 *   fused      by scores; scores, / sum if norm_topk_prob; no f means the softmax
 * Groups belong to the deepseek families, as the scaling factor does; the others ignore both keys, as MaxText does (a
 * case that gives them is refused: harness/operations/model_check.c).
 * The fused family has neither lb_loss nor bias_updates, nor has hash routing.
 * lb_loss: P = softmax of what experts are chosen by, density[b,e] = mean over S of the times e is chosen,
 * loss = mean over (b,e) of density * mean_S(P) * E^2 * weight; differentiated through P alone. With another scope all
 * tokens count as one sequence (arXiv 2501.11873). balance_pre_bias: P = softmax(scores), as on MaxText's sparse path
 * (0.2.5, moe.py, permute), so that the bias has no gradient from it.
 * z_loss = mean over T of (log of the sum of exp(logits))^2 * weight (ST-MoE, arXiv 2202.08906), with a bias that the logits
 * themselves have (Megatron-LM router.py, apply_z_loss): no score function comes before it, and weights have it too.
 * bias_updates = rate * sign(choices / E - count_e); choices is T K, less those of -1.
 *
 * A case may give the choice, and its weights. A slot of -1 is none: weight 0, gradient 0, not counted, and the other
 * weights are those of a token with so many choices fewer. use_random_routing (random_routing() of MaxText, whose draws
 * are a given choice here): the weights are what experts are chosen by, gathered, and nothing else is done to them.
 *
 * Equal values: the lower index first. Refused, each with its keys and values: K < 1, K > E, groups that do not divide
 * E, more groups kept than there are, fewer allowed experts than K, llama4 with K != 1 or norm_topk_prob, gemma4 with a
 * score function of its own, fused with sqrtsoftplus or hash routing, per_expert_scale in a family without it, token
 * ids outside the hash table, z_loss with fused or hash routing, a token's experts outside [0,E) or not distinct (random
 * routing may repeat one), logits and biases that are not finite, given weights that are not finite beside an expert,
 * use_random_routing without a given choice or in the fused family, a choice by the logits with a bias or a balance loss,
 * balance_pre_bias in another family than deepseek3.
 */
#pragma once

#include "oracle/base/status.h"

/* Which rule picks experts and weighs them. */
typedef enum assay_router_family {
    ASSAY_ROUTER_DEEPSEEK3, /* selection by biased, weights from scores; deepseek3 and deepseek4 */
    ASSAY_ROUTER_DEEPSEEK2, /* weights from biased values, not divided */
    ASSAY_ROUTER_DEFAULT,   /* mixtral, gpt_oss, qwen3 and others: softmax over the K chosen biased logits */
    ASSAY_ROUTER_LLAMA4,    /* K = 1; the weight is the chosen logit; the block scales its input by its sigmoid */
    ASSAY_ROUTER_GEMMA4,    /* softmax over all E, gathered */
    ASSAY_ROUTER_FUSED,     /* fused_moe_func: scores of (logits + bias), top-k of them, divided by their sum */
} assay_router_family;

typedef enum assay_score_func {
    ASSAY_SCORE_NONE,
    ASSAY_SCORE_SIGMOID,
    ASSAY_SCORE_SOFTMAX,
    ASSAY_SCORE_SQRTSOFTPLUS
} assay_score_func;

typedef enum assay_group_score { ASSAY_GROUP_TOP2_SUM, ASSAY_GROUP_MAX } assay_group_score;

/* Which tokens share a density: those of a sequence, all of a shard, or all of all shards. */
typedef enum assay_balance_scope {
    ASSAY_BALANCE_SEQUENCE,
    ASSAY_BALANCE_BATCH,
    ASSAY_BALANCE_GLOBAL /* where no shards are, as BATCH */
} assay_balance_scope;

struct assay_routing_rule; /* routing_rule.h */

typedef struct assay_routing_config {
    int64_t batch, sequence; /* T = batch * sequence */
    int64_t num_experts, num_experts_per_tok;
    assay_router_family family;
    assay_score_func score_func;
    int64_t n_routing_groups; /* deepseek families; -1: no groups */
    int64_t topk_routing_group;
    assay_group_score group_score;
    int64_t top_k_in_group;       /* of ASSAY_GROUP_TOP2_SUM: so many values are summed; 0: two, as the name says */
    double routed_scaling_factor; /* deepseek families */
    bool norm_topk_prob;          /* default, gemma4, fused */
    double norm_topk_epsilon;     /* added to the sum that weights are divided by; 0: what the family adds */
    bool undivided;               /* deepseek: weights are not divided (flashinfer's Sigmoid) */
    bool select_by_logits;        /* deepseek3: by the logits, not by biased scores (flashinfer's TopKSigmoid) */
    bool use_random_routing;      /* a given choice, which may name an expert twice; weights are what it is chosen by */
    bool renormalize_exactly;     /* deepseek3: divide by the sum itself, not by the sum + 1e-20 (batch-split model) */
    double load_balance_loss_weight; /* > 0 turns lb_loss on (not with hash routing) */
    assay_balance_scope balance_scope;
    bool balance_pre_bias;                               /* deepseek3: P of lb_loss from the scores, not from biased */
    double z_loss_weight;                                /* > 0 turns z_loss on */
    double routed_bias_update_rate;                      /* > 0 turns bias_updates on (not with hash routing) */
    int64_t hash_rows;                                   /* rows V of tid2eid; 0: no hash routing */
    void (*other_rule)(struct assay_routing_rule *rule); /* gives the family's another member; NULL: it is as it is */
} assay_routing_config;

typedef struct assay_routing_inputs {
    const double *logits;           /* [T,E] */
    const double *bias;             /* [E] or NULL */
    const double *per_expert_scale; /* [E] or NULL: multiplies the weights (default and gemma4 families) */
    const int32_t *tid2eid;         /* [V,K] or NULL: hash routing */
    const int32_t *input_ids;       /* [T] with tid2eid */
    const int32_t *given_experts;   /* [T,K] or NULL: evaluate with this choice instead of choosing (all families); its
                                       order is kept and the margin is the one of the free choice; -1 is no expert */
    bool choice_is_input;           /* given_experts is the case's own: nothing is chosen */
    const double *given_weights;    /* [T,K] or NULL: with the case's own choice, its weights; nothing else is read */
} assay_routing_inputs;

/* Results, which backward also reads. */
typedef struct assay_routing {
    int32_t *selected_experts; /* [T,K] best first; hash routing: in the table's order */
    double *weights;           /* [T,K] after all scaling: what combines (llama4: the chosen logit) */
    double *margin;            /* [T]; +inf with hash routing and where the choice is an input */
    double *scores;            /* [T,E] f(logits), or f(logits + bias) */
    double *gathered;          /* [T,K] what is divided and scaled (default family: after its softmax) */
    double *probabilities;     /* [T,E] softmax of what experts are chosen by, when lb_loss is on, else NULL */
    double *density;           /* [B,E], when lb_loss is on, else NULL */
    double *log_sums;       /* [T] log of the sum of exp(logits), with a bias of theirs, when z_loss is on, else NULL */
    double lb_loss, z_loss; /* 0 when off */
    double *bias_updates;   /* [E] or NULL when off */
    int32_t *group_sizes;   /* [E] bincount of selected_experts */
} assay_routing;

assay_status assay_routing_check(assay_context *ctx, const assay_routing_config *config);
/* Whether the weights of the chosen experts are divided by their sum. */
bool assay_routing_divides(const assay_routing_config *config);
assay_status assay_routing_alloc(assay_context *ctx, assay_routing *r, const assay_routing_config *config);
void assay_routing_free(assay_routing *r); /* safe on a zeroed struct */

assay_status assay_routing_forward(assay_context *ctx, assay_routing *r, const assay_routing_inputs *in,
                                   const assay_routing_config *config);

/* What the experts of tokens [first, first + count) are chosen by, before groups are masked: selecting [count,E]. */
assay_status assay_routing_selecting(assay_context *ctx, double *selecting, const assay_routing_inputs *in,
                                     int64_t first, int64_t count, const assay_routing_config *config);

/* mask [tokens,E]: 1 where an expert's group stays, else 0; all 1 without groups. biased [tokens,E]. */
assay_status assay_expert_group_mask(assay_context *ctx, double *mask, const double *biased, int64_t tokens,
                                     const assay_routing_config *config);

/* d_weights [T,K] or NULL (zero), d_lb_loss and d_z_loss (0 without one) -> d_logits [T,E], d_bias [E] or NULL,
 * d_per_expert_scale [E] or NULL; overwritten. */
assay_status assay_routing_backward(assay_context *ctx, double *d_logits, double *d_bias, double *d_per_expert_scale,
                                    const double *d_weights, double d_lb_loss, double d_z_loss, const assay_routing *r,
                                    const assay_routing_inputs *in, const assay_routing_config *config);

/* Token dropping (docs/operations.md, "moe"; moe.py generate_masks): rows of capacity per batch row and expert,
 * int(max(ceil(S*K/E) * capacity_factor, capacity_factor)); capacity_factor > 0. */
int64_t assay_expert_capacity(const assay_routing_config *config, double capacity_factor);
/* kept [T,K]: whether the choice fits; position [T,K]: its rank in (s,k) order among the choices of its expert in its
 * batch row, from 0, also for dropped ones. combine_mask [B,S,E,C] = weight at (e, position), 0 elsewhere; may be NULL. */
void assay_capacity_masks(bool *kept, int32_t *position, double *combine_mask, const assay_routing *r, int64_t capacity,
                          const assay_routing_config *config);
