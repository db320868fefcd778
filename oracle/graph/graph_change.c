/* Steps as a mutant has them (oracle/base/step_change.h). The graph stays as it is. */
#include <string.h>

#include "oracle/base/step_change.h"
#include "oracle/graph/graph_kind.h"

enum { MADE = GRAPH_IN, UNCHANGED };

/* The place of the input that the change names; MADE: it names what the step makes, as it does of what is held back. */
static int find_changed(const assay_context *ctx, const graph *g, const graph_step *step)
{
    const int first = ctx->change->how == ASSAY_STEP_HELD_BACK ? MADE : 0;
    for (int i = first; i < GRAPH_IN + GRAPH_OUT; i++) {
        const int tensor = i < MADE ? step->in[i] : step->out[i - MADE];
        if (tensor == 0 || !assay_step_is_changed(ctx, step->kind->name, g->tensors[tensor].row.name)) continue;
        return i < MADE ? i : MADE;
    }
    return UNCHANGED;
}

const graph_step *graph_step_at(const assay_context *ctx, const graph *g, int number, graph_step *changed)
{
    const graph_step *step = &g->steps[number];
    const int found = ctx->change == NULL ? UNCHANGED : find_changed(ctx, g, step);
    if (found == UNCHANGED) return step;
    *changed = *step;
    if (ctx->change->how == ASSAY_STEP_TIMES) {
        *changed = (graph_step){.kind = &graph_kind_scale, .with.number = ctx->change->by};
        changed->in[0] = step->in[ctx->change->input];
        memcpy(changed->out, step->out, sizeof changed->out);
    }
    if (ctx->change->how == ASSAY_STEP_DETACHED) {
        const bool of_second = found == GRAPH_SECOND_W || (step->with.product.branches > 1 && ctx->change->input == 1);
        changed->with.product.detached = of_second ? 2 : 1;
    }
    changed->held_back = ctx->change->how == ASSAY_STEP_HELD_BACK;
    return changed;
}

/* [B,S,...], or the gradient of what was held back. */
void graph_hold_back(const graph *g, int tensor, double *values, bool gradient)
{
    const assay_shape *shape = &g->tensors[tensor].row.shape;
    const int64_t size = graph_size(g, tensor) / shape->dims[0], token = size / shape->dims[1];
    const size_t moved = (size_t)(size - token) * sizeof *values;
    for (double *row = values; row < values + shape->dims[0] * size; row += size) {
        if (!gradient) {
            memmove(row + token, row, moved);
            continue;
        }
        for (int64_t i = 0; i < token && size > token; i++) row[token + i] += row[i];
        memmove(row, row + token, moved);
        for (int64_t i = size - token; i < size && size > token; i++) row[i] = 0;
    }
}
