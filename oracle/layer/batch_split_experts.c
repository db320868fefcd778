/* The shared expert, and the routed ones up to their activations, on all shards. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/blocks/mlp.h"
#include "oracle/layer/batch_split_moe_internal.h"
#include "oracle/ops/gmm.h"
#include "oracle/ops/vector_sums.h"

#define HIDDEN "shared_intermediate" /* h, as the module calls it */

void bs_shared_graph(bs_run *run, const assay_quant_recipe_config *recipe)
{
    static const char *const gradients[] = {"shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"};
    graph *g = &run->shared;
    assay_mlp_graph_config config = {.mlp = assay_moe_shared_config(&run->stack->config->moe, run->sizes.tokens),
                                     .place = ASSAY_MLP_SHARED};
    if (config.mlp.mlp_dim == 0) return;
    if (recipe != NULL) config.mlp.recipe = *recipe;
    assay_mlp_graph(g, &config);
    graph_called(g, HIDDEN, graph_find(g, "mlp_intermediate"));
    for (int i = 0; i < g->gradient_count; i++) g->steps[g->gradients[i]].gradient.name = gradients[i];
}

static int64_t row_count(const bs_run *run)
{
    return run->sizes.tokens * run->mla.emb_dim;
}

/* A shard's, to h and no further where there is no room for y. */
static assay_status run_shared(assay_context *ctx, const bs_layer *at, const bs_microbatch *b, graph_run *r,
                               int64_t shard, double *y)
{
    const graph *g = &at->run->shared;
    const double *x = b->values[MB_X_NORM] + shard * row_count(at->run);
    graph_open(r, g);
    graph_lend(r, graph_find(g, "inputs/x"), x);
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++)
        graph_lend(r, g->weights[i], bs_weight_of(at->run, at->w, BS_SHARED + i, shard));
    r->room[g->result] = y;
    if (y == NULL) graph_lend(r, g->result, x); /* as if it were there */
    r->hidden[graph_find(g, HIDDEN)] = y == NULL && at->made != NULL && at->made->after_forward;
    MUST(bs_show_run(ctx, r, at, b, shard));
    return graph_forward(ctx, r);
}

assay_status bs_shared_expert(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const int64_t size = row_count(at->run);
    OWNED_BY(graph_close) graph_run r = {0};
    MUST(bs_make(ctx, at->run, b, MB_SHARED_OUT));
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++) {
        MUST(run_shared(ctx, at, b, &r, shard, b->values[MB_SHARED_OUT] + shard * size));
        graph_close(&r);
    }
    return ASSAY_OK;
}

double bs_shared_expert_flops(const bs_run *run)
{
    const graph *g = &run->shared;
    const double both = graph_operations(g, graph_find(g, "mlpwi_0")) + graph_operations(g, graph_find(g, "mlpwi_1"));
    return (double)run->sizes.shards * both;
}

assay_status bs_shared_expert_remat(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    MUST(bs_make_runs(ctx, at->run, &b->shared));
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++)
        MUST(run_shared(ctx, at, b, &b->shared[shard], shard, NULL));
    assay_remat_recomputed(at->run->stack->store, bs_shared_expert_flops(at->run));
    return ASSAY_OK;
}

assay_status bs_shared_expert_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const graph *g = &at->run->shared;
    MUST(bs_make(ctx, at->run, d, MB_X_NORM));
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++) {
        graph_run *r = &b->shared[shard];
        const int64_t first = shard * row_count(at->run);
        graph_lend_gradient(r, g->result, d->values[MB_SHARED_OUT] + first);
        graph_want_gradient(r, graph_find(g, "inputs/x"), d->values[MB_X_NORM] + first);
        for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++)
            graph_want_gradient(r, g->weights[i], bs_weight_of(at->run, at->g, BS_SHARED + i, shard));
        MUST(graph_backward(ctx, r));
    }
    return ASSAY_OK;
}

static assay_gmm_dims gmm_dims(const bs_run *run, const bs_gmm_args *args)
{
    return (assay_gmm_dims){run->sizes.copies, args->k, args->n, run->sizes.local_experts};
}

/* What the products of one shard take; dy NULL: of forward alone. */
static assay_status quantise(assay_context *ctx, assay_quant_recipe_operands *o, const bs_gmm_args *args,
                             const double *dy, const assay_gmm_dims *dims, int64_t shard)
{
    static const assay_quant_recipe_config none = {0};
    const int64_t rows = shard * dims->m * dims->k;
    const assay_quant_recipe_given given = {
        .x = args->lhs + rows,
        .x_spread = args->lhs_spread == NULL ? NULL : args->lhs_spread + rows,
        .w = args->rhs + shard * dims->groups * dims->k * dims->n,
        .dy = dy == NULL ? NULL : dy + shard * dims->m * dims->n,
        .dy_spread = args->dy_spread == NULL ? NULL : args->dy_spread + shard * dims->m * dims->n,
        .group_sizes = args->group_sizes + shard * dims->groups};
    return assay_quant_recipe_quantise(ctx, o, &given, dims, args->recipe != NULL ? args->recipe : &none);
}

assay_status bs_gmm(assay_context *ctx, const bs_run *run, double *y, const bs_gmm_args *args)
{
    const assay_gmm_dims dims = gmm_dims(run, args);
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        MUST(quantise(ctx, &o, args, NULL, &dims, shard));
        MUST(assay_gmm_forward(ctx, y + shard * dims.m * dims.n, o.x, o.w, args->group_sizes + shard * dims.groups,
                               &dims));
        assay_quant_recipe_operands_free(&o);
    }
    return ASSAY_OK;
}

assay_status bs_gmm_bwd(assay_context *ctx, const bs_run *run, double *dlhs, double *drhs, const double *dy,
                        const bs_gmm_args *args)
{
    const assay_gmm_dims dims = gmm_dims(run, args);
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o = {0};
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const int32_t *sizes = args->group_sizes + shard * dims.groups;
        double *dx = dlhs == NULL ? NULL : dlhs + shard * dims.m * dims.k;
        double *dw = drhs == NULL ? NULL : drhs + shard * dims.groups * dims.k * dims.n;
        MUST(quantise(ctx, &o, args, dy, &dims, shard));
        const bool one = o.dx_dy == o.dw_dy;
        MUST(assay_gmm_backward(ctx, dx, one ? dw : NULL, o.dx_dy, o.dw_x, o.dx_w, sizes, &dims));
        if (!one) MUST(assay_gmm_backward(ctx, NULL, dw, o.dw_dy, o.dw_x, o.dx_w, sizes, &dims));
        assay_quant_recipe_operands_free(&o);
    }
    return ASSAY_OK;
}

/* The rows of the routed experts times one of their kernels on the way in. */
static bs_gmm_args gating_args(const bs_layer *at, const bs_microbatch *b, int weight)
{
    return (bs_gmm_args){.lhs = b->values[MB_ROWS],
                         .rhs = at->w->values[weight],
                         .group_sizes = b->indices[MB_OWN_COUNTS],
                         .k = at->run->mla.emb_dim,
                         .n = at->run->stack->config->moe.moe_mlp_dim,
                         .recipe = at->recipe};
}

assay_status bs_one_gating(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_gmm_args gate = gating_args(at, b, BS_ROUTED + ASSAY_MLP_WI_0);
    const assay_status status = bs_make(ctx, at->run, b, MB_GATE);
    return status != ASSAY_OK ? status : bs_gmm(ctx, at->run, b->values[MB_GATE], &gate);
}

/* A mutant's gradient that does not come through a kernel. */
static void detach(const assay_context *ctx, const char *kernel, double *values, int64_t count)
{
    if (assay_step_is_changed(ctx, "linear", kernel)) memset(values, 0, (size_t)count * sizeof *values);
}

assay_status bs_one_gating_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    const bs_gmm_args gate = gating_args(at, b, BS_ROUTED + ASSAY_MLP_WI_0);
    MUST(bs_make(ctx, at->run, d, MB_ROWS));
    MUST(bs_gmm_bwd(ctx, at->run, d->values[MB_ROWS], at->g->values[BS_ROUTED + ASSAY_MLP_WI_0], d->values[MB_GATE],
                    &gate));
    detach(ctx, "wi_0", d->values[MB_ROWS], bs_count(at->run, MB_ROWS));
    return ASSAY_OK;
}

assay_status bs_compute_gating(assay_context *ctx, const bs_layer *at, bs_microbatch *b)
{
    const bs_gmm_args up = gating_args(at, b, BS_ROUTED + ASSAY_MLP_WI_1);
    const int64_t count = bs_count(at->run, MB_GATE);
    MUST(bs_one_gating(ctx, at, b));
    MUST(bs_make(ctx, at->run, b, MB_UP));
    MUST(bs_gmm(ctx, at->run, b->values[MB_UP], &up));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->values[MB_GATE]);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, b->values[MB_UP]);
    return ASSAY_OK;
}

/* a and b [rows,n] side by side: [rows,2n]. */
static void join(double *both, const double *a, const double *b, int64_t rows, int64_t n)
{
    for (int64_t row = 0; row < rows; row++) {
        memcpy(both + 2 * row * n, a + row * n, (size_t)n * sizeof *both);
        memcpy(both + (2 * row + 1) * n, b + row * n, (size_t)n * sizeof *both);
    }
}

/* Gradients of gate and up that a recipe quantises, and what may be said of their errors. */
typedef struct gating_gradients {
    const double *values[2];
    double *spread[2]; /* NULL: exact */
} gating_gradients;

/* By itself the function is given them. */
static assay_status show_gating_gradients(assay_context *ctx, const bs_layer *at, const bs_microbatch *b,
                                          gating_gradients *dy)
{
    static const char *const names[] = {"layer_w0_gradient", "layer_w1_gradient"};
    const bool shows = at->made != NULL && at->made->parts;
    for (int i = 0; shows && i < 2; i++)
        MUST(bs_made_show(ctx, at->made, names[i], false, b->number, bs_count(at->run, MB_GATE), dy->values[i],
                          &dy->spread[i]));
    return ASSAY_OK;
}

/* dx through one product with both kernels side by side (merge_gating_gmm): one sum over both. */
static assay_status merged_input_bwd(assay_context *ctx, const bs_layer *at, const bs_microbatch *b,
                                     const gating_gradients *dy, double *dx)
{
    const bs_run *run = at->run;
    bs_gmm_args args = gating_args(at, b, BS_ROUTED + ASSAY_MLP_WI_0);
    const int64_t kernels = run->sizes.local_experts * args.k, rows = run->sizes.shards * run->sizes.copies;
    OWNED double *kernel = NULL, *both = NULL, *spread = NULL;
    MUST(bs_alloc_shards(ctx, run, "both kernels", kernels, 2 * args.n, &kernel));
    MUST(bs_alloc_shards(ctx, run, "both gradients", run->sizes.copies, 2 * args.n, &both));
    join(kernel, args.rhs, at->w->values[BS_ROUTED + ASSAY_MLP_WI_1], run->sizes.shards * kernels, args.n);
    join(both, dy->values[0], dy->values[1], rows, args.n);
    if (dy->spread[0] != NULL) {
        MUST(bs_alloc_shards(ctx, run, "errors of both", run->sizes.copies, 2 * args.n, &spread));
        join(spread, dy->spread[0], dy->spread[1], rows, args.n);
    }
    for (int branch = 0; branch < 2; branch++)
        for (int64_t row = 0; row < rows; row++)
            detach(ctx, branch == 0 ? "wi_0" : "wi_1", both + (2 * row + branch) * args.n, args.n);
    args.rhs = kernel;
    args.dy_spread = spread;
    args.n *= 2;
    return bs_gmm_bwd(ctx, run, dx, NULL, both, &args);
}

assay_status bs_compute_gating_bwd(assay_context *ctx, const bs_layer *at, bs_microbatch *b, bs_microbatch *d)
{
    assay_status status = ASSAY_OK;
    const bs_run *run = at->run;
    const int64_t count = bs_count(run, MB_ROWS);
    const bool merged = run->stack->config->merge_gating_gmm;
    gating_gradients dy = {.values = {d->values[MB_GATE], d->values[MB_UP]}};
    double *through_up = NULL;
    TRY(show_gating_gradients(ctx, at, b, &dy));
    TRY(bs_make(ctx, run, d, MB_ROWS));
    double *dx = d->values[MB_ROWS];
    if (merged) TRY(merged_input_bwd(ctx, at, b, &dy, dx));
    TRY(bs_alloc_shards(ctx, run, "gradient through mlpwi_1", run->sizes.copies, run->mla.emb_dim, &through_up));
    for (int i = 0; i < 2; i++) {
        const int weight = BS_ROUTED + (i == 0 ? ASSAY_MLP_WI_0 : ASSAY_MLP_WI_1);
        bs_gmm_args args = gating_args(at, b, weight);
        args.dy_spread = dy.spread[i];
        TRY(bs_gmm_bwd(ctx, run, merged ? NULL : i == 0 ? dx : through_up, at->g->values[weight], dy.values[i], &args));
    }
    if (merged) goto cleanup;
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, dx);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, through_up);
    detach(ctx, "wi_0", dx, count);
    detach(ctx, "wi_1", through_up, count);
    assay_add(ctx, count, through_up, dx);
cleanup:
    free(dy.spread[0]);
    free(dy.spread[1]);
    free(through_up);
    return status;
}
