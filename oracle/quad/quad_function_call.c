/* One call of a function: what it is given and gives, as each shard has it. */
#include "oracle/quad/quad_function.h"

#include <string.h>

/* --- arguments and results by their paths --- */

static int place_of(const quad_call *c, const char *path)
{
    for (int i = 0; i < c->view->forward.count; i++)
        if (strcmp(c->view->forward.items[i].path, path) == 0) return i;
    quad_refuse(c->t, "%s has no '%s'", c->view->name, path);
    return 0;
}

quad_node quad_in(quad_call *c, const char *path, int64_t columns)
{
    return quad_view(c->t, c->arguments[place_of(c, path)], columns);
}

void quad_give(quad_call *c, const char *path, quad_node y)
{
    c->arguments[place_of(c, path)] = y;
}

int32_t *quad_give_indices(quad_call *c, const char *path)
{
    const assay_shape shape = c->view->forward.items[place_of(c, path)].shape;
    return c->view->backward ? quad_keep(c->t, assay_shape_count(&shape), sizeof(int32_t))
                             : quad_put_indices(c->t, path, shape);
}

quad_node quad_weight(quad_call *c, int weight, int64_t columns)
{
    for (int i = 0; i < c->view->forward.count; i++)
        if (c->view->forward.items[i].weight == weight) return quad_view(c->t, c->arguments[i], columns);
    return 0;
}

/* --- tensors of the layer --- */

/* The microbatches that a tensor has an axis for, and the first of them: without one it is the last one's of a list. */
static int64_t parts_of(const quad_call *c, const assay_function_tensor *tensor, int64_t *first)
{
    const char *axis = strpbrk(tensor->axes, "jo");
    *first = axis == NULL ? c->parts - 1 : 0;
    return axis == NULL ? 1 : tensor->shape.dims[axis - tensor->axes];
}

/* Numbers in a row: of the axes that are none of rows. */
static int64_t columns_of(const assay_function_tensor *tensor)
{
    int64_t columns = 1;
    for (int i = 0; i < tensor->shape.rank; i++)
        if (strchr("mjoaSTGry", tensor->axes[i]) == NULL) columns *= tensor->shape.dims[i];
    return columns;
}

quad_node quad_of_shard(quad_call *c, quad_node all, int64_t shard)
{
    const int64_t rows = quad_rows(c->t, all) / c->s.shards;
    return quad_rows_of(c->t, all, shard * rows, rows);
}

/* [M,parts,..] as a node of all shards for each microbatch. */
static void shard_values(quad_call *c, const assay_function_tensor *tensor, quad_node given)
{
    int64_t first;
    const int64_t parts = parts_of(c, tensor, &first), columns = columns_of(tensor), shards = c->s.shards;
    const int64_t count = assay_shape_count(&tensor->shape) / (shards * parts);
    quad_node *pieces = quad_keep(c->t, shards, sizeof *pieces);
    for (int64_t i = 0; pieces != NULL && i < parts; i++) {
        for (int64_t shard = 0; shard < shards; shard++)
            pieces[shard] = quad_span(c->t, given, (shard * parts + i) * count, count / columns, columns);
        c->made[tensor->tensor][first + i] = quad_concatenate(c->t, pieces, shards);
    }
}

/* And back. */
static quad_node collected(quad_call *c, const assay_function_tensor *tensor)
{
    int64_t first;
    const int64_t parts = parts_of(c, tensor, &first), pieces = c->s.shards * parts;
    quad_node *all = quad_keep(c->t, pieces, sizeof *all);
    for (int64_t at = 0; all != NULL && at < pieces; at++)
        all[at] = quad_of_shard(c, quad_at(c, tensor->tensor, first + at % parts), at / parts);
    return all == NULL ? 0 : quad_concatenate(c->t, all, pieces);
}

const quad *quad_residual(quad_call *c, bs_tensor tensor, int64_t shard, int64_t i)
{
    for (int k = 0; c->view->backward && k < c->view->own.count; k++) {
        const assay_function_tensor *own = &c->view->own.items[k];
        if (own->holds != ASSAY_HOLDS_RESIDUAL || own->tensor != tensor) continue;
        int64_t first;
        const int64_t parts = parts_of(c, own, &first), all = assay_shape_count(&own->shape);
        const quad *values = quad_values(c->t, quad_input(c->t, own->path, 1, all));
        return values == NULL ? NULL : values + (shard * parts + i - first) * (all / (c->s.shards * parts));
    }
    return NULL;
}

void quad_set(quad_call *c, bs_tensor tensor, int64_t i, quad_node y)
{
    quad_node *shards = quad_keep(c->t, c->s.shards, sizeof *shards);
    for (int64_t shard = 0; shards != NULL && shard < c->s.shards; shard++) {
        const quad *given = quad_residual(c, tensor, shard, i);
        shards[shard] = quad_of_shard(c, y, shard);
        if (given != NULL) shards[shard] = quad_replaced_by(c->t, shards[shard], given);
    }
    if (shards != NULL) c->made[tensor][i] = quad_concatenate(c->t, shards, c->s.shards);
}

quad_node quad_at(quad_call *c, bs_tensor tensor, int64_t i)
{
    if (c->made[tensor][i] == 0 && c->t->status == ASSAY_OK) c->make(c, tensor, i);
    return c->made[tensor][i];
}

const int32_t *quad_integers_at(quad_call *c, bs_tensor tensor, int64_t i)
{
    if (c->integers[tensor][i] == NULL && c->t->status == ASSAY_OK) c->make(c, tensor, i);
    return c->integers[tensor][i];
}

/* --- a call --- */

/* Of what was given what stands for this tensor of the forward function; NULL: a _bwd does without. */
static const assay_function_tensor *standing_for(const quad_call *c, const assay_function_tensor *tensor)
{
    for (int i = 0; i < c->view->own.count; i++) {
        const assay_function_tensor *own = &c->view->own.items[i];
        if (!own->result && !own->gradient && strcmp(own->of, tensor->path) == 0) return own;
    }
    return NULL;
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

static quad_node take_numbers(quad_call *c, const assay_function_tensor *tensor)
{
    const assay_function_tensor *given = standing_for(c, tensor);
    const int64_t count = assay_shape_count(&tensor->shape), parts = tensor->by_expert ? c->s.expert_shards : 1;
    const quad_node y = given == NULL ? zeros(c->t, count) : quad_input(c->t, given->path, 1, count);
    if (tensor->bundle >= 0 || tensor->holds != ASSAY_HOLDS_KERNEL) return y;
    int64_t *part = quad_indices(c->t, c->s.shards);
    for (int64_t shard = 0; part != NULL && shard < c->s.shards; shard++) part[shard] = shard % parts;
    return quad_gather(c->t, quad_view(c->t, y, count / parts), part, c->s.shards);
}

void quad_call_run(quad_call *c)
{
    for (int i = 0; i < c->view->forward.count; i++) {
        const assay_function_tensor *tensor = &c->view->forward.items[i];
        if (strpbrk(tensor->axes, "jo") != NULL) c->parts = c->factor;
    }
    for (int i = 0; i < c->view->forward.count; i++) {
        const assay_function_tensor *tensor = &c->view->forward.items[i];
        if (tensor->result || tensor->integers) continue;
        c->arguments[i] = take_numbers(c, tensor);
        if (quad_is_of_layer(tensor)) shard_values(c, tensor, c->arguments[i]);
    }
    for (int i = 0; i < c->view->own.count; i++) {
        const assay_function_tensor *own = &c->view->own.items[i];
        if (own->result || !own->integers) continue;
        const int32_t *given = quad_input_indices(c->t, own->path, assay_shape_count(&own->shape));
        if (own->holds == ASSAY_HOLDS_LAYER && given != NULL) c->layer = given[0];
        c->integers[own->tensor][c->parts - 1] = (int32_t *)given; /* which nobody writes to */
    }
}

/* Of NAME its results. */
static void give(quad_call *c, const assay_function_tensor *tensor, quad_node *a)
{
    const int64_t count = assay_shape_count(&tensor->shape);
    if (tensor->integers) {
        if (!quad_is_of_layer(tensor)) return;
        const int32_t *made = quad_integers_at(c, tensor->tensor, c->parts - 1);
        int32_t *to = quad_put_indices(c->t, tensor->path, tensor->shape);
        if (made != NULL && to != NULL) memcpy(to, made, (size_t)count * sizeof *to);
    } else {
        if (quad_is_of_layer(tensor)) *a = collected(c, tensor);
        quad_put(c->t, tensor->path, tensor->shape, *a);
    }
}

/* Of NAME_bwd what comes back to NAME's results. */
static void seed(quad_call *c, const assay_function_tensor *tensor, quad_node *a)
{
    for (int k = 0; c->t->back && k < c->view->own.count; k++) {
        const assay_function_tensor *own = &c->view->own.items[k];
        if (own->result || !own->gradient || strcmp(own->of, tensor->path) != 0) continue;
        if (quad_is_of_layer(tensor)) *a = collected(c, tensor);
        if (c->t->status == ASSAY_OK) quad_seed(c->t, *a, own->path);
    }
}

/* The gradients of what stands for its arguments; those of scales and the gate's bias are sums over all shards. */
static void give_gradients(quad_call *c)
{
    for (int i = 0; i < c->view->own.count; i++) {
        const assay_function_tensor *own = &c->view->own.items[i];
        if (own->result) quad_put_gradient(c->t, own->path, own->shape, c->arguments[place_of(c, own->of)]);
    }
}

void quad_finish(quad_call *c)
{
    for (int i = 0; i < c->view->forward.count; i++) {
        const assay_function_tensor *tensor = &c->view->forward.items[i];
        if (tensor->result) (c->view->backward ? seed : give)(c, tensor, &c->arguments[i]);
    }
    if (c->view->backward) give_gradients(c);
}
