/* The profile fp8_e4m3_block128 against backends with block-scaled fp8: an independent kernel in all its correct forms
 * passes on every case of the catalogue that has the profile, and kernels with a fault fail. Likewise a user's profile
 * with truncating accumulators. */

#include "compare/compare.h"
#include "compare/profile_yaml.h"
#include "harness/tests/golden_trial.h"
#include "oracle/arithmetic/tests/fp8_kernel.h"

TEST_LABELS(slow);

#define PROFILE "fp8_e4m3_block128"

/* At this profile. */
typedef struct fixture {
    trial t;
    const assay_profile *profile;
} fixture;

static void fixture_close(fixture *f)
{
    trial_close(&f->t);
}

static void start_at(fixture *f, assay_case *c, const assay_profile *profile)
{
    assay_context ctx = assay_context_default(1);
    f->profile = profile;
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=none"));
    assert_ok(&ctx, assay_case_add_profile(&ctx, c, profile->precision.name));
    trial_evaluate(&f->t, c, profile);
    assert_ok(&ctx, assay_trial_reader(&ctx, &f->t.golden, "golden", NULL, &f->t.reader));
}

static void start(fixture *f, assay_case *c)
{
    start_at(f, c, assay_profile_by_name(PROFILE));
}

/* What was given, and the golden's choice of experts. */
static bool has(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && (assay_path_is_choice(path) || assay_role_is_input(tensor->spec.role));
}

static assay_report judged(fixture *f, const assay_arithmetic *arithmetic, const assay_emulation *emulation)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
    assay_report report = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    assay_context own = f->t.ctx;
    own.arithmetic = arithmetic;
    own.emulation = emulation;
    assay_source given = assay_input_source(&f->t.golden);
    assert_ok(&f->t.ctx, assay_plan_tensors(&f->t.ctx, &candidate, &f->t.plan, &given));
    given.has = has;
    const assay_sink out = assay_results_sink(&candidate);
    assert_ok(&own, assay_operation_evaluate(&own, f->t.plan.operation, f->t.c, &given, &out));
    trial_round(&candidate, f->profile->storage);
    assert_ok(&f->t.ctx, assay_trial_reader(&f->t.ctx, &candidate, "candidate", f->profile, &reader));
    assert_ok(&f->t.ctx,
              assay_compare(&f->t.ctx, f->t.reader, reader, f->profile, 1e-6, assay_plan_order(&f->t.plan), &report));
    return report;
}

static fp8_kernel kernel_of(int way, fp8_fault fault)
{
    return (fp8_kernel){
        .types = {.storage = ASSAY_BFLOAT16}, .power_of_two = (way & 1) != 0, .bits = way & 2 ? 13 : 0, .fault = fault};
}

static void expect(fixture *f, const char *what, assay_verdict verdict, assay_report *report)
{
    if (report->verdict != verdict)
        fail_msg("%s, %s: %s: %s", f->t.c->name, what, assay_verdict_name(report->verdict), report->message);
    assay_report_free(report);
}

static bool has_the_profile(const assay_case *c)
{
    bool found = false;
    for (int i = 0; i < c->profiles.count; i++) found |= strcmp(c->profiles.items[i], PROFILE) == 0;
    return found;
}

/* A member errs by the root of 2 more than what rounds to nearest. The scale of a single element may have come out
 * small by half of that, since it is from 16 draws and from a model that knows rows and columns. A small tensor may err
 * as one number, which of some hundred is at times twice its deviation. */
static void check_member(fixture *f)
{
    const assay_profile *profile = assay_profile_by_name(PROFILE);
    const assay_emulation e = {
        .precision = profile->precision, .storage = profile->storage, .multiply = profile->multiply, .seed = 5};
    OWNED_BY(assay_report_free) assay_report report = judged(f, &assay_arithmetic_emulated, &e);
    for (int i = 0; i < report.count; i++) {
        const assay_tensor_result *tensor = &report.tensors[i];
        if (!(tensor->worst_element < 1.25 && tensor->worst_row < 1 && tensor->rms_ratio < 2.5))
            fail_msg("%s, a member: %s: %g, %g, %g", f->t.c->name, tensor->spec.path, tensor->worst_element,
                     tensor->worst_row, tensor->rms_ratio);
    }
}

static void check_correct(assay_case *c)
{
    static const char *const ways[] = {"float scales", "powers of two", "truncated", "truncated, powers of two"};
    OWNED_BY(fixture_close) fixture f;
    start(&f, c);
    for (int way = 0; way < 4; way++) {
        const fp8_kernel kernel = kernel_of(way, FP8_CORRECT);
        assay_report report = judged(&f, &fp8_arithmetic, &kernel.types);
        expect(&f, ways[way], ASSAY_PASS, &report);
    }
    check_member(&f);
}

TEST(test_correct_backends_pass)
{
    int count = 0, checked = 0;
    assay_case *all = all_cases(&count);
    for (int i = 0; i < count; i++) {
        if (!has_the_profile(&all[i])) continue;
        check_correct(case_named(all[i].name, NULL));
        checked++;
    }
    assert_true(checked >= 15);
    assay_cases_free(all, count);
}

/* Sums of whole numbers that are 0, of scaled operands: a kernel that multiplies numbers by scales before it adds them up
 * has something left there. */
TEST(test_whole_numbers_that_cancel)
{
    fixture f;
    int zeros = 0;
    start(&f,
          case_named("mlp/exact", "checkpoints=all;inputs.weights/wi_1/kernel={distribution: normal, scale: 0.001}"));
    const assay_tensor *h = assay_tensor_set_find(&f.t.golden, "checkpoints/mlpwi_0"),
                       *scales = assay_results_scales(&f.t.golden, f.profile, "checkpoints/mlpwi_0");
    for (int64_t i = 0; i < h->count; i++) {
        if (h->values[i] != 0) continue;
        assert_true(scales->values[i] > 0);
        zeros++;
    }
    assert_true(zeros > 10);
    trial_close(&f.t);
}

TEST(test_wrong_backends_fail)
{
    static const struct {
        const char *name;
        fp8_fault fault;
        int way;
    } table[] = {
        {"gmm/ragged", FP8_BLOCK_UNSCALED, 0},
        {"gmm/primes", FP8_BLOCK_UNSCALED, 2},
        {"mlp/k160-n192", FP8_BLOCK_UNSCALED, 1},
        {"moe/k160-n192", FP8_BLOCK_UNSCALED, 0},
        {"mla/deepseek3-tiny", FP8_BLOCK_UNSCALED, 0},
        {"deepseek_layer/moe", FP8_BLOCK_UNSCALED, 0},
        {"gmm/ragged", FP8_POWER_OFF_BY_ONE, 1},
        {"mlp/silu", FP8_POWER_OFF_BY_ONE, 3},
        {"moe/deepseek3-groups", FP8_POWER_OFF_BY_ONE, 1},
        {"mla/small", FP8_POWER_OFF_BY_ONE, 1},
        {"deepseek_layer/dense", FP8_POWER_OFF_BY_ONE, 1},
        {"gmm/deep-positive", FP8_ONE_ACCUMULATOR, 2},
        {"gmm/deep-positive", FP8_ONE_ACCUMULATOR, 3},
        {"gmm/tile-powers", FP8_TENSOR_SCALE, 0},
        {"gmm/tile-powers", FP8_TENSOR_SCALE, 3},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(fixture_close) fixture f;
        start(&f, case_named(table[i].name, NULL));
        const fp8_kernel kernel = kernel_of(table[i].way, table[i].fault);
        assay_report report = judged(&f, &fp8_arithmetic, &kernel.types);
        expect(&f, "a fault", ASSAY_FAIL, &report);
    }
}

/* A user's profile with accumulators that truncate. Accumulators of four bits less are told from it. */
TEST(test_truncating_accumulators)
{
    static const char yaml[] = "name: cut\nlike: f32\naccumulate: {bits: 13, rounding: truncate, block: 128}\n";
    static const char *const names[] = {"gmm/deep-positive", "gmm/ragged", "mlp/k160-n192", "moe/small", "mla/small"};
    assay_profile profile;
    for (int i = 0; i < 5; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(fixture_close) fixture f;
        assert_ok(&ctx, assay_profile_parse(&ctx, "cut.yml", yaml, strlen(yaml), &profile));
        start_at(&f, case_named(names[i], NULL), &profile);
        for (int bits = 13; bits >= 9; bits -= 4) {
            const fp8_kernel kernel = {.types = {.storage = ASSAY_FLOAT32}, .unscaled = true, .bits = bits};
            assay_report report = judged(&f, &fp8_arithmetic, &kernel.types);
            expect(&f, "truncated sums", bits == 13 ? ASSAY_PASS : ASSAY_FAIL, &report);
        }
    }
}
