/* Mutants by results that are wrong in one part. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

static bool last_row_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_fill_values(tensor, tensor->count - assay_kept_width(tensor), 0.0);
}

static bool last_row_stale(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = assay_kept_width(tensor);
    double *last = tensor->values + tensor->count - width;
    if (tensor->count < 2 * width) return false;
    memcpy(last, last - width, (size_t)width * sizeof *last);
    return true;
}

bool assay_mutant_zero_last_row(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_row_to_zero);
}

bool assay_mutant_stale_last_row(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_row_stale);
}

/* The last 128 columns, or the last half where there are no more than 128. */
static bool scale_tile(assay_kept *tensor, double factor)
{
    enum { TILE = 128 };
    const int64_t width = assay_kept_width(tensor), tail = width % TILE;
    const int64_t columns = width <= TILE ? width - width / 2 : tail != 0 ? tail : TILE;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - columns) tensor->values[i] *= factor;
    }
    return true;
}

/* The last 8 columns, or the last half where there are no more than 8. */
static bool columns_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    enum { COLUMNS = 8 };
    const int64_t width = assay_kept_width(tensor), columns = width <= COLUMNS ? width - width / 2 : COLUMNS;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - columns) tensor->values[i] = 0.0;
    }
    return true;
}

bool assay_mutant_zero_last_columns(const assay_mutation *m)
{
    return assay_change_floats(m, "", columns_to_zero);
}

static bool tile_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale_tile(tensor, 0.0);
}

static bool tile_off(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale_tile(tensor, 1.02);
}

bool assay_mutant_zero_last_tile(const assay_mutation *m)
{
    return assay_change_floats(m, "", tile_to_zero);
}

bool assay_mutant_scale_last_tile(const assay_mutation *m)
{
    return assay_change_floats(m, "", tile_off);
}

/* Multiplies what lies at the last index of the axis with that label. */
static bool scale_last_of(assay_kept *tensor, const char *label, double factor)
{
    const assay_shape *shape = &tensor->spec->shape;
    for (int axis = 0; axis < shape->rank; axis++) {
        const char *found = tensor->spec->labels[axis];
        if (found == NULL || strcmp(found, label) != 0) continue;
        int64_t inner = 1;
        for (int below = axis + 1; below < shape->rank; below++) inner *= shape->dims[below];
        for (int64_t i = 0; i < tensor->count; i++) {
            if (i / inner % shape->dims[axis] == shape->dims[axis] - 1) tensor->values[i] *= factor;
        }
        return true;
    }
    return false;
}

static bool last_expert_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale_last_of(tensor, "E", 0.0) || scale_last_of(tensor, "G", 0.0);
}

static bool last_expert_twice(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale_last_of(tensor, "E", 2.0) || scale_last_of(tensor, "G", 2.0);
}

static bool last_head_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    return strcmp(m->c->op, "gmm") != 0 && scale_last_of(tensor, "N", 0.0);
}

static bool last_batch_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    return m->c->batch > 1 && scale_last_of(tensor, "B", 0.0);
}

bool assay_mutant_zero_last_expert_rows(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_expert_to_zero);
}

bool assay_mutant_double_last_expert(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_expert_twice);
}

bool assay_mutant_zero_last_head(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_head_to_zero);
}

bool assay_mutant_zero_last_batch(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_batch_to_zero);
}

/* The first two experts' parts exchanged. */
static bool swap_first_experts(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const char *label = shape->rank > 1 ? tensor->spec->labels[0] : NULL;
    if (label == NULL || (strcmp(label, "E") != 0 && strcmp(label, "G") != 0) || shape->dims[0] < 2) return false;
    const int64_t size = tensor->count / shape->dims[0];
    assay_swap_values(tensor->values, tensor->values + size, size);
    return true;
}

bool assay_mutant_swap_expert_rows(const assay_mutation *m)
{
    return assay_change_floats(m, "", swap_first_experts);
}

/* Experts for which the golden has zeros. */
static bool empty_experts_to_nan(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const char *label = shape->rank > 1 ? tensor->spec->labels[0] : NULL;
    if (label == NULL || (strcmp(label, "E") != 0 && strcmp(label, "G") != 0)) return false;
    const int64_t size = tensor->count / shape->dims[0];
    bool changed = false;
    for (int64_t first = 0; first < tensor->count; first += size) {
        bool empty = true;
        for (int64_t i = first; empty && i < first + size; i++) empty = tensor->values[i] == 0.0;
        for (int64_t i = first; empty && i < first + size; i++) tensor->values[i] = (double)NAN;
        changed |= empty;
    }
    return changed;
}

bool assay_mutant_nan_empty_experts(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients", empty_experts_to_nan);
}
