/* One shard's attention for tests: a problem of oracle/ops and its results there (the plain form), and the second form's. */
#ifndef ASSAY_LAYER_TESTS_MLA_SHARD_CASE_H
#define ASSAY_LAYER_TESTS_MLA_SHARD_CASE_H

#include "oracle/layer/batch_split_mla.h"
#include "oracle/ops/tests/mla_problem.h"
#include "oracle/quad/quad.h"

typedef struct mla_shard_case {
    mla_problem p; /* x, weights, dy; NaN as gradients */
    double *yarn_freqs;
    bs_mla_shard at;
    quad_tensors in, expected; /* the second form's, after mla_shard_make_expected */
} mla_shard_case;

/* Pairwise YaRN beyond the original length; rope_dim 2 or more, the other sizes follow `size`. */
assay_mla_config mla_shard_config(int64_t batch, int64_t sequence, int64_t rope_dim, int64_t size);

/* Pointers into itself: it must stay where it is. */
void mla_shard_open(mla_shard_case *c, const assay_mla_config *config);
void mla_shard_close(mla_shard_case *c);
void mla_shard_make_expected(mla_shard_case *c);

/* After that: an intermediate of mla.h, or "lse", by the second form. */
const quad *mla_shard_expected(const mla_shard_case *c, const char *name);

/* Within 1e-13 of the value itself, or a tenth of that of the largest, where terms cancel. */
void mla_shard_assert_near(const double *actual, const quad *expected, int64_t count);

/* The gradient of a loss is its central difference by each of `values`, which it reads. */
void mla_shard_assert_differences(quad (*loss)(void *self), void *self, quad *values, const double *gradient,
                                  int64_t count);

/* After mla_shard_make_expected. For each variable whose gradient is not NULL: it is the central difference of the sum
 * over tensors of <cotangent, tensor>; NULL cotangents count nothing. */
void mla_shard_assert_gradients(mla_shard_case *c, const double *const cotangents[ASSAY_MLA_TENSORS],
                                double *const gradients[MLA_VARIABLES]);

/* Gradients filled with NaN, dx among them. */
assay_mla_gradients mla_shard_gradients(mla_shard_case *c);

#endif
