/* A gated MLP with inputs, weights, results and gradients, all allocated: for the tests of its error scales. */
#pragma once

#include "oracle/base/dtype.h"
#include "oracle/propagate/propagate_gated_mlp.h"

/* What is differentiated, in the order in which it lies in memory. */
enum { MLP_X, MLP_WI_0, MLP_WI_1, MLP_WI_0_BIAS, MLP_WI_1_BIAS, MLP_WO, MLP_WO_BIAS, MLP_PARTS };

typedef struct mlp_problem {
    assay_gated_mlp_config config;
    int64_t count, size[MLP_PARTS]; /* count: all parts together */
    double *part[MLP_PARTS];        /* one after the other, from part[0] on */
    double *gradient[MLP_PARTS];    /* likewise; NaN before a run */
    double *dy, *y, *dh;
    double *w[ASSAY_MLP_WEIGHTS];
    double *storage; /* of a, b and h */
    assay_gated_mlp_values r;
} mlp_problem;

/* Not fused. Values on `grid`, of a size that a trained network might have. Without biases their parts have gradients, but w
 * not. */
void mlp_problem_make(mlp_problem *p, const assay_gated_mlp_config *config, bool biased, assay_dtype grid,
                      uint64_t seed);
void mlp_problem_free(mlp_problem *p);

/* Forward and backward into outputs filled with NaN. */
void mlp_problem_run(assay_context *ctx, mlp_problem *p);
/* What belongs to the parts at the places of the weights that they are. */
void mlp_place_gradients(double *const gradient[MLP_PARTS], double *g[ASSAY_MLP_WEIGHTS]);
