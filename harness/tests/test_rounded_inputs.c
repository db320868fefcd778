/* Profiles narrower than the grid of a golden's inputs: a kernel of such a profile rounds inputs, weights and
 * cotangents before it does anything with them. It must pass, and one that rounds them to a coarser type still must
 * not. */

#include "harness/tests/golden_trial.h"
#include "harness/tests/nearest_arithmetic.h"
#include "tests/support/test_tensors.h"

TEST_LABELS(catalogue);

/* What a kernel reads: the golden's tensors, rounded to nearest. A router's own numbers stay as they are, and so may
 * tensors whose type the case names. */
typedef struct kernel_source {
    assay_source golden;
    assay_dtype type;
    const assay_case *keeps; /* what this case names; NULL: nothing */
    bool bias_too;           /* a router's bias is rounded */
    bool chooses;            /* experts by itself; else the golden's are given */
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
    const bool bias = assay_path_ends(path, "gate/bias") && !k->bias_too;
    const bool kept =
        bias || assay_path_ends(path, "logits") || (k->keeps != NULL && assay_case_dtype_of(k->keeps, path) != NULL);
    if (status == ASSAY_OK && !kept) assay_dtype_round_many(k->type, count, out, out);
    return status;
}

static assay_status kernel_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const kernel_source *k = self;
    return k->golden.read_i32(ctx, k->golden.self, path, first, count, out);
}

static bool is_result(const assay_tensor_spec *spec)
{
    return spec->role == ASSAY_ROLE_OUTPUT || assay_has_error_scale(spec);
}

static bool is_result_or_choice(const assay_tensor_spec *spec)
{
    return is_result(spec) || assay_path_ends(spec->path, "selected_experts");
}

static void write_kernel(trial *t, const assay_profile *profile, kernel_source kernel)
{
    OWNED_BY(test_tensors_free) test_tensors results = {0};
    const assay_emulation types = {.storage = profile->storage};
    kernel.golden = assay_fixture_source(t->reader);
    const assay_source in = {.self = &kernel, .has = kernel_has, .read = kernel_read, .read_i32 = kernel_read_i32};
    const assay_sink out = test_tensors_sink(&results);
    assay_context own = t->ctx;
    own.arithmetic = &nearest_arithmetic;
    own.emulation = &types;
    assert_ok(&own, assay_operation_evaluate(&own, t->plan.operation, t->c, &in, &out));
    trial_write_candidate(t, &results.set, profile, kernel.chooses ? is_result_or_choice : is_result);
}

/* With inputs in `type`. */
static void write_candidate(trial *t, const assay_profile *profile, assay_dtype type, bool chooses)
{
    write_kernel(t, profile, (kernel_source){.type = type, .chooses = chooses});
}

static assay_verdict verdict_of(trial *t, const assay_profile *profile, assay_dtype type)
{
    const assay_judging how = trial_judging(profile);
    write_candidate(t, profile, type, false);
    OWNED_BY(assay_report_free) assay_report report = trial_judge(t, &how);
    const assay_verdict verdict = report.verdict;
    if (verdict == ASSAY_FAIL && type == profile->storage)
        fail_msg("%s %s: %s", report.case_name, report.profile, report.message);
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

/* A kernel with inputs in the profile's storage passes; in the coarser type it does not. */
static void check(const test_folder *folder, assay_case *c, const char *profile_name, assay_dtype coarser)
{
    const assay_profile *profile = assay_profile_by_name(profile_name);
    OWNED_BY(trial_close) trial t;
    trial_write(&t, folder, c);
    assert_int_equal(verdict_of(&t, profile, profile->storage), ASSAY_PASS);
    if (verdict_of(&t, profile, coarser) != ASSAY_FAIL)
        fail_msg("%s %s: inputs in %s pass", c->name, profile_name, assay_dtype_name(coarser));
}

static void check_cases(const test_folder *folder, const char *dtype, const char *profile, assay_dtype coarser)
{
    char sets[64];
    snprintf(sets, sizeof sets, "%s;profiles=%s", dtype, profile);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(folder, case_named(cases[i], sets), profile, coarser);
}

TEST_IN_FOLDER(float32_at_bf16)
{
    check_cases(folder, "dtype=float32", "bf16", ASSAY_FLOAT8_E4M3FN);
}

TEST_IN_FOLDER(float32_at_f16)
{
    check_cases(folder, "dtype=float32", "f16", ASSAY_FLOAT8_E4M3FN);
}

TEST_IN_FOLDER(float64_at_f32)
{
    check_cases(folder, "dtype=float64", "f32", ASSAY_BFLOAT16);
}

/* On a grid that is coarser than float16's and reaches further down. */
TEST_IN_FOLDER(small_bfloat16_at_f16)
{
    check(folder, case_named("rms_norm/small-latents", "profiles=f16"), "f16", ASSAY_FLOAT8_E5M2);
    check(folder, case_named("mla/small-latents", "profiles=f16"), "f16", ASSAY_FLOAT8_E5M2);
}

/* Roundings of one tensor that all go one way, and inputs whose sums cancel: first order alone does not know them. */
TEST_IN_FOLDER(structured_inputs)
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
    for (size_t i = 0; i < sizeof yaml / sizeof *yaml; i++) {
        OWNED_BY(trial_close) trial t;
        trial_write(&t, folder, case_from(yaml[i]));
        verdict_of(&t, assay_profile_by_name("bf16"), ASSAY_BFLOAT16);
    }
}

/* Numbers that the profile's type has lose nothing: the same scales as on its own grid. */
TEST(numbers_of_the_type_are_exact)
{
    trial fine, own; /* tagged as not exact: with error scales */
    int scales = 0;
    trial_evaluate(&fine, case_named("mlp/exact", "dtype=float32;tags=mlp;profiles=[bf16]"), NULL);
    trial_evaluate(&own, case_named("mlp/exact", "dtype=bfloat16;tags=mlp;profiles=[bf16]"), NULL);
    assert_int_equal(fine.golden.count, own.golden.count);
    for (int i = 0; i < own.golden.count; i++) {
        const assay_tensor *theirs = &own.golden.items[i],
                           *mine = assay_tensor_set_find(&fine.golden, theirs->spec.path);
        if (theirs->spec.role != ASSAY_ROLE_ERROR_SCALE) continue;
        assert_non_null(mine);
        for (int64_t k = 0; k < theirs->count; k++) assert_true(mine->values[k] == theirs->values[k]);
        scales++;
    }
    assert_true(scales > 0);
    trial_close(&fine);
    trial_close(&own);
}

/* Experts that only rounded inputs make a kernel choose are admissible. */
TEST_IN_FOLDER(other_experts_are_admissible)
{
    const assay_profile *profile = assay_profile_by_name("bf16");
    const assay_judging how = trial_judging(profile);
    OWNED_BY(trial_close) trial t;
    assay_case *c = case_named("routing/deepseek3-tiny", "dtype=float32;sequence=512;profiles=bf16");
    trial_write(&t, folder, c);
    write_candidate(&t, profile, ASSAY_BFLOAT16, true);
    OWNED_BY(assay_report_free) assay_report report = trial_judge(&t, &how);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
    assert_true(report.routing.admissible > 0);
    assert_int_equal(report.routing.wrong, 0);
    assay_report_free(&report);
    write_candidate(&t, profile, ASSAY_FLOAT8_E4M3FN, true);
    report = trial_judge(&t, &how);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_true(report.routing.wrong > 0);
}

/* Tensors that have a type of their own, finer than the profile's storage: a kernel uses them in it, and passes. One
 * that rounds them is wrong where that is more than results lose when they are stored. */
TEST_IN_FOLDER(named_tensors_are_not_rounded)
{
    static const struct {
        const char *name, *set;
        bool chooses, fails; /* experts by itself; when it rounds */
    } table[] = {
        {"routing/float32-bias", "", true, true},
        {"routing/float32-bias-groups", "", true, true},
        {"moe/float32-bias", "", true, true},
        {"deepseek_layer/moe-float32-bias", "", true, true},
        {"routing/float32-router", "", false, true},
        {"routing/gpt-oss", "dtypes.gate/kernel=float32", false, true},
        {"rms_norm/prime-width", "dtypes.weights/scale=float32", false, false},
        {"mlp/biases", "dtypes.*/bias=float32", false, false},
        {"moe/mixtral", "dtypes.wo=float32", false, false},
        {"moe/mesh-expert2", "dtypes.gate/kernel=float32", false, false},
        {"mla/small", "dtypes.wq_a/kernel=float32", false, false},
    };
    const assay_profile *profile = assay_profile_by_name("bf16");
    const assay_judging how = trial_judging(profile);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        assay_case *c = case_named(table[i].name, table[i].set);
        trial_write(&t, folder, c);
        for (int rounds = 0; rounds <= (int)table[i].fails; rounds++) {
            const kernel_source kernel = {.type = profile->storage,
                                          .keeps = rounds == 0 ? c : NULL,
                                          .bias_too = rounds == 1,
                                          .chooses = table[i].chooses};
            write_kernel(&t, profile, kernel);
            OWNED_BY(assay_report_free) assay_report report = trial_judge(&t, &how);
            if ((report.verdict == ASSAY_FAIL) != (rounds == 1))
                fail_msg("%s, %s: %s", table[i].name, rounds == 0 ? "kept" : "rounded", report.message);
        }
    }
}

/* The sum of squares of a result's error scales. */
static double scales_of(const char *name, const char *set, const char *path, assay_tensor_set *numbers)
{
    OWNED_BY(trial_close) trial t;
    double sum = 0;
    trial_evaluate(&t, case_named(name, set), NULL);
    const assay_tensor *scales = assay_results_scales(&t.golden, assay_profile_by_name("bf16"), path);
    for (int64_t i = 0; i < scales->count; i++) sum += scales->values[i] * scales->values[i];
    assert_ok(&t.ctx, assay_tensor_set_copy(&t.ctx, &t.golden, numbers));
    return sum;
}

/* The same numbers twice: of one tensor in float32 that is named, which loses nothing, and of one that is not. */
TEST(only_others_add_to_error_scales)
{
    static const struct {
        const char *name, *path, *named, *not_named;
    } table[] = {
        {"mlp/silu", "outputs/y", "dtypes.wo/kernel=float32",
         "dtype=float32;dtypes.wi*=bfloat16;dtypes.x=bfloat16;dtypes.cotangents/*=bfloat16"},
        {"mla/small", "outputs/y", "dtypes.out/kernel=float32",
         "dtype=float32;dtypes.*_*=bfloat16;dtypes.x=bfloat16;dtypes.cotangents/*=bfloat16"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set a = {0}, b = {0};
        const double named = scales_of(table[i].name, table[i].named, table[i].path, &a);
        const double rounded = scales_of(table[i].name, table[i].not_named, table[i].path, &b);
        const assay_tensor *y = assay_tensor_set_find(&a, table[i].path), *z = assay_tensor_set_find(&b, table[i].path);
        assert_same_bits(y->values, z->values, y->count);
        if (!(named < 0.9 * rounded)) fail_msg("%s: %g, and rounded %g", table[i].name, named, rounded);
    }
}

/* Beside a dtype that is finer itself, a tensor without a type of its own may be rounded as before. */
TEST_IN_FOLDER(others_are_rounded_beside_a_named_one)
{
    check(folder, case_named("moe/small", "dtype=float32;dtypes.inputs/x=bfloat16;profiles=bf16"), "bf16",
          ASSAY_FLOAT8_E4M3FN);
}
