/* The shared expert, and the routed ones up to their activations, on all shards. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/vector_sums.h"

/* Of one shard. */
static assay_gated_mlp_config shared_config(const bs_run *run)
{
    return assay_moe_shared_config(&run->stack->config->moe, run->sizes.tokens);
}

/* By the recipe of a function by itself. */
static assay_gated_mlp_config shared_config_of(const bs_moe_layer *at)
{
    assay_gated_mlp_config config = shared_config(at->run);
    if (at->recipe != NULL) config.recipe = *at->recipe;
    return config;
}

/* h of a shard, which a recipe quantises. */
static assay_status show_hidden(assay_context *ctx, const bs_moe_layer *at, bool again, int64_t shard,
                                const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config,
                                double **spread)
{
    const int64_t count = config->rows * config->mlp_dim;
    if (config->recipe.recipe == NULL) return ASSAY_OK;
    return bs_made_show(ctx, at->made, "shared_intermediate", again, shard * count, count, r->h, spread);
}

/* The gradients of a shard's gate and up, which a recipe quantises. */
typedef struct up_gradients {
    const bs_moe_layer *at;
    const assay_gated_mlp_config *config;
    int64_t shard;
    assay_gated_mlp_residuals *r; /* gets d_up_spread */
    double *spread;
} up_gradients;

static assay_status show_up_gradients(assay_context *ctx, void *self, double *da, double *db)
{
    assay_status status = ASSAY_OK;
    static const char *const names[] = {"shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"};
    up_gradients *u = self;
    double *const values[] = {da, db}, *spread[] = {NULL, NULL};
    const int64_t count = u->config->rows * u->config->mlp_dim;
    for (int i = 0; i < 2; i++) {
        TRY(bs_made_show(ctx, u->at->made, names[i], false, u->shard * count, count, values[i], &spread[i]));
    }
    if (spread[0] == NULL) goto cleanup;
    TRY(assay_alloc_f64(ctx, "spread of gradients", 2 * count, &u->spread));
    for (int i = 0; i < 2; i++) memcpy(u->spread + i * count, spread[i], (size_t)count * sizeof(double));
    u->r->d_up_spread = u->spread;
cleanup:
    for (int i = 0; i < 2; i++) free(spread[i]);
    return status;
}

static assay_gated_mlp_weights shared_weights(const bs_run *run, const bs_weights *w, int64_t shard)
{
    assay_gated_mlp_weights weights;
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) weights.w[i] = bs_weight_of(run, w, BS_SHARED + i, shard);
    return weights;
}

assay_status bs_shared_expert(assay_context *ctx, const bs_moe_layer *at, double *y, const double *x)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_config config = shared_config_of(at);
    const int64_t size = config.rows * config.emb_dim;
    assay_gated_mlp_residuals residuals = {0};
    double *spread = NULL;
    TRY(assay_gated_mlp_residuals_alloc(ctx, &residuals, &config));
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++) {
        const assay_gated_mlp_weights w = shared_weights(at->run, at->w, shard);
        TRY(assay_gated_mlp_up(ctx, &residuals, ASSAY_BRANCH_BOTH, x + shard * size, &w, &config));
        assay_gated_mlp_gate(ctx, &residuals, &config);
        TRY(show_hidden(ctx, at, false, shard, &residuals, &config, &spread));
        residuals.h_spread = spread;
        TRY(assay_gated_mlp_down(ctx, y + shard * size, &residuals, &w, &config));
        free(spread);
        spread = NULL;
    }
cleanup:
    free(spread);
    assay_gated_mlp_residuals_free(&residuals);
    return status;
}

double bs_shared_expert_flops(const bs_run *run)
{
    const assay_gated_mlp_config config = shared_config(run);
    return 4 * (double)run->sizes.shards * (double)config.rows * (double)config.emb_dim * (double)config.mlp_dim;
}

assay_status bs_shared_expert_remat(assay_context *ctx, const bs_moe_layer *at, assay_gated_mlp_residuals **shared,
                                    const double *x)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_config config = shared_config_of(at);
    const int64_t size = config.rows * config.emb_dim, shards = at->run->sizes.shards;
    void *room = NULL;
    TRY(assay_alloc(ctx, "residuals of the shared expert", shards, sizeof **shared, &room));
    *shared = room;
    memset(room, 0, (size_t)shards * sizeof **shared);
    for (int64_t shard = 0; shard < shards; shard++) {
        const assay_gated_mlp_weights w = shared_weights(at->run, at->w, shard);
        assay_gated_mlp_residuals *r = *shared + shard;
        TRY(assay_gated_mlp_residuals_alloc(ctx, r, &config));
        TRY(assay_gated_mlp_up(ctx, r, ASSAY_BRANCH_BOTH, x + shard * size, &w, &config));
        assay_gated_mlp_gate(ctx, r, &config);
    }
    assay_remat_recomputed(at->run->stack->store, bs_shared_expert_flops(at->run));
cleanup:
    return status;
}

assay_status bs_shared_expert_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const double *dy,
                                  const double *x, const assay_gated_mlp_residuals *shared)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_config config = shared_config_of(at);
    const int64_t size = config.rows * config.emb_dim;
    up_gradients up = {.at = at, .config = &config};
    double *spread = NULL;
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++) {
        const assay_gated_mlp_weights w = shared_weights(at->run, at->w, shard);
        assay_gated_mlp_gradients gradients = {.dx = dx + shard * size};
        assay_gated_mlp_residuals r = shared[shard]; /* lent */
        for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) gradients.g[i] = bs_weight_of(at->run, at->g, BS_SHARED + i, shard);
        TRY(show_hidden(ctx, at, true, shard, &r, &config, &spread));
        r.h_spread = spread;
        up.shard = shard;
        up.r = &r;
        if (config.recipe.recipe != NULL) gradients.take_d_up = show_up_gradients;
        gradients.self = &up;
        TRY(assay_gated_mlp_backward(ctx, &gradients, dy + shard * size, &r, x + shard * size, &w, &config));
        free(spread);
        free(up.spread);
        spread = up.spread = NULL;
    }
cleanup:
    free(spread);
    free(up.spread);
    return status;
}

static assay_gmm_dims gmm_dims(const bs_run *run, const bs_gmm_args *args)
{
    return (assay_gmm_dims){run->sizes.copies, args->k, args->n, run->sizes.local_experts};
}

/* What the products of one shard take; dy NULL: of forward alone. */
static assay_status quantise(assay_context *ctx, assay_recipe_operands *o, const bs_gmm_args *args, const double *dy,
                             const assay_gmm_dims *dims, int64_t shard)
{
    static const assay_recipe_config none = {0};
    const int64_t rows = shard * dims->m * dims->k;
    const assay_recipe_given given = {.x = args->lhs + rows,
                                      .x_spread = args->lhs_spread == NULL ? NULL : args->lhs_spread + rows,
                                      .w = args->rhs + shard * dims->groups * dims->k * dims->n,
                                      .dy = dy == NULL ? NULL : dy + shard * dims->m * dims->n,
                                      .group_sizes = args->group_sizes + shard * dims->groups};
    return assay_recipe_quantise(ctx, o, &given, dims, args->recipe != NULL ? args->recipe : &none);
}

assay_status bs_gmm(assay_context *ctx, const bs_run *run, double *y, const bs_gmm_args *args)
{
    assay_status status = ASSAY_OK;
    const assay_gmm_dims dims = gmm_dims(run, args);
    assay_recipe_operands o = {0};
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        TRY(quantise(ctx, &o, args, NULL, &dims, shard));
        TRY(assay_gmm_forward(ctx, y + shard * dims.m * dims.n, o.x, o.w, args->group_sizes + shard * dims.groups,
                              &dims));
        assay_recipe_operands_free(&o);
    }
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

assay_status bs_gmm_bwd(assay_context *ctx, const bs_run *run, double *dlhs, double *drhs, const double *dy,
                        const bs_gmm_args *args)
{
    assay_status status = ASSAY_OK;
    const assay_gmm_dims dims = gmm_dims(run, args);
    assay_recipe_operands o = {0};
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int32_t *sizes = args->group_sizes + shard * dims.groups;
        double *dx = dlhs == NULL ? NULL : dlhs + shard * dims.m * dims.k;
        double *dw = drhs == NULL ? NULL : drhs + shard * dims.groups * dims.k * dims.n;
        TRY(quantise(ctx, &o, args, dy, &dims, shard));
        const bool one = o.dx_dy == o.dw_dy;
        TRY(assay_gmm_backward(ctx, dx, one ? dw : NULL, o.dx_dy, o.dw_x, o.dx_w, sizes, &dims));
        if (!one) TRY(assay_gmm_backward(ctx, NULL, dw, o.dw_dy, o.dw_x, o.dx_w, sizes, &dims));
        assay_recipe_operands_free(&o);
    }
cleanup:
    assay_recipe_operands_free(&o);
    return status;
}

assay_status bs_gating_alloc(assay_context *ctx, const bs_run *run, bs_gating *gating)
{
    assay_status status = ASSAY_OK;
    const int64_t hidden = run->stack->config->moe.moe_mlp_dim;
    TRY(bs_alloc_shards(ctx, run, "mlpwi_0", run->sizes.copies, hidden, &gating->layer_w0));
    TRY(bs_alloc_shards(ctx, run, "mlpwi_1", run->sizes.copies, hidden, &gating->layer_w1));
cleanup:
    return status;
}

void bs_gating_free(bs_gating *gating)
{
    free(gating->layer_w0);
    free(gating->layer_w1);
    *gating = (bs_gating){0};
}

/* The rows of the routed experts times one of their kernels on the way in. */
static bs_gmm_args gating_args(const bs_moe_layer *at, const bs_routed *routed, int weight)
{
    return (bs_gmm_args){.lhs = routed->x,
                         .rhs = at->w->values[weight],
                         .group_sizes = routed->group_sizes,
                         .k = at->run->mla.emb_dim,
                         .n = at->run->stack->config->moe.moe_mlp_dim,
                         .recipe = at->recipe};
}

assay_status bs_compute_gating(assay_context *ctx, const bs_moe_layer *at, bs_gating *gating, const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_gmm_args gate = gating_args(at, routed, BS_ROUTED + ASSAY_MLP_WI_0),
                      up = gating_args(at, routed, BS_ROUTED + ASSAY_MLP_WI_1);
    const int64_t count = at->run->sizes.shards * at->run->sizes.copies * gate.n;
    TRY(bs_gmm(ctx, at->run, gating->layer_w0, &gate));
    TRY(bs_gmm(ctx, at->run, gating->layer_w1, &up));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, gating->layer_w0);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, gating->layer_w1);
cleanup:
    return status;
}

/* a and b [rows,n] side by side: [rows,2n]. */
static void join(double *both, const double *a, const double *b, int64_t rows, int64_t n)
{
    for (int64_t row = 0; row < rows; row++) {
        memcpy(both + 2 * row * n, a + row * n, (size_t)n * sizeof *both);
        memcpy(both + (2 * row + 1) * n, b + row * n, (size_t)n * sizeof *both);
    }
}

/* dx through one product with both kernels side by side (merge_gating_gmm): one sum over both. */
static assay_status merged_input_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const bs_gating *d_gating,
                                     const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    bs_gmm_args args = gating_args(at, routed, BS_ROUTED + ASSAY_MLP_WI_0);
    const int64_t kernels = run->sizes.local_experts * args.k;
    double *kernel = NULL, *d = NULL;
    TRY(bs_alloc_shards(ctx, run, "both kernels", kernels, 2 * args.n, &kernel));
    TRY(bs_alloc_shards(ctx, run, "both gradients", run->sizes.copies, 2 * args.n, &d));
    join(kernel, args.rhs, at->w->values[BS_ROUTED + ASSAY_MLP_WI_1], run->sizes.shards * kernels, args.n);
    join(d, d_gating->layer_w0, d_gating->layer_w1, run->sizes.shards * run->sizes.copies, args.n);
    args.rhs = kernel;
    args.n *= 2;
    TRY(bs_gmm_bwd(ctx, run, dx, NULL, d, &args));
cleanup:
    free(kernel);
    free(d);
    return status;
}

assay_status bs_compute_gating_bwd(assay_context *ctx, const bs_moe_layer *at, double *dx, const bs_gating *d_gating,
                                   const bs_routed *routed)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const bs_gmm_args gate = gating_args(at, routed, BS_ROUTED + ASSAY_MLP_WI_0),
                      up = gating_args(at, routed, BS_ROUTED + ASSAY_MLP_WI_1);
    const int64_t count = run->sizes.shards * run->sizes.copies * run->mla.emb_dim;
    const bool merged = run->stack->config->merge_gating_gmm;
    double *through_up = NULL;
    if (merged) TRY(merged_input_bwd(ctx, at, dx, d_gating, routed));
    TRY(bs_alloc_shards(ctx, run, "gradient through mlpwi_1", run->sizes.copies, run->mla.emb_dim, &through_up));
    TRY(bs_gmm_bwd(ctx, run, merged ? NULL : dx, at->g->values[BS_ROUTED + ASSAY_MLP_WI_0], d_gating->layer_w0, &gate));
    TRY(bs_gmm_bwd(ctx, run, merged ? NULL : through_up, at->g->values[BS_ROUTED + ASSAY_MLP_WI_1], d_gating->layer_w1,
                   &up));
    if (merged) goto cleanup;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, dx);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, through_up);
    assay_add(ctx, count, through_up, dx);
cleanup:
    free(through_up);
    return status;
}
