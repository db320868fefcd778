/* Error scales at the edge of what a golden holds: profiles that a case lists and its golden cannot have, and layouts. */

#include "compare/profile_yaml.h"
#include "harness/plan/golden_open.h"
#include "harness/tests/harness_test.h"

/* The golden's own verdict on a candidate of NaN at f16. */
static void check_compared(const assay_golden *golden, const char *path)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_report_free) assay_report report = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    const assay_tensor_spec *spec = assay_fixture_find(golden->reader, path);
    OWNED double *numbers = calloc((size_t)assay_shape_count(&spec->shape), sizeof *numbers);
    assert_non_null(numbers);
    numbers[0] = NAN;
    const assay_memory_tensor tensor = {.spec = *spec, .numbers = numbers};
    bool found = false;
    assert_ok(&ctx, assay_fixture_of_memory(&ctx, "candidate", 1, &tensor, &candidate));
    assert_ok(&ctx, assay_compare(&ctx, golden->reader, candidate, assay_profile_by_name("f16"), 1e-6,
                                  assay_plan_order(&golden->plan), &report));
    for (int i = 0; i < report.count; i++) {
        if (strcmp(report.tensors[i].spec.path, path) != 0) continue;
        found = true;
        assert_int_equal(report.tensors[i].verdict, ASSAY_NOT_COMPARABLE);
        assert_non_null(strstr(report.tensors[i].message, "the golden has no profile f16: "));
    }
    assert_true(found);
}

/* A profile that is merely listed is left out; one that was asked for, or is the only one, is refused. */
TEST_IN_FOLDER(a_profile_that_a_case_cannot_have)
{
    static const struct {
        const char *name, *input, *output, *why;
    } table[] = {
        {"attention/deepseek", "inputs.query={distribution: normal, scale: 30000}", "outputs/attention_out",
         "inputs/query[0,0,...] is inf once stored"},
        {"attention/deepseek", "inputs.query={distribution: normal, scale: 3000}", "outputs/attention_out",
         "emulated correct runs overflow at "},
        {"gqa/qwen3", "inputs.x={distribution: normal, scale: 300}", "outputs/y", "emulated correct runs overflow at "},
        {"gmm/exact-one-hot", "seed=1001", "gradients/weights/rhs", "inputs/lhs has numbers that this profile rounds"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_plan plan = {0};
        assay_golden golden = {0};
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, "profiles=[f16, bf16]");
        assert_ok(&ctx, assay_case_set(&ctx, c, table[i].input));
        assert_ok(&ctx, assay_plan_make_with(&ctx, &plan, c, NULL, assay_profile_by_name("f16")));
        assert_bad_input(&ctx, assay_golden_write(&ctx, &plan, folder->file, NULL, true), ": profile f16: ");
        assert_int_equal(folder_count(folder->path, false), 0);
        assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
        assert_ok(&ctx, assay_golden_open(&ctx, folder->file, &golden));
        const char *why = assay_profile_left_out(golden.reader, "f16");
        if (why == NULL || strstr(why, table[i].why) == NULL) fail_msg("row %zu: %s", i, why);
        assert_ok(&ctx, assay_golden_plan(&ctx, &golden, NULL));
        assert_int_equal(golden.plan.precision_count, 1);
        assert_string_equal(golden.plan.precisions[0].name, "bf16");
        for (int k = 0; k < assay_fixture_count(golden.reader); k++)
            assert_null(strstr(assay_fixture_spec(golden.reader, k)->path, "/f16/"));
        assert_ok(&ctx, assay_golden_recompute(&ctx, &golden.plan, golden.reader, true));
        check_compared(&golden, table[i].output);
        assay_golden_close(&golden);
        assay_plan_free(&plan);
        assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=f16"));
        assert_bad_input(&ctx, try_golden(&ctx, c, folder->file, NULL), table[i].why);
        assert_int_equal(remove(folder->file), 0);
    }
}

/* bfloat16 rounds the router's kernel, and every expert that is chosen still has the weight 1. */
TEST_IN_FOLDER_WITH_CONTEXT(an_exact_case_whose_results_no_rounding_changes)
{
    OWNED_BY(free_case) assay_case *c = case_named("moe/exact", "profiles=[bf16, f16]");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assay_golden golden = {0};
    assert_ok(&ctx, assay_golden_open(&ctx, folder->file, &golden));
    assert_non_null(assay_fixture_find(golden.reader, "error_scale/bf16/outputs/y"));
    assay_golden_close(&golden);
    assert_int_equal(remove(folder->file), 0);
    assert_ok(&ctx, assay_case_set(&ctx, c, "inputs.x={distribution: normal, scale: 1}"));
    assert_bad_input(&ctx, try_golden(&ctx, c, folder->file, NULL),
                     "inputs/x has numbers that this profile rounds, which changes results");
}

/* A golden of 1e60 in float64, whose error scale float32 has not. */
TEST_IN_FOLDER_WITH_CONTEXT(error_scales_beyond_float32_are_refused_by_profile)
{
    OWNED_BY(free_case)
    assay_case *c = case_named("routing/z-loss", "profiles=f32;inputs.x={distribution: normal, scale: 1e30}");
    assert_bad_input(&ctx, try_golden(&ctx, c, folder->file, NULL),
                     "profile f32: results overflow: the error scale of outputs/z_loss is inf");
    assert_int_equal(folder_count(folder->path, false), 0);
}

#define EXPONENTIALS                                                                                                   \
    "case: a\nop: program\nsizes: {T: 3, D: 5}\ninputs: {z: {axes: [T, D], distribution: uniform, low: 124, "          \
    "high: 130}}\nsteps: {}\noutputs: {e: exp(z)}\nprofiles: [f64]\ndtype: float64\n"

/* Nothing overflows at float64: what has no room in float32 is said, and what has is a golden. */
TEST_IN_FOLDER(large_and_small_numbers_at_float64)
{
    static const struct {
        const char *name, *set, *why;
    } table[] = {
        {NULL, "",
         "profile f64: float32, in which error scales are, has no room for that of outputs/e[0,0], where the golden "
         "is "},
        {"rms_norm/deepseek", "inputs.x={distribution: normal, scale: 1e-100};normalization_layer_epsilon=0",
         "profile f64: float32, in which error scales are, has no room for that of "
         "gradients/inputs/x[0,0,0], where the golden is "},
        {"rms_norm/deepseek",
         "inputs.x={distribution: normal, scale: 1e-100};normalization_layer_epsilon=0;gradients=none", NULL},
        {"rms_norm/all-zero", "gradients=none", NULL},
        {"attention/deepseek",
         "inputs.query={distribution: normal, scale: 1e20};inputs.key={distribution: normal, scale: 1e20}", NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        char set[256];
        snprintf(set, sizeof set, "profiles=f64;dtype=float64;%s", table[i].set);
        OWNED_BY(free_case)
        assay_case *c = table[i].name != NULL ? case_named(table[i].name, set) : case_from(EXPONENTIALS);
        const assay_status status = try_golden(&ctx, c, folder->file, NULL);
        if (status != (table[i].why == NULL ? ASSAY_OK : ASSAY_BAD_INPUT)) fail_msg("row %zu: %s", i, ctx.message);
        if (table[i].why != NULL) assert_message(&ctx, table[i].why);
        if (status == ASSAY_OK) assert_int_equal(remove(folder->file), 0);
    }
}

/* Gate and up laid out on shards in rows of 48, of which no 1024 are whole ones. */
TEST_IN_FOLDER_WITH_CONTEXT(scales_of_weights_laid_out_on_shards)
{
    OWNED_BY(free_case) assay_case *c = case_named("moe/fused-shards2", "gradients=all;profiles=f64");
    assert_ok(&ctx, try_golden(&ctx, c, folder->file, NULL));
    assert_int_equal(remove(folder->file), 0);
}
