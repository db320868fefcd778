/* The decoder's operations in naive float64 loops, forward only: gradients are central differences of the objective. */
#ifndef ASSAY_EXAMPLE_TESTS_NAIVE_LAYERS_H
#define ASSAY_EXAMPLE_TESTS_NAIVE_LAYERS_H

#include "harness/backends/example/tests/backend_trial.h"

enum {
    B = 2,
    S = 21, /* a tile of 16 keys and a part of one */
    T = B * S,
    D = 24,
    N = 3,
    NOPE = 10,
    ROPE = 8,
    QK = NOPE + ROPE,
    V = 6,
    LQ = 12,
    LKV = 9,
    F = 10, /* of a dense layer */
    E = 5,
    K = 2,
    H = 7,       /* of an expert */
    SHARED = 11, /* of the shared one */
    LAYERS = 2
};

typedef struct naive_config {
    const char *op;
    double epsilon, theta, factor, beta_fast, beta_slow, original, longest, mscale, scaling;
    bool yarn, interleave, truncate, attention_scaling, pairwise, compressed, mask_padding, single;
    const char *activations; /* and the rest of the op mlp's, as naive_glu has them */
    double limit;
    bool gpt_oss;
    int32_t positions[T], segment_ids[T];
    bool choose; /* experts anew; else those of the run before */
    int32_t selected[LAYERS][T * K];
} naive_config;

typedef struct naive_results {
    double y[T * N * QK]; /* or attention_out */
    double lse[B * N * S];
} naive_results;

void naive_run(trial *t, naive_config *c, naive_results *out);

#endif
