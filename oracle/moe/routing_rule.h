/* The rule of a router family, and how it picks the experts of one token. */
#pragma once

#include "oracle/moe/routing.h"

/* What selects experts: scores + bias, the scores themselves, or the argument of the score function. */
typedef enum assay_selects { ASSAY_SELECTS_BIASED, ASSAY_SELECTS_SCORES, ASSAY_SELECTS_ARGUMENT } assay_selects;

/* d[i] -= (1 - missing) times the mean of the d weighed by the p, to the last bit: d - mean cancels where one p has nearly all
 * the weight, and the whole mean where the d come from weights over their sum. */
typedef void assay_sum_gradient(double *d, const double *p, double missing, int64_t count);
assay_sum_gradient assay_center;

/* A family's rule, so that the computation itself knows no families. */
typedef struct assay_routing_rule {
    assay_score_func score_func;
    assay_selects selects;
    bool bias_inside;    /* scores = f(logits + bias) */
    bool bias_linear;    /* the logits themselves have it: inside, or f is none and the weights have it */
    bool weighs_scores;  /* else what selects */
    bool softmax_chosen; /* softmax over the K chosen */
    bool divide;         /* by the sum over the K chosen plus epsilon */
    double epsilon;
    assay_sum_gradient *through_sum;                 /* of the sum over the K chosen */
    void (*behind)(double *d_logits, int64_t count); /* NULL: they stay as they are */
    double factor;                                   /* routed_scaling_factor or 1 */
    bool expert_scale;
    bool groups;
    double masked; /* what an expert of a group that goes is chosen by */
    bool hash;
    bool balance;          /* lb_loss */
    bool balance_pre_bias; /* of the scores: a bias that selects has no part in it */
    bool bias_updates;
} assay_routing_rule;
assay_routing_rule assay_routing_rule_of(const assay_routing_config *config);
/* Whether a softmax over the chosen may be computed as flashinfer's RenormalizeNaive and transformers' Mixtral and Qwen3 do: over
 * all experts, then divided by the sum of the chosen. It is the same function, with other roundings. */
bool assay_routing_has_naive_form(const assay_routing_rule *rule);

/* y = softmax(x); y may be x. */
void assay_softmax_row(const assay_context *ctx, double *y, const double *x, int64_t count);
/* f'(x) of an elementwise score function. */
double assay_score_derivative(assay_score_func score_func, double x);

/* What selects, which stays as it is, and scratch memory for a selection. */
typedef struct assay_routing_scratch {
    double *selecting;   /* [E] */
    double *group_score; /* [n_routing_groups] */
    double *top_value;   /* [max(K, topk_routing_group) + 1] */
    int32_t *top_index;  /* the same */
    int32_t *group_kept; /* [n_routing_groups] */
    double *probability; /* [E] of the naive form; a selection does not need it */
} assay_routing_scratch;

/* selected [K]: one token's experts, best first; margin: of that choice, groups included. */
void assay_routing_select(int32_t *selected, double *margin, const assay_routing_scratch *scratch,
                          const assay_routing_config *config, const assay_routing_rule *rule);
