#include "oracle/propagate/tests/mlp_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/blocks/mlp.h"
#include "oracle/ops/tests/ops_test.h"

static void place_parts(mlp_problem *p)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    const int64_t size[MLP_PARTS] = {rows * dim, dim * hidden, dim * hidden, hidden, hidden, hidden * dim, dim};
    memcpy(p->size, size, sizeof size);
    for (int i = 0; i < MLP_PARTS; i++) p->count += size[i];
    p->part[0] = test_nans(p->count);
    p->gradient[0] = test_nans(p->count);
    for (int i = 1; i < MLP_PARTS; i++) {
        p->part[i] = p->part[i - 1] + size[i - 1];
        p->gradient[i] = p->gradient[i - 1] + size[i - 1];
    }
}

void mlp_place_gradients(double *const gradient[MLP_PARTS], double *g[ASSAY_MLP_WEIGHTS])
{
    for (int part = MLP_WI_0; part < MLP_PARTS; part++) g[part + ASSAY_MLP_WI_0 - MLP_WI_0] = gradient[part];
}

void mlp_problem_make(mlp_problem *p, const assay_gated_mlp_config *config, bool biased, assay_dtype grid,
                      uint64_t seed)
{
    const int64_t rows = config->rows, hidden = config->mlp_dim;
    *p = (mlp_problem){.config = *config};
    place_parts(p);
    const double wi_scale = 1 / sqrt((double)config->emb_dim), wo_scale = 1 / sqrt((double)hidden);
    const double scale[MLP_PARTS] = {1, wi_scale, wi_scale, 0.5, 0.5, wo_scale, 0.5};
    for (int i = 0; i < MLP_PARTS; i++) test_fill(&seed, scale[i], grid, p->size[i], p->part[i]);
    p->dy = test_normals(&seed, 1, grid, p->size[MLP_X]);
    p->y = test_nans(p->size[MLP_X]);
    p->dh = test_nans(rows * hidden);
    p->storage = test_nans(3 * rows * hidden);
    p->r = (assay_gated_mlp_values){
        .a = p->storage, .b = p->storage + rows * hidden, .h = p->storage + 2 * rows * hidden, .ld = hidden};
    mlp_place_gradients(p->part, p->w);
    if (!biased) p->w[ASSAY_MLP_WI_0_BIAS] = p->w[ASSAY_MLP_WI_1_BIAS] = p->w[ASSAY_MLP_WO_BIAS] = NULL;
}

void mlp_problem_free(mlp_problem *p)
{
    free(p->part[0]);
    free(p->gradient[0]);
    free(p->dy);
    free(p->y);
    free(p->dh);
    free(p->storage);
}

void mlp_problem_run(assay_context *ctx, mlp_problem *p)
{
    static const char *const kept[] = {"mlpwi_0", "mlpwi_1", "mlp_intermediate"};
    const int64_t rows = p->config.rows, hidden = p->config.mlp_dim;
    const assay_mlp_graph_config config = {.mlp = p->config, .place = ASSAY_MLP_DENSE, .batch = rows, .sequence = 1};
    const assay_matmul_args dh = assay_product_abt(p->dh, p->dy, p->part[MLP_WO], rows, hidden, p->config.emb_dim);
    double *gradients[ASSAY_MLP_WEIGHTS] = {NULL};
    graph g;
    graph_run r;
    assay_mlp_graph(&g, &config);
    graph_open(&r, &g);
    graph_lend(&r, graph_find(&g, "inputs/x"), p->part[MLP_X]);
    graph_lend_weights(&r, p->w);
    for (int i = 0; i < 3; i++) r.room[graph_find(&g, kept[i])] = p->storage + i * rows * hidden;
    r.room[g.result] = p->y;
    assert_ok(ctx, graph_forward(ctx, &r));
    mlp_place_gradients(p->gradient, gradients);
    graph_lend_gradient(&r, g.result, p->dy);
    graph_want_gradient(&r, graph_find(&g, "inputs/x"), p->gradient[MLP_X]);
    graph_want_weight_gradients(&r, gradients);
    assert_ok(ctx, graph_backward(ctx, &r));
    graph_close(&r);
    assert_ok(ctx, assay_matmul(ctx, &dh));
}
