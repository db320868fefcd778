/* Gated MLPs by a training recipe, with their gradients, which are no derivatives. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_recipe.h"

static int layers_of(const quad_recipe_mlp *m)
{
    return m->config->fused ? 1 : 2;
}

static int64_t width_of(const quad_recipe_mlp *m)
{
    return m->config->fused ? 2 * m->config->mlp_dim : m->config->mlp_dim;
}

/* Of up, where (row, j) of a (branch 0) or b is. */
static quad *element(const quad_recipe_mlp *m, quad *const of[2], int branch, int64_t row, int64_t j)
{
    const int64_t width = m->config->mlp_dim;
    return m->config->fused ? &of[0][(2 * row + branch) * width + j] : &of[branch][row * width + j];
}

static assay_status alloc(assay_context *ctx, quad_recipe_mlp *m)
{
    assay_status status;
    const int64_t rows = m->rows, width = m->config->mlp_dim, dim = m->config->emb_dim;
    const assay_tensor_table table = assay_mlp_weight_table(m->config, ASSAY_MLP_DENSE);
    for (int i = 0; i < layers_of(m); i++) {
        TRY(quad_alloc(ctx, rows * width_of(m), &m->made[i]));
        TRY(quad_alloc(ctx, rows * width_of(m), &m->gradient[i]));
    }
    TRY(quad_alloc(ctx, rows * width, &m->h));
    TRY(quad_alloc(ctx, rows * width, &m->numbers));
    TRY(quad_alloc(ctx, rows * width, &m->dh));
    TRY(quad_alloc(ctx, rows * dim, &m->y));
    TRY(quad_alloc(ctx, rows * dim, &m->dx));
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++)
        if (m->w[i] != NULL) TRY(quad_alloc(ctx, m->groups * assay_tensor_row_count(&table.rows[i]), &m->dw[i]));
cleanup:
    return status;
}

void quad_recipe_mlp_free(quad_recipe_mlp *m)
{
    for (int i = 0; i < 2; i++) {
        quad_recipe_free(&m->up[i]);
        free(m->made[i]);
        free(m->gradient[i]);
    }
    quad_recipe_free(&m->down);
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) free(m->dw[i]);
    quad *const all[] = {m->h, m->numbers, m->y, m->dh, m->dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static quad_recipe_layer layer_of(const quad_recipe_mlp *m, const quad *x, const quad *w, int64_t k,
                                  int64_t n)
{
    return (quad_recipe_layer){.recipe = &m->config->recipe,
                               .rows = m->rows,
                               .k = k,
                               .n = n,
                               .groups = m->groups,
                               .group = m->group,
                               .x = x,
                               .w = w};
}

static void add_bias(const quad_recipe_mlp *m, int weight, int64_t columns, quad *y)
{
    for (int64_t i = 0; m->w[weight] != NULL && i < m->rows * columns; i++) {
        const int64_t group = m->group[i / columns];
        if (group >= 0) y[i] += m->w[weight][group * columns + i % columns];
    }
}

static quad glu(const quad_recipe_mlp *m, quad a, quad b)
{
    return quad_glu(m->config->activation, m->config->glu, m->config->limit, a, b);
}

static assay_status forward(assay_context *ctx, quad_recipe_mlp *m)
{
    assay_status status;
    const assay_gated_mlp_config *config = m->config;
    const int64_t width = config->mlp_dim, dim = config->emb_dim;
    static const int kernels[] = {ASSAY_MLP_WI_0, ASSAY_MLP_WI_1},
                     biases[] = {ASSAY_MLP_WI_0_BIAS, ASSAY_MLP_WI_1_BIAS};
    for (int i = 0; i < layers_of(m); i++) {
        m->up[i] = layer_of(m, m->x, m->w[config->fused ? ASSAY_MLP_WI : kernels[i]], dim, width_of(m));
        TRY(quad_recipe_take(ctx, &m->up[i]));
        quad_recipe_forward(&m->up[i], m->made[i]);
    }
    for (int64_t i = 0; i < m->rows * width; i++) {
        const int64_t row = i / width, j = i % width;
        quad *const ab[] = {element(m, m->made, 0, row, j), element(m, m->made, 1, row, j)};
        for (int branch = 0; branch < 2; branch++)
            if (m->w[biases[branch]] != NULL && m->group[row] >= 0)
                *ab[branch] += m->w[biases[branch]][m->group[row] * width + j];
        m->h[i] = m->numbers[i] = glu(m, *ab[0], *ab[1]);
    }
    for (int64_t row = 0; config->hidden.format != NULL && row < m->rows; row++)
        quad_requantise_row(&config->hidden, width, m->h + row * width, NULL, NULL, m->numbers + row * width);
    m->down = layer_of(m, m->numbers, m->w[ASSAY_MLP_WO], width, dim);
    TRY(quad_recipe_take(ctx, &m->down));
    quad_recipe_forward(&m->down, m->y);
    add_bias(m, ASSAY_MLP_WO_BIAS, dim, m->y);
cleanup:
    return status;
}

/* By central differences, which binary128 has the digits for. */
static quad slope(const quad_recipe_mlp *m, int branch, quad a, quad b)
{
    const quad step = ldexpq(fmaxq(1, fabsq(branch == 0 ? a : b)), -36);
    const quad da = branch == 0 ? step : 0, db = branch == 1 ? step : 0;
    return (glu(m, a + da, b + db) - glu(m, a - da, b - db)) / (2 * step);
}

static void sum_rows(const quad_recipe_mlp *m, int64_t columns, const quad *terms, int64_t ld, quad *sums)
{
    for (int64_t i = 0; sums != NULL && i < m->groups * columns; i++) sums[i] = 0;
    for (int64_t i = 0; sums != NULL && i < m->rows * columns; i++) {
        const int64_t group = m->group[i / columns];
        if (group >= 0) sums[group * columns + i % columns] += terms[i / columns * ld + i % columns];
    }
}

static assay_status backward(assay_context *ctx, quad_recipe_mlp *m)
{
    assay_status status;
    const assay_gated_mlp_config *config = m->config;
    const int64_t width = config->mlp_dim, dim = config->emb_dim;
    quad *part = NULL;
    TRY(quad_alloc(ctx, m->rows * dim, &part));
    m->down.dy = m->dy;
    TRY(quad_recipe_take_back(ctx, &m->down));
    quad_recipe_backward(&m->down, m->dh, m->dw[ASSAY_MLP_WO]);
    for (int64_t i = 0; i < m->rows * width; i++) {
        const int64_t row = i / width, j = i % width;
        const quad a = *element(m, m->made, 0, row, j), b = *element(m, m->made, 1, row, j);
        for (int branch = 0; branch < 2; branch++)
            *element(m, m->gradient, branch, row, j) = m->dh[i] * slope(m, branch, a, b);
    }
    for (int64_t i = 0; i < m->rows * dim; i++) m->dx[i] = 0;
    for (int i = 0; i < layers_of(m); i++) {
        m->up[i].dy = m->gradient[i];
        TRY(quad_recipe_take_back(ctx, &m->up[i]));
        quad_recipe_backward(&m->up[i], part, m->dw[config->fused ? ASSAY_MLP_WI : ASSAY_MLP_WI_0 + i]);
        for (int64_t k = 0; k < m->rows * dim; k++) m->dx[k] += part[k];
    }
    sum_rows(m, width, element(m, m->gradient, 0, 0, 0), width_of(m), m->dw[ASSAY_MLP_WI_0_BIAS]);
    sum_rows(m, width, element(m, m->gradient, 1, 0, 0), width_of(m), m->dw[ASSAY_MLP_WI_1_BIAS]);
    sum_rows(m, dim, m->dy, dim, m->dw[ASSAY_MLP_WO_BIAS]);
cleanup:
    free(part);
    return status;
}

assay_status quad_recipe_mlp_run(assay_context *ctx, quad_recipe_mlp *m)
{
    assay_status status;
    TRY(alloc(ctx, m));
    TRY(forward(ctx, m));
    TRY(backward(ctx, m));
cleanup:
    return status;
}

void quad_recipe_mlp_keep(const quad_recipe_mlp *m, const quad_mlp_checkpoints *kept)
{
    const assay_gated_mlp_config *config = m->config;
    const quad_mlp mlp = {.config = *config};
    const int64_t width = config->mlp_dim;
    for (int64_t row = 0; row < m->rows; row++)
        quad_keep_mlp(kept, &mlp, row, element(m, m->made, 0, row, 0), element(m, m->made, 1, row, 0),
                      m->h + row * width, m->y + row * config->emb_dim);
    for (int i = 0; i < layers_of(m); i++)
        memcpy(kept->values[config->fused ? ASSAY_MLPWI_GRADIENT : ASSAY_MLPWI_0_GRADIENT + i], m->gradient[i],
               (size_t)(m->rows * width_of(m)) * sizeof *m->gradient[i]);
}

assay_status quad_put(assay_context *ctx, quad_tensors *out, const char *path, const assay_shape *shape,
                      const quad *values)
{
    quad *to = NULL;
    const assay_status status = quad_tensors_add(ctx, out, path, shape, &to);
    if (status == ASSAY_OK) memcpy(to, values, (size_t)assay_shape_count(shape) * sizeof *to);
    return status;
}

assay_status quad_recipe_mlp_put_gradients(assay_context *ctx, const assay_tensor_table *table, int64_t below,
                                           const quad_recipe_mlp *m, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < table->count; i++) {
        char path[ASSAY_PATH_SIZE];
        if (m->w[i] == NULL) continue;
        assay_tensor_path("gradients/weights/", "", &table->rows[i], path);
        assay_shape shape = table->rows[i].shape;
        if (below > 0) {
            memmove(shape.dims + 1, shape.dims, sizeof shape.dims - sizeof *shape.dims);
            shape.dims[0] = below;
            shape.rank++;
        }
        TRY(quad_put(ctx, out, path, &shape, m->dw[i]));
    }
cleanup:
    return status;
}

assay_status quad_quantised_mlp(assay_context *ctx, const assay_gated_mlp_config *config, const quad_tensors *in,
                                quad_tensors *out)
{
    assay_status status;
    const assay_tensor_table table = assay_mlp_weight_table(config, ASSAY_MLP_DENSE);
    const quad_tensor *x = NULL;
    quad_recipe_mlp m = {.config = config, .groups = 1};
    quad_mlp_checkpoints kept;
    int64_t dim = 0;
    void *group = NULL;
    TRY(quad_read_rows(ctx, in, "inputs/x", &x, &m.rows, &dim));
    TRY(quad_read(ctx, in, "cotangents/y", m.rows * config->emb_dim, &m.dy));
    TRY(quad_read_weights(ctx, &table, in, 1, m.w, NULL));
    TRY(assay_alloc(ctx, "groups of rows", m.rows, sizeof *m.group, &group));
    m.group = memset(group, 0, (size_t)m.rows * sizeof *m.group);
    m.x = x->values;
    TRY(quad_recipe_mlp_run(ctx, &m));
    assay_shape rows = x->shape;
    rows.rank--;
    TRY(quad_add_mlp_checkpoints(ctx, out, config, ASSAY_MLP_DENSE, &rows, &kept));
    quad_recipe_mlp_keep(&m, &kept);
    TRY(quad_put(ctx, out, "outputs/y", &x->shape, m.y));
    TRY(quad_put(ctx, out, "gradients/inputs/x", &x->shape, m.dx));
    TRY(quad_recipe_mlp_put_gradients(ctx, &table, 0, &m, out));
cleanup:
    quad_recipe_mlp_free(&m);
    free(group);
    return status;
}
