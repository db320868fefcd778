/* Mutants of the dispatch of token copies: the order of the sort, rows behind the last group. */
#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/paths.h"

static void reverse_rows(assay_kept *tensor)
{
    const int64_t width = assay_kept_width(tensor), rows = tensor->count / width;
    for (int64_t r = 0; r < rows / 2; r++)
        assay_swap_values(tensor->values + r * width, tensor->values + (rows - 1 - r) * width, width);
}

/* Tokens and their choices back to front: a stable sort then puts of copies for the same expert the last one first. */
bool assay_mutant_reverse_copies(const assay_mutation *m)
{
    assay_kept *x = assay_results_find(m->tensors, "inputs/x");
    if (x == NULL || !assay_mutant_reverse_choices(m)) return false;
    reverse_rows(x);
    return true;
}

/* Tokens and positions of what came of that are counted from the front again. */
bool assay_mutant_count_from_front(const assay_mutation *m)
{
    assay_kept *order = assay_results_find(m->tensors, "outputs/sorted_selected_experts");
    for (int64_t i = 0; order != NULL && i < order->count; i++)
        order->indices[i] = (int32_t)order->count - 1 - order->indices[i];
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        assay_kept *tensor = &m->tensors->items[i];
        const bool is_scale = assay_path_in(tensor->spec->path, "error_scale");
        if (tensor->values == NULL || (is_scale && !m->own_scales)) continue;
        if (assay_path_ends(tensor->spec->path, "gradients/inputs/x")) reverse_rows(tensor);
    }
    return true;
}

/* Rows of no group are taken for rows of the last one. Where they hold NaN there is no such product. */
bool assay_mutant_pad_last_group(const assay_mutation *m)
{
    assay_kept *sizes = assay_results_find(m->tensors, "inputs/group_sizes");
    const assay_kept *lhs = assay_results_find(m->tensors, "inputs/lhs");
    if (sizes == NULL || lhs == NULL) return false;
    int64_t rest = lhs->spec->shape.dims[0];
    for (int64_t i = 0; i < sizes->count; i++) rest -= sizes->indices[i];
    sizes->indices[sizes->count - 1] += (int32_t)rest;
    return rest > 0;
}
