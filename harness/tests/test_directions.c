/* Filters along known errors: what a golden holds, and what it sees by them. */
#include <math.h>

#include "harness/explain/explain.h"
#include "harness/golden/golden.h"
#include "harness/plan/directions.h"
#include "harness/tests/golden_trial.h"

static const char *const names[] = {"mla/small", "mla/late-positions", "mla/no-query-compression"};
enum { NAMES = sizeof names / sizeof *names };

static bool is_required(const assay_tensor_spec *spec)
{
    return assay_role_is_required(spec->role);
}

static assay_report judge(trial *t, const assay_tensor_set *results)
{
    const assay_profile *profile = assay_profile_by_name("bf16");
    trial_write_candidate(t, results, profile, is_required);
    assay_report report = trial_compare(t, profile);
    assay_golden golden = {0};
    assay_fixture_reader *candidate = NULL;
    assert_ok(&t->ctx, assay_golden_open(&t->ctx, t->file, &golden));
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, t->candidate, &candidate));
    assert_ok(&t->ctx, assay_explain(&t->ctx, &golden, candidate, profile, true, &report));
    assay_fixture_close(candidate);
    assay_golden_close(&golden);
    return report;
}

static assay_report judge_mutant(trial *t, const char *name)
{
    assay_tensor_set results = {0};
    bool applies = false;
    const assay_trial at = trial_at(t, "bf16");
    assert_ok(&t->ctx, assay_mutant_make(&t->ctx, &at, assay_mutant_by_name(name), &results, &applies));
    assert_true(applies);
    const assay_report report = judge(t, &results);
    assay_tensor_set_free(&results);
    return report;
}

/* No tensor shows it, all together do: another base of the frequencies lies along the other type, on the other side. */
TEST_IN_FOLDER(frequencies_of_another_rope_are_seen_without_checkpoints)
{
    for (int i = 0; i < NAMES; i++) {
        trial t;
        trial_write(&t, folder, case_named(names[i], "profiles=[bf16]"));
        assay_report report = judge(&t, &t.golden);
        assert_int_equal(report.verdict, ASSAY_PASS);
        assert_int_equal(report.direction_count, 1);
        assert_true(report.directions[0].judged && fabs(report.directions[0].value) < 0.1);
        assay_report_free(&report);
        report = judge_mutant(&t, "rope_type");
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_true(fabs(report.directions[0].value - 1) < 0.1);
        assert_non_null(strstr(report.message, "no tensor alone, but errors are "));
        assert_non_null(strstr(report.message, " of those of rope_type, give or take 0."));
        assert_true(report.explained_count > 0);
        assert_string_equal(report.explained_by[0], "rope_type");
        assay_report_free(&report);
        report = judge_mutant(&t, "rope_timescale");
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_true(report.directions[0].value < -0.8);
        assert_true(report.explained_count > 0);
        assert_string_equal(report.explained_by[0], "rope_timescale");
        assay_report_free(&report);
        trial_close(&t);
    }
}

/* The same filters come out again; a golden without them is judged as before. */
TEST_IN_FOLDER(filters_are_part_of_the_golden)
{
    trial t;
    assay_plan older = {0};
    trial_write(&t, folder, case_named(names[0], "profiles=[bf16]"));
    assert_true(assay_fixture_has(t.reader, ASSAY_ROLE_DIRECTION));
    assert_ok(&t.ctx, assay_golden_recompute(&t.ctx, &t.plan, t.reader, true));
    trial_close(&t);
    trial_plan(&t, case_named(names[0], "profiles=[bf16]"));
    assay_plan_drop(&t.plan, ASSAY_ROLE_DIRECTION);
    for (int i = 0; i < t.plan.spec_count; i++) {
        if (strcmp(t.plan.specs[i].path, "null/bf16/directions/rope_type") == 0) {
            t.plan.specs[i] = t.plan.specs[--t.plan.spec_count];
        }
    }
    assert_ok(&t.ctx, assay_golden_write(&t.ctx, &t.plan, folder->file, NULL, true));
    assert_ok(&t.ctx, assay_fixture_open(&t.ctx, folder->file, &t.reader));
    assert_ok(&t.ctx, assay_plan_describe(&t.ctx, &older, t.c, t.reader, NULL));
    assert_int_equal(older.spec_count, t.plan.spec_count);
    assert_ok(&t.ctx, assay_golden_recompute(&t.ctx, &older, t.reader, true));
    assay_plan_free(&older);
    trial_close(&t);
}

/* Where they are cheap, and may tell: attention with a rope, in small cases, at profiles that store bfloat16. */
TEST(filters_are_planned_where_they_are_cheap)
{
    const struct {
        const char *name, *settings;
        bool planned;
    } table[] = {{"mla/small", "profiles=[bf16]", true},           {"mla/small", "profiles=[f16]", false},
                 {"mla/small", "profiles=[f32]", false},           {"mla/small", "profiles=[fp8_e4m3_block128]", false},
                 {"mla/small", "profiles=[bf16];batch=64", false}, {"yarn_rope/deepseek", "profiles=[bf16]", false},
                 {"moe/small", "profiles=[bf16]", false},          {"deepseek_layer/dense", "profiles=[bf16]", false}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        assay_plan plan = {0};
        assay_case *c = case_named(table[i].name, table[i].settings);
        assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
        assert_int_equal(assay_plan_find(&plan, "null/bf16/directions/rope_type") >= 0, table[i].planned);
        assay_plan_free(&plan);
        assay_cases_free(c, 1);
    }
}

/* The list says what the table of mutants has under that name. */
TEST(known_errors_are_mutants)
{
    for (int i = 0; i < assay_direction_count; i++) {
        const assay_mutant *mutant = assay_mutant_by_name(assay_directions[i].name);
        assert_non_null(mutant);
        assert_true(mutant->configure == assay_directions[i].change);
    }
}
