/* Goldens detect what they must; those that cannot are called vacuous, by certify and by compare. */

#include "harness/fixes/fixes.h"
#include "harness/plan/golden_read.h"
#include "harness/power/power_test.h"
#include "harness/tests/golden_trial.h"

TEST_LABELS(catalogue);

/* A golden of a case; with `mutants` they are in the file, but not in the plan. */
static void start(trial *f, const test_folder *folder, const char *name, const char *set, bool mutants)
{
    assay_context ctx = assay_context_default(1);
    trial_write(f, folder, case_named(name, set));
    if (!mutants) return;
    OWNED_BY(assay_plan_free) assay_plan with_mutants = {0};
    assay_fixture_close(f->reader);
    assert_ok(&ctx, assay_plan_make(&ctx, &with_mutants, f->c));
    assert_ok(&ctx, assay_plan_mutants(&ctx, &with_mutants));
    assert_ok(&ctx, assay_golden_write(&ctx, &with_mutants, f->file, NULL, true));
    assert_ok(&ctx, assay_fixture_open(&ctx, f->file, &f->reader));
}

static assay_power_test discriminate(trial *f, const char *profile)
{
    assay_power_test found;
    assert_ok(&f->ctx,
              assay_power_test_run(&f->ctx, &f->plan, &f->golden, assay_profile_by_name(profile), 1e-6, NULL, &found));
    return found;
}

static const assay_mutant_result *result_of(const assay_power_test *found, const char *name)
{
    const assay_mutant *mutant = assay_mutant_by_name(name);
    assert_non_null(mutant);
    return &found->items[mutant - assay_mutants];
}

static assay_mutant_outcome outcome_of(const assay_power_test *found, const char *name)
{
    return result_of(found, name)->outcome;
}

/* The ordinary case of each operation, and of each layout of groups. */
static const char *const ordinary[] = {"rms_norm/deepseek",
                                       "gmm/ragged",
                                       "gmm/padded-tail",
                                       "gmm/contiguous",
                                       "gmm/masked",
                                       "gmm/psum",
                                       "permute/deepseek3-tiny",
                                       "unpermute/deepseek3-tiny",
                                       "gmm/k-grouped-accumulate",
                                       "mlp/silu",
                                       "routing/deepseek3-groups",
                                       "moe/small",
                                       "moe/replicas",
                                       "mla/small",
                                       "yarn_rope/deepseek",
                                       "attention/deepseek",
                                       "deepseek_layer/moe",
                                       "deepseek_stack/dense-then-moe"};

/* What is required everywhere has an effect and is detected; of what else is required what has an effect is. */
static void check_ordinary(const test_folder *folder, const char *name, const char *profile)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, name, NULL, false);
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, profile);
    assert_string_equal(found.power.vacuous, "");
    assert_true(found.power.detected > 20 && found.power.detected <= found.power.effective);
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *mutant = &assay_mutants[i];
        const bool everywhere = mutant->required == ASSAY_EVERYWHERE && mutant->traits == 0;
        if (everywhere && found.items[i].outcome != ASSAY_MUTANT_DETECTED)
            fail_msg("%s: %s at %s", name, mutant->name, profile);
    }
}

TEST_IN_FOLDER(ordinary_cases_detect_the_required)
{
    for (size_t i = 0; i < sizeof ordinary / sizeof *ordinary; i++) {
        check_ordinary(folder, ordinary[i], "bf16");
        check_ordinary(folder, ordinary[i], "f32");
    }
}

/* A factor of 1.001 that is left out is lost in bfloat16, and seen in float32. */
TEST_IN_FOLDER(nearly_neutral_factor_is_vacuous)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "moe/small", "routed_scaling_factor=1.001", false);
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "bf16");
    assert_string_equal(found.power.vacuous, "scaling_missing");
    assert_int_equal(outcome_of(&found, "scaling_missing"), ASSAY_MUTANT_PASSES);
    assay_power_test_free(&found);
    found = discriminate(&f, "f32");
    assert_string_equal(found.power.vacuous, "");
    assert_int_equal(outcome_of(&found, "scaling_missing"), ASSAY_MUTANT_DETECTED);
    assay_power_test_free(&found);
    trial_close(&f);
    start(&f, folder, "moe/small", "routed_scaling_factor=1", false);
    found = discriminate(&f, "bf16");
    assert_int_equal(outcome_of(&found, "scaling_missing"), ASSAY_MUTANT_NOT_APPLICABLE);
}

/* Weights that already add up to 1 divided by their sum: another rounding, which no comparison may be asked to see. */
TEST_IN_FOLDER(roundings_of_float64_are_no_effect)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "moe/mesh-mixtral", NULL, false);
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "f64");
    assert_int_equal(outcome_of(&found, "division_flag_ignored"), ASSAY_MUTANT_NO_EFFECT);
    assert_int_equal(outcome_of(&found, "expert_off_by_one"), ASSAY_MUTANT_DETECTED);
    assert_string_equal(found.power.vacuous, "");
}

TEST_IN_FOLDER(zeros_are_vacuous)
{
    OWNED_BY(trial_close) trial f;
    trial_write(&f, folder,
                case_from("{case: mlp/zeros, op: mlp, batch: 1, sequence: 3, seed: 1, profiles: [f32], model: "
                          "{base_emb_dim: 4, base_mlp_dim: 5}, inputs: {x: {distribution: constant, mean: 0}}}"));
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "f32");
    assert_string_equal(found.power.vacuous, "zero_results");
    assert_int_equal(outcome_of(&found, "nan_results"), ASSAY_MUTANT_DETECTED);
}

/* Of a golden whose scales are wide, everything passes. */
TEST_IN_FOLDER(wide_scales_are_vacuous)
{
    trial f;
    start(&f, folder, "mla/small", NULL, false);
    for (int i = 0; i < f.plan.spec_count; i++) {
        assay_tensor *tensor = &f.golden.items[i];
        if (tensor->spec.role != ASSAY_ROLE_ERROR_SCALE && tensor->spec.role != ASSAY_ROLE_NULL) continue;
        if (strstr(tensor->spec.path, "/f32/") == NULL) continue;
        for (int64_t k = 0; k < tensor->count; k++) tensor->values[k] = 1e6;
    }
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "f32");
    assert_string_equal(found.power.vacuous, "zero_results");
    assert_int_equal(outcome_of(&found, "no_results"), ASSAY_MUTANT_DETECTED);
    trial_close(&f);
}

static bool is_result(const assay_tensor_spec *spec)
{
    return spec->role == ASSAY_ROLE_OUTPUT || spec->role == ASSAY_ROLE_GRADIENT;
}

/* The golden's results times a factor, in float32: with 1 a correct candidate. */
static void write_candidate(trial *f, double factor)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    assert_ok(&f->ctx, assay_tensor_set_copy(&f->ctx, &f->golden, &results));
    for (int i = 0; i < results.count; i++) {
        const assay_tensor *tensor = &results.items[i];
        for (int64_t k = 0; is_result(&tensor->spec) && k < tensor->count; k++) tensor->values[k] *= factor;
    }
    trial_write_candidate(f, &results, assay_profile_by_name("f32"), is_result);
}

static assay_report compare(trial *f, const char *profile)
{
    return trial_compare(f, assay_profile_by_name(profile));
}

TEST_IN_FOLDER(compare_states_the_power)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "moe/small", "routed_scaling_factor=1.001", true);
    write_candidate(&f, 1.0);
    assay_power_test found = discriminate(&f, "f32");
    OWNED_BY(assay_report_free) assay_report report = compare(&f, "f32");
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_true(report.power.stated);
    assert_int_equal(report.power.effective, found.power.effective);
    assert_int_equal(report.power.detected, found.power.detected);
    assay_report_free(&report);
    report = compare(&f, "bf16");
    assert_int_equal(report.verdict, ASSAY_VACUOUS);
    assert_non_null(strstr(report.message, "scaling_missing"));
    assay_report_free(&report);
    write_candidate(&f, 3.0); /* wrong stays wrong */
    report = compare(&f, "bf16");
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assay_report_free(&report);
    assay_power_test_free(&found);
    trial_close(&f);
    start(&f, folder, "rms_norm/one-row", NULL, false);
    write_candidate(&f, 1.0);
    report = compare(&f, "f32");
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_false(report.power.stated);
}

/* What hides in the whole shows in a stage; what cannot be judged by stages states nothing of them. */
TEST_IN_FOLDER(mutants_that_pass_are_judged_by_stages)
{
    static const struct {
        const char *mutant;
        assay_mutant_outcome whole, by_stage;
    } table[] = {{"rope_type", ASSAY_MUTANT_PASSES, ASSAY_MUTANT_DETECTED},
                 {"functions_in_bf16", ASSAY_MUTANT_PASSES, ASSAY_MUTANT_DETECTED},
                 {"scaled_1_2^-8", ASSAY_MUTANT_PASSES, ASSAY_MUTANT_DETECTED},
                 {"zero_results", ASSAY_MUTANT_DETECTED, ASSAY_MUTANT_DETECTED},
                 {"rope_truncation", ASSAY_MUTANT_PASSES, ASSAY_MUTANT_PASSES},
                 {"rope_pairing", ASSAY_MUTANT_NO_EFFECT, ASSAY_MUTANT_NO_EFFECT},
                 {"expert_off_by_one", ASSAY_MUTANT_NOT_APPLICABLE, ASSAY_MUTANT_NOT_APPLICABLE}};
    static const char *const without[] = {"rms_norm/one-row", "mla/mesh-heads2"};
    trial f;
    start(&f, folder, "mla/small", "profiles=[bf16]", false);
    f.plan.by_stage = &assay_stages_judge;
    assay_power_test found = discriminate(&f, "bf16");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const assay_mutant_result *r = result_of(&found, table[i].mutant);
        if (r->outcome != table[i].whole || r->by_stage != table[i].by_stage) fail_msg("%s", table[i].mutant);
    }
    assert_true(found.power.stated_by_stage);
    assert_true(found.power.detected_by_stage > found.power.detected);
    assert_true(found.power.detected_by_stage < found.power.effective);
    f.ctx.threads = 7;
    f.ctx.isa = ASSAY_ISA_SCALAR;
    assay_power_test again = discriminate(&f, "bf16");
    for (int i = 0; i < assay_mutant_count; i++) assert_int_equal(again.items[i].by_stage, found.items[i].by_stage);
    assay_power_test_free(&again);
    assay_power_test_free(&found);
    trial_close(&f);
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        start(&f, folder, without[i], "profiles=[bf16]", false);
        f.plan.by_stage = &assay_stages_judge;
        found = discriminate(&f, "bf16");
        assert_false(found.power.stated_by_stage);
        assert_int_equal(result_of(&found, "zero_results")->by_stage, ASSAY_MUTANT_NOT_APPLICABLE);
        assay_power_test_free(&found);
        trial_close(&f);
    }
}

/* A float32 scale of h is no bfloat16 number, and rounded it would belong to other codes. */
TEST_IN_FOLDER(scales_of_h_stay_as_they_are)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "mlp/requantised-fp8", "profiles=[bf16]", false);
    f.plan.by_stage = &assay_stages_judge;
    OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "bf16");
    assert_true(found.power.stated_by_stage);
}

/* A judge that calls everything wrong. */
static assay_status all_wrong(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                              const assay_profile *profile, double false_alarm, bool *fails)
{
    assert_ptr_not_equal(golden, candidate);
    assert_string_equal(profile->precision.name, "bf16");
    assert_true(false_alarm == 0.5e-6);
    (void)ctx;
    *fails = true;
    return ASSAY_OK;
}

TEST_IN_FOLDER(a_golden_whose_own_stages_fail_is_refused)
{
    const assay_stage_judge judge = {.check = assay_stages_check, .compare = all_wrong};
    assay_power_test found;
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "mla/small", "profiles=[bf16]", false);
    f.plan.by_stage = &judge;
    assert_bad_input(
        &f.ctx, assay_power_test_run(&f.ctx, &f.plan, &f.golden, assay_profile_by_name("bf16"), 1e-6, NULL, &found),
        "its own results, rounded to profile bf16, FAIL by stage");
}

/* What generation stores is what certify finds in the file, with any number of threads. */
TEST_IN_FOLDER(stored_is_found_again)
{
    OWNED_BY(trial_close) trial f;
    const int64_t count = (int64_t)assay_mutant_count * ASSAY_POWER_FIELDS;
    OWNED double *stored = calloc((size_t)count, sizeof *stored), *fields = calloc((size_t)count, sizeof *fields);
    assert_true(stored != NULL && fields != NULL);
    start(&f, folder, "gmm/exact-padded", NULL, true); /* no stages */
    assert_ok(&f.ctx, assay_fixture_read(&f.ctx, f.reader, "discrimination/f32", 0, count, stored));
    static const int threads[] = {1, 2, 7};
    for (int i = 0; i < 3; i++) {
        f.ctx.threads = threads[i];
        OWNED_BY(assay_power_test_free) assay_power_test found = discriminate(&f, "f32");
        assay_power_fields(&found, fields);
        assert_same_bits(fields, stored, count);
    }
    OWNED_BY(assay_plan_free) assay_plan with_mutants = {0};
    assert_ok(&f.ctx, assay_plan_make(&f.ctx, &with_mutants, f.c));
    assert_ok(&f.ctx, assay_plan_mutants(&f.ctx, &with_mutants));
    assert_ok(&f.ctx, assay_golden_recompute(&f.ctx, &with_mutants, f.reader, true));
}

/* A mutant may say what the family would not honour: the golden of a case that gives such keys holds the same as one
 * whose keys were read back from it. */
TEST_IN_FOLDER(what_a_case_gives_changes_no_mutant)
{
    OWNED_BY(trial_close) trial f;
    OWNED_BY(assay_plan_free) assay_plan again = {0};
    assay_case *stored = NULL;
    int count = 0;
    start(&f, folder, "moe/glm4.5-shape", "profiles=[bf16]", true);
    const char *yaml = assay_fixture_text(f.reader, "case_yaml");
    assert_ok(&f.ctx, assay_cases_parse_stored(&f.ctx, "golden", yaml, strlen(yaml), &stored, &count));
    assert_ok(&f.ctx, assay_plan_make(&f.ctx, &again, stored));
    assert_ok(&f.ctx, assay_plan_mutants(&f.ctx, &again));
    assert_ok(&f.ctx, assay_golden_recompute(&f.ctx, &again, f.reader, true));
    assay_cases_free(stored, count);
}

/* A file with a table of mutants of its own. */
static assay_fixture_reader *with_table(assay_context *ctx, const char *path, int rows, int columns,
                                        const double *fields)
{
    static const char *const names[] = {"no_such_any_more", "doubled"};
    assay_fixture_writer *writer = NULL;
    assay_fixture_reader *reader = NULL;
    const assay_tensor_spec spec = {.path = "discrimination/f32",
                                    .type = ASSAY_FLOAT64,
                                    .shape = assay_shape_of(2, (int64_t)rows, (int64_t)columns),
                                    .labels = {"mutant", "field"}};
    assert_ok(ctx, assay_fixture_create(ctx, path, &writer));
    assert_ok(ctx, assay_fixture_set_texts(ctx, writer, "mutants", 2, names));
    assert_ok(ctx, assay_fixture_declare(ctx, writer, &spec));
    assert_ok(ctx, assay_fixture_append(ctx, writer, spec.path, (int64_t)rows * columns, fields));
    assert_ok(ctx, assay_fixture_finish(ctx, writer));
    assert_ok(ctx, assay_fixture_open(ctx, path, &reader));
    return reader;
}

/* Of a table that has grown or lost a mutant since, what both know is compared, by name. */
TEST_IN_FOLDER_WITH_CONTEXT(older_tables_hold)
{
    const char *path = folder->file;
    const assay_plan plain = {.operation = assay_operation_by_name("gmm")};
    OWNED double *found = calloc((size_t)assay_mutant_count * ASSAY_POWER_FIELDS, sizeof *found);
    double stored[3 * ASSAY_POWER_FIELDS] = {3, 1, 7, 5, 0.5, 2, 2, 0, 7, 7, 12.0, 2};
    double *doubled = stored + ASSAY_POWER_FIELDS;
    assert_non_null(found);
    memcpy(found + (assay_mutant_by_name("doubled") - assay_mutants) * ASSAY_POWER_FIELDS, doubled,
           ASSAY_POWER_FIELDS * sizeof *found);
    static const struct {
        int rows, field;
        double value;
        assay_status layout, fields;
    } table[] = {{2, ASSAY_POWER_OUTCOME, 2, ASSAY_OK, ASSAY_OK},
                 {2, ASSAY_POWER_BY_STAGE, 0, ASSAY_OK, ASSAY_OK},
                 {2, ASSAY_POWER_BY_STAGE, 3, ASSAY_OK, ASSAY_BAD_INPUT},
                 {2, ASSAY_POWER_EXCESS, 12.000001, ASSAY_OK, ASSAY_OK},
                 {2, ASSAY_POWER_EXCESS, 12.0001, ASSAY_OK, ASSAY_BAD_INPUT},
                 {2, ASSAY_POWER_EXCESS, (double)INFINITY, ASSAY_OK, ASSAY_BAD_INPUT},
                 {2, ASSAY_POWER_OUTCOME, 3, ASSAY_OK, ASSAY_BAD_INPUT},
                 {2, ASSAY_POWER_FOUND, 6, ASSAY_OK, ASSAY_BAD_INPUT},
                 {3, ASSAY_POWER_OUTCOME, 2, ASSAY_BAD_INPUT, ASSAY_OK}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const double before = doubled[table[i].field];
        doubled[table[i].field] = table[i].value;
        OWNED_BY(assay_fixture_release)
        assay_fixture_reader *reader = with_table(&ctx, path, table[i].rows, ASSAY_POWER_FIELDS, stored);
        const assay_tensor_spec *spec = assay_fixture_find(reader, "discrimination/f32");
        const assay_plan plan = {.operation = plain.operation, .specs = (assay_tensor_spec[]){*spec}, .spec_count = 1};
        assert_int_equal(assay_golden_check_layout(&ctx, &plan, reader), table[i].layout);
        assert_int_equal(assay_power_check(&ctx, &plan, reader, spec->path, found), table[i].fields);
        if (table[i].fields != ASSAY_OK) assert_non_null(strstr(ctx.message, "mutant doubled"));
        doubled[table[i].field] = before;
    }
    assay_power power;
    assay_fixture_reader *stated = with_table(&ctx, path, 2, ASSAY_POWER_FIELDS, stored);
    assert_ok(&ctx, assay_power_read(&ctx, stated, "f32", &power));
    assert_true(power.stated && power.stated_by_stage);
    assert_true(power.effective == 2 && power.detected == 1 && power.detected_by_stage == 2);
    assay_fixture_close(stated);
    static const double five[] = {3, 0, 7, 5, 0.5, 2, 0, 7, 7, 12.0};
    assay_fixture_reader *earlier = with_table(&ctx, path, 2, ASSAY_POWER_BY_STAGE, five);
    assert_ok(&ctx, assay_power_check(&ctx, &plain, earlier, "discrimination/f32", found));
    assert_ok(&ctx, assay_power_read(&ctx, earlier, "f32", &power));
    assert_true(power.effective == 2 && power.detected == 1 && !power.stated_by_stage);
    assay_fixture_close(earlier);
    for (int fields = ASSAY_POWER_BY_STAGE - 1; fields <= ASSAY_POWER_FIELDS + 1; fields += 3) {
        OWNED_BY(assay_fixture_release) assay_fixture_reader *odd = with_table(&ctx, path, 2, fields, stored);
        assert_int_equal(assay_power_read(&ctx, odd, "f32", &power), ASSAY_BAD_INPUT);
    }
    found[(assay_mutant_by_name("doubled") - assay_mutants) * ASSAY_POWER_FIELDS + ASSAY_POWER_EXCESS] = INFINITY;
    OWNED_BY(assay_fixture_release)
    assay_fixture_reader *finite = with_table(&ctx, path, 2, ASSAY_POWER_FIELDS, stored);
    assert_int_equal(assay_power_check(&ctx, &plain, finite, "discrimination/f32", found), ASSAY_BAD_INPUT);
}

/* Nobody passes with what he was given. */
TEST_IN_FOLDER(request_never_passes)
{
    OWNED_BY(trial_close) trial f;
    start(&f, folder, "moe/small", NULL, true);
    assert_ok(&f.ctx, assay_request_write(&f.ctx, &f.plan, f.candidate, NULL, true));
    assay_report report = compare(&f, "f32");
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assay_report_free(&report);
    OWNED_BY(assay_fixture_release) assay_fixture_reader *request = NULL;
    const char *const *names = NULL;
    assert_ok(&f.ctx, assay_fixture_open(&f.ctx, f.candidate, &request));
    assert_null(assay_fixture_find(request, "discrimination/f32"));
    assert_int_equal(assay_fixture_texts(request, "mutants", &names), 0);
}

TEST_IN_FOLDER_WITH_CONTEXT(refusals)
{
    trial f;
    assay_power_test found;
    start(&f, folder, "rms_norm/one-row", "profiles=[f32]", false);
    assert_bad_input(
        &f.ctx, assay_power_test_run(&f.ctx, &f.plan, &f.golden, assay_profile_by_name("bf16"), 1e-6, NULL, &found),
        "profiles=bf16");
    trial_close(&f);
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(free_case) assay_case *c = case_named("rms_norm/one-row", "profiles=none");
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    assert_int_equal(assay_plan_mutants(&ctx, &plan), ASSAY_BAD_INPUT);
}

TEST_IN_FOLDER(failing_allocations)
{
    trial f;
    start(&f, folder, "rms_norm/one-row", "profiles=[f32]", false);
    for (int64_t n = 0;; n += n < 100 ? 1 : 61) {
        assay_power_test found = {0};
        assay_fail_allocation(n);
        const assay_status status =
            assay_power_test_run(&f.ctx, &f.plan, &f.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found);
        assay_power_test_free(&found);
        if (had_memory(&f.ctx, status)) break;
    }
    trial_close(&f);
}

TEST_IN_FOLDER(failing_allocations_by_stage)
{
    trial f;
    start(&f, folder, "mla/small", "profiles=[bf16]", false);
    f.plan.by_stage = &assay_stages_judge;
    for (int64_t n = 0;; n += 1699) {
        assay_power_test found = {0};
        assay_fail_allocation(n);
        const assay_status status =
            assay_power_test_run(&f.ctx, &f.plan, &f.golden, assay_profile_by_name("bf16"), 1e-6, NULL, &found);
        assay_power_test_free(&found);
        if (had_memory(&f.ctx, status)) break;
    }
    trial_close(&f);
}
