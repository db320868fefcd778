/* Changes of a part of a tensor. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

bool assay_edit_fill_last(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, tensor->count - 1, m->by);
}

bool assay_edit_fill_last_row(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_fill_values(tensor, tensor->count - assay_tensor_width(tensor), m->by);
}

bool assay_edit_stale_last_row(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t width = assay_tensor_width(tensor);
    double *last = tensor->values + tensor->count - width;
    if (tensor->count < 2 * width) return false;
    memcpy(last, last - width, (size_t)width * sizeof *last);
    return true;
}

/* The last 128 columns, or the last half where there are no more than 128. */
bool assay_edit_scale_last_tile(const assay_mutation *m, assay_tensor *tensor)
{
    enum { TILE = 128 };
    const int64_t width = assay_tensor_width(tensor), tail = width % TILE;
    const int64_t columns = width <= TILE ? width - width / 2 : tail != 0 ? tail : TILE;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - columns) tensor->values[i] *= m->by;
    }
    return true;
}

/* The last 8 columns, or the last half where there are no more than 8. */
bool assay_edit_zero_last_columns(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    enum { COLUMNS = 8 };
    const int64_t width = assay_tensor_width(tensor);
    return assay_zero_columns(tensor, width <= COLUMNS ? width - width / 2 : COLUMNS);
}

/* Multiplies what lies at the last index of the axis with that label. */
static bool scale_last_of(const assay_mutation *m, assay_tensor *tensor, const char *label)
{
    const assay_shape *shape = &tensor->spec.shape;
    const int axis = assay_tensor_axis(tensor, label);
    if (axis < 0) return false;
    const int64_t inner = assay_axes_product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i / inner % shape->dims[axis] == shape->dims[axis] - 1) tensor->values[i] *= m->by;
    }
    return true;
}

bool assay_edit_scale_last_expert(const assay_mutation *m, assay_tensor *tensor)
{
    return scale_last_of(m, tensor, "E") || scale_last_of(m, tensor, "G");
}

bool assay_edit_scale_last_head(const assay_mutation *m, assay_tensor *tensor)
{
    return scale_last_of(m, tensor, "N");
}

bool assay_edit_scale_last_batch(const assay_mutation *m, assay_tensor *tensor)
{
    return m->c->batch > 1 && scale_last_of(m, tensor, "B");
}

/* Whether the first axis is that of experts or groups. */
static bool is_by_expert(const assay_tensor *tensor)
{
    const bool first = assay_tensor_axis(tensor, "E") == 0 || assay_tensor_axis(tensor, "G") == 0;
    return first && tensor->spec.shape.rank > 1;
}

/* The first two experts' parts exchanged. */
bool assay_edit_swap_first_experts(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    if (!is_by_expert(tensor) || tensor->spec.shape.dims[0] < 2) return false;
    const int64_t size = tensor->count / tensor->spec.shape.dims[0];
    assay_swap_values(tensor->values, tensor->values + size, size);
    return true;
}

/* Experts for which the golden has zeros. */
bool assay_edit_empty_experts_to_nan(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    if (!is_by_expert(tensor)) return false;
    const int64_t size = tensor->count / tensor->spec.shape.dims[0];
    bool changed = false;
    for (int64_t first = 0; first < tensor->count; first += size) {
        bool empty = true;
        for (int64_t i = first; empty && i < first + size; i++) empty = tensor->values[i] == 0.0;
        for (int64_t i = first; empty && i < first + size; i++) tensor->values[i] = (double)NAN;
        changed |= empty;
    }
    return changed;
}
