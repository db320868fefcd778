/* Mutants by a worse arithmetic: every backend draws their errors anew, so that not the errors are compared but their
 * size, in each tensor. */
#include <math.h>
#include <stdio.h>

#include "harness/explain/explain_internal.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/scales/ensemble.h"

enum { DRAWS = 8 };

/* The candidate's RMS error over that of the mutant, in all tensors together and in each, whose errors may have one
 * cause: then the tensor shows a single Gaussian number. The emulated arithmetic is an envelope: plain rounding has 0.7
 * of its error. */
#define LEAST 0.5
#define MOST 1.5
#define LEAST_OF_TENSOR 0.1
#define MOST_OF_TENSOR 3.0

/* Of what is usual in a tensor for a row of that size, the least that a row's deviation may be. */
#define USUAL 0.5

/* The worst element and row over their thresholds, which are as uncertain as deviations of so few draws. */
#define MOST_EXCESS 2.0

/* Adds the squares of one draw's errors to what stands in the place of the error scales. */
static assay_status add_draw(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant, uint64_t seed,
                             assay_tensor_set *sums, bool *applies)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set drawn = {0};
    const assay_emulation emulation = {.seed = seed};
    assay_context own = *ctx;
    own.emulation = &emulation;
    const assay_status status = assay_mutant_make(&own, t, mutant, &drawn, applies);
    snprintf(ctx->message, sizeof ctx->message, "%s", own.message);
    MUST(status);
    for (int i = 0; *applies && i < sums->count; i++) {
        const assay_tensor *golden = &t->golden->items[i], *found = &drawn.items[i];
        const assay_tensor *squares = assay_results_scales(sums, t->profile, golden->spec.path);
        for (int64_t k = 0; squares != NULL && k < golden->count; k++) {
            const double error = found->values[k] - golden->values[k];
            squares->values[k] = (seed == 1 ? 0.0 : squares->values[k]) + error * error;
        }
    }
    return status;
}

static assay_status draw_scales(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                assay_tensor_set *expected, bool *applies)
{
    *applies = true;
    for (uint64_t seed = 1; *applies && seed <= DRAWS; seed++) MUST(add_draw(ctx, t, mutant, seed, expected, applies));
    for (int i = 0; *applies && i < expected->count; i++) {
        const assay_tensor *scales = assay_results_scales(expected, t->profile, expected->items[i].spec.path);
        if (scales == NULL) continue;
        const double *correct = assay_results_scales(t->golden, t->profile, expected->items[i].spec.path)->values;
        MUST(assay_ensemble_smooth(ctx, &scales->spec.shape, DRAWS, scales->values));
        for (int64_t k = 0; k < scales->count; k++)
            scales->values[k] = isfinite(scales->values[k]) ? fmax(scales->values[k], correct[k]) : correct[k];
        /* a coarse rounding that may go either way goes one way in all draws where it is nearly sure */
        const assay_tensor *golden = &t->golden->items[i];
        const double relative = assay_rms(scales->values, golden->count) / assay_rms(golden->values, golden->count);
        assay_raise_to_usual(golden, USUAL * relative, scales->values);
        assay_dtype_round_many(ASSAY_FLOAT32, scales->count, scales->values, scales->values);
    }
    return ASSAY_OK;
}

static bool is_within(const assay_tensor_result *r)
{
    const bool by_values = r->finding == ASSAY_FINDING_ELEMENTS || r->finding == ASSAY_FINDING_ROWS;
    if (r->verdict == ASSAY_NOT_COMPARABLE || (r->verdict == ASSAY_FAIL && !by_values)) return false;
    return r->worst_element <= MOST_EXCESS && r->worst_row <= MOST_EXCESS;
}

/* Whether the arithmetic makes the tensor's errors larger at all; where it does not they may be none. */
static bool is_worse(const assay_trial *t, const assay_tensor_set *expected, const char *path)
{
    const assay_tensor *scales = assay_results_scales(expected, t->profile, path),
                       *correct = assay_results_scales(t->golden, t->profile, path);
    if (scales == NULL || correct == NULL) return false;
    return assay_rms(scales->values, scales->count) > 2.0 * assay_rms(correct->values, correct->count);
}

static bool is_as_large(const assay_trial *t, const assay_tensor_set *expected, const assay_report *report,
                        double *ratio)
{
    double squares = 0.0, elements = 0.0;
    bool same = report->unknown_count == 0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        same &= is_within(r);
        if (!r->compared || r->spec.type == ASSAY_INT32 || r->exact) continue;
        same &= r->rms_ratio <= MOST_OF_TENSOR;
        same &= r->rms_ratio >= LEAST_OF_TENSOR || !is_worse(t, expected, r->spec.path);
        squares += r->rms_ratio * r->rms_ratio * (double)r->elements;
        elements += (double)r->elements;
    }
    *ratio = elements > 0.0 ? sqrt(squares / elements) : 0.0;
    return same && *ratio >= LEAST && *ratio <= MOST;
}

assay_status assay_noise_hold(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                              const assay_candidate_results *of_candidate, bool *holds, double *ratio)
{
    bool applies = false;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set expected = {0};
    OWNED_BY(assay_report_free) assay_report report = {0};
    *holds = false;
    if (of_candidate->count > of_candidate->written) return ASSAY_OK; /* no arithmetic leaves a gradient out */
    MUST(assay_tensor_set_copy(ctx, t->golden, &expected));
    MUST(draw_scales(ctx, t, mutant, &expected, &applies));
    if (!applies) return ASSAY_OK;
    assay_drop_null(&expected);
    MUST(assay_expected_compare(ctx, t, &expected, of_candidate, &report));
    *holds = is_as_large(t, &expected, &report, ratio);
    return ASSAY_OK;
}
