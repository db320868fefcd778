/* Gated MLPs: h = glu(x wi_0 + b_0, x wi_1 + b_1), y = h wo + b. */

#include "oracle/quad/quad_blocks.h"

void quad_mlp_weights(quad_tape *t, quad_mlp *m, assay_mlp_place place, int64_t groups)
{
    m->groups = groups;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row row = assay_mlp_weight_row(&m->config, place, weight);
        char path[ASSAY_PATH_SIZE];
        m->w[weight] = 0;
        if (row.name == NULL) continue;
        const int64_t count = assay_tensor_row_count(&row), last = row.shape.dims[row.shape.rank - 1];
        assay_tensor_path("weights/", "", &row, path);
        m->w[weight] =
            (row.kind == ASSAY_BIAS ? quad_input_optional : quad_input)(t, path, groups * (count / last), last);
    }
}

/* Of every group's rows the part `i` of `sums`, and of each half's columns the part `j` of `parts`. */
static quad_node weights_of_part(quad_tape *t, const quad_mlp *m, quad_node w, int64_t sums, int64_t i, int64_t halves,
                                 int64_t parts, int64_t j)
{
    quad_node columns = 0;
    const int64_t all = quad_rows(t, w), k = all / m->groups, own = k / sums, half = quad_columns(t, w) / halves;
    int64_t *rows = quad_indices(t, all / sums);
    for (int64_t row = 0; rows != NULL && row < all / sums; row++) rows[row] = row / own * k + i * own + row % own;
    for (int64_t h = 0; h < halves; h++)
        columns = quad_beside(t, columns, quad_columns_of(t, w, h * half + j * (half / parts), half / parts));
    return quad_gather(t, columns, rows, all / sums);
}

static quad_node linear(quad_tape *t, const quad_mlp *m, quad_node x, int weight)
{
    const bool apart = m->config.recipe.recipe != NULL, down = weight == ASSAY_MLP_WO;
    const int64_t sums = apart ? quad_one_at_least(down ? m->hidden : m->slices) : 1;
    const int64_t parts = apart && !down ? quad_one_at_least(m->hidden) : 1, halves = weight == ASSAY_MLP_WI ? 2 : 1;
    const int64_t own = quad_columns(t, x) / sums;
    quad_layer layer = {
        .groups = m->groups, .group = m->group, .recipe = &m->config.recipe, .set = m->set, .shards = m->shards};
    quad_node y[2] = {0, 0};
    for (int64_t j = 0; j < parts; j++) {
        quad_node sum = 0;
        for (int64_t i = 0; i < sums; i++) {
            const bool whole = sums * parts == 1;
            layer.x = whole ? x : quad_columns_of(t, x, i * own, own);
            layer.w = whole ? m->w[weight] : weights_of_part(t, m, m->w[weight], sums, i, halves, parts, j);
            sum = quad_add(t, sum, quad_linear(t, layer));
        }
        if (parts == 1) return sum;
        const int64_t width = quad_columns(t, sum) / halves;
        for (int64_t h = 0; h < halves; h++) y[h] = quad_beside(t, y[h], quad_columns_of(t, sum, h * width, width));
    }
    return halves == 1 ? y[0] : quad_beside(t, y[0], y[1]);
}

/* Of each row the bias of its group. */
static quad_node with_bias(quad_tape *t, const quad_mlp *m, quad_node y, quad_node bias)
{
    if (bias == 0) return y;
    if (m->group == NULL) return quad_add_row(t, y, bias);
    return quad_add(t, y, quad_gather(t, bias, m->group, quad_rows(t, y)));
}

/* Columns of a and b in turns, `parts` of each; and what a (0) or b (1) is of such. */
static quad_node deal(quad_tape *t, quad_node a, quad_node b, int64_t parts)
{
    quad_node both = 0;
    const int64_t part = quad_columns(t, a) / parts;
    for (int64_t i = 0; i < parts; i++) {
        both = quad_beside(t, both, quad_columns_of(t, a, i * part, part));
        both = quad_beside(t, both, quad_columns_of(t, b, i * part, part));
    }
    return both;
}

static quad_node one_of(quad_tape *t, quad_node both, int64_t parts, int which)
{
    quad_node one = 0;
    const int64_t part = quad_columns(t, both) / parts / 2;
    for (int64_t i = 0; i < parts; i++)
        one = quad_beside(t, one, quad_columns_of(t, both, (2 * i + which) * part, part));
    return one;
}

static int64_t parts_of(const quad_mlp *m)
{
    return m->w13_shards > 1 ? m->w13_shards : 1;
}

void quad_mlp_run(quad_tape *t, quad_mlp *m, quad_node x)
{
    const quad_node *w = m->w, bias_0 = w[ASSAY_MLP_WI_0_BIAS], bias_1 = w[ASSAY_MLP_WI_1_BIAS];
    if (m->config.fused) {
        m->up = linear(t, m, x, ASSAY_MLP_WI);
        if (bias_0 != 0) m->up = with_bias(t, m, m->up, deal(t, bias_0, bias_1, parts_of(m)));
        m->a = one_of(t, m->up, parts_of(m), 0);
        m->b = one_of(t, m->up, parts_of(m), 1);
    } else {
        m->a = with_bias(t, m, linear(t, m, x, ASSAY_MLP_WI_0), bias_0);
        m->b = with_bias(t, m, linear(t, m, x, ASSAY_MLP_WI_1), bias_1);
    }
    m->h = quad_glu(t, m->a, m->b, &m->config);
    quad_node hidden = m->h;
    if (m->config.hidden.format != NULL) hidden = quad_requantise(t, m->h, &m->config.hidden, &m->codes, &m->scale);
    m->y = with_bias(t, m, linear(t, m, hidden, ASSAY_MLP_WO), w[ASSAY_MLP_WO_BIAS]);
}

/* Rows as a checkpoint has them, and of columns the part that a shard has: row by row from what `layout` says. */
static quad_node laid_out(quad_tape *t, const quad_mlp_layout *layout, quad_node x)
{
    if (layout->index == NULL || x == 0) return x;
    return quad_gather(t, quad_view(t, x, quad_columns(t, x) / layout->parts), layout->index, layout->count);
}

/* Of gate and up, the halves of a row, a shard has its part side by side. */
static void put_gradient(quad_tape *t, const quad_mlp_layout *layout, const char *path, assay_shape shape, quad_node x,
                         int64_t halves)
{
    const int64_t parts = layout->index == NULL ? 1 : layout->parts, count = layout->count * halves;
    int64_t *index = layout->index == NULL ? NULL : quad_indices(t, count);
    for (int64_t i = 0; index != NULL && i < count; i++) {
        const int64_t from = layout->index[i / halves];
        index[i] = (from / parts * halves + i % halves) * parts + from % parts;
    }
    quad_put_gradient_of(t, path, shape, x, quad_columns(t, x) / halves / parts, index);
}

void quad_put_mlp(quad_tape *t, const quad_mlp *m, assay_mlp_place place, const quad_mlp_layout *layout)
{
    const int64_t parts = layout->index == NULL ? 1 : layout->parts;
    assay_gated_mlp_config apart = m->config;
    apart.fused = false;
    for (int i = 0; i < ASSAY_MLP_CHECKPOINTS; i++) {
        const bool whole = i == ASSAY_MLPWI || i == ASSAY_MLPWI_GRADIENT;
        const assay_tensor_row row = assay_mlp_checkpoint_row(whole ? &m->config : &apart, place, i);
        char path[ASSAY_PATH_SIZE];
        assay_shape shape = layout->rows;
        if (row.name == NULL) continue;
        shape.dims[shape.rank++] = row.shape.dims[0] / parts;
        assay_tensor_path("checkpoints/", "", &row, path);
        if (!quad_wants(t, path)) continue;
        const quad_node made[ASSAY_MLP_CHECKPOINTS] = {[ASSAY_MLPWI] = m->up,
                                                       [ASSAY_MLPWI_0] = m->a,
                                                       [ASSAY_MLPWI_1] = m->b,
                                                       [ASSAY_MLP_INTERMEDIATE] = m->h,
                                                       [ASSAY_MLP_CODES] = m->codes,
                                                       [ASSAY_MLP_SCALE] = m->scale,
                                                       [ASSAY_MLPWO] = m->y,
                                                       [ASSAY_MLPWI_GRADIENT] = m->up,
                                                       [ASSAY_MLPWI_0_GRADIENT] = m->a,
                                                       [ASSAY_MLPWI_1_GRADIENT] = m->b,
                                                       [ASSAY_MLPWO_GRADIENT] = m->y};
        if (i >= ASSAY_MLPWI_GRADIENT) {
            put_gradient(t, layout, path, shape, made[i], whole ? 2 : 1);
        } else if (i == ASSAY_MLPWI && parts > 1) { /* of each shard its own gate, then its own up */
            const quad_node a = laid_out(t, layout, m->a), b = laid_out(t, layout, m->b);
            quad_put(t, path, shape, deal(t, a, b, parts_of(m) > parts ? parts_of(m) / parts : 1));
        } else {
            quad_put(t, path, shape, laid_out(t, layout, made[i]));
        }
    }
}

void quad_gated_mlp(quad_tape *t, const void *config)
{
    quad_mlp m = {.config = *(const assay_gated_mlp_config *)config};
    const assay_shape shape = quad_shape_of(t, "inputs/x");
    const quad_node x = quad_input_rows(t, "inputs/x");
    quad_mlp_layout layout = {.rows = shape};
    if (t->status != ASSAY_OK) return;
    layout.rows.rank--;
    if (quad_columns(t, x) != m.config.emb_dim)
        quad_refuse(t, "the last axis of 'inputs/x' is %lld, expected %lld", (long long)quad_columns(t, x),
                    (long long)m.config.emb_dim);
    quad_mlp_weights(t, &m, ASSAY_MLP_DENSE, 1);
    quad_mlp_run(t, &m, x);
    quad_put_mlp(t, &m, ASSAY_MLP_DENSE, &layout);
    quad_put(t, "outputs/y", shape, m.y);
}
