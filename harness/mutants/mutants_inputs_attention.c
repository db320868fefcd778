/* Mutants by changed inputs and weights of norms, positions and attention. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

/* Positions stay in what the operation accepts. */
static bool move_position(const assay_mutation *m, int32_t *position, double to)
{
    if (to >= (double)m->c->config.max_position_embeddings || to == *position) return false;
    *position = (int32_t)to;
    return true;
}

bool assay_edit_next_positions(const assay_mutation *m, assay_tensor *positions)
{
    bool changed = false;
    for (int64_t i = 0; i < positions->count; i++)
        changed |= move_position(m, &positions->indices[i], positions->indices[i] + 1.0);
    return changed;
}

bool assay_edit_round_positions(const assay_mutation *m, assay_tensor *positions)
{
    bool changed = false;
    for (int64_t i = 0; i < positions->count; i++) {
        const double rounded = assay_dtype_round(ASSAY_BFLOAT16, positions->indices[i], false);
        changed |= move_position(m, &positions->indices[i], rounded);
    }
    return changed;
}

bool assay_edit_one_segment(const assay_mutation *m, assay_tensor *ids)
{
    (void)m;
    bool changed = false;
    for (int64_t i = 0; i < ids->count; i++) {
        changed |= ids->indices[i] > 1;
        if (ids->indices[i] > 1) ids->indices[i] = 1; /* padding stays padding */
    }
    return changed;
}

/* Each row takes that of the row before it; the first stays. */
bool assay_edit_lag_rows(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t width = assay_tensor_width(tensor);
    if (tensor->spec.shape.rank < 2 || tensor->count < 2 * width) return false;
    memmove(tensor->values + width, tensor->values, (size_t)(tensor->count - width) * sizeof *tensor->values);
    return true;
}

/* Keys and values lag by one token: the diagonal is where the token before should be. */
bool assay_edit_lag_tokens(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec.shape;
    const int64_t size = assay_axes_product(shape, 2, shape->rank), length = shape->dims[1] * size;
    for (int64_t b = 0; b < shape->dims[0]; b++) {
        double *rows = tensor->values + b * length;
        memmove(rows + size, rows, (size_t)(length - size) * sizeof *rows);
    }
    return shape->dims[1] > 1;
}

/* 1 / sqrt(D / N) instead of 1 / sqrt(Dq), the width of what the weight makes. */
bool assay_edit_scale_from_hidden(const assay_mutation *m, assay_tensor *tensor)
{
    const int axis = assay_tensor_axis(tensor, "N");
    if (axis < 0) return false;
    const int64_t heads = tensor->spec.shape.dims[axis], width = assay_tensor_width(tensor);
    const double factor = sqrt((double)width / (double)(m->c->config.base_emb_dim / heads));
    return assay_scale_values(tensor, factor);
}

bool assay_edit_roll_heads(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    return assay_roll_axis(tensor, assay_tensor_axis(tensor, "N"));
}

bool assay_edit_zero_rope_columns(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_zero_columns(tensor, m->c->config.qk_rope_head_dim);
}
