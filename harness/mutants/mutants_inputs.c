/* Mutants by changed inputs and weights, as the operation reads them. */
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/prefused.h"

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
    const int64_t half = assay_tensor_width(tensor) / m->c->config.w13_reorder_size / 2; /* of a tensor shard */
    for (int64_t at = 0; at + half < tensor->count; at += 2 * half)
        assay_swap_values(tensor->values + at, tensor->values + at + half, half);
    return half > 0;
}

/* What is read in a place of a row is what is stored in `from` of it, a permutation, which is done in place by following the
 * places that were overwritten already. */
static void read_from(assay_tensor *fused, int64_t (*from)(int64_t place, int64_t half, int64_t shards), int64_t shards)
{
    const int64_t width = assay_tensor_width(fused);
    for (int64_t row = 0; row + width <= fused->count; row += width) {
        double *values = fused->values + row;
        for (int64_t i = 0; i < width; i++) {
            int64_t stored = i;
            do {
                stored = from(stored, width / 2, shards);
            } while (stored < i);
            assay_swap_values(&values[i], &values[stored], 1);
        }
    }
}

/* Columns g0 u0 g1 u1 ... are taken to be there: as many shards as columns of gate. */
bool assay_edit_interleave(const assay_mutation *m, assay_tensor *fused)
{
    const int64_t half = assay_tensor_width(fused) / 2;
    if (half < 2 || m->c->config.w13_reorder_size > 1) return false;
    read_from(fused, assay_prefused_place, half);
    return true;
}

/* Gate and up of each of two tensor shards are taken to be side by side where all of gate comes first, or the reverse. */
bool assay_edit_other_layout(const assay_mutation *m, assay_tensor *fused)
{
    const int64_t shards = m->c->config.w13_reorder_size, half = assay_tensor_width(fused) / 2;
    if (shards == 1 && half % 2 != 0) return false;
    read_from(fused, shards == 1 ? assay_prefused_place : assay_prefused_column, shards == 1 ? 2 : shards);
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

/* The weights of the slots are 1, or 1 over the factor where the sum is multiplied by it; here the other way round. */
bool assay_edit_scale_shared_slots(const assay_mutation *m, assay_tensor *wo)
{
    const assay_model_config *config = &m->c->config;
    const int64_t slots = config->num_fused_shared_experts;
    const double factor = config->routed_scaling_factor;
    const int64_t first = wo->count - slots * (wo->count / wo->spec.shape.dims[0]);
    for (int64_t i = first; i < wo->count; i++)
        wo->values[i] *= config->apply_routed_scaling_factor_on_output ? 1.0 / factor : factor;
    return slots > 0 && factor != 1.0;
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

/* Positions of what came of that are counted from the front again, and within an expert's copies put into the order of a
 * stable sort: the order that the rows do not have. Tokens are counted from the front, too. */
bool assay_edit_count_from_front(const assay_mutation *m)
{
    const assay_tensor *order = assay_tensor_set_find(m->tensors, "outputs/sorted_selected_experts");
    const assay_tensor *sizes = assay_tensor_set_find(m->tensors, "outputs/group_sizes");
    for (int64_t i = 0; order != NULL && i < order->count; i++)
        order->indices[i] = (int32_t)order->count - 1 - order->indices[i];
    for (int64_t e = 0, end = 0; order != NULL && sizes != NULL && e < sizes->count; e++) {
        const int64_t first = end;
        end += sizes->indices[e];
        /* counted from the front, those of an expert go down */
        for (int64_t i = first, j = end - 1; i < j && j < order->count; i++, j--)
            assay_swap_indices(&order->indices[i], &order->indices[j]);
    }
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
