/* MLA against its second form in binary128, its gradients against central differences of that, and against itself with
 * other threads, engines and in the absorbed form. */
#include "oracle/ops/mla.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/ops/tests/mla_problem.h"

typedef struct naive_problem {
    mla_naive n;
    quad *values[MLA_VARIABLES];
} naive_problem;

static quad *quads(int64_t count)
{
    quad *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    return values;
}

static void naive_make(naive_problem *naive, const mla_problem *p)
{
    *naive = (naive_problem){.n = {.config = &p->config, .positions = p->positions, .segment_ids = p->segment_ids}};
    for (int i = 0; i < MLA_VARIABLES; i++) {
        naive->values[i] = quads(p->sizes[i]);
        for (int64_t j = 0; j < p->sizes[i]; j++) naive->values[i][j] = p->values[i][j];
        naive->n.values[i] = naive->values[i];
    }
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        naive->n.results[tensor] = quads(assay_mla_tensor_count(&p->config, (assay_mla_tensor)tensor));
    naive->n.lse = quads(p->tokens * p->config.heads);
    naive->n.cosine = quads(p->tokens * p->config.rope.dim);
    naive->n.sine = quads(p->tokens * p->config.rope.dim);
    mla_naive_rotations(&naive->n);
}

static void naive_free(naive_problem *naive)
{
    for (int i = 0; i < MLA_VARIABLES; i++) free(naive->values[i]);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) free(naive->n.results[tensor]);
    free(naive->n.lse);
    free(naive->n.cosine);
    free(naive->n.sine);
}

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

static void assert_near_quads(const char *sample, const char *tensor, const double *actual, const quad *expected,
                              int64_t count)
{
    double *rounded = test_nans(count);
    for (int64_t i = 0; i < count; i++) rounded[i] = (double)expected[i];
    assert_near(sample, tensor, actual, rounded, count, 1e-13);
    free(rounded);
}

static void test_every_intermediate_is_the_formula(void **state)
{
    (void)state;
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) {
        assay_context ctx = assay_context_default(1);
        mla_problem p;
        naive_problem naive;
        mla_problem_make(&p, &sample->config, sample->segment_ids);
        naive_make(&naive, &p);
        assert_ok(&ctx, assay_mla_check(&ctx, &p.config));
        assert_ok(&ctx, mla_problem_forward(&ctx, &p));
        mla_naive_forward(&naive.n);
        for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
            const int64_t count = assay_mla_tensor_count(&p.config, (assay_mla_tensor)tensor);
            if (count == 0) assert_null(p.r.values[tensor]);
            assert_near_quads(sample->name, assay_mla_tensor_names[tensor], p.r.values[tensor], naive.n.results[tensor],
                              count);
        }
        assert_near_quads(sample->name, "lse", p.r.lse, naive.n.lse, p.tokens * p.config.heads);
        naive_free(&naive);
        mla_problem_free(&p);
    }
}

static quad loss(naive_problem *naive, const mla_problem *p)
{
    quad sum = 0;
    mla_naive_forward(&naive->n);
    for (int64_t i = 0; i < p->sizes[MLA_X]; i++) sum += p->dy[i] * naive->n.results[ASSAY_MLA_OUT_PROJ][i];
    return sum;
}

static void test_gradients_are_central_differences(void **state)
{
    (void)state;
    const quad step = 1e-9; /* what it leaves out is its square: below float64 */
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) {
        assay_context ctx = assay_context_default(1);
        mla_problem p;
        naive_problem naive;
        mla_problem_make(&p, &sample->config, sample->segment_ids);
        naive_make(&naive, &p);
        mla_problem_run(&ctx, &p);
        for (int i = 0; i < MLA_VARIABLES; i++) {
            double *expected = test_nans(p.sizes[i]);
            for (int64_t j = 0; j < p.sizes[i]; j++) {
                const quad value = naive.values[i][j];
                naive.values[i][j] = value + step;
                const quad above = loss(&naive, &p);
                naive.values[i][j] = value - step;
                expected[j] = (double)((above - loss(&naive, &p)) / (2 * step));
                naive.values[i][j] = value;
            }
            assert_near(sample->name, mla_variable_names[i], p.gradients[i], expected, p.sizes[i], 1e-12);
            free(expected);
        }
        naive_free(&naive);
        mla_problem_free(&p);
    }
}

/* Large enough for several blocks of a product and of attention, and of sizes that no block divides. */
static const assay_mla_config LARGE = {.batch = 1,
                                       .sequence = 131,
                                       .emb_dim = 29,
                                       .heads = 3,
                                       .qk_nope_head_dim = 11,
                                       .v_head_dim = 13,
                                       .q_lora_rank = 17,
                                       .kv_lora_rank = 19,
                                       .epsilon = 1e-6,
                                       .mscale = 1,
                                       .mask_padding = true,
                                       .rope = {.dim = 6,
                                                .yarn = true,
                                                .rope_max_timescale = 10000,
                                                .rope_factor = 40,
                                                .beta_fast = 32,
                                                .beta_slow = 1,
                                                .max_position_embeddings = 163840,
                                                .original_max_position_embeddings = 4096,
                                                .interleave = true,
                                                .truncate = true}};

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

static void test_same_bits_with_any_threads_and_isa(void **state)
{
    (void)state;
    first_run first = {0};
    mla_problem_make(&first.p, &LARGE, NULL);
    test_each_context(check_same_bits, &first);
    free(first.absorbed);
    mla_problem_free(&first.p);
}

static void test_blas_agrees(void **state)
{
    (void)state;
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

static void test_absorbed_form_is_the_same(void **state)
{
    (void)state;
    for (const mla_sample *sample = mla_samples; sample->name != NULL; sample++) assert_absorbed_is_plain(sample);
    assert_absorbed_is_plain(&(mla_sample){.name = "large", .config = LARGE});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_intermediate_is_the_formula),
        cmocka_unit_test(test_gradients_are_central_differences),
        cmocka_unit_test(test_same_bits_with_any_threads_and_isa),
        cmocka_unit_test(test_blas_agrees),
        cmocka_unit_test(test_absorbed_form_is_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
