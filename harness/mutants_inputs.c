/* Mutants by changed inputs and weights, as the operation reads them. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants.h"

bool assay_path_ends(const char *path, const char *name)
{
    const size_t length = strlen(path), tail = strlen(name);
    return length >= tail && strcmp(path + length - tail, name) == 0 && (length == tail || path[length - tail - 1] == '/');
}

/* What changes one tensor; true where it did. */
typedef bool (*tensor_change)(const assay_mutation *m, assay_kept *tensor);

/* All given tensors of that name. */
static bool change_named(const assay_mutation *m, const char *name, tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        if (!assay_path_is_given(tensor->spec->path) || assay_path_in(tensor->spec->path, "cotangents")) continue;
        if (assay_path_ends(tensor->spec->path, name) && tensor->count > 0) changed |= change(m, tensor);
    }
    return changed;
}

static bool fill(assay_kept *tensor, double value)
{
    bool changed = false;
    for (int64_t i = 0; i < tensor->count; i++) {
        changed |= tensor->values[i] != value;
        tensor->values[i] = value;
    }
    return changed;
}

static bool to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, 0.0);
}

static bool to_one(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, 1.0);
}

static bool twice(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= 2;
    return true;
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

static void swap(double *a, double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = a[i];
        a[i] = b[i];
        b[i] = value;
    }
}

static int64_t width_of(const assay_kept *tensor)
{
    const assay_shape *shape = &tensor->spec->shape;
    return shape->rank > 0 ? shape->dims[shape->rank - 1] : 1;
}

/* The place of the axis with that label; -1. */
static int axis_of(const assay_kept *tensor, const char *label)
{
    for (int axis = 0; axis < tensor->spec->shape.rank; axis++) {
        const char *found = tensor->spec->labels[axis];
        if (found != NULL && strcmp(found, label) == 0) return axis;
    }
    return -1;
}

static int64_t product(const assay_shape *shape, int first, int last)
{
    int64_t count = 1;
    for (int axis = first; axis < last; axis++) count *= shape->dims[axis];
    return count;
}

/* Rotates along an axis. */
static bool roll_axis(assay_kept *tensor, int axis)
{
    const assay_shape *shape = &tensor->spec->shape;
    if (axis < 0 || shape->dims[axis] < 2) return false;
    const int64_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < outer; i++) roll(tensor->values + i * shape->dims[axis] * inner, shape->dims[axis], inner);
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
    swap(gate->values, up->values, gate->count);
    return true;
}

static bool swap_fused(const assay_mutation *m, assay_kept *fused)
{
    (void)m;
    const int64_t half = width_of(fused) / 2;
    for (int64_t i = 0; i + 2 * half <= fused->count; i += 2 * half) swap(fused->values + i, fused->values + i + half, half);
    return true;
}

bool assay_mutant_swap_gate_up(const assay_mutation *m)
{
    static const char *const gates[] = {"wi_0", "wi_0/kernel", "wi_0/bias", "wi_0_bias"};
    bool changed = false;
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) changed |= change_named(m, gates[i], swap_with_up);
    changed |= change_named(m, "wi", swap_fused);
    changed |= change_named(m, "wi/kernel", swap_fused);
    return changed;
}

/* Columns g0 u0 g1 u1 ... are taken to be there: what is read as gate is every other column of what is stored. Within a
 * row the reading is a permutation, done by following the places that were overwritten already. */
static bool read_interleaved(const assay_mutation *m, assay_kept *fused)
{
    (void)m;
    const int64_t width = width_of(fused), half = width / 2;
    if (half < 2) return false;
    for (int64_t row = 0; row + width <= fused->count; row += width) {
        double *values = fused->values + row;
        for (int64_t i = 0; i < width; i++) {
            int64_t from = i;
            do {
                from = from < half ? 2 * from : 2 * (from - half) + 1;
            } while (from < i);
            swap(&values[i], &values[from], 1);
        }
    }
    return true;
}

bool assay_mutant_interleave_fused(const assay_mutation *m)
{
    const bool experts = change_named(m, "wi", read_interleaved);
    return change_named(m, "wi/kernel", read_interleaved) || experts;
}

bool assay_mutant_zero_router_bias(const assay_mutation *m)
{
    return change_named(m, "gate/bias", to_zero);
}

static bool roll_columns(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return roll_axis(tensor, tensor->spec->shape.rank - 1);
}

bool assay_mutant_roll_router(const assay_mutation *m)
{
    const bool logits = change_named(m, "logits", roll_columns);
    return change_named(m, "gate/kernel", roll_columns) || logits;
}

static bool roll_first(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return roll_axis(tensor, 0);
}

static const char *const expert_weights[] = {"wi", "wi_0", "wi_1", "wo", "wi_0_bias", "wi_1_bias", "wo_bias", "rhs"};
enum { EXPERT_WEIGHTS = sizeof expert_weights / sizeof *expert_weights };

bool assay_mutant_roll_experts(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < EXPERT_WEIGHTS; i++) changed |= change_named(m, expert_weights[i], roll_first);
    return changed;
}

static bool zero_last_of_first_axis(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t size = product(&tensor->spec->shape, 1, tensor->spec->shape.rank);
    for (int64_t i = tensor->count - size; i < tensor->count; i++) tensor->values[i] = 0.0;
    return true;
}

bool assay_mutant_zero_last_expert(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; i < EXPERT_WEIGHTS; i++) changed |= change_named(m, expert_weights[i], zero_last_of_first_axis);
    return changed;
}

bool assay_mutant_unit_kv_norm(const assay_mutation *m)
{
    return change_named(m, "kv_norm/scale", to_one);
}

bool assay_mutant_unit_q_norm(const assay_mutation *m)
{
    return change_named(m, "q_norm/scale", to_one);
}

bool assay_mutant_unit_norms(const assay_mutation *m)
{
    const bool all = change_named(m, "scale", to_one);
    return change_named(m, "per_expert_scale", to_one) || all;
}

/* Positions are changed where they stay in what the operation accepts. */
static bool change_positions(const assay_mutation *m, int kind)
{
    assay_kept *positions = assay_results_find(m->tensors, "inputs/positions");
    bool changed = false;
    for (int64_t i = 0; positions != NULL && i < positions->count; i++) {
        int32_t *p = &positions->indices[i], old = *p;
        if (kind == 0) *p = 0;
        if (kind == 1 && old + 1 < m->c->config.max_position_embeddings) *p = old + 1;
        if (kind == 2) *p = (int32_t)assay_dtype_round(ASSAY_BFLOAT16, old, false);
        if (*p >= m->c->config.max_position_embeddings) *p = old;
        changed |= *p != old;
    }
    return changed;
}

bool assay_mutant_zero_positions(const assay_mutation *m)
{
    return change_positions(m, 0);
}

bool assay_mutant_shift_positions(const assay_mutation *m)
{
    return change_positions(m, 1);
}

bool assay_mutant_round_positions(const assay_mutation *m)
{
    return change_positions(m, 2);
}

bool assay_mutant_one_segment(const assay_mutation *m)
{
    assay_kept *ids = assay_results_find(m->tensors, "inputs/segment_ids");
    bool changed = false;
    for (int64_t i = 0; ids != NULL && i < ids->count; i++) {
        changed |= ids->indices[i] > 1;
        if (ids->indices[i] > 1) ids->indices[i] = 1; /* padding stays padding */
    }
    return changed;
}

/* A kernel that walks the contracted axis in tiles of 16 and leaves out the last. */
static bool zero_tail_of_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    enum { TILE = 16 };
    const assay_shape *shape = &tensor->spec->shape;
    const int axis = shape->rank == 3 && axis_of(tensor, "N") != 1 ? 1 : 0; /* [E,K,N]; else the first */
    if (shape->rank < 2) return false;
    const int64_t length = shape->dims[axis], tail = length % TILE != 0 ? length % TILE : TILE < length ? TILE : 1;
    const int64_t outer = product(shape, 0, axis), inner = product(shape, axis + 1, shape->rank);
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
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) changed |= change_named(m, names[i], zero_tail_of_rows);
    return changed;
}

/* Each row takes that of the row before it; the first stays. */
static bool lag_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = width_of(tensor);
    if (tensor->spec->shape.rank < 2 || tensor->count < 2 * width) return false;
    memmove(tensor->values + width, tensor->values, (size_t)(tensor->count - width) * sizeof *tensor->values);
    return true;
}

bool assay_mutant_previous_token(const assay_mutation *m)
{
    return change_named(m, "x", lag_rows);
}

static bool times_factor(const assay_mutation *m, assay_kept *tensor)
{
    const double factor = m->c->config.routed_scaling_factor;
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_mutant_scale_shared_expert(const assay_mutation *m)
{
    return change_named(m, "shared_experts/wo/kernel", times_factor);
}

static const char *const biases[] = {"wi_0_bias", "wi_1_bias", "wo_bias", "wi_0/bias", "wi_1/bias", "wo/bias"};

bool assay_mutant_zero_biases(const assay_mutation *m)
{
    bool changed = false;
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++) changed |= change_named(m, biases[i], to_zero);
    return changed;
}

bool assay_mutant_double_down_bias(const assay_mutation *m)
{
    const bool experts = change_named(m, "wo_bias", twice);
    return change_named(m, "wo/bias", twice) || experts;
}

bool assay_mutant_unit_expert_scales(const assay_mutation *m)
{
    return change_named(m, "per_expert_scale", to_one);
}

/* Keys and values lag by one token: the diagonal is where the token before should be. */
static bool lag_tokens(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const int64_t size = product(shape, 2, shape->rank), length = shape->dims[1] * size;
    for (int64_t b = 0; b < shape->dims[0]; b++) {
        double *rows = tensor->values + b * length;
        memmove(rows + size, rows, (size_t)(length - size) * sizeof *rows);
    }
    return shape->dims[1] > 1;
}

bool assay_mutant_shift_keys(const assay_mutation *m)
{
    const bool key = change_named(m, "key", lag_tokens);
    return change_named(m, "value", lag_tokens) && key;
}

static bool times_root_of_width(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const double factor = sqrt((double)width_of(tensor));
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_mutant_scale_query(const assay_mutation *m)
{
    return change_named(m, "query", times_root_of_width) || change_named(m, "wq_b/kernel", times_root_of_width);
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
    const int64_t k = width_of(chosen);
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
    return change_named(m, "weights", to_one);
}

static bool roll_heads_of(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return roll_axis(tensor, axis_of(tensor, "N"));
}

bool assay_mutant_roll_heads(const assay_mutation *m)
{
    return change_named(m, "wq_b/kernel", roll_heads_of) || change_named(m, "query/kernel", roll_heads_of) ||
           change_named(m, "query", roll_heads_of);
}

static bool zero_rope_columns(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t width = width_of(tensor), rope = m->c->config.qk_rope_head_dim;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - rope) tensor->values[i] = 0.0;
    }
    return true;
}

bool assay_mutant_zero_rope_key(const assay_mutation *m)
{
    return change_named(m, "wkv_a/kernel", zero_rope_columns);
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
    const bool logits = change_named(m, "logits", to_zero);
    return change_named(m, "gate/kernel", to_zero) || logits;
}
