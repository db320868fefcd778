#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/ops_shares.h"
#include "oracle/ops/quantised_spread.h"
#include "oracle/ops/requantise.h"
#include "oracle/propagate/propagate_gated_mlp.h"
#include "oracle/propagate/scales.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_gated_mlp_config config;
    return assay_mlp_config_of(ctx, c, &config);
}

static bool has_recipe(const void *c)
{
    return ((const assay_case *)c)->config.quant_recipe.text[0] != '\0';
}

static void second_form(quad_tape *t, const void *c)
{
    assay_gated_mlp_config config;
    if (quad_try(t, assay_mlp_config_of(quad_context(t), c, &config))) quad_gated_mlp(t, &config);
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_dims x = {"BSD", {c->batch, c->sequence, c->config.base_emb_dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_gated_mlp_config config;
    TRY(assay_mlp_config_of(ctx, c, &config));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    assay_mark_operand(list, 2, (assay_operand_axes){0, 2, false});
    const assay_tensor_table weights = assay_mlp_weight_table(&config, ASSAY_MLP_DENSE);
    TRY(assay_describe_weights(&d, &weights, (assay_dims){"", {0}}));
    TRY(assay_describe_mlp_checkpoints(&d, &config, ASSAY_MLP_DENSE, (assay_dims){"BS", {c->batch, c->sequence}}));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    assay_mark_operand(list, 1, (assay_operand_axes){0, 2, false});
cleanup:
    return status;
}

/* What a run reads, and what it makes of that. Gradients are those of everything that is there. */
typedef struct mlp_run {
    const assay_source *in;
    const assay_sink *out;
    assay_gated_mlp_config config;
    assay_tensor_table table;
    int64_t size; /* of x and y */
    double *x, *dx, *y, *dy;
    double *weights[ASSAY_MLP_WEIGHTS], *gradients[ASSAY_MLP_WEIGHTS];
    double *h_spread, *d_up_spread; /* of what is quantised in an emulated run */
    assay_gated_mlp_residuals r;
} mlp_run;

/* Of gate and up one tensor when they are fused, else two. */
typedef struct up_paths {
    const char *both, *gate, *up;
} up_paths;

static const up_paths up_values = {"checkpoints/mlpwi", "checkpoints/mlpwi_0", "checkpoints/mlpwi_1"};
static const up_paths up_gradients = {"checkpoints/mlpwi_gradient", "checkpoints/mlpwi_0_gradient",
                                      "checkpoints/mlpwi_1_gradient"};

/* One standard deviation of a checkpoint that is quantised. */
static assay_status read_spread(assay_context *ctx, const assay_source *in, const char *checkpoint, int64_t count,
                                double *spread)
{
    char path[ASSAY_PATH_SIZE];
    assay_spread_path(checkpoint, path);
    return in->read(ctx, in->self, path, 0, count, spread);
}

static bool has_spread(const assay_source *in, const char *checkpoint)
{
    char path[ASSAY_PATH_SIZE];
    assay_spread_path(checkpoint, path);
    return in->has(in->self, path);
}

static assay_status read_spreads(assay_context *ctx, const assay_source *in, mlp_run *m)
{
    static const char h[] = "checkpoints/mlp_intermediate";
    assay_status status = ASSAY_OK;
    const int64_t block = m->config.rows * m->config.mlp_dim;
    if (m->config.hidden.format == NULL && has_spread(in, h)) {
        TRY(assay_alloc_f64(ctx, "spread of h", block, &m->h_spread));
        TRY(read_spread(ctx, in, h, block, m->h_spread));
    }
    if (!has_spread(in, m->config.fused ? up_gradients.both : up_gradients.gate)) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, "spread of gradients", 2 * block, &m->d_up_spread));
    if (m->config.fused) {
        TRY(read_spread(ctx, in, up_gradients.both, 2 * block, m->d_up_spread));
    } else {
        TRY(read_spread(ctx, in, up_gradients.gate, block, m->d_up_spread));
        TRY(read_spread(ctx, in, up_gradients.up, block, m->d_up_spread + block));
    }
cleanup:
    return status;
}

static assay_status open_run(assay_context *ctx, const assay_source *in, mlp_run *m)
{
    assay_status status;
    m->table = assay_mlp_weight_table(&m->config, ASSAY_MLP_DENSE);
    m->size = m->config.rows * m->config.emb_dim;
    TRY(assay_read_whole(ctx, in, "inputs/x", m->size, &m->x));
    TRY(assay_read_whole(ctx, in, "cotangents/y", m->size, &m->dy));
    TRY(assay_weights_alloc(ctx, in, "", &m->table, m->weights));
    TRY(assay_weights_read(ctx, in, "", &m->table, 0, m->weights));
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        if (m->weights[i] == NULL) continue;
        TRY(assay_alloc_f64(ctx, "gradients/weights", assay_tensor_row_count(&m->table.rows[i]), &m->gradients[i]));
    }
    TRY(assay_alloc_f64(ctx, "gradients/inputs/x", m->size, &m->dx));
    TRY(assay_alloc_f64(ctx, "outputs/y", m->size, &m->y));
    TRY(assay_gated_mlp_residuals_alloc(ctx, &m->r, &m->config));
    TRY(read_spreads(ctx, in, m));
    m->r.d_up_spread = m->d_up_spread;
    m->r.h_spread = m->h_spread;
cleanup:
    return status;
}

static void close_run(mlp_run *m)
{
    assay_weights_free(&m->table, m->weights);
    assay_weights_free(&m->table, m->gradients);
    free(m->x);
    free(m->dx);
    free(m->y);
    free(m->dy);
    free(m->h_spread);
    free(m->d_up_spread);
    assay_gated_mlp_residuals_free(&m->r);
}

static assay_status write_up(assay_context *ctx, const mlp_run *m, const up_paths *paths, double *gate, double *up)
{
    assay_status status;
    const int64_t block = m->config.rows * m->config.mlp_dim;
    if (m->config.fused) return assay_write_stage(ctx, m->in, m->out, paths->both, 2 * block, gate);
    TRY(assay_write_stage(ctx, m->in, m->out, paths->gate, block, gate));
    TRY(assay_write_stage(ctx, m->in, m->out, paths->up, block, up));
cleanup:
    return status;
}

static assay_status forward(assay_context *ctx, const assay_source *in, mlp_run *m)
{
    assay_status status;
    const assay_gated_mlp_weights w = assay_gated_mlp_weights_of(m->weights);
    const int64_t block = m->config.rows * m->config.mlp_dim;
    TRY(assay_gated_mlp_up(ctx, &m->r, ASSAY_BRANCH_BOTH, m->x, &w, &m->config));
    TRY(write_up(ctx, m, &up_values, m->r.a, m->r.b));
    assay_gated_mlp_gate(ctx, &m->r, &m->config);
    TRY(assay_write_stage(ctx, in, m->out, "checkpoints/mlp_intermediate", block, m->r.h));
    TRY(assay_requantise_dense(ctx, &m->r, "", in, m->out, &m->config));
    TRY(assay_gated_mlp_down(ctx, m->y, &m->r, &w, &m->config));
    TRY(assay_write_result(ctx, m->out, "checkpoints/mlpwo", m->size, m->y));
    TRY(assay_write_result(ctx, m->out, "outputs/y", m->size, m->y));
cleanup:
    return status;
}

static assay_status write_up_gradients(assay_context *ctx, void *self, double *da, double *db)
{
    const mlp_run *m = self;
    return m->config.recipe.recipe == NULL ? ASSAY_OK : write_up(ctx, m, &up_gradients, da, db);
}

/* Variances take the place of the results. */
static assay_status write_scales(assay_context *ctx, const assay_precision *precision, const mlp_run *m)
{
    assay_status status;
    double *pre = NULL;
    const int64_t block = m->config.rows * m->config.mlp_dim;
    const assay_gated_mlp_weights w = assay_gated_mlp_weights_of(m->weights);
    TRY(assay_alloc_f64(ctx, "error scale of mlp", 3 * block, &pre));
    const assay_gated_mlp_run taken = {.x = m->x, .dy = m->dy, .r = &m->r, .w = &w, .config = &m->config};
    const assay_gated_mlp_variances variances = {.a = pre,
                                                 .b = pre + (m->config.fused ? m->config.mlp_dim : block),
                                                 .h = pre + 2 * block,
                                                 .y = m->y,
                                                 .gradients = assay_gated_mlp_gradients_of(m->dx, m->gradients)};
    TRY(assay_propagate_gated_mlp(ctx, precision, &variances, &taken));
    TRY(assay_write_scale(ctx, m->out, precision, "gradients/inputs/x", m->size, m->dx));
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) {
        char path[ASSAY_PATH_SIZE];
        if (m->weights[i] == NULL) continue;
        assay_tensor_path("gradients/weights/", "", &m->table.rows[i], path);
        TRY(assay_write_scale(ctx, m->out, precision, path, assay_tensor_row_count(&m->table.rows[i]),
                              m->gradients[i]));
    }
    if (m->config.fused) {
        TRY(assay_write_scale(ctx, m->out, precision, "checkpoints/mlpwi", 2 * block, variances.a));
    } else {
        TRY(assay_write_scale(ctx, m->out, precision, "checkpoints/mlpwi_0", block, variances.a));
        TRY(assay_write_scale(ctx, m->out, precision, "checkpoints/mlpwi_1", block, variances.b));
    }
    TRY(assay_write_scale(ctx, m->out, precision, "checkpoints/mlp_intermediate", block, variances.h));
    TRY(assay_write_scale(ctx, m->out, precision, "outputs/y", m->size, m->y));
    TRY(assay_write_scale(ctx, m->out, precision, "checkpoints/mlpwo", m->size, m->y));
cleanup:
    free(pre);
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    mlp_run m = {.in = in, .out = out};
    TRY(assay_mlp_config_of(ctx, c, &m.config));
    TRY(open_run(ctx, in, &m));
    const assay_gated_mlp_weights w = assay_gated_mlp_weights_of(m.weights);
    assay_gated_mlp_gradients g = assay_gated_mlp_gradients_of(m.dx, m.gradients);
    g.take_d_up = write_up_gradients;
    g.self = &m;
    TRY(forward(ctx, in, &m));
    TRY(assay_gated_mlp_backward(ctx, &g, m.dy, &m.r, m.x, &w, &m.config));
    TRY(assay_write_result(ctx, out, "gradients/inputs/x", m.size, m.dx));
    TRY(assay_gradients_write(ctx, out, "", &m.table, m.gradients));
    for (int i = 0; i < precision_count; i++) TRY(write_scales(ctx, &precisions[i], &m));
cleanup:
    close_run(&m);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    double rows = (double)(c->batch * c->sequence);
    return (backward ? 18.0 : 6.0) * rows * (double)c->config.base_emb_dim * (double)c->config.base_mlp_dim;
}

static int64_t memory(const assay_case *c)
{
    int64_t rows = c->batch * c->sequence, dim = c->config.base_emb_dim, hidden = c->config.base_mlp_dim;
    /* codes, scales and numbers of the operands of three products, of which two are there at a time */
    const int64_t of_recipe = has_recipe(c) ? 6 * (dim * hidden + rows * (3 * dim + 3 * hidden)) : 0;
    /* weights and gradients, the error scale's copies of a product's operands, and what rows keep */
    return 8 * (8 * dim * hidden + rows * (8 * dim + 24 * hidden) + of_recipe);
}

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    assay_gated_mlp_config config;
    (void)in, (void)out, (void)scales, (void)count;
    if (assay_mlp_config_of(&ctx, c, &config) != ASSAY_OK) return;
    assay_gated_mlp_up_shares(shares, least, &config, 2);
    assay_gated_mlp_down_shares(shares, least, &config);
    assay_gated_mlp_backward_shares(shares, least, &config, true, true);
}

const assay_operation assay_op_mlp = {.name = "mlp",
                                      .parts = ASSAY_PART_MLP,
                                      .summary = "gated MLP of a dense layer, fused or not",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble =
                                          assay_quantises_made, /* codes that change are no error of first order */
                                      .quantised = true,
                                      .second_form = {.form = second_form},
                                      .flops = flops,
                                      .memory = memory,
                                      .shares = shares_of};
