/* MLA problems for tests: tensors by number, so that a test can loop over them. */
#ifndef ASSAY_OPS_TESTS_MLA_PROBLEM_H
#define ASSAY_OPS_TESTS_MLA_PROBLEM_H

#include "oracle/ops/mla.h"
#include "oracle/ops/tests/ops_test.h"

enum { MLA_X, MLA_WQ_A, MLA_Q_NORM, MLA_WKV_A, MLA_KV_NORM, MLA_WQ_B, MLA_QUERY, MLA_WKV_B, MLA_OUT, MLA_VARIABLES };
_Static_assert(MLA_VARIABLES - MLA_WQ_A == ASSAY_MLA_WEIGHTS, "after x come the weights");

typedef struct mla_problem {
    assay_mla_config config;
    int64_t tokens;
    int64_t sizes[MLA_VARIABLES]; /* 0 and NULL below: not in this configuration */
    double *values[MLA_VARIABLES], *gradients[MLA_VARIABLES];
    int32_t *positions, *segment_ids;
    double *dy;
    assay_mla_residuals r;
} mla_problem;

/* segment_ids [B,S] or NULL. */
void mla_problem_make(mla_problem *p, const assay_mla_config *config, const int32_t *segment_ids);
void mla_problem_free(mla_problem *p);

assay_mla_inputs mla_problem_inputs(const mla_problem *p);
assay_mla_weights mla_problem_weights(const mla_problem *p);
assay_mla_gradients mla_problem_gradients(const mla_problem *p);

/* Computes what of the intermediates is not there, in order. */
assay_status mla_problem_forward(assay_context *ctx, mla_problem *p);
/* Fills the gradients with NaN beforehand. */
assay_status mla_problem_backward(assay_context *ctx, mla_problem *p);
/* Both, from the start. */
void mla_problem_run(assay_context *ctx, mla_problem *p);

/* Configurations that differ in everything that MLA can be told; what they show is in their names. */
typedef struct mla_sample {
    const char *name;
    assay_mla_config config;
    const int32_t *segment_ids;
} mla_sample;
extern const mla_sample mla_samples[]; /* ends with a NULL name */

#endif
