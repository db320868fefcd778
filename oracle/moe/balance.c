#include "oracle/moe/balance.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/moe/routing_internal.h"

void assay_balance_bias_updates(double *updates, const int32_t *group_sizes, const assay_routing_config *config)
{
    int64_t choices = 0; /* all but those of no expert */
    for (int64_t e = 0; e < config->num_experts; e++) choices += group_sizes[e];
    for (int64_t e = 0; e < config->num_experts; e++) {
        const int64_t load = group_sizes[e] * config->num_experts;
        const double rate = config->routed_bias_update_rate;
        updates[e] = choices > load ? rate : choices < load ? -rate : 0.0;
    }
}

assay_routing_config assay_balance_sequences(const assay_routing_config *config)
{
    assay_routing_config of = *config;
    if (config->balance_scope == ASSAY_BALANCE_SEQUENCE) return of;
    of.batch = 1;
    of.sequence = config->batch * config->sequence;
    return of;
}

void assay_balance_density(double *density, const int32_t *selected_experts, const assay_routing_config *config)
{
    const assay_routing_config of = assay_balance_sequences(config);
    const int64_t experts = of.num_experts, choices = of.sequence * of.num_experts_per_tok;
    for (int64_t b = 0; b < of.batch; b++) {
        double *row = density + b * experts;
        for (int64_t e = 0; e < experts; e++) row[e] = 0.0;
        for (int64_t i = b * choices; i < (b + 1) * choices; i++) {
            if (selected_experts[i] != ASSAY_NO_EXPERT) row[selected_experts[i]] += 1.0;
        }
        for (int64_t e = 0; e < experts; e++) row[e] /= (double)of.sequence;
    }
}

assay_status assay_balance_loss(assay_context *ctx, double *lb_loss, const double *probabilities, const double *density,
                                const assay_routing_config *config)
{
    const assay_routing_config of = assay_balance_sequences(config);
    const int64_t experts = of.num_experts, sequence = of.sequence;
    OWNED double *sums = NULL; /* of the probabilities of one sequence */
    double total = 0.0;
    MUST(assay_alloc_f64(ctx, "load balance: mean probabilities", experts, &sums));
    for (int64_t b = 0; b < of.batch; b++) {
        assay_column_sums(ctx, sums, sequence, experts, experts, probabilities + b * sequence * experts);
        for (int64_t e = 0; e < experts; e++) sums[e] /= (double)sequence;
        assay_round(ctx, ASSAY_ROUND_ROUTER, experts, sums);
        for (int64_t e = 0; e < experts; e++) total = fma(density[b * experts + e], sums[e], total);
    }
    assay_round_sums(ctx, (double)(of.batch * experts), 1, &total);
    double mean = total / (double)(of.batch * experts);
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
    mean *= (double)experts * (double)experts;
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
    *lb_loss = mean * config->load_balance_loss_weight;
    return ASSAY_OK;
}

static double logit_of(const double *logits, const double *bias, int64_t e)
{
    return bias == NULL ? logits[e] : logits[e] + bias[e];
}

double assay_z_loss(const assay_context *ctx, double *log_sums, const double *logits, const double *bias,
                    const assay_routing_config *config)
{
    const int64_t tokens = config->batch * config->sequence, experts = config->num_experts;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < tokens; t++) {
        const double *x = logits + t * experts;
        double largest = -INFINITY, sum = 0.0;
        for (int64_t e = 0; e < experts; e++) largest = fmax(largest, logit_of(x, bias, e));
        for (int64_t e = 0; e < experts; e++) sum += assay_exp(logit_of(x, bias, e) - largest);
        assay_round_sums(ctx, ceil((double)experts / 3), 1, &sum);
        log_sums[t] = largest + assay_log(sum);
    }
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, tokens, log_sums);
    assay_round(ctx, ASSAY_ROUND_ROUTER, tokens, log_sums);
    double total = 0.0;
    for (int64_t t = 0; t < tokens; t++) total = fma(log_sums[t], log_sums[t], total);
    assay_round_sums(ctx, (double)tokens, 1, &total);
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &total);
    return total / (double)tokens * config->z_loss_weight;
}

void assay_z_loss_backward(const assay_context *ctx, double *d_logits, double d_z_loss, const double *log_sums,
                           const double *logits, const double *bias, const assay_routing_config *config)
{
    const int64_t tokens = config->batch * config->sequence, experts = config->num_experts;
    if (log_sums == NULL) return;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < tokens; t++) {
        const double coefficient = d_z_loss * config->z_loss_weight * 2.0 / (double)tokens * log_sums[t];
        for (int64_t e = 0; e < experts; e++) {
            double probability = assay_exp(logit_of(logits + t * experts, bias, e) - log_sums[t]);
            assay_round(ctx, ASSAY_ROUND_ELEMENTARY, 1, &probability);
            double term = coefficient * probability;
            assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &term);
            d_logits[t * experts + e] += term;
        }
    }
}
