/* Profiles narrower than the grid of a golden's inputs: a kernel of such a profile rounds inputs, weights and
 * cotangents before it does anything with them. It must pass, and one that rounds them to a coarser type still must
 * not. */

#include "harness/plan/inputs.h"
#include "harness/routing_choice/given_choice.h"
#include "harness/scales/ensemble.h"
#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"
#include "tests/support/test_tensors.h"

/* What a kernel reads: the golden's tensors, rounded to nearest. A router's own numbers stay as they are. */
typedef struct kernel_source {
    assay_source golden;
    assay_dtype type;
    bool chooses; /* experts by itself; else the golden's are given */
} kernel_source;

static bool kernel_has(void *self, const char *path)
{
    const kernel_source *k = self;
    if (k->chooses && assay_role_of(path) == ASSAY_ROLE_ROUTING) return false;
    return k->golden.has(k->golden.self, path);
}

static assay_status kernel_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const kernel_source *k = self;
    assay_status status = k->golden.read(ctx, k->golden.self, path, first, count, out);
    const bool of_router = assay_path_ends(path, "gate/bias") || assay_path_ends(path, "logits");
    if (status == ASSAY_OK && !of_router) assay_dtype_round_many(k->type, count, out, out);
    return status;
}

static assay_status kernel_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const kernel_source *k = self;
    return k->golden.read_i32(ctx, k->golden.self, path, first, count, out);
}

/* With inputs in `type`. */
static void write_candidate(trial *t, const assay_profile *profile, assay_dtype type, bool chooses)
{
    test_tensors results = {0};
    assay_fixture_writer *writer = NULL;
    const assay_emulation types = {.storage = profile->storage};
    kernel_source kernel = {.golden = assay_fixture_source(t->golden), .type = type, .chooses = chooses};
    const assay_source in = {.self = &kernel, .has = kernel_has, .read = kernel_read, .read_i32 = kernel_read_i32};
    const assay_sink out = test_tensors_sink(&results);
    assay_context own = t->ctx;
    own.arithmetic = &nearest_arithmetic;
    own.emulation = &types;
    assert_ok(&own, t->plan.operation->run(&own, t->c, &in, &out, NULL, 0));
    assert_ok(&t->ctx, assay_fixture_create(&t->ctx, t->candidate, &writer));
    assert_ok(&t->ctx, assay_fixture_set_text(&t->ctx, writer, "kind", "candidate"));
    for (int i = 0; i < t->plan.spec_count; i++) {
        assay_tensor_spec spec = t->plan.specs[i];
        const assay_tensor *found = assay_tensor_set_find(&results.set, spec.path);
        const bool choice = chooses && assay_path_ends(spec.path, "selected_experts");
        if (!choice && spec.role != ASSAY_ROLE_OUTPUT && !assay_has_error_scale(&spec)) continue;
        assert_non_null(found);
        if (spec.type != ASSAY_INT32) spec.type = profile->storage;
        assert_ok(&t->ctx, assay_fixture_declare(&t->ctx, writer, &spec));
        if (spec.type == ASSAY_INT32) {
            assert_ok(&t->ctx, assay_fixture_append_i32(&t->ctx, writer, spec.path, found->count, found->indices));
        } else {
            assert_ok(&t->ctx, assay_fixture_append(&t->ctx, writer, spec.path, found->count, found->values));
        }
    }
    assert_ok(&t->ctx, assay_fixture_finish(&t->ctx, writer));
    assay_tensor_set_free(&results.set);
}

static void compare(trial *t, const assay_profile *profile, assay_report *report)
{
    assay_fixture_reader *candidate = NULL;
    assay_golden golden = {.reader = t->golden, .c = t->c, .plan = t->plan}, against = {0};
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, t->candidate, &candidate));
    assert_ok(&t->ctx, assay_compare_given_choice(&t->ctx, &golden, candidate, profile, 1e-6, true, report, &against));
    assay_golden_close(&against);
    assay_fixture_close(candidate);
}

static assay_verdict verdict_of(trial *t, const assay_profile *profile, assay_dtype type)
{
    assay_report report;
    write_candidate(t, profile, type, false);
    compare(t, profile, &report);
    const assay_verdict verdict = report.verdict;
    if (verdict == ASSAY_FAIL && type == profile->storage)
        fail_msg("%s %s: %s", report.case_name, report.profile, report.message);
    assay_report_free(&report);
    return verdict;
}

static const char *const cases[] = {
    "rms_norm/prime-width",
    "rms_norm/mean-offset",
    "mlp/silu",
    "mlp/biases",
    "gmm/primes",
    "permute/stable",
    "unpermute/primes",
    "routing/deepseek3-tiny",
    "routing/balance",
    "routing/gpt-oss",
    "routing/gemma4",
    "moe/small",
    "moe/mixtral-capacity",
    "moe/balance",
    "moe/down-bias",
    "moe/llama4",
    "moe/gemma4",
    "moe/mesh-expert2",
    "yarn_rope/deepseek",
    "attention/seven",
    "mla/small",
    "deepseek_layer/moe",
    "deepseek_stack/three-layers",
};

static void check_cases(void **state, const char *dtype, const char *profile_name)
{
    const test_folder *folder = *state;
    assay_context ctx = assay_context_default(1);
    const assay_profile *profile = assay_profile_by_name(profile_name);
    char profiles[64];
    snprintf(profiles, sizeof profiles, "profiles=%s", profile_name);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        trial t;
        assay_case *c = case_named(&ctx, cases[i], dtype);
        assert_ok(&ctx, assay_case_set(&ctx, c, profiles));
        open_trial(&t, folder, c);
        verdict_of(&t, profile, profile->storage);
        const assay_dtype coarser = profile->storage == ASSAY_FLOAT32 ? ASSAY_BFLOAT16 : ASSAY_FLOAT8_E4M3FN;
        if (verdict_of(&t, profile, coarser) != ASSAY_FAIL)
            fail_msg("%s %s: inputs in %s pass", cases[i], profile_name, assay_dtype_name(coarser));
        close_trial(&t);
    }
}

TEST_WITH(float32_at_bf16, folder_setup, folder_teardown)
{
    check_cases(state, "dtype=float32", "bf16");
}

TEST_WITH(float32_at_f16, folder_setup, folder_teardown)
{
    check_cases(state, "dtype=float32", "f16");
}

TEST_WITH(float64_at_f32, folder_setup, folder_teardown)
{
    check_cases(state, "dtype=float64", "f32");
}

/* Roundings of one tensor that all go one way, and inputs whose sums cancel: first order alone does not know them. */
TEST_WITH(structured_inputs, folder_setup, folder_teardown)
{
    static const char *const yaml[] = {
        "case: a\nop: mlp\ndtype: float32\nprofiles: bf16\nbatch: 1\nsequence: 16\n"
        "config: {base_emb_dim: 64, base_mlp_dim: 96}\n"
        "inputs: {weights/wi_0/kernel: {mean: 0.7, scale: 0.1}, weights/wi_1/kernel: {mean: 0.7, scale: 0.1},"
        " weights/wo/kernel: {mean: 0.7, scale: 0.1}}\n",
        "case: a\nop: mlp\ndtype: float32\nprofiles: bf16\nbatch: 1\nsequence: 16\n"
        "config: {base_emb_dim: 64, base_mlp_dim: 96}\n"
        "inputs: {x: {distribution: cancel, scale: 1}, weights/wi_0/kernel: {distribution: constant, mean: 0.125},"
        " weights/wi_1/kernel: {distribution: constant, mean: 0.0625}}\n",
    };
    const test_folder *folder = *state;
    assay_context ctx = assay_context_default(1);
    const assay_profile *profile = assay_profile_by_name("bf16");
    for (size_t i = 0; i < sizeof yaml / sizeof *yaml; i++) {
        trial t;
        open_trial(&t, folder, case_from(&ctx, yaml[i]));
        verdict_of(&t, profile, ASSAY_BFLOAT16);
        close_trial(&t);
    }
}

static test_tensors evaluated(assay_context *ctx, const char *dtype)
{
    test_tensors results = {0};
    assay_plan plan = {0};
    assay_inputs inputs = {0};
    assay_case *c = case_named(ctx, "mlp/exact", dtype);
    assert_ok(ctx, assay_case_set(ctx, c, "tags=mlp")); /* not exact: with error scales */
    assert_ok(ctx, assay_case_set(ctx, c, "profiles=[bf16]"));
    assert_ok(ctx, assay_plan_make(ctx, &plan, c));
    assert_ok(ctx, assay_inputs_open(ctx, &inputs, c, &plan.list, NULL));
    const assay_source source = assay_inputs_source(&inputs);
    const assay_sink sink = test_tensors_sink(&results);
    assert_ok(ctx, assay_evaluate(ctx, &plan, &source, &sink));
    assay_inputs_close(&inputs);
    assay_plan_free(&plan);
    assay_cases_free(c, 1);
    return results;
}

/* Numbers that the profile's type has lose nothing: the same scales as on its own grid. */
TEST(numbers_of_the_type_are_exact)
{
    assay_context ctx = assay_context_default(1);
    test_tensors fine = evaluated(&ctx, "dtype=float32"), own = evaluated(&ctx, "dtype=bfloat16");
    int scales = 0;
    assert_int_equal(fine.set.count, own.set.count);
    for (int i = 0; i < own.set.count; i++) {
        const assay_tensor *theirs = &own.set.items[i], *mine = assay_tensor_set_find(&fine.set, theirs->spec.path);
        if (theirs->spec.role != ASSAY_ROLE_ERROR_SCALE) continue;
        assert_non_null(mine);
        for (int64_t k = 0; k < theirs->count; k++) assert_true(mine->values[k] == theirs->values[k]);
        scales++;
    }
    assert_true(scales > 0);
    assay_tensor_set_free(&fine.set);
    assay_tensor_set_free(&own.set);
}

/* Experts that only rounded inputs make a kernel choose are admissible. */
TEST_WITH(other_experts_are_admissible, folder_setup, folder_teardown)
{
    const test_folder *folder = *state;
    assay_context ctx = assay_context_default(1);
    const assay_profile *profile = assay_profile_by_name("bf16");
    assay_report report;
    trial t;
    assay_case *c = case_named(&ctx, "routing/deepseek3-tiny", "dtype=float32");
    assert_ok(&ctx, assay_case_set(&ctx, c, "sequence=512"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=bf16"));
    open_trial(&t, folder, c);
    write_candidate(&t, profile, ASSAY_BFLOAT16, true);
    compare(&t, profile, &report);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
    assert_true(report.routing.admissible > 0);
    assert_int_equal(report.routing.wrong, 0);
    assay_report_free(&report);
    write_candidate(&t, profile, ASSAY_FLOAT8_E4M3FN, true);
    compare(&t, profile, &report);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_true(report.routing.wrong > 0);
    assay_report_free(&report);
    close_trial(&t);
}
