#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/routing_internal.h"

/* Less than this of a softmax may underflow in float32, so that no correct kernel divides by it. */
static const double LEAST_SUM = 0x1p-100;

/* The softmax over all, and the sum of the chosen. */
static double chosen_sum(const assay_context *ctx, double *p, const double *selecting, const int32_t *selected,
                         const assay_routing_config *config)
{
    double sum = 0.0;
    assay_softmax_row(ctx, p, selecting, config->num_experts);
    assay_round(ctx, ASSAY_ROUND_ELEMENTARY, config->num_experts, p);
    for (int64_t k = 0; k < config->num_experts_per_tok; k++) {
        if (selected[k] == ASSAY_NO_EXPERT) continue;
        sum = routing_rounded(ctx, sum + p[selected[k]]);
    }
    return sum;
}

bool assay_routing_naive_forward(const assay_context *ctx, double *gathered, double *p, const double *selecting,
                                 const int32_t *selected, const assay_routing_config *config)
{
    const double sum = chosen_sum(ctx, p, selecting, selected, config);
    if (!(sum > LEAST_SUM)) return false;
    for (int64_t k = 0; k < config->num_experts_per_tok; k++) {
        gathered[k] = selected[k] == ASSAY_NO_EXPERT ? 0.0 : routing_rounded(ctx, p[selected[k]] / sum);
    }
    return true;
}

bool assay_routing_naive_backward(const assay_context *ctx, double *d, double *p, const double *selecting,
                                  const double *d_normalized, const double *gathered, const int32_t *selected,
                                  const assay_routing_config *config)
{
    const int64_t experts = config->num_experts, count = config->num_experts_per_tok;
    const double sum = chosen_sum(ctx, p, selecting, selected, config);
    double d_sum = 0.0, mean = 0.0;
    if (!(sum > LEAST_SUM)) return false;
    for (int64_t k = 0; k < count; k++) {
        d_sum = routing_rounded(
            ctx, d_sum - routing_rounded(ctx, d_normalized[k] * routing_rounded(ctx, gathered[k] / sum)));
    }
    for (int64_t k = 0; k < count; k++) {
        if (selected[k] == ASSAY_NO_EXPERT) continue;
        const double d_p = routing_rounded(ctx, routing_rounded(ctx, d_normalized[k] / sum) + d_sum);
        const double term = routing_rounded(ctx, p[selected[k]] * d_p);
        mean = routing_rounded(ctx, mean + term);
        d[selected[k]] += term;
    }
    for (int64_t e = 0; e < experts; e++) d[e] -= p[e] * mean;
    return true;
}
