/* One call of a function: what it is given and gives, as each shard has it. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_function.h"

/* --- arguments --- */

static int place_of(const quad_call *c, const char *path)
{
    for (int i = 0; i < c->view->forward.count; i++)
        if (strcmp(c->view->forward.items[i].path, path) == 0) return i;
    return -1;
}

static bool is_result(const char *path)
{
    return strncmp(path, "outputs/", 8) == 0;
}

/* Of what was given the place of what stands for this tensor of the forward function; -1: a _bwd does without. */
static int standing_for(const quad_call *c, const char *path)
{
    for (int i = 0; i < c->view->own.count; i++)
        if (!is_result(c->view->own.items[i].path) && strcmp(c->view->own.items[i].of, path) == 0) return i;
    return -1;
}

/* What a _bwd does without is zero, and has a gradient. */
static quad_node zeros(quad_tape *t, int64_t count)
{
    quad *values;
    const quad_node y = quad_constant(t, 1, count, &values);
    for (int64_t i = 0; values != NULL && i < count; i++) values[i] = 0;
    if (y != 0) t->records[y].wanted = true;
    return y;
}

static void take_numbers(quad_call *c, const assay_function_tensor *tensor, int own, quad_argument *a)
{
    quad_tape *t = c->t;
    const int64_t count = assay_shape_count(&tensor->shape);
    a->node = own < 0 ? zeros(t, count) : quad_input(t, c->view->own.items[own].path, 1, count);
    if (strncmp(tensor->path, "weights/", 8) != 0) return;
    const int64_t parts = tensor->by_expert ? c->s.expert_shards : 1;
    int64_t *part = quad_indices(t, c->s.shards);
    for (int64_t shard = 0; part != NULL && shard < c->s.shards; shard++) part[shard] = shard % parts;
    a->whole = a->node;
    a->node = quad_gather(t, quad_view(t, a->node, count / parts), part, c->s.shards);
}

/* The choices that were gathered and rolled, as each shard had them. */
static const int32_t *unrolled(quad_call *c)
{
    const int64_t own = c->s.copies / c->s.expert_shards, experts = c->routing->num_experts;
    const int32_t *rolled = quad_input_indices(c->t, "inputs/selected_experts", c->s.shards * c->s.copies);
    int32_t *choices = quad_keep(c->t, c->s.shards * own, sizeof *choices);
    for (int64_t i = 0; choices != NULL && rolled != NULL && i < c->s.shards * own; i++) {
        const int64_t shard = i / own, place = shard % c->s.expert_shards;
        const int32_t id = rolled[shard * c->s.copies + place * own + i % own];
        choices[i] = (int32_t)((id + place * c->s.local_experts) % experts);
    }
    return choices;
}

void quad_take(quad_call *c)
{
    const assay_function_tensors *forward = &c->view->forward;
    for (int i = 0; i < forward->count; i++) {
        const assay_function_tensor *tensor = &forward->items[i];
        if (is_result(tensor->path)) continue;
        const int own = standing_for(c, tensor->path);
        if (!tensor->integers) {
            take_numbers(c, tensor, own, &c->arguments[i]);
        } else if (own >= 0) {
            c->arguments[i].indices =
                quad_input_indices(c->t, c->view->own.items[own].path, assay_shape_count(&tensor->shape));
        } else if (tensor->holds == ASSAY_HOLDS_CHOICES) {
            c->arguments[i].indices = unrolled(c);
        }
    }
}

quad_node quad_in_all(quad_call *c, const char *path, int64_t columns)
{
    const int place = place_of(c, path);
    if (place < 0) quad_refuse(c->t, "%s has no '%s'", c->view->name, path);
    return place < 0 ? 0 : quad_view(c->t, c->arguments[place].node, columns);
}

static quad_node slice(quad_call *c, const char *path, int64_t slices, int64_t at, int64_t columns)
{
    const quad_node all = quad_in_all(c, path, 1);
    const int64_t count = quad_rows(c->t, all) / slices;
    return quad_part(c->t, all, at * count, columns > 0 ? count / columns : 0, columns);
}

quad_node quad_in(quad_call *c, const char *path, int64_t shard, int64_t columns)
{
    return slice(c, path, c->s.shards, shard, columns);
}

quad_node quad_in_part(quad_call *c, const char *path, int64_t shard, int64_t part, int64_t columns)
{
    return slice(c, path, c->s.shards * c->factor, shard * c->factor + part, columns);
}

const int32_t *quad_in_indices(quad_call *c, const char *path)
{
    const int place = place_of(c, path);
    return place < 0 ? NULL : c->arguments[place].indices;
}

/* --- results --- */

bool quad_gives(const quad_call *c, const char *path)
{
    return place_of(c, path) >= 0;
}

void quad_give(quad_call *c, const char *path, int64_t piece, int64_t pieces, quad_node y)
{
    const int place = place_of(c, path);
    if (place < 0 || c->t->status != ASSAY_OK) return;
    quad_argument *a = &c->arguments[place];
    if (a->pieces == NULL) a->pieces = quad_keep(c->t, pieces, sizeof *a->pieces);
    a->count = pieces;
    if (a->pieces != NULL) a->pieces[piece] = y;
}

int32_t *quad_give_indices(quad_call *c, const char *path)
{
    const int place = place_of(c, path);
    if (place < 0) return NULL;
    const assay_shape shape = c->view->forward.items[place].shape;
    quad_argument *a = &c->arguments[place];
    if (a->made == NULL)
        a->made = c->view->backward ? quad_keep(c->t, assay_shape_count(&shape), sizeof *a->made)
                                    : quad_put_indices(c->t, path, shape);
    return a->made;
}

quad_node quad_at_residual(quad_call *c, const char *name, int64_t shard, int64_t i, quad_node y)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t count = quad_rows(c->t, y) * quad_columns(c->t, y);
    snprintf(path, sizeof path, "outputs/%s", name);
    for (int k = 0; c->view->backward && y != 0 && k < c->view->own.count; k++) {
        const assay_function_tensor *own = &c->view->own.items[k];
        if (own->holds != ASSAY_HOLDS_RESIDUAL || strcmp(c->view->own.items[k].of, path) != 0) continue;
        const int64_t all = assay_shape_count(&own->shape), parts = all / (c->s.shards * count);
        const quad_node given = quad_input(c->t, own->path, 1, all);
        return quad_taken_as(c->t, y, quad_values(c->t, quad_part(c->t, given, (shard * parts + i) * count, 1, count)));
    }
    return y;
}

/* Of NAME: its results. Of NAME_bwd: what comes back to them, and the gradients of what stands for its arguments; those of scales and the
 * gate's bias are sums over all shards. */
void quad_finish(quad_call *c)
{
    quad_tape *t = c->t;
    const assay_function_tensors *forward = &c->view->forward, *own = &c->view->own;
    for (int i = 0; i < forward->count; i++) {
        const quad_argument *a = &c->arguments[i];
        if (a->pieces == NULL) continue;
        const quad_node y = quad_concatenate(t, a->pieces, a->count);
        if (!c->view->backward) quad_put(t, forward->items[i].path, forward->items[i].shape, y);
        for (int k = 0; c->view->backward && t->back && k < own->count; k++) {
            const assay_function_tensor *given = &own->items[k];
            if (is_result(given->path) || given->holds == ASSAY_HOLDS_RESIDUAL || given->integers) continue;
            if (strcmp(c->view->own.items[k].of, forward->items[i].path) == 0) quad_seed(t, y, given->path);
        }
    }
    for (int i = 0; c->view->backward && i < own->count; i++) {
        const int place = is_result(own->items[i].path) ? place_of(c, c->view->own.items[i].of) : -1;
        if (place < 0) continue;
        const quad_argument *a = &c->arguments[place];
        const int64_t count = assay_shape_count(&own->items[i].shape);
        const bool each = count == quad_rows(t, a->node) * quad_columns(t, a->node);
        quad_put_gradient(t, own->items[i].path, own->items[i].shape, each ? a->node : a->whole);
    }
}

/* --- what several topics compute --- */

quad_node quad_times_weight(quad_call *c, quad_node x, const char *weight, int64_t shard, int64_t columns)
{
    return quad_linear(c->t, (quad_layer){.x = x, .w = quad_in(c, weight, shard, columns), .recipe = c->recipe});
}

quad_node quad_normed(quad_call *c, const char *scale, int64_t shard, quad_node x)
{
    return quad_normalise(c->t, x, quad_in(c, scale, shard, quad_columns(c->t, x)), c->config->stack.epsilon);
}
