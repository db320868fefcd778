#include "harness/discrimination.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/inputs.h"
#include "oracle/base/memory.h"

/* What is the same for all mutants of a golden and a profile. */
typedef struct trial {
    const assay_results *golden;
    const assay_profile *profile;
    double false_alarm;
    assay_fixture_reader *reader; /* over the golden */
} trial;

static bool is_scale(const char *path)
{
    return assay_path_in(path, "error_scale");
}

/* A copy of what was given, and of the golden's results too where `results`. */
static assay_status copy_of(assay_context *ctx, const assay_results *golden, bool results, assay_results *copy)
{
    assay_status status;
    const assay_source source = assay_results_source((assay_results *)golden);
    TRY(assay_results_open(ctx, copy, golden->plan, &source));
    for (int i = 0; results && i < golden->plan->spec_count; i++) {
        const assay_kept *from = &golden->items[i];
        assay_kept *to = &copy->items[i];
        const size_t count = (size_t)from->count;
        if (from->indices != NULL) memcpy(to->indices, from->indices, count * sizeof *to->indices);
        if (from->values != NULL) memcpy(to->values, from->values, count * sizeof *to->values);
        to->written = from->count;
    }
cleanup:
    return status;
}

static bool is_required(const char *path)
{
    return assay_path_in(path, "outputs") || assay_path_in(path, "gradients");
}

/* A reader over the tensors that are there. A candidate has those that every backend gives, in the type that it stores:
 * the choice of experts would give away many a mutant, but a backend need not tell it. */
static assay_status open_reader(assay_context *ctx, const assay_results *results, const char *kind,
                                const assay_profile *storage, assay_fixture_reader **reader)
{
    assay_status status;
    void *memory = NULL;
    int count = 0;
    TRY(assay_alloc(ctx, "list of tensors", results->plan->spec_count, sizeof(assay_memory_tensor), &memory));
    assay_memory_tensor *tensors = memory;
    for (int i = 0; i < results->plan->spec_count; i++) {
        const assay_kept *kept = &results->items[i];
        if (kept->written != kept->count || (storage != NULL && !is_required(kept->spec->path))) continue;
        tensors[count] = (assay_memory_tensor){.spec = *kept->spec, .numbers = kept->values, .integers = kept->indices};
        if (storage != NULL && kept->values != NULL) tensors[count].spec.type = storage->storage;
        count++;
    }
    TRY(assay_fixture_of_memory(ctx, kind, count, tensors, reader));
cleanup:
    free(memory);
    return status;
}

static void round_results(const assay_results *candidate, assay_dtype storage)
{
    for (int i = 0; i < candidate->plan->spec_count; i++) {
        const assay_kept *kept = &candidate->items[i];
        if (kept->values == NULL || assay_path_is_given(kept->spec->path) || is_scale(kept->spec->path)) continue;
        assay_dtype_round_many(storage, kept->count, kept->values, kept->values);
    }
}

/* What the mutated case gives, in its own shapes, becomes the candidate's. A backend that never computes a result that
 * is wanted leaves zeros; what is not wanted it does not give. False: another shape is wanted. */
static bool take_results(const assay_results *from, assay_results *to)
{
    for (int i = 0; i < to->plan->spec_count; i++) {
        assay_kept *wanted = &to->items[i];
        const char *path = wanted->spec->path;
        if (assay_path_is_given(path) || is_scale(path)) continue;
        const bool required = is_required(path);
        const assay_kept *found = assay_results_find(from, path);
        const bool fits = found != NULL && assay_shape_equal(&found->spec->shape, &wanted->spec->shape) &&
                          found->written == found->count;
        if (found != NULL && !fits && required) return false;
        wanted->written = fits || required ? wanted->count : 0;
        if (wanted->values != NULL) {
            for (int64_t k = 0; k < wanted->count; k++) wanted->values[k] = fits ? found->values[k] : 0.0;
        } else {
            for (int64_t k = 0; k < wanted->count; k++) wanted->indices[k] = fits ? found->indices[k] : 0;
        }
    }
    return true;
}

/* Given tensors, and the choice of experts where the mutant has one. */
typedef struct mutant_source {
    const assay_results *given;
    bool choice;
} mutant_source;

static bool source_has(void *self, const char *path)
{
    const mutant_source *source = self;
    const bool choice = assay_path_in(path, "routing") && assay_path_ends(path, "selected_experts");
    return (assay_path_is_given(path) || (choice && source->choice)) && assay_results_find(source->given, path) != NULL;
}

static assay_status source_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const mutant_source *source = self;
    const assay_kept *kept = assay_results_find(source->given, path);
    if (kept == NULL || kept->values == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not there", path);
    memcpy(out, kept->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status source_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const mutant_source *source = self;
    const assay_kept *kept = assay_results_find(source->given, path);
    if (kept == NULL || kept->indices == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not there", path);
    memcpy(out, kept->indices + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status run_operation(assay_context *ctx, const trial *t, const assay_mutant *mutant,
                                  const assay_plan *plan, const mutant_source *given, assay_results *results)
{
    assay_context own = *ctx;
    const assay_source in = {
        .self = (void *)given, .has = source_has, .read = source_read, .read_i32 = source_read_i32};
    const assay_sink out = assay_results_sink(results);
    assay_emulation emulation = {.precision = t->profile->precision,
                                 .storage = t->profile->storage,
                                 .multiply = t->profile->storage,
                                 .seed = plan->c->seed};
    if (mutant->worsen != NULL && mutant->worsen(t->profile, &emulation)) {
        own.arithmetic = &assay_arithmetic_emulated;
        own.emulation = &emulation;
    }
    assay_status status = plan->operation->run(&own, plan->c, &in, &out, NULL, 0);
    memcpy(ctx->message, own.message, sizeof ctx->message);
    return status;
}

/* Whether all that the mutated case reads is there in its shape. */
static bool is_fed(const assay_plan *plan, const assay_results *given)
{
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (!assay_path_is_given(spec->path)) continue;
        const assay_kept *found = assay_results_find(given, spec->path);
        if (found == NULL || !assay_shape_equal(&found->spec->shape, &spec->shape)) return false;
    }
    return true;
}

/* The inputs of the mutant into `given`; false: it changes none and should. */
static assay_status prepare_inputs(assay_context *ctx, const trial *t, const assay_mutant *mutant,
                                   const assay_case *other, assay_results *given, bool *applies)
{
    assay_status status = ASSAY_OK;
    const assay_plan *plan = t->golden->plan;
    assay_inputs inputs = {0};
    if (mutant->other_seed) {
        TRY(assay_inputs_open(ctx, &inputs, other, &plan->list, NULL));
        const assay_source drawn = assay_inputs_source(&inputs);
        TRY(assay_results_open(ctx, given, plan, &drawn));
    } else {
        TRY(copy_of(ctx, t->golden, true, given));
    }
    const assay_mutation m = {.c = plan->c, .profile = t->profile, .tensors = given};
    /* beside a changed configuration this is its second half, which may find nothing to do */
    if (mutant->change_inputs != NULL) *applies = mutant->change_inputs(&m) || mutant->configure != NULL;
cleanup:
    assay_inputs_close(&inputs);
    return status;
}

/* Evaluates the mutated case into the candidate. */
static assay_status evaluate(assay_context *ctx, const trial *t, const assay_mutant *mutant, assay_results *candidate,
                             bool *applies)
{
    assay_status status = ASSAY_OK;
    assay_case c = *t->golden->plan->c;
    assay_plan plan = {0};
    assay_results given = {0}, results = {0};
    assay_emulation ignored = {0};
    c.profiles = (assay_text_list){0};
    c.seed += mutant->other_seed ? 1 : 0;
    *applies = (mutant->configure == NULL || mutant->configure(&c)) &&
               (mutant->worsen == NULL || mutant->worsen(t->profile, &ignored));
    if (!*applies) return ASSAY_OK;
    /* what the operation refuses, no backend computes either */
    status = assay_plan_make(ctx, &plan, &c);
    if (status == ASSAY_BAD_INPUT) goto does_not_apply;
    TRY(status);
    TRY(prepare_inputs(ctx, t, mutant, &c, &given, applies));
    if (!*applies || !is_fed(&plan, &given)) goto does_not_apply;
    const assay_source source = assay_results_source(&given);
    TRY(assay_results_open(ctx, &results, &plan, &source));
    const mutant_source in = {.given = &given,
                              .choice = mutant->golden_choice || mutant->change_inputs == assay_mutant_runner_up};
    status = run_operation(ctx, t, mutant, &plan, &in, &results);
    if (status == ASSAY_BAD_INPUT) goto does_not_apply;
    if (status == ASSAY_OK && !take_results(&results, candidate)) goto does_not_apply;
    goto cleanup;
does_not_apply:
    *applies = false;
    ctx->message[0] = '\0';
    status = ASSAY_OK;
cleanup:
    assay_results_free(&results);
    assay_results_free(&given);
    assay_plan_free(&plan);
    return status;
}

/* One unit of the storage type at that value. */
static double unit_at(double value, assay_dtype type)
{
    int exponent = 0;
    frexp(value, &exponent); /* |value| in [2^(exponent - 1), 2^exponent) */
    return fmax(ldexp(2 * assay_dtype_unit_roundoff(type), exponent - 1), assay_dtype_least_subnormal(type));
}

/* The error scales of a result at the trial's profile; NULL: it has none. */
static const double *scales_of(const trial *t, const char *path)
{
    char scale[2 * ASSAY_PATH_SIZE];
    snprintf(scale, sizeof scale, "error_scale/%s/%s", t->profile->precision.name, path);
    const assay_kept *found = assay_results_find(t->golden, scale);
    return found == NULL ? NULL : found->values;
}

/* Whether a result of the candidate differs from the golden's by more than a unit of the storage type, at the value or
 * at its error scale, whichever is larger: of a value that is all error no unit says anything. */
static bool has_effect(const trial *t, const assay_kept *golden, const assay_kept *candidate)
{
    const assay_dtype storage = t->profile->storage;
    const double *scales = scales_of(t, golden->spec->path);
    if (candidate->written != candidate->count) return golden->count > 0;
    for (int64_t i = 0; i < golden->count; i++) {
        if (golden->indices != NULL) {
            if (golden->indices[i] != candidate->indices[i]) return true;
            continue;
        }
        const double expected = golden->values[i], found = candidate->values[i];
        if (expected == found || (isnan(expected) && isnan(found))) continue;
        const double size = fmax(fabs(expected), scales == NULL ? 0.0 : scales[i]);
        if (!isfinite(expected) || !isfinite(found) || fabs(found - expected) > unit_at(size, storage)) return true;
    }
    return false;
}

static double excess_of(const assay_tensor_result *tensor)
{
    if (!tensor->compared || tensor->finding == ASSAY_FINDING_MISSING) return INFINITY;
    return fmax(tensor->worst_element, tensor->worst_row);
}

/* The verdict on the candidate: as a whole, and tensor by tensor. */
static void conclude(const trial *t, const assay_report *report, const assay_results *candidate,
                     assay_mutant_result *result)
{
    const bool each = result->mutant->each;
    result->excess = each ? INFINITY : 0.0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *tensor = &report->tensors[i];
        const assay_kept *golden = assay_results_find(t->golden, tensor->spec.path);
        const bool failed = tensor->verdict == ASSAY_FAIL;
        if (!failed && !(tensor->compared && has_effect(t, golden, assay_results_find(candidate, tensor->spec.path)))) {
            continue;
        }
        const double excess = excess_of(tensor);
        const bool shown = each ? excess <= result->excess : excess > result->excess;
        result->changed++;
        result->found += failed;
        if (!shown) continue;
        result->excess = excess;
        snprintf(result->where, sizeof result->where, "%s", tensor->spec.path);
    }
    const bool detected = each ? result->found == result->changed : report->verdict == ASSAY_FAIL;
    if (result->changed == 0 && !result->mutant->always) {
        result->outcome = ASSAY_MUTANT_NO_EFFECT;
        result->excess = 0.0;
    } else {
        result->outcome = detected && result->changed > 0 ? ASSAY_MUTANT_DETECTED : ASSAY_MUTANT_PASSES;
    }
}

static assay_status judge(assay_context *ctx, const trial *t, const assay_results *candidate, assay_report *report)
{
    assay_status status;
    assay_fixture_reader *reader = NULL;
    TRY(open_reader(ctx, candidate, "candidate", t->profile, &reader));
    TRY(assay_compare(ctx, t->reader, reader, t->profile, t->false_alarm, report));
cleanup:
    assay_fixture_close(reader);
    return status;
}

static assay_status try_mutant(assay_context *ctx, const trial *t, const assay_mutant *mutant,
                               assay_mutant_result *result)
{
    assay_status status = ASSAY_OK;
    const assay_plan *plan = t->golden->plan;
    assay_results candidate = {0};
    assay_report report = {0};
    bool applies = assay_mutant_is_for(mutant, plan->c->op);
    *result = (assay_mutant_result){.mutant = mutant, .required = assay_mutant_is_required(mutant, plan->c->op)};
    if (!applies) return ASSAY_OK;
    TRY(copy_of(ctx, t->golden, true, &candidate));
    if (mutant->change_results != NULL) {
        const assay_mutation m = {.c = plan->c, .profile = t->profile, .tensors = &candidate};
        applies = mutant->change_results(&m);
    } else {
        TRY(evaluate(ctx, t, mutant, &candidate, &applies));
    }
    if (!applies) goto cleanup;
    round_results(&candidate, t->profile->storage);
    TRY(judge(ctx, t, &candidate, &report));
    conclude(t, &report, &candidate, result);
cleanup:
    assay_report_free(&report);
    assay_results_free(&candidate);
    return status;
}

/* A golden whose own results do not pass would call every mutant detected. */
static assay_status check_control(assay_context *ctx, const trial *t)
{
    assay_status status;
    assay_results candidate = {0};
    assay_report report = {0};
    TRY(copy_of(ctx, t->golden, true, &candidate));
    round_results(&candidate, t->profile->storage);
    TRY(judge(ctx, t, &candidate, &report));
    if (report.verdict == ASSAY_FAIL || report.verdict == ASSAY_NOT_COMPARABLE) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "its own results, rounded to profile %s, are %s: %.200s",
                            t->profile->precision.name, assay_verdict_name(report.verdict), report.message);
    }
cleanup:
    assay_report_free(&report);
    assay_results_free(&candidate);
    return status;
}

static void tally(assay_discrimination *found)
{
    assay_power *power = &found->power;
    power->stated = true;
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant_result *r = &found->items[i];
        power->detected += r->outcome == ASSAY_MUTANT_DETECTED;
        power->effective += r->outcome == ASSAY_MUTANT_DETECTED || r->outcome == ASSAY_MUTANT_PASSES;
        if (r->outcome == ASSAY_MUTANT_PASSES && r->required && power->vacuous[0] == '\0') {
            snprintf(power->vacuous, sizeof power->vacuous, "%s", r->mutant->name);
        }
    }
}

assay_status assay_discriminate(assay_context *ctx, const assay_results *golden, const assay_profile *profile,
                                double false_alarm, assay_discrimination *found)
{
    assay_status status;
    void *items = NULL;
    trial t = {.golden = golden, .profile = profile, .false_alarm = false_alarm};
    *found = (assay_discrimination){.profile = profile};
    TRY(open_reader(ctx, golden, "golden", NULL, &t.reader));
    TRY(check_control(ctx, &t));
    TRY(assay_alloc(ctx, "verdicts on mutants", assay_mutant_count, sizeof *found->items, &items));
    found->items = items;
    for (int i = 0; i < assay_mutant_count; i++) TRY(try_mutant(ctx, &t, &assay_mutants[i], &found->items[i]));
    tally(found);
cleanup:
    assay_fixture_close(t.reader);
    if (status != ASSAY_OK) assay_discrimination_free(found);
    return status;
}

void assay_discrimination_free(assay_discrimination *found)
{
    free(found->items);
    *found = (assay_discrimination){0};
}

assay_status assay_results_load(assay_context *ctx, assay_results *results, const assay_plan *plan,
                                assay_fixture_reader *golden)
{
    assay_status status;
    const assay_source given = assay_golden_given(golden);
    TRY(assay_golden_check_layout(ctx, plan, golden));
    TRY(assay_results_open(ctx, results, plan, &given));
    for (int i = 0; i < plan->spec_count; i++) {
        assay_kept *kept = &results->items[i];
        if (assay_path_is_given(kept->spec->path)) continue;
        TRY(kept->indices != NULL ? assay_fixture_read_i32(ctx, golden, kept->spec->path, 0, kept->count, kept->indices)
                                  : assay_fixture_read(ctx, golden, kept->spec->path, 0, kept->count, kept->values));
        kept->written = kept->count;
    }
cleanup:
    return status;
}

assay_status assay_discrimination_spec(assay_context *ctx, const char *profile, assay_tensor_spec *spec)
{
    *spec = (assay_tensor_spec){.type = ASSAY_FLOAT64,
                                .shape = assay_shape_of(2, (int64_t)assay_mutant_count, (int64_t)ASSAY_POWER_FIELDS),
                                .labels = {"mutant", "field"}};
    const int length = snprintf(spec->path, sizeof spec->path, "discrimination/%s", profile);
    if (length >= (int)sizeof spec->path) return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", profile);
    return ASSAY_OK;
}

void assay_discrimination_fields(const assay_discrimination *found, double *fields)
{
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant_result *r = &found->items[i];
        double *row = fields + (int64_t)i * ASSAY_POWER_FIELDS;
        row[ASSAY_POWER_OUTCOME] = (double)r->outcome;
        row[ASSAY_POWER_REQUIRED] = r->required ? 1.0 : 0.0;
        row[ASSAY_POWER_CHANGED] = (double)r->changed;
        row[ASSAY_POWER_FOUND] = (double)r->found;
        row[ASSAY_POWER_EXCESS] = r->excess;
    }
}
