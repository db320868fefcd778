/* A gated MLP as a correct implementation in low precision computes it: sums and functions in float32, tensors stored
 * as `storage`, operands of products rounded to `multiply`. */
#ifndef ASSAY_OPS_TESTS_MLP_MACHINE_H
#define ASSAY_OPS_TESTS_MLP_MACHINE_H

#include "oracle/ops/tests/mlp_problem.h"

typedef struct mlp_machine {
    assay_dtype storage, multiply;
    bool stores_inside; /* stores products before biases and before the sum of dx; else only whole tensors */
} mlp_machine;

/* What it gives, or error scales of that: contiguous a, b, h, dh, da, db [rows,H], y, the gradients of mlp_problem.h.
 */
typedef struct mlp_results {
    double *a, *b, *h, *dh, *da, *db, *y, *gradient[MLP_PARTS];
} mlp_results;

void mlp_results_make(mlp_results *out, const mlp_problem *p); /* filled with NaN */
void mlp_results_free(mlp_results *out);

void mlp_machine_run(const mlp_machine *m, const mlp_problem *p, mlp_results *out);

#endif
