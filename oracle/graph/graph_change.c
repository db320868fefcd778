/* Steps as a change has them (oracle/base/step_change.h). The graph stays as it is. */
#include <string.h>

#include "oracle/base/step_change.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

/* What slopes the step has where it has several (graph_general.kink): at 0 of abs and relu, on the bounds of clamp, where operands of
 * maximum and minimum, and several of the largest over axes, are equal. False: it has no kink. */
static bool kink_range(const graph_step *step, double *low, double *high)
{
    const int f = step->with.general.function;
    const bool map = step->kind == &graph_kind_map, both = step->kind == &graph_kind_binary;
    *low = map && f == GRAPH_MAP_abs ? -1 : 0;
    *high = 1;
    return (map && (f == GRAPH_MAP_abs || f == GRAPH_MAP_relu || f == GRAPH_MAP_clamp)) ||
           (both && (f == GRAPH_BINARY_maximum || f == GRAPH_BINARY_minimum)) ||
           (step->kind == &graph_kind_reduce && f == GRAPH_REDUCTION_max);
}

/* Whether the change names the step, or a tensor that it reads or makes. */
static bool is_meant(const assay_context *ctx, const graph *g, int number)
{
    const assay_step_change *change = ctx->change;
    const graph_step *step = &g->steps[number];
    const int behind = number + 1 - change->step, apart = change->rounds > 0 ? change->apart : 1;
    if (change->alike) return true;
    if (change->step > 0) return behind >= 0 && behind % apart == 0 && behind / apart <= change->rounds;
    for (int i = change->of_results ? GRAPH_IN : 0; i < GRAPH_IN + GRAPH_OUT; i++) {
        const int tensor = i < GRAPH_IN ? step->in[i] : step->out[i - GRAPH_IN];
        if (tensor != 0 && assay_step_is_changed(ctx, graph_step_name(step), g->tensors[tensor].row.name)) return true;
    }
    return false;
}

/* With the slope at one end of those that its kinks have; by: 0 or 1. */
static const graph_step *on_kinks(const graph_step *step, double by, graph_step *changed)
{
    double low, high;
    if (!kink_range(step, &low, &high)) return step;
    *changed = *step;
    changed->with.general.kink = by == 0 ? low : high;
    return changed;
}

const graph_step *graph_step_at(const assay_context *ctx, const graph *g, int number, graph_step *changed)
{
    const graph_step *step = &g->steps[number];
    const assay_step_change *change = ctx->change;
    if (change == NULL) return step;
    if (change->how == ASSAY_STEP_KINKS) return on_kinks(step, change->by, changed);
    if (!is_meant(ctx, g, number)) return step;
    *changed = *step;
    if (change->how == ASSAY_STEP_CHANGED) {
        changed->hooks.with.input = change->input;
        changed->hooks.with.by = change->by;
        if (!change->make(g, number, change->change, changed, NULL)) return step;
        changed->hooks.with.type = change->type;
    }
    if (change->how == ASSAY_STEP_TIMES) {
        *changed = graph_times(step->in[change->input], change->by);
        memcpy(changed->out, step->out, sizeof changed->out);
    }
    return changed;
}
