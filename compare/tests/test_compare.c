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
static void one_nan(test_fixture *c)
{
    values_of(c, "outputs/y")[909] = NAN;
}
static void one_infinity(test_fixture *c)
{
    values_of(c, "outputs/y")[0] = -INFINITY;
}
static void scalar_nan(test_fixture *c)
{
    values_of(c, "outputs/lb_loss")[0] = NAN;
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
static void one_element(test_fixture *c)
{
    values_of(c, "outputs/y")[1 * 455 + 3 * 65 + 17] += 0.1;
}
static void last_element(test_fixture *c)
{
    values_of(c, "outputs/y")[909] += 0.1;
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
static void wrong_scalar(test_fixture *c)
{
    values_of(c, "outputs/lb_loss")[0] += 0.5;
}
static void wrong_integer(test_fixture *c)
{
    values_of(c, "routing/selected_experts")[5] += 1.0;
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
    change change;
    const char *path;
    assay_finding finding;
    const char *message;
} must_fail[] = {
    {"all NaN", all_nan, "outputs/y", ASSAY_FINDING_NONFINITE, "910 of 910 elements are NaN"},
    {"one NaN", one_nan, "outputs/y", ASSAY_FINDING_NONFINITE, "the first [1,6,64]"},
    {"an infinity", one_infinity, "outputs/y", ASSAY_FINDING_NONFINITE, "candidate -inf"},
    {"a NaN scalar", scalar_nan, "outputs/lb_loss", ASSAY_FINDING_NONFINITE, "1 of 1"},
    {"zeros", zeros, "outputs/y", ASSAY_FINDING_ELEMENTS, "candidate 0"},
    {"negated", negated, "outputs/y", ASSAY_FINDING_ELEMENTS, "times the threshold"},
    {"exchanged rows", exchanged_rows, "outputs/y", ASSAY_FINDING_ELEMENTS, "of 910 elements"},
    {"one element", one_element, "outputs/y", ASSAY_FINDING_ELEMENTS,
     "1 of 910 elements beyond their threshold, the worst [1,3,17]"},
    {"the last element", last_element, "outputs/y", ASSAY_FINDING_ELEMENTS, "1 of 910"},
    {"a scaled row", scaled_row, "outputs/y", ASSAY_FINDING_ELEMENTS, "[0,3,"},
    {"a gradient", wrong_gradient, "gradients/inputs/x", ASSAY_FINDING_ELEMENTS, "the worst [0,0,7]"},
    {"a checkpoint", wrong_checkpoint, "checkpoints/moe_mlpwo", ASSAY_FINDING_ELEMENTS, "the worst [0,7]"},
    {"a scalar", wrong_scalar, "outputs/lb_loss", ASSAY_FINDING_ELEMENTS, "1 of 1"},
    {"an integer", wrong_integer, "routing/selected_experts", ASSAY_FINDING_INTEGERS, "the first [0,1,2]"},
    {"no output", no_output, "outputs/y", ASSAY_FINDING_MISSING, "missing"},
    {"no gradient", no_gradient, "gradients/inputs/x", ASSAY_FINDING_MISSING, "missing"},
    {"a shape", wrong_shape, "outputs/y", ASSAY_FINDING_SHAPE, "shape is [7,2,65], expected [2,7,65]"},
    {"a rank", wrong_rank, "outputs/y", ASSAY_FINDING_SHAPE, "shape is [14,65]"},
    {"the margin's shape", margin_shape, "routing/margin", ASSAY_FINDING_SHAPE, "shape is [14]"},
    {"integers for floats", integers_for_floats, "outputs/y", ASSAY_FINDING_TYPE, "int32, expected a float type"},
    {"floats for integers", floats_for_integers, "routing/selected_experts", ASSAY_FINDING_TYPE, "expected integers"},
    {"a coarse type", too_coarse, "outputs/y", ASSAY_FINDING_TYPE,
     "float8_e4m3fn, coarser than profile bf16 allows: bfloat16"},
    {"a request", is_request, "outputs/y", ASSAY_FINDING_MISSING, "the file's kind is request"},
};

TEST(test_must_fail)
{
    assay_context ctx = {.threads = 1};
    for (size_t i = 0; i < sizeof must_fail / sizeof *must_fail; i++) {
        test_fixture golden = ordinary_golden("bf16", 1e-3), candidate = candidate_of(&golden);
        assay_report report = {0};
        must_fail[i].change(&candidate);
        compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
        const assay_tensor_result *r = result_at(&report, must_fail[i].path);
        if (report.verdict != ASSAY_FAIL || r->verdict != ASSAY_FAIL || r->finding != must_fail[i].finding) {
            fail_msg("%s: verdict %s, %s, finding %d", must_fail[i].name, assay_verdict_name(report.verdict),
                     r->message, (int)r->finding);
        }
        assert_contains(r->message, must_fail[i].message);
        assert_contains(r->message, must_fail[i].path);
        assay_report_free(&report);
        free_fixture(&candidate);
        free_fixture(&golden);
    }
}

/* Each element of the row within its threshold of 6.3 standard deviations, the row beyond its own of 5.7. */
TEST(test_row_beyond_its_threshold)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("f32", 1e-3), candidate = candidate_of(&golden);
    assay_report report = {0};
    const double *scale = tensor_at(&golden, "outputs/y")->scale;
    for (int64_t i = 3 * 65; i < 4 * 65; i++) values_of(&candidate, "outputs/y")[i] += (i % 2 ? 6.1 : -6.1) * scale[i];
    compare_fixtures(&ctx, &golden, &candidate, "f32", &report);
    const assay_tensor_result *y = result_at(&report, "outputs/y");
    assert_int_equal(y->finding, ASSAY_FINDING_ROWS);
    assert_int_equal(y->wrong_rows, 1);
    assert_int_equal(y->wrong_elements, 0);
    assert_int_equal(y->rows_worst[0].index, 3);
    assert_true(y->worst_row > 1.0 && y->worst_row < 1.2);
    assert_contains(report.message, "outputs/y: 1 of 14 rows beyond their threshold, the worst row [0,3]: RMS golden");
    assay_report_free(&report);
    free_fixture(&candidate);
    free_fixture(&golden);
}

TEST(test_first_wrong_is_blamed)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("bf16", 1e-3), candidate = candidate_of(&golden);
    assay_report report = {0};
    wrong_gradient(&candidate);
    all_nan(&candidate);
    wrong_checkpoint(&candidate);
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_contains(report.message, "checkpoints/moe_mlpwo: ");
    const char *const order[] = {
        "routing/margin", "routing/selected_experts", "checkpoints/moe_mlpwo", "outputs/lb_loss",
        "outputs/y",      "gradients/inputs/x"};
    assert_int_equal(report.count, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(report.tensors[i].spec.path, order[i]);
    assay_report_free(&report);
    free_fixture(&candidate);
    free_fixture(&golden);
}

/* An order that no alphabet has, with two tensors in one place. */
static int64_t gradients_first(const char *path)
{
    if (strncmp(path, "gradients/", 10) == 0) return -5;
    return strncmp(path, "outputs/", 8) == 0 ? INT64_MAX : strncmp(path, "routing/", 8) == 0 ? 7 : 6;
}

TEST(test_rank_is_the_order)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("bf16", 1e-3), candidate = candidate_of(&golden);
    assay_report report = {0};
    wrong_gradient(&candidate);
    wrong_checkpoint(&candidate);
    compare_ranked(&ctx, &golden, &candidate, "bf16", gradients_first, &report);
    assert_contains(report.message, "gradients/inputs/x: ");
    const char *const order[] = {"gradients/inputs/x",       "checkpoints/moe_mlpwo", "routing/margin",
                                 "routing/selected_experts", "outputs/lb_loss",       "outputs/y"};
    assert_int_equal(report.count, 6);
    for (int i = 0; i < 6; i++) assert_string_equal(report.tensors[i].spec.path, order[i]);
    assay_report_free(&report);
    free_fixture(&candidate);
    free_fixture(&golden);
}

TEST(test_unknown_paths)
{
    assay_context ctx = {.threads = 1};
    static const struct {
        const char *path;
        bool fails;
    } rows[] = {{"outputs/z", true},
                {"gradients/weights/wo", true},
                {"checkpoints/mlpwo", true},
                {"routing/weights", true},
                {"y", true},
                {"error_scale/f32/outputs/y", true},
                {"inputs/elsewhere", false},
                {"weights/wo2", false},
                {"cotangents/y", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_fixture golden = ordinary_golden("bf16", 1e-3), candidate = candidate_of(&golden);
        assay_report report = {0};
        add_tensor(&candidate, rows[i].path, ASSAY_FLOAT32, 1, DIMS(3), 0.0);
        free(candidate.tensors[candidate.count - 1].scale);
        candidate.tensors[candidate.count - 1].scale = NULL;
        compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
        assert_int_equal(report.verdict, rows[i].fails ? ASSAY_FAIL : ASSAY_PASS);
        assert_int_equal(report.unknown_count, rows[i].fails ? 1 : 0);
        if (rows[i].fails) {
            assert_string_equal(report.unknown[0], rows[i].path);
            assert_contains(report.message, rows[i].path);
            assert_contains(report.message, "unknown path");
        }
        assay_report_free(&report);
        free_fixture(&candidate);
        free_fixture(&golden);
    }
}

/* Every type that the profile allows, and every profile for itself. */
TEST(test_correct_passes)
{
    assay_context ctx = {.threads = 1};
    static const struct {
        const char *profile;
        double sigma;
        assay_dtype type;
    } rows[] = {{"bf16", 1e-3, ASSAY_BFLOAT16}, {"bf16", 1e-9, ASSAY_BFLOAT16}, {"bf16", 1e-3, ASSAY_FLOAT16},
                {"bf16", 1e-9, ASSAY_FLOAT32},  {"bf16", 1e-9, ASSAY_FLOAT64},  {"f16", 1e-9, ASSAY_FLOAT16},
                {"f16", 1e-9, ASSAY_TFLOAT32},  {"f32", 1e-9, ASSAY_FLOAT32},   {"f64", 1e-17, ASSAY_FLOAT64}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        test_fixture golden = ordinary_golden(rows[i].profile, rows[i].sigma), candidate = candidate_of(&golden);
        assay_report report = {0};
        for (int j = 0; j < candidate.count; j++) {
            if (candidate.tensors[j].spec.type != ASSAY_INT32) candidate.tensors[j].spec.type = rows[i].type;
        }
        compare_fixtures(&ctx, &golden, &candidate, rows[i].profile, &report);
        if (report.verdict != ASSAY_PASS) fail_msg("row %zu: %s", i, report.message);
        assert_contains(report.message, "5 tensors correct");
        assert_false(result_at(&report, "routing/margin")->compared);
        assert_contains(result_at(&report, "routing/margin")->message, "the oracle's own measure");
        assay_report_free(&report);
        free_fixture(&candidate);
        free_fixture(&golden);
    }
}

/* A float32 file may hold results that were rounded to the profile's storage type. */
TEST(test_rounded_in_a_wider_file)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("bf16", 1e-9), candidate = candidate_of(&golden);
    assay_report report = {0};
    for (int j = 0; j < candidate.count; j++) {
        test_tensor *t = &candidate.tensors[j];
        assay_dtype_round_many(ASSAY_BFLOAT16, assay_shape_count(&t->spec.shape), t->values, t->values);
    }
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_int_equal(report.verdict, ASSAY_PASS);
    const assay_tensor_result *y = result_at(&report, "outputs/y");
    assert_true(y->worst_element > 0.5 && y->worst_element <= 1.0);
    assert_true(y->rms_ratio > 0.3 && y->rms_ratio < 1.5);
    assay_report_free(&report);
    free_fixture(&candidate);
    free_fixture(&golden);
}

TEST(test_golden_is_its_own_candidate)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("f32", 1e-6);
    assay_report report = {0};
    compare_fixtures(&ctx, &golden, &golden, "f32", &report);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_int_equal(report.unknown_count, 0);
    const assay_tensor_result *y = result_at(&report, "outputs/y");
    assert_true(y->compared && y->max_error == 0.0 && y->worst_element == 0.0 && y->rms_ratio == 0.0);
    assay_report_free(&report);
    free_fixture(&golden);
}

TEST(test_optional_may_be_missing)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("bf16", 1e-3), candidate = candidate_of(&golden);
    assay_report report = {0};
    drop_tensor(&candidate, "checkpoints/moe_mlpwo");
    drop_tensor(&candidate, "routing/selected_experts");
    candidate.kind = NULL;
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_int_equal(report.verdict, ASSAY_PASS);
    const assay_tensor_result *r = result_at(&report, "checkpoints/moe_mlpwo");
    assert_int_equal(r->finding, ASSAY_FINDING_MISSING);
    assert_false(r->required || r->compared);
    assert_contains(r->message, "not given");
    assay_report_free(&report);
    free_fixture(&candidate);
    free_fixture(&golden);
}

/* Errors as the scale says, independent ones and ones that a whole row shares: no false alarm in 200 fixtures. */
TEST(test_noise_of_the_scale_passes)
{
    assay_context ctx = {.threads = 1};
    test_fixture golden = ordinary_golden("bf16", 1e-2);
    for (uint64_t seed = 0; seed < 200; seed++) {
        test_fixture candidate = candidate_of(&golden);
        assay_report report = {0};
        for (int j = 0; j < candidate.count; j++) {
            test_tensor *t = &candidate.tensors[j];
            const double *scale = golden.tensors[j].scale;
            for (int64_t i = 0; scale != NULL && i < assay_shape_count(&t->spec.shape); i++) {
                bool shared = seed % 2 == 1;
                t->values[i] += scale[i] * draw_normal(100 + seed, t->spec.path, shared ? i / 65 : i);
            }
            if (scale != NULL) t->spec.type = ASSAY_BFLOAT16;
        }
        compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
        if (report.verdict != ASSAY_PASS) fail_msg("seed %d: %s", (int)seed, report.message);
        double ratio = result_at(&report, "gradients/inputs/x")->rms_ratio;
        assert_true(ratio > 0.4 && ratio < 1.8);
        assay_report_free(&report);
        free_fixture(&candidate);
    }
    free_fixture(&golden);
}
