#include "oracle/moe/permute.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/vector_sums.h"

/* T*K, whose positions must fit in int32. */
static assay_status count_copies(assay_context *ctx, const assay_permute_dims *dims, int64_t *copies)
{
    const int64_t shape[] = {dims->tokens, dims->experts_per_token};
    MUST(assay_checked_count(ctx, "selected_experts", 2, shape, copies));
    if (*copies <= INT32_MAX) return ASSAY_OK;
    return assay_refuse(ctx, "%" PRId64 " copies of tokens, expected at most %" PRId32, *copies, INT32_MAX);
}

static assay_status count_groups(assay_context *ctx, int32_t *group_sizes, const int32_t *selected_experts,
                                 int64_t copies, const assay_permute_dims *dims)
{
    memset(group_sizes, 0, (size_t)dims->experts * sizeof *group_sizes);
    for (int64_t i = 0; i < copies; i++) {
        const int32_t expert = selected_experts[i];
        if (expert < ASSAY_NO_EXPERT || expert >= dims->experts) {
            return assay_refuse(ctx,
                                "selected_experts[%" PRId64 ",%" PRId64 "] is %" PRId32 ", expected -1 to %" PRId64,
                                i / dims->experts_per_token, i % dims->experts_per_token, expert, dims->experts - 1);
        }
        if (expert != ASSAY_NO_EXPERT) group_sizes[expert]++;
    }
    return ASSAY_OK;
}

assay_status assay_permute_order(assay_context *ctx, int32_t *order, int32_t *group_sizes,
                                 const int32_t *selected_experts, const assay_permute_dims *dims)
{
    int64_t copies = 0;
    OWNED int32_t *next = NULL; /* where the next copy of each expert goes */
    MUST(count_copies(ctx, dims, &copies));
    MUST(count_groups(ctx, group_sizes, selected_experts, copies, dims));
    MUST(assay_alloc_i32(ctx, "starts of groups", dims->experts, &next));
    int64_t sorted = 0;
    for (int64_t e = 0; e < dims->experts; sorted += group_sizes[e], e++) next[e] = (int32_t)sorted;
    for (int64_t i = 0; i < copies; i++)
        if (selected_experts[i] != ASSAY_NO_EXPERT) order[next[selected_experts[i]]++] = (int32_t)i;
    for (int64_t j = sorted; j < copies; j++) order[j] = ASSAY_NO_EXPERT;
    return ASSAY_OK;
}

void assay_roll_experts(int32_t *ids, int64_t count, int64_t first, int64_t experts)
{
    for (int64_t i = 0; i < count; i++)
        if (ids[i] != ASSAY_NO_EXPERT) ids[i] = (int32_t)((ids[i] - first + experts) % experts);
}

/* place[copy]: where the order has it first, -1 where it has not. */
static assay_status place_copies(assay_context *ctx, const char *path, const int32_t *order, int64_t copies,
                                 int64_t experts_per_token, int32_t *place)
{
    int64_t again = -1, missing = 0;
    for (int64_t i = 0; i < copies; i++) place[i] = -1;
    for (int64_t j = 0; j < copies; j++) {
        if (order[j] < 0 || order[j] >= copies) {
            return assay_refuse(ctx, "%s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64, path, j, order[j],
                                copies - 1);
        }
        if (place[order[j]] >= 0 && again < 0) again = j;
        if (place[order[j]] < 0) place[order[j]] = (int32_t)j;
    }
    if (again < 0) return ASSAY_OK;
    while (place[missing] >= 0) missing++;
    return assay_refuse(ctx,
                        "%s[%" PRId64 "] is %" PRId32 ", which stands at %" PRId32 " already; %" PRId64
                        " (token %" PRId64 ", slot %" PRId64 ") is missing",
                        path, again, order[again], place[order[again]], missing, missing / experts_per_token,
                        missing % experts_per_token);
}

assay_status assay_permute_check_order(assay_context *ctx, const char *path, const int32_t *order,
                                       const int32_t *expert_of, const int32_t *group_sizes,
                                       const assay_permute_dims *dims)
{
    int64_t copies = 0, group = -1, end = 0;
    OWNED int32_t *place = NULL;
    MUST(count_copies(ctx, dims, &copies));
    MUST(assay_alloc_i32(ctx, path, copies, &place));
    MUST(place_copies(ctx, path, order, copies, dims->experts_per_token, place));
    for (int64_t j = 0; j < copies; j++) {
        while (j >= end && group + 1 < dims->experts) end += group_sizes[++group];
        if (expert_of[order[j]] == group) continue;
        return assay_refuse(ctx,
                            "%s[%" PRId64 "] is %" PRId32 " (token %" PRId64 ", slot %" PRId64 ") of expert %" PRId32
                            ", among the rows of expert %" PRId64,
                            path, j, order[j], order[j] / dims->experts_per_token, order[j] % dims->experts_per_token,
                            expert_of[order[j]], group);
    }
    return ASSAY_OK;
}

/* place[order[j]] = j, -1 of a choice that no row is of; *place is allocated. */
static assay_status invert(assay_context *ctx, int32_t **place, const int32_t *order, const assay_permute_dims *dims)
{
    int64_t copies = 0;
    OWNED int32_t *inverse = NULL;
    MUST(count_copies(ctx, dims, &copies));
    MUST(assay_alloc_i32(ctx, "inverse order", copies, &inverse));
    for (int64_t i = 0; i < copies; i++) inverse[i] = -1;
    for (int64_t j = 0; j < copies; j++) {
        if (order[j] == ASSAY_NO_EXPERT) continue;
        if (order[j] < 0 || order[j] >= copies || inverse[order[j]] >= 0) {
            return assay_refuse(ctx,
                                "sorted_selected_experts[%" PRId64 "] is %" PRId32
                                ", expected each number from 0 to %" PRId64 " once, or -1",
                                j, order[j], copies - 1);
        }
        inverse[order[j]] = (int32_t)j;
    }
    *place = inverse;
    inverse = NULL;
    return ASSAY_OK;
}

void assay_permute_forward(double *sorted_inputs, const double *x, const int32_t *order, const assay_permute_dims *dims)
{
    const int64_t copies = dims->tokens * dims->experts_per_token, dim = dims->emb_dim;
    for (int64_t j = 0; j < copies; j++) {
        double *row = sorted_inputs + j * dim;
        if (order[j] == ASSAY_NO_EXPERT)
            memset(row, 0, (size_t)dim * sizeof *row);
        else
            memcpy(row, x + order[j] / dims->experts_per_token * dim, (size_t)dim * sizeof *x);
    }
}

assay_status assay_unpermute_forward(assay_context *ctx, double *y, const double *sorted, const int32_t *order,
                                     const double *weights, const assay_permute_dims *dims)
{
    const int64_t per_token = dims->experts_per_token, dim = dims->emb_dim;
    int32_t *place = NULL;
    MUST(invert(ctx, &place, order, dims));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < dims->tokens; t++) {
        memset(y + t * dim, 0, (size_t)dim * sizeof *y);
        for (int64_t i = t * per_token; i < (t + 1) * per_token; i++) {
            if (place[i] < 0) continue;
            assay_add_scaled(ctx, dim, weights == NULL ? 1 : weights[i], sorted + place[i] * dim, y + t * dim);
        }
    }
    free(place);
    return ASSAY_OK;
}

assay_status assay_unpermute_backward(assay_context *ctx, double *d_sorted, double *d_weights, const double *dy,
                                      const double *sorted, const int32_t *order, const double *weights,
                                      const assay_permute_dims *dims)
{
    const int64_t per_token = dims->experts_per_token, dim = dims->emb_dim;
    int32_t *place = NULL;
    MUST(invert(ctx, &place, order, dims));
    for (int64_t j = 0; d_sorted != NULL && j < dims->tokens * per_token; j++)
        if (order[j] == ASSAY_NO_EXPERT) memset(d_sorted + j * dim, 0, (size_t)dim * sizeof *d_sorted);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < dims->tokens * per_token; i++) {
        if (place[i] < 0) {
            if (d_weights != NULL) d_weights[i] = 0;
            continue;
        }
        const double *dy_row = dy + i / per_token * dim;
        const int64_t at = place[i] * dim;
        const double weight = weights == NULL ? 1 : weights[i];
        for (int64_t d = 0; d_sorted != NULL && d < dim; d++) d_sorted[at + d] = weight * dy_row[d];
        if (d_weights != NULL) d_weights[i] = assay_dot(ctx, dim, sorted + at, dy_row);
    }
    free(place);
    return ASSAY_OK;
}
