#include "oracle/quad/quad_internal.h"

void quad_sort_by_expert(int64_t count, const int32_t *keys, int64_t groups, int32_t *order, int32_t *sizes)
{
    int64_t place = 0;
    for (int64_t i = 0; i < count; i++) order[i] = -1;
    for (int64_t g = 0; g < groups; g++) {
        int64_t first = place;
        for (int64_t i = 0; i < count; i++) {
            if (keys[i] == g) order[place++] = (int32_t)i;
        }
        sizes[g] = (int32_t)(place - first);
    }
}

static assay_status check_ids(assay_context *ctx, const char *what, int64_t count, const int32_t *ids, int64_t limit)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] < -1 || ids[i] >= limit) {
            return assay_fail(ctx, ASSAY_BAD_INPUT, "element %lld of '%s' is %d, expected -1 to %lld", (long long)i,
                              what, (int)ids[i], (long long)limit - 1);
        }
    }
    return ASSAY_OK;
}

assay_status quad_permute(assay_context *ctx, const assay_permute_dims *dims, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    int64_t copies = dims->tokens * dims->experts_per_token, dim = dims->emb_dim;
    const quad *x = NULL;
    const int32_t *selected = NULL;
    quad *sorted = NULL;
    int32_t *order = NULL, *sizes = NULL;
    TRY(quad_read(ctx, in, "inputs/x", dims->tokens * dim, &x));
    TRY(quad_read_indices(ctx, in, "inputs/selected_experts", copies, &selected));
    TRY(check_ids(ctx, "inputs/selected_experts", copies, selected, dims->experts));
    assay_shape rows = assay_shape_of(2, copies, dim), list = assay_shape_of(1, copies);
    assay_shape experts = assay_shape_of(1, dims->experts);
    TRY(quad_tensors_add(ctx, out, "outputs/sorted_inputs", &rows, &sorted));
    TRY(quad_tensors_add_indices(ctx, out, "outputs/sorted_selected_experts", &list, &order));
    TRY(quad_tensors_add_indices(ctx, out, "outputs/group_sizes", &experts, &sizes));
    quad_sort_by_expert(copies, selected, dims->experts, order, sizes);
    for (int64_t j = 0; j < copies; j++) {
        const quad *token = order[j] < 0 ? NULL : x + order[j] / dims->experts_per_token * dim;
        for (int64_t d = 0; d < dim; d++) sorted[j * dim + d] = token == NULL ? 0 : token[d];
    }
cleanup:
    return status;
}

assay_status quad_unpermute(assay_context *ctx, const assay_permute_dims *dims, const quad_tensors *in,
                            quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    int64_t tokens = dims->tokens, k = dims->experts_per_token, dim = dims->emb_dim;
    const quad *sorted = NULL, *weights = NULL;
    const int32_t *order = NULL;
    quad *y = NULL;
    TRY(quad_read(ctx, in, "inputs/sorted", tokens * k * dim, &sorted));
    TRY(quad_read(ctx, in, "inputs/weights", tokens * k, &weights));
    TRY(quad_read_indices(ctx, in, "inputs/sorted_selected_experts", tokens * k, &order));
    TRY(check_ids(ctx, "inputs/sorted_selected_experts", tokens * k, order, tokens * k));
    assay_shape shape = assay_shape_of(2, tokens, dim);
    TRY(quad_tensors_add(ctx, out, "outputs/y", &shape, &y));
    for (int64_t i = 0; i < tokens * dim; i++) y[i] = 0;
    for (int64_t j = 0; j < tokens * k; j++) {
        for (int64_t d = 0; order[j] >= 0 && d < dim; d++) {
            y[order[j] / k * dim + d] += weights[order[j]] * sorted[j * dim + d];
        }
    }
cleanup:
    return status;
}
