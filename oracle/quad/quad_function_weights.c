/* Microbatches, and weights as shards have them: split and merge, fetch, extract and insert, gather, reduce. Each number of theirs has a
 * place in the whole batch, or in the whole weight; those of a result are those given that have the same place, or their sum. */
#include <string.h>

#include "oracle/quad/quad_function.h"

/* The shard that along `axis` is at `index`, else where `shard` is. */
static int64_t peer(const int64_t *mesh, int64_t shard, int axis, int64_t index)
{
    int64_t stride = 1;
    for (int k = ASSAY_AXIS_EXPERT; k > axis; k--) stride *= mesh[k];
    return shard + (index - shard / stride % mesh[axis]) * stride;
}

/* Number `term` of the shards that differ from this one along axes `over` alone, 1 << axis; -1 behind the last. */
static int64_t term_of(const int64_t *mesh, unsigned over, int64_t shard, int64_t term)
{
    for (int axis = 0; axis <= ASSAY_AXIS_EXPERT; axis++) {
        if ((over >> axis & 1) == 0) continue;
        shard = peer(mesh, shard, axis, term % mesh[axis]);
        term /= mesh[axis];
    }
    return term == 0 ? shard : -1;
}

/* Where number i of a tensor lies in the whole one; -1: nowhere, it is another layer's. Row r of a shard's batch is row r / f of
 * microbatch r mod f. Of a weight a shard has all of an axis, or its part: over expert of the experts, else over fsdp. */
static int64_t place_of(const quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *t,
                        int64_t i)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    int64_t rest = assay_shape_count(&t->shape), at = 0, part = 0, shard = 0;
    int k = 0;
    for (int axis = 0; axis < t->shape.rank; axis++) {
        const int64_t size = t->shape.dims[axis];
        const char letter = t->axes[axis];
        rest /= size;
        int64_t place = i / rest % size;
        if (letter == 'A' && place != c->layer) return -1;
        if (letter == 'm') shard = place;
        if (letter == 'j') part = place;
        if (letter == 'A' || letter == 'j' || (letter == 'm' && t->weight >= 0)) continue;
        if (letter == 'a') place = place * c->factor + part;
        if (t->weight >= 0 && size < whole->shape.dims[k]) {
            const bool experts = whole->by_expert && k == 0;
            const int64_t expert = shard % mesh[ASSAY_AXIS_EXPERT], fsdp = shard / mesh[ASSAY_AXIS_EXPERT];
            place += (experts ? expert : fsdp % mesh[ASSAY_AXIS_FSDP]) * size;
        }
        at = at * whole->shape.dims[k++] + place;
    }
    return at;
}

/* The shard that has it; 0 of what no shard has apart, or where that does not matter. */
static int64_t shard_of(const quad_call *c, const assay_function_tensor *t, const assay_function_tensor *other,
                        int64_t i)
{
    const bool apart = t->axes[0] == 'm' && other->axes[0] == 'm' && t->weight >= 0;
    return apart ? i / (assay_shape_count(&t->shape) / c->s.shards) : 0;
}

/* From what is given: of what is nowhere the result has what stands there, before that. */
static quad_node moved(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *given,
                       quad_node from, const assay_function_tensor *result, unsigned over)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t all = assay_shape_count(&whole->shape), count = assay_shape_count(&given->shape),
                  numbers = assay_shape_count(&result->shape), first = quad_rows(c->t, from) - count;
    int64_t *at = quad_indices(c->t, c->s.shards * all);
    quad_node sum = 0;
    for (int64_t i = 0; at != NULL && i < c->s.shards * all; i++) at[i] = -1;
    for (int64_t i = 0; at != NULL && i < count; i++) {
        const int64_t place = place_of(c, whole, given, i);
        if (place >= 0) at[shard_of(c, given, result, i) * all + place] = first + i;
    }
    for (int64_t term = 0; at != NULL && term_of(mesh, over, 0, term) >= 0; term++) {
        int64_t *index = quad_indices(c->t, numbers);
        for (int64_t i = 0; index != NULL && i < numbers; i++) {
            const int64_t place = place_of(c, whole, result, i);
            const int64_t shard = term_of(mesh, over, shard_of(c, result, given, i), term);
            index[i] = place < 0 ? i : at[shard * all + place];
        }
        sum = quad_add(c->t, sum, quad_gather(c->t, from, index, numbers));
    }
    return sum;
}

/* Scales and biases are sums already. */
static unsigned summed_over(const quad_call *c, const assay_function_tensor *whole)
{
    static const struct {
        const char *name;
        unsigned over;
    } sums[] = {{"gather_weights", 1 << ASSAY_AXIS_FSDP},
                {"reduce_scatter_ws_grad", 1 << ASSAY_AXIS_FSDP | 1 << ASSAY_AXIS_EXPERT},
                {"all_reduce_ws_grad_dcn", 1 << ASSAY_AXIS_DATA}};
    for (size_t i = 0; i < sizeof sums / sizeof *sums && whole->holds == ASSAY_HOLDS_KERNEL; i++)
        if (strcmp(sums[i].name, c->view->name) == 0)
            return sums[i].over & ~(whole->by_expert ? 1U << ASSAY_AXIS_EXPERT : 0);
    return 0;
}

/* Each tensor from the others of its weight, or from the other one. */
void quad_move(quad_call *c)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < own->count; i++) {
        const assay_function_tensor *result = &own->items[i], *given = NULL, *whole = NULL;
        quad_node from = 0;
        if (quad_is_of_layer(result) || c->view->backward) continue;
        for (int k = 0; result->result && k < own->count; k++) {
            if (own->items[k].result || own->items[k].integers || own->items[k].weight != result->weight) continue;
            const quad_node parts[] = {from, quad_in(c, own->items[k].path, 1)};
            given = &own->items[k];
            from = from == 0 ? parts[1] : quad_concatenate(c->t, parts, 2);
        }
        for (int k = 0; k < c->view->whole.count; k++)
            if (c->view->whole.items[k].weight == result->weight) whole = &c->view->whole.items[k];
        if (given == NULL) continue;
        if (whole == NULL) whole = strchr(given->axes, 'd') != NULL ? given : result; /* the batch */
        quad_give(c, result->path, moved(c, whole, given, from, result, summed_over(c, whole)));
    }
}
