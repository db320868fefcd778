#include "oracle/propagate/propagate_routing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/balance.h"
#include "oracle/ops/vector_sums.h"
#include "oracle/propagate/routing_token.h"
#include "oracle/propagate/rules.h"

/* What a pass over the tokens fills; NULL where nobody asks. */
typedef struct pass {
    const assay_context *ctx;
    const assay_precision *precision;
    const assay_routing_run *run;
    assay_routing_rule rule;
    bool naive;               /* assay_routing_has_naive_form */
    double *weights;          /* [T,K] */
    double *normalized;       /* [T,K] variance of the weights before scaling */
    double *d_logits;         /* [T,E] */
    double *bias, *bias_size; /* [T,E] variance and absolute value of what d_bias sums */
    double *loss;             /* [T] the token's part of the variance of lb_loss */
} pass;

static void put_weights(const pass *p, routing_token *token)
{
    const int64_t count = p->run->config->num_experts_per_tok, first = token->t * count;
    const double unit = p->precision->router, *own = p->run->in->per_expert_scale;
    /* A sum and a quotient each; the naive form has two. */
    const double roundings = p->naive ? 4 : (p->rule.softmax_chosen ? 2 : 0) + (p->rule.divide ? 2 : 0);
    assay_errors_variance(&token->space, &token->normalized, token->variance);
    for (int64_t k = 0; k < count; k++) {
        const double n = token->normalized.value[token->place[k]], scale = token->scale[k];
        const double variance = token->variance[token->place[k]] + roundings * assay_square(unit * n);
        const int64_t expert = token->expert[token->place[k]];
        if (p->normalized != NULL) p->normalized[first + k] = variance;
        if (p->weights == NULL) continue;
        /* The product, and the weight as it is kept. */
        p->weights[first + k] =
            scale * scale * variance + (scale != 1 ? 2 : 1) * assay_square(unit * p->run->r->weights[first + k]);
        if (own != NULL) {
            p->weights[first + k] +=
                assay_square(n * p->rule.factor) * assay_propagate_given(p->precision->given, own[expert]);
        }
    }
}

/* The gradient of an expert that errors do not reach is exactly 0. */
static void put_gradient(const pass *p, routing_token *token, const assay_uncertain *gradient, bool logits,
                         double *variance, double *size)
{
    const int64_t experts = p->run->config->num_experts, first = token->t * experts;
    if (variance == NULL) return;
    assay_errors_variance(&token->space, gradient, token->variance);
    for (int64_t e = 0; e < experts; e++) {
        variance[first + e] = 0;
        if (size != NULL) size[first + e] = 0;
    }
    for (int64_t i = 0; i < token->n; i++) {
        const int64_t at = first + token->expert[i];
        variance[at] = token->variance[i] + (logits ? token->rounding[i] : 0) +
                       assay_square(p->precision->router * gradient->value[i]);
        if (size != NULL) size[at] = fabs(gradient->value[i]);
    }
}

static void add_to_all(const pass *p, int64_t at, double variance)
{
    if (p->d_logits != NULL) p->d_logits[at] += variance;
    if (p->bias != NULL) p->bias[at] += variance;
}

/* What the naive form rounds besides: the sum that a softmax over all takes off is 0 but for its rounding, and reaches all
 * experts. */
static void add_naive(const pass *p, const routing_token *token, double *probability)
{
    const assay_routing_config *config = p->run->config;
    const int64_t experts = config->num_experts, count = config->num_experts_per_tok;
    const double unit2 = assay_square(p->precision->router), *bias = p->run->in->bias;
    double squares = 0, mean = 0;
    for (int64_t k = 0; k < count; k++) {
        const double term = token->normalized.value[token->place[k]] * token->d_normalized.value[token->place[k]];
        squares += term * term;
        mean += term;
    }
    const double of_mean = unit2 * (5 * squares + 3 * assay_propagate_partial_squares(count, squares, mean));
    for (int64_t e = 0; e < experts; e++)
        probability[e] = p->run->in->logits[token->t * experts + e] + (bias == NULL ? 0 : bias[e]);
    assay_softmax_row(p->ctx, probability, probability, experts);
    for (int64_t e = 0; e < experts; e++) add_to_all(p, token->t * experts + e, of_mean * assay_square(probability[e]));
    for (int64_t k = 0; k < count; k++) { /* quotients of the chosen, and the mean that they have taken off */
        const double d = token->d_normalized.value[token->place[k]], w = token->normalized.value[token->place[k]];
        add_to_all(p, token->t * experts + token->expert[token->place[k]], w * w * (unit2 * d * d + of_mean));
    }
}

static void propagate_token(const pass *p, routing_token *token, double *memory, double *probability, int64_t t)
{
    const int64_t count = p->run->config->num_experts_per_tok;
    const double *own = p->run->in->per_expert_scale;
    routing_token_start(token, memory, t);
    for (int64_t k = 0; k < count; k++)
        token->scale[k] = p->rule.factor * (own == NULL ? 1 : own[token->expert[token->place[k]]]);
    routing_token_forward(token);
    put_weights(p, token);
    if (p->loss != NULL) p->loss[t] = routing_token_loss(token);
    if (p->d_logits == NULL && p->bias == NULL) return;
    routing_token_backward(token);
    put_gradient(p, token, &token->d_argument, true, p->d_logits, NULL);
    put_gradient(p, token, &token->d_bias, p->rule.bias_inside, p->bias, p->bias_size);
    if (p->naive && p->run->d_weights != NULL) add_naive(p, token, probability);
}

static assay_status propagate_tokens(assay_context *ctx, const pass *p)
{
    const int64_t tokens = p->run->config->batch * p->run->config->sequence;
    const int64_t n = routing_token_experts(p->run->config), count = p->run->config->num_experts_per_tok;
    const int64_t experts = p->run->config->num_experts;
    const int64_t own = assay_errors_size(n) + ROUTING_VECTORS * assay_uncertain_size(n) + ROUTING_SCRATCH * n;
    const int64_t size = own + experts;
    OWNED double *memory = NULL;
    OWNED void *places = NULL;
    MUST(assay_alloc_f64(ctx, "error scale of routing: scratch", size * ctx->threads, &memory));
    MUST(assay_alloc(ctx, "error scale of routing: places", (n + count) * ctx->threads, sizeof(int64_t), &places));
#pragma omp parallel for num_threads(ctx->threads)
    for (int part = 0; part < ctx->threads; part++) {
        int64_t *expert = (int64_t *)places + part * (n + count);
        routing_token token = {
            .precision = p->precision, .run = p->run, .rule = p->rule, .n = n, .expert = expert, .place = expert + n};
        for (int64_t t = tokens * part / ctx->threads; t < tokens * (part + 1) / ctx->threads; t++)
            propagate_token(p, &token, memory + part * size, memory + part * size + own, t);
    }
    return ASSAY_OK;
}

/* The variance of lb_loss from the parts of all tokens. */
static double sum_loss(const pass *p)
{
    const assay_routing_config *config = p->run->config;
    const assay_routing *r = p->run->r;
    const int64_t experts = config->num_experts, sequence = config->sequence;
    const double coefficient = assay_balance_coefficient(config);
    const double unit2 = assay_square(p->precision->router), sum2 = assay_square(p->precision->accumulate);
    double variance = 0;
    for (int64_t t = 0; t < config->batch * sequence; t++) variance += p->loss[t];
    for (int64_t b = 0; b < config->batch; b++) {
        for (int64_t e = 0; e < experts; e++) {
            const double *column = r->probabilities + b * sequence * experts + e;
            double sum = 0;
            for (int64_t i = 0; i < sequence; i++) sum += column[i * experts];
            /* One mean over the sequence: its partial sums, the mean as it is kept, its product with the density. */
            variance +=
                assay_square(coefficient * r->density[b * experts + e] * sum) * ((double)sequence * sum2 + 2 * unit2);
        }
    }
    /* The mean over (b,e) and the factors after it. */
    return variance + ((double)(config->batch * experts) * sum2 + 2 * unit2) * assay_square(r->lb_loss);
}

/* A token's place, with its row of variances and of absolute values. */
typedef struct token_rows {
    const double *variance, *size;
    int64_t experts;
} token_rows;

static int compare_tokens(const void *a, const void *b)
{
    const token_rows *one = a, *other = b;
    const size_t bytes = (size_t)one->experts * sizeof(double);
    const int by_size = memcmp(one->size, other->size, bytes);
    return by_size != 0 ? by_size : memcmp(one->variance, other->variance, bytes);
}

/* Tokens that are alike err alike, so that their errors add up: of n such, each counts n times. */
static assay_status weigh_alike(assay_context *ctx, const pass *p)
{
    const int64_t tokens = p->run->config->batch * p->run->config->sequence, experts = p->run->config->num_experts;
    OWNED token_rows *rows = NULL;
    MUST(assay_alloc(ctx, "error scale of routing: tokens alike", tokens, sizeof(token_rows), &rows));
    for (int64_t t = 0; t < tokens; t++)
        rows[t] = (token_rows){p->bias + t * experts, p->bias_size + t * experts, experts};
    qsort(rows, (size_t)tokens, sizeof *rows, compare_tokens);
    for (int64_t first = 0, end = 0; first < tokens; first = end) {
        while (end < tokens && compare_tokens(&rows[first], &rows[end]) == 0) end++;
        for (int64_t i = first; i < end; i++) {
            double *variance = p->bias + (rows[i].variance - p->bias);
            for (int64_t e = 0; e < experts; e++) variance[e] *= (double)(end - first);
        }
    }
    return ASSAY_OK;
}

/* Sums over the tokens: errors of tokens that differ are independent; `size` [E] is the sum of the absolute values. */
static assay_status sum_bias(assay_context *ctx, const pass *p, double *d_bias, double *size)
{
    const int64_t tokens = p->run->config->batch * p->run->config->sequence, experts = p->run->config->num_experts;
    MUST(weigh_alike(ctx, p));
    assay_column_sums(ctx, d_bias, tokens, experts, experts, p->bias);
    assay_column_sums(ctx, size, tokens, experts, experts, p->bias_size);
    for (int64_t e = 0; e < experts; e++)
        d_bias[e] += (double)tokens * assay_square(p->precision->accumulate * size[e]);
    return ASSAY_OK;
}

static void sum_expert_scale(const pass *p, double *d_scale, double *size)
{
    const assay_routing_run *run = p->run;
    const int64_t count = run->config->num_experts_per_tok, experts = run->config->num_experts;
    for (int64_t e = 0; e < experts; e++) d_scale[e] = size[e] = 0;
    if (run->d_weights == NULL) return;
    for (int64_t i = 0; i < run->config->batch * run->config->sequence * count; i++) {
        const int32_t e = run->r->selected_experts[i];
        const double *gathered = run->r->gathered + i / count * count;
        const double value = run->r->gathered[i] / assay_routing_divisor(gathered, count, &p->rule);
        const double d = run->d_weights[i] * p->rule.factor;
        const double of_d = run->variance_d_weights != NULL
                                ? run->variance_d_weights[i]
                                : assay_propagate_given(p->precision->given, run->d_weights[i]);
        /* d_weights and the product are rounded once each. */
        d_scale[e] += d * d * p->normalized[i] + 2 * assay_square(p->precision->router * d * value) +
                      assay_square(p->rule.factor * value) * of_d;
        size[e] += fabs(d * value);
    }
    for (int64_t e = 0; e < experts; e++)
        d_scale[e] += (double)run->r->group_sizes[e] * assay_square(p->precision->accumulate * size[e]);
}

assay_status assay_propagate_routing(assay_context *ctx, const assay_precision *precision,
                                     const assay_routing_variances *v, const assay_routing_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *config = run->config;
    const int64_t experts = config->num_experts, tokens = config->batch * config->sequence;
    const assay_routing_rule rule = assay_routing_rule_of(config);
    pass p = {.ctx = ctx,
              .precision = precision,
              .run = run,
              .rule = rule,
              .naive = assay_routing_has_naive_form(&rule),
              .weights = v->weights,
              .d_logits = v->d_logits};
    double *size = NULL;
    TRY(assay_alloc_f64(ctx, "error scale of routing: sizes", experts, &size));
    if (v->d_bias != NULL) {
        TRY(assay_alloc_f64(ctx, "error scale of routing: d_bias", tokens * experts, &p.bias));
        TRY(assay_alloc_f64(ctx, "error scale of routing: d_bias", tokens * experts, &p.bias_size));
    }
    if (v->d_per_expert_scale != NULL) {
        TRY(assay_alloc_f64(ctx, "error scale of routing: normalised weights", tokens * config->num_experts_per_tok,
                            &p.normalized));
    }
    if (v->lb_loss != NULL && rule.balance)
        TRY(assay_alloc_f64(ctx, "error scale of routing: lb_loss", tokens, &p.loss));
    TRY(propagate_tokens(ctx, &p));
    if (v->lb_loss != NULL) *v->lb_loss = rule.balance ? sum_loss(&p) : 0;
    if (v->d_bias != NULL) TRY(sum_bias(ctx, &p, v->d_bias, size));
    if (v->d_per_expert_scale != NULL) sum_expert_scale(&p, v->d_per_expert_scale, size);
cleanup:
    free(size);
    free(p.bias);
    free(p.bias_size);
    free(p.normalized);
    free(p.loss);
    return status;
}
