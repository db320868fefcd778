#include "harness/fixes/kinks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/thresholds.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"

bool assay_has_kinks(const assay_plan *plan)
{
    static const char *const steps[] = {"abs", "relu", "clamp", "maximum", "minimum", "max"};
    const assay_program *p = plan->c == NULL ? NULL : plan->c->program; /* of no case that can be planned */
    bool has = false;
    for (int i = 1; p != NULL && i < p->node_count; i++)
        for (size_t k = 0; k < sizeof steps / sizeof *steps && p->nodes[i].step != NULL; k++)
            has |= strcmp(p->nodes[i].step->name, steps[k]) == 0;
    return has;
}

/* Gradients that the candidate gives, with the slope at one end on every kink. */
static assay_status run(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                        const assay_fixture_reader *candidate, double by, assay_tensor_set *gradients)
{
    const assay_step_change change = {.how = ASSAY_STEP_KINKS, .by = by};
    const assay_sink sink = assay_tensor_set_sink(gradients);
    assay_context own = *ctx;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (spec->role != ASSAY_ROLE_GRADIENT || assay_fixture_find(candidate, spec->path) == NULL) continue;
        MUST(assay_tensor_set_add(ctx, gradients, spec, NULL));
    }
    own.change = &change;
    const assay_status status = assay_operation_run(&own, plan->operation, plan->c, in, &sink);
    memcpy(ctx->message, own.message, sizeof ctx->message);
    return status == ASSAY_OK ? assay_tensor_set_require_complete(ctx, gradients) : status;
}

static double rms_of(int64_t count, const double *values)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i] * values[i];
    return count == 0 ? 0 : sqrt(sum / (double)count);
}

/* What a correct kernel may be off by where it takes another slope: the golden's scale there is of the golden's, perhaps of a 0. */
static assay_status allowance(assay_context *ctx, const assay_profile *profile, double deviations,
                              assay_fixture_reader *golden, const assay_tensor *low, double *allowed)
{
    char path[ASSAY_PATH_SIZE];
    assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile->precision.name, low->spec.path, path);
    for (int64_t i = 0; i < low->count; i++) allowed[i] = 0;
    if (assay_fixture_find(golden, path) == NULL) return ASSAY_OK;
    MUST(assay_fixture_read(ctx, golden, path, 0, low->count, allowed));
    const double typical = rms_of(low->count, allowed);
    for (int64_t i = 0; i < low->count; i++) allowed[i] = deviations * fmax(allowed[i], typical);
    return ASSAY_OK;
}

static assay_status take_tensor(assay_context *ctx, const assay_profile *profile, double deviations,
                                const assay_tensor *low, const assay_tensor *high, assay_fixture_reader *golden,
                                assay_fixture_reader *candidate, assay_kinks *kinks)
{
    const char *path = low->spec.path;
    const assay_tensor_spec *spec = assay_fixture_find(candidate, path);
    const int64_t count = low->count, before = kinks->count;
    OWNED double *right = NULL;
    OWNED double *allowed = NULL;
    OWNED double *own = NULL;
    assay_tensor *kept;
    if (memcmp(low->values, high->values, (size_t)count * sizeof(double)) == 0) return ASSAY_OK;
    if (assay_fixture_find(golden, path) == NULL || !assay_shape_equal(&spec->shape, &low->spec.shape)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, path, count, &right));
    MUST(assay_alloc_f64(ctx, path, count, &own));
    MUST(assay_alloc_f64(ctx, "error scale", count, &allowed));
    MUST(assay_fixture_read(ctx, golden, path, 0, count, right));
    MUST(assay_fixture_read(ctx, candidate, path, 0, count, own));
    MUST(allowance(ctx, profile, deviations, golden, low, allowed));
    MUST(assay_tensor_set_add(ctx, &kinks->adopted, spec, &kept));
    memcpy(kept->values, own, (size_t)count * sizeof *own);
    for (int64_t i = 0; i < count; i++) {
        const double least = fmin(right[i], fmin(low->values[i], high->values[i])),
                     most = fmax(right[i], fmax(low->values[i], high->values[i]));
        if (least == most || !(own[i] >= least - allowed[i] && own[i] <= most + allowed[i])) continue;
        if (kinks->count == 0) snprintf(kinks->path, sizeof kinks->path, "%s", path);
        if (kinks->count++ == 0) kinks->element = i;
        own[i] = assay_dtype_round(spec->type, right[i], false);
    }
    if (kinks->count == before) return ASSAY_OK;
    double *taken = own;
    own = NULL;
    return assay_fixture_replace(ctx, candidate, path, taken, NULL);
}

assay_status assay_kinks_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                               double false_alarm, const assay_source *in, assay_fixture_reader *golden,
                               assay_fixture_reader *candidate, assay_kinks *kinks)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set low = {0}, high = {0};
    int64_t elements = 0;
    MUST(run(ctx, plan, in, candidate, 0, &low));
    MUST(run(ctx, plan, in, candidate, 1, &high));
    for (int i = 0; i < low.count; i++) elements += low.items[i].count;
    const double deviations = assay_thresholds_of(false_alarm, elements, 0, 0).element;
    for (int i = 0; i < low.count; i++)
        MUST(take_tensor(ctx, profile, deviations, &low.items[i], &high.items[i], golden, candidate, kinks));
    return ASSAY_OK;
}

assay_status assay_kinks_put_back(assay_context *ctx, assay_fixture_reader *candidate, const assay_kinks *kinks)
{
    for (int i = 0; i < kinks->adopted.count; i++) {
        const assay_tensor *tensor = &kinks->adopted.items[i];
        double *own = NULL;
        MUST(assay_alloc_f64(ctx, tensor->spec.path, tensor->count, &own));
        memcpy(own, tensor->values, (size_t)tensor->count * sizeof *own);
        MUST(assay_fixture_replace(ctx, candidate, tensor->spec.path, own, NULL));
    }
    return ASSAY_OK;
}

void assay_kinks_note(const assay_kinks *kinks, assay_report *report)
{
    char place[ASSAY_INDEX_TEXT];
    if (kinks->count == 0) return;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_spec *spec = &report->tensors[i].spec;
        if (strcmp(spec->path, kinks->path) != 0) continue;
        assay_element_text(&spec->shape, kinks->element, place);
        snprintf(report->kinks, sizeof report->kinks,
                 "%" PRId64
                 " elements of gradients are on a kink, the first %.90s%.60s; other slopes there are as right",
                 kinks->count, kinks->path, place);
    }
}

void assay_kinks_free(assay_kinks *kinks)
{
    assay_tensor_set_free(&kinks->adopted);
    *kinks = (assay_kinks){0};
}
