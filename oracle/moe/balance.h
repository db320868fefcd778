/* Load balance: the loss (docs/operations.md, "routing"; MaxText load_balance_loss, per sequence as there) and the loss-free bias update
 * (calculate_load_balance_updates; arXiv 2408.15664). */
#pragma once

#include "oracle/moe/routing.h"

/* updates [E] = routed_bias_update_rate * sign(T K / E - group_sizes[e]), compared in whole numbers. */
void assay_balance_bias_updates(double *updates, const int32_t *group_sizes, const assay_routing_config *config);

/* What the loss takes for sequences: those, or with another scope all tokens as one. */
assay_routing_config assay_balance_sequences(const assay_routing_config *config);

/* density [B,E] from selected_experts [T,K]. */
void assay_balance_density(double *density, const int32_t *selected_experts, const assay_routing_config *config);

/* mean over (b,e) of density * mean_S(probabilities) * E^2 * load_balance_loss_weight; needs memory for [B,E]. */
assay_status assay_balance_loss(assay_context *ctx, double *lb_loss, const double *probabilities, const double *density,
                                const assay_routing_config *config);

/* log_sums [T] of logits [T,E] plus bias [E] or NULL, and z_loss of them. */
double assay_z_loss(const assay_context *ctx, double *log_sums, const double *logits, const double *bias,
                    const assay_routing_config *config);

/* Adds to d_logits [T,E] what reaches it by way of z_loss; nothing without log_sums. */
void assay_z_loss_backward(const assay_context *ctx, double *d_logits, double d_z_loss, const double *log_sums,
                           const double *logits, const double *bias, const assay_routing_config *config);
