/* Changes of whole tensors, mostly of results: what a golden holds, tampered with. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

bool assay_edit_omit_all(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->count; i++)
        if (!assay_role_is_input(m->tensors->items[i].spec.role)) m->tensors->items[i].written = 0;
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

/* Experts for which the golden has zeros. */
bool assay_edit_empty_experts_to_nan(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    const bool by_expert = assay_tensor_axis(tensor, "E") == 0 || assay_tensor_axis(tensor, "G") == 0;
    if (!by_expert || tensor->spec.shape.rank < 2) return false;
    const int64_t size = tensor->count / tensor->spec.shape.dims[0];
    bool changed = false;
    for (int64_t first = 0; first < tensor->count; first += size) {
        bool empty = true;
        for (int64_t i = first; empty && i < first + size; i++) empty = tensor->values[i] == 0.0;
        for (int64_t i = first; empty && i < first + size; i++) tensor->values[i] = (double)NAN;
        changed |= empty;
    }
    return changed;
}

/* How many of them come before it, in a stable sort. */
static int64_t place_of(const int32_t *ids, int64_t count, int64_t at)
{
    int64_t place = 0;
    for (int64_t i = 0; i < count; i++) place += ids[i] < ids[at] || (ids[i] == ids[at] && i < at);
    return place;
}

/* Of a function of the batch-split module, whose rows are sorted by rolled id: outputs/weights [M,R] in the order of
 * outputs/selected_experts. */
bool assay_edit_unsort_weights(const assay_mutation *m)
{
    assay_tensor *weights = assay_tensor_set_find(m->tensors, "outputs/weights");
    const assay_tensor *ids = assay_tensor_set_find(m->tensors, "outputs/selected_experts");
    const bool is_function = m->c->config.function.text[0] != '\0';
    bool changed = false;
    if (!is_function || weights == NULL || ids == NULL || weights->spec.shape.rank != 2) return false;
    if (ids->count != weights->count) return false;
    memcpy(m->scratch, weights->values, (size_t)weights->count * sizeof *weights->values);
    for (int64_t i = 0; i < weights->count; i++) {
        const int64_t copies = weights->spec.shape.dims[1], first = i / copies * copies;
        weights->values[i] = m->scratch[first + place_of(ids->indices + first, copies, i - first)];
        changed |= weights->values[i] != m->scratch[i];
    }
    return changed;
}

/* Of the copies for an expert: the others' rows are 0, and their places name the first. */
bool assay_edit_keep_first_copies(const assay_mutation *m)
{
    const assay_tensor *order = assay_tensor_set_find(m->tensors, "outputs/sorted_selected_experts");
    const assay_tensor *rows = assay_tensor_set_find(m->tensors, "outputs/sorted_inputs");
    const assay_tensor *sizes = assay_tensor_set_find(m->tensors, "outputs/group_sizes");
    bool changed = false;
    if (order == NULL || rows == NULL || sizes == NULL) return false;
    const int64_t width = assay_tensor_width(rows);
    for (int64_t e = 0, first = 0; e < sizes->count; first += sizes->indices[e], e++) {
        for (int64_t j = first + 1; j < first + sizes->indices[e] && j < order->count; j++) {
            order->indices[j] = order->indices[first];
            memset(rows->values + j * width, 0, (size_t)width * sizeof *rows->values);
            changed = true;
        }
    }
    return changed;
}

bool assay_edit_sinks_in_lse(const assay_mutation *m)
{
    assay_tensor *lse = assay_tensor_set_find(m->tensors, "outputs/lse");
    const assay_tensor *sinks = assay_tensor_set_find(m->tensors, "weights/sinks");
    if (lse == NULL || sinks == NULL) return false;
    const int64_t beside = strcmp(m->c->config.lse_layout.text, "BSN") == 0 ? 1 : m->c->sequence;
    for (int64_t i = 0; i < lse->count; i++) {
        const double sink = sinks->values[i / beside % sinks->count];
        const double larger = fmax(lse->values[i], sink);
        lse->values[i] = larger + log1p(exp(fmin(lse->values[i], sink) - larger));
    }
    return true;
}
