/* The profile fp8_e4m3_block128 against backends with block-scaled fp8: an independent kernel in all its correct forms
 * passes on every case of the catalogue that has the profile, and kernels with a fault fail. Likewise a user's profile
 * with truncating accumulators. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "compare/profile_yaml.h"
#include "harness/plan/inputs.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"
#include "harness/tests/harness_test.h"
#include "oracle/arithmetic/tests/fp8_kernel.h"
#include "oracle/base/memory.h"

#define PROFILE "fp8_e4m3_block128"

typedef struct trial {
    assay_context ctx;
    const assay_profile *profile;
    assay_case *c;
    assay_plan plan;
    assay_tensor_set golden;
    assay_fixture_reader *reader;
} trial;

/* A reader over what is there; of a candidate (the type that it stores; else NULL) the results alone. */
static assay_fixture_reader *reader_of(assay_context *ctx, const assay_tensor_set *results,
                                       const assay_dtype *candidate)
{
    assay_fixture_reader *reader = NULL;
    assay_memory_tensor *tensors = calloc((size_t)results->count, sizeof *tensors);
    int count = 0;
    assert_non_null(tensors);
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        if (!assay_tensor_is_complete(tensor)) continue;
        if (candidate != NULL && (assay_role_is_given(tensor->spec.role) || tensor->spec.role == ASSAY_ROLE_ROUTING))
            continue;
        tensors[count] =
            (assay_memory_tensor){.spec = tensor->spec, .numbers = tensor->values, .integers = tensor->indices};
        const assay_dtype type = candidate != NULL ? *candidate : tensor->spec.type;
        if (tensor->values != NULL) {
            tensors[count].spec.type = type;
            assay_dtype_round_many(type, tensor->count, tensor->values, tensor->values);
        }
        count++;
    }
    assert_ok(ctx, assay_fixture_of_memory(ctx, candidate != NULL ? "candidate" : "golden", count, tensors, &reader));
    free(tensors);
    return reader;
}

static void start_at(trial *t, assay_case *c, const assay_profile *profile)
{
    assay_inputs inputs = {0};
    *t = (trial){.ctx = assay_context_default(1), .profile = profile, .c = c};
    assert_ok(&t->ctx, assay_case_set(&t->ctx, c, "profiles=none"));
    assert_ok(&t->ctx, assay_case_add_profile(&t->ctx, c, profile->precision.name));
    assert_ok(&t->ctx, assay_plan_make_with(&t->ctx, &t->plan, c, NULL, profile));
    assert_ok(&t->ctx, assay_inputs_open(&t->ctx, &inputs, c, &t->plan.list, NULL));
    const assay_source drawn = assay_inputs_source(&inputs);
    assert_ok(&t->ctx, assay_plan_tensors(&t->ctx, &t->golden, &t->plan, &drawn));
    const assay_source given = assay_given_source(&t->golden);
    const assay_sink out = assay_results_sink(&t->golden);
    assert_ok(&t->ctx, assay_evaluate(&t->ctx, &t->plan, &given, &out));
    t->reader = reader_of(&t->ctx, &t->golden, NULL);
    assay_inputs_close(&inputs);
}

static void start(trial *t, assay_case *c)
{
    start_at(t, c, assay_profile_by_name(PROFILE));
}

static void end(trial *t)
{
    assay_fixture_close(t->reader);
    assay_tensor_set_free(&t->golden);
    assay_plan_free(&t->plan);
    assay_cases_free(t->c, 1);
}

/* What was given, and the golden's choice of experts. */
static bool has(void *self, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(self, path);
    return tensor != NULL && (assay_path_is_choice(path) || assay_role_is_given(tensor->spec.role));
}

static assay_report judged(trial *t, const assay_arithmetic *arithmetic, const assay_emulation *emulation)
{
    assay_tensor_set candidate = {0};
    assay_report report = {0};
    assay_context own = t->ctx;
    own.arithmetic = arithmetic;
    own.emulation = emulation;
    assay_source given = assay_given_source(&t->golden);
    assert_ok(&t->ctx, assay_plan_tensors(&t->ctx, &candidate, &t->plan, &given));
    given.has = has;
    const assay_sink out = assay_results_sink(&candidate);
    assert_ok(&own, t->plan.operation->run(&own, t->c, &given, &out, NULL, 0));
    assay_fixture_reader *reader = reader_of(&t->ctx, &candidate, &t->profile->storage);
    assert_ok(&t->ctx,
              assay_compare(&t->ctx, t->reader, reader, t->profile, 1e-6, assay_plan_order(&t->plan), &report));
    assay_fixture_close(reader);
    assay_tensor_set_free(&candidate);
    return report;
}

static fp8_kernel kernel_of(int way, fp8_fault fault)
{
    return (fp8_kernel){
        .types = {.storage = ASSAY_BFLOAT16}, .power_of_two = (way & 1) != 0, .bits = way & 2 ? 13 : 0, .fault = fault};
}

static void expect(trial *t, const char *what, assay_verdict verdict, assay_report *report)
{
    if (report->verdict != verdict)
        fail_msg("%s, %s: %s: %s", t->c->name, what, assay_verdict_name(report->verdict), report->message);
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
static void check_member(trial *t)
{
    const assay_profile *profile = assay_profile_by_name(PROFILE);
    const assay_emulation e = {
        .precision = profile->precision, .storage = profile->storage, .multiply = profile->multiply, .seed = 5};
    assay_report report = judged(t, &assay_arithmetic_emulated, &e);
    for (int i = 0; i < report.count; i++) {
        const assay_tensor_result *tensor = &report.tensors[i];
        if (!(tensor->worst_element < 1.25 && tensor->worst_row < 1 && tensor->rms_ratio < 2.5))
            fail_msg("%s, a member: %s: %g, %g, %g", t->c->name, tensor->spec.path, tensor->worst_element,
                     tensor->worst_row, tensor->rms_ratio);
    }
    assay_report_free(&report);
}

static void check_correct(assay_case *c)
{
    static const char *const ways[] = {"float scales", "powers of two", "truncated", "truncated, powers of two"};
    trial t;
    start(&t, c);
    for (int way = 0; way < 4; way++) {
        const fp8_kernel kernel = kernel_of(way, FP8_CORRECT);
        assay_report report = judged(&t, &fp8_arithmetic, &kernel.types);
        expect(&t, ways[way], ASSAY_PASS, &report);
    }
    check_member(&t);
    end(&t);
}

TEST(test_correct_backends_pass)
{
    assay_context ctx = assay_context_default(1);
    assay_case *all = NULL;
    int count = 0, checked = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &all, &count));
    for (int i = 0; i < count; i++) {
        if (!has_the_profile(&all[i])) continue;
        check_correct(case_named(&ctx, all[i].name, NULL));
        checked++;
    }
    assert_true(checked >= 15);
    assay_cases_free(all, count);
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
        assay_context ctx = assay_context_default(1);
        trial t;
        start(&t, case_named(&ctx, table[i].name, NULL));
        const fp8_kernel kernel = kernel_of(table[i].way, table[i].fault);
        assay_report report = judged(&t, &fp8_arithmetic, &kernel.types);
        expect(&t, "a fault", ASSAY_FAIL, &report);
        end(&t);
    }
}

/* A user's profile with accumulators that truncate: error scales are propagated through gmm and come from the ensemble
 * elsewhere. Accumulators of four bits less are told from it. */
TEST(test_truncating_accumulators)
{
    static const char yaml[] = "name: cut\nlike: f32\naccumulate: {bits: 13, rounding: truncate, block: 128}\n";
    static const char *const names[] = {"gmm/deep-positive", "gmm/ragged", "mlp/k160-n192", "moe/small", "mla/small"};
    assay_profile profile;
    for (int i = 0; i < 5; i++) {
        assay_context ctx = assay_context_default(1);
        trial t;
        assert_ok(&ctx, assay_profile_parse(&ctx, "cut.yml", yaml, strlen(yaml), &profile));
        start_at(&t, case_named(&ctx, names[i], NULL), &profile);
        for (int bits = 13; bits >= 9; bits -= 4) {
            const fp8_kernel kernel = {.types = {.storage = ASSAY_FLOAT32}, .unscaled = true, .bits = bits};
            assay_report report = judged(&t, &fp8_arithmetic, &kernel.types);
            expect(&t, "truncated sums", bits == 13 ? ASSAY_PASS : ASSAY_FAIL, &report);
        }
        end(&t);
    }
}
