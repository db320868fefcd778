/* The errors of one token's routing (propagate_routing.c), step by step as routing.c takes it. */
#pragma once

#include "oracle/moe/routing_rule.h"
#include "oracle/propagate/propagate_routing.h"
#include "oracle/propagate/shared_errors.h"

enum { ROUTING_VECTORS = 12, ROUTING_SCRATCH = 7 };

/* A token's experts are all E where they share errors, through a softmax over all of them; else the K chosen alone. */
typedef struct routing_token {
    const assay_precision *precision;
    const assay_routing_run *run;
    assay_routing_rule rule;
    int64_t t, n;
    assay_errors space;
    /* [n] */
    assay_uncertain argument, score, selecting, value; /* value: what is weighed, 0 where an expert is not chosen */
    assay_uncertain normalized;                        /* softmax and division done, no scaling */
    assay_uncertain probability, balance;              /* of lb_loss: the softmax, and the gradient of what selects */
    assay_uncertain d_normalized, d_value, d_bias, d_argument, work;
    double *ones, *chosen; /* [n] 1; 1 where the expert is chosen, else 0 */
    double *scale;         /* [n] what the normalised weight is multiplied by */
    double *rounding;      /* [n] variance of what d_argument is rounded by last */
    double *a, *b;         /* [n] scratch */
    double *variance;      /* [n] result */
    double divisor;
    int divisor_sum;
    int64_t *expert; /* [n] */
    int64_t *place;  /* [K] of the chosen in [n] */
} routing_token;

int64_t routing_token_experts(const assay_routing_config *config);
void routing_token_start(routing_token *token, double *memory, int64_t t);

/* Up to the normalised values; then lb_loss, whose variance it returns (of the token's part, without the sums over
 * tokens); then the gradients d_bias and d_argument. */
void routing_token_forward(routing_token *token);
double routing_token_loss(routing_token *token);
void routing_token_backward(routing_token *token);
