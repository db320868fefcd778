/* Mutants of a given choice of experts: what is an input is taken for something else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "oracle/moe/permute.h"

static bool holds(const int32_t *ids, int64_t count, int32_t expert)
{
    bool found = false;
    for (int64_t k = 0; k < count; k++) found |= ids[k] == expert;
    return found;
}

/* Of inputs/LAYER selected_experts the weights, where they are given. */
static const assay_tensor *weights_of(const assay_mutation *m, const assay_tensor *chosen)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s", chosen->spec.path);
    strcpy(strrchr(path, '/') + 1, "routing_weights");
    return assay_tensor_set_find(m->tensors, path);
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

/* A map of a rank's experts becomes that of one with the first ones. */
bool assay_edit_first_experts(const assay_mutation *m, assay_tensor *map)
{
    bool changed = false;
    for (int64_t e = 0; e < map->count; e++) {
        const int32_t local = e < m->c->config.local_num_experts ? (int32_t)e : ASSAY_NO_EXPERT;
        changed |= map->indices[e] != local;
        map->indices[e] = local;
    }
    return changed;
}
