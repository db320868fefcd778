#include "compare/compare.h"
#include "fixtures/files.h"
#include "harness/mutants/mutant_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/plan/written_codes.h"
#include "harness/power/full_golden.h"
#include "harness/power/power_test.h"
#include "harness/sketch/sketch.h"
#include "oracle/base/memory.h"

#define SAME 1e-12

/* One unit of the storage type at that value. */
static double unit_at(double value, assay_dtype type)
{
    int exponent = 0;
    frexp(value, &exponent); /* |value| in [2^(exponent - 1), 2^exponent) */
    return fmax(ldexp(2 * assay_dtype_unit_roundoff(type), exponent - 1), assay_dtype_least_subnormal(type));
}

/* Whether a result of the candidate differs from the golden's by more than a unit of the storage type, at the value or
 * at its error scale, whichever is larger: of a value that is all error no unit says anything. At float64 by more than
 * EVALUATION error scales too: golden and mutant are computed in float64, and each has such an error itself. */
static bool has_effect(const assay_trial *t, const assay_tensor *golden, const assay_tensor *candidate)
{
    enum { EVALUATION = 4 };
    const assay_dtype storage = assay_profile_type_of(t->profile, &golden->spec);
    const assay_tensor *error = assay_results_scales(t->golden, t->profile, golden->spec.path);
    const double *scales = error == NULL ? NULL : error->values;
    if (!assay_tensor_is_complete(candidate)) return golden->count > 0;
    for (int64_t i = 0; i < golden->count; i++) {
        if (golden->indices != NULL) {
            if (golden->indices[i] != candidate->indices[i]) return true;
            continue;
        }
        const double expected = golden->values[i], found = candidate->values[i];
        if (expected == found || (isnan(expected) && isnan(found))) continue;
        const double scale = scales == NULL ? 0.0 : scales[i];
        const double least = storage == ASSAY_FLOAT64 ? EVALUATION * scale : 0.0;
        const double unit = unit_at(fmax(fabs(expected), scale), storage);
        if (!isfinite(expected) || !isfinite(found) || fabs(found - expected) > fmax(unit, least)) return true;
    }
    return false;
}

bool assay_power_is_same(const assay_tensor_set *golden, const assay_tensor_set *candidate)
{
    for (int i = 0; i < golden->count; i++) {
        const assay_tensor *right = &golden->items[i], *wrong = &candidate->items[i];
        double largest = 0;
        if (!assay_role_is_required(right->spec.role)) continue;
        for (int64_t k = 0; right->values != NULL && k < right->count; k++)
            if (isfinite(right->values[k])) largest = fmax(largest, fabs(right->values[k]));
        for (int64_t k = 0; k < right->count; k++) {
            if (right->indices != NULL && right->indices[k] != wrong->indices[k]) return false;
            if (right->indices != NULL || right->values[k] == wrong->values[k]) continue;
            const bool both = isnan(right->values[k]) && isnan(wrong->values[k]);
            if (!both && !(fabs(wrong->values[k] - right->values[k]) <= SAME * largest)) return false;
        }
    }
    return true;
}

static double excess_of(const assay_tensor_result *tensor)
{
    if (!tensor->compared || tensor->finding == ASSAY_FINDING_MISSING) return INFINITY;
    return fmax(tensor->worst_element, tensor->worst_row);
}

/* A tensor of the report, or the parts of one sketch, which stand side by side: how far out it is, and whether it fails. */
typedef struct judged {
    char path[ASSAY_PATH_SIZE]; /* of the tensor itself */
    bool failed, compared;
    double excess;
    const char *where;
} judged;

static void path_of_full(const char *path, char full[ASSAY_PATH_SIZE])
{
    assay_sketch_tensor_path(path, full, NULL);
    if (full[0] == '\0') snprintf(full, ASSAY_PATH_SIZE, "%s", path);
}

/* The one that begins at *next, which moves on. */
static judged next_judged(const assay_report *report, int *next)
{
    judged j = {.excess = -INFINITY};
    path_of_full(report->tensors[*next].spec.path, j.path);
    for (; *next < report->count; ++*next) {
        const assay_tensor_result *tensor = &report->tensors[*next];
        char path[ASSAY_PATH_SIZE];
        path_of_full(tensor->spec.path, path);
        if (strcmp(path, j.path) != 0) break;
        const double excess = excess_of(tensor);
        if (excess > j.excess) j.where = tensor->spec.path;
        j.excess = fmax(j.excess, excess);
        j.failed |= tensor->verdict == ASSAY_FAIL;
        j.compared |= tensor->compared;
    }
    return j;
}

/* The verdict on the candidate: as a whole, and tensor by tensor. `made`: what the candidate was made from and is, in
 * whole tensors. */
static void conclude(const assay_trial *made, const assay_report *report, const assay_tensor_set *candidate,
                     assay_mutant_result *result)
{
    const bool each = result->mutant->each;
    result->excess = each ? INFINITY : 0.0;
    for (int next = 0; next < report->count;) {
        const judged j = next_judged(report, &next);
        const assay_tensor *golden = assay_tensor_set_find(made->golden, j.path);
        if (!j.failed && !(j.compared && has_effect(made, golden, assay_tensor_set_find(candidate, j.path)))) continue;
        const bool shown = each ? j.excess <= result->excess : j.excess > result->excess;
        result->changed++;
        result->found += j.failed;
        if (!shown) continue;
        result->excess = j.excess;
        snprintf(result->where, sizeof result->where, "%s", j.where);
    }
    result->fails = report->verdict == ASSAY_FAIL;
    const bool detected = each ? result->found == result->changed : result->fails;
    if (result->changed == 0 && !result->mutant->always) {
        result->outcome = ASSAY_MUTANT_NO_EFFECT;
        result->excess = 0.0;
    } else {
        result->outcome = detected && result->changed > 0 ? ASSAY_MUTANT_DETECTED : ASSAY_MUTANT_PASSES;
    }
}

static assay_status judge(assay_context *ctx, const assay_trial *t, const assay_tensor_set *candidate,
                          assay_report *report)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    OWNED_BY(assay_written_codes_free) assay_written_codes codes = {0};
    MUST(assay_trial_reader(ctx, candidate, "candidate", t->profile, &reader));
    MUST(assay_written_codes_adopt(ctx, t->plan, t->profile, t->false_alarm, false, t->reader, reader, &codes));
    return assay_compare_undiagnosed(ctx, t->reader, reader, t->profile, t->false_alarm, assay_plan_order(t->plan),
                                     report);
}

static assay_status append_tensor(assay_context *ctx, assay_fixture_writer *writer, const assay_tensor *tensor,
                                  const assay_profile *profile)
{
    assay_tensor stored = *tensor;
    if (tensor->values != NULL) stored.spec.type = assay_candidate_type(profile, &tensor->spec);
    return assay_fixture_append_tensor(ctx, writer, &stored);
}

/* Of a golden with checkpoints these too. */
static bool is_written(const assay_trial *t, const assay_tensor *tensor)
{
    return assay_is_of_candidate(tensor) ||
           (assay_is_of_stages(tensor) && assay_fixture_has(t->reader, ASSAY_ROLE_CHECKPOINT));
}

/* The candidate that was judged, as FOLDER/MUTANT.h5. */
static assay_status write_candidate(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                    const assay_tensor_set *candidate)
{
    assay_status status;
    assay_fixture_writer *writer = NULL;
    char path[4096];
    const int length = snprintf(path, sizeof path, "%s/%s.h5", t->folder, mutant->name);
    if (length >= (int)sizeof path) return assay_fail(ctx, ASSAY_BAD_INPUT, "%.64s...: path too long", path);
    TRY(assay_make_parents(ctx, path));
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", "candidate"));
    TRY(assay_fixture_set_text(ctx, writer, "case", t->plan->c->name));
    TRY(assay_fixture_set_text(ctx, writer, "mutant", mutant->name));
    for (int i = 0; i < candidate->count; i++) {
        const assay_tensor *tensor = &candidate->items[i];
        if (is_written(t, tensor)) TRY(append_tensor(ctx, writer, tensor, t->profile));
    }
cleanup:
    return assay_fixture_end(ctx, writer, status);
}

/* `made`: the trial itself, or that of whole gradients where its golden has sketches. */
static assay_status try_mutant(assay_context *ctx, const assay_trial *t, const assay_trial *made,
                               const assay_mutant *mutant, assay_mutant_result *result)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0}, sketched = {0};
    OWNED_BY(assay_report_free) assay_report report = {0};
    bool applies = assay_mutant_is_for(mutant, made->plan);
    *result = (assay_mutant_result){.mutant = mutant, .required = assay_mutant_is_required(mutant, made->plan)};
    if (!applies) return ASSAY_OK;
    MUST(assay_mutant_make(ctx, made, mutant, &candidate, &applies));
    if (applies && assay_mutant_is_of_step(mutant)) {
        result->equivalent = assay_power_is_same(made->golden, &candidate);
        applies = !result->equivalent;
    }
    if (!applies) return ASSAY_OK;
    assay_candidate_round(&candidate, t->profile);
    if (made != t) MUST(assay_full_golden_results(ctx, t, &candidate, &sketched));
    MUST(judge(ctx, t, made != t ? &sketched : &candidate, &report));
    conclude(made, &report, &candidate, result);
    const assay_mutant_watch *watch = t->plan->watch;
    if (watch != NULL && result->outcome != ASSAY_MUTANT_NO_EFFECT) watch->see(watch->self, &candidate, result);
    if (t->folder != NULL && result->outcome != ASSAY_MUTANT_NO_EFFECT)
        MUST(write_candidate(ctx, t, mutant, &candidate));
    return ASSAY_OK;
}

/* A golden whose own results do not pass would call every mutant detected. */
static assay_status check_control(assay_context *ctx, const assay_trial *t)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
    OWNED_BY(assay_report_free) assay_report report = {0};
    MUST(assay_tensor_set_copy(ctx, t->golden, &candidate));
    assay_candidate_round(&candidate, t->profile);
    MUST(judge(ctx, t, &candidate, &report));
    if (report.verdict == ASSAY_FAIL || report.verdict == ASSAY_NOT_COMPARABLE) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "its own results, rounded to profile %s, are %s: %.200s",
                          t->profile->precision.name, assay_verdict_name(report.verdict), report.message);
    }
    return ASSAY_OK;
}

static bool has_effect_on_any(const assay_mutant_result *result)
{
    return result->outcome == ASSAY_MUTANT_DETECTED || result->outcome == ASSAY_MUTANT_PASSES;
}

/* Whether the mutant, which passes whole, fails once it gives its checkpoints too. */
static assay_status try_by_stage(assay_context *ctx, const assay_trial *t, const assay_trial *staged,
                                 assay_mutant_result *result)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    bool applies = true, fails = false;
    MUST(assay_mutant_make(ctx, staged, result->mutant, &candidate, &applies));
    assay_candidate_round(&candidate, t->profile);
    MUST(assay_trial_staged_reader(ctx, &candidate, t->profile, &reader));
    MUST(t->plan->by_stage->compare(ctx, t->reader, reader, t->profile, t->false_alarm / 2, &fails));
    result->by_stage = fails ? ASSAY_MUTANT_DETECTED : ASSAY_MUTANT_PASSES;
    return ASSAY_OK;
}

/* Its own results must pass. */
static assay_status check_control_by_stage(assay_context *ctx, const assay_trial *t, const assay_trial *staged)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
    OWNED_BY(assay_fixture_release) assay_fixture_reader *reader = NULL;
    bool fails = false;
    MUST(assay_tensor_set_copy(ctx, staged->golden, &candidate));
    assay_candidate_round(&candidate, t->profile);
    MUST(assay_trial_staged_reader(ctx, &candidate, t->profile, &reader));
    MUST(t->plan->by_stage->compare(ctx, t->reader, reader, t->profile, t->false_alarm / 2, &fails));
    if (fails) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "its own results, rounded to profile %s, FAIL by stage",
                          t->profile->precision.name);
    }
    return ASSAY_OK;
}

/* What the golden's case has; a refusal is no error here. */
static bool has_stages(const assay_context *ctx, const assay_plan *plan)
{
    assay_context own = *ctx;
    bool any = false;
    for (int i = 0; i < plan->list.count; i++) any |= plan->list.entries[i].spec.role == ASSAY_ROLE_CHECKPOINT;
    return any && plan->by_stage != NULL && plan->list.sketched_count == 0 &&
           plan->by_stage->check(&own, plan->c) == ASSAY_OK;
}

static assay_status add_attributes(assay_context *ctx, const assay_trial *t)
{
    OWNED char *yaml = NULL;
    MUST(assay_case_yaml(ctx, t->plan->c, &yaml));
    MUST(assay_fixture_add_text(ctx, t->reader, "case_yaml", yaml));
    return assay_fixture_add_text(ctx, t->reader, "engine", ctx->arithmetic->name);
}

/* Mutants that fail whole fail with checkpoints too. */
static assay_status run_by_stage(assay_context *ctx, const assay_trial *t, assay_power_test *found)
{
    OWNED_BY(assay_full_golden_free) assay_full_golden full = {0};
    assay_trial staged = *t;
    bool prepared = false;
    for (int i = 0; i < found->mutants.count; i++) {
        assay_mutant_result *result = &found->items[i];
        result->by_stage = result->fails && has_effect_on_any(result) ? ASSAY_MUTANT_DETECTED : result->outcome;
        if (result->outcome != ASSAY_MUTANT_PASSES || result->fails) continue;
        if (!prepared) {
            MUST(add_attributes(ctx, t));
            MUST(assay_full_golden_make_with_checkpoints(ctx, t, &full));
            staged.plan = &full.plan;
            staged.golden = &full.golden;
            MUST(check_control_by_stage(ctx, t, &staged));
            prepared = true;
        }
        MUST(try_by_stage(ctx, t, &staged, result));
    }
    return ASSAY_OK;
}

static void tally(assay_power_test *found)
{
    assay_power *power = &found->power;
    power->stated = true;
    for (int i = 0; i < found->mutants.count; i++) {
        const assay_mutant_result *r = &found->items[i];
        power->detected += r->outcome == ASSAY_MUTANT_DETECTED;
        power->effective += has_effect_on_any(r);
        power->detected_by_stage += r->by_stage == ASSAY_MUTANT_DETECTED;
        power->stated_by_stage |= r->by_stage != ASSAY_MUTANT_NOT_APPLICABLE;
        if (r->outcome == ASSAY_MUTANT_PASSES && r->required && power->vacuous[0] == '\0')
            snprintf(power->vacuous, sizeof power->vacuous, "%s", r->mutant->name);
    }
}

assay_status assay_power_test_run(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                  const assay_profile *profile, double false_alarm, const char *folder,
                                  assay_power_test *found)
{
    assay_status status;
    assay_trial t = {.plan = plan, .golden = golden, .profile = profile, .false_alarm = false_alarm, .folder = folder};
    const bool sketched = plan->list.sketched_count > 0;
    assay_full_golden full = {0};
    assay_trial made = t;
    *found = (assay_power_test){.profile = profile};
    TRY(assay_trial_reader(ctx, golden, "golden", NULL, &t.reader));
    TRY(check_control(ctx, &t));
    TRY(plan->mutants_like != NULL ? assay_mutants_like(ctx, plan, plan->mutants_like, &found->mutants)
                                   : assay_mutants_of(ctx, plan, -1, &found->mutants));
    TRY(assay_alloc(ctx, "verdicts on mutants", found->mutants.count, sizeof *found->items, &found->items));
    if (sketched) {
        TRY(assay_full_golden_make(ctx, &t, &full));
        made.plan = &full.plan;
        made.golden = &full.golden;
    }
    for (int i = 0; i < found->mutants.count; i++)
        TRY(try_mutant(ctx, &t, sketched ? &made : &t, found->mutants.items[i], &found->items[i]));
    if (has_stages(ctx, plan)) TRY(run_by_stage(ctx, &t, found));
    tally(found);
cleanup:
    assay_full_golden_free(&full);
    assay_fixture_close(t.reader);
    if (status != ASSAY_OK) assay_power_test_free(found);
    return status;
}

void assay_power_test_free(assay_power_test *found)
{
    free(found->items);
    assay_mutant_list_free(&found->mutants);
    *found = (assay_power_test){0};
}

assay_status assay_power_spec(assay_context *ctx, const char *profile, int mutants, assay_tensor_spec *spec)
{
    *spec = (assay_tensor_spec){.role = ASSAY_ROLE_DISCRIMINATION,
                                .type = ASSAY_FLOAT64,
                                .shape = assay_shape_of(2, (int64_t)mutants, (int64_t)ASSAY_POWER_FIELDS),
                                .labels = {"mutant", "field"}};
    const int length = snprintf(spec->path, sizeof spec->path, "%s/%s", assay_role_folders[spec->role], profile);
    if (length >= (int)sizeof spec->path) return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", profile);
    return ASSAY_OK;
}

void assay_power_fields(const assay_power_test *found, double *fields)
{
    for (int i = 0; i < found->mutants.count; i++) {
        const assay_mutant_result *r = &found->items[i];
        double *row = fields + (int64_t)i * ASSAY_POWER_FIELDS;
        row[ASSAY_POWER_OUTCOME] = (double)r->outcome;
        row[ASSAY_POWER_REQUIRED] = r->required ? 1.0 : 0.0;
        row[ASSAY_POWER_CHANGED] = (double)r->changed;
        row[ASSAY_POWER_FOUND] = (double)r->found;
        row[ASSAY_POWER_EXCESS] = r->excess;
        row[ASSAY_POWER_BY_STAGE] = (double)r->by_stage;
    }
}
