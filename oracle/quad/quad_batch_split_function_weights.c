/* Microbatches, and weights as shards have them: split and merge, fetch, extract and insert, gather, reduce. */
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

static assay_status split(quad_call *c)
{
    const int64_t width = c->mla->sequence * c->mla->emb_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const quad *x = quad_in_shard(c, "inputs/x", shard);
        for (int64_t row = 0; row < c->factor * c->s.rows; row++) {
            quad *to = quad_out_part(c, "outputs/microbatches", shard, row % c->factor, c->factor);
            memcpy(to + row / c->factor * width, x + row * width, (size_t)width * sizeof *x);
        }
    }
    return ASSAY_OK;
}

static assay_status merge(quad_call *c)
{
    const int64_t width = c->mla->sequence * c->mla->emb_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        for (int64_t row = 0; row < c->factor * c->s.rows; row++) {
            const quad *from = quad_in_part(c, "inputs/microbatches", shard, row % c->factor, c->factor);
            memcpy(quad_out_shard(c, "outputs/x", shard) + row * width, from + row / c->factor * width,
                   (size_t)width * sizeof *from);
        }
    }
    return ASSAY_OK;
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

typedef void weight_step(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result);

static assay_status each_weight(quad_call *c, weight_step *step)
{
    const assay_function_tensors *own = &c->view->own;
    for (int i = 0; i < own->count; i++) {
        if (strncmp(own->items[i].path, "outputs/", 8) != 0) continue;
        step(c, find(&c->view->whole, "inputs/", own->items[i].weight), &own->items[i]);
    }
    return ASSAY_OK;
}

static const quad *bundle_in(const quad_call *c, const char *group, const assay_function_tensor *result)
{
    char path[2 * ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s%s", group, strrchr(result->path, '/'));
    return quad_given(c, path);
}

static quad *bundle_out(const quad_call *c, const assay_function_tensor *result)
{
    return quad_tensors_find(&c->out, result->path)->values;
}

static void fetch_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    memcpy(bundle_out(c, result), bundle_in(c, "params", result),
           (size_t)assay_shape_count(&whole->shape) * sizeof(quad));
}

/* The stacked index of a layer's number. */
static int64_t stacked_index(const quad_call *c, const assay_function_tensor *whole, int64_t layer, int64_t index)
{
    int64_t inner = 1;
    for (int axis = (int)c->config->layer_axis; axis < whole->shape.rank; axis++) inner *= whole->shape.dims[axis];
    return (index / inner * c->config->layers + layer) * inner + index % inner;
}

static void extract_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t layer = quad_given_indices(c, "inputs/layer_idx")[0];
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const quad *from = bundle_in(c, "all_weights", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t at = whole_index(c, whole, result, i / count, i % count);
        bundle_out(c, result)[i] = from[stacked_index(c, whole, layer, at)];
    }
}

static void insert_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t layer = quad_given_indices(c, "inputs/layer_idx")[0];
    const int64_t count = assay_shape_count(&local->shape) / c->s.shards;
    const quad *from = bundle_in(c, "ws_grad", result);
    memcpy(bundle_out(c, result), bundle_in(c, "all_ws_grad", result),
           (size_t)assay_shape_count(&result->shape) * sizeof *from);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t at = whole_index(c, whole, local, i / count, i % count);
        bundle_out(c, result)[stacked_index(c, whole, layer, at)] = from[i];
    }
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
static void gather_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const assay_function_tensor *local = find(&c->view->scattered, "outputs/", whole->weight);
    const int64_t count = assay_shape_count(&local->shape) / c->s.shards;
    const int64_t all = assay_shape_count(&result->shape) / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1;
    const quad *from = bundle_in(c, "weights", result);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int64_t first = parts == 1 ? 0 : shard % c->s.expert_shards * all;
        for (int64_t f = 0; f < c->config->stack.sharding.mesh.size[ASSAY_AXIS_FSDP]; f++) {
            const int64_t other = peer(c, shard, ASSAY_AXIS_FSDP, f);
            for (int64_t i = 0; i < count; i++)
                bundle_out(c, result)[shard * all + whole_index(c, whole, local, other, i) - first] =
                    from[other * count + i];
        }
    }
}

/* Scales and biases are sums already. */
static bool is_kernel(const assay_function_tensor *whole)
{
    return whole->holds == ASSAY_HOLDS_KERNEL;
}

static void reduce_scatter_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t *mesh = c->config->stack.sharding.mesh.size;
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const int64_t parts = whole->by_expert ? c->s.expert_shards : 1, all = assay_shape_count(&whole->shape) / parts;
    const quad *from = bundle_in(c, "ws_grad", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t shard = i / count, at = whole_index(c, whole, result, shard, i % count) % all;
        quad sum = 0;
        if (!is_kernel(whole)) {
            bundle_out(c, result)[i] = from[i];
            continue;
        }
        for (int64_t e = 0; e < (whole->by_expert ? 1 : mesh[ASSAY_AXIS_EXPERT]); e++) {
            const int64_t of = whole->by_expert ? shard : peer(c, shard, ASSAY_AXIS_EXPERT, e);
            for (int64_t f = 0; f < mesh[ASSAY_AXIS_FSDP]; f++) sum += from[peer(c, of, ASSAY_AXIS_FSDP, f) * all + at];
        }
        bundle_out(c, result)[i] = sum;
    }
}

static void all_reduce_weight(quad_call *c, const assay_function_tensor *whole, const assay_function_tensor *result)
{
    const int64_t count = assay_shape_count(&result->shape) / c->s.shards;
    const quad *from = bundle_in(c, "ws_grad", result);
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        quad sum = 0;
        for (int64_t d = 0; is_kernel(whole) && d < c->config->stack.sharding.mesh.size[ASSAY_AXIS_DATA]; d++)
            sum += from[peer(c, i / count, ASSAY_AXIS_DATA, d) * count + i % count];
        bundle_out(c, result)[i] = is_kernel(whole) ? sum : from[i];
    }
}

static assay_status fetch_weights(quad_call *c)
{
    return each_weight(c, fetch_weight);
}

static assay_status extract_layer_weights(quad_call *c)
{
    return each_weight(c, extract_weight);
}

static assay_status insert_layer_ws_grad(quad_call *c)
{
    return each_weight(c, insert_weight);
}

static assay_status gather_weights(quad_call *c)
{
    return each_weight(c, gather_weight);
}

static assay_status reduce_scatter_ws_grad(quad_call *c)
{
    return each_weight(c, reduce_scatter_weight);
}

static assay_status all_reduce_ws_grad_dcn(quad_call *c)
{
    return each_weight(c, all_reduce_weight);
}

const quad_named_function quad_weight_functions[] = {
    {"fetch_weights", fetch_weights},
    {"split", split},
    {"merge", merge},
    {"extract_layer_weights", extract_layer_weights},
    {"insert_layer_ws_grad", insert_layer_ws_grad},
    {"gather_weights", gather_weights},
    {"reduce_scatter_ws_grad", reduce_scatter_ws_grad},
    {"all_reduce_ws_grad_dcn", all_reduce_ws_grad_dcn},
    {NULL, NULL},
};
