#include <math.h>
#include <stddef.h>

#include "oracle/moe/permute.h"
#include "oracle/moe/routing.h"

int64_t assay_expert_capacity(const assay_routing_config *config, double capacity_factor)
{
    const int64_t choices = config->sequence * config->num_experts_per_tok;
    const int64_t share = (choices + config->num_experts - 1) / config->num_experts;
    /* A factor past all sense would not fit into the integer. */
    return (int64_t)fmin(fmax((double)share * capacity_factor, capacity_factor), 0x1p62);
}

/* Ranks of the choices of one batch row. Experts are taken in stretches, so that the counts need no memory of their
 * own. */
static void rank_row(int32_t *position, const int32_t *selected, int64_t choices, int64_t experts)
{
    enum { STRETCH = 1024 };
    int32_t seen[STRETCH];
    for (int64_t i = 0; i < choices; i++) position[i] = INT32_MAX; /* no expert: it never fits */
    for (int64_t first = 0; first < experts; first += STRETCH) {
        for (int64_t i = 0; i < STRETCH; i++) seen[i] = 0;
        for (int64_t i = 0; i < choices; i++) {
            const int64_t e = selected[i] - first;
            if (e >= 0 && e < STRETCH) position[i] = seen[e]++;
        }
    }
}

void assay_capacity_masks(bool *kept, int32_t *position, double *combine_mask, const assay_routing *r, int64_t capacity,
                          const assay_routing_config *config)
{
    const int64_t per_token = config->num_experts_per_tok, experts = config->num_experts;
    const int64_t choices = config->sequence * per_token;
    for (int64_t b = 0; b < config->batch; b++) {
        rank_row(position + b * choices, r->selected_experts + b * choices, choices, experts);
    }
    for (int64_t i = 0; i < config->batch * choices; i++)
        kept[i] = position[i] < capacity && r->selected_experts[i] != ASSAY_NO_EXPERT;
    if (combine_mask == NULL) return;
    const int64_t cells = experts * capacity; /* of one token */
    for (int64_t i = 0; i < config->batch * config->sequence * cells; i++) combine_mask[i] = 0.0;
    for (int64_t i = 0; i < config->batch * choices; i++) {
        const int64_t e = r->selected_experts[i];
        if (kept[i]) combine_mask[i / per_token * cells + e * capacity + position[i]] = r->weights[i];
    }
}
