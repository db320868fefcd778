/* One call of a forward function: its tensors as each shard has them, from what was given to it or to its _bwd. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

void quad_call_close(quad_call *c)
{
    quad_tensors_free(&c->in);
    quad_tensors_free(&c->out);
    free(c->scratch);
}

/* A copy as each shard has it: of a weight, its experts. */
static assay_status expand(quad_call *c, const assay_function_tensor *tensor, const quad_tensor *from)
{
    assay_status status;
    const bool weight = strncmp(tensor->path, "weights/", 8) == 0;
    const int64_t count = assay_shape_count(&tensor->shape);
    if (tensor->integers) return quad_tensors_copy_i32(c->ctx, &c->in, tensor->path, &tensor->shape, from->indices);
    const int64_t parts = tensor->by_expert ? c->s.expert_shards : 1, local = count / (weight ? parts : 1);
    const assay_shape shape = weight ? assay_shape_of(2, c->s.shards, local) : tensor->shape;
    quad *values = NULL;
    TRY(quad_tensors_add(c->ctx, &c->in, tensor->path, &shape, &values));
    if (from == NULL) {
        for (int64_t i = 0; i < assay_shape_count(&shape); i++) values[i] = 0;
    } else if (!weight) {
        memcpy(values, from->values, (size_t)count * sizeof *values);
    } else {
        for (int64_t i = 0; i < c->s.shards * local; i++)
            values[i] = from->values[i / local % parts * local + i % local];
    }
cleanup:
    return status;
}

/* The choices that were gathered and rolled, as each shard had them. */
static assay_status unroll(quad_call *c, const quad_tensor *rolled)
{
    assay_status status;
    const int64_t own = c->s.copies / c->s.expert_shards, experts = c->routing->num_experts;
    const assay_shape shape = assay_shape_of(2, c->s.shards, own);
    int32_t *choices = NULL;
    TRY(quad_tensors_add_indices(c->ctx, &c->in, "inputs/selected_experts", &shape, &choices));
    for (int64_t i = 0; i < c->s.shards * own; i++) {
        const int64_t shard = i / own, place = shard % c->s.expert_shards;
        const int32_t id = rolled->indices[shard * c->s.copies + place * own + i % own];
        choices[i] = (int32_t)((id + place * c->s.local_experts) % experts);
    }
cleanup:
    return status;
}

/* Of what was given the tensor that stands for this one of the forward function; NULL: a _bwd does without. */
static const quad_tensor *standing_for(const assay_function_view *view, const quad_tensors *in, const char *path)
{
    for (int i = 0; i < view->own.count; i++) {
        const char *own = view->own.items[i].path;
        if (strncmp(own, "outputs/", 8) != 0 && strcmp(view->counterparts[i], path) == 0)
            return quad_tensors_find(in, own);
    }
    return NULL;
}

/* What a _bwd does without is zero. */
static assay_status take(quad_call *c, const quad_tensors *in)
{
    assay_status status = ASSAY_OK;
    const assay_function_tensors *tensors = &c->view->forward;
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *tensor = &tensors->items[i];
        if (strncmp(tensor->path, "outputs/", 8) == 0) continue;
        const quad_tensor *from = standing_for(c->view, in, tensor->path);
        if (from != NULL || !tensor->integers) {
            TRY(expand(c, tensor, from));
        } else if (tensor->holds == ASSAY_HOLDS_CHOICES) {
            TRY(unroll(c, quad_tensors_find(in, "inputs/selected_experts")));
        }
    }
cleanup:
    return status;
}

assay_status quad_call_open(quad_call *c, const quad_tensors *in)
{
    assay_status status;
    const assay_function_tensors *tensors = &c->view->forward;
    const assay_stack_config *stack = &c->config->stack;
    const assay_mla_config *m = &stack->mla;
    c->mla = m;
    c->routing = &stack->moe.routing;
    c->s = c->view->sizes;
    c->factor = stack->batch_split_factor;
    TRY(quad_alloc(c->ctx,
                   2 * (m->q_lora_rank + m->kv_lora_rank + m->rope.dim + stack->moe.shared_mlp_dim) +
                       m->heads * (m->qk_nope_head_dim + m->v_head_dim),
                   &c->scratch));
    TRY(take(c, in));
    for (int i = 0; i < tensors->count; i++) {
        const assay_function_tensor *tensor = &tensors->items[i];
        quad *values = NULL;
        int32_t *indices = NULL;
        if (strncmp(tensor->path, "outputs/", 8) != 0) continue;
        TRY(tensor->integers ? quad_tensors_add_indices(c->ctx, &c->out, tensor->path, &tensor->shape, &indices)
                             : quad_tensors_add(c->ctx, &c->out, tensor->path, &tensor->shape, &values));
    }
cleanup:
    return status;
}

quad *quad_given(const quad_call *c, const char *path)
{
    const quad_tensor *tensor = quad_tensors_find(&c->in, path);
    return tensor == NULL ? NULL : tensor->values;
}

const int32_t *quad_given_indices(const quad_call *c, const char *path)
{
    return quad_tensors_find(&c->in, path)->indices;
}

quad *quad_part_of(const quad_call *c, const quad_tensor *tensor, int64_t shard, int64_t part, int64_t parts)
{
    return tensor->values + (shard * parts + part) * (assay_shape_count(&tensor->shape) / (c->s.shards * parts));
}

const quad *quad_in_part(const quad_call *c, const char *path, int64_t shard, int64_t part, int64_t parts)
{
    return quad_part_of(c, quad_tensors_find(&c->in, path), shard, part, parts);
}

const quad *quad_in_shard(const quad_call *c, const char *path, int64_t shard)
{
    return quad_in_part(c, path, shard, 0, 1);
}

quad *quad_out_part(const quad_call *c, const char *path, int64_t shard, int64_t part, int64_t parts)
{
    return quad_part_of(c, quad_tensors_find(&c->out, path), shard, part, parts);
}

quad *quad_out_shard(const quad_call *c, const char *path, int64_t shard)
{
    return quad_out_part(c, path, shard, 0, 1);
}

int32_t *quad_out_indices(const quad_call *c, const char *path, int64_t shard)
{
    const quad_tensor *tensor = quad_tensors_find(&c->out, path);
    return tensor->indices + shard * (assay_shape_count(&tensor->shape) / c->s.shards);
}

void quad_add_offset(const quad_call *c, const char *name, int64_t shard, int64_t i, int64_t count, quad *values)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "offsets/%s", name);
    const quad_tensor *offset = quad_tensors_find(&c->in, path);
    for (int64_t k = 0; offset != NULL && k < count; k++)
        values[k] +=
            offset->values[(shard * (assay_shape_count(&offset->shape) / (c->s.shards * count)) + i) * count + k];
}
