/* Mutants by changed inputs and weights, as the operation reads them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/paths.h"

static bool twice(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= 2;
    return true;
}

/* wi_0 of this path against wi_1. */
static bool swap_with_up(const assay_mutation *m, assay_kept *gate)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s", gate->spec->path);
    char *place = NULL;
    for (char *at = strstr(path, "wi_0"); at != NULL; at = strstr(at + 1, "wi_0")) place = at;
    if (place == NULL) return false;
    place[3] = '1';
    assay_kept *up = assay_results_find(m->tensors, path);
    if (up == NULL || up->count != gate->count) return false;
    assay_swap_values(gate->values, up->values, gate->count);
    return true;
}

static bool swap_fused(const assay_mutation *m, assay_kept *fused)
{
    (void)m;
    const int64_t half = assay_kept_width(fused) / 2;
    for (int64_t i = 0; i + 2 * half <= fused->count; i += 2 * half)
        assay_swap_values(fused->values + i, fused->values + i + half, half);
    return true;
}

bool assay_mutant_swap_gate_up(const assay_mutation *m)
{
    static const char *const gates[] = {"wi_0", "wi_0/kernel", "wi_0/bias", "wi_0_bias"};
    bool changed = false;
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) changed |= assay_change_given(m, gates[i], swap_with_up);
    changed |= assay_change_given(m, "wi", swap_fused);
    changed |= assay_change_given(m, "wi/kernel", swap_fused);
    return changed;
}

/* Columns g0 u0 g1 u1 ... are taken to be there: what is read as gate is every other column of what is stored. Within a
 * row the reading is a permutation, done by following the places that were overwritten already. */
static bool read_interleaved(const assay_mutation *m, assay_kept *fused)
{
    (void)m;
    const int64_t width = assay_kept_width(fused), half = width / 2;
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

bool assay_mutant_interleave_fused(const assay_mutation *m)
{
    const bool experts = assay_change_given(m, "wi", read_interleaved);
    return assay_change_given(m, "wi/kernel", read_interleaved) || experts;
}

bool assay_mutant_zero_router_bias(const assay_mutation *m)
{
    return assay_change_given(m, "gate/bias", assay_values_to_zero);
}

static bool roll_columns(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_roll_axis(tensor, tensor->spec->shape.rank - 1);
}

bool assay_mutant_roll_router(const assay_mutation *m)
{
    const bool logits = assay_change_given(m, "logits", roll_columns);
    return assay_change_given(m, "gate/kernel", roll_columns) || logits;
}

static bool roll_first(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_roll_axis(tensor, 0);
}

static const char *const expert_weights[] = {"wi", "wi_0", "wi_1", "wo", "wi_0_bias", "wi_1_bias", "wo_bias", "rhs"};
enum { EXPERT_WEIGHTS = sizeof expert_weights / sizeof *expert_weights };

bool assay_mutant_roll_experts(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < EXPERT_WEIGHTS; i++) changed |= assay_change_given(m, expert_weights[i], roll_first);
    return changed;
}

static bool zero_last_of_first_axis(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t size = assay_axes_product(&tensor->spec->shape, 1, tensor->spec->shape.rank);
    for (int64_t i = tensor->count - size; i < tensor->count; i++) tensor->values[i] = 0.0;
    return true;
}

bool assay_mutant_zero_last_expert(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < EXPERT_WEIGHTS; i++)
        changed |= assay_change_given(m, expert_weights[i], zero_last_of_first_axis);
    return changed;
}

/* A kernel that walks the contracted axis in tiles of 16 and leaves out the last. */
static bool zero_tail_of_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    enum { TILE = 16 };
    const assay_shape *shape = &tensor->spec->shape;
    const int axis = shape->rank == 3 && assay_kept_axis(tensor, "N") != 1 ? 1 : 0; /* [E,K,N]; else the first */
    if (shape->rank < 2) return false;
    const int64_t length = shape->dims[axis], tail = length % TILE != 0 ? length % TILE : TILE < length ? TILE : 1;
    const int64_t outer = assay_axes_product(shape, 0, axis), inner = assay_axes_product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < outer; i++) {
        double *block = tensor->values + i * length * inner;
        for (int64_t k = (length - tail) * inner; k < length * inner; k++) block[k] = 0.0;
    }
    return true;
}

bool assay_mutant_zero_last_rows(const assay_mutation *m)
{
    static const char *const names[] = {"wo", "wo/kernel", "rhs", "wkv_a/kernel"};
    bool changed = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        changed |= assay_change_given(m, names[i], zero_tail_of_rows);
    return changed;
}

static bool times_factor(const assay_mutation *m, assay_kept *tensor)
{
    const double factor = m->c->config.routed_scaling_factor;
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_mutant_scale_shared_expert(const assay_mutation *m)
{
    return assay_change_given(m, "shared_experts/wo/kernel", times_factor);
}

static const char *const biases[] = {"wi_0_bias", "wi_1_bias", "wo_bias", "wi_0/bias", "wi_1/bias", "wo/bias"};

bool assay_mutant_zero_biases(const assay_mutation *m)
{
    bool changed = false;
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        changed |= assay_change_given(m, biases[i], assay_values_to_zero);
    return changed;
}

bool assay_mutant_double_down_bias(const assay_mutation *m)
{
    const bool experts = assay_change_given(m, "wo_bias", twice);
    return assay_change_given(m, "wo/bias", twice) || experts;
}

bool assay_mutant_unit_expert_scales(const assay_mutation *m)
{
    return assay_change_given(m, "per_expert_scale", assay_values_to_one);
}

/* The last row of the first group that has one goes to the group after it. */
bool assay_mutant_move_group_row(const assay_mutation *m)
{
    assay_kept *sizes = assay_results_find(m->tensors, "inputs/group_sizes");
    for (int64_t i = 0; sizes != NULL && i + 1 < sizes->count; i++) {
        if (sizes->indices[i] == 0) continue;
        sizes->indices[i]--;
        sizes->indices[i + 1]++;
        return true;
    }
    return false;
}

static bool roll_indices(assay_kept *tensor)
{
    bool changed = false;
    for (int64_t i = 0; tensor != NULL && i + 1 < tensor->count; i++) {
        const int32_t value = tensor->indices[i];
        changed |= value != tensor->indices[i + 1];
        tensor->indices[i] = tensor->indices[i + 1];
        tensor->indices[i + 1] = value;
    }
    return changed;
}

bool assay_mutant_roll_groups(const assay_mutation *m)
{
    return roll_indices(assay_results_find(m->tensors, "inputs/group_sizes"));
}

/* The last chosen expert of each token gives way to the first one that was not chosen. */
static bool replace_last(assay_kept *chosen, int64_t experts)
{
    const int64_t k = assay_kept_width(chosen);
    bool changed = false;
    for (int64_t t = 0; t + k <= chosen->count; t += k) {
        for (int32_t e = 0; e < experts; e++) {
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

bool assay_mutant_runner_up(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        const bool choice = assay_path_in(tensor->spec->path, "routing") && tensor->indices != NULL &&
                            strcmp(strrchr(tensor->spec->path, '/'), "/selected_experts") == 0;
        if (choice) changed |= replace_last(tensor, m->c->config.num_experts);
    }
    return changed;
}

static bool reverse(assay_kept *tensor)
{
    for (int64_t i = 0; tensor != NULL && i < tensor->count / 2; i++) {
        const int32_t value = tensor->indices[i];
        tensor->indices[i] = tensor->indices[tensor->count - 1 - i];
        tensor->indices[tensor->count - 1 - i] = value;
    }
    return tensor != NULL && tensor->count > 1;
}

bool assay_mutant_reverse_choices(const assay_mutation *m)
{
    return reverse(assay_results_find(m->tensors, "inputs/selected_experts")) ||
           reverse(assay_results_find(m->tensors, "inputs/sorted_selected_experts"));
}

bool assay_mutant_unit_weights(const assay_mutation *m)
{
    return assay_change_given(m, "weights", assay_values_to_one);
}

bool assay_mutant_first_id(const assay_mutation *m)
{
    assay_kept *ids = assay_results_find(m->tensors, "inputs/input_ids");
    bool changed = false;
    for (int64_t i = 0; ids != NULL && i < ids->count; i++) {
        changed |= ids->indices[i] != 0;
        ids->indices[i] = 0;
    }
    return changed;
}

bool assay_mutant_zero_router(const assay_mutation *m)
{
    const bool logits = assay_change_given(m, "logits", assay_values_to_zero);
    return assay_change_given(m, "gate/kernel", assay_values_to_zero) || logits;
}
