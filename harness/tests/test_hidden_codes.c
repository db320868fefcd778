/* h that a kernel quantises itself: correct kernels pass with their codes and without, wrong codes and scales are found. */

#include "harness/judge/judge.h"
#include "harness/plan/inputs.h"
#include "harness/scales/ensemble.h"
#include "harness/scales/hidden.h"
#include "harness/scales/hidden_deviation.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(catalogue);

#define SETS "profiles=bf16;checkpoints=['*hidden_codes*']"

typedef enum codes_form { NUMBERS, BITS, PACKED } codes_form;

/* Names of a program's codes are its own. */
static assay_case *quantising(const char *name)
{
    return case_named(name,
                      strncmp(name, "program/", 8) == 0 ? "profiles=bf16;checkpoints=['*/codes', '*/scale']" : SETS);
}

static const assay_profile *profile(void)
{
    return assay_profile_by_name("bf16");
}

/* As the emulated arithmetic, which stores a number as either of its neighbours, but as the nearer one, as kernels do. */
static void round_to_nearest(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    if (rounding == ASSAY_ROUND_STORAGE) {
        assay_dtype_round_many(ctx->emulation->storage, count, values, values);
    } else {
        assay_arithmetic_emulated.round(ctx, rounding, count, values);
    }
}

/* What one of the correct kernels gives, or, with `staged`, the float64 one that goes on from these codes. */
static void run(trial *t, int number, const assay_tensor_set *staged, assay_tensor_set *results)
{
    assay_arithmetic nearest = assay_arithmetic_emulated;
    nearest.round = round_to_nearest;
    const assay_precision precision = assay_case_precision(t->c, profile());
    const assay_emulation emulation = assay_ensemble_member(&t->plan, &precision, "kernel", number);
    assay_context ctx = t->ctx;
    assay_tensor_set none = {0};
    assay_overlay given = {assay_tensor_set_source(staged != NULL ? staged : &none), t->source};
    const assay_source source = assay_overlay_source(&given);
    assay_rounded rounded = {{&source, NULL}, t->c, NULL};
    const assay_source in = staged != NULL ? source : assay_rounded_source(&rounded);
    if (staged == NULL) {
        ctx.arithmetic = &nearest;
        ctx.emulation = &emulation;
    }
    trial_run(t, &ctx, &in, results);
}

/* Bits of numbers. */
static void encode(assay_dtype type, int64_t count, const double *numbers, int32_t *bits)
{
    for (int64_t i = 0; i < count; i++) {
        uint8_t byte = 0;
        float wide = (float)numbers[i];
        if (type == ASSAY_FLOAT32) memcpy(&bits[i], &wide, sizeof wide);
        if (type == ASSAY_FLOAT32) continue;
        assay_dtype_encode(type, 1, &numbers[i], &byte);
        bits[i] = byte;
    }
}

static void append(trial *t, assay_fixture_writer *writer, const assay_tensor *r, codes_form form)
{
    assay_hidden all[ASSAY_MOST_HIDDEN];
    const int of_case = assay_hidden_list(&t->plan.list, all);
    bool hidden = false, codes = false;
    assay_dtype type = ASSAY_FLOAT64;
    for (int i = 0; i < of_case; i++) {
        assay_quantize_config rules;
        const bool is_codes = strcmp(all[i].codes->path, r->spec.path) == 0;
        if (!is_codes && strcmp(all[i].scale->path, r->spec.path) != 0) continue;
        assert_ok(&t->ctx, assay_hidden_rules(&t->ctx, t->c, &all[i], &rules));
        hidden = true;
        codes = is_codes;
        type = codes ? rules.format->element : rules.format->scale;
    }
    assay_tensor_spec spec = r->spec;
    int32_t *bits = calloc((size_t)r->count, sizeof *bits);
    int64_t count = r->count;
    if (!hidden || form == NUMBERS) {
        spec.type = r->values == NULL ? ASSAY_INT32 : hidden ? type : assay_profile_type_of(profile(), &r->spec);
        assert_ok(&t->ctx, assay_fixture_declare(&t->ctx, writer, &spec));
        assert_ok(&t->ctx, r->values == NULL ? assay_fixture_append_i32(&t->ctx, writer, spec.path, count, r->indices)
                                             : assay_fixture_append(&t->ctx, writer, spec.path, count, r->values));
        free(bits);
        return;
    }
    spec.type = ASSAY_INT32;
    encode(type, count, r->values, bits);
    if (codes && form == PACKED) {
        spec.shape.dims[spec.shape.rank - 1] /= 2;
        count /= 2;
        for (int64_t i = 0; i < count; i++) bits[i] = bits[2 * i] | bits[2 * i + 1] << 4;
    }
    assert_ok(&t->ctx, assay_fixture_declare(&t->ctx, writer, &spec));
    assert_ok(&t->ctx, assay_fixture_append_i32(&t->ctx, writer, spec.path, count, bits));
    free(bits);
}

/* `without`: what paths of it end in is not given. */
static assay_report judge(trial *t, const assay_tensor_set *results, codes_form form, const char *without)
{
    assay_fixture_writer *writer = NULL;
    const assay_judging how = trial_judging(profile());
    assert_ok(&t->ctx, assay_fixture_create(&t->ctx, t->candidate, &writer));
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *r = &results->items[i];
        const size_t length = strlen(r->spec.path), ending = strlen(without);
        const bool left_out = ending > 0 && length >= ending && strcmp(r->spec.path + length - ending, without) == 0;
        if (!assay_role_is_result(r->spec.role) || left_out || !assay_tensor_is_complete(r)) continue;
        if (strcmp(without, "all") == 0 && assay_path_is_hidden(r->spec.path)) continue;
        for (int64_t k = 0; r->values != NULL && !assay_path_is_hidden(r->spec.path) && k < r->count; k++)
            r->values[k] = assay_dtype_round(assay_profile_type_of(profile(), &r->spec), r->values[k], false);
        append(t, writer, r, form);
    }
    assert_ok(&t->ctx, assay_fixture_finish(&t->ctx, writer));
    return trial_judge(t, &how);
}

static void check_passes(const assay_report *report, const char *name, bool with_codes)
{
    if (report->verdict != ASSAY_PASS) fail_msg("%s: %s", name, report->message);
    assert_true((report->codes[0] != '\0') == with_codes);
    if (with_codes) assert_non_null(strstr(report->codes, " 0 wrong; what follows is evaluated given them"));
}

static void check_kernels(const test_folder *folder, const char *name, int kernels, codes_form form)
{
    OWNED_BY(trial_close) trial t = {0};
    int others = 0;
    trial_write(&t, folder, quantising(name));
    for (int number = 0; number < kernels; number++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        run(&t, number, NULL, &results);
        OWNED_BY(assay_report_free) assay_report report = judge(&t, &results, form, "");
        check_passes(&report, name, true);
        others += strstr(report.codes, " 0 within errors") == NULL;
        assay_report_free(&report);
        report = judge(&t, &results, form, "all");
        check_passes(&report, name, false);
    }
    assert_true(others > 0); /* some codes are not the golden's */
}

TEST_IN_FOLDER(correct_kernels_pass_with_their_codes_and_without)
{
    check_kernels(folder, "mlp/requantised-fp8", 6, NUMBERS);
    check_kernels(folder, "mlp/requantised-mxfp8", 6, BITS);
    check_kernels(folder, "moe/requantised-nvfp4", 6, PACKED);
    check_kernels(folder, "moe/requantised-gpt-oss", 4, NUMBERS);
    check_kernels(folder, "moe/requantised-fp8", 2, NUMBERS);
    check_kernels(folder, "moe/recipe-deepseek-v3", 4, NUMBERS);
    check_kernels(folder, "deepseek_layer/requantised-fp8", 2, NUMBERS);
    check_kernels(folder, "program/norm-rope-quantise", 6, BITS);
    check_kernels(folder, "program/swiglu-quantise", 6, NUMBERS);
    check_kernels(folder, "program/quantise-blocks", 4, BITS);
}

/* What a kernel writes is enough: the numbers of an output follow from its codes and scales. */
TEST_IN_FOLDER(an_output_is_what_its_codes_say)
{
    OWNED_BY(trial_close) trial t = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder, quantising("program/norm-rope-quantise"));
    run(&t, 0, NULL, &results);
    OWNED_BY(assay_report_free) assay_report report = judge(&t, &results, BITS, "outputs/y");
    check_passes(&report, "codes alone", true);
    assay_report_free(&report);
    report = judge(&t, &results, BITS, "scale");
    assert_int_equal(report.verdict, ASSAY_FAIL);
}

/* The codes and scales of the golden, to be changed. */
static void stage(trial *t, assay_tensor_set *staged)
{
    for (int i = 0; i < t->golden.count; i++) {
        const assay_tensor *from = &t->golden.items[i];
        assay_tensor_spec spec = from->spec;
        assay_tensor *to = NULL;
        if (!assay_path_is_hidden(spec.path) || spec.role != ASSAY_ROLE_CHECKPOINT) continue;
        assay_staged_path(from->spec.path, spec.path);
        assert_ok(&t->ctx, assay_tensor_set_add(&t->ctx, staged, &spec, &to));
        memcpy(to->values, from->values, (size_t)to->count * sizeof *to->values);
        to->written = to->count;
    }
}

typedef struct planted {
    const char *name, *path, *without, *message;
    int64_t index;
    double times; /* the number there; 0: nothing */
} planted;

/* What follows is right for the codes that are given. */
TEST_IN_FOLDER(wrong_codes_are_found)
{
    static const planted table[] = {
        {"mlp/requantised-fp8", "staged/checkpoints/mlp_hidden_codes", "", "checkpoints/mlp_hidden_codes[0,0,3] is ", 3,
         2},
        {"mlp/requantised-fp8", "staged/checkpoints/mlp_hidden_codes", "", "checkpoints/mlp_hidden_codes[0,11,135] is ",
         12 * 136 - 1, -1},
        {"mlp/requantised-fp8", "staged/checkpoints/mlp_hidden_codes_scale", "",
         "checkpoints/mlp_hidden_codes_scale[0,2,1] is ", 5, 1.25},
        {"moe/requantised-nvfp4", "staged/checkpoints/moe_hidden_codes_scale", "",
         "checkpoints/moe_hidden_codes_scale[1,1] is ", 4, 2},
        {"deepseek_stack/requantised-mxfp8", "staged/checkpoints/layers/1/mlp_hidden_codes", "",
         "checkpoints/layers/1/mlp_hidden_codes[0,0,2] is -144, the golden has 144", 2, -1},
        {"moe/requantised-fp8", "staged/checkpoints/moe_hidden_codes", "moe_hidden_codes_scale",
         "checkpoints/moe_hidden_codes is given without checkpoints/moe_hidden_codes_scale", 0, 0},
        {"moe/requantised-fp8", "staged/checkpoints/mlp_hidden_codes", "mlp_hidden_codes",
         "checkpoints/mlp_hidden_codes_scale is given without checkpoints/mlp_hidden_codes", 0, 0},
        {"program/norm-rope-quantise", "staged/checkpoints/y/scale", "", "checkpoints/y/scale[0,1,1] is ", 3, 2},
        {"program/norm-rope-quantise", "staged/checkpoints/y/codes", "", "checkpoints/y/codes[0,0,5] is ", 5, -1},
        {"program/swiglu-quantise", "staged/checkpoints/q/scale", "", "checkpoints/q/scale[2,0] is ", 2, 1.25},
        {"program/quantise-blocks", "staged/checkpoints/a/scale", "", "checkpoints/a/scale[1,1] is ", 3, 1.25},
        {"program/quantise-blocks", "staged/checkpoints/t/scale", "", "checkpoints/t/scale[0,0] is ", 0, 2},
        {"program/quantise-blocks", "staged/checkpoints/r/codes", "", "checkpoints/r/codes[4,135] is ", 5 * 136 - 1,
         -1},
        {"program/quantise-blocks", "staged/checkpoints/column/scale", "", "checkpoints/column/scale[0,7] is ", 7,
         1.25},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const planted *p = &table[i];
        OWNED_BY(trial_close) trial t = {0};
        OWNED_BY(assay_tensor_set_free) assay_tensor_set staged = {0}, results = {0};
        trial_write(&t, folder, quantising(p->name));
        stage(&t, &staged);
        if (p->times != 0) assay_tensor_set_find(&staged, p->path)->values[p->index] *= p->times;
        run(&t, 0, &staged, &results);
        OWNED_BY(assay_report_free) assay_report report = judge(&t, &results, NUMBERS, p->without);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        if (strncmp(report.message, p->message, strlen(p->message)) != 0) fail_msg("%s: %s", p->name, report.message);
        assert_non_null(strstr(report.codes, " 1 wrong"));
    }
}

/* A product that is 2 % off hides in what other codes may do to it, and not where the codes are given. */
TEST_IN_FOLDER(codes_sharpen_what_follows)
{
    OWNED_BY(trial_close) trial t = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder, case_named("moe/requantised-fp8", SETS));
    run(&t, 0, NULL, &results);
    assay_tensor *y = assay_tensor_set_find(&results, "outputs/y");
    for (int64_t i = 0; i < y->count; i++) y->values[i] *= i % 2 == 0 ? 1.02 : 0.98;
    OWNED_BY(assay_report_free) assay_report report = judge(&t, &results, NUMBERS, "all");
    assert_int_equal(report.verdict, ASSAY_PASS);
    assay_report_free(&report);
    report = judge(&t, &results, NUMBERS, "");
    assert_int_equal(report.verdict, ASSAY_FAIL);
}

/* Of all that a recipe quantises inside MLA and the kernel computed, and of nothing else. */
TEST_WITH_CONTEXT(what_mla_quantises_has_a_spread)
{
    static const char *const expected[] = {"mla_q",
                                           "mla_kv",
                                           "attention_out",
                                           "q_gradient",
                                           "query_wa_proj_gradient",
                                           "kv_gradient",
                                           "kv_wa_proj_gradient"};
    enum { EXPECTED = sizeof expected / sizeof *expected };
    OWNED_BY(assay_plan_free) assay_plan plan;
    OWNED_BY(assay_inputs_close) assay_inputs inputs;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set deviation = {0};
    OWNED_BY(free_case) assay_case *c = case_named("mla/recipe-fp8-full", "seed=5");
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_ok(&ctx, assay_inputs_open(&ctx, &inputs, c, &plan.list, NULL));
    const assay_source in = assay_inputs_source(&inputs);
    assert_ok(&ctx, assay_hidden_deviation(&ctx, &plan, &plan.precisions[0], &in, NULL, &deviation));
    assert_int_equal(deviation.count, EXPECTED);
    for (int i = 0; i < EXPECTED; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "spread/checkpoints/%s", expected[i]);
        assert_string_equal(deviation.items[i].spec.path, path);
        for (int64_t k = 0; k < deviation.items[i].count; k++) {
            assert_true(isfinite(deviation.items[i].values[k]));
            assert_true(deviation.items[i].values[k] < 1e-4); /* in float32; tensors are about 1 */
        }
        double sum = 0;
        for (int64_t k = 0; k < deviation.items[i].count; k++) sum += deviation.items[i].values[k];
        assert_true(sum > 0);
    }
}
