/* A MoE block in naive float64 loops, forward only, and the request for it. */
#ifndef ASSAY_EXAMPLE_TESTS_NAIVE_MOE_H
#define ASSAY_EXAMPLE_TESTS_NAIVE_MOE_H

#include "harness/backends/example/tests/backend_trial.h"

enum { B = 2, S = 7, T = B * S, D = 20, H = 12, F = 9, E = 16, K = 3, VOCABULARY = 11 };

/* As the settings have them; what is left out is silu,linear, no groups, no limit, nothing dropped, K experts to a
 * token. */
typedef struct moe_config {
    const char *decoder_block, *model_name, *score_func, *group_score, *norm_topk_prob;
    const char *scaling, *groups, *groups_kept, *loss_weight, *update_rate;
    bool bias, fused, shared;
    const char *activations, *limit, *capacity;
    bool biases, hash, fused_func, one_expert;
} moe_config;

/* A trial of this configuration; what the naive layer chose. */
typedef struct moe_trial {
    trial *t;
    moe_config c;
    int k, places; /* of an expert in a batch row */
    int32_t selected[T * K];
    int32_t place[T * K]; /* of a choice in its expert; >= places: dropped */
} moe_trial;

moe_trial moe_trial_new(const moe_config *c);

/* y [T,D], weights [T,k]; returns the balance loss. Chooses experts when `choose`, else keeps those of the trial. */
double naive_moe(moe_trial *m, bool choose, double *y, double *weights);

#endif
