/* Mutants by changed results: what a golden holds, tampered with. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/paths.h"

static bool change_named(const assay_mutation *m, const char *folder, const char *name, assay_tensor_change change)
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

static bool change_integers(const assay_mutation *m, assay_tensor_change change)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        const bool result =
            assay_path_in(tensor->spec->path, "outputs") || assay_path_in(tensor->spec->path, "routing");
        if (result && tensor->indices != NULL && tensor->count > 0) changed |= change(m, tensor);
    }
    return changed;
}

static bool to_zero(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_fill_values(tensor, 0, 0.0);
}

static bool to_nan(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_fill_values(tensor, 0, (double)NAN);
}

static bool last_to_nan(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_fill_values(tensor, tensor->count - 1, (double)NAN);
}

static bool negate(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, -1.0);
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
    return assay_change_floats(m, "", to_zero) || integers;
}

bool assay_mutant_nan_all(const assay_mutation *m)
{
    return assay_change_floats(m, "", to_nan);
}

bool assay_mutant_nan_last(const assay_mutation *m)
{
    return assay_change_floats(m, "", last_to_nan);
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
    return assay_change_floats(m, "outputs", to_zero);
}

bool assay_mutant_zero_gradients(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients", to_zero);
}

bool assay_mutant_zero_weight_gradients(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients/weights", to_zero);
}

bool assay_mutant_zero_input_gradients(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients/inputs", to_zero);
}

bool assay_mutant_zero_router_gradient(const assay_mutation *m)
{
    return change_named(m, "gradients", "gate/kernel", to_zero) || change_named(m, "gradients", "logits", to_zero);
}

bool assay_mutant_negate_outputs(const assay_mutation *m)
{
    return assay_change_floats(m, "outputs", negate);
}

bool assay_mutant_negate_gradients(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients", negate);
}

static bool by_two(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, 2.0);
}

static bool by_half(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, 0.5);
}

static bool by_root(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, sqrt((double)assay_kept_width(tensor))) && assay_kept_width(tensor) > 1;
}

static bool by_7_bits(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, 1 + 0x1p-7);
}

static bool by_8_bits(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, 1 + 0x1p-8);
}

bool assay_mutant_double_values(const assay_mutation *m)
{
    return assay_change_floats(m, "", by_two);
}

bool assay_mutant_halve_values(const assay_mutation *m)
{
    return assay_change_floats(m, "", by_half);
}

bool assay_mutant_scale_by_root(const assay_mutation *m)
{
    return assay_change_floats(m, "", by_root);
}

bool assay_mutant_scale_7_bits(const assay_mutation *m)
{
    return assay_change_floats(m, "", by_7_bits);
}

bool assay_mutant_scale_8_bits(const assay_mutation *m)
{
    return assay_change_floats(m, "", by_8_bits);
}

static bool reverse(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = tensor->spec->shape.rank > 1 ? assay_kept_width(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = 0; i < rows / 2; i++) {
        assay_swap_values(tensor->values + i * width, tensor->values + (rows - 1 - i) * width, width);
    }
    return rows > 1;
}

/* Row i is what row i - 1 should be; the first is what the last should be. */
static bool shift(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = tensor->spec->shape.rank > 1 ? assay_kept_width(tensor) : 1, rows = tensor->count / width;
    for (int64_t i = rows - 1; i > 0; i--) {
        assay_swap_values(tensor->values + i * width, tensor->values + (i - 1) * width, width);
    }
    return rows > 1;
}

bool assay_mutant_reverse_rows(const assay_mutation *m)
{
    return assay_change_floats(m, "", reverse);
}

bool assay_mutant_shift_rows(const assay_mutation *m)
{
    return assay_change_floats(m, "", shift);
}

static bool transpose(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const assay_shape *shape = &tensor->spec->shape;
    const int64_t n = assay_kept_width(tensor);
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

bool assay_mutant_transpose_square(const assay_mutation *m)
{
    return assay_change_floats(m, "", transpose);
}

static bool swap_first_last_column(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = assay_kept_width(tensor);
    for (int64_t row = 0; row < tensor->count; row += width) {
        assay_swap_values(tensor->values + row, tensor->values + row + width - 1, 1);
    }
    return width > 1;
}

bool assay_mutant_swap_columns(const assay_mutation *m)
{
    return assay_change_floats(m, "", swap_first_last_column);
}

static bool swap_halves_of_rows(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    const int64_t width = assay_kept_width(tensor), half = width / 2;
    for (int64_t row = 0; row < tensor->count; row += width) {
        assay_swap_values(tensor->values + row, tensor->values + row + width - half, half);
    }
    return half > 0;
}

bool assay_mutant_swap_halves(const assay_mutation *m)
{
    return assay_change_floats(m, "", swap_halves_of_rows);
}

static bool to_base_2(const assay_mutation *m, assay_kept *tensor)
{
    (void)m;
    return assay_scale_values(tensor, 1.4426950408889634); /* 1 / log 2 */
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
