/* Mutants of functions of the batch-split module, by results that have an axis of shards. */
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

static bool is_function(const assay_case *c)
{
    return c->config.function.text[0] != '\0';
}

bool assay_has_function_shards(const assay_case *c)
{
    return is_function(c) && assay_case_shards(c) > 1;
}

bool assay_has_function_sums(const assay_case *c)
{
    static const char *const names[] = {"unroute",        "unroute_impl", "unroute_impl_fwd",
                                        "route_impl_bwd", "route_bwd",    "quantized_psum_scatter"};
    bool sums = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sums |= strcmp(c->config.function.text, names[i]) == 0;
    return sums && assay_has_expert_shards(c);
}

bool assay_edit_roll_shard_axis(const assay_mutation *m, assay_tensor *tensor)
{
    (void)m;
    return assay_tensor_axis(tensor, "shard") == 0 && tensor->spec.shape.dims[0] > 1 && assay_roll_axis(tensor, 0);
}

/* Where the copy at each place of the sorted rows came from: a stable sort by rolled id. */
static bool find_order(int64_t copies, const int32_t *ids, int64_t *order)
{
    int64_t place = 0;
    for (int32_t id = 0; place < copies && id < copies + 65536; id++) {
        for (int64_t i = 0; i < copies; i++) {
            if (ids[i] == id) order[place++] = i;
        }
    }
    return place == copies;
}

/* outputs/weights [M,R] in the order of outputs/selected_experts. */
bool assay_edit_unsort_weights(const assay_mutation *m)
{
    assay_tensor *weights = assay_tensor_set_find(m->tensors, "outputs/weights");
    const assay_tensor *ids = assay_tensor_set_find(m->tensors, "outputs/selected_experts");
    if (!is_function(m->c) || weights == NULL || ids == NULL || weights->spec.shape.rank != 2) return false;
    const int64_t copies = weights->spec.shape.dims[1];
    int64_t *order = malloc((size_t)copies * sizeof *order);
    double *sorted = malloc((size_t)copies * sizeof *sorted);
    bool changed = false;
    for (int64_t first = 0; order != NULL && sorted != NULL && first < weights->count; first += copies) {
        memcpy(sorted, weights->values + first, (size_t)copies * sizeof *sorted);
        if (ids->count != weights->count || !find_order(copies, ids->indices + first, order)) continue;
        for (int64_t i = 0; i < copies; i++) weights->values[first + order[i]] = sorted[i];
        changed |= memcmp(sorted, weights->values + first, (size_t)copies * sizeof *sorted) != 0;
    }
    free(order);
    free(sorted);
    return changed;
}
