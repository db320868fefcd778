#include "harness/explain/explain.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/explain/explain_internal.h"
#include "harness/mutants/step_changes.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/plan_make.h"
#include "harness/plan/progress.h"
#include "oracle/base/memory.h"

/* What may be spent on all mutants: operations of their products, and elements that are looked at. Some seconds. */
#define MOST_FLOPS 2e10
#define MOST_ELEMENTS 1e8

/* What a hypothesis may leave, or leave of what there was, to be tried a second time. */
#define NEAR 50.0
#define NEARER 0.02

/* Of those that hold, the ones that are no further from the candidate than this are not told apart; or than this part of what
 * the golden itself is. */
#define AS_NEAR 0.25

/* So many times as many choices differ from the golden's as from the mutant's. */
#define FEW 4

/* What is certainly wrong, in deviations. */
#define FAR 30.0

typedef struct hypothesis {
    const assay_mutant *mutant;
    double residual; /* or, of mutants whose errors are as large, by how much they are */
    double distance; /* from the candidate: the least comes first */
} hypothesis;

typedef struct search {
    assay_trial trial;
    assay_candidate_results of_candidate;
    const assay_report *plain;
    assay_mutant_list mutants;
    hypothesis *hypotheses; /* [mutants.count + assay_ignored_setting_count] */
    assay_mutant fitted;    /* the row of any alpha, with the candidate's */
    int hypothesis_count, tried, settings_tried;
    const assay_tensor_set *given_too; /* checkpoints that stages begin with; NULL: a whole candidate is explained */
    bool noise;                        /* held are mutants whose errors are as large, not the same */
    double before;                     /* RMS of error / deviation from the golden, over all tensors */
} search;

/* A failure of values: of shapes and types the message says it all, and no mutant has others. */
static bool is_worth_it(const assay_report *report)
{
    bool worth = false;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->verdict != ASSAY_FAIL) continue;
        if (!r->compared && r->finding != ASSAY_FINDING_MISSING) return false;
        worth = true;
    }
    return worth;
}

static double residual_of(const assay_report *report)
{
    double squares = 0.0, elements = 0.0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (!r->compared || r->spec.type == ASSAY_INT32) continue;
        squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
        elements += (double)r->elements;
    }
    return elements > 0.0 ? sqrt(squares / elements) : 0.0;
}

/* Error scales of other profiles are in the plan as well, and nobody looks at them. */
static double compared_elements(const assay_plan *plan)
{
    double elements = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (assay_role_is_compared(spec->role)) elements += (double)assay_shape_count(&spec->shape);
    }
    return elements;
}

static bool exceeds(const assay_plan *plan, int evaluated, int applicable)
{
    return evaluated * assay_operation_flops(plan->operation, plan->c, true) > MOST_FLOPS ||
           (double)applicable * compared_elements(plan) > MOST_ELEMENTS;
}

static bool is_too_large(const assay_plan *plan, const assay_mutant *mutants, int count)
{
    int evaluated = 0, applicable = 0;
    for (int i = 0; i < count; i++) {
        assay_case c = *plan->c;
        const bool is_for = assay_mutant_is_for(&mutants[i], plan) && assay_mutant_configure(&mutants[i], &c);
        applicable += is_for;
        evaluated += is_for && assay_mutant_is_evaluated(&mutants[i]);
    }
    return exceeds(plan, evaluated, applicable);
}

static void keep(search *s, const assay_mutant *mutant, double residual, double distance)
{
    const bool again = s->hypothesis_count > 0 && s->hypotheses[s->hypothesis_count - 1].mutant == mutant;
    if (again && s->hypotheses[s->hypothesis_count - 1].distance <= distance) return;
    s->hypothesis_count -= again;
    s->hypotheses[s->hypothesis_count++] = (hypothesis){mutant, residual, distance};
}

/* One way in which the mutant's gradients may be meant; *residual: the least of all so far. */
static assay_status try_variant(assay_context *ctx, search *s, const assay_trial *t, const assay_mutant *mutant,
                                const assay_tensor_set *results, double *residual)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set copy = {0};
    bool holds = false;
    double left = INFINITY;
    MUST(assay_tensor_set_copy(ctx, results, &copy));
    MUST(assay_hypothesis_hold(ctx, t, mutant, &s->of_candidate, s->plain, &copy, &holds, &left));
    if (holds) keep(s, mutant, left, left);
    *residual = fmin(*residual, left);
    return ASSAY_OK;
}

/* Of a candidate that chose, the mutant given this choice, if that is the mutant's own but for a few: errors decide between near scores. */
static assay_status try_choice(assay_context *ctx, search *s, const assay_trial *t, const assay_mutant *mutant,
                               const assay_tensor_set *results, double *residual)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set golden = {0}, chosen = {0};
    assay_trial own = *t;
    assay_mutant given = *mutant;
    int64_t off = 0, before = 0;
    bool applies = true;
    MUST(assay_tensor_set_copy(ctx, t->golden, &golden));
    for (int i = 0; i < s->of_candidate.written; i++) {
        const assay_memory_tensor *from = &s->of_candidate.tensors[i];
        const assay_tensor *to = assay_tensor_set_find(&golden, from->spec.path),
                           *mutated = assay_tensor_set_find(results, from->spec.path);
        if (!assay_path_is_choice(from->spec.path) || from->integers == NULL || mutated == NULL) continue;
        for (int64_t k = 0; k < to->count; k++) {
            off += mutated->indices[k] != from->integers[k];
            before += to->indices[k] != from->integers[k];
            to->indices[k] = from->integers[k];
        }
    }
    /* a golden that was evaluated again has the candidate's own */
    if (off == 0 || (before == 0 ? !assay_mutant_is_of_step(mutant) : before < FEW * off)) return ASSAY_OK;
    own.golden = &golden;
    given.golden_choice = true;
    MUST(assay_mutant_make(ctx, &own, &given, &chosen, &applies));
    return applies ? try_variant(ctx, s, &own, mutant, &chosen, residual) : ASSAY_OK;
}

static assay_status try_mutant(assay_context *ctx, search *s, const assay_trial *t, const assay_mutant *mutant,
                               double *residual)
{
    bool applies = true, differs = false;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    *residual = INFINITY;
    MUST(assay_mutant_make(ctx, t, mutant, &results, &applies));
    if (!applies) return ASSAY_OK;
    if (!t->scales) *(assay_mutant_is_ignored_setting(mutant) ? &s->settings_tried : &s->tried) += 1;
    MUST(try_variant(ctx, s, t, mutant, &results, residual));
    MUST(assay_mutant_pull_back(ctx, t, mutant, &results, &differs));
    if (differs) MUST(try_variant(ctx, s, t, mutant, &results, residual));
    return assay_mutant_is_evaluated(mutant) ? try_choice(ctx, s, t, mutant, &results, residual) : ASSAY_OK;
}

/* With the error scales of the golden, which cost nothing; and where that comes near, but not near enough, with those
 * of the mutated case, whose errors may be larger. */
static assay_status try_twice(assay_context *ctx, search *s, const assay_mutant *mutant)
{
    double residual;
    const int hypotheses = s->hypothesis_count;
    assay_trial own = s->trial;
    own.scales = true;
    if (mutant->step.make == assay_step_other_alpha) {
        s->fitted = *mutant;
        mutant = &s->fitted;
        MUST(assay_mutant_fit(ctx, &s->trial, &s->of_candidate, &s->fitted));
    }
    MUST(try_mutant(ctx, s, &s->trial, mutant, &residual));
    const bool evaluated = assay_mutant_is_evaluated(mutant) && !assay_mutant_is_lossy(mutant) && !mutant->each_shard;
    const bool near = residual < (residual < NEAR ? 0.9 : NEARER) * s->before;
    if (!evaluated || s->hypothesis_count > hypotheses || !near || s->given_too != NULL) return ASSAY_OK;
    return try_mutant(ctx, s, &own, mutant, &residual);
}

static assay_status try_noise(assay_context *ctx, search *s, const assay_mutant *mutant)
{
    bool holds = false;
    double ratio = 0.0;
    const assay_status status = assay_noise_hold(ctx, &s->trial, mutant, &s->of_candidate, &holds, &ratio);
    if (status == ASSAY_OK && holds) keep(s, mutant, ratio, fabs(log(ratio)));
    s->noise |= holds;
    s->tried++;
    return status;
}

static int by_distance(const void *a, const void *b)
{
    const hypothesis *x = a, *y = b;
    if (x->distance != y->distance) return x->distance < y->distance ? -1 : 1;
    return x->mutant < y->mutant ? -1 : x->mutant > y->mutant;
}

/* What a sentence says of a hypothesis: a setting that is ignored is said as the case that was computed. */
static const char *word_of(const assay_mutant *mutant)
{
    return assay_mutant_is_ignored_setting(mutant) ? mutant->models : mutant->name;
}

/* "NAME (0.31) or NAME with 1.6 (0.35)" of those that are as near as the first; counts them. */
static int name_nearest(const search *s, char *text, size_t size)
{
    size_t length = 0;
    int count = 0;
    for (; count < s->hypothesis_count && count < ASSAY_EXPLAINED_MOST; count++) {
        const hypothesis *h = &s->hypotheses[count];
        if (h->distance > s->hypotheses[0].distance + AS_NEAR * fmin(1.0, s->before)) break;
        char with[24] = "";
        if (h->mutant->step.make == assay_step_other_alpha)
            snprintf(with, sizeof with, " with %.4g", h->mutant->step.by);
        length += (size_t)snprintf(text + length, size - length, "%s%s%s (%.2g)", count == 0 ? "" : " or ",
                                   word_of(h->mutant), with, h->residual);
        if (length >= size) break;
    }
    return count;
}

/* The arithmetics that make errors as large, and what to ask of the kernel. */
static void ask(const search *s, char *text, size_t size)
{
    size_t length = 0;
    for (int i = 0; i < s->hypothesis_count && length < size; i++) {
        const hypothesis *h = &s->hypotheses[i];
        length += (size_t)snprintf(text + length, size - length, "%s%s make (%.2g times, %s)",
                                   i == 0 ? "; errors are as large as " : ", or as ", h->mutant->makes, h->residual,
                                   h->mutant->name);
    }
    for (int i = 0; i < s->hypothesis_count && length < size; i++) {
        length += (size_t)snprintf(text + length, size - length, "%s%s", i == 0 ? ": does the kernel " : ", or ",
                                   s->hypotheses[i].mutant->asks);
    }
    if (length < size) snprintf(text + length, size - length, "?");
}

static void say(const search *s, assay_report *report)
{
    char *text = report->explanation, names[640];
    const size_t size = sizeof report->explanation;
    const int count = name_nearest(s, names, sizeof names);
    if (count == 0 || s->noise) {
        char settings[48] = "";
        if (s->settings_tried > 0) snprintf(settings, sizeof settings, " and %d ignored settings", s->settings_tried);
        const int length = snprintf(text, size, "no known bug explains it (%d mutants%s tried)", s->tried, settings);
        if (s->noise) ask(s, text + length, size - (size_t)length);
    } else if (assay_mutant_is_ignored_setting(s->hypotheses[0].mutant)) {
        snprintf(text, size, "equals %s: does the kernel ignore the setting?", names);
    } else {
        snprintf(text, size, "equals mutant %s: %s%.200s%s", names,
                 count > 1 ? "this case does not tell them apart; the first is " : "", s->hypotheses[0].mutant->models,
                 !s->hypotheses[0].mutant->always && s->of_candidate.count > s->of_candidate.written
                     ? ", missing gradients being zeros"
                     : "");
    }
    for (; !s->noise && report->explained_count < count; report->explained_count++) {
        snprintf(report->explained_by[report->explained_count], ASSAY_EXPLAINED_NAME, "%s",
                 s->hypotheses[report->explained_count].mutant->name);
    }
}

/* `whole`: those of candidates that are nothing as a whole; else the rest, of which those that must be evaluated are left
 * out where one of the former holds. NaN alone says little: a kernel that reads what it should not gives it, too. */
static assay_status try_all(assay_context *ctx, search *s, bool whole, assay_progress *progress)
{
    const bool nothing = !whole && s->hypothesis_count > 0 && strcmp(s->hypotheses[0].mutant->name, "nan_results") != 0;
    const assay_plan *plan = s->trial.plan;
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *mutant = &assay_mutants[i];
        if (mutant->always != whole || (nothing && assay_mutant_is_evaluated(mutant))) continue;
        if (mutant->degrade == NULL && assay_mutant_is_for(mutant, plan)) MUST(try_twice(ctx, s, mutant));
        assay_progress_add(progress, 1, mutant->name);
    }
    return ASSAY_OK;
}

/* Mutants of the table keep their names: those of steps are tried where none holds. */
static assay_status try_steps(assay_context *ctx, search *s)
{
    const int count = s->mutants.count - assay_mutant_count;
    if (s->hypothesis_count > 0 || exceeds(s->trial.plan, count, count)) return ASSAY_OK;
    for (int i = assay_mutant_count; i < s->mutants.count; i++) MUST(try_twice(ctx, s, s->mutants.items[i]));
    return ASSAY_OK;
}

/* A mutant that says more keeps its name: settings are tried where none holds. */
static assay_status try_settings(assay_context *ctx, search *s)
{
    const assay_plan *plan = s->trial.plan;
    if (s->hypothesis_count > 0 || is_too_large(plan, assay_ignored_settings, assay_ignored_setting_count))
        return ASSAY_OK;
    for (int i = 0; i < assay_ignored_setting_count; i++)
        if (assay_mutant_is_for(&assay_ignored_settings[i], plan)) MUST(try_twice(ctx, s, &assay_ignored_settings[i]));
    return ASSAY_OK;
}

static assay_status search_all(assay_context *ctx, search *s, bool quiet)
{
    assay_status status = ASSAY_OK;
    assay_progress progress;
    const assay_plan *plan = s->trial.plan;
    assay_progress_start(&progress, quiet, "known bugs", assay_mutant_count);
    TRY(try_all(ctx, s, true, &progress));
    TRY(try_all(ctx, s, false, &progress));
    TRY(try_steps(ctx, s));
    TRY(try_settings(ctx, s));
    /* that errors are as large says less than that they are the same: other bugs may make such; and where a recipe
     * quantises, errors of any origin are steps of its codes */
    const bool unexplained = s->hypothesis_count == 0 && plan->c->config.quant_recipe.text[0] == '\0';
    for (int i = 0; unexplained && i < assay_mutant_count; i++) {
        const assay_mutant *mutant = &assay_mutants[i];
        if (mutant->degrade != NULL && assay_mutant_is_for(mutant, plan)) TRY(try_noise(ctx, s, mutant));
    }
    qsort(s->hypotheses, (size_t)s->hypothesis_count, sizeof *s->hypotheses, by_distance);
cleanup:
    assay_progress_end(&progress);
    return status;
}

static void close_search(search *s, assay_tensor_set *results)
{
    free(s->hypotheses);
    assay_mutant_list_free(&s->mutants);
    assay_candidate_results_free(&s->of_candidate);
    assay_tensor_set_free(results);
}

static assay_status add_given(assay_context *ctx, const assay_tensor_set *of_candidate, assay_tensor_set *results)
{
    for (int i = 0; i < of_candidate->count; i++) {
        const assay_tensor *from = &of_candidate->items[i];
        assay_tensor *tensor = NULL;
        if (!assay_tensor_is_complete(from) || from->values == NULL) continue; /* choices are the golden's own */
        MUST(assay_tensor_set_add(ctx, results, &from->spec, &tensor));
        memcpy(tensor->values, from->values, (size_t)from->count * sizeof *from->values);
        tensor->written = tensor->count;
    }
    return ASSAY_OK;
}

/* Of each axis the first index at which numbers are far from the golden's, and of these the largest; 0: none are. */
static int64_t first_wrong(const assay_tensor *golden, double unit, const double *scales, const double *numbers)
{
    const int64_t *dims = golden->spec.shape.dims;
    int64_t most = 0;
    for (int64_t axis = golden->spec.shape.rank - 1, inner = 1; axis >= 0; inner *= dims[axis--]) {
        int64_t least = dims[axis];
        for (int64_t k = 0; k < golden->count; k++)
            if (fabs(numbers[k] - golden->values[k]) > FAR * (scales[k] + unit * fabs(golden->values[k])))
                least = k / inner % dims[axis] < least ? k / inner % dims[axis] : least;
        if (least < dims[axis] && least > most) most = least;
    }
    return most;
}

/* The token from which on results are wrong, of tensors that are computed forward; 0: there is none such. */
static int64_t first_wrong_token(const search *s)
{
    int64_t first = 0;
    for (int i = 0; i < s->of_candidate.written; i++) {
        const assay_memory_tensor *of_candidate = &s->of_candidate.tensors[i];
        const assay_tensor *golden = assay_tensor_set_find(s->trial.golden, of_candidate->spec.path),
                           *scales = assay_results_scales(s->trial.golden, s->trial.profile, of_candidate->spec.path);
        if (of_candidate->spec.role == ASSAY_ROLE_GRADIENT || of_candidate->numbers == NULL || scales == NULL) continue;
        const double unit = assay_dtype_unit_roundoff(assay_profile_type_of(s->trial.profile, &of_candidate->spec));
        const int64_t token = first_wrong(golden, unit, scales->values, of_candidate->numbers);
        if (token > 0 && (first == 0 || token < first)) first = token;
    }
    return first;
}

/* What a search needs. `results` are the golden's tensors. */
static assay_status open_search(assay_context *ctx, search *s, assay_golden *golden, assay_fixture_reader *candidate,
                                const assay_profile *profile, assay_tensor_set *results)
{
    const assay_plan *plan = &golden->plan;
    ctx->threads = assay_plan_threads(ctx, plan);
    MUST(assay_golden_load(ctx, results, plan, golden->reader));
    if (s->given_too != NULL) MUST(add_given(ctx, s->given_too, results));
    s->trial = (assay_trial){.plan = plan, .golden = results, .profile = profile, .false_alarm = s->plain->false_alarm};
    MUST(assay_candidate_results_load(ctx, results, candidate, &s->of_candidate));
    MUST(assay_mutants_of(ctx, plan, first_wrong_token(s), &s->mutants));
    MUST(assay_alloc(ctx, "hypotheses", s->mutants.count + assay_ignored_setting_count, sizeof *s->hypotheses,
                     &s->hypotheses));
    return ASSAY_OK;
}

static assay_status explain(assay_context *ctx, assay_golden *golden, const assay_tensor_set *given_too,
                            assay_fixture_reader *candidate, const assay_profile *profile, bool quiet,
                            assay_report *report)
{
    assay_status status;
    assay_tensor_set results = {0};
    search s = {.plain = report, .before = residual_of(report), .given_too = given_too};
    const assay_plan *plan = &golden->plan;
    TRY(assay_golden_plan(ctx, golden, profile));
    assay_name_factor(plan, report);
    TRY(assay_plan_require_memory(ctx, plan));
    if (is_too_large(plan, assay_mutants, assay_mutant_count)) {
        snprintf(report->explanation, sizeof report->explanation,
                 "not tried, the case is too large: a smaller one tells, or the files of assay power --write");
        goto cleanup;
    }
    TRY(open_search(ctx, &s, golden, candidate, profile, &results));
    TRY(search_all(ctx, &s, quiet));
    say(&s, report);
    if (report->explained_count == 0 && given_too == NULL) {
        const size_t said = strlen(report->explanation);
        TRY(assay_coarser_profiles(ctx, &s.trial, candidate, report->explanation + said,
                                   sizeof report->explanation - said));
    }
cleanup:
    close_search(&s, &results);
    return status;
}

assay_status assay_explains(assay_context *ctx, assay_golden *golden, assay_fixture_reader *candidate,
                            const assay_profile *profile, const assay_mutant *mutant, const assay_report *report,
                            bool *holds)
{
    assay_status status = ASSAY_OK;
    assay_tensor_set results = {0};
    search s = {.plain = report, .before = residual_of(report)};
    const int threads = ctx->threads;
    *holds = false;
    if (report->verdict != ASSAY_FAIL || !is_worth_it(report)) return ASSAY_OK;
    TRY(assay_golden_plan(ctx, golden, profile));
    if (is_too_large(&golden->plan, assay_mutants, assay_mutant_count) || !assay_mutant_is_for(mutant, &golden->plan))
        goto cleanup;
    TRY(open_search(ctx, &s, golden, candidate, profile, &results));
    TRY(try_twice(ctx, &s, mutant));
    *holds = s.hypothesis_count > 0;
cleanup:
    ctx->threads = threads;
    close_search(&s, &results);
    return status;
}

assay_status assay_explain(assay_context *ctx, assay_golden *golden, const assay_tensor_set *given_too,
                           assay_fixture_reader *candidate, const assay_profile *profile, bool quiet,
                           assay_report *report)
{
    if (report->verdict != ASSAY_FAIL || !is_worth_it(report)) return ASSAY_OK;
    const char *kind = assay_fixture_text(candidate, "kind");
    if (kind != NULL && strcmp(kind, "request") == 0) {
        snprintf(report->explanation, sizeof report->explanation, "the candidate is the request, which has no results");
        return ASSAY_OK;
    }
    const int threads = ctx->threads;
    const assay_status status = explain(ctx, golden, given_too, candidate, profile, quiet, report);
    ctx->threads = threads;
    if (status == ASSAY_OK) return ASSAY_OK;
    /* the verdict stands without it */
    snprintf(report->explanation, sizeof report->explanation, "not tried: %.400s", ctx->message);
    ctx->message[0] = '\0';
    return ASSAY_OK;
}
