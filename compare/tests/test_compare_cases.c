/* Cases that are out of the ordinary: exact ones, infinities, no error scales, nothing shown, damage, no memory. */
#include "compare/profile_yaml.h"
#include "compare/tests/compare_test.h"

/* One required tensor. */
static trial single_of(const char *profile, int64_t count, double sigma)
{
    trial s = {.golden = {.kind = "golden", .profile = profile}, .ctx = {.threads = 1}};
    add_tensor(&s.golden, "outputs/y", ASSAY_FLOAT64, 1, &count, sigma);
    return s;
}

static const assay_tensor_result *compare_single(trial *s)
{
    trial_compare(s, s->golden.profile);
    return result_at(&s->report, "outputs/y");
}

TEST(test_exact_elements)
{
    static const struct {
        double golden, candidate;
        assay_dtype type;
        assay_verdict verdict;
    } rows[] = {
        {3.0, 3.0, ASSAY_BFLOAT16, ASSAY_PASS},
        {3.0, 3.0 + 0x1p-20, ASSAY_FLOAT32, ASSAY_FAIL}, /* can be stored exactly: nothing is allowed */
        {3.0, 3.0 + 0x1p-50, ASSAY_FLOAT64, ASSAY_FAIL},
        {257.0, 256.0, ASSAY_BFLOAT16, ASSAY_PASS}, /* its neighbours are 256 and 258 */
        {257.0, 258.0, ASSAY_BFLOAT16, ASSAY_PASS},
        {257.0, 256.0, ASSAY_FLOAT32, ASSAY_PASS},
        {257.0, 257.0, ASSAY_FLOAT32, ASSAY_PASS},
        {257.0, 260.0, ASSAY_BFLOAT16, ASSAY_FAIL},
        {257.0, 255.0, ASSAY_FLOAT32, ASSAY_FAIL},
        {0.0, 0.0, ASSAY_BFLOAT16, ASSAY_PASS},
        {0.0, -0.0, ASSAY_BFLOAT16, ASSAY_PASS},
        {0.0, 1e-30, ASSAY_FLOAT32, ASSAY_FAIL},
        {0.0, -0x1p-1000, ASSAY_FLOAT64, ASSAY_PASS}, /* below what a float32 error scale can say */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial s = single_of("bf16", 7, 0.0);
        for (int j = 0; j < 7; j++) s.golden.tensors[0].values[j] = j; /* not all of them 0 */
        s.golden.tensors[0].values[5] = rows[i].golden;
        s.candidate = candidate_of(&s.golden);
        s.candidate.tensors[0].values[5] = rows[i].candidate;
        s.candidate.tensors[0].spec.type = rows[i].type;
        const assay_tensor_result *y = compare_single(&s);
        if (y->verdict != rows[i].verdict || s.report.verdict != rows[i].verdict) {
            fail_msg("row %zu: %s", i, s.report.message);
        }
        assert_int_equal(y->exact, rows[i].golden != 257.0);
        if (y->verdict == ASSAY_FAIL) {
            assert_int_equal(y->finding, y->exact ? ASSAY_FINDING_INTEGERS : ASSAY_FINDING_ELEMENTS);
            assert_int_equal(y->wrong_elements, 1);
            assert_int_equal(y->elements_worst[0].index, 5);
        }
    }
}

/* One exact zero among ordinary elements: anything else there is wrong. */
TEST(test_exact_among_others)
{
    for (int wrong = 0; wrong < 2; wrong++) {
        OWNED_BY(trial_free) trial s = single_of("bf16", 700, 1e-3);
        s.golden.tensors[0].values[699] = s.golden.tensors[0].scale[699] = 0.0;
        s.candidate = candidate_of(&s.golden);
        s.candidate.tensors[0].values[699] = wrong ? 1e-12 : 0.0;
        const assay_tensor_result *y = compare_single(&s);
        assert_int_equal(y->verdict, wrong ? ASSAY_FAIL : ASSAY_PASS);
        assert_false(y->exact);
        if (wrong) assert_contains(y->message, "[699]: golden 0, candidate 1e-12, which must be equal");
    }
}

TEST(test_infinite_golden)
{
    static const struct {
        double golden, candidate, sigma;
        assay_verdict verdict;
    } rows[] = {{-INFINITY, -INFINITY, 0.0, ASSAY_PASS},    {-INFINITY, INFINITY, 0.0, ASSAY_FAIL},
                {-INFINITY, -1e30, 0.0, ASSAY_FAIL},        {-INFINITY, NAN, 0.0, ASSAY_FAIL},
                {-INFINITY, -INFINITY, NAN, ASSAY_PASS},    {-INFINITY, -1e30, INFINITY, ASSAY_FAIL},
                {NAN, 1.0, 0.0, ASSAY_NOT_COMPARABLE},      {NAN, NAN, 0.0, ASSAY_NOT_COMPARABLE},
                {1.0, 1.0, NAN, ASSAY_NOT_COMPARABLE},      {1.0, 1.0, -1.0, ASSAY_NOT_COMPARABLE},
                {1.0, 1.0, INFINITY, ASSAY_NOT_COMPARABLE}, {1.0, NAN, INFINITY, ASSAY_FAIL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int64_t place = 0; place < 1500; place += 1499) {
            OWNED_BY(trial_free) trial s = single_of("f32", 1500, 1e-5);
            s.golden.tensors[0].values[place] = rows[i].golden;
            s.golden.tensors[0].scale[place] = rows[i].sigma;
            s.candidate = candidate_of(&s.golden);
            for (int j = 100; j < 110; j++) s.candidate.tensors[0].values[j] += 2e-5; /* a full list of worst ones */
            s.candidate.tensors[0].values[place] = rows[i].candidate;
            const assay_tensor_result *y = compare_single(&s);
            if (y->verdict != rows[i].verdict) fail_msg("row %zu: %s", i, s.report.message);
            assert_false(isnan(y->rms_ratio) || isnan(y->worst_row) || isnan(y->max_error));
        }
    }
}

TEST(test_no_error_scale)
{
    OWNED_BY(trial_free) trial t = trial_of("f32", 1e-6);
    trial_compare(&t, "bf16");
    assert_int_equal(t.report.verdict, ASSAY_NOT_COMPARABLE);
    const assay_tensor_result *y = result_at(&t.report, "outputs/y");
    assert_int_equal(y->verdict, ASSAY_NOT_COMPARABLE);
    assert_int_equal(y->finding, ASSAY_FINDING_NO_SCALE);
    assert_contains(y->message, "the golden has error scales for f32; generate it again with --set profiles=bf16");
    assert_int_equal(result_at(&t.report, "checkpoints/moe_mlpwo")->verdict, ASSAY_NOT_COMPARABLE);
    assert_int_equal(result_at(&t.report, "routing/selected_experts")->verdict, ASSAY_PASS);

    tensor_at(&t.candidate, "outputs/y")->values[3] = NAN; /* wrong at every precision */
    trial_compare(&t, "bf16");
    assert_int_equal(t.report.verdict, ASSAY_FAIL);
    assert_contains(t.report.message, "outputs/y: 1 of 910 elements are NaN");

    for (int i = 0; i < t.golden.count; i++) {
        free(t.golden.tensors[i].scale);
        t.golden.tensors[i].scale = NULL;
    }
    tensor_at(&t.candidate, "outputs/y")->values[3] = 1.0;
    trial_compare(&t, "bf16");
    assert_int_equal(t.report.verdict, ASSAY_NOT_COMPARABLE);
    assert_contains(t.report.message, "the golden has no error scales");
}

TEST_WITH_CONTEXT(test_routing_floats_need_no_scale)
{
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("f32", 1e-6);
    OWNED_BY(assay_report_free) assay_report report = {0};
    test_tensor *weights = add_tensor(&golden, "routing/weights", ASSAY_FLOAT64, 2, DIMS(3, 5), 0.0);
    free(weights->scale);
    weights->scale = NULL;
    OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
    compare_fixtures(&ctx, &golden, &candidate, "f32", &report);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_false(result_at(&report, "routing/weights")->compared);
    assert_contains(result_at(&report, "routing/weights")->message, "not compared: the golden has no error scale");
    assay_report_free(&report);
    tensor_at(&candidate, "routing/weights")->values[0] = NAN;
    compare_fixtures(&ctx, &golden, &candidate, "f32", &report);
    assert_int_equal(report.verdict, ASSAY_FAIL);
}

/* Where zeros would pass nothing was shown; whole fixtures of that kind are VACUOUS, single tensors are named. */
TEST(test_vacuous)
{
    OWNED_BY(trial_free) trial s = single_of("bf16", 40, 1.0);
    s.candidate = candidate_of(&s.golden);
    assert_int_equal(compare_single(&s)->verdict, ASSAY_VACUOUS);
    assert_int_equal(s.report.verdict, ASSAY_VACUOUS);
    assert_contains(s.report.message, "outputs/y: zeros would pass");

    add_tensor(&s.golden, "gradients/inputs/x", ASSAY_FLOAT64, 1, DIMS(40), 1e-3);
    free_fixture(&s.candidate);
    s.candidate = candidate_of(&s.golden);
    assert_int_equal(compare_single(&s)->verdict, ASSAY_VACUOUS);
    assert_int_equal(s.report.verdict, ASSAY_PASS);
    assert_contains(s.report.message, "zeros would pass in outputs/y");
}

/* A log-sum-exp, losses and what a router gives are float32 beside results in 16 bits, unless a profile says otherwise. */
TEST(test_statistics_are_kept_finer)
{
    static const struct {
        const char *path, *profile;
        assay_dtype rounded, file;
        assay_verdict verdict;
    } rows[] = {
        {"outputs/lse", "bf16", ASSAY_FLOAT32, ASSAY_FLOAT32, ASSAY_PASS},
        {"outputs/lse", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"outputs/lse", "bf16", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_FAIL},
        {"outputs/lse", "f16", ASSAY_FLOAT16, ASSAY_FLOAT16, ASSAY_FAIL},
        {"outputs/lse", "bf16_router", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"outputs/lse", "statistics: bfloat16", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_PASS},
        {"outputs/lse", "statistics: bfloat16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_PASS},
        {"checkpoints/lse", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"outputs/lb_loss", "bf16", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_FAIL},
        {"outputs/layers/3/z_loss", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"outputs/lb_loss", "bf16_router", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_PASS},
        {"outputs/bias_updates", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"routing/weights", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"routing/weights", "bf16_router", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_PASS},
        {"outputs/weights", "bf16", ASSAY_BFLOAT16, ASSAY_FLOAT32, ASSAY_FAIL},
        {"gradients/weights/wo", "bf16", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_PASS},
        {"checkpoints/out_proj", "bf16", ASSAY_BFLOAT16, ASSAY_BFLOAT16, ASSAY_PASS},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char own[64];
        assay_profile profile;
        assay_context ctx = {.threads = 1};
        const bool named = assay_profile_by_name(rows[i].profile) != NULL;
        snprintf(own, sizeof own, "name: mine\n%.32s\n", rows[i].profile);
        if (named) profile = *assay_profile_by_name(rows[i].profile);
        if (!named) assert_ok(&ctx, assay_profile_parse(&ctx, "mine.yml", own, strlen(own), &profile));
        OWNED_BY(trial_free)
        trial s = {.golden = {.kind = "golden", .profile = profile.precision.name}, .ctx = {.threads = 1}};
        add_tensor(&s.golden, rows[i].path, ASSAY_FLOAT64, 1, DIMS(40), 1e-9);
        s.candidate = candidate_of(&s.golden);
        s.candidate.tensors[0].spec.type = rows[i].file;
        double *values = s.candidate.tensors[0].values;
        assay_dtype_round_many(rows[i].rounded, 40, values, values);
        assert_ok(&s.ctx, try_compare(&s.ctx, &s.golden, &s.candidate, &profile, (assay_order){0}, &s.report));
        const assay_tensor_result *r = result_at(&s.report, rows[i].path);
        if (r->verdict != rows[i].verdict) fail_msg("row %zu: %s", i, r->message);
        if (rows[i].file != ASSAY_FLOAT32 && rows[i].verdict == ASSAY_FAIL)
            assert_int_equal(r->finding, ASSAY_FINDING_TYPE);
    }
}

/* Error scales are float32: what lies below them is not seen, so whatever the candidate has shows nothing. */
TEST(test_below_every_error_scale)
{
    static const struct {
        double size, factor;
        assay_verdict verdict;
    } rows[] = {{1e-50, 1, ASSAY_VACUOUS},
                {1e-50, 0, ASSAY_VACUOUS},
                {1e-50, 1.5, ASSAY_VACUOUS},
                {1e-40, 1, ASSAY_PASS},
                {1e-40, 0, ASSAY_FAIL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        OWNED_BY(trial_free) trial s = single_of("f64", 40, 0.0);
        for (int k = 0; k < 40; k++) s.golden.tensors[0].values[k] *= rows[i].size;
        s.candidate = candidate_of(&s.golden);
        for (int k = 0; k < 40; k++) s.candidate.tensors[0].values[k] *= rows[i].factor;
        assert_int_equal(compare_single(&s)->verdict, rows[i].verdict);
        assert_int_equal(s.report.verdict, rows[i].verdict);
    }
}

/* An exact zero is a check like any other, but not when it is all there is. */
TEST(test_nothing_but_zeros)
{
    for (int others = 0; others < 2; others++) {
        OWNED_BY(trial_free) trial s = single_of("bf16", 40, 0.0);
        for (int i = 0; i < 40; i++) s.golden.tensors[0].values[i] = 0.0;
        if (others) add_tensor(&s.golden, "gradients/inputs/x", ASSAY_FLOAT64, 1, DIMS(40), 1e-3);
        s.candidate = candidate_of(&s.golden);
        assert_int_equal(compare_single(&s)->verdict, ASSAY_PASS);
        assert_int_equal(s.report.verdict, others ? ASSAY_PASS : ASSAY_VACUOUS);
    }
}

TEST_WITH_CONTEXT(test_nothing_to_compare)
{
    trial s = single_of("bf16", 0, 1e-3);
    s.candidate = candidate_of(&s.golden);
    assert_int_equal(compare_single(&s)->elements, 0);
    assert_int_equal(s.report.verdict, ASSAY_VACUOUS);
    trial_free(&s);

    test_fixture golden = {.kind = "golden", .profile = "bf16"}, candidate = {.kind = "candidate"};
    OWNED_BY(assay_report_free) assay_report report = {0};
    add_tensor(&golden, "routing/selected_experts", ASSAY_INT32, 1, DIMS(4), 0.0);
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_int_equal(report.verdict, ASSAY_VACUOUS);
    free_fixture(&golden);
}

/* Integers alone are evidence when the golden has no floats. */
TEST_WITH_CONTEXT(test_integers_alone)
{
    OWNED_BY(free_fixture) test_fixture golden = {.kind = "golden", .profile = "bf16"};
    OWNED_BY(assay_report_free) assay_report report = {0};
    add_tensor(&golden, "outputs/group_sizes", ASSAY_INT32, 1, DIMS(70001), 0.0);
    OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assay_report_free(&report);
    candidate.tensors[0].values[70000] = 2147483647.0;
    compare_fixtures(&ctx, &golden, &candidate, "bf16", &report);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_contains(report.message, "1 of 70001 integers differ and must be equal, the first [70000]: golden ");
    assert_true(report.tensors[0].worst_element == INFINITY);
}

/* Rows longer than a chunk, and rows that end within and across blocks. */
TEST_WITH_CONTEXT(test_long_rows)
{
    static const int64_t lengths[] = {1, 2, 511, 513, 65537, 150001};
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        int64_t length = lengths[l], rows = 3;
        OWNED_BY(free_fixture) test_fixture golden = {.kind = "golden", .profile = "f32"};
        OWNED_BY(assay_report_free) assay_report report = {0};
        add_tensor(&golden, "outputs/y", ASSAY_FLOAT64, 2, DIMS(rows, length), 1e-4);
        OWNED_BY(free_fixture) test_fixture candidate = candidate_of(&golden);
        double *values = candidate.tensors[0].values, *expected = golden.tensors[0].values, golden_square = 0.0;
        for (int64_t i = length; i < 2 * length; i++) {
            values[i] = 1.5 * values[i];
            golden_square += expected[i] * expected[i];
        }
        values[3 * length - 1] += 0.25;
        compare_fixtures(&ctx, &golden, &candidate, "f32", &report);
        const assay_tensor_result *y = &report.tensors[0];
        assert_int_equal(y->verdict, ASSAY_FAIL);
        assert_int_equal(y->rows, rows);
        const assay_outlier *row = &y->rows_worst[y->rows_worst[0].index == 1 ? 0 : 1];
        assert_int_equal(row->index, 1);
        double rms = sqrt(golden_square / (double)length), expected_candidate = 1.5 * rms;
        assert_close(&row->golden, &rms, 1, 1e-9, 0.0);
        assert_close(&row->candidate, &expected_candidate, 1, 1e-9, 0.0);
        assert_true(y->max_error >= 0.25 && y->max_error < 0.5001);
    }
}

/* The worst elements in order, and all wrong ones counted. */
TEST(test_worst_elements)
{
    OWNED_BY(trial_free) trial s = single_of("f32", 3000, 1e-4);
    s.candidate = candidate_of(&s.golden);
    for (int i = 0; i < 3000; i++) s.golden.tensors[0].scale[i] = (double)1e-4F;
    for (int i = 0; i < 8; i++) s.candidate.tensors[0].values[100 + 311 * i] += 0.01 * (1 + (i * 3) % 8);
    const assay_tensor_result *y = compare_single(&s);
    assert_int_equal(y->wrong_elements, 8);
    assert_int_equal(y->elements_worst_count, ASSAY_WORST_COUNT);
    for (int i = 0; i < ASSAY_WORST_COUNT; i++) {
        int64_t place = (y->elements_worst[i].index - 100) / 311;
        assert_int_equal((place * 3) % 8, 7 - i);
    }
}

static assay_status compare_files(assay_context *ctx, const char *golden, const char *candidate, double false_alarm,
                                  assay_report *report)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *g = NULL, *c = NULL;
    assert_ok(ctx, assay_fixture_open(ctx, golden, &g));
    assert_ok(ctx, assay_fixture_open(ctx, candidate, &c));
    assay_status status =
        assay_compare(ctx, g, c, assay_profile_by_name("bf16"), false_alarm, (assay_order){0}, report);
    return status;
}

TEST_WITH_CONTEXT(test_refused)
{
    char folder[] = "compare-test-XXXXXX", path[64];
    assay_report report = {0};
    static const char *const kinds[] = {NULL, "request", "candidate"};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/golden.h5", folder);
    for (int i = 0; i < 3; i++) {
        OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("bf16", 1e-3);
        golden.kind = kinds[i];
        write_fixture(&ctx, &golden, path);
        assert_int_equal(compare_files(&ctx, path, path, 1e-6, &report), ASSAY_BAD_INPUT);
        assert_contains(ctx.message, "expected golden");
    }
    test_fixture golden = ordinary_golden("bf16", 1e-3);
    write_fixture(&ctx, &golden, path);
    const double alarms[] = {0.0, -1.0, 0.6, NAN};
    for (int i = 0; i < 4; i++) {
        assert_int_equal(compare_files(&ctx, path, path, alarms[i], &report), ASSAY_BAD_INPUT);
        assert_contains(ctx.message, "false-alarm probability");
    }
    assert_ok(&ctx, compare_files(&ctx, path, path, 1e-300, &report));
    assay_report_free(&report);
    assert_int_equal(truncate(path, 3000), 0);
    assay_fixture_reader *reader = NULL;
    assert_int_equal(assay_fixture_open(&ctx, path, &reader), ASSAY_BAD_INPUT);
    remove(path);
    rmdir(folder);
    free_fixture(&golden);
}

/* Numbers that cannot be read are the candidate's failure, not the program's. */
TEST_WITH_CONTEXT(test_damaged_candidate)
{
    char folder[] = "compare-test-XXXXXX", golden_path[64], candidate_path[64];
    assay_report report = {0};
    OWNED_BY(free_fixture) test_fixture golden = ordinary_golden("bf16", 1e-3);
    assert_non_null(mkdtemp(folder));
    snprintf(golden_path, sizeof golden_path, "%s/golden.h5", folder);
    snprintf(candidate_path, sizeof candidate_path, "%s/candidate.h5", folder);
    write_fixture(&ctx, &golden, golden_path);
    test_fixture candidate = candidate_of(&golden);
    double *y = tensor_at(&candidate, "outputs/y")->values, mark = 0x1.badcafep-3;
    y[77] = mark;
    write_fixture(&ctx, &candidate, candidate_path);
    FILE *file = fopen(candidate_path, "r+b");
    assert_non_null(file);
    static char bytes[1 << 20];
    size_t size = fread(bytes, 1, sizeof bytes, file), place = 0;
    while (place + 8 <= size && memcmp(bytes + place, &mark, 8) != 0) place++;
    assert_true(place + 8 <= size);
    fseek(file, (long)place, SEEK_SET);
    fputc('!', file);
    fclose(file);
    assert_ok(&ctx, compare_files(&ctx, golden_path, candidate_path, 1e-6, &report));
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_contains(report.message, "outputs/y: cannot be read: ");
    assert_string_equal(ctx.message, "");
    assay_report_free(&report);
    remove(golden_path);
    remove(candidate_path);
    rmdir(folder);
    free_fixture(&candidate);
}

TEST(test_no_memory)
{
    OWNED_BY(trial_free) trial t = trial_of("bf16", 1e-3);
    add_tensor(&t.candidate, "outputs/unknown", ASSAY_INT32, 1, DIMS(3), 0.0);
    int64_t n = 0;
    for (bool done = false; !done; n++) {
        OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL, *candidate = NULL;
        open_fixtures(&t.ctx, &t.golden, &t.candidate, &golden, &candidate);
        assay_fail_allocation(n);
        const assay_status status =
            assay_compare(&t.ctx, golden, candidate, assay_profile_by_name("bf16"), 1e-6, (assay_order){0}, &t.report);
        done = had_memory(&t.ctx, status);
        assert_true(done ? t.report.verdict == ASSAY_FAIL : t.report.tensors == NULL);
    }
    assert_true(n > 5);
}
