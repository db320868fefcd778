/* Filters along known errors: what a golden holds, and what it sees by them. */

#include "harness/golden/golden.h"
#include "harness/plan/directions.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(slow);

static const char *const names[] = {"mla/small", "mla/late-positions", "mla/no-query-compression"};
enum { NAMES = sizeof names / sizeof *names };

static bool is_required(const assay_tensor_spec *spec)
{
    return assay_role_is_required(spec->role);
}

static assay_report judge(trial *t, const assay_tensor_set *results)
{
    assay_judging how = trial_judging(assay_profile_by_name("bf16"));
    how.unexplained = false;
    trial_write_candidate(t, results, how.profile, is_required);
    return trial_judge(t, &how);
}

static assay_report judge_mutant(trial *t, const char *name)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = trial_mutant(t, "bf16", name);
    const assay_report report = judge(t, &results);
    return report;
}

static const assay_direction_result *along(const assay_report *report, const char *name)
{
    const assay_direction_result *found = NULL;
    for (int i = 0; i < report->direction_count; i++) {
        if (strcmp(report->directions[i].name, name) == 0) found = &report->directions[i];
    }
    assert_non_null(found);
    return found;
}

/* No tensor shows it, all together do: another base of the frequencies lies along the other type, on the other side. */
TEST_IN_FOLDER(frequencies_of_another_rope_are_seen_without_checkpoints)
{
    for (int i = 0; i < NAMES; i++) {
        OWNED_BY(trial_close) trial t;
        trial_write(&t, folder, case_named(names[i], "profiles=[bf16]"));
        OWNED_BY(assay_report_free) assay_report report = judge(&t, &t.golden);
        assert_int_equal(report.verdict, ASSAY_PASS);
        assert_true(along(&report, "rope_type")->judged && fabs(along(&report, "rope_type")->value) < 0.1);
        assay_report_free(&report);
        report = judge_mutant(&t, "rope_type");
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_true(fabs(along(&report, "rope_type")->value - 1) < 0.1);
        assert_non_null(strstr(report.message, "no tensor alone, but errors are "));
        assert_non_null(strstr(report.message, " of those of rope_type, give or take 0."));
        assert_true(report.explained_count > 0);
        assert_string_equal(report.explained_by[0], "rope_type");
        assay_report_free(&report);
        report = judge_mutant(&t, "rope_timescale");
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_true(along(&report, "rope_type")->value < -0.8);
        assert_true(report.explained_count > 0);
        assert_string_equal(report.explained_by[0], "rope_timescale");
    }
}

/* Whether the golden's filters alone show it. */
static void check_shown(trial *t, const char *name, const char *profile)
{
    const assay_profile *at = assay_profile_by_name(profile);
    assay_tensor_set results = trial_mutant(t, profile, name);
    trial_write_candidate(t, &results, at, is_required);
    OWNED_BY(assay_report_free) assay_report report = trial_compare(t, at);
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_non_null(assay_direction_worst(report.direction_count, report.directions));
    for (int i = 0; i < report.count; i++) {
        if (report.tensors[i].verdict == ASSAY_FAIL) fail_msg("%s: %s", name, report.tensors[i].message);
    }
    assay_report_free(&report);
    assay_tensor_set_free(&results);
    trial_write_candidate(t, &t->golden, at, is_required);
    report = trial_compare(t, at);
    assert_int_equal(report.verdict, ASSAY_PASS);
}

/* In a block and a stack, by no tensor of theirs. */
TEST_IN_FOLDER(what_no_tensor_shows_all_show_together)
{
    const struct {
        const char *name, *profile, *mutant;
    } table[] = {{"mla/no-query-compression", "bf16", "rope_timescale"},
                 {"decoder_stack/qwen3-late-positions", "f32", "rope_type"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        char settings[64];
        snprintf(settings, sizeof settings, "profiles=[%s]", table[i].profile);
        trial_write(&t, folder, case_named(table[i].name, settings));
        check_shown(&t, table[i].mutant, table[i].profile);
    }
}

/* The same filters come out again, of the case as its golden has it; a golden without them is judged and verified as before. */
TEST_IN_FOLDER(filters_are_part_of_the_golden)
{
    const struct {
        const char *name, *settings;
    } table[] = {{"mla/small", "profiles=[bf16]"}, {"deepseek_layer/moe", "profiles=[f32]"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        OWNED_BY(assay_golden_close) assay_golden golden = {0};
        assay_plan without = {0};
        trial_write(&t, folder, case_named(table[i].name, table[i].settings));
        assert_true(assay_fixture_has(t.reader, ASSAY_ROLE_DIRECTION));
        assert_ok(&t.ctx, assay_golden_open(&t.ctx, t.file, &golden));
        assert_ok(&t.ctx, assay_golden_plan(&t.ctx, &golden, NULL));
        assert_true(assay_plan_has_directions(&golden.plan));
        assert_ok(&t.ctx, assay_golden_recompute(&t.ctx, &golden.plan, golden.reader, true));
        assert_ok(&t.ctx, assay_plan_without_directions(&t.ctx, &golden.plan, &without));
        assert_true(without.spec_count < golden.plan.spec_count && !assay_plan_has_directions(&without));
        assert_ok(&t.ctx, assay_golden_recompute(&t.ctx, &without, golden.reader, true));
        free(without.specs);
    }
}

/* A kernel makes the same error in equal rows, which no emulated run does. */
TEST_IN_FOLDER(equal_rows_have_no_filters)
{
    static const struct {
        const char *settings;
        bool made;
    } table[] = {{"profiles=[bf16];inputs.x={distribution: constant, mean: 1}", false},
                 {"profiles=[bf16];inputs.x={distribution: normal, mean: 1}", true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        trial_write(&t, folder, case_named("mla/small", table[i].settings));
        assert_int_equal(assay_plan_has_directions(&t.plan), table[i].made);
    }
}

/* Where runs are cheap, and say what correct implementations have in common. */
TEST(filters_are_made_where_runs_are_cheap)
{
    const struct {
        const char *name, *settings;
        bool made;
    } table[] = {{"mla/small", "profiles=[bf16]", true},
                 {"mla/small", "batch=1024", false},
                 {"moe/small", "profiles=[f32]", true},
                 {"deepseek_stack/two-dense", "profiles=[bf16]", true},
                 {"mlp/requantised-fp8", "profiles=[bf16]", false},
                 {"moe/recipe-fp8-full", "profiles=[bf16]", false}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_plan_free) assay_plan plan = {0};
        OWNED_BY(free_case) assay_case *c = case_named(table[i].name, table[i].settings);
        assert_ok(&ctx, assay_plan_describe(&ctx, &plan, c, NULL, NULL));
        assert_int_equal(assay_direction_members(&plan) > 0, table[i].made);
    }
}
