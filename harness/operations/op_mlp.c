#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_block.h"
#include "oracle/base/memory.h"
#include "oracle/blocks/mlp.h"
#include "oracle/propagate/propagate_gated_mlp.h"
#include "oracle/propagate/scales.h"

typedef struct mlp_config {
    assay_gated_mlp_config mlp; /* the first, since it is what the second form gets */
    int64_t batch, sequence;
} mlp_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    mlp_config *config = to;
    config->batch = c->batch;
    config->sequence = c->sequence;
    return assay_mlp_config_of(ctx, c, &config->mlp);
}

static void graph_of(const void *of, bool one_shard, graph *g)
{
    const mlp_config *config = of;
    const assay_mlp_graph_config whole = {.batch = config->batch, .sequence = config->sequence, .mlp = config->mlp};
    (void)one_shard;
    assay_mlp_graph(g, &whole);
}

/* Variances of what a run has made. */
typedef struct mlp_scales {
    assay_gated_mlp_config config;
    assay_gated_mlp_values r; /* the run's */
    double *w[ASSAY_MLP_WEIGHTS];
    assay_tensor_table table;
    int64_t size; /* of x and y */
    double *dy;   /* the cotangent */
    double *pre;  /* of a, b and h */
    double *y, *dx;
    double *gradients[ASSAY_MLP_WEIGHTS];
} mlp_scales;

static void close_scales(mlp_scales *s)
{
    assay_weights_free(&s->table, s->gradients);
    free(s->dy);
    free(s->pre);
    free(s->y);
    free(s->dx);
}

static double *value_of(const graph_run *r, const char *name)
{
    return r->value[graph_find(r->graph, name)];
}

static assay_status open_scales(assay_context *ctx, const graph_run *r, mlp_scales *s)
{
    const int64_t width = s->config.mlp_dim, block = s->config.rows * width;
    const bool fused = s->config.fused;
    double *gate = value_of(r, fused ? "mlpwi" : "mlpwi_0");
    s->r = (assay_gated_mlp_values){.a = gate,
                                    .b = fused ? gate + width : value_of(r, "mlpwi_1"),
                                    .h = value_of(r, "mlp_intermediate"),
                                    .ld = fused ? 2 * width : width};
    s->table = graph_weight_table(r->graph);
    s->size = graph_size(r->graph, r->graph->result);
    MUST(assay_read_whole(ctx, r->in, "cotangents/y", s->size, &s->dy));
    MUST(assay_alloc_f64(ctx, "error scale of mlp", 3 * block, &s->pre));
    MUST(assay_alloc_f64(ctx, "error scale of mlp", s->size, &s->y));
    MUST(assay_alloc_f64(ctx, "error scale of mlp", s->size, &s->dx));
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        s->w[i] = r->value[r->graph->weights[i]];
        if (s->w[i] != NULL)
            MUST(assay_alloc_f64(ctx, "error scale of mlp", assay_tensor_row_count(&s->table.rows[i]),
                                 &s->gradients[i]));
    }
    return ASSAY_OK;
}

static assay_status write_scales(assay_context *ctx, const assay_precision *precision, const graph_run *r,
                                 mlp_scales *s)
{
    const int64_t width = s->config.mlp_dim, block = s->config.rows * width;
    const assay_gated_mlp_run run = {
        .x = value_of(r, "inputs/x"), .dy = s->dy, .r = s->r, .w = s->w, .config = &s->config};
    assay_gated_mlp_variances v = {
        .a = s->pre, .b = s->pre + (s->config.fused ? width : block), .h = s->pre + 2 * block, .y = s->y, .dx = s->dx};
    memcpy(v.g, s->gradients, sizeof v.g);
    MUST(assay_propagate_gated_mlp(ctx, precision, &v, &run));
    MUST(assay_write_scale(ctx, r->out, precision, "gradients/inputs/x", s->size, s->dx));
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        char path[ASSAY_PATH_SIZE];
        if (s->gradients[i] == NULL) continue;
        assay_tensor_path("gradients/weights/", "", &s->table.rows[i], path);
        MUST(assay_write_scale(ctx, r->out, precision, path, assay_tensor_row_count(&s->table.rows[i]),
                               s->gradients[i]));
    }
    if (s->config.fused) {
        MUST(assay_write_scale(ctx, r->out, precision, "checkpoints/mlpwi", 2 * block, v.a));
    } else {
        MUST(assay_write_scale(ctx, r->out, precision, "checkpoints/mlpwi_0", block, v.a));
        MUST(assay_write_scale(ctx, r->out, precision, "checkpoints/mlpwi_1", block, v.b));
    }
    MUST(assay_write_scale(ctx, r->out, precision, "checkpoints/mlp_intermediate", block, v.h));
    MUST(assay_write_scale(ctx, r->out, precision, "outputs/y", s->size, s->y));
    return assay_write_scale(ctx, r->out, precision, "checkpoints/mlpwo", s->size, s->y);
}

static assay_status scales_of(assay_context *ctx, const void *config, const graph_run *r,
                              const assay_precision *precisions, int precision_count)
{
    assay_status status;
    mlp_scales s = {.config = ((const mlp_config *)config)->mlp};
    TRY(open_scales(ctx, r, &s));
    for (int i = 0; i < precision_count; i++) TRY(write_scales(ctx, &precisions[i], r, &s));
cleanup:
    close_scales(&s);
    return status;
}

/* Codes that change are no error of first order. */
static bool ensemble(const assay_case *c, const void *config)
{
    (void)config;
    return assay_quantises_made(c);
}

static int64_t memory(const void *config)
{
    const assay_gated_mlp_config *mlp = config;
    const int64_t rows = mlp->rows, dim = mlp->emb_dim, hidden = mlp->mlp_dim;
    /* codes, scales and numbers of the operands of three products, of which two are there at a time */
    const int64_t of_recipe = mlp->recipe.recipe != NULL ? 6 * (dim * hidden + rows * (3 * dim + 3 * hidden)) : 0;
    /* weights and gradients, the error scale's copies of a product's operands, and what rows keep */
    return 8 * (8 * dim * hidden + rows * (8 * dim + 24 * hidden) + of_recipe);
}

const assay_operation assay_op_mlp = {.name = "mlp",
                                      .parts = ASSAY_PART_MLP,
                                      .summary = "gated MLP of a dense layer, fused or not",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .graph_scales = scales_of,
                                      .ensemble = ensemble,
                                      .quantised = true,
                                      .second_form = {.form = quad_gated_mlp},
                                      .bytes = memory};
