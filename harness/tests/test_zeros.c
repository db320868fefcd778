/* Every number of the catalogue's goldens whose error scale is 0 has a reason. Where it is 0 itself, a candidate must have 0 as well. The
 * second form says the reason: each number on its tape is moved by a millionth by itself, inputs too, and then it runs back. A sum stays 0
 * where each of its terms has a factor of 0: a mask, padding, an expert that nobody chose, a row behind the last group, an operand of 0. A
 * difference that cancels does not, and correct kernels have what rounding leaves of it, but for one of numbers that are given: with inputs
 * as they are it stays 0. Other numbers are off by no more than one or two roundings. With ASSAY_NIGHTLY error scales of f32 and bf16 are
 * looked at, too. */
#include <quadmath.h>

#include "harness/certify/certificate.h"
#include "harness/plan/results.h"
#include "harness/tests/golden_trial.h"
#include "oracle/quad/tape.h"

TEST_LABELS(catalogue);

static const double MOST_FLOPS = 3e6;
static const double MOVED = 1e-6;

/* Of recipes: a block of zeros that is quantised has no scale, and the emulated runs leave it so. */
enum { EXACT_CASE, ZERO_IN_EVERY_TERM, QUANTISED_ZEROS, FEW_ROUNDINGS, GIVEN_TERMS, REASONS };
static const char *const reasons[REASONS] = {"all of an exact case", "a 0 in every term", "behind a block of zeros",
                                             "one or two roundings", "a difference of what is given"};

typedef struct moved_form {
    const assay_operation *operation;
    assay_operation_config config;
} moved_form;

static void move(uint64_t *seed, int64_t count, quad *values)
{
    for (int64_t i = 0; i < count; i++) {
        const double step = (double)(quad_next_random(seed) >> 11) * 0x1p-52 - 1;
        if (finiteq(values[i])) values[i] *= 1 + MOVED * step;
    }
}

static void run_moved(quad_tape *t, const void *with)
{
    const moved_form *form = with;
    uint64_t seed = 1;
    form->operation->second_form.form(t, &form->config);
    for (int i = 1; i < t->count && t->status == ASSAY_OK; i++) {
        const quad_record *r = &t->records[i];
        if (r->own && r->values != NULL) move(&seed, r->rows * r->columns, r->values);
    }
}

/* Roundings that are no store's are float32's, or at f64 float64's: so much smaller are they than the store's, which has its room. */
static double most_moved(const assay_profile *profile)
{
    const double finest = assay_dtype_unit_roundoff(profile->storage == ASSAY_FLOAT64 ? ASSAY_FLOAT64 : ASSAY_FLOAT32);
    return 2 * MOVED * assay_dtype_unit_roundoff(profile->storage) / finest;
}

/* -1: there is none. within: with inputs as they are. */
static int reason_of(const assay_case *c, const assay_profile *profile, double golden, double moved, double within)
{
    if (has_tag(c, "exact")) return EXACT_CASE;
    if (golden != 0) return fabs(within - golden) <= most_moved(profile) * fabs(golden) ? FEW_ROUNDINGS : -1;
    if (moved == 0) return ZERO_IN_EVERY_TERM;
    if (within == 0) return GIVEN_TERMS;
    return c->config.quant_recipe.text[0] != '\0' ? QUANTISED_ZEROS : -1;
}

static double number_of(const quad_tensors *set, const char *path, int64_t k)
{
    const quad_tensor *tensor = quad_tensors_find(set, path);
    return tensor == NULL ? NAN : (double)tensor->values[k];
}

/* Adds to the counts; returns how many have no reason. An infinity needs none. */
static int64_t name_reasons(const trial *t, const assay_profile *profile, const quad_tensors *moved,
                            const quad_tensors *within, int64_t counts[REASONS])
{
    int64_t nameless = 0;
    for (int i = 0; i < t->golden.count; i++) {
        const assay_tensor *golden = &t->golden.items[i];
        const char *path = golden->spec.path;
        const assay_tensor *scale = assay_results_scales(&t->golden, profile, path);
        for (int64_t k = 0; k < golden->count && scale != NULL && golden->values != NULL; k++) {
            if (scale->values[k] != 0 || !isfinite(golden->values[k])) continue;
            const double m = number_of(moved, path, k), w = number_of(within, path, k);
            const int reason = reason_of(t->c, profile, golden->values[k], m, w);
            if (reason >= 0) counts[reason]++;
            if (reason < 0 && nameless++ == 0)
                printf("%s: %s[%d] is %g and its error scale at %s is 0, but it moves by %g and %g\n", t->c->name, path,
                       (int)k, golden->values[k], profile->precision.name, (m - golden->values[k]) / MOVED,
                       (w - golden->values[k]) / MOVED);
        }
    }
    return nameless;
}

static void run_second_form(trial *t, assay_certificate_inputs *inputs, quad_tensors *found)
{
    moved_form form = {.operation = t->plan.operation};
    assert_ok(&t->ctx, assay_operation_configure(&t->ctx, form.operation, t->c, &form.config));
    if (quad_differentiate(&t->ctx, run_moved, &form, &inputs->in, &inputs->results, found, NULL) != ASSAY_OK)
        fail_msg("%s: %s", t->c->name, t->ctx.message);
}

static int64_t try_case(assay_case *c, bool nightly, int64_t counts[REASONS], int *judged)
{
    static const char *const profiles[] = {"f64", "f32", "bf16"};
    trial t;
    assay_certificate_inputs inputs = {0};
    quad_tensors moved = {0}, within = {0};
    uint64_t seed = 2;
    int64_t nameless = 0;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_case_set(&ctx, c, nightly ? "profiles=[f64, f32, bf16]" : "profiles=[f64]"));
    trial_plan(&t, c);
    if (assay_operation_flops(t.plan.operation, c, true) > MOST_FLOPS) goto done;
    ++*judged;
    assert_ok(&t.ctx, assay_plan_tensors(&t.ctx, &t.golden, &t.plan, &t.source));
    const assay_sink golden = assay_results_sink(&t.golden);
    assert_ok(&t.ctx, assay_certificate_inputs_collect(&t.ctx, &inputs, &t.plan, &t.source, &golden));
    run_second_form(&t, &inputs, &within);
    for (int i = 0; i < inputs.in.count; i++)
        if (inputs.in.items[i].values != NULL)
            move(&seed, assay_shape_count(&inputs.in.items[i].shape), inputs.in.items[i].values);
    run_second_form(&t, &inputs, &moved);
    for (int i = 0; i < (nightly ? 3 : 1); i++)
        nameless += name_reasons(&t, assay_profile_by_name(profiles[i]), &moved, &within, counts);
    quad_tensors_free(&moved);
    quad_tensors_free(&within);
    assay_certificate_inputs_free(&inputs);
    assay_tensor_set_free(&t.golden);
done:
    assay_inputs_close(&t.inputs);
    assay_plan_free(&t.plan);
    return nameless;
}

TEST(every_error_scale_of_0_has_a_reason)
{
    const bool nightly = getenv("ASSAY_NIGHTLY") != NULL;
    int count = 0, judged = 0;
    int64_t nameless = 0, counts[REASONS] = {0};
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++)
        if (!has_tag(&cases[i], "true-size")) nameless += try_case(&cases[i], nightly, counts, &judged);
    for (int i = 0; i < REASONS; i++) printf("%s: %lld\n", reasons[i], (long long)counts[i]);
    printf("%d cases\n", judged);
    assert_int_equal(nameless, 0);
    assert_true(judged >= 1000);
    for (int i = 0; i < (nightly ? REASONS : GIVEN_TERMS); i++) assert_true(counts[i] > 0);
    assay_cases_free(cases, count);
}
