/* Mutants by changed inputs and weights, as the operation reads them. */
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

/* wi_0 of this path against wi_1. */
static bool swap_with_up(const assay_mutation *m, assay_tensor *gate)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s", gate->spec.path);
    char *place = NULL;
    for (char *at = strstr(path, "wi_0"); at != NULL; at = strstr(at + 1, "wi_0")) place = at;
    if (place == NULL) return false;
    place[3] = '1';
    assay_tensor *up = assay_tensor_set_find(m->tensors, path);
    if (up == NULL || up->count != gate->count) return false;
    assay_swap_values(gate->values, up->values, gate->count);
    return true;
}

bool assay_edit_swap_gate_up(const assay_mutation *m, assay_tensor *tensor)
{
    if (!assay_path_ends(tensor->spec.path, "wi") && !assay_path_ends(tensor->spec.path, "wi/kernel"))
        return swap_with_up(m, tensor);
    return assay_edit_swap_halves(m, tensor);
}

/* Columns g0 u0 g1 u1 ... are taken to be there: what is read as gate is every other column of what is stored. Within a
 * row the reading is a permutation, done by following the places that were overwritten already. */
bool assay_edit_interleave(const assay_mutation *m, assay_tensor *fused)
{
    (void)m;
    const int64_t width = assay_tensor_width(fused), half = width / 2;
    if (half < 2) return false;
    for (int64_t row = 0; row + width <= fused->count; row += width) {
        double *values = fused->values + row;
        for (int64_t i = 0; i < width; i++) {
            int64_t from = i;
            do {
                from = from < half ? 2 * from : 2 * (from - half) + 1;
            } while (from < i);
            assay_swap_values(&values[i], &values[from], 1);
        }
    }
    return true;
}

bool assay_edit_zero_last_of_first_axis(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const int64_t size = assay_axes_product(&tensor->spec.shape, 1, tensor->spec.shape.rank);
    return assay_fill_values(tensor, tensor->count - size, 0.0);
}

/* A kernel that walks the contracted axis in tiles of 16 and leaves out the last. */
bool assay_edit_zero_tail_of_rows(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    enum { TILE = 16 };
    const assay_shape *shape = &tensor->spec.shape;
    const int axis = shape->rank == 3 && assay_tensor_axis(tensor, "N") != 1 ? 1 : 0; /* [E,K,N]; else the first */
    if (shape->rank < 2) return false;
    const int64_t length = shape->dims[axis], tail = length % TILE != 0 ? length % TILE : TILE < length ? TILE : 1;
    const int64_t outer = assay_axes_product(shape, 0, axis), inner = assay_axes_product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < outer; i++) {
        double *block = tensor->values + i * length * inner;
        for (int64_t k = (length - tail) * inner; k < length * inner; k++) block[k] = 0.0;
    }
    return true;
}

bool assay_edit_times_scaling_factor(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, m->c->config.routed_scaling_factor);
}

/* The last row of the first group that has one goes to the group after it. */
bool assay_edit_move_group_row(const assay_mutation *m, assay_tensor *sizes)
{
    (void)m;
    for (int64_t i = 0; i + 1 < sizes->count; i++) {
        if (sizes->indices[i] == 0) continue;
        sizes->indices[i]--;
        sizes->indices[i + 1]++;
        return true;
    }
    return false;
}

/* The last chosen expert of each token gives way to the first one that was not chosen. */
bool assay_edit_runner_up(const assay_mutation *m, assay_tensor *chosen)
{
    const int64_t k = assay_tensor_width(chosen);
    bool changed = false;
    for (int64_t t = 0; t + k <= chosen->count; t += k) {
        if (chosen->indices[t + k - 1] < 0) continue; /* no expert, whose weight may be NaN */
        for (int32_t e = 0; e < m->c->config.num_experts; e++) {
            bool there = false;
            for (int64_t i = 0; i < k; i++) there |= chosen->indices[t + i] == e;
            if (there) continue;
            chosen->indices[t + k - 1] = e;
            changed = true;
            break;
        }
    }
    return changed;
}

/* Tokens and positions of what came of that are counted from the front again. */
bool assay_edit_count_from_front(const assay_mutation *m)
{
    assay_tensor *order = assay_tensor_set_find(m->tensors, "outputs/sorted_selected_experts");
    for (int64_t i = 0; order != NULL && i < order->count; i++)
        order->indices[i] = (int32_t)order->count - 1 - order->indices[i];
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const bool is_scale = tensor->spec.role == ASSAY_ROLE_ERROR_SCALE;
        if (tensor->values == NULL || (is_scale && !m->own_scales)) continue;
        if (assay_path_ends(tensor->spec.path, "gradients/inputs/x")) assay_edit_reverse_rows(m, tensor);
    }
    return true;
}

/* Rows of no group are taken for rows of the last one. Where they hold NaN there is no such product. */
bool assay_edit_pad_last_group(const assay_mutation *m, assay_tensor *sizes)
{
    const assay_tensor *lhs = assay_tensor_set_find(m->tensors, "inputs/lhs");
    if (lhs == NULL) return false;
    int64_t rest = lhs->spec.shape.dims[0];
    for (int64_t i = 0; i < sizes->count; i++) rest -= sizes->indices[i];
    sizes->indices[sizes->count - 1] += (int32_t)rest;
    return rest > 0;
}
