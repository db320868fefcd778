/* Candidates judged stage by stage: one wrong stage, whose error flows on, is the one that fails; stages behind it pass. */

#include "harness/fixes/fixes.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(slow);

#define SETS "profiles=bf16;checkpoints=all"

static const assay_profile *profile(void)
{
    return assay_profile_by_name("bf16");
}

static bool is_no_checkpoint(const assay_tensor_spec *spec)
{
    return trial_is_result(spec) && spec->role != ASSAY_ROLE_CHECKPOINT;
}

/* What a run gives that goes on from `factor` times its own value of a checkpoint (NULL: of none), in bfloat16. */
static void make(trial *t, const char *path, double factor, assay_tensor_set *results)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set staged = {0};
    const assay_tensor *own = path == NULL ? NULL : assay_tensor_set_find(&t->golden, path);
    if (own != NULL) {
        assay_tensor_spec spec = own->spec;
        assay_tensor *tensor = NULL;
        assay_staged_path(path, spec.path);
        assert_ok(&t->ctx, assay_tensor_set_add(&t->ctx, &staged, &spec, &tensor));
        tensor->written = tensor->count;
        for (int64_t i = 0; i < tensor->count; i++)
            tensor->values[i] = assay_dtype_round(ASSAY_BFLOAT16, factor * own->values[i], false);
    }
    assay_overlay given = {assay_tensor_set_source(&staged), t->source};
    const assay_source in = assay_overlay_source(&given);
    trial_run(t, &t->ctx, &in, results);
    const assay_tensor *y = assay_tensor_set_find(results, "outputs/y");
    const assay_tensor *golden_y = assay_tensor_set_find(&t->golden, "outputs/y");
    /* it flows on */
    assert_int_equal(own == NULL, memcmp(y->values, golden_y->values, (size_t)y->count * sizeof *y->values) == 0);
    for (int64_t i = 0; own != NULL && i < own->count; i++) assay_tensor_set_find(results, path)->values[i] *= factor;
    trial_round(results, ASSAY_BFLOAT16);
}

static void write_candidate(trial *t, const assay_tensor_set *results, bool (*is_wanted)(const assay_tensor_spec *spec))
{
    assay_fixture_writer *writer = NULL;
    assert_ok(&t->ctx, assay_fixture_create(&t->ctx, t->candidate, &writer));
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *r = &results->items[i];
        assay_tensor_spec spec = r->spec;
        if (!is_wanted(&spec) || !assay_tensor_is_complete(r)) continue;
        if (r->values != NULL) spec.type = assay_profile_type_of(profile(), &spec);
        assert_ok(&t->ctx, assay_fixture_declare(&t->ctx, writer, &spec));
        assert_ok(&t->ctx, r->indices != NULL
                               ? assay_fixture_append_i32(&t->ctx, writer, spec.path, r->count, r->indices)
                               : assay_fixture_append(&t->ctx, writer, spec.path, r->count, r->values));
    }
    assert_ok(&t->ctx, assay_fixture_finish(&t->ctx, writer));
}

static assay_judging judging(void)
{
    assay_judging how = trial_judging(profile());
    how.staged = true;
    return how;
}

static assay_report judge(trial *t)
{
    const assay_judging how = judging();
    return trial_judge(t, &how);
}

static const assay_tensor_result *find(const assay_report *report, const char *path)
{
    for (int i = 0; i < report->count; i++)
        if (strcmp(report->tensors[i].spec.path, path) == 0) return &report->tensors[i];
    fail_msg("no %s", path);
    return NULL;
}

/* The stage at `path` alone fails, or none where it is NULL. */
static void check_stages(const assay_report *report, const char *name, const char *path)
{
    const assay_report *stages = report->stages;
    assert_non_null(stages);
    assert_true(stages->count > 0);
    for (int i = 0; i < stages->count; i++) {
        const assay_tensor_result *r = &stages->tensors[i];
        const bool wrong = path != NULL && strcmp(r->spec.path, path) == 0;
        if ((r->verdict == ASSAY_FAIL) != wrong) fail_msg("%s: %s: %s", name, r->spec.path, r->message);
    }
    assert_int_equal(stages->verdict, path == NULL ? ASSAY_PASS : ASSAY_FAIL);
    assert_int_equal(report->verdict, path == NULL ? ASSAY_PASS : ASSAY_FAIL);
    if (path == NULL) return;
    char start[ASSAY_PATH_SIZE + 8];
    snprintf(start, sizeof start, "stage %s", path);
    assert_memory_equal(report->message, start, strlen(start));
}

typedef struct planted {
    const char *name, *path;
    double factor;
} planted;

static void check(const test_folder *folder, const planted *p)
{
    OWNED_BY(trial_close) trial t = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder, case_named(p->name, SETS));
    make(&t, p->path, p->factor, &results);
    write_candidate(&t, &results, trial_is_result);
    OWNED_BY(assay_report_free) assay_report report = judge(&t);
    check_stages(&report, p->name, p->path);
}

TEST_IN_FOLDER(right_candidates_pass)
{
    static const char *const names[] = {"mlp/silu",
                                        "mlp/two-activations",
                                        "moe/small",
                                        "moe/deepseek3-tiny-checkpoints",
                                        "mla/small",
                                        "deepseek_layer/dense",
                                        "gqa/checkpoints",
                                        "deepseek_stack/dense-then-moe",
                                        "deepseek_layer/moe-dropping",
                                        "deepseek_layer/moe-dense-path"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) check(folder, &(planted){.name = names[i]});
}

TEST_IN_FOLDER(the_wrong_stage_fails_and_no_other)
{
    static const planted table[] = {
        {"mlp/silu", "checkpoints/mlp_intermediate", 1.02},
        {"mlp/silu", "checkpoints/mlpwi_0", 1.02},
        {"moe/small", "checkpoints/moe_mlpwi_0", 1.02},
        {"moe/small", "checkpoints/moe_mlpwo", 1.02},
        {"moe/deepseek3-tiny-checkpoints", "checkpoints/mlpwi_1", 1.02},
        {"mla/small", "checkpoints/mla_kv", 1.02},
        {"mla/small", "checkpoints/attention_out", 1.02},
        {"gqa/checkpoints", "checkpoints/key_proj", 1.02},
        {"deepseek_layer/moe-dense-path", "checkpoints/moe_mlpwi_0", 1.03},
        {"deepseek_layer/moe-dropping", "checkpoints/moe_mlpwi_0", 1.03},
        {"deepseek_layer/moe-dropping", "checkpoints/moe_mlpwo", 1.03},
        {"deepseek_layer/dense", "checkpoints/kv_wa_proj", 1.03},
        {"deepseek_layer/dense", "checkpoints/mlp_intermediate", 1.03},
        {"deepseek_stack/dense-then-moe", "checkpoints/layers/1/decoder_layer_input", 1.03},
        {"deepseek_stack/dense-then-moe", "checkpoints/layers/1/moe_mlpwi_0", 1.03},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) check(folder, &table[i]);
}

/* What is no use to go on from fails by itself: the run goes on from its own. */
TEST_IN_FOLDER(malformed_checkpoints_fail_alone)
{
    OWNED_BY(trial_close) trial t = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder, case_named("mla/small", SETS));
    make(&t, NULL, 1, &results);
    assay_tensor *bad = assay_tensor_set_find(&results, "checkpoints/mla_kv");
    bad->values[3] = NAN;
    write_candidate(&t, &results, trial_is_result);
    OWNED_BY(assay_report_free) assay_report report = judge(&t);
    check_stages(&report, "NaN", "checkpoints/mla_kv");
    assert_int_equal(find(report.stages, "checkpoints/mla_kv")->finding, ASSAY_FINDING_NONFINITE);
    assay_report_free(&report);

    bad->values[3] = 0;
    bad->spec.shape = assay_shape_of(1, bad->count);
    write_candidate(&t, &results, trial_is_result);
    report = judge(&t);
    check_stages(&report, "shape", "checkpoints/mla_kv");
    assert_int_equal(find(report.stages, "checkpoints/mla_kv")->finding, ASSAY_FINDING_SHAPE);
}

static void plant(const test_folder *folder, const planted *p, trial *t)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(t, folder, case_named(p->name, SETS));
    make(t, p->path, p->factor, &results);
    write_candidate(t, &results, trial_is_result);
}

static void check_same(const assay_report *report, const assay_report *first)
{
    assert_string_equal(report->message, first->message);
    assert_int_equal(report->stages->count, first->stages->count);
    for (int i = 0; i < first->stages->count; i++) {
        const assay_tensor_result *a = &first->stages->tensors[i], *b = &report->stages->tensors[i];
        assert_same_bits(&b->worst_element, &a->worst_element, 1);
        assert_same_bits(&b->worst_row, &a->worst_row, 1);
        assert_same_bits(&b->rms_ratio, &a->rms_ratio, 1);
        for (int k = 0; k < a->statistics_count; k++)
            assert_same_bits(&b->statistics[k].excess, &a->statistics[k].excess, 1);
    }
}

TEST_IN_FOLDER(same_bits_with_any_threads_and_isa)
{
    OWNED_BY(trial_close) trial t = {0};
    int form = 0;
    plant(folder, &(planted){"moe/small", "checkpoints/moe_mlpwi_0", 1.02}, &t);
    OWNED_BY(assay_report_free) assay_report first = judge(&t);
    while (test_next_context(&form, &t.ctx)) {
        OWNED_BY(assay_report_free) assay_report report = judge(&t);
        check_same(&report, &first);
    }
}

/* False: none was left to fail. */
static bool judge_failing(trial *t, const assay_judging *how, int64_t n)
{
    OWNED_BY(assay_report_free) assay_report report;
    const assay_status status = trial_try_judge(t, how, n, &report);
    const bool failed = assay_allocation_failed();
    assay_fail_allocation(-1);
    /* a verdict stands without its explanation */
    if (how->unexplained || status != ASSAY_OK) assert_int_equal(had_memory(&t->ctx, status), !failed);
    if (status == ASSAY_OK) assert_int_equal(report.verdict, ASSAY_FAIL);
    return failed;
}

TEST_IN_FOLDER(failing_allocations)
{
    OWNED_BY(trial_close) trial t = {0};
    plant(folder, &(planted){"mlp/silu", "checkpoints/mlpwi_0", 1.02}, &t);
    assay_judging how = judging();
    int64_t whole = 0;
    while (judge_failing(&t, &how, whole)) whole += whole < 40 ? 1 : 311;
    how.unexplained = false;
    for (int64_t n = whole - 600; judge_failing(&t, &how, n);) n += n < whole + 300 ? 101 : 9001;
}

/* A golden that holds no checkpoints judges the whole, and its case the stages. */
TEST_IN_FOLDER(the_golden_need_not_hold_checkpoints)
{
    OWNED_BY(trial_close) trial t = {0}, with = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_evaluate(&with, case_named("moe/small", SETS), NULL);
    make(&with, "checkpoints/moe_mlpwi_1", 1.02, &results);
    trial_write(&t, folder, case_named("moe/small", "profiles=bf16;checkpoints=none"));
    write_candidate(&t, &results, trial_is_result);
    OWNED_BY(assay_report_free) assay_report report = judge(&t);
    check_stages(&report, "moe/small", "checkpoints/moe_mlpwi_1");
    assert_int_equal(report.unknown_count, 0);
}

/* What the mutant gives with its checkpoints; or, of no mutant, with one that is planted. */
static void make_mutant(trial *with, const char *name, assay_tensor_set *results)
{
    const assay_mutant *mutant = assay_mutant_by_name(name);
    const assay_trial at = trial_at(with, "bf16");
    bool applies = false;
    if (mutant == NULL) {
        make(with, name, 1.02, results);
        return;
    }
    assert_ok(&with->ctx, assay_mutant_make(&with->ctx, &at, mutant, results, &applies));
    assert_true(applies);
    trial_round(results, ASSAY_BFLOAT16);
}

TEST_IN_FOLDER(a_wrong_stage_has_the_name_of_its_bug)
{
    static const struct {
        const char *name, *stage, *says;
    } table[] = {{"rope_type", "checkpoints/query_proj", "by stage, equals mutant rope_type"},
                 {"rope_timescale", "checkpoints/query_proj", "by stage, equals mutant rope_timescale"},
                 {"functions_in_bf16", "checkpoints/query_proj", "does the kernel take exponentials"},
                 {"checkpoints/mla_kv", "checkpoints/mla_kv", "by stage, no known bug explains it"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t = {0}, with = {0};
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        assay_judging how = judging();
        how.unexplained = false;
        trial_evaluate(&with, case_named("mla/small", SETS), NULL);
        make_mutant(&with, table[i].name, &results);
        trial_write(&t, folder, case_named("mla/small", "profiles=bf16;checkpoints=none"));
        write_candidate(&t, &results, trial_is_result);
        OWNED_BY(assay_report_free) assay_report report = trial_judge(&t, &how);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        if (strstr(report.message, table[i].stage) == NULL || strstr(report.explanation, table[i].says) == NULL)
            fail_msg("%s: %s; %s", table[i].name, report.message, report.explanation);
        const bool named = strstr(table[i].says, "equals") != NULL;
        assert_int_equal(report.explained_count, named);
        if (named) assert_string_equal(report.explained_by[0], table[i].name);
    }
}

static bool ends_no_stage(const assay_tensor_spec *spec)
{
    return is_no_checkpoint(spec) && strcmp(spec->path, "routing/weights") != 0;
}

/* But a router's weights: its stage begins at x then. */
TEST_IN_FOLDER(without_checkpoints_there_are_no_stages)
{
    OWNED_BY(trial_close) trial t = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    trial_write(&t, folder, case_named("moe/small", SETS));
    make(&t, NULL, 1, &results);
    write_candidate(&t, &results, ends_no_stage);
    assay_report report = judge(&t);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_int_equal(report.stages->count, 0);
    assert_non_null(strstr(report.message, "no checkpoint is given"));
    assay_report_free(&report);
    const assay_tensor *weights = assay_tensor_set_find(&results, "routing/weights");
    for (int coarse = 0; coarse < 2; coarse++) {
        if (coarse) assay_dtype_round_many(ASSAY_BFLOAT16, weights->count, weights->values, weights->values);
        write_candidate(&t, &results, is_no_checkpoint);
        report = judge(&t);
        assert_int_equal(find(report.stages, "routing/weights")->verdict, coarse ? ASSAY_FAIL : ASSAY_PASS);
        assert_int_equal(find(&report, "routing/weights")->verdict, coarse ? ASSAY_FAIL : ASSAY_PASS);
        assay_report_free(&report);
    }
}

TEST(cases_that_nobody_evaluates_by_stage_are_refused)
{
    static const struct {
        const char *name, *why;
    } table[] = {{"moe/mesh-ring-one-device", "spread over a mesh"},
                 {"mla/mesh-heads2", "spread over a mesh"},
                 {"deepseek_layer/batch-split", "batch-split schedule"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, NULL);
        assert_bad_input(&ctx, assay_stages_check(&ctx, c), table[i].why);
    }
}
