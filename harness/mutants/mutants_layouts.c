/* Changes of where the rows of groups lie, and of the replicas of experts. */
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

/* Of a tensor [E,...], what each expert has: times its number of replicas, or by it. */
static bool scale_by_replicas(const assay_mutation *m, assay_tensor *tensor, bool times)
{
    const assay_tensor *map = assay_tensor_set_find(m->tensors, "inputs/physical_to_logical_map");
    const int64_t experts = m->c->config.num_experts, size = tensor->count / experts;
    bool changed = false;
    for (int64_t e = 0; map != NULL && e < experts; e++) {
        int64_t replicas = 0;
        for (int64_t p = 0; p < map->count; p++) replicas += map->indices[p] == e;
        const double factor = times ? (double)replicas : 1.0 / (double)replicas;
        for (int64_t i = e * size; i < (e + 1) * size; i++) tensor->values[i] *= factor;
        changed |= replicas > 1;
    }
    return changed;
}

bool assay_edit_times_replica_count(const assay_mutation *m, assay_tensor *tensor)
{
    return scale_by_replicas(m, tensor, true);
}

bool assay_edit_by_replica_count(const assay_mutation *m, assay_tensor *tensor)
{
    return scale_by_replicas(m, tensor, false);
}

static int32_t at_most(int64_t value, int64_t most)
{
    return (int32_t)(value < most ? value : most);
}

/* Where padding holds NaN there is no such product. */
bool assay_edit_contract_padding(const assay_mutation *m, assay_tensor *index)
{
    const assay_tensor *lhs = assay_tensor_set_find(m->tensors, "inputs/lhs");
    const int64_t rows = lhs->spec.shape.dims[lhs->spec.shape.rank - 2];
    const int64_t alignment = m->c->config.mk_alignment_for_contiguous_layout;
    const bool masked = assay_path_ends(index->spec.path, "masked_m");
    bool changed = false;
    for (int64_t i = 0; i < index->count; i++) {
        const int32_t was = index->indices[i];
        if (assay_path_ends(index->spec.path, "m_indices")) {
            if (was < 0 && i % alignment > 0) index->indices[i] = index->indices[i - 1];
        } else {
            index->indices[i] = at_most(masked ? rows : (was + alignment - 1) / alignment * alignment, rows);
        }
        changed |= index->indices[i] != was;
    }
    return changed;
}

bool assay_edit_negatives_to(const assay_mutation *m, assay_tensor *index)
{
    const int32_t to = m->by < 0 ? (int32_t)m->c->config.num_experts - 1 : (int32_t)m->by;
    bool changed = false;
    for (int64_t i = 0; i < index->count; i++) {
        if (index->indices[i] >= 0) continue;
        index->indices[i] = to;
        changed = true;
    }
    return changed;
}

/* Padding stays padding. */
bool assay_edit_group_of_first_row(const assay_mutation *m, assay_tensor *index)
{
    const int64_t block = 2 * m->c->config.mk_alignment_for_contiguous_layout;
    bool changed = false;
    for (int64_t i = 0; i < index->count; i++) {
        const int32_t first = index->indices[i / block * block];
        if (first < 0 || index->indices[i] < 0 || index->indices[i] == first) continue;
        index->indices[i] = first;
        changed = true;
    }
    return changed;
}

/* The others' rows are 0, and their places name the first. */
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
