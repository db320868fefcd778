/* What the functions that change tensors share. */
#include "harness/mutants/mutants_tensors.h"

#include <string.h>

#include "harness/operations/paths.h"

int64_t assay_kept_width(const assay_kept *tensor)
{
    const assay_shape *shape = &tensor->spec->shape;
    return shape->rank > 0 ? shape->dims[shape->rank - 1] : 1;
}

void assay_swap_values(double *a, double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = a[i];
        a[i] = b[i];
        b[i] = value;
    }
}

static bool is_result(const assay_kept *tensor)
{
    return assay_path_in(tensor->spec->path, "outputs") || assay_path_in(tensor->spec->path, "gradients") ||
           assay_path_in(tensor->spec->path, "checkpoints");
}

bool assay_change_floats(const assay_mutation *m, const char *folder, assay_tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        if (!is_result(tensor) || tensor->values == NULL || tensor->count == 0) continue;
        if (folder[0] == '\0' || assay_path_in(tensor->spec->path, folder)) changed |= change(m, tensor);
    }
    return changed;
}

bool assay_scale_values(assay_kept *tensor, double factor)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return true;
}

bool assay_fill_values(assay_kept *tensor, int64_t first, double value)
{
    for (int64_t i = first; i < tensor->count; i++) tensor->values[i] = value;
    return true;
}

bool assay_change_given(const assay_mutation *m, const char *name, assay_tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        if (!assay_path_is_given(tensor->spec->path) || assay_path_in(tensor->spec->path, "cotangents")) continue;
        if (assay_path_ends(tensor->spec->path, name) && tensor->count > 0) changed |= change(m, tensor);
    }
    return changed;
}

int64_t assay_axes_product(const assay_shape *shape, int first, int last)
{
    int64_t count = 1;
    for (int axis = first; axis < last; axis++) count *= shape->dims[axis];
    return count;
}

int assay_kept_axis(const assay_kept *tensor, const char *label)
{
    for (int axis = 0; axis < tensor->spec->shape.rank; axis++) {
        const char *found = tensor->spec->labels[axis];
        if (found != NULL && strcmp(found, label) == 0) return axis;
    }
    return -1;
}

/* Rotates the `count` blocks of `size` numbers at `values` by one: block 0 becomes what block 1 was. */
static void roll(double *values, int64_t count, int64_t size)
{
    for (int64_t k = 0; k < size; k++) {
        const double first = values[k];
        for (int64_t i = 0; i + 1 < count; i++) values[i * size + k] = values[(i + 1) * size + k];
        values[(count - 1) * size + k] = first;
    }
}

bool assay_roll_axis(assay_kept *tensor, int axis)
{
    const assay_shape *shape = &tensor->spec->shape;
    if (axis < 0 || shape->dims[axis] < 2) return false;
    const int64_t outer = assay_axes_product(shape, 0, axis), inner = assay_axes_product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < outer; i++) roll(tensor->values + i * shape->dims[axis] * inner, shape->dims[axis], inner);
    return true;
}

static bool replace_values(assay_kept *tensor, double value)
{
    bool changed = false;
    for (int64_t i = 0; i < tensor->count; i++) {
        changed |= tensor->values[i] != value;
        tensor->values[i] = value;
    }
    return changed;
}

bool assay_values_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return replace_values(tensor, 0.0);
}

bool assay_values_to_one(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return replace_values(tensor, 1.0);
}
