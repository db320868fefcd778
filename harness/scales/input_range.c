/* Whether inputs lie beyond the range of a type whose grid is no coarser (bfloat16's small numbers in float16), and whether an exact
 * case has results that such a rounding changes. */
#include <math.h>
#include <stdlib.h>

#include "harness/plan/left_out.h"
#include "harness/plan/results.h"
#include "harness/scales/ensemble_internal.h"
#include "oracle/base/memory.h"

enum { PIECE = 1 << 14 };

static bool changes(assay_dtype type, int64_t count, const double *values)
{
    bool any = false;
    for (int64_t i = 0; i < count && !any; i++)
        any = !isnan(values[i]) && assay_dtype_round(type, values[i], false) != values[i];
    return any;
}

/* Reads in pieces, up to the first number that rounding changes: the path of its tensor, NULL: there is none. */
static assay_status look(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                         const assay_precision *precision, double *piece, const char **found)
{
    *found = NULL;
    for (int i = 0; i < plan->list.count && *found == NULL; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const int64_t total = assay_shape_count(&spec->shape);
        if (!assay_role_is_input(spec->role) || spec->type == ASSAY_INT32 || !in->has(in->self, spec->path)) continue;
        if (assay_path_ends(spec->path, "gate/bias")) continue; /* has a type of its own */
        const assay_dtype type = assay_type_of_input(precision, plan->c, spec->path);
        for (int64_t first = 0; type != ASSAY_FLOAT64 && first < total && *found == NULL; first += PIECE) {
            const int64_t count = total - first < PIECE ? total - first : PIECE;
            MUST(in->read(ctx, in->self, spec->path, first, count, piece));
            if (changes(type, count, piece)) *found = spec->path;
        }
    }
    return ASSAY_OK;
}

/* Codes are of the numbers that are given, which no profile rounds: such a plan has no error scales. */
static bool has_scales(const assay_plan *plan)
{
    bool any = false;
    for (int i = 0; i < plan->spec_count; i++) any |= plan->specs[i].role == ASSAY_ROLE_ERROR_SCALE;
    return any;
}

/* Whether results are others once the inputs are rounded: those of a router that only chooses are not, given the choice. */
static assay_status look_at_results(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                    const assay_precision *precision, bool *changed)
{
    const assay_member rounded = {.precision = precision, .nearest = true, .exact = true};
    OWNED_BY(assay_ensemble_release) assay_ensemble e = {.plan = plan, .in = in, .out = &assay_nowhere};
    MUST(assay_ensemble_collect(ctx, &e, false));
    MUST(assay_ensemble_run_golden(ctx, &e));
    MUST(assay_ensemble_run(ctx, &e, &rounded));
    for (int i = 0; i < e.golden.count; i++) {
        const assay_scaled *t = &e.tensors[i];
        for (int64_t k = 0; k < t->count; k++) *changed |= t->errors[k] != 0;
    }
    return ASSAY_OK;
}

assay_status assay_settle_inputs(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                 assay_precision *precisions)
{
    const bool exact = assay_plan_is_exact(plan) && has_scales(plan);
    OWNED double *piece = NULL;
    MUST(assay_alloc_f64(ctx, "piece of an input", PIECE, &piece));
    for (int p = 0; p < plan->precision_count; p++) {
        const char *changed = NULL;
        precisions[p] = plan->precisions[p];
        if (!exact && !precisions[p].inputs_beyond) continue;
        MUST(look(ctx, plan, in, &precisions[p], piece, &changed));
        if (changed == NULL) precisions[p].inputs = ASSAY_FLOAT64;
        if (!exact || changed == NULL) continue;
        bool others = false;
        MUST(look_at_results(ctx, plan, in, &precisions[p], &others));
        if (!others) continue;
        char reason[ASSAY_PATH_SIZE + 128];
        snprintf(
            reason, sizeof reason,
            "%s has numbers that this profile rounds, which changes results, and an exact case has no error scales",
            changed);
        MUST(assay_plan_lose(ctx, plan, precisions[p].name, reason));
    }
    return ASSAY_OK;
}
