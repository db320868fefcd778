/* Microbatches, and weights as shards have them: split and merge, fetch, extract and insert, gather, reduce. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_function.h"

/* Of a shard's rows of the batch number i is row i / f of microbatch i mod f. */
static int64_t *places_of_rows(quad_call *c)
{
    const int64_t rows = c->factor * c->s.rows;
    int64_t *place = quad_indices(c->t, c->s.shards * rows);
    for (int64_t i = 0; place != NULL && i < c->s.shards * rows; i++)
        place[i] = i / rows * rows + i % rows % c->factor * c->s.rows + i % rows / c->factor;
    return place;
}

static void split(quad_call *c)
{
    const int64_t width = c->mla->sequence * c->mla->emb_dim, rows = c->s.shards * c->factor * c->s.rows;
    quad_give(c, "outputs/microbatches", 0, 1,
              quad_scatter(c->t, quad_in_all(c, "inputs/x", width), places_of_rows(c), rows));
}

static void merge(quad_call *c)
{
    const int64_t width = c->mla->sequence * c->mla->emb_dim, rows = c->s.shards * c->factor * c->s.rows;
    quad_give(c, "outputs/x", 0, 1,
              quad_gather(c->t, quad_in_all(c, "inputs/microbatches", width), places_of_rows(c), rows));
}

/* Where a shard's number of a weight lies in the whole one: split over fsdp along the axis labelled D, or else the first
 * one of a kernel, and over expert along the first one of a weight of experts. */
static int64_t whole_index(const quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *local,
                           int64_t shard, int64_t index)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t expert = shard % mesh[ASSAY_AXIS_EXPERT],
                  fsdp = shard / mesh[ASSAY_AXIS_EXPERT] % mesh[ASSAY_AXIS_FSDP];
    int64_t at = 0, stride = 1;
    for (int axis = whole->shape.rank - 1; axis >= 0; axis--) {
        const int64_t size = local->shape.dims[axis + 1], place = index % size;
        const bool experts = whole->by_expert && axis == 0;
        at += (place + (size == whole->shape.dims[axis] ? 0 : (experts ? expert : fsdp) * size)) * stride;
        index /= size;
        stride *= whole->shape.dims[axis];
    }
    return at;
}

static const assay_function_tensor *find(const assay_function_tensors *tensors, const char *folder, int weight)
{
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *t = &tensors->items[i];
        if (t->weight == weight && strncmp(t->path, folder, strlen(folder)) == 0) return t;
    }
    return NULL;
}

/* A bundle's tensor, [count,1]. */
static quad_node bundle(quad_call *c, const char *group, const assay_function_tensor *result)
{
    char path[2 * ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s%s", group, strrchr(result->path, '/'));
    return quad_in_all(c, path, 1);
}

static quad_node fetch_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    (void)whole;
    return bundle(c, "params", result);
}

/* The stacked index of a layer's number. */
static int64_t stacked_index(const quad_call *c, const assay_function_tensor *whole, int64_t layer, int64_t index)
{
    int64_t inner = 1;
    for (int axis = (int)c->config->layer_axis; axis < whole->shape.rank; axis++) inner *= whole->shape.dims[axis];
    return (index / inner * c->config->layers + layer) * inner + index % inner;
}

static int64_t layer_of(quad_call *c)
{
    const int32_t *layer = quad_in_indices(c, "inputs/layer_idx");
    return layer == NULL ? 0 : layer[0];
}

static quad_node extract_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t layer = layer_of(c), all = assay_shape_count(&result->shape), count = all / c->s.shards;
    int64_t *place = quad_indices(c->t, all);
    for (int64_t i = 0; place != NULL && i < all; i++)
        place[i] = stacked_index(c, whole, layer, whole_index(c, whole, result, i / count, i % count));
    return quad_gather(c->t, bundle(c, "all_weights", result), place, all);
}

/* What is inserted stands behind what was there. */
static quad_node insert_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t layer = layer_of(c), all = assay_shape_count(&result->shape),
                  given = assay_shape_count(&local->shape);
    const quad_node both[] = {bundle(c, "all_ws_grad", result), bundle(c, "ws_grad", result)};
    int64_t *place = quad_indices(c->t, all);
    for (int64_t i = 0; place != NULL && i < all; i++) place[i] = i;
    for (int64_t i = 0; place != NULL && i < given; i++) {
        const int64_t count = given / c->s.shards;
        place[stacked_index(c, whole, layer, whole_index(c, whole, local, i / count, i % count))] = all + i;
    }
    return quad_gather(c->t, quad_concatenate(c->t, both, 2), place, all);
}

/* Places of shards: along `axis` `index`, else those of `shard`. */
static int64_t peer(const quad_call *c, int64_t shard, assay_mesh_axis axis, int64_t index)
{
    const int64_t *size = c->config->stack.sharding.mesh.size;
    int64_t place[ASSAY_MESH_AXES] = {shard / size[2] / size[1], shard / size[2] % size[1], shard % size[2]};
    place[axis] = index;
    return (place[0] * size[1] + place[1]) * size[2] + place[2];
}

/* The weight of a shard's experts as one shard sees it whole, from numbers that lie scattered. */
static quad_node gather_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t count = assay_shape_count(&local->shape) / c->s.shards;
    const int64_t all = assay_shape_count(&result->shape) / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1;
    int64_t *place = quad_indices(c->t, c->s.shards * all);
    for (int64_t shard = 0; place != NULL && shard < c->s.shards; shard++) {
        const int64_t first = parts == 1 ? 0 : shard % c->s.expert_shards * all;
        for (int64_t f = 0; f < c->config->stack.sharding.mesh.size[ASSAY_AXIS_FSDP]; f++) {
            const int64_t other = peer(c, shard, ASSAY_AXIS_FSDP, f);
            for (int64_t i = 0; i < count; i++)
                place[shard * all + whole_index(c, whole, local, other, i) - first] = other * count + i;
        }
    }
    return quad_gather(c->t, bundle(c, "weights", result), place, c->s.shards * all);
}

/* Scales and biases are sums already. */
static bool is_kernel(const assay_function_tensor *whole)
{
    return whole->holds == ASSAY_HOLDS_KERNEL;
}

static quad_node reduce_scatter_weight(quad_call *c, const assay_function_tensor *whole,
                                       const assay_function_tensor *result)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t numbers = assay_shape_count(&result->shape), count = numbers / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1, all = assay_shape_count(&whole->shape) / parts;
    const int64_t experts = whole->by_expert ? 1 : mesh[ASSAY_AXIS_EXPERT];
    const quad_node from = bundle(c, "ws_grad", result);
    quad_node sum = 0;
    for (int64_t term = 0; is_kernel(whole) && term < experts * mesh[ASSAY_AXIS_FSDP]; term++) {
        int64_t *place = quad_indices(c->t, numbers);
        for (int64_t i = 0; place != NULL && i < numbers; i++) {
            const int64_t shard = i / count, at = whole_index(c, whole, result, shard, i % count) % all;
            const int64_t of = whole->by_expert ? shard : peer(c, shard, ASSAY_AXIS_EXPERT, term % experts);
            place[i] = peer(c, of, ASSAY_AXIS_FSDP, term / experts) * all + at;
        }
        sum = quad_add(c->t, sum, quad_gather(c->t, from, place, numbers));
    }
    return is_kernel(whole) ? sum : from;
}

static quad_node all_reduce_weight(quad_call *c, const assay_function_tensor *whole,
                                   const assay_function_tensor *result)
{
    const int64_t numbers = assay_shape_count(&result->shape), count = numbers / c->s.shards;
    const quad_node from = bundle(c, "ws_grad", result);
    quad_node sum = 0;
    for (int64_t d = 0; is_kernel(whole) && d < c->config->stack.sharding.mesh.size[ASSAY_AXIS_DATA]; d++) {
        int64_t *place = quad_indices(c->t, numbers);
        for (int64_t i = 0; place != NULL && i < numbers; i++)
            place[i] = peer(c, i / count, ASSAY_AXIS_DATA, d) * count + i % count;
        sum = quad_add(c->t, sum, quad_gather(c->t, from, place, numbers));
    }
    return is_kernel(whole) ? sum : from;
}

static void each_weight(quad_call *c)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < own->count; i++) {
        if (strncmp(own->items[i].path, "outputs/", 8) != 0) continue;
        quad_give(c, own->items[i].path, 0, 1,
                  c->of_weight(c, find(&c->view->whole, "inputs/", own->items[i].weight), &own->items[i]));
    }
}

const quad_named_function quad_weight_functions[] = {
    {"fetch_weights", each_weight, fetch_weight},
    {"split", split, NULL},
    {"merge", merge, NULL},
    {"extract_layer_weights", each_weight, extract_weight},
    {"insert_layer_ws_grad", each_weight, insert_weight},
    {"gather_weights", each_weight, gather_weight},
    {"reduce_scatter_ws_grad", each_weight, reduce_scatter_weight},
    {"all_reduce_ws_grad_dcn", each_weight, all_reduce_weight},
    {NULL, NULL, NULL},
};
