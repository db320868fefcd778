/* A gated MLP with inputs, weights, results and gradients, all allocated: for the tests of the operation and of its
 * error scales. */
#ifndef ASSAY_OPS_TESTS_MLP_PROBLEM_H
#define ASSAY_OPS_TESTS_MLP_PROBLEM_H

#include "oracle/base/dtype.h"
#include "oracle/ops/gated_mlp.h"

/* What is differentiated, in the order in which it lies in memory. */
enum { MLP_X, MLP_WI_0, MLP_WI_1, MLP_WI_0_BIAS, MLP_WI_1_BIAS, MLP_WO, MLP_WO_BIAS, MLP_PARTS };
/* Of each but x the weight that it is; WI has no part of its own. */
static inline int mlp_weight_of(int part)
{
    return part + ASSAY_MLP_WI_0 - MLP_WI_0;
}

typedef struct mlp_problem {
    assay_gated_mlp_config config;
    bool biased;
    int64_t count, size[MLP_PARTS]; /* count: all parts together */
    double *part[MLP_PARTS];        /* one after the other, from part[0] on */
    double *gradient[MLP_PARTS];    /* likewise; NaN before a run */
    double *dy, *y, *dh;
    double *wi, *dwi; /* fused: wi_0 and wi_1 side by side, and where its gradient comes */
    assay_gated_mlp_weights w;
    assay_gated_mlp_gradients g; /* all of them */
    assay_gated_mlp_residuals r;
} mlp_problem;

/* Values on `grid`, of a size that a trained network might have. Without biases their parts have gradients, but w not.
 */
void mlp_problem_make(assay_context *ctx, mlp_problem *p, const assay_gated_mlp_config *config, bool biased,
                      assay_dtype grid, uint64_t seed);
void mlp_problem_free(mlp_problem *p);

/* Forward and backward into outputs filled with NaN; dwi is taken apart into gradient[MLP_WI_0] and [MLP_WI_1]. */
void mlp_problem_run(assay_context *ctx, mlp_problem *p);
/* Every gradient into the place of its part; fused: dwi in the place of two. */
assay_gated_mlp_gradients mlp_gradients_into(const mlp_problem *p, double *const gradient[MLP_PARTS], double *dwi);
/* Only the gradient of `part` (fused: MLP_WI_0 stands for wi; MLP_WI_1 for nothing), or dh for -1. */
void mlp_problem_gradients_of(const mlp_problem *p, int part, assay_gated_mlp_gradients *g);
void mlp_problem_split(mlp_problem *p, int part); /* dwi after a run for `part` alone */

/* What a fused wi or dwi holds as its two parts, and back. */
void mlp_split(const double *wi, double *wi_0, double *wi_1, int64_t rows, int64_t hidden);

#endif
