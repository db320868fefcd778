/* Steps as a mutant has them (oracle/base/step_change.h). The graph stays as it is. */
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

enum { MADE = GRAPH_IN, UNCHANGED };

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

/* The place of the input that the change names; MADE: it names what the step makes, as it does of what is held back. */
static int find_changed(const assay_context *ctx, const graph *g, const graph_step *step)
{
    const int first = ctx->change->how == ASSAY_STEP_SHIFTED_BACK ? MADE : 0;
    for (int i = first; i < GRAPH_IN + GRAPH_OUT; i++) {
        const int tensor = i < MADE ? step->in[i] : step->out[i - MADE];
        if (tensor == 0 || !assay_step_is_changed(ctx, graph_step_name(step), g->tensors[tensor].row.name)) continue;
        return i < MADE ? i : MADE;
    }
    return UNCHANGED;
}

static bool is_meant(const assay_context *ctx, const graph *g, int number, int *found)
{
    const assay_step_change *change = ctx->change;
    if (change != NULL && change->step > 0) return change->step == number + 1;
    *found = change == NULL ? UNCHANGED : find_changed(ctx, g, &g->steps[number]);
    return *found != UNCHANGED;
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
    int found = MADE;
    if (change != NULL && change->how == ASSAY_STEP_KINKS) return on_kinks(step, change->by, changed);
    if (!is_meant(ctx, g, number, &found)) return step;
    *changed = *step;
    if (change->how == ASSAY_STEP_CHANGED) {
        if (!change->make(g, number, change->change, changed, NULL)) return step;
        changed->wrong.type = change->type;
    }
    if (change->how == ASSAY_STEP_TIMES) {
        *changed = graph_times(step->in[change->input], change->by);
        memcpy(changed->out, step->out, sizeof changed->out);
    }
    if (change->how == ASSAY_STEP_DETACHED) {
        const bool of_second = found == GRAPH_SECOND_W || (step->with.product.branches > 1 && change->input == 1);
        changed->with.product.detached = of_second ? 2 : 1;
    }
    changed->wrong.shifted_back = change->how == ASSAY_STEP_SHIFTED_BACK;
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

/* *room has the indices, behind one row of them. */
static assay_status choose_again(assay_context *ctx, graph_call *c, double **room)
{
    const int input = c->step->wrong.input;
    const int64_t size = graph_in_size(c->graph, c->step, input), each = graph_last_axis(c->graph, c->step->in[input]),
                  width = graph_last_axis(c->graph, c->step->in[GRAPH_IN - 1]);
    MUST(assay_alloc_f64(ctx, "what a mutant chooses", each + size, room));
    int32_t *indices = (int32_t *)(*room + each);
    for (int64_t i = 0; i < size; i++) {
        if (i % each == 0) graph_choose(c->x[GRAPH_IN - 1] + i / each * width, width, *room, each);
        indices[i] = (int32_t)(*room)[i % each];
    }
    c->indices[input] = indices;
    return ASSAY_OK;
}

assay_status graph_misread(assay_context *ctx, graph_call *c, double **read)
{
    const graph_wrong *wrong = &c->step->wrong;
    const int64_t size = graph_in_size(c->graph, c->step, wrong->input);
    const int other = wrong->other - 1;
    if (other >= 0 && c->x[other] == NULL && c->indices[other] == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is not there", c->graph->tensors[c->step->in[other]].row.name);
    if (wrong->chooses) return choose_again(ctx, c, read);
    if (wrong->misread == NULL || c->x[wrong->input] == NULL) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "what a mutant reads", size, read));
    memcpy(*read, c->x[wrong->input], (size_t)size * sizeof **read);
    wrong->misread(c->graph, c->step, *read, false);
    c->x[wrong->input] = *read;
    return ASSAY_OK;
}

void graph_detach(const graph_call *c)
{
    const graph_wrong *wrong = &c->step->wrong;
    double *dx = c->dx[wrong->input];
    if (wrong->misread != NULL && dx != NULL && !wrong->back_alone) wrong->misread(c->graph, c->step, dx, true);
    for (int i = 0; i < GRAPH_IN; i++)
        if (c->dx[i] != NULL && (wrong->detached >> i & 1) != 0)
            memset(c->dx[i], 0, (size_t)graph_in_size(c->graph, c->step, i) * sizeof(double));
}
