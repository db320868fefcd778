#include "oracle/moe/balance.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
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

void assay_balance_density(double *density, const int32_t *selected_experts, const assay_routing_config *config)
{
    const int64_t experts = config->num_experts, choices = config->sequence * config->num_experts_per_tok;
    for (int64_t b = 0; b < config->batch; b++) {
        double *row = density + b * experts;
        for (int64_t e = 0; e < experts; e++) row[e] = 0.0;
        for (int64_t i = b * choices; i < (b + 1) * choices; i++) {
            if (selected_experts[i] != ASSAY_NO_EXPERT) row[selected_experts[i]] += 1.0;
        }
        for (int64_t e = 0; e < experts; e++) row[e] /= (double)config->sequence;
    }
}

assay_status assay_balance_loss(assay_context *ctx, double *lb_loss, const double *probabilities, const double *density,
                                const assay_routing_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t experts = config->num_experts, sequence = config->sequence;
    double *sums = NULL; /* of the probabilities of one sequence */
    double total = 0.0;
    TRY(assay_alloc_f64(ctx, "load balance: mean probabilities", experts, &sums));
    for (int64_t b = 0; b < config->batch; b++) {
        assay_column_sums(ctx, sums, sequence, experts, experts, probabilities + b * sequence * experts);
        assay_round_sums(ctx, (double)sequence, experts, sums); /* an error for each term */
        for (int64_t e = 0; e < experts; e++) sums[e] /= (double)sequence;
        assay_round(ctx, ASSAY_ROUND_ROUTER, experts, sums);
        for (int64_t e = 0; e < experts; e++) total = fma(density[b * experts + e], sums[e], total);
    }
    assay_round_sums(ctx, (double)(config->batch * experts), 1, &total);
    double mean = total / (double)(config->batch * experts);
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
    mean *= (double)experts * (double)experts;
    assay_round(ctx, ASSAY_ROUND_ROUTER, 1, &mean);
    *lb_loss = mean * config->load_balance_loss_weight;
cleanup:
    free(sums);
    return status;
}

double assay_balance_coefficient(const assay_routing_config *config)
{
    return config->load_balance_loss_weight * (double)config->num_experts / (double)(config->batch * config->sequence);
}
