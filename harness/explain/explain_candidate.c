/* What a candidate gives, held against expected results. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/compare.h"
#include "harness/explain/explain_internal.h"
#include "harness/plan/written_codes.h"
#include "oracle/base/memory.h"

/* RMS of error / deviation in one tensor of a correct candidate, whose errors may have one cause. */
#define EXPLAINED_TENSOR 3.0

void assay_nan_to_infinity(int64_t count, double *values)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(values[i])) values[i] = INFINITY;
}

static assay_status load_tensor(assay_context *ctx, assay_fixture_reader *candidate, const assay_tensor_spec *spec,
                                assay_candidate_results *of_candidate)
{
    const int64_t count = assay_shape_count(&spec->shape);
    assay_memory_tensor *to = &of_candidate->tensors[of_candidate->count++];
    *to = (assay_memory_tensor){.spec = *spec};
    if (spec->type == ASSAY_INT32) {
        int32_t *integers = NULL;
        MUST(assay_alloc_i32(ctx, spec->path, count, &integers));
        to->integers = integers;
        MUST(assay_fixture_read_i32(ctx, candidate, spec->path, 0, count, integers));
    } else {
        double *numbers = NULL;
        MUST(assay_alloc_f64(ctx, spec->path, count, &numbers));
        to->numbers = numbers;
        MUST(assay_fixture_read(ctx, candidate, spec->path, 0, count, numbers));
        assay_nan_to_infinity(count, numbers);
    }
    return ASSAY_OK;
}

/* A gradient that is never given: frameworks have none where nothing flows back. */
static assay_status add_zeros(assay_context *ctx, const assay_tensor_spec *spec, assay_candidate_results *of_candidate)
{
    double *zeros = NULL;
    const assay_status status = assay_alloc_zeros(ctx, spec->path, assay_shape_count(&spec->shape), &zeros);
    of_candidate->tensors[of_candidate->count++] = (assay_memory_tensor){.spec = *spec, .numbers = zeros};
    return status;
}

assay_status assay_candidate_results_load(assay_context *ctx, const assay_tensor_set *golden,
                                          assay_fixture_reader *candidate, assay_candidate_results *of_candidate)
{
    bool backward = false;
    MUST(assay_alloc(ctx, "list of tensors", golden->count, sizeof *of_candidate->tensors, &of_candidate->tensors));
    for (int i = 0; i < golden->count; i++) {
        const assay_tensor_spec *spec = &golden->items[i].spec, *found = assay_fixture_find(candidate, spec->path);
        if (found == NULL || assay_role_is_input(spec->role) || spec->role == ASSAY_ROLE_ERROR_SCALE) continue;
        MUST(load_tensor(ctx, candidate, found, of_candidate));
        backward |= spec->role == ASSAY_ROLE_GRADIENT;
    }
    of_candidate->written = of_candidate->count;
    for (int i = 0; backward && i < golden->count; i++) {
        const assay_tensor_spec *spec = &golden->items[i].spec;
        const bool lacks = assay_fixture_find(candidate, spec->path) == NULL;
        if (lacks && spec->role == ASSAY_ROLE_GRADIENT) MUST(add_zeros(ctx, spec, of_candidate));
    }
    return ASSAY_OK;
}

void assay_candidate_results_free(assay_candidate_results *of_candidate)
{
    for (int i = 0; i < of_candidate->count; i++) {
        free((void *)of_candidate->tensors[i].numbers);
        free((void *)of_candidate->tensors[i].integers);
    }
    free(of_candidate->tensors);
    *of_candidate = (assay_candidate_results){0};
}

/* Of optional results, and of gradients that are not given, those that the mutant has too. */
static assay_status candidate_reader(assay_context *ctx, const assay_candidate_results *of_candidate,
                                     const assay_tensor_set *results, assay_fixture_reader **reader)
{
    OWNED assay_memory_tensor *tensors = NULL;
    int count = 0;
    MUST(assay_alloc(ctx, "list of tensors", of_candidate->count, sizeof(assay_memory_tensor), &tensors));
    for (int i = 0; i < of_candidate->count; i++) {
        const assay_tensor *tensor = assay_tensor_set_find(results, of_candidate->tensors[i].spec.path);
        const bool known = tensor != NULL && assay_tensor_is_complete(tensor);
        const bool required = i < of_candidate->written && assay_role_is_required(of_candidate->tensors[i].spec.role);
        if (known || required) tensors[count++] = of_candidate->tensors[i];
    }
    return assay_fixture_of_memory(ctx, "candidate", count, tensors, reader);
}

assay_status assay_expected_compare(assay_context *ctx, const assay_trial *t, const assay_tensor_set *expected,
                                    const assay_candidate_results *of_candidate, assay_report *report)
{
    OWNED_BY(assay_fixture_release) assay_fixture_reader *golden = NULL, *candidate = NULL;
    OWNED_BY(assay_written_codes_free) assay_written_codes codes = {0};
    MUST(assay_trial_reader(ctx, expected, "golden", NULL, &golden));
    MUST(candidate_reader(ctx, of_candidate, expected, &candidate));
    MUST(assay_written_codes_adopt(ctx, t->plan, t->profile, t->false_alarm, false, golden, candidate, &codes));
    return assay_compare_undiagnosed(ctx, golden, candidate, t->profile, t->false_alarm, assay_plan_order(t->plan),
                                     report);
}

bool assay_tensor_is_explained(const assay_tensor_result *r)
{
    return r->verdict != ASSAY_FAIL && r->verdict != ASSAY_NOT_COMPARABLE && !(r->rms_ratio > EXPLAINED_TENSOR);
}

bool assay_tensor_stays(const assay_mutant *mutant, const assay_tensor_result *before, const assay_tensor_result *after)
{
    if (!mutant->each || before == NULL || before->verdict == ASSAY_FAIL) return false;
    return !assay_tensor_is_explained(after) || before->rms_ratio < after->rms_ratio;
}
