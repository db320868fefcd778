#include "harness/tests/golden_trial.h"

#include "harness/plan/golden_read.h"
#include "harness/plan/results.h"
#include "harness/scales/ensemble.h"

static void plan_with(trial *t, assay_case *c, const assay_profile *own)
{
    *t = (trial){.ctx = assay_context_default(1), .c = c};
    assert_ok(&t->ctx, assay_plan_make_with(&t->ctx, &t->plan, c, NULL, own));
    assert_ok(&t->ctx, assay_inputs_open(&t->ctx, &t->inputs, c, &t->plan.list, NULL));
    t->source = assay_inputs_source(&t->inputs);
}

void trial_plan(trial *t, assay_case *c)
{
    plan_with(t, c, NULL);
}

void trial_evaluate(trial *t, assay_case *c, const assay_profile *own)
{
    plan_with(t, c, own);
    assert_ok(&t->ctx, assay_plan_tensors(&t->ctx, &t->golden, &t->plan, &t->source));
    const assay_sink sink = assay_results_sink(&t->golden);
    assert_ok(&t->ctx, assay_evaluate(&t->ctx, &t->plan, &t->source, &sink));
}

void trial_write(trial *t, const test_folder *folder, assay_case *c)
{
    trial_plan(t, c);
    snprintf(t->file, sizeof t->file, "%s/golden.h5", folder->path);
    snprintf(t->candidate, sizeof t->candidate, "%s/candidate.h5", folder->path);
    assert_ok(&t->ctx, assay_golden_write(&t->ctx, &t->plan, t->file, NULL, true));
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, t->file, &t->reader));
    assert_ok(&t->ctx, assay_golden_load(&t->ctx, &t->golden, &t->plan, t->reader));
}

void trial_close(trial *t)
{
    assay_tensor_set_free(&t->golden);
    assay_fixture_close(t->reader);
    assay_inputs_close(&t->inputs);
    assay_plan_free(&t->plan);
    assay_cases_free(t->c, 1);
}

assay_trial trial_at(const trial *t, const char *profile)
{
    return (assay_trial){.plan = &t->plan,
                         .golden = &t->golden,
                         .profile = assay_profile_by_name(profile),
                         .false_alarm = 1e-6,
                         .reader = t->reader};
}

assay_tensor_set trial_mutant(trial *t, const char *profile, const char *name)
{
    assay_tensor_set results = {0};
    bool applies = false;
    const assay_trial at = trial_at(t, profile);
    assert_ok(&t->ctx, assay_mutant_make(&t->ctx, &at, assay_mutant_by_name(name), &results, &applies));
    assert_true(applies);
    return results;
}

void trial_round(const assay_tensor_set *results, assay_dtype type)
{
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        if (tensor->values == NULL || assay_role_is_input(tensor->spec.role)) continue;
        const bool stored = assay_tensor_kept(&tensor->spec) == ASSAY_KEPT_STORED;
        const bool coarse = assay_dtype_unit_roundoff(type) > assay_dtype_unit_roundoff(ASSAY_FLOAT32);
        assay_dtype_round_many(coarse && !stored ? ASSAY_FLOAT32 : type, tensor->count, tensor->values, tensor->values);
    }
}

void trial_write_candidate(trial *t, const assay_tensor_set *results, const assay_profile *profile,
                           bool (*is_wanted)(const assay_tensor_spec *spec))
{
    assay_fixture_writer *writer = NULL;
    assert_ok(&t->ctx, assay_fixture_create(&t->ctx, t->candidate, &writer));
    assert_ok(&t->ctx, assay_fixture_set_text(&t->ctx, writer, "kind", "candidate"));
    for (int i = 0; i < t->plan.spec_count; i++) {
        assay_tensor_spec spec = t->plan.specs[i];
        const assay_tensor *found = assay_tensor_set_find(results, spec.path);
        if (!is_wanted(&spec)) continue;
        assert_non_null(found);
        if (spec.type != ASSAY_INT32) spec.type = assay_profile_type_of(profile, &spec);
        assert_ok(&t->ctx, assay_fixture_declare(&t->ctx, writer, &spec));
        assert_ok(&t->ctx, spec.type == ASSAY_INT32
                               ? assay_fixture_append_i32(&t->ctx, writer, spec.path, found->count, found->indices)
                               : assay_fixture_append(&t->ctx, writer, spec.path, found->count, found->values));
    }
    assert_ok(&t->ctx, assay_fixture_finish(&t->ctx, writer));
}

void trial_run(const trial *t, assay_context *ctx, const assay_source *in, assay_tensor_set *results)
{
    const assay_sink out = assay_tensor_set_sink(results);
    assert_ok(ctx, assay_tensor_set_copy(ctx, &t->golden, results));
    assay_tensor_set_rewind(results);
    assert_ok(ctx, assay_operation_run(ctx, t->plan.operation, t->c, in, &out));
}

assay_judging trial_judging(const assay_profile *profile)
{
    return (assay_judging){.profile = profile, .false_alarm = 1e-6, .quiet = true, .unexplained = true};
}

assay_status trial_try_judge(trial *t, const assay_judging *how, int64_t fails, assay_report *report)
{
    OWNED_BY(assay_golden_close) assay_golden golden = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    *report = (assay_report){0};
    assert_ok(&t->ctx, assay_golden_open(&t->ctx, t->file, &golden));
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, t->candidate, &candidate));
    assay_fail_allocation(fails);
    const assay_status status = assay_judge(&t->ctx, &golden, candidate, how, report, NULL);
    return status;
}

assay_report trial_judge(trial *t, const assay_judging *how)
{
    assay_report report;
    assert_ok(&t->ctx, trial_try_judge(t, how, -1, &report));
    return report;
}

assay_report trial_compare(trial *t, const assay_profile *profile)
{
    assay_report report;
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    assert_ok(&t->ctx, assay_fixture_open(&t->ctx, t->candidate, &candidate));
    assert_ok(&t->ctx,
              assay_compare(&t->ctx, t->reader, candidate, profile, 1e-6, assay_plan_order(&t->plan), &report));
    return report;
}
