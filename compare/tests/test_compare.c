#include "compare/tests/compare_test.h"

typedef void (*change)(test_fixture *candidate);

static double *values_of(test_fixture *c, const char *path)
{
    return tensor_at(c, path)->values;
}

static int64_t count_of(test_fixture *c, const char *path)
{
    return assay_shape_count(&tensor_at(c, path)->spec.shape);
}

static void fill_y(test_fixture *c, double value)
{
    for (int64_t i = 0; i < count_of(c, "outputs/y"); i++) values_of(c, "outputs/y")[i] = value;
}

static void all_nan(test_fixture *c)
{
    fill_y(c, NAN);
}
static void zeros(test_fixture *c)
{
    fill_y(c, 0.0);
}
static void negated(test_fixture *c)
{
    for (int64_t i = 0; i < count_of(c, "outputs/y"); i++) values_of(c, "outputs/y")[i] *= -1.0;
}
static void exchanged_rows(test_fixture *c)
{
    double *y = values_of(c, "outputs/y");
    for (int64_t i = 0; i < 65; i++) {
        double first = y[65 + i];
        y[65 + i] = y[4 * 65 + i];
        y[4 * 65 + i] = first;
    }
}
static void scaled_row(test_fixture *c)
{
    for (int64_t i = 0; i < 65; i++) values_of(c, "outputs/y")[3 * 65 + i] *= 1.5;
}
static void wrong_gradient(test_fixture *c)
{
    values_of(c, "gradients/inputs/x")[7] = 3.0;
}
static void wrong_checkpoint(test_fixture *c)
{
    values_of(c, "checkpoints/moe_mlpwo")[7] = 3.0;
}
static void no_output(test_fixture *c)
{
    drop_tensor(c, "outputs/y");
}
static void no_gradient(test_fixture *c)
{
    drop_tensor(c, "gradients/inputs/x");
}
static void wrong_shape(test_fixture *c)
{
    tensor_at(c, "outputs/y")->spec.shape.dims[0] = 7;
    tensor_at(c, "outputs/y")->spec.shape.dims[1] = 2;
}
static void wrong_rank(test_fixture *c)
{
    tensor_at(c, "outputs/y")->spec = spec_of("outputs/y", ASSAY_FLOAT64, 2, DIMS(14, 65));
}
static void margin_shape(test_fixture *c)
{
    tensor_at(c, "routing/margin")->spec = spec_of("routing/margin", ASSAY_FLOAT64, 1, DIMS(14));
}
static void integers_for_floats(test_fixture *c)
{
    fill_y(c, 1.0);
    tensor_at(c, "outputs/y")->spec.type = ASSAY_INT32;
}
static void floats_for_integers(test_fixture *c)
{
    tensor_at(c, "routing/selected_experts")->spec.type = ASSAY_FLOAT32;
}
static void too_coarse(test_fixture *c)
{
    tensor_at(c, "outputs/y")->spec.type = ASSAY_FLOAT8_E4M3FN;
}
static void is_request(test_fixture *c)
{
    c->kind = "request";
    drop_tensor(c, "outputs/y");
    drop_tensor(c, "outputs/lb_loss");
    drop_tensor(c, "gradients/inputs/x");
    drop_tensor(c, "checkpoints/moe_mlpwo");
    drop_tensor(c, "routing/selected_experts");
    drop_tensor(c, "routing/margin");
}

/* Everything that must fail: what is found, where, and a part of what is said. */
static const struct {
    const char *name;
    change change; /* NULL: element `index` of the tensor becomes `value` */
    const char *path;
    int64_t index;
    double value;
    assay_finding finding;
    const char *message;
} must_fail[] = {
    {"all NaN", all_nan, "outputs/y", 0, 0, ASSAY_FINDING_NONFINITE, "910 of 910 elements are NaN"},
    {"one NaN", NULL, "outputs/y", 909, NAN, ASSAY_FINDING_NONFINITE, "the first [1,6,64]"},
    {"an infinity", NULL, "outputs/y", 0, -INFINITY, ASSAY_FINDING_NONFINITE, "candidate -inf"},
    {"a NaN scalar", NULL, "outputs/lb_loss", 0, NAN, ASSAY_FINDING_NONFINITE, "1 of 1"},
    {"zeros", zeros, "outputs/y", 0, 0, ASSAY_FINDING_ELEMENTS, "candidate 0"},
    {"negated", negated, "outputs/y", 0, 0, ASSAY_FINDING_ELEMENTS, "times the threshold"},
    {"exchanged rows", exchanged_rows, "outputs/y", 0, 0, ASSAY_FINDING_ELEMENTS, "of 910 elements"},
    {"one element", NULL, "outputs/y", 1 * 455 + 3 * 65 + 17, 1.5, ASSAY_FINDING_ELEMENTS,
     "1 of 910 elements beyond their threshold, the worst [1,3,17]"},
    {"the last element", NULL, "outputs/y", 909, 1.5, ASSAY_FINDING_ELEMENTS, "1 of 910"},
    {"a scaled row", scaled_row, "outputs/y", 0, 0, ASSAY_FINDING_ELEMENTS, "[0,3,"},
    {"a gradient", wrong_gradient, "gradients/inputs/x", 0, 0, ASSAY_FINDING_ELEMENTS, "the worst [0,0,7]"},
    {"a checkpoint", wrong_checkpoint, "checkpoints/moe_mlpwo", 0, 0, ASSAY_FINDING_ELEMENTS, "the worst [0,7]"},
    {"a scalar", NULL, "outputs/lb_loss", 0, 1.5, ASSAY_FINDING_ELEMENTS, "1 of 1"},
    {"an integer", NULL, "routing/selected_experts", 5, 77, ASSAY_FINDING_INTEGERS, "the first [0,1,2]"},
    {"no output", no_output, "outputs/y", 0, 0, ASSAY_FINDING_MISSING, "missing"},
    {"no gradient", no_gradient, "gradients/inputs/x", 0, 0, ASSAY_FINDING_MISSING, "missing"},
    {"a shape", wrong_shape, "outputs/y", 0, 0, ASSAY_FINDING_SHAPE, "shape is [7,2,65], expected [2,7,65]"},
    {"a rank", wrong_rank, "outputs/y", 0, 0, ASSAY_FINDING_SHAPE, "shape is [14,65]"},
    {"the margin's shape", margin_shape, "routing/margin", 0, 0, ASSAY_FINDING_SHAPE, "shape is [14]"},
    {"integers for floats", integers_for_floats, "outputs/y", 0, 0, ASSAY_FINDING_TYPE, "int32, expected a float type"},
    {"floats for integers", floats_for_integers, "routing/selected_experts", 0, 0, ASSAY_FINDING_TYPE,
     "expected integers"},
    {"a coarse type", too_coarse, "outputs/y", 0, 0, ASSAY_FINDING_TYPE,
     "float8_e4m3fn, coarser than profile bf16 allows: bfloat16"},
    {"a request", is_request, "outputs/y", 0, 0, ASSAY_FINDING_MISSING, "the file's kind is request"},
};

TEST(test_must_fail)
{
    for (size_t i = 0; i < sizeof must_fail / sizeof *must_fail; i++) {
        OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
        if (must_fail[i].change != NULL) {
            must_fail[i].change(&t.candidate);
        } else {
            values_of(&t.candidate, must_fail[i].path)[must_fail[i].index] = must_fail[i].value;
        }
        trial_compare(&t, "bf16");
        const assay_tensor_result *r = result_at(&t.report, must_fail[i].path);
        if (t.report.verdict != ASSAY_FAIL || r->verdict != ASSAY_FAIL || r->finding != must_fail[i].finding) {
            fail_msg("%s: verdict %s, %s, finding %d", must_fail[i].name, assay_verdict_name(t.report.verdict),
                     r->message, (int)r->finding);
        }
        if (r->finding == ASSAY_FINDING_ELEMENTS) assert_true(r->worst_beyond > 1.0);
        assert_contains(r->message, must_fail[i].message);
        assert_contains(r->message, must_fail[i].path);
    }
}

/* Each element of the row within its threshold of 6.3 standard deviations, the row beyond its own of 5.7. */
TEST(test_row_beyond_its_threshold)
{
    OWNED_BY(trial_free) trial t = trial_of("f32", 1e-3);
    const double *scale = tensor_at(&t.golden, "outputs/y")->scale;
    for (int64_t i = 3 * 65; i < 4 * 65; i++)
        values_of(&t.candidate, "outputs/y")[i] += (i % 2 ? 6.1 : -6.1) * scale[i];
    trial_compare(&t, "f32");
    const assay_tensor_result *y = result_at(&t.report, "outputs/y");
    assert_int_equal(y->finding, ASSAY_FINDING_ROWS);
    assert_int_equal(y->wrong_rows, 1);
    assert_int_equal(y->wrong_elements, 0);
    assert_true(y->worst_beyond > 0.5 && y->worst_beyond <= 1.0);
    assert_int_equal(y->rows_worst[0].index, 3);
    assert_true(y->worst_row > 1.0 && y->worst_row < 1.2);
    assert_contains(t.report.message,
                    "outputs/y: 1 of 14 rows beyond their threshold, the worst row [0,3]: RMS golden");
}

TEST(test_first_wrong_is_blamed)
{
    OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
    wrong_gradient(&t.candidate);
    all_nan(&t.candidate);
    wrong_checkpoint(&t.candidate);
    trial_compare(&t, "bf16");
    assert_contains(t.report.message, "checkpoints/moe_mlpwo: ");
    const char *const order[] = {
        "routing/margin", "routing/selected_experts", "checkpoints/moe_mlpwo", "outputs/lb_loss",
        "outputs/y",      "gradients/inputs/x"};
    assert_int_equal(t.report.count, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(t.report.tensors[i].spec.path, order[i]);
}

/* In an order that no alphabet has; what stands nowhere in it comes last, folder after folder. */
TEST(test_order_is_given)
{
    static const assay_tensor_spec specs[] = {
        {.path = "gradients/inputs/x", .role = ASSAY_ROLE_GRADIENT},
        {.path = "error_scale/bf16/outputs/y", .role = ASSAY_ROLE_ERROR_SCALE},
        {.path = "checkpoints/moe_mlpwo", .role = ASSAY_ROLE_CHECKPOINT},
        {.path = "checkpoints/of_another_case", .role = ASSAY_ROLE_CHECKPOINT},
        {.path = "routing/selected_experts", .role = ASSAY_ROLE_ROUTING},
    };
    OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
    wrong_gradient(&t.candidate);
    wrong_checkpoint(&t.candidate);
    compare_ranked(&t.ctx, &t.golden, &t.candidate, "bf16", (assay_order){.specs = specs, .count = 5}, &t.report);
    assert_contains(t.report.message, "gradients/inputs/x: ");
    const char *const order[] = {"gradients/inputs/x", "checkpoints/moe_mlpwo", "routing/selected_experts",
                                 "routing/margin",     "outputs/lb_loss",       "outputs/y"};
    assert_int_equal(t.report.count, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(t.report.tensors[i].spec.path, order[i]);
}

TEST(test_unknown_paths)
{
    static const struct {
        const char *path;
        bool fails;
    } rows[] = {{"outputs/z", true},
                {"gradients/weights/wo", true},
                {"checkpoints/mlpwo", true},
                {"routing/weights", true},
                {"y", true},
                {"error_scale/f32/outputs/y", true},
                {"error_scale/bf16/outputs/y", true}, /* the golden has it */
                {"null/bf16/outputs/y", true},
                {"inputs/elsewhere", false},
                {"weights/wo2", false},
                {"cotangents/y", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
        add_tensor(&t.candidate, rows[i].path, ASSAY_FLOAT32, 1, DIMS(3), 0.0);
        free(t.candidate.tensors[t.candidate.count - 1].scale);
        t.candidate.tensors[t.candidate.count - 1].scale = NULL;
        trial_compare(&t, "bf16");
        assert_int_equal(t.report.verdict, rows[i].fails ? ASSAY_FAIL : ASSAY_PASS);
        assert_int_equal(t.report.unknown_count, rows[i].fails ? 1 : 0);
        if (rows[i].fails) {
            assert_string_equal(t.report.unknown[0], rows[i].path);
            assert_contains(t.report.message, rows[i].path);
            assert_contains(t.report.message, "unknown path");
        }
    }
}

/* Every type that the profile allows, and every profile for itself. */
TEST(test_correct_passes)
{
    static const struct {
        const char *profile;
        double sigma;
        assay_dtype type;
    } rows[] = {{"bf16", 1e-3, ASSAY_BFLOAT16}, {"bf16", 1e-9, ASSAY_BFLOAT16}, {"bf16", 1e-3, ASSAY_FLOAT16},
                {"bf16", 1e-9, ASSAY_FLOAT32},  {"bf16", 1e-9, ASSAY_FLOAT64},  {"f16", 1e-9, ASSAY_FLOAT16},
                {"f16", 1e-9, ASSAY_TFLOAT32},  {"f32", 1e-9, ASSAY_FLOAT32},   {"f64", 1e-17, ASSAY_FLOAT64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial t = trial_of(rows[i].profile, rows[i].sigma);
        for (int j = 0; j < t.candidate.count; j++) {
            assay_tensor_spec *spec = &t.candidate.tensors[j].spec;
            if (spec->type != ASSAY_INT32) spec->type = kept_in(rows[i].type, spec);
        }
        trial_compare(&t, rows[i].profile);
        if (t.report.verdict != ASSAY_PASS) fail_msg("row %zu: %s", i, t.report.message);
        assert_contains(t.report.message, "5 tensors correct");
        assert_false(result_at(&t.report, "routing/margin")->compared);
        assert_contains(result_at(&t.report, "routing/margin")->message, "the oracle's own measure");
    }
}

/* A float32 file may hold results that were rounded to the profile's storage type. */
TEST(test_rounded_in_a_wider_file)
{
    OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-9);
    for (int j = 0; j < t.candidate.count; j++) {
        const test_tensor *tensor = &t.candidate.tensors[j];
        assay_dtype_round_many(kept_in(ASSAY_BFLOAT16, &tensor->spec), assay_shape_count(&tensor->spec.shape),
                               tensor->values, tensor->values);
    }
    trial_compare(&t, "bf16");
    assert_int_equal(t.report.verdict, ASSAY_PASS);
    const assay_tensor_result *y = result_at(&t.report, "outputs/y");
    assert_true(y->worst_element > 0.5 && y->worst_element <= 1.0);
    assert_true(y->worst_beyond < 0.01); /* the errors are the rounding alone */
    assert_true(y->rms_ratio > 0.3 && y->rms_ratio < 1.5);
}

/* Its results are right, and the rest of it no backend's. */
TEST_WITH_CONTEXT(test_golden_is_no_candidate)
{
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("f32", 1e-6);
    OWNED_BY(assay_report_free) assay_report report = {0};
    compare_fixtures(&ctx, &golden, &golden, "f32", &report);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_contains(report.message, "error_scale/f32/");
    assert_contains(report.message, "unknown path, no result has it");
    const assay_tensor_result *y = result_at(&report, "outputs/y");
    assert_true(y->compared && y->max_error == 0.0 && y->worst_element == 0.0 && y->rms_ratio == 0.0);
}

TEST(test_optional_may_be_missing)
{
    OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
    drop_tensor(&t.candidate, "checkpoints/moe_mlpwo");
    drop_tensor(&t.candidate, "routing/selected_experts");
    t.candidate.kind = NULL;
    trial_compare(&t, "bf16");
    assert_int_equal(t.report.verdict, ASSAY_PASS);
    const assay_tensor_result *r = result_at(&t.report, "checkpoints/moe_mlpwo");
    assert_int_equal(r->finding, ASSAY_FINDING_MISSING);
    assert_false(r->required || r->compared);
    assert_contains(r->message, "not given");
}

/* Errors as the scale says, independent ones and ones that a whole row shares: no false alarm in 200 fixtures. */
TEST_WITH_CONTEXT(test_noise_of_the_scale_passes)
{
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("bf16", 1e-2);
    for (uint64_t seed = 0; seed < 200; seed++) {
        OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
        OWNED_BY(assay_report_free) assay_report report = {0};
        for (int j = 0; j < candidate.count; j++) {
            test_tensor *t = &candidate.tensors[j];
            const double *scale = golden.tensors[j].scale;
            for (int64_t i = 0; scale != NULL && i < assay_shape_count(&t->spec.shape); i++) {
                bool shared = seed % 2 == 1;
                t->values[i] += scale[i] * draw_normal(100 + seed, t->spec.path, shared ? i / 65 : i);
            }
            if (scale != NULL) t->spec.type = kept_in(ASSAY_BFLOAT16, &t->spec);
        }
        compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
        if (report.verdict != ASSAY_PASS) fail_msg("seed %d: %s", (int)seed, report.message);
        double ratio = result_at(&report, "gradients/inputs/x")->rms_ratio;
        assert_true(ratio > 0.4 && ratio < 1.8);
    }
}

/* Null distributions of outputs/y in so many rows: of its bias, and of errors towards zero where they are among them. */
static void add_null(test_fixture *golden, int64_t rows)
{
    static const double bias[] = {-0.01, 0.01, 0.1, 64}, toward_zero[] = {-0.01, 0.01, 0.05, 64};
    char path[64];
    snprintf(path, sizeof path, "null/%s/outputs/y", golden->profile);
    test_tensor *null = add_tensor(golden, path, ASSAY_FLOAT32, 2, DIMS(rows, 4), 0.0);
    free(null->scale);
    null->scale = NULL;
    for (int64_t i = 0; i < 4 * rows; i++) null->values[i] = 0;
    memcpy(null->values + 4 * ASSAY_STATISTIC_BIAS, bias, sizeof bias);
    if (rows == 10) memcpy(null->values + (size_t)4 * 9, toward_zero, sizeof toward_zero);
}

/* An error scale of 0 among others, as where emulated runs store what lies on the storage type's grid: a finer candidate
 * is held to equality as it would be stored, unless nothing in the tensor says that there are errors. */
TEST(test_finer_than_an_error_scale_of_0)
{
    static const struct {
        double factor;
        bool null;
        assay_verdict verdict;
    } rows[] = {{1 + 0x1p-20, true, ASSAY_PASS},
                {1 - 0x1p-20, true, ASSAY_PASS},
                {1 + 0x1p-7, true, ASSAY_FAIL},
                {1 - 0x1p-7, true, ASSAY_FAIL},
                {1 + 0x1p-20, false, ASSAY_FAIL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial t = {.ctx = {.threads = 1}, .golden = ordinary_golden("bf16", 0.01)};
        tensor_at(&t.golden, "outputs/y")->scale[3] = 0;
        values_of(&t.golden, "outputs/y")[3] = 0.75;
        t.candidate = candidate_of(&t.golden);
        tensor_at(&t.candidate, "outputs/y")->spec.type = ASSAY_FLOAT32;
        values_of(&t.candidate, "outputs/y")[3] *= rows[i].factor;
        if (rows[i].null) add_null(&t.golden, 10);
        trial_compare(&t, "bf16");
        const assay_tensor_result *r = result_at(&t.report, "outputs/y");
        if (r->verdict != rows[i].verdict) fail_msg("row %zu: %s", i, r->message);
        assert_int_equal(r->wrong_elements, r->verdict == ASSAY_FAIL);
    }
}

/* In float64 the golden is rounded as the candidate is: either may be half a unit off. */
TEST(test_a_scale_of_0_by_chance_at_float64)
{
    static const struct {
        double golden, candidate;
        bool null;
        assay_verdict verdict;
    } rows[] = {{1.5, 1.5 + 0x1p-52, true, ASSAY_PASS},
                {1.5, 1.5 - 0x1p-52, true, ASSAY_PASS},
                {1.5, 1.5 + 0x1p-50, true, ASSAY_FAIL},
                {1.5, 1.5 + 0x1p-52, false, ASSAY_FAIL},
                {0, 0x1p-60, true, ASSAY_FAIL},
                {0x1p-1060, 0x1p-1060, true, ASSAY_PASS},
                {0x1p-1060, 0x1p-1060 + 0x1p-1074, true, ASSAY_PASS},
                {0x1p-1060, 0x1p-1060 + 0x1p-1070, true, ASSAY_PASS}, /* float32 has no scale as small */
                {0x1p-130, 0x1p-130 + 0x1p-145, true, ASSAY_FAIL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial t = {.ctx = {.threads = 1}, .golden = ordinary_golden("f64", 1e-15)};
        tensor_at(&t.golden, "outputs/y")->scale[3] = 0;
        values_of(&t.golden, "outputs/y")[3] = rows[i].golden;
        t.candidate = candidate_of(&t.golden);
        tensor_at(&t.candidate, "outputs/y")->spec.type = ASSAY_FLOAT64;
        values_of(&t.candidate, "outputs/y")[3] = rows[i].candidate;
        if (rows[i].null) add_null(&t.golden, 10);
        trial_compare(&t, "f64");
        const assay_tensor_result *r = result_at(&t.report, "outputs/y");
        if (r->verdict != rows[i].verdict) fail_msg("row %zu: %s", i, r->message);
    }
}

/* A golden of an earlier error model has no row for errors towards zero, and is compared by the others. */
TEST(test_errors_towards_zero)
{
    for (int64_t rows = 8; rows <= 10; rows++) {
        OWNED_BY(trial_free) trial t = trial_of("bf16", 0.01);
        double *y = values_of(&t.candidate, "outputs/y");
        const double *scale = tensor_at(&t.golden, "outputs/y")->scale;
        for (int64_t i = 0; i < count_of(&t.candidate, "outputs/y"); i++) y[i] -= copysign(0.3 * scale[i], y[i]);
        add_null(&t.golden, rows);
        const assay_status status =
            try_compare(&t.ctx, &t.golden, &t.candidate, assay_profile_by_name("bf16"), (assay_order){0}, &t.report);
        if (rows == 8) {
            assert_int_equal(status, ASSAY_BAD_INPUT);
            assert_string_equal(t.ctx.message,
                                "null/bf16/outputs/y has another shape or type than null distributions have");
        } else {
            assert_ok(&t.ctx, status);
            const assay_tensor_result *r = result_at(&t.report, "outputs/y");
            assert_int_equal(r->verdict, rows == 10 ? ASSAY_FAIL : ASSAY_PASS);
            assert_int_equal(r->finding, rows == 10 ? ASSAY_FINDING_TOWARD_ZERO : ASSAY_FINDING_NONE);
            if (rows == 10) assert_non_null(strstr(r->message, "errors towards zero are "));
        }
    }
}
