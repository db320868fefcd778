#include "harness/scales/hidden_deviation.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/scales/ensemble.h"
#include "harness/scales/hidden.h"
#include "oracle/ops/quantised_deviation.h"

enum { MEMBERS = 16 };

static bool is_staged(const assay_source *in, const char *path)
{
    char staged[ASSAY_PATH_SIZE];
    assay_staged_path(path, staged);
    return in->has(in->self, staged);
}

/* One run for h alone. */
static assay_status run_for(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                            const assay_emulation *emulation, assay_tensor_set *h)
{
    assay_rounded rounded = {{in, NULL}, plan->c, NULL};
    const assay_source source = assay_rounded_source(&rounded);
    const assay_sink sink = assay_tensor_set_sink(h);
    assay_context own = *ctx;
    own.emulation = emulation;
    if (emulation != NULL) own.arithmetic = &assay_arithmetic_emulated;
    assay_tensor_set_rewind(h);
    assay_status status = assay_operation_run(&own, plan->operation, plan->c, &source, &sink);
    if (status == ASSAY_OK) status = assay_tensor_set_require_complete(&own, h);
    memcpy(ctx->message, own.message, sizeof ctx->message);
    return status;
}

/* Of a number that the candidate stored: it may have been finer for the kernel that quantised it. */
static void of_storage(const assay_profile *profile, const assay_tensor *h, double *deviation)
{
    const double unit = assay_dtype_unit_roundoff(profile->storage);
    const double least = 0.5 * assay_dtype_least_subnormal(profile->storage);
    for (int64_t i = 0; i < h->count; i++) deviation[i] = ASSAY_ROUNDING_RMS * fmax(unit * fabs(h->values[i]), least);
}

/* h follows from gate and up, and all three are stored. A number near the grid seldom goes to its other neighbour: of few runs
 * perhaps in none, and a row's largest, which decides the scale, has no neighbours of its size to make up for that. */
static void of_three_stores(const assay_profile *profile, const assay_tensor *h, double *deviation)
{
    const double unit = sqrt(3) * ASSAY_ROUNDING_RMS * assay_dtype_unit_roundoff(profile->storage);
    for (int64_t i = 0; i < h->count; i++) deviation[i] = fmax(deviation[i], unit * fabs(h->values[i]));
}

static assay_status add_deviation(assay_context *ctx, const assay_tensor_spec *h, assay_tensor_set *deviation,
                                  assay_tensor **added)
{
    assay_tensor_spec spec = *h;
    assay_deviation_path(h->path, spec.path);
    MUST(assay_tensor_set_add(ctx, deviation, &spec, added));
    (*added)->written = (*added)->count;
    memset((*added)->values, 0, (size_t)(*added)->count * sizeof *(*added)->values);
    return ASSAY_OK;
}

static void add_squares(const assay_tensor *golden, const assay_tensor *member, assay_tensor *deviation)
{
    for (int64_t i = 0; i < golden->count; i++) {
        const double error = member->values[i] - golden->values[i];
        deviation->values[i] += error * error;
    }
}

static assay_status draw(assay_context *ctx, const assay_plan *plan, const assay_precision *precision,
                         const assay_source *in, const assay_tensor_set *golden, assay_tensor_set *deviation)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set member = {0};
    for (int i = 0; i < golden->count; i++) MUST(assay_tensor_set_add(ctx, &member, &golden->items[i].spec, NULL));
    for (int number = 0; number < MEMBERS; number++) {
        const assay_emulation emulation = assay_ensemble_member(plan, precision, "hidden", number);
        MUST(run_for(ctx, plan, in, &emulation, &member));
        for (int i = 0; i < golden->count; i++) add_squares(&golden->items[i], &member.items[i], &deviation->items[i]);
    }
    for (int i = 0; i < deviation->count; i++) {
        assay_tensor *s = &deviation->items[i];
        MUST(assay_ensemble_smooth(ctx, &s->spec.shape, MEMBERS, s->values));
    }
    return ASSAY_OK;
}

/* Of each h that is staged, its storage's; there its drawn spread has nothing to say. */
static assay_status take_staged(assay_context *ctx, const assay_profile *profile, const assay_source *in,
                                assay_tensor *h, assay_tensor *deviation)
{
    char staged[ASSAY_PATH_SIZE];
    if (!is_staged(in, h->spec.path)) return ASSAY_OK;
    assay_staged_path(h->spec.path, staged);
    const assay_status status = in->read(ctx, in->self, staged, 0, h->count, h->values);
    if (status == ASSAY_OK) of_storage(profile, h, deviation->values);
    return status;
}

assay_status assay_hidden_deviation(assay_context *ctx, const assay_plan *plan, const assay_precision *precision,
                                    const assay_source *in, assay_tensor_set *h, assay_tensor_set *deviation)
{
    assay_hidden hidden[ASSAY_MOST_HIDDEN];
    OWNED_BY(assay_tensor_set_free) assay_tensor_set own = {0};
    assay_tensor_set *golden = h != NULL ? h : &own;
    const int count = assay_intermediate_list(&plan->list, hidden);
    const assay_profile *profile = assay_plan_profile(plan, precision->name);
    for (int i = 0; i < count; i++) {
        assay_tensor *added = NULL;
        const bool coded = hidden[i].codes != NULL;
        if (h == NULL && coded && is_staged(in, hidden[i].codes->path) && is_staged(in, hidden[i].scale->path))
            continue;
        MUST(assay_tensor_set_add(ctx, golden, hidden[i].h, NULL));
        MUST(add_deviation(ctx, hidden[i].h, deviation, &added));
    }
    if (golden->count == 0) return ASSAY_OK;
    MUST(run_for(ctx, plan, in, NULL, golden));
    if (!assay_plan_is_exact(plan)) MUST(draw(ctx, plan, precision, in, golden, deviation));
    for (int i = 0; h != NULL && !assay_plan_is_exact(plan) && i < count; i++)
        if (hidden[i].codes != NULL) of_three_stores(profile, &h->items[i], deviation->items[i].values);
    for (int i = 0; i < golden->count; i++)
        MUST(take_staged(ctx, profile, in, &golden->items[i], &deviation->items[i]));
    return ASSAY_OK;
}
