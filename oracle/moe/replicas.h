/* Physical experts (deepseek-ai/EPLB; vLLM and SGLang balance experts so): copies of the experts, of which those with many
 * tokens have several, its replicas. physical_to_logical [P] says of which expert each is a copy; every expert has one.
 *
 * Which replica a token goes to changes nothing but where it is computed, so an engine may choose any. Here the copy of
 * token t for an expert with n replicas goes to the one at t mod n, by ascending physical id. The gradient of an expert is the
 * sum of its replicas'. Refused: an id outside [0,E), an expert without a replica. */
#pragma once

#include "oracle/moe/permute.h"

/* Starts zeroed. */
typedef struct assay_replicas {
    int64_t experts, physical, most; /* E, P, replicas that one expert has at most */
    int32_t *first;                  /* [E+1]: an expert's replicas are ids[first] to ids[first of the next - 1] */
    int32_t *ids;                    /* [P]: expert after expert, ascending */
    int32_t *place;                  /* [P]: of a physical expert in `ids` */
} assay_replicas;

assay_status assay_replicas_make(assay_context *ctx, assay_replicas *r, const int32_t *physical_to_logical,
                                 int64_t physical, int64_t experts);
void assay_replicas_free(assay_replicas *r); /* safe on a zeroed struct */

/* physical_experts [T,K] of selected_experts [T,K]; numbers [T] of the tokens, NULL: 0 and up. */
void assay_replicas_choose(const assay_replicas *r, int32_t *physical_experts, const int32_t *selected_experts,
                           const int32_t *numbers, const assay_permute_dims *dims);
