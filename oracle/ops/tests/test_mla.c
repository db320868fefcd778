/* MLA against itself with other threads, engines and in the absorbed form. harness/tests/test_certified.c has it against
 * the second form. */
#include "oracle/ops/mla.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/ops/tests/mla_problem.h"

static double largest_of(const double *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = isfinite(values[i]) ? fmax(largest, fabs(values[i])) : largest;
    return largest;
}

/* Within `relative` of the value itself, or a tenth of it of the largest, where terms cancel. */
static void assert_near(const char *sample, const char *tensor, const double *actual, const double *expected,
                        int64_t count, double relative)
{
    if (!assay_is_close(actual, expected, count, relative, 0.1 * relative * largest_of(expected, count))) {
        print_error("%s: %s\n", sample, tensor);
        assert_close(actual, expected, count, relative, 0.1 * relative * largest_of(expected, count));
    }
}

/* Large enough for several blocks of a product and of attention, and of sizes that no block divides. */
static const assay_mla_config LARGE = {
    1, 131, 29, 3, 11, 13, 17, 19, 1e-6, 1, {6, true, 10000, 40, 32, 1, 163840, 4096, true, true, false, false}, true};

static double *absorbed(assay_context *ctx, const mla_problem *p)
{
    const assay_mla_inputs in = mla_problem_inputs(p);
    const assay_mla_weights w = mla_problem_weights(p);
    double *y = test_nans(p->sizes[MLA_X]);
    assert_ok(ctx, assay_mla_absorbed_forward(ctx, y, &in, &w, &p->config));
    return y;
}

typedef struct first_run {
    mla_problem p;
    double *absorbed;
} first_run;

static void check_same_bits(assay_context *ctx, void *data)
{
    first_run *first = data;
    mla_problem p;
    if (first->absorbed == NULL) {
        mla_problem_run(ctx, &first->p);
        first->absorbed = absorbed(ctx, &first->p);
    }
    mla_problem_make(&p, &LARGE, NULL);
    mla_problem_run(ctx, &p);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        assert_same_bits(p.r.values[tensor], first->p.r.values[tensor],
                         assay_mla_tensor_count(&LARGE, (assay_mla_tensor)tensor));
    assert_same_bits(p.r.lse, first->p.r.lse, p.tokens * LARGE.heads);
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(p.gradients[i], first->p.gradients[i], p.sizes[i]);
    double *y = absorbed(ctx, &p);
    assert_same_bits(y, first->absorbed, p.sizes[MLA_X]);
    free(y);
    mla_problem_free(&p);
}

TEST(test_same_bits_with_any_threads_and_isa)
{
    first_run first = {0};
    mla_problem_make(&first.p, &LARGE, NULL);
    test_each_context(check_same_bits, &first);
    free(first.absorbed);
    mla_problem_free(&first.p);
}

TEST(test_blas_agrees)
{
    assay_context ctx = assay_context_default(2), blas = ctx;
    mla_problem p, other;
    blas.arithmetic = &assay_arithmetic_blas;
    mla_problem_make(&p, &LARGE, NULL);
    mla_problem_make(&other, &LARGE, NULL);
    mla_problem_run(&ctx, &p);
    mla_problem_run(&blas, &other);
    assert_near("blas", "y", other.r.values[ASSAY_MLA_OUT_PROJ], p.r.values[ASSAY_MLA_OUT_PROJ], p.sizes[MLA_X], 1e-12);
    for (int i = 0; i < MLA_VARIABLES; i++) {
        /* other sums in another order: of the largest */
        assert_close(other.gradients[i], p.gradients[i], p.sizes[i], 0, 1e-12 * largest_of(p.gradients[i], p.sizes[i]));
    }
    mla_problem_free(&p);
    mla_problem_free(&other);
}

/* Either form is a chain of products: each is off by half an ulp of its terms for each of them, and the softmax passes
 * on what its scores are off by. Terms here are at most some ten times their sum. */
static void assert_absorbed_is_plain(const mla_sample *sample)
{
    assay_context ctx = assay_context_default(2);
    const assay_mla_config *c = &sample->config;
    const int64_t terms = 2 * c->emb_dim + c->q_lora_rank + 3 * c->kv_lora_rank + c->qk_nope_head_dim + c->rope.dim +
                          c->sequence + c->heads * c->v_head_dim;
    mla_problem p;
    mla_problem_make(&p, c, sample->segment_ids);
    assert_ok(&ctx, mla_problem_forward(&ctx, &p));
    const double *plain = p.r.values[ASSAY_MLA_OUT_PROJ];
    double *y = absorbed(&ctx, &p);
    const double bound = 10 * (double)terms * 0x1p-53 * largest_of(plain, p.sizes[MLA_X]);
    assert_true(bound < 1e-12 * largest_of(plain, p.sizes[MLA_X]));
    if (!assay_is_close(y, plain, p.sizes[MLA_X], 0, bound)) print_error("%s\n", sample->name);
    assert_close(y, plain, p.sizes[MLA_X], 0, bound);
    free(y);
    mla_problem_free(&p);
}

TEST(test_absorbed_form_is_the_same)
{
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) assert_absorbed_is_plain(sample);
    assert_absorbed_is_plain(&(mla_sample){.name = "large", .config = LARGE});
}
