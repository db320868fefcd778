#include "oracle/ops/tests/mlp_problem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static void join(double *wi, const double *wi_0, const double *wi_1, int64_t rows, int64_t hidden)
{
    for (int64_t row = 0; row < rows; row++) {
        memcpy(wi + row * 2 * hidden, wi_0 + row * hidden, (size_t)hidden * sizeof *wi);
        memcpy(wi + row * 2 * hidden + hidden, wi_1 + row * hidden, (size_t)hidden * sizeof *wi);
    }
}

void mlp_split(const double *wi, double *wi_0, double *wi_1, int64_t rows, int64_t hidden)
{
    for (int64_t row = 0; row < rows; row++) {
        memcpy(wi_0 + row * hidden, wi + row * 2 * hidden, (size_t)hidden * sizeof *wi);
        memcpy(wi_1 + row * hidden, wi + row * 2 * hidden + hidden, (size_t)hidden * sizeof *wi);
    }
}

void mlp_problem_make(assay_context *ctx, mlp_problem *p, const assay_gated_mlp_config *config, bool biased,
                      assay_dtype grid, uint64_t seed)
{
    const int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    *p = (mlp_problem){.config = *config, .biased = biased};
    place_parts(p);
    const double wi_scale = 1 / sqrt((double)dim), wo_scale = 1 / sqrt((double)hidden);
    const double scale[MLP_PARTS] = {1, wi_scale, wi_scale, 0.5, 0.5, wo_scale, 0.5};
    for (int i = 0; i < MLP_PARTS; i++) test_fill(&seed, scale[i], grid, p->size[i], p->part[i]);
    p->dy = test_normals(&seed, 1, grid, rows * dim);
    p->y = test_nans(rows * dim);
    p->dh = test_nans(rows * hidden);
    p->wi = test_nans(2 * dim * hidden);
    p->dwi = test_nans(2 * dim * hidden);
    join(p->wi, p->part[MLP_WI_0], p->part[MLP_WI_1], dim, hidden);
    for (int part = MLP_WI_0; part < MLP_PARTS; part++) {
        const bool there = part <= MLP_WI_1 ? !config->fused : part == MLP_WO || biased;
        p->w.w[mlp_weight_of(part)] = there ? p->part[part] : NULL;
    }
    if (config->fused) p->w.w[ASSAY_MLP_WI] = p->wi;
    p->g = mlp_gradients_into(p, p->gradient, p->dwi);
    p->g.dh = p->dh;
    assert_ok(ctx, assay_gated_mlp_residuals_alloc(ctx, &p->r, config));
    assay_fill_nan(p->r.storage, 3 * rows * hidden);
}

void mlp_problem_free(mlp_problem *p)
{
    free(p->part[0]);
    free(p->gradient[0]);
    free(p->dy);
    free(p->y);
    free(p->dh);
    free(p->wi);
    free(p->dwi);
    assay_gated_mlp_residuals_free(&p->r);
}

void mlp_problem_run(assay_context *ctx, mlp_problem *p)
{
    const assay_gated_mlp_config *config = &p->config;
    assert_ok(ctx, assay_gated_mlp_forward(ctx, p->y, &p->r, p->part[MLP_X], &p->w, config));
    assert_ok(ctx, assay_gated_mlp_backward(ctx, &p->g, p->dy, &p->r, p->part[MLP_X], &p->w, config));
    mlp_problem_split(p, MLP_WI_0);
}

assay_gated_mlp_gradients mlp_gradients_into(const mlp_problem *p, double *const gradient[MLP_PARTS], double *dwi)
{
    assay_gated_mlp_gradients g = {.dx = gradient[MLP_X]};
    for (int part = p->config.fused ? MLP_WI_0_BIAS : MLP_WI_0; part < MLP_PARTS; part++)
        g.g[mlp_weight_of(part)] = gradient[part];
    if (p->config.fused) g.g[ASSAY_MLP_WI] = dwi;
    return g;
}

void mlp_problem_gradients_of(const mlp_problem *p, int part, assay_gated_mlp_gradients *g)
{
    *g = (assay_gated_mlp_gradients){.dx = part == MLP_X ? p->g.dx : NULL, .dh = part < 0 ? p->g.dh : NULL};
    if (part > MLP_X) g->g[mlp_weight_of(part)] = p->g.g[mlp_weight_of(part)];
    if (part == MLP_WI_0) g->g[ASSAY_MLP_WI] = p->g.g[ASSAY_MLP_WI];
}

void mlp_problem_split(mlp_problem *p, int part)
{
    if (!p->config.fused || part != MLP_WI_0) return;
    mlp_split(p->dwi, p->gradient[MLP_WI_0], p->gradient[MLP_WI_1], p->config.emb_dim, p->config.mlp_dim);
}
