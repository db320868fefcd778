#include "oracle/moe/replicas.h"

#include <inttypes.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

assay_status assay_replicas_make(assay_context *ctx, assay_replicas *r, const int32_t *physical_to_logical,
                                 int64_t physical, int64_t experts)
{
    assay_status status;
    *r = (assay_replicas){.experts = experts, .physical = physical};
    TRY(assay_alloc_i32(ctx, "replicas", experts + 1, &r->first));
    TRY(assay_alloc_i32(ctx, "replicas", physical, &r->ids));
    TRY(assay_alloc_i32(ctx, "replicas", physical, &r->place));
    for (int64_t p = 0; p < physical; p++) {
        if (physical_to_logical[p] >= 0 && physical_to_logical[p] < experts) continue;
        status = assay_refuse(ctx, "physical_to_logical_map[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, p,
                              physical_to_logical[p], experts - 1);
        goto cleanup;
    }
    r->first[0] = 0;
    for (int64_t e = 0; e < experts; e++) {
        int32_t next = r->first[e];
        for (int64_t p = 0; p < physical; p++) {
            if (physical_to_logical[p] != e) continue;
            r->place[p] = next;
            r->ids[next++] = (int32_t)p;
        }
        const int64_t replicas = next - r->first[e];
        if (replicas == 0) {
            status = assay_refuse(
                ctx, "physical_to_logical_map has no replica of expert %" PRId64 ", expected one or more", e);
            goto cleanup;
        }
        r->first[e + 1] = next;
        if (replicas > r->most) r->most = replicas;
    }
cleanup:
    if (status != ASSAY_OK) assay_replicas_free(r);
    return status;
}

void assay_replicas_free(assay_replicas *r)
{
    free(r->first);
    free(r->ids);
    free(r->place);
    *r = (assay_replicas){0};
}

void assay_replicas_choose(const assay_replicas *r, int32_t *physical_experts, const int32_t *selected_experts,
                           const int32_t *numbers, const assay_permute_dims *dims)
{
    for (int64_t i = 0; i < dims->tokens * dims->experts_per_token; i++) {
        physical_experts[i] = ASSAY_NO_EXPERT;
        if (selected_experts[i] == ASSAY_NO_EXPERT) continue;
        const int32_t *first = r->first + selected_experts[i];
        const int64_t place = i / dims->experts_per_token, token = numbers == NULL ? place : numbers[place];
        physical_experts[i] = r->ids[first[0] + token % (first[1] - first[0])];
    }
}
