/* Mutants of heads over shards by changed weights: the axes `expert` and `mlp_tensor` both split them (head_shards.h). */
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

static int64_t head_shards(const assay_case *c)
{
    return c->mesh_expert * c->mesh_mlp_tensor;
}

bool assay_has_head_shards(const assay_case *c)
{
    return (strcmp(c->op, "mla") == 0 || strcmp(c->op, "gqa") == 0) && head_shards(c) > 1;
}

/* out [N,Dv,D]: the heads of the first shard come first. */
bool assay_edit_keep_first_heads(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, tensor->count / head_shards(m->c), 0.0);
}

bool assay_edit_times_head_shards(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)head_shards(m->c));
}

/* Where the heads of ('model', 'expert') should be lie those of ('expert', 'model'). */
bool assay_edit_exchange_head_axes(const assay_mutation *m, assay_tensor *tensor)
{
    const int64_t experts = m->c->mesh_expert, models = m->c->mesh_mlp_tensor;
    const int axis = assay_tensor_axis(tensor, "N");
    if (experts == 1 || models == 1 || axis < 0) return false;
    const assay_shape *shape = &tensor->spec.shape;
    const int64_t size = assay_axes_product(shape, axis, shape->rank), block = size / head_shards(m->c);
    double *own = malloc((size_t)size * sizeof *own);
    if (own == NULL) return false;
    for (double *values = tensor->values; values < tensor->values + tensor->count; values += size) {
        memcpy(own, values, (size_t)size * sizeof *own);
        for (int64_t i = 0; i < experts * models; i++)
            memcpy(values + i * block, own + (i % experts * models + i / experts) * block, (size_t)block * sizeof *own);
    }
    free(own);
    return true;
}
