/* Whether a candidate is what a mutant would give. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "harness/explain/explain_internal.h"
#include "oracle/base/memory.h"

/* The RMS of error / deviation of a correct candidate is some tenths, in one tensor, whose errors may have one cause,
 * now and then more. A hypothesis that leaves no more than this explains it. */
#define EXPLAINED 2.0
#define EXPLAINED_TENSOR 3.0

static void find_nan(int64_t count, double *values)
{
    for (int64_t i = 0; i < count; i++) {
        if (isnan(values[i])) values[i] = INFINITY;
    }
}

static assay_status load_tensor(assay_context *ctx, assay_fixture_reader *candidate, const assay_tensor_spec *spec,
                                assay_given_results *given)
{
    assay_status status;
    const int64_t count = assay_shape_count(&spec->shape);
    assay_memory_tensor *to = &given->tensors[given->count++];
    *to = (assay_memory_tensor){.spec = *spec};
    if (spec->type == ASSAY_INT32) {
        int32_t *integers = NULL;
        TRY(assay_alloc_i32(ctx, spec->path, count, &integers));
        to->integers = integers;
        TRY(assay_fixture_read_i32(ctx, candidate, spec->path, 0, count, integers));
    } else {
        double *numbers = NULL;
        TRY(assay_alloc_f64(ctx, spec->path, count, &numbers));
        to->numbers = numbers;
        TRY(assay_fixture_read(ctx, candidate, spec->path, 0, count, numbers));
        find_nan(count, numbers);
    }
cleanup:
    return status;
}

assay_status assay_given_results_load(assay_context *ctx, const assay_tensor_set *golden,
                                      assay_fixture_reader *candidate, assay_given_results *given)
{
    assay_status status;
    void *tensors = NULL;
    TRY(assay_alloc(ctx, "list of tensors", golden->count, sizeof *given->tensors, &tensors));
    given->tensors = tensors;
    for (int i = 0; i < golden->count; i++) {
        const assay_tensor_spec *spec = &golden->items[i].spec, *found = assay_fixture_find(candidate, spec->path);
        if (found == NULL || assay_role_is_given(spec->role) || spec->role == ASSAY_ROLE_ERROR_SCALE) continue;
        TRY(load_tensor(ctx, candidate, found, given));
    }
cleanup:
    return status;
}

void assay_given_results_free(assay_given_results *given)
{
    for (int i = 0; i < given->count; i++) {
        free((void *)given->tensors[i].numbers);
        free((void *)given->tensors[i].integers);
    }
    free(given->tensors);
    *given = (assay_given_results){0};
}

/* Of optional results those that the mutant has too. */
static assay_status candidate_reader(assay_context *ctx, const assay_given_results *given,
                                     const assay_tensor_set *results, assay_fixture_reader **reader)
{
    assay_status status;
    void *memory = NULL;
    int count = 0;
    TRY(assay_alloc(ctx, "list of tensors", given->count, sizeof(assay_memory_tensor), &memory));
    assay_memory_tensor *tensors = memory;
    for (int i = 0; i < given->count; i++) {
        const assay_tensor *tensor = assay_tensor_set_find(results, given->tensors[i].spec.path);
        const bool known = tensor != NULL && assay_tensor_is_complete(tensor);
        if (known || assay_role_is_required(given->tensors[i].spec.role)) tensors[count++] = given->tensors[i];
    }
    TRY(assay_fixture_of_memory(ctx, "candidate", count, tensors, reader));
cleanup:
    free(memory);
    return status;
}

static const assay_tensor_result *result_of(const assay_report *report, const char *path)
{
    for (int i = 0; i < report->count; i++) {
        if (strcmp(report->tensors[i].spec.path, path) == 0) return &report->tensors[i];
    }
    return NULL;
}

static bool is_explained(const assay_tensor_result *r)
{
    return r->verdict != ASSAY_FAIL && r->verdict != ASSAY_NOT_COMPARABLE && !(r->rms_ratio > EXPLAINED_TENSOR);
}

/* Whether all numbers of the candidate's tensor are of that type. */
static bool lies_on_grid(const assay_given_results *given, const char *path, assay_dtype type)
{
    for (int i = 0; i < given->count; i++) {
        const assay_memory_tensor *tensor = &given->tensors[i];
        if (strcmp(tensor->spec.path, path) != 0 || tensor->numbers == NULL) continue;
        const int64_t count = assay_shape_count(&tensor->spec.shape);
        for (int64_t k = 0; k < count; k++) {
            const double number = tensor->numbers[k];
            if (isfinite(number) && assay_dtype_round(type, number, false) != number) return false;
        }
    }
    return true;
}

bool assay_tensor_stays(const assay_mutant *mutant, const assay_tensor_result *before, const assay_tensor_result *after)
{
    if (!mutant->each || before == NULL || before->verdict == ASSAY_FAIL) return false;
    return !is_explained(after) || before->rms_ratio < after->rms_ratio;
}

/* Of a mutant that may be in some tensors alone, each tensor is the mutant's or the golden's. */
static bool conclude(const assay_trial *t, const assay_mutant *mutant, const assay_given_results *given,
                     const assay_report *plain, const assay_report *report, double *residual)
{
    double squares = 0.0, elements = 0.0;
    bool holds = report->unknown_count == 0;
    const bool coarser = mutant->results.edit == assay_edit_coarser;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i], *before = result_of(plain, r->spec.path);
        if (assay_tensor_stays(mutant, before, r)) r = before;
        const assay_dtype type = assay_coarser_type(assay_profile_type_of(t->profile, &r->spec));
        holds &= is_explained(r) && (!coarser || r == before || lies_on_grid(given, r->spec.path, type));
        if (!r->compared || r->spec.type == ASSAY_INT32) continue;
        squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
        elements += (double)r->elements;
    }
    *residual = elements > 0.0 ? sqrt(squares / elements) : 0.0;
    return holds && *residual <= EXPLAINED;
}

assay_status assay_expected_compare(assay_context *ctx, const assay_trial *t, const assay_tensor_set *expected,
                                    const assay_given_results *given, assay_report *report)
{
    assay_status status;
    assay_fixture_reader *golden = NULL, *candidate = NULL;
    TRY(assay_trial_reader(ctx, expected, "golden", NULL, &golden));
    TRY(candidate_reader(ctx, given, expected, &candidate));
    TRY(assay_compare_undiagnosed(ctx, golden, candidate, t->profile, t->false_alarm, assay_plan_order(t->plan),
                                  report));
cleanup:
    assay_fixture_close(golden);
    assay_fixture_close(candidate);
    return status;
}

assay_status assay_hypothesis_hold(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   const assay_given_results *given, const assay_report *plain,
                                   assay_tensor_set *results, bool *holds, double *residual)
{
    assay_status status = ASSAY_OK;
    assay_report report = {0};
    *holds = false;
    if (!t->scales) TRY(assay_mutant_expect(ctx, t, mutant, results));
    if (mutant->exchanges_tokens) assay_drop_null(results);
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *tensor = &results->items[i];
        const bool result = !assay_role_is_given(tensor->spec.role) && tensor->spec.role != ASSAY_ROLE_ERROR_SCALE;
        if (result && tensor->values != NULL) find_nan(tensor->count, tensor->values);
    }
    TRY(assay_expected_compare(ctx, t, results, given, &report));
    *holds = conclude(t, mutant, given, plain, &report, residual);
    if (*holds) TRY(assay_beats_golden(ctx, t, mutant, given, plain, results, &report, holds));
cleanup:
    assay_report_free(&report);
    return status;
}
