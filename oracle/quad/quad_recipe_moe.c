/* A MoE block by a training recipe: the rows of each expert are a group, in the order of tokens; rows of no choice are 0 and
 * of no group. Of the router, which is not quantised, gradients are central differences. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_recipe.h"

typedef struct recipe_moe {
    const assay_moe_config *config;
    int64_t tokens, per_token, copies;
    const quad_tensor *x;
    const quad *dy, *weights;
    const int32_t *order; /* of copies: which choice each is */
    int64_t *group, *none;
    quad *rows_x, *rows_dy, *y, *dx, *d_weights;
    assay_gated_mlp_config expert_config, shared_config;
    quad_recipe_mlp experts, shared;
} recipe_moe;

static void release(recipe_moe *m)
{
    quad_recipe_mlp_free(&m->experts);
    quad_recipe_mlp_free(&m->shared);
    free(m->group);
    free(m->none);
    quad *const all[] = {m->rows_x, m->rows_dy, m->y, m->dx, m->d_weights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static assay_status read(assay_context *ctx, const quad_tensors *in, const quad_tensors *out, recipe_moe *m)
{
    assay_status status;
    const assay_moe_config *config = m->config;
    const int64_t dim = config->emb_dim, count = m->tokens * dim;
    int64_t rows, width;
    void *group = NULL, *none = NULL;
    const assay_tensor_table table = assay_mlp_weight_table(&m->expert_config, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared = assay_mlp_weight_table(&m->shared_config, ASSAY_MLP_SHARED);
    TRY(quad_read_rows(ctx, in, "inputs/x", &m->x, &rows, &width));
    TRY(quad_read(ctx, in, "cotangents/y", count, &m->dy));
    TRY(quad_read_weights(ctx, &table, in, config->routing.num_experts, m->experts.w, NULL));
    TRY(quad_read_weights(ctx, &shared, in, 1, m->shared.w, NULL));
    TRY(assay_alloc(ctx, "groups of rows", m->copies, sizeof *m->group, &group));
    m->group = group;
    TRY(assay_alloc(ctx, "groups of rows", m->tokens, sizeof *m->none, &none));
    m->none = memset(none, 0, (size_t)m->tokens * sizeof *m->none);
    TRY(quad_alloc(ctx, m->copies * dim, &m->rows_x));
    TRY(quad_alloc(ctx, m->copies * dim, &m->rows_dy));
    TRY(quad_alloc(ctx, m->copies, &m->d_weights));
    TRY(quad_alloc(ctx, count, &m->y));
    TRY(quad_alloc(ctx, count, &m->dx));
    m->weights = quad_tensors_find(out, "routing/weights")->values;
    m->order = quad_tensors_find(out, "routing/sorted_selected_experts")->indices;
    const int32_t *selected = quad_tensors_find(out, "routing/selected_experts")->indices;
    for (int64_t i = 0; i < m->copies * dim; i++) {
        const int64_t choice = m->order[i / dim], at = choice / m->per_token * dim + i % dim;
        m->group[i / dim] = choice < 0 ? -1 : selected[choice];
        m->rows_x[i] = m->rows_dy[i] = 0;
        if (choice < 0) continue;
        m->rows_x[i] = m->x->values[at];
        m->rows_dy[i] = m->weights[choice] * m->dy[at];
    }
cleanup:
    return status;
}

static assay_status run_experts(assay_context *ctx, recipe_moe *m)
{
    assay_status status;
    const int64_t dim = m->config->emb_dim;
    m->experts.config = &m->expert_config;
    m->experts.rows = m->copies;
    m->experts.groups = m->config->routing.num_experts;
    m->experts.group = m->group;
    m->experts.x = m->rows_x;
    m->experts.dy = m->rows_dy;
    TRY(quad_recipe_mlp_run(ctx, &m->experts));
    for (int64_t i = 0; i < m->tokens * dim; i++) m->y[i] = m->dx[i] = 0;
    for (int64_t i = 0; i < m->copies; i++) m->d_weights[i] = 0;
    for (int64_t i = 0; i < m->copies * dim; i++) {
        const int64_t choice = m->order[i / dim], at = choice / m->per_token * dim + i % dim;
        if (choice < 0) continue;
        m->y[at] += m->weights[choice] * m->experts.y[i];
        m->dx[at] += m->experts.dx[i];
        m->d_weights[choice] += m->experts.y[i] * m->dy[at];
    }
    if (m->config->shared_mlp_dim == 0) return ASSAY_OK;
    m->shared.config = &m->shared_config;
    m->shared.rows = m->tokens;
    m->shared.groups = 1;
    m->shared.group = m->none;
    m->shared.x = m->x->values;
    m->shared.dy = m->dy;
    TRY(quad_recipe_mlp_run(ctx, &m->shared));
    for (int64_t i = 0; i < m->tokens * dim; i++) {
        m->y[i] += m->shared.y[i];
        m->dx[i] += m->shared.dx[i];
    }
cleanup:
    return status;
}

/* <weights, d_weights>, and the losses times their cotangents, of a choice that stays. */
static assay_status router_sum(assay_context *ctx, const recipe_moe *m, const quad_tensors *in, quad *sum)
{
    static const char *const losses[][2] = {{"outputs/lb_loss", "cotangents/lb_loss"},
                                            {"outputs/z_loss", "cotangents/z_loss"}};
    quad_tensors out = {0};
    assay_status status = quad_route(ctx, &m->config->routing, in, &out);
    *sum = 0;
    if (status == ASSAY_OK) {
        const quad *weights = quad_tensors_find(&out, "routing/weights")->values;
        for (int64_t i = 0; i < m->copies; i++) *sum += weights[i] * m->d_weights[i];
        for (int i = 0; i < 2; i++) {
            const quad_tensor *loss = quad_tensors_find(&out, losses[i][0]), *d = quad_tensors_find(in, losses[i][1]);
            if (loss != NULL && d != NULL) *sum += loss->values[0] * d->values[0];
        }
    }
    quad_tensors_free(&out);
    return status;
}

/* What of a tensor's gradient goes through the router is added to `gradient`. */
static assay_status add_router_gradient(assay_context *ctx, const recipe_moe *m, const quad_tensors *in,
                                        const char *path, quad *gradient)
{
    assay_status status = ASSAY_OK;
    quad_tensors moved = {.count = in->count};
    void *items = NULL;
    quad *values = NULL;
    const quad step = ldexpq(1, -36);
    const quad_tensor *origin = quad_tensors_find(in, path);
    const int64_t count = assay_shape_count(&origin->shape);
    TRY(quad_alloc(ctx, count, &values));
    TRY(assay_alloc(ctx, "list of tensors", in->count, sizeof *moved.items, &items));
    moved.items = memcpy(items, in->items, (size_t)in->count * sizeof *moved.items);
    memcpy(values, origin->values, (size_t)count * sizeof *values);
    moved.items[origin - in->items].values = values;
    for (int64_t i = 0; i < count; i++) {
        quad above, below;
        values[i] = origin->values[i] + step;
        TRY(router_sum(ctx, m, &moved, &above));
        values[i] = origin->values[i] - step;
        TRY(router_sum(ctx, m, &moved, &below));
        values[i] = origin->values[i];
        gradient[i] += (above - below) / (2 * step);
    }
cleanup:
    free(values);
    free(items);
    return status;
}

/* And into dx. */
static assay_status put_router(assay_context *ctx, const recipe_moe *m, const quad_tensors *in, quad_tensors *out)
{
    static const char *const paths[][2] = {{"weights/gate/kernel", "gradients/weights/gate/kernel"},
                                           {"weights/gate/bias", "gradients/weights/gate/bias"}};
    assay_status status = ASSAY_OK;
    const quad_tensor *given = quad_tensors_find(in, "inputs/routing_weights");
    if (given != NULL) return quad_put(ctx, out, "gradients/inputs/routing_weights", &given->shape, m->d_weights);
    TRY(add_router_gradient(ctx, m, in, "inputs/x", m->dx));
    for (int i = 0; i < 2; i++) {
        const quad_tensor *of = quad_tensors_find(in, paths[i][0]);
        quad *gradient = NULL;
        if (of == NULL) continue;
        TRY(quad_tensors_add(ctx, out, paths[i][1], &of->shape, &gradient));
        for (int64_t k = 0; k < assay_shape_count(&of->shape); k++) gradient[k] = 0;
        TRY(add_router_gradient(ctx, m, in, paths[i][0], gradient));
    }
cleanup:
    return status;
}

static assay_status put_mlps(assay_context *ctx, const recipe_moe *m, quad_tensors *out)
{
    assay_status status;
    const assay_tensor_table table = assay_mlp_weight_table(&m->expert_config, ASSAY_MLP_ROUTED);
    const assay_tensor_table of_shared = assay_mlp_weight_table(&m->shared_config, ASSAY_MLP_SHARED);
    const assay_shape copies = assay_shape_of(1, m->copies);
    assay_shape rows = m->x->shape;
    quad_mlp_checkpoints kept, kept_shared;
    rows.rank--;
    TRY(quad_add_mlp_checkpoints(ctx, out, &m->expert_config, ASSAY_MLP_ROUTED, &copies, &kept));
    quad_recipe_mlp_keep(&m->experts, &kept);
    memcpy(kept.values[ASSAY_MLPWO_GRADIENT], m->rows_dy,
           (size_t)(m->copies * m->config->emb_dim) * sizeof *m->rows_dy);
    TRY(quad_recipe_mlp_put_gradients(ctx, &table, m->experts.groups, &m->experts, out));
    if (m->config->shared_mlp_dim == 0) return ASSAY_OK;
    TRY(quad_add_mlp_checkpoints(ctx, out, &m->shared_config, ASSAY_MLP_SHARED, &rows, &kept_shared));
    quad_recipe_mlp_keep(&m->shared, &kept_shared);
    TRY(quad_recipe_mlp_put_gradients(ctx, &of_shared, 0, &m->shared, out));
cleanup:
    return status;
}

assay_status quad_quantised_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                                quad_tensors *out)
{
    assay_status status;
    const assay_moe_config *moe = &config->moe;
    const int64_t tokens = moe->routing.batch * moe->routing.sequence, k = moe->routing.num_experts_per_tok;
    recipe_moe m = {.config = moe, .tokens = tokens, .per_token = k, .copies = tokens * k};
    const assay_gated_mlp_config mlp = {.emb_dim = moe->emb_dim,
                                        .activation = {moe->activation, ASSAY_LINEAR},
                                        .hidden = moe->hidden,
                                        .recipe = moe->recipe};
    m.expert_config = m.shared_config = mlp;
    m.expert_config.mlp_dim = moe->moe_mlp_dim;
    m.expert_config.glu = moe->glu;
    m.expert_config.limit = moe->limit;
    m.expert_config.fused = moe->fused_weights;
    m.shared_config.mlp_dim = moe->shared_mlp_dim;
    TRY(quad_route(ctx, &moe->routing, in, out));
    TRY(read(ctx, in, out, &m));
    TRY(run_experts(ctx, &m));
    TRY(put_router(ctx, &m, in, out));
    TRY(put_mlps(ctx, &m, out));
    TRY(quad_put(ctx, out, "outputs/y", &m.x->shape, m.y));
    TRY(quad_put(ctx, out, "gradients/inputs/x", &m.x->shape, m.dx));
cleanup:
    release(&m);
    return status;
}
