/* MLA against itself with other threads, engines and in the absorbed form. harness/tests/test_certified.c has it against
 * the second form. */
#include "oracle/ops/mla.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    1,    131, 29, 3, 11, 13, 17, 19, 1e-6, 1, {6, true, 10000, 40, 32, 1, 163840, 4096, true, true, false, false},
    true, {0}};

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
    const bool recipe = first->p.config.recipe.recipe != NULL; /* which the absorbed form has not */
    if (first->p.r.lse == NULL) {
        mla_problem_run(ctx, &first->p);
        if (!recipe) first->absorbed = absorbed(ctx, &first->p);
    }
    mla_problem_make(&p, &first->p.config, NULL);
    mla_problem_run(ctx, &p);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        assert_same_bits(p.r.values[tensor], first->p.r.values[tensor],
                         assay_mla_tensor_count(&p.config, (assay_mla_tensor)tensor));
    assert_same_bits(p.r.lse, first->p.r.lse, p.tokens * p.config.heads);
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(p.gradients[i], first->p.gradients[i], p.sizes[i]);
    double *y = recipe ? NULL : absorbed(ctx, &p);
    if (!recipe) assert_same_bits(y, first->absorbed, p.sizes[MLA_X]);
    free(y);
    mla_problem_free(&p);
}

/* LARGE by a recipe: more tokens than a block has, and more columns of wkv_b. */
static assay_mla_config by_recipe(const char *name)
{
    const assay_calibration absmax = {.factor = 1};
    assay_mla_config config = LARGE;
    config.heads = 6;
    config.recipe = (assay_recipe_config){
        .recipe = assay_quant_recipe_by_name(name), .type = ASSAY_BFLOAT16, .x = absmax, .w = absmax, .dy = absmax};
    assert_non_null(config.recipe.recipe);
    return config;
}

TEST(test_same_bits_with_any_threads_and_isa)
{
    const assay_mla_config configs[] = {LARGE, by_recipe("deepseek_v3"), by_recipe("fp8_full")};
    for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
        first_run first = {0};
        mla_problem_make(&first.p, &configs[i], NULL);
        test_each_context(check_same_bits, &first);
        free(first.absorbed);
        mla_problem_free(&first.p);
    }
}

static bool differs(const mla_problem *p, const mla_problem *moved, int part)
{
    return memcmp(p->gradients[part], moved->gradients[part], (size_t)p->sizes[part] * sizeof(double)) != 0;
}

/* What is quantised is moved, and by one tensor's spread the gradients that are made of it change: of a latent its kernel's, of a
 * gradient that of the kernel and all behind it. What forward makes stays, where forward quantises nothing. */
TEST(test_emulated_runs_move_what_a_recipe_quantises)
{
    static const struct {
        int row, changed, same;
    } table[] = {
        {ASSAY_MLA_MLA_Q, MLA_WQ_B, MLA_WQ_A},
        {ASSAY_MLA_MLA_KV, MLA_WKV_B, MLA_WKV_A},
        {ASSAY_MLA_ATTENTION_OUT, MLA_OUT, MLA_WKV_B},
        {ASSAY_MLA_Q_GRADIENT, MLA_WQ_A, MLA_WKV_B},
        {ASSAY_MLA_QUERY_WA_GRADIENT, MLA_WQ_A, MLA_WQ_B},
        {ASSAY_MLA_KV_GRADIENT, MLA_KV_NORM, MLA_WQ_A},
        {ASSAY_MLA_KV_WA_GRADIENT, MLA_WKV_A, MLA_KV_NORM},
    };
    const assay_emulation emulation = {.seed = 3}; /* in exact arithmetic */
    const assay_mla_config config = by_recipe("deepseek_v3");
    assay_context emulated = assay_context_default(1);
    mla_problem p;
    emulated.emulation = &emulation;
    mla_problem_make(&p, &config, NULL);
    mla_problem_run(&emulated, &p);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        mla_problem moved;
        mla_problem_make(&moved, &config, NULL);
        const int64_t count = assay_mla_tensor_count(&config, (assay_mla_tensor)table[i].row);
        double *spread = test_nans(count);
        for (int64_t k = 0; k < count; k++) spread[k] = 1e-3;
        moved.r.spread[table[i].row] = spread;
        assert_ok(&emulated, mla_problem_forward(&emulated, &moved));
        assert_ok(&emulated, mla_problem_backward(&emulated, &moved));
        assert_same_bits(moved.r.values[ASSAY_MLA_OUT_PROJ], p.r.values[ASSAY_MLA_OUT_PROJ], p.sizes[MLA_X]);
        assert_true(differs(&p, &moved, table[i].changed));
        assert_false(differs(&p, &moved, table[i].same));
        free(spread);
        mla_problem_free(&moved);
    }
    mla_problem_free(&p);
}

/* Which gradients were shown; each becomes 0. */
typedef struct taken {
    const assay_mla_config *config;
    int count, rows[4];
} taken;

static assay_status take(assay_context *ctx, void *self, assay_mla_tensor gradient, double *values)
{
    taken *t = self;
    (void)ctx;
    t->rows[t->count++] = (int)gradient;
    const int64_t count = assay_mla_tensor_count(t->config, gradient);
    for (int64_t i = 0; i < count; i++) values[i] = 0;
    return ASSAY_OK;
}

/* What a caller makes of a gradient is what backward goes on with. */
TEST(test_gradients_that_are_quantised_are_shown)
{
    assay_context ctx = assay_context_default(1);
    const assay_mla_config config = by_recipe("fp8_full");
    taken t = {.config = &config};
    mla_problem p;
    mla_problem_make(&p, &config, NULL);
    assert_ok(&ctx, mla_problem_forward(&ctx, &p));
    const assay_mla_inputs in = mla_problem_inputs(&p);
    const assay_mla_weights w = mla_problem_weights(&p);
    assay_mla_gradients g = mla_problem_gradients(&p);
    g.take = take;
    g.self = &t;
    assert_ok(&ctx, assay_mla_backward(&ctx, &g, p.dy, &p.r, &in, &w, &config));
    assert_int_equal(t.count, 4);
    for (int i = 0; i < 4; i++) assert_int_equal(t.rows[i], ASSAY_MLA_Q_GRADIENT + i);
    for (int64_t i = 0; i < p.sizes[MLA_X]; i++) assert_true(p.gradients[MLA_X][i] == 0);
    for (int64_t i = 0; i < p.sizes[MLA_WKV_B]; i++) assert_true(p.gradients[MLA_WKV_B][i] == 0);
    assert_true(largest_of(p.gradients[MLA_OUT], p.sizes[MLA_OUT]) > 0);
    mla_problem_free(&p);
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
