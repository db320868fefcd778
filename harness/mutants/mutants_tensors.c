/* The tensors that a row of the table names, and what the functions that change them share. */
#include "harness/mutants/mutants_tensors.h"

#include <stdio.h>
#include <string.h>

int64_t assay_tensor_width(const assay_tensor *tensor)
{
    const assay_shape *shape = &tensor->spec.shape;
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

void assay_swap_indices(int32_t *a, int32_t *b)
{
    const int32_t index = *a;
    *a = *b;
    *b = index;
}

bool assay_scale_values(assay_tensor *tensor, double factor)
{
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
    return factor != 1.0;
}

bool assay_fill_values(assay_tensor *tensor, int64_t first, double value)
{
    for (int64_t i = first; i < tensor->count; i++) tensor->values[i] = value;
    return true;
}

bool assay_zero_columns(assay_tensor *tensor, int64_t columns)
{
    const int64_t width = assay_tensor_width(tensor);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width - columns) tensor->values[i] = 0.0;
    }
    return true;
}

int64_t assay_axes_product(const assay_shape *shape, int first, int last)
{
    int64_t count = 1;
    for (int axis = first; axis < last; axis++) count *= shape->dims[axis];
    return count;
}

int assay_tensor_axis(const assay_tensor *tensor, const char *label)
{
    for (int axis = 0; axis < tensor->spec.shape.rank; axis++) {
        const char *found = tensor->spec.labels[axis];
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

bool assay_roll_axis(assay_tensor *tensor, int axis)
{
    const assay_shape *shape = &tensor->spec.shape;
    if (axis < 0 || shape->dims[axis] < 2) return false;
    const int64_t outer = assay_axes_product(shape, 0, axis), inner = assay_axes_product(shape, axis + 1, shape->rank);
    for (int64_t i = 0; i < outer; i++) roll(tensor->values + i * shape->dims[axis] * inner, shape->dims[axis], inner);
    return true;
}

bool assay_any_word(const char *words, const char *text, bool (*test)(const char *text, const char *word))
{
    char word[ASSAY_PATH_SIZE];
    for (const char *at = words; *at != '\0'; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        snprintf(word, sizeof word, "%.*s", (int)length, at);
        if (test(text, word)) return true;
        at += length;
    }
    return false;
}

/* The golden's choice of experts is one. */
static bool is_input(const assay_tensors_change *change, const assay_tensor *tensor)
{
    const assay_tensor_role role = tensor->spec.role;
    const bool is_read =
        role == ASSAY_ROLE_INPUT || role == ASSAY_ROLE_WEIGHT || assay_path_is_choice(tensor->spec.path);
    return is_read && assay_any_word(change->of, tensor->spec.path, assay_path_ends);
}

bool assay_path_in(const char *path, const char *folder)
{
    const size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && path[length] == '/';
}

static bool is_result(const assay_tensors_change *change, const char *path)
{
    return assay_any_word(change->of, path, assay_path_in) &&
           (change->named == NULL || assay_any_word(change->named, path, assay_path_ends));
}

static bool is_float_result(const assay_tensors_change *change, const assay_tensor *tensor)
{
    return tensor->values != NULL && is_result(change, tensor->spec.path);
}

static bool is_integer_result(const assay_tensors_change *change, const assay_tensor *tensor)
{
    return tensor->indices != NULL && is_result(change, tensor->spec.path);
}

static bool change_tensors(const assay_mutation *m, const assay_tensors_change *change,
                           bool (*is_meant)(const assay_tensors_change *change, const assay_tensor *tensor))
{
    assay_mutation own = *m;
    bool changed = false;
    own.by = change->by;
    for (int i = 0; change->edit != NULL && i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->count > 0 && is_meant(change, tensor)) changed |= change->edit(&own, tensor);
    }
    return changed;
}

bool assay_mutant_changes_inputs(const assay_mutant *mutant)
{
    return mutant->inputs.edit != NULL || mutant->change_inputs != NULL;
}

/* Beside a changed configuration this is the second half, which may find nothing to do. */
bool assay_mutant_change_inputs(const assay_mutant *mutant, const assay_mutation *m)
{
    if (mutant->where != NULL && !mutant->where(m->c)) return false;
    const bool is_second = mutant->key.how != ASSAY_KEY_STAYS || mutant->configure != NULL;
    bool changed = change_tensors(m, &mutant->inputs, is_input);
    if (mutant->change_inputs != NULL) changed |= mutant->change_inputs(m);
    return changed || is_second || !assay_mutant_changes_inputs(mutant);
}

bool assay_mutant_change_results(const assay_mutant *mutant, const assay_mutation *m)
{
    if (mutant->where != NULL && !mutant->where(m->c)) return false;
    const bool any = mutant->results.edit != NULL || mutant->integers.edit != NULL || mutant->change_results != NULL;
    bool changed = change_tensors(m, &mutant->results, is_float_result);
    changed |= change_tensors(m, &mutant->integers, is_integer_result);
    if (mutant->change_results != NULL) changed |= mutant->change_results(m);
    return changed || !any;
}

bool assay_mutant_takes(const assay_mutant *mutant, const char *path)
{
    return mutant->takes.of == NULL || is_result(&mutant->takes, path);
}
