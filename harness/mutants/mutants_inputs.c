/* Mutants by changed inputs and weights, as the operation reads them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/permute.h"

static bool swap_with(assay_tensor *one, assay_tensor *other)
{
    if (other != NULL) assay_swap_values(one->values, other->values, one->count);
    return other != NULL;
}

bool assay_edit_swap_gate_up(const assay_mutation *m, assay_tensor *tensor)
{
    if (!assay_path_ends(tensor->spec.path, "wi") && !assay_path_ends(tensor->spec.path, "wi/kernel"))
        return swap_with(tensor, assay_tensor_beside(m, tensor, "wi_0", "wi_1"));
    return assay_move_places(m, tensor, "last", assay_gate_for_up);
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

static bool holds(const int32_t *ids, int64_t count, int32_t expert)
{
    bool found = false;
    for (int64_t k = 0; k < count; k++) found |= ids[k] == expert;
    return found;
}

/* The last chosen expert of each token gives way to the first one that was not chosen. */
bool assay_edit_runner_up(const assay_mutation *m, assay_tensor *chosen)
{
    const int64_t k = assay_tensor_width(chosen);
    bool changed = false;
    for (int64_t t = 0; t + k <= chosen->count; t += k) {
        if (chosen->indices[t + k - 1] < 0) continue; /* no expert, whose weight may be NaN */
        int32_t e = 0;
        while (e < m->c->config.num_experts && holds(chosen->indices + t, k, e)) e++;
        if (e == m->c->config.num_experts) continue;
        chosen->indices[t + k - 1] = e;
        changed = true;
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
        for (int64_t i = first, j = end - 1; i < j && j < order->count; i++, j--) {
            const int32_t index = order->indices[i];
            order->indices[i] = order->indices[j];
            order->indices[j] = index;
        }
    }
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const bool is_scale = tensor->spec.role == ASSAY_ROLE_ERROR_SCALE;
        if (tensor->values == NULL || (is_scale && !m->own_scales)) continue;
        if (assay_path_ends(tensor->spec.path, "gradients/inputs/x"))
            assay_move_places(m, tensor, "rows or numbers", assay_reversed);
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

/* Of a layer's first norm and its second. */
bool assay_edit_exchange_layer_norms(const assay_mutation *m, assay_tensor *pre)
{
    return swap_with(pre, assay_tensor_beside(m, pre, "pre_self_attention", "post_self_attention"));
}

/* --- a given choice of experts: what is an input is taken for something else --- */

/* Of inputs/LAYER selected_experts the weights, where they are given. */
static const assay_tensor *weights_of(const assay_mutation *m, const assay_tensor *chosen)
{
    return assay_tensor_beside_of(m, chosen, "selected_experts", "routing_weights");
}

/* A slot of no expert becomes one of the last that its token has not. Beside a weight of NaN nobody would miss it. */
bool assay_edit_none_to_last(const assay_mutation *m, assay_tensor *chosen)
{
    const int64_t count = assay_tensor_width(chosen);
    const assay_tensor *weights = weights_of(m, chosen);
    bool changed = false;
    for (int64_t i = 0; i < chosen->count; i++) {
        const int32_t *token = chosen->indices + i / count * count;
        if (chosen->indices[i] != ASSAY_NO_EXPERT || (weights != NULL && isnan(weights->values[i]))) continue;
        int32_t expert = (int32_t)m->c->config.num_experts - 1;
        while (expert >= 0 && holds(token, count, expert)) expert--;
        if (expert < 0) continue;
        chosen->indices[i] = expert;
        changed = true;
    }
    return changed;
}

static int by_id(const void *a, const void *b)
{
    const int32_t one = *(const int32_t *)a, other = *(const int32_t *)b;
    return (one > other) - (one < other);
}

/* The experts of a token in ascending order, while their weights stay; of a token that has all its slots. */
bool assay_edit_sort_slots(const assay_mutation *m, assay_tensor *chosen)
{
    const int64_t count = assay_tensor_width(chosen);
    if (weights_of(m, chosen) == NULL) return false;
    for (int64_t t = 0; t + count <= chosen->count; t += count) {
        if (!holds(chosen->indices + t, count, ASSAY_NO_EXPERT))
            qsort(chosen->indices + t, (size_t)count, sizeof *chosen->indices, by_id);
    }
    return true;
}
