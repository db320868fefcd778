/* Linear layers on the tape: plain ones, of groups of rows, of weights that are read one group at a time, and by a training recipe. */
#include <string.h>

#include "oracle/quad/quad_internal.h"
#include "oracle/quad/quad_product.h"
#include "oracle/quad/quad_quant_recipe.h"
#include "oracle/quad/tape.h"

typedef struct linear {
    int64_t rows, k, n, groups;
    int64_t *order, *first;    /* [rows], [groups+1]: the rows of each group, ascending; those of none are left out */
    const quad_tensor *stream; /* weights that are read a group at a time, from `offset` on; NULL: they are in memory */
    int64_t offset;
    quad_recipe_layer *by; /* by a recipe */
    assay_quant_recipe_config recipe;
} linear;

/* What the three products take: y = x w, dx = dx_dy dx_w^T, dw = dw_x^T dw_dy. */
typedef struct operands {
    const quad *x, *w, *dx_dy, *dx_w, *dw_x, *dw_dy;
} operands;

/* --- rows of a group --- */

static bool together(const linear *l, int64_t group)
{
    const int64_t count = l->first[group + 1] - l->first[group];
    return count > 0 && l->order[l->first[group + 1] - 1] - l->order[l->first[group]] == count - 1;
}

/* The group's rows of a matrix, where they lie if they lie together, else in `packed`. */
static const quad *pack(const linear *l, int64_t group, const quad *of, int64_t width, quad *packed)
{
    if (together(l, group)) return of + l->order[l->first[group]] * width;
    for (int64_t i = l->first[group]; i < l->first[group + 1]; i++)
        memcpy(packed + (i - l->first[group]) * width, of + l->order[i] * width, (size_t)width * sizeof *of);
    return packed;
}

static void add_rows(const linear *l, int64_t group, const quad *from, int64_t width, quad *into)
{
    for (int64_t i = l->first[group]; i < l->first[group + 1]; i++)
        for (int64_t j = 0; j < width; j++) into[l->order[i] * width + j] += from[(i - l->first[group]) * width + j];
}

static int64_t most_rows(const linear *l)
{
    int64_t most = 0;
    for (int64_t g = 0; g < l->groups; g++)
        most = l->first[g + 1] - l->first[g] > most ? l->first[g + 1] - l->first[g] : most;
    return most;
}

static void sort_rows(linear *l, const int64_t *group)
{
    int64_t place = 0;
    for (int64_t g = 0; g <= l->groups; g++) l->first[g] = 0;
    for (int64_t row = 0; row < l->rows; row++) {
        const int64_t g = group == NULL ? 0 : group[row];
        if (g >= 0) l->first[g + 1]++;
    }
    for (int64_t g = 0; g < l->groups; g++) l->first[g + 1] += l->first[g];
    for (int64_t row = 0; row < l->rows; row++) {
        const int64_t g = group == NULL ? 0 : group[row];
        if (g < 0) continue;
        l->order[l->first[g]++] = row; /* which moves on to where the next group begins */
        place++;
    }
    for (int64_t g = l->groups; g > 0; g--) l->first[g] = l->first[g - 1];
    l->first[0] = 0;
    l->first[l->groups] = place;
}

/* --- products --- */

/* The weights of a group; *loaded is the caller's. */
static assay_status weights_of(assay_context *ctx, const linear *l, const quad *w, int64_t group, quad **loaded,
                               const quad **weights)
{
    const int64_t count = l->k * l->n;
    *weights = l->stream == NULL ? w + group * count : NULL;
    if (l->stream == NULL) return ASSAY_OK;
    if (*loaded == NULL) MUST(quad_alloc(ctx, count, loaded));
    MUST(quad_read_piece(ctx, l->stream, l->offset + group * count, count, *loaded));
    *weights = *loaded;
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const linear *l, const operands *of, quad *y)
{
    OWNED quad *packed = NULL, *made = NULL, *loaded = NULL;
    const int64_t most = most_rows(l);
    MUST(quad_alloc(ctx, most * l->k, &packed));
    MUST(quad_alloc(ctx, most * l->n, &made));
    for (int64_t i = 0; i < l->rows * l->n; i++) y[i] = 0;
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t rows = l->first[g + 1] - l->first[g];
        const quad *weights;
        if (rows == 0) continue;
        MUST(weights_of(ctx, l, of->w, g, &loaded, &weights));
        const quad_product product = quad_product_xw(made, pack(l, g, of->x, l->k, packed), weights, rows, l->n, l->k);
        MUST(quad_matmul(ctx, &product));
        add_rows(l, g, made, l->n, y);
    }
    return ASSAY_OK;
}

/* dx += dy w^T of the group's rows. */
static assay_status back_to_rows(assay_context *ctx, const linear *l, int64_t g, const quad *dy, const quad *weights,
                                 quad *dx, quad *scratch[2])
{
    const int64_t rows = l->first[g + 1] - l->first[g];
    quad_product product = quad_product_xw(scratch[1], pack(l, g, dy, l->n, scratch[0]), weights, rows, l->k, l->n);
    product.ldw = l->n;
    product.w_transposed = true;
    const assay_status status = quad_matmul(ctx, &product);
    if (status == ASSAY_OK) add_rows(l, g, scratch[1], l->k, dx);
    return status;
}

/* dw += x^T dy of the group's rows. */
static assay_status back_to_weights(assay_context *ctx, const linear *l, int64_t g, const quad *x, const quad *dy,
                                    quad *dw, quad *scratch[3])
{
    const int64_t rows = l->first[g + 1] - l->first[g], count = l->k * l->n;
    const quad *of_dy = pack(l, g, dy, l->n, scratch[0]), *of_x = pack(l, g, x, l->k, scratch[1]);
    quad *made = scratch[2] + rows * l->k;
    for (int64_t i = 0; i < rows * l->k; i++) scratch[2][i % l->k * rows + i / l->k] = of_x[i];
    const quad_product product = quad_product_xw(made, scratch[2], of_dy, l->k, l->n, rows);
    const assay_status status = quad_matmul(ctx, &product);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) dw[g * count + i] += made[i];
    return status;
}

static assay_status backward(assay_context *ctx, const linear *l, const operands *of, quad *dx, quad *dw)
{
    assay_status status;
    quad *scratch[3] = {NULL, NULL, NULL}, *loaded = NULL;
    const int64_t most = most_rows(l);
    TRY(quad_alloc(ctx, most * l->n, &scratch[0]));
    TRY(quad_alloc(ctx, most * l->k, &scratch[1]));
    TRY(quad_alloc(ctx, most * l->k + l->k * l->n, &scratch[2]));
    for (int64_t g = 0; g < l->groups; g++) {
        const quad *weights;
        if (l->first[g + 1] == l->first[g]) continue;
        TRY(weights_of(ctx, l, of->dx_w, g, &loaded, &weights));
        if (dx != NULL) TRY(back_to_rows(ctx, l, g, of->dx_dy, weights, dx, scratch));
        if (dw != NULL) TRY(back_to_weights(ctx, l, g, of->dw_x, of->dw_dy, dw, scratch));
    }
cleanup:
    for (int i = 0; i < 3; i++) free(scratch[i]);
    free(loaded);
    return status;
}

static void linear_back(quad_tape *t, const quad_record *y)
{
    const linear *l = y->with;
    const quad *x = quad_values(t, y->from[0]), *w = quad_values(t, y->from[1]), *dy = y->gradient;
    operands of = {.dx_dy = dy, .dx_w = w, .dw_x = x, .dw_dy = dy};
    quad *dx = quad_into(t, y->from[0]), *dw = quad_into(t, y->from[1]);
    if (t->status == ASSAY_OK && l->by != NULL) {
        l->by->dy = dy;
        t->status = quad_recipe_quantise_back(t->ctx, l->by);
        of = (operands){.dx_dy = l->by->dx_dy.numbers,
                        .dx_w = l->by->of_w.codes,
                        .dw_x = l->by->dw_x.numbers,
                        .dw_dy = l->by->dw_dy.numbers};
    }
    if (t->status == ASSAY_OK) t->status = backward(t->ctx, l, &of, dx, dw);
}

static void linear_end(const quad_record *y)
{
    const linear *l = y->with;
    if (l->by != NULL) quad_recipe_free(l->by);
}

/* --- the primitive --- */

/* By its recipe: what forward takes stays for backward. */
static operands by_recipe(quad_tape *t, const quad_layer *layer, linear *l)
{
    int64_t *group = quad_indices(t, l->rows);
    l->by = quad_keep(t, 1, sizeof *l->by);
    if (group == NULL || l->by == NULL) return (operands){0};
    for (int64_t row = 0; row < l->rows; row++) group[row] = layer->group == NULL ? 0 : layer->group[row];
    l->recipe = *layer->recipe;
    *l->by = (quad_recipe_layer){.recipe = &l->recipe,
                                 .rows = l->rows,
                                 .k = l->k,
                                 .n = l->n,
                                 .groups = l->groups,
                                 .group = group,
                                 .set = layer->set,
                                 .shards = layer->shards,
                                 .counts_all = layer->counts_all,
                                 .x = quad_values(t, layer->x),
                                 .w = quad_values(t, layer->w)};
    t->straight_through = true;
    t->status = quad_recipe_quantise(t->ctx, l->by);
    return (operands){.x = l->by->of_x.numbers, .w = l->by->of_w.numbers};
}

/* One layer for each piece of the rows. */
static quad_node by_pieces(quad_tape *t, quad_layer layer)
{
    const quad_pieces *pieces = t->pieces;
    const quad_node x = layer.x;
    quad_node *parts = quad_keep(t, pieces->count, sizeof *parts);
    t->pieces = NULL;
    for (int64_t i = 0; parts != NULL && i < pieces->count; i++) {
        layer.x = quad_gather(t, x, pieces->rows + i * pieces->each, pieces->each);
        parts[i] = quad_linear(t, layer);
    }
    t->pieces = pieces;
    const quad_node all = parts == NULL ? 0 : quad_concatenate(t, parts, pieces->count);
    return quad_gather(t, all, pieces->place, pieces->count * pieces->each);
}

quad_node quad_linear(quad_tape *t, quad_layer layer)
{
    quad_node y;
    const bool quantised = layer.recipe != NULL && layer.recipe->recipe != NULL;
    if (quantised && t->pieces != NULL) return by_pieces(t, layer);
    linear *l = quad_keep(t, 1, sizeof *l);
    if (layer.x == 0 || layer.w == 0 || l == NULL) return 0;
    if (t->records[layer.x].stream != NULL)
        t->status =
            assay_fail(t->ctx, ASSAY_INTERNAL, "'%s' is not in memory as a whole", t->records[layer.x].stream->path);
    const quad_record *w = &t->records[layer.w];
    const int64_t groups = layer.groups > 0 ? layer.groups : 1, k = quad_columns(t, layer.x);
    const int64_t weights = w->rows * w->columns, n = weights / (groups * k);
    *l = (linear){
        .rows = quad_rows(t, layer.x), .k = k, .n = n, .groups = groups, .stream = w->stream, .offset = w->offset};
    if (weights != groups * k * n)
        quad_refuse(t, "%lld weights of %lld groups, of %lld numbers each row", (long long)weights, (long long)groups,
                    (long long)k);
    l->order = quad_indices(t, l->rows);
    l->first = quad_indices(t, groups + 1);
    quad *values = quad_new(
        t, l->rows, n,
        (quad_record){
            .from = {layer.x, layer.w}, .reads_streams = true, .back = linear_back, .end = linear_end, .with = l},
        &y);
    if (values == NULL) return 0;
    sort_rows(l, layer.group);
    const operands of =
        quantised ? by_recipe(t, &layer, l) : (operands){.x = quad_values(t, layer.x), .w = quad_values(t, layer.w)};
    if (t->status == ASSAY_OK) t->status = forward(t->ctx, l, &of, values);
    return y;
}

/* --- gradients that a kernel quantises by itself --- */

static void quantised_back(quad_tape *t, const quad_record *y)
{
    quad *into = quad_into(t, y->from[0]), *numbers = NULL;
    const int64_t count = y->rows * y->columns;
    if (into == NULL) return;
    t->status = quad_alloc(t->ctx, count, &numbers);
    if (t->status == ASSAY_OK)
        t->status = quad_quantise_gradient(t->ctx, y->with, y->rows, y->columns, y->gradient, numbers);
    for (int64_t i = 0; t->status == ASSAY_OK && i < count; i++) into[i] += numbers[i];
    free(numbers);
}

quad_node quad_quantised_gradient(quad_tape *t, quad_node x, const assay_quant_recipe_config *recipe)
{
    const quad_node y = quad_replaced_by(t, x, quad_values(t, x));
    assay_quant_recipe_config *with = quad_keep(t, 1, sizeof *with);
    if (y == 0 || with == NULL) return 0;
    *with = *recipe;
    t->records[y].back = quantised_back;
    t->records[y].with = with;
    t->straight_through = true;
    return y;
}

quad_node quad_requantise(quad_tape *t, quad_node h, const assay_quantize_config *config, quad_node *codes,
                          quad_node *scale)
{
    const int64_t rows = quad_rows(t, h), columns = quad_columns(t, h);
    *codes = *scale = 0;
    if (h == 0 || t->status != ASSAY_OK) return 0;
    const assay_block_format *f = config->format;
    assay_quantize_config of_all = *config;
    of_all.rows = rows;
    of_all.columns = columns;
    quad *of_codes, *of_scale, *numbers = quad_keep(t, rows * columns, sizeof *numbers);
    *codes = quad_constant(t, rows, columns, &of_codes);
    *scale = quad_constant(t, assay_block_count(rows, f->rows), assay_block_count(columns, f->columns), &of_scale);
    if (t->status == ASSAY_OK) quad_requantise_blocks(&of_all, quad_values(t, h), of_codes, of_scale, numbers);
    t->straight_through = true;
    return t->status == ASSAY_OK ? quad_replaced_by(t, h, numbers) : 0;
}
