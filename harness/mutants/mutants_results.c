/* Changes of whole tensors, mostly of results: what a golden holds, tampered with. */
#include <math.h>

#include "harness/mutants/mutants_tensors.h"

bool assay_edit_omit_all(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->count; i++) {
        if (!assay_role_is_given(m->tensors->items[i].spec.role)) m->tensors->items[i].written = 0;
    }
    return true;
}

bool assay_edit_omit_last(const assay_mutation *m)
{
    for (int i = m->tensors->count - 1; i >= 0; i--) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (!assay_role_is_required(tensor->spec.role)) continue;
        tensor->written = 0;
        return tensor->count > 0;
    }
    return false;
}

/* False: all numbers were m->by before. */
bool assay_edit_replace(const assay_mutation *m, assay_tensor *tensor)
{
    bool changed = false;
    for (int64_t i = 0; i < tensor->count; i++) {
        changed |= (tensor->values != NULL ? tensor->values[i] : tensor->indices[i]) != m->by;
        if (tensor->values != NULL) tensor->values[i] = m->by;
        if (tensor->indices != NULL) tensor->indices[i] = (int32_t)m->by;
    }
    return changed;
}

bool assay_edit_fill(const assay_mutation *m, assay_tensor *tensor)
{
    assay_edit_replace(m, tensor);
    return true;
}

bool assay_edit_scale(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, m->by);
}

bool assay_edit_add(const assay_mutation *m, assay_tensor *tensor)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] += m->by;
    return true;
}

bool assay_edit_scale_by_root(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    return assay_scale_values(tensor, sqrt((double)assay_tensor_width(tensor)));
}

bool assay_edit_roll(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_roll_axis(tensor, m->by < 0 ? tensor->spec.shape.rank - 1 : 0);
}

/* Of integers each is a row. */
bool assay_edit_reverse_rows(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const bool is_table = tensor->values != NULL && tensor->spec.shape.rank > 1;
    const int64_t width = is_table ? assay_tensor_width(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = 0; i < rows / 2; i++) {
        const int64_t other = rows - 1 - i;
        if (tensor->indices != NULL) assay_swap_indices(&tensor->indices[i], &tensor->indices[other]);
        if (tensor->values != NULL)
            assay_swap_values(tensor->values + i * width, tensor->values + other * width, width);
    }
    return rows > 1;
}

/* Row i is what row i - 1 should be; the first is what the last should be. */
bool assay_edit_shift_rows(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t width = tensor->spec.shape.rank > 1 ? assay_tensor_width(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = rows - 1; i > 0; i--) {
        assay_swap_values(tensor->values + i * width, tensor->values + (i - 1) * width, width);
    }
    return rows > 1;
}

bool assay_edit_transpose(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec.shape;
    const int64_t n = assay_tensor_width(tensor);
    if (shape->rank < 2 || shape->dims[shape->rank - 2] != n || n < 2) return false;
    for (int64_t block = 0; block < tensor->count; block += n * n) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < i; j++) {
                assay_swap_values(tensor->values + block + i * n + j, tensor->values + block + j * n + i, 1);
            }
        }
    }
    return true;
}

bool assay_edit_swap_columns(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t width = assay_tensor_width(tensor);
    for (int64_t row = 0; row < tensor->count; row += width) {
        assay_swap_values(tensor->values + row, tensor->values + row + width - 1, 1);
    }
    return width > 1;
}

bool assay_edit_swap_halves(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t width = assay_tensor_width(tensor), half = width / 2;
    for (int64_t row = 0; row < tensor->count; row += width) {
        assay_swap_values(tensor->values + row, tensor->values + row + width - half, half);
    }
    return half > 0;
}

bool assay_edit_increment(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    for (int64_t i = 0; i < tensor->count; i++) tensor->indices[i] += 1;
    return true;
}

bool assay_edit_roll_integers(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    bool changed = false;
    for (int64_t i = 0; i + 1 < tensor->count; i++) {
        changed |= tensor->indices[i] != tensor->indices[i + 1];
        assay_swap_indices(&tensor->indices[i], &tensor->indices[i + 1]);
    }
    return changed;
}
