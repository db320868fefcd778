/* What ranks share of a run of attention and gated MLPs, on paper (oracle/base/ranks.h): heads, and rows of products. Each
 * function adds what the one beside it does; of backward with every gradient wanted. `least`: of the ranks. */
#pragma once

#include "oracle/base/ranks.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/gated_mlp.h"

void assay_attention_shares(assay_run_shares *shares, double least, const assay_attention_config *config,
                            bool backward);

/* Of a gated MLP with one weight for each branch, or one of both: up and gate as many as are computed. */
void assay_gated_mlp_up_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config,
                               int branches);
void assay_gated_mlp_down_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config);
/* weights: whether their gradients are wanted. */
void assay_gated_mlp_backward_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config,
                                     bool weights, bool dx);
