#include "oracle/layer/tests/mla_shard_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

assay_mla_config mla_shard_config(int64_t batch, int64_t sequence, int64_t rope_dim, int64_t size)
{
    const int64_t d = 2 * size + 1, rank = size + 2;
    const double epsilon = 1e-3; /* large enough to be seen when it is in the wrong place */
    const assay_rope_config rope = {rope_dim, true, 500, 4, 8, 1, 400, 100, true, true, false, true};
    return (assay_mla_config){batch, sequence, d, size, rank, size, size + 1, rank, epsilon, 0.7, rope, true, {0}};
}

static const char *path_of(const mla_shard_case *c, int variable, char path[ASSAY_PATH_SIZE])
{
    if (variable == MLA_X) return "inputs/x";
    const assay_tensor_row row = assay_mla_weight_row(&c->p.config, variable - MLA_WQ_A);
    assay_tensor_path("weights/", "", &row, path);
    return path;
}

static void evaluate(mla_shard_case *c)
{
    assay_context ctx = assay_context_default(1);
    quad_tensors_free(&c->expected);
    assert_ok(&ctx, quad_evaluate(&ctx, quad_mla, &(quad_mla_config){.mla = c->p.config}, &c->in, NULL, &c->expected));
}

void mla_shard_make_expected(mla_shard_case *c)
{
    assay_context ctx = assay_context_default(1);
    const mla_problem *p = &c->p;
    const assay_shape tokens = assay_shape_of(1, p->tokens);
    assert_ok(&ctx, quad_tensors_copy_i32(&ctx, &c->in, "inputs/positions", &tokens, p->positions));
    for (int i = 0; i < MLA_VARIABLES; i++) {
        char path[ASSAY_PATH_SIZE];
        const assay_shape shape = assay_shape_of(1, p->sizes[i]);
        if (p->sizes[i] == 0) continue;
        assert_ok(&ctx, quad_tensors_copy_f64(&ctx, &c->in, path_of(c, i, path), &shape, p->values[i]));
    }
    evaluate(c);
}

const quad *mla_shard_expected(const mla_shard_case *c, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "checkpoints/%s", name);
    const quad_tensor *tensor = quad_tensors_find(&c->expected, path);
    assert_non_null(tensor);
    return tensor->values;
}

void mla_shard_open(mla_shard_case *c, const assay_mla_config *config)
{
    const assay_context ctx = assay_context_default(1);
    *c = (mla_shard_case){0};
    mla_problem_make(&c->p, config, NULL);
    c->yarn_freqs = test_nans(c->p.tokens * config->rope.dim / 2);
    bs_initialize_yarn_freqs(&ctx, c->yarn_freqs, c->p.positions, config);
    c->at = (bs_mla_shard){
        .config = &c->p.config, .x = c->p.values[MLA_X], .yarn_freqs = c->yarn_freqs, .w = mla_problem_weights(&c->p)};
}

void mla_shard_close(mla_shard_case *c)
{
    quad_tensors_free(&c->in);
    quad_tensors_free(&c->expected);
    free(c->yarn_freqs);
    mla_problem_free(&c->p);
}

static double largest_of(const double *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(values[i]));
    return largest;
}

void mla_shard_assert_near(const double *actual, const quad *expected, int64_t count)
{
    double *rounded = test_nans(count);
    for (int64_t i = 0; i < count; i++) rounded[i] = (double)expected[i];
    assert_close(actual, rounded, count, 1e-13, 1e-14 * largest_of(rounded, count));
    free(rounded);
}

void mla_shard_assert_differences(quad (*loss)(void *self), void *self, quad *values, const double *gradient,
                                  int64_t count)
{
    const quad step = 1e-9;     /* what it leaves out is its square: below float64 */
    const double noise = 1e-22; /* of binary128 over the step: gradients may be exactly 0 */
    double *expected = test_nans(count);
    for (int64_t i = 0; i < count; i++) {
        const quad value = values[i];
        values[i] = value + step;
        const quad above = loss(self);
        values[i] = value - step;
        expected[i] = (double)((above - loss(self)) / (2 * step));
        values[i] = value;
    }
    assert_close(gradient, expected, count, 1e-12, 1e-13 * largest_of(expected, count) + noise);
    free(expected);
}

typedef struct checkpoint_loss {
    mla_shard_case *c;
    const double *const *cotangents;
} checkpoint_loss;

static quad loss(void *self)
{
    const checkpoint_loss *of = self;
    quad sum = 0;
    evaluate(of->c);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        if (of->cotangents[tensor] == NULL) continue;
        const quad *values =
            mla_shard_expected(of->c, assay_mla_tensor_row(&of->c->p.config, (assay_mla_tensor)tensor).name);
        const int64_t count = assay_mla_tensor_count(&of->c->p.config, (assay_mla_tensor)tensor);
        for (int64_t i = 0; i < count; i++) sum += of->cotangents[tensor][i] * values[i];
    }
    return sum;
}

void mla_shard_assert_gradients(mla_shard_case *c, const double *const cotangents[ASSAY_MLA_TENSORS],
                                double *const gradients[MLA_VARIABLES])
{
    checkpoint_loss self = {c, cotangents};
    for (int i = 0; i < MLA_VARIABLES; i++) {
        char path[ASSAY_PATH_SIZE];
        if (gradients[i] == NULL) continue;
        quad *values = quad_tensors_find(&c->in, path_of(c, i, path))->values;
        mla_shard_assert_differences(loss, &self, values, gradients[i], c->p.sizes[i]);
    }
}

assay_mla_gradients mla_shard_gradients(mla_shard_case *c)
{
    for (int i = 0; i < MLA_VARIABLES; i++) {
        if (c->p.gradients[i] != NULL) assay_fill_nan(c->p.gradients[i], c->p.sizes[i]);
    }
    return mla_problem_gradients(&c->p);
}
