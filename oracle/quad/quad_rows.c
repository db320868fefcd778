/* Operations of one step: a norm, a rotation, rows to their experts and back. */
#include "oracle/quad/quad_internal.h"
#include "oracle/quad/tape.h"

void quad_rms_norm(quad_tape *t, const void *config)
{
    const quad_node x = quad_input_rows(t, "inputs/x");
    const quad_node scale = quad_input(t, "weights/scale", 1, quad_columns(t, x));
    quad_put(t, "outputs/y", quad_shape_of(t, "inputs/x"), quad_normalise(t, x, scale, *(const double *)config));
}

void quad_l2_norm(quad_tape *t, const void *config)
{
    const quad_node x = quad_input_rows(t, "inputs/x");
    quad_put(t, "outputs/y", quad_shape_of(t, "inputs/x"), quad_over_root(t, x, 1, *(const double *)config));
}

void quad_yarn_rope(quad_tape *t, const void *config)
{
    const assay_rope_config *rope = config;
    const assay_shape shape = quad_shape_of(t, "inputs/x");
    if (t->status != ASSAY_OK) return;
    if (shape.rank != 4 || shape.dims[3] != rope->dim) {
        quad_refuse(t, "'inputs/x' has rank %d and a last axis of %lld, expected 4 and %lld", shape.rank,
                    (long long)shape.dims[shape.rank > 0 ? shape.rank - 1 : 0], (long long)rope->dim);
        return;
    }
    const int64_t tokens = shape.dims[0] * shape.dims[1];
    const quad *turns = quad_turns(t, rope, tokens, quad_input_indices(t, "inputs/positions", tokens));
    const quad_node x = quad_input(t, "inputs/x", tokens, shape.dims[2] * rope->dim);
    quad_put(t, "outputs/y", shape, quad_rotate(t, x, rope, turns));
}

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

static const int32_t *ids_below(quad_tape *t, const char *path, int64_t count, int64_t limit)
{
    const int32_t *ids = quad_input_indices(t, path, count);
    for (int64_t i = 0; ids != NULL && i < count; i++) {
        if (ids[i] >= -1 && ids[i] < limit) continue;
        quad_refuse(t, "element %lld of '%s' is %d, expected -1 to %lld", (long long)i, path, (int)ids[i],
                    (long long)limit - 1);
    }
    return t->status == ASSAY_OK ? ids : NULL;
}

/* ids, divided: the rows that copies come from. */
static int64_t *rows_of_copies(quad_tape *t, const int32_t *ids, int64_t count, int64_t divisor)
{
    int64_t *rows = quad_indices(t, count);
    for (int64_t i = 0; rows != NULL && i < count; i++) rows[i] = ids[i] < 0 ? -1 : ids[i] / divisor;
    return rows;
}

void quad_permute(quad_tape *t, const void *config)
{
    const assay_permute_dims *d = config;
    const int64_t copies = d->tokens * d->experts_per_token;
    const quad_node x = quad_input(t, "inputs/x", d->tokens, d->emb_dim);
    const int32_t *selected = ids_below(t, "inputs/selected_experts", copies, d->experts);
    int32_t *order = quad_put_indices(t, "outputs/sorted_selected_experts", assay_shape_of(1, copies));
    int32_t *sizes = quad_put_indices(t, "outputs/group_sizes", assay_shape_of(1, d->experts));
    if (t->status != ASSAY_OK) return;
    quad_sort_by_expert(copies, selected, d->experts, order, sizes);
    const int64_t *rows = rows_of_copies(t, order, copies, d->experts_per_token);
    quad_put(t, "outputs/sorted_inputs", assay_shape_of(2, copies, d->emb_dim), quad_gather(t, x, rows, copies));
}

void quad_unpermute(quad_tape *t, const void *config)
{
    const assay_permute_dims *d = config;
    const int64_t copies = d->tokens * d->experts_per_token;
    const quad_node sorted = quad_input(t, "inputs/sorted", copies, d->emb_dim);
    const quad_node weights = quad_input(t, "inputs/weights", copies, 1);
    const int32_t *order = ids_below(t, "inputs/sorted_selected_experts", copies, copies);
    if (t->status != ASSAY_OK) return;
    const int64_t *choices = rows_of_copies(t, order, copies, 1),
                  *tokens = rows_of_copies(t, order, copies, d->experts_per_token);
    const quad_node weighed = quad_weigh(t, sorted, quad_gather(t, weights, choices, copies));
    quad_put(t, "outputs/y", assay_shape_of(2, d->tokens, d->emb_dim), quad_scatter(t, weighed, tokens, d->tokens));
}

quad_node quad_centred(quad_tape *t, quad_node x)
{
    const int64_t columns = quad_columns(t, x);
    const quad_node less = quad_row_sums(t, x, -1 / (quad)columns), each = quad_repeat(t, less, columns);
    return quad_add(t, x, quad_view(t, each, columns));
}

void quad_layer_norm(quad_tape *t, const void *config)
{
    const quad_node x = quad_input_rows(t, "inputs/x");
    const quad_node scale = quad_input(t, "weights/scale", 1, quad_columns(t, x)),
                    bias = quad_input(t, "weights/bias", 1, quad_columns(t, x));
    const quad_node y = quad_normalise(t, quad_centred(t, x), scale, *(const double *)config);
    quad_put(t, "outputs/y", quad_shape_of(t, "inputs/x"), quad_add_row(t, y, bias));
}
