/* Evaluation with an ensemble, on a small operation of the test's own: two products with a choice of experts between.
 */
#include "compare/profile.h"
#include "compare/statistics.h"
#include "compare/thresholds.h"
#include "harness/operations/op_support.h"
#include "harness/scales/ensemble.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"
#include "tests/support/test_tensors.h"

TEST_LABELS(threads);

enum { TOKENS = 24, DIM = 40, EXPERTS = 3, HIDDEN = 56 };
#define CHOICE "routing/layers/0/selected_experts"

/* What the operation was asked for, and how it is to misbehave. */
static struct {
    int runs, emulated, replayed;
    double flops, outlier; /* which one of the emulated runs adds to the first number of y */
    bool writes_too_much, leaves_out, fails_when_emulated, computes_nothing;
    uint64_t seeds[128];
    bool nearest[128];
} told;

static void tell(const assay_context *ctx, const assay_source *in)
{
    const bool is_emulated = ctx->arithmetic == &assay_arithmetic_emulated;
    if (is_emulated) {
        told.seeds[told.emulated] = ctx->emulation->seed;
        told.nearest[told.emulated] = ctx->emulation->nearest;
    }
    told.runs++;
    told.emulated += is_emulated;
    told.replayed += in->has(in->self, CHOICE);
}

static int64_t axis_size(const void *config, char axis)
{
    (void)config;
    return axis == 'T' ? TOKENS : axis == 'D' ? DIM : axis == 'E' ? EXPERTS : HIDDEN;
}

static void describe(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1, 0);
    (void)config;
    assay_describe(d, "inputs/x", d->c->dtype, &one, "TD");
    assay_describe(d, "weights/w", d->c->dtype, &one, "EDH");
    assay_describe(d, CHOICE, ASSAY_INT32, NULL, "T");
    assay_describe(d, "routing/margin", ASSAY_FLOAT64, NULL, "T");
    assay_describe(d, "checkpoints/h", ASSAY_FLOAT64, NULL, "TH");
    assay_describe(d, "outputs/y", ASSAY_FLOAT64, NULL, "TT");
    assay_describe(d, "gradients/weights/w", ASSAY_FLOAT64, NULL, "EDH");
}

/* The expert of a token: by a number that rounding changes, so that members left to themselves would choose otherwise.
 */
static int32_t chosen(const double *x)
{
    double size = fabs(x[0]) + 1;
    return (int32_t)fmod(size * 0x1p40, EXPERTS);
}

/* h[t] = x[t] w[choice[t]], stored; y = h h^T; dw[e] += sum over its tokens of x[t] h[t]. */
static assay_status compute(assay_context *ctx, const double *x, const double *w, const int32_t *choice, double *h,
                            double *y, double *dw)
{
    assay_status status = ASSAY_OK;
    assay_matmul_args product;
    for (int64_t t = 0; t < TOKENS; t++) {
        product = assay_product_ab(h + t * HIDDEN, x + t * DIM, w + choice[t] * DIM * HIDDEN, 1, HIDDEN, DIM);
        TRY(assay_matmul(ctx, &product));
    }
    assay_round(ctx, ASSAY_ROUND_STORAGE, TOKENS * HIDDEN, h);
    product = assay_product_abt(y, h, h, TOKENS, TOKENS, HIDDEN);
    TRY(assay_matmul(ctx, &product));
    for (int64_t t = 0; t < TOKENS; t++) {
        product = assay_product_ab(dw + choice[t] * DIM * HIDDEN, x + t * DIM, h + t * HIDDEN, DIM, HIDDEN, 1);
        product.accumulate = true;
        TRY(assay_matmul(ctx, &product));
    }
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const void *config, const assay_source *in,
                        const assay_sink *out)
{
    (void)c, (void)config;
    enum { SIZE = EXPERTS * DIM * HIDDEN };
    assay_status status;
    OWNED double *x = NULL, *w = NULL, *h = NULL, *y = NULL, *dw = NULL;
    OWNED int32_t *choice = NULL;
    tell(ctx, in);
    if (told.fails_when_emulated && ctx->emulation != NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "as it was told");
    TRY(assay_read_all(ctx, in, "inputs/x", TOKENS * DIM, &x));
    TRY(assay_read_all(ctx, in, "weights/w", SIZE, &w));
    TRY(assay_read_all_i32(ctx, in, CHOICE, TOKENS, &choice));
    TRY(assay_alloc_f64(ctx, "h", TOKENS * HIDDEN, &h));
    TRY(assay_alloc_f64(ctx, "y", TOKENS * TOKENS, &y));
    TRY(assay_alloc_f64(ctx, "dw", SIZE, &dw));
    if (choice == NULL) {
        TRY(assay_alloc_i32(ctx, "choice", TOKENS, &choice));
        for (int64_t t = 0; t < TOKENS; t++) choice[t] = chosen(x + t * DIM);
    }
    memset(h, 0, TOKENS * HIDDEN * sizeof *h);
    memset(y, 0, TOKENS * TOKENS * sizeof *y);
    memset(dw, 0, SIZE * sizeof *dw);
    if (!told.computes_nothing) TRY(compute(ctx, x, w, choice, h, y, dw));
    if (told.emulated == 7) y[0] += told.outlier;
    TRY(assay_write_result_i32(ctx, out, CHOICE, TOKENS, choice));
    TRY(assay_write_result(ctx, out, "routing/margin", TOKENS, y));
    /* slices of one tensor arrive in order, those of others between */
    TRY(assay_write_result(ctx, out, "outputs/y", TOKENS, y));
    TRY(assay_write_result(ctx, out, "checkpoints/h", TOKENS * HIDDEN, h));
    if (!told.leaves_out) TRY(assay_write_result(ctx, out, "outputs/y", TOKENS * TOKENS - TOKENS, y + TOKENS));
    if (told.writes_too_much) TRY(assay_write_result(ctx, out, "outputs/y", 1, y));
    TRY(assay_write_result(ctx, out, "gradients/weights/w", SIZE, dw));
cleanup:
    return status;
}

static double flops(const void *config, bool backward)
{
    (void)config, (void)backward;
    return told.flops;
}

static int64_t memory(const void *config)
{
    (void)config;
    return 1000;
}

/* Everything but null distributions, for which one run more is needed. */
static const char *const without_null[] = {"routing/*",   "checkpoints/*", "outputs/*",
                                           "gradients/*", "error_scale/*", NULL};

/* A plan of it, and its inputs. */
typedef struct trial {
    assay_case c;
    assay_operation operation;
    assay_plan plan;
    assay_precision precisions[2];
    test_tensors given, results;
    assay_source in;
    assay_sink out;
} trial;

static int trial_setup(void **state)
{
    trial *t = calloc(1, sizeof *t);
    assay_context ctx = assay_context_default(1);
    memset(&told, 0, sizeof told);
    t->c = (assay_case){.name = "fake", .seed = 5, .dtype = ASSAY_BFLOAT16};
    t->operation = (assay_operation){
        .name = "fake", .axis_size = axis_size, .describe = describe, .run = run, .operations = flops, .bytes = memory};
    t->precisions[0] = assay_profile_by_name("bf16")->precision;
    t->precisions[1] = assay_profile_by_name("f32")->precision;
    t->plan = (assay_plan){.c = &t->c, .operation = &t->operation, .precisions = t->precisions, .precision_count = 2};
    assay_describer d = assay_describer_of(&ctx, &t->operation, &t->c, NULL, &t->plan.list);
    describe(&d, NULL);
    assert_ok(&ctx, d.status);
    for (int i = 0; i < 2; i++) {
        const assay_tensor_entry *entry = &t->plan.list.entries[i];
        const int64_t count = assay_shape_count(&entry->spec.shape);
        double *values = test_tensors_add(&t->given, entry->spec.path, count);
        assert_ok(&ctx, assay_random_fill(&ctx, &entry->fill, 5, entry->spec.path, &entry->spec.shape, ASSAY_BFLOAT16,
                                          0, count, values));
    }
    t->in = test_tensors_source(&t->given);
    t->out = test_tensors_sink(&t->results);
    t->results.wanted = without_null;
    *state = t;
    return 0;
}

static int trial_teardown(void **state)
{
    OWNED trial *t = *state;
    assay_tensor_list_free(&t->plan.list);
    assay_tensor_set_free(&t->given.set);
    assay_tensor_set_free(&t->results.set);
    return 0;
}

static const double *result(const trial *t, const char *path, int64_t count)
{
    const assay_tensor *found = assay_tensor_set_find(&t->results.set, path);
    if (found == NULL) fail_msg("no %s", path);
    assert_int_equal(found->count, count);
    return found->values;
}

static const double *scales(const trial *t, const char *profile, const char *path, int64_t count)
{
    char scale[ASSAY_PATH_SIZE];
    snprintf(scale, sizeof scale, "error_scale/%s/%s", profile, path);
    return result(t, scale, count);
}

/* The results are those of one run, the scales come after them, and members draw from seeds of their own. */
TEST_WITH(test_results_and_scales, trial_setup, trial_teardown)
{
    trial *t = *state;
    static const char *const paths[] = {"outputs/y", "checkpoints/h", "gradients/weights/w"};
    static const int64_t counts[] = {TOKENS * TOKENS, TOKENS * HIDDEN, EXPERTS * DIM * HIDDEN};
    assay_context ctx = assay_context_default(2);
    OWNED_BY(test_tensors_free) test_tensors plain = {0};
    const assay_sink sink = test_tensors_sink(&plain);
    assert_ok(&ctx, run(&ctx, &t->c, NULL, &t->in, &sink));
    memset(&told, 0, sizeof told);
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 1 + 64 + 16);
    assert_int_equal(told.emulated, 64 + 16);
    assert_int_equal(told.replayed, told.emulated);
    for (int i = 0; i < told.emulated; i++)
        for (int j = 0; j < i; j++) assert_true(told.seeds[i] != told.seeds[j]);
    assert_int_equal(t->results.set.count, 5 + 2 * 3);
    assert_same_bits(result(t, "routing/margin", TOKENS), assay_tensor_set_find(&plain.set, "routing/margin")->values,
                     TOKENS);
    assert_memory_equal(assay_tensor_set_find(&t->results.set, CHOICE)->indices,
                        assay_tensor_set_find(&plain.set, CHOICE)->indices, TOKENS * sizeof(int32_t));
    for (int i = 0; i < 3; i++) {
        assert_same_bits(result(t, paths[i], counts[i]), assay_tensor_set_find(&plain.set, paths[i])->values,
                         counts[i]);
        const double *coarse = scales(t, "bf16", paths[i], counts[i]), *fine = scales(t, "f32", paths[i], counts[i]);
        for (int64_t k = 0; k < counts[i]; k++) assert_true(fine[k] >= 0 && coarse[k] >= 1000 * fine[k]);
    }
    assert_ptr_equal(ctx.arithmetic, &assay_arithmetic_reference);
    assert_null(ctx.emulation);
}

/* One run in 64 is far out in one element, by 20 scales. The next run may be so in any other, whose scale knows nothing of that: it lies
 * about where the largest of so many Gaussian errors does. Other tensors keep their scales. */
TEST_WITH(test_heavy_tails_are_in_the_scales, trial_setup, trial_teardown)
{
    trial *t = *state;
    static double dw[EXPERTS * DIM * HIDDEN], y[TOKENS * TOKENS];
    assay_context ctx = assay_context_default(1);
    t->plan.precision_count = 1;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    memcpy(dw, scales(t, "bf16", "gradients/weights/w", EXPERTS * DIM * HIDDEN), sizeof dw);
    memcpy(y, scales(t, "bf16", "outputs/y", TOKENS * TOKENS), sizeof y);
    assay_tensor_set_free(&t->results.set);
    memset(&told, 0, sizeof told);
    told.outlier = 20 * y[0];
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_same_bits(scales(t, "bf16", "gradients/weights/w", EXPERTS * DIM * HIDDEN), dw, EXPERTS * DIM * HIDDEN);
    const double *wider = scales(t, "bf16", "outputs/y", TOKENS * TOKENS);
    const double gaussian = assay_thresholds_of(0.03, 64 * TOKENS * TOKENS, 1, 1).element;
    for (int64_t i = 1; i < TOKENS * TOKENS; i++) {
        const double places = 20 * y[i] / wider[i] / gaussian;
        if (!(places > 0.3 && places < 1.5)) fail_msg("element %d: %g of the Gaussian quantile", (int)i, places);
    }
}

TEST_WITH(test_nothing_more_is_run_than_is_wanted, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_context ctx = assay_context_default(1);
    char exact[] = "exact", *tags[] = {exact};
    static const char *const values_only[] = {"outputs/*", "routing/*", NULL};
    static const char *const one_scale[] = {"outputs/y", "error_scale/f32/outputs/y", NULL};
    t->plan.precision_count = 0;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 1);
    assay_tensor_set_free(&t->results.set);

    t->plan.precision_count = 2;
    t->results.wanted = values_only;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 2);
    assay_tensor_set_free(&t->results.set);

    t->results.wanted = one_scale;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(t->results.set.count, 2);
    assert_true(result(t, "error_scale/f32/outputs/y", TOKENS * TOKENS)[0] > 0);
    assay_tensor_set_free(&t->results.set);

    memset(&told, 0, sizeof told);
    t->results.wanted = without_null;
    t->c.tags = (assay_text_list){.items = tags, .count = 1};
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 1);
    const double *scale = result(t, "error_scale/bf16/outputs/y", TOKENS * TOKENS);
    for (int64_t i = 0; i < TOKENS * TOKENS; i++) assert_true(scale[i] == 0);
    assay_tensor_set_free(&t->results.set);

    memset(&told, 0, sizeof told);
    t->plan.precisions[0].scaled.block = 128; /* blocks have scales that are no powers of two */
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_true(told.runs > 1);
    assay_tensor_set_free(&t->results.set);
    t->plan.precisions[0].scaled.block = 0;

    memset(&told, 0, sizeof told);
    t->c.tags.count = 0;
    told.flops = 1e9;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 1 + 2 * 8);
}

/* The members of the error scales and one that rounds to nearest. What is stored can be used: a range, a spread, and
 * the number of members. */
TEST_WITH(test_null_distributions, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_context ctx = assay_context_default(2);
    t->results.wanted = NULL;
    assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
    assert_int_equal(told.runs, 1 + (64 + 1) + (16 + 1));
    for (int i = 0; i < told.emulated; i++) {
        for (int j = 0; j < i; j++) {
            const bool nearest = told.nearest[i] || told.nearest[j];
            assert_true(nearest || told.seeds[i] != told.seeds[j]);
        }
    }
    const assay_shape shape = assay_shape_of(3, (int64_t)EXPERTS, (int64_t)DIM, (int64_t)HIDDEN);
    const double *null = result(t, "null/bf16/gradients/weights/w", assay_statistics_rows(&shape) * ASSAY_NULL_COLUMNS);
    for (int s = 0; s < ASSAY_STATISTICS; s++) {
        if (assay_statistic_row(&shape, s) < 0) continue;
        const double *row = null + assay_statistic_row(&shape, s) * ASSAY_NULL_COLUMNS;
        const bool used = assay_statistic_counts(&shape, s);
        if (s == ASSAY_STATISTIC_TILE) assert_false(used); /* 56 columns are no tile */
        assert_true(row[ASSAY_NULL_LOW] <= row[ASSAY_NULL_HIGH]);
        assert_true(used == (row[ASSAY_NULL_DEVIATION] > 0));
        assert_true(row[ASSAY_NULL_MEMBERS] == (used ? 64 : 0));
    }
    assert_true(fabs(null[ASSAY_STATISTIC_SIZE * ASSAY_NULL_COLUMNS + ASSAY_NULL_HIGH]) < 0.5);
    assert_true(null[ASSAY_STATISTIC_SLOPE * ASSAY_NULL_COLUMNS + ASSAY_NULL_DEVIATION] < 1e-3);
}

TEST_WITH(test_threads_and_instruction_sets_give_the_same_bits, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_context ctx = assay_context_default(1);
    OWNED_BY(test_tensors_free) test_tensors first = {0};
    t->results.wanted = NULL;
    for (int form = 0; test_next_context(&form, &ctx);) {
        assay_tensor_set_free(&t->results.set);
        memset(&told, 0, sizeof told);
        assert_ok(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out));
        if (first.set.count == 0) {
            first = t->results;
            t->results = (test_tensors){0};
            continue;
        }
        assert_int_equal(t->results.set.count, first.set.count);
        for (int i = 0; i < first.set.count; i++) {
            if (first.set.items[i].values == NULL) continue;
            assert_same_bits(t->results.set.items[i].values, first.set.items[i].values, first.set.items[i].count);
        }
    }
}

TEST_WITH(test_refusals, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_context ctx = assay_context_default(1);
    told.fails_when_emulated = true;
    assert_bad_input(&ctx, assay_evaluate(&ctx, &t->plan, &t->in, &t->out), ": as it was told");
    told.fails_when_emulated = false;
    told.writes_too_much = true;
    assert_int_equal(assay_evaluate(&ctx, &t->plan, &t->in, &t->out), ASSAY_INTERNAL);
    assert_string_equal(ctx.message, "outputs/y has more elements than its shape");
    told.writes_too_much = false;
    told.leaves_out = true;
    assert_int_equal(assay_evaluate(&ctx, &t->plan, &t->in, &t->out), ASSAY_INTERNAL);
    assert_string_equal(ctx.message, "outputs/y was not written in full");
}

TEST_WITH(test_memory_is_foreseen, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_tensor_spec specs[3];
    for (int i = 0; i < 3; i++) specs[i] = t->plan.list.entries[5].spec;
    assay_tensor_call(&specs[1], "error_scale/bf16/outputs/y");
    assay_tensor_call(&specs[2], "error_scale/f32/outputs/y");
    t->plan.specs = specs;
    t->plan.spec_count = 3;
    /* golden values, errors of as many members as one of the precisions has, squares of the largest tensor */
    assert_int_equal(assay_ensemble_memory(&t->plan), (8 + 64 * 4 + 8) * TOKENS * TOKENS);
    t->plan.precision_count = 0;
    assert_int_equal(assay_ensemble_memory(&t->plan), 0);
}

static bool has_all(void *self, const char *path)
{
    (void)self, (void)path;
    return true;
}

static assay_status read_counted(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 double *out)
{
    (void)ctx, (void)path, (void)first;
    *(int64_t *)self += count;
    for (int64_t i = 0; i < count; i++) out[i] = 1;
    return ASSAY_OK;
}

/* What would take too much is not kept: members read it again. */
TEST_WITH(test_large_inputs_are_not_kept, trial_setup, trial_teardown)
{
    trial *t = *state;
    assay_context ctx = assay_context_default(1);
    int64_t read = 0;
    const assay_source in = {.self = &read, .has = has_all, .read = read_counted};
    assay_ensemble e = {.plan = &t->plan, .in = &in, .out = &t->out};
    t->plan.list.entries[0].spec.shape = assay_shape_of(1, (int64_t)(ASSAY_ENSEMBLE_BYTES / sizeof(double)) + 1);
    assert_ok(&ctx, assay_ensemble_read_inputs(&ctx, &e));
    assert_int_equal(e.inputs.count, 1);
    assert_string_equal(e.inputs.items[0].spec.path, "weights/w");
    assert_int_equal(read, EXPERTS * DIM * HIDDEN);
    assay_ensemble_release(&e);
}
