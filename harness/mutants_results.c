/* Mutants by changed results: what a golden holds, tampered with. */
#include <math.h>
#include <string.h>

#include "harness/mutants.h"

typedef bool (*tensor_change)(const assay_mutation *m, assay_kept *tensor);

/* All results that are floats, in the folders of the operation's results. */
static bool is_result(const assay_kept *tensor)
{
    return assay_path_in(tensor->spec->path, "outputs") || assay_path_in(tensor->spec->path, "gradients") ||
           assay_path_in(tensor->spec->path, "checkpoints");
}

static bool change_floats(const assay_mutation *m, const char *folder, tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        if (!is_result(tensor) || tensor->values == NULL || tensor->count == 0) continue;
        if (folder[0] == '\0' || assay_path_in(tensor->spec->path, folder)) changed |= change(m, tensor);
    }
    return changed;
}

static bool change_named(const assay_mutation *m, const char *folder, const char *name, tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        if (tensor->values == NULL || tensor->count == 0) continue;
        if (!assay_path_in(tensor->spec->path, folder) || !assay_path_ends(tensor->spec->path, name)) continue;
        changed |= change(m, tensor);
    }
    return changed;
}

static bool change_integers(const assay_mutation *m, tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        const bool result = is_result(tensor) || assay_path_in(tensor->spec->path, "routing");
        if (result && tensor->indices != NULL && tensor->count > 0) changed |= change(m, tensor);
    }
    return changed;
}

static int64_t width_of(const assay_kept *tensor)
{
    const assay_shape *shape = &tensor->spec->shape;
    return shape->rank > 0 ? shape->dims[shape->rank - 1] : 1;
}

static bool scale(assay_kept *tensor, double factor)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return true;
}

static bool fill(assay_kept *tensor, int64_t first, double value)
{
    for (int64_t i = first; i < tensor->count; i++) tensor->values[i] = value;
    return true;
}

static bool to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, 0, 0.0);
}

static bool to_nan(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, 0, (double)NAN);
}

static bool last_to_nan(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, tensor->count - 1, (double)NAN);
}

static bool negate(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, -1.0);
}

static bool integers_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    memset(tensor->indices, 0, (size_t)tensor->count * sizeof *tensor->indices);
    return true;
}

bool assay_mutant_zero_all(const assay_mutation *m)
{
    const bool integers = change_integers(m, integers_to_zero);
    return change_floats(m, "", to_zero) || integers;
}

bool assay_mutant_nan_all(const assay_mutation *m)
{
    return change_floats(m, "", to_nan);
}

bool assay_mutant_nan_last(const assay_mutation *m)
{
    return change_floats(m, "", last_to_nan);
}

bool assay_mutant_omit_all(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        if (!assay_path_is_given(m->tensors->items[i].spec->path)) m->tensors->items[i].written = 0;
    }
    return true;
}

bool assay_mutant_omit_last(const assay_mutation *m)
{
    for (int i = m->tensors->plan->spec_count - 1; i >= 0; i--) {
        assay_kept *tensor = &m->tensors->items[i];
        const char *path = tensor->spec->path;
        if (!assay_path_in(path, "gradients") && !assay_path_in(path, "outputs")) continue;
        tensor->written = 0;
        return tensor->count > 0;
    }
    return false;
}

bool assay_mutant_zero_outputs(const assay_mutation *m)
{
    return change_floats(m, "outputs", to_zero);
}

bool assay_mutant_zero_gradients(const assay_mutation *m)
{
    return change_floats(m, "gradients", to_zero);
}

bool assay_mutant_zero_weight_gradients(const assay_mutation *m)
{
    return change_floats(m, "gradients/weights", to_zero);
}

bool assay_mutant_zero_input_gradients(const assay_mutation *m)
{
    return change_floats(m, "gradients/inputs", to_zero);
}

bool assay_mutant_zero_router_gradient(const assay_mutation *m)
{
    return change_named(m, "gradients", "gate/kernel", to_zero) || change_named(m, "gradients", "logits", to_zero);
}

bool assay_mutant_negate_outputs(const assay_mutation *m)
{
    return change_floats(m, "outputs", negate);
}

bool assay_mutant_negate_gradients(const assay_mutation *m)
{
    return change_floats(m, "gradients", negate);
}

static bool by_two(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, 2.0);
}

static bool by_half(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, 0.5);
}

static bool by_root(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, sqrt((double)width_of(tensor))) && width_of(tensor) > 1;
}

static bool by_7_bits(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, 1 + 0x1p-7);
}

static bool by_8_bits(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, 1 + 0x1p-8);
}

bool assay_mutant_double_values(const assay_mutation *m)
{
    return change_floats(m, "", by_two);
}

bool assay_mutant_halve_values(const assay_mutation *m)
{
    return change_floats(m, "", by_half);
}

bool assay_mutant_scale_by_root(const assay_mutation *m)
{
    return change_floats(m, "", by_root);
}

bool assay_mutant_scale_7_bits(const assay_mutation *m)
{
    return change_floats(m, "", by_7_bits);
}

bool assay_mutant_scale_8_bits(const assay_mutation *m)
{
    return change_floats(m, "", by_8_bits);
}

static void swap(double *a, double *b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const double value = a[i];
        a[i] = b[i];
        b[i] = value;
    }
}

static bool reverse(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = tensor->spec->shape.rank > 1 ? width_of(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = 0; i < rows / 2; i++) {
        swap(tensor->values + i * width, tensor->values + (rows - 1 - i) * width, width);
    }
    return rows > 1;
}

/* Row i is what row i - 1 should be; the first is what the last should be. */
static bool shift(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = tensor->spec->shape.rank > 1 ? width_of(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = rows - 1; i > 0; i--) {
        swap(tensor->values + i * width, tensor->values + (i - 1) * width, width);
    }
    return rows > 1;
}

bool assay_mutant_reverse_rows(const assay_mutation *m)
{
    return change_floats(m, "", reverse);
}

bool assay_mutant_shift_rows(const assay_mutation *m)
{
    return change_floats(m, "", shift);
}

static bool transpose(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const int64_t n = width_of(tensor);
    if (shape->rank < 2 || shape->dims[shape->rank - 2] != n || n < 2) return false;
    for (int64_t block = 0; block < tensor->count; block += n * n) {
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j < i; j++) {
                swap(tensor->values + block + i * n + j, tensor->values + block + j * n + i, 1);
            }
        }
    }
    return true;
}

bool assay_mutant_transpose_square(const assay_mutation *m)
{
    return change_floats(m, "", transpose);
}

static bool swap_first_last_column(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = width_of(tensor);
    for (int64_t row = 0; row < tensor->count; row += width) {
        swap(tensor->values + row, tensor->values + row + width - 1, 1);
    }
    return width > 1;
}

bool assay_mutant_swap_columns(const assay_mutation *m)
{
    return change_floats(m, "", swap_first_last_column);
}

static bool swap_halves_of_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = width_of(tensor), half = width / 2;
    for (int64_t row = 0; row < tensor->count; row += width) {
        swap(tensor->values + row, tensor->values + row + width - half, half);
    }
    return half > 0;
}

bool assay_mutant_swap_halves(const assay_mutation *m)
{
    return change_floats(m, "", swap_halves_of_rows);
}

static bool last_row_to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return fill(tensor, tensor->count - width_of(tensor), 0.0);
}

static bool last_row_stale(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = width_of(tensor);
    double *last = tensor->values + tensor->count - width;
    if (tensor->count < 2 * width) return false;
    memcpy(last, last - width, (size_t)width * sizeof *last);
    return true;
}

bool assay_mutant_zero_last_row(const assay_mutation *m)
{
    return change_floats(m, "", last_row_to_zero);
}

bool assay_mutant_stale_last_row(const assay_mutation *m)
{
    return change_floats(m, "", last_row_stale);
}

/* The last 128 columns, or the last half where there are no more than 128. */
static bool scale_tile(assay_kept *tensor, double factor)
{
    enum { TILE = 128 };
    const int64_t width = width_of(tensor), tail = width % TILE;
    const int64_t columns = width <= TILE ? width - width / 2 : tail != 0 ? tail : TILE;
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - columns) tensor->values[i] *= factor;
    }
    return true;
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
    return change_floats(m, "", tile_to_zero);
}

bool assay_mutant_scale_last_tile(const assay_mutation *m)
{
    return change_floats(m, "", tile_off);
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
    return change_floats(m, "", last_expert_to_zero);
}

bool assay_mutant_double_last_expert(const assay_mutation *m)
{
    return change_floats(m, "", last_expert_twice);
}

bool assay_mutant_zero_last_head(const assay_mutation *m)
{
    return change_floats(m, "", last_head_to_zero);
}

bool assay_mutant_zero_last_batch(const assay_mutation *m)
{
    return change_floats(m, "", last_batch_to_zero);
}

/* Towards zero. The grid's next number is one relative step of twice the unit roundoff away at most. */
static bool truncate(const assay_mutation *m, assay_kept *tensor)
{
    const assay_dtype type = m->profile->storage;
    if (type == ASSAY_FLOAT64) return false;
    const double step = assay_dtype_unit_roundoff(type), least = assay_dtype_least_subnormal(type);
    for (int64_t i = 0; i < tensor->count; i++) {
        const double value = tensor->values[i], nearest = assay_dtype_round(type, value, false);
        if (!isfinite(value) || fabs(nearest) <= fabs(value)) {
            tensor->values[i] = nearest;
            continue;
        }
        /* rounded away from zero: take off a little more than half of a step, and round again */
        const double less = fmax(0.0, fabs(nearest) - fmax(1.5 * step * fabs(nearest) / 2, 0.75 * least));
        tensor->values[i] = copysign(assay_dtype_round(type, less, false), value);
    }
    return true;
}

bool assay_mutant_truncate_values(const assay_mutation *m)
{
    return change_floats(m, "", truncate);
}

/* The next coarser type that is in use. */
static bool coarser(const assay_mutation *m, assay_kept *tensor)
{
    const assay_dtype type = m->profile->storage;
    const assay_dtype less = type == ASSAY_FLOAT64   ? ASSAY_FLOAT32
                             : type == ASSAY_FLOAT32 ? ASSAY_BFLOAT16
                             : type == ASSAY_FLOAT16 ? ASSAY_BFLOAT16
                                                     : ASSAY_FLOAT8_E4M3FN;
    assay_dtype_round_many(less, tensor->count, tensor->values, tensor->values);
    return true;
}

bool assay_mutant_coarser_values(const assay_mutation *m)
{
    return change_floats(m, "", coarser);
}

static bool to_base_2(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return scale(tensor, 1.4426950408889634); /* 1 / log 2 */
}

bool assay_mutant_base_2_lse(const assay_mutation *m)
{
    return change_named(m, "outputs", "lse", to_base_2);
}

static bool plus_one(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    for (int64_t i = 0; i < tensor->count; i++) tensor->indices[i] += 1;
    return true;
}

static bool roll(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    for (int64_t i = 0; i + 1 < tensor->count; i++) {
        const int32_t value = tensor->indices[i];
        tensor->indices[i] = tensor->indices[i + 1];
        tensor->indices[i + 1] = value;
    }
    return tensor->count > 1;
}

bool assay_mutant_integers_off_by_one(const assay_mutation *m)
{
    return change_integers(m, plus_one);
}

bool assay_mutant_roll_integers(const assay_mutation *m)
{
    return change_integers(m, roll);
}

bool assay_mutant_zero_balance_loss(const assay_mutation *m)
{
    return change_named(m, "outputs", "lb_loss", to_zero);
}

bool assay_mutant_negate_bias_updates(const assay_mutation *m)
{
    return change_named(m, "outputs", "bias_updates", negate);
}

/* The first two experts' parts exchanged. */
static bool swap_first_experts(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const char *label = shape->rank > 1 ? tensor->spec->labels[0] : NULL;
    if (label == NULL || (strcmp(label, "E") != 0 && strcmp(label, "G") != 0) || shape->dims[0] < 2) return false;
    const int64_t size = tensor->count / shape->dims[0];
    swap(tensor->values, tensor->values + size, size);
    return true;
}

bool assay_mutant_swap_expert_rows(const assay_mutation *m)
{
    return change_floats(m, "", swap_first_experts);
}
