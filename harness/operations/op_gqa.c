#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_gqa.h"
#include "oracle/ops/ops_shares.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    const assay_mesh mesh = assay_mesh_of(c);
    assay_gqa_config config;
    assay_status status;
    TRY(assay_gqa_config_of(ctx, c, &config));
    TRY(assay_sharded_gqa_check(ctx, &config, &mesh));
    TRY(assay_check_head_mesh(ctx, c));
cleanup:
    return status;
}

static void second_form(quad_tape *t, const void *c)
{
    quad_gqa_config config = {.mesh = assay_mesh_of(c)};
    if (quad_try(t, assay_gqa_config_of(quad_context(t), c, &config.gqa))) quad_gqa(t, &config);
}

/* Of a mesh: what has heads is each shard's own. */
static assay_status describe_checkpoint(const assay_describer *d, const assay_gqa_config *config,
                                        const assay_mesh *mesh, assay_gqa_tensor tensor)
{
    const assay_gqa_config own = assay_gqa_shard_config(config, mesh);
    const int64_t shards = assay_mesh_shards(mesh);
    const assay_tensor_row whole = assay_gqa_tensor_row(config, tensor), part = assay_gqa_tensor_row(&own, tensor);
    const assay_tensor_row each = assay_tensor_row_below("m", &shards, part);
    return assay_describe_checkpoint(d, shards > 1 && assay_row_has_heads(&whole) ? &each : &whole);
}

static assay_status describe_checkpoints(const assay_describer *d, const assay_gqa_config *config,
                                         const assay_mesh *mesh)
{
    assay_status status = ASSAY_OK;
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++) {
        if (tensor == ASSAY_GQA_ATTENTION_OUT) TRY(describe_checkpoint(d, config, mesh, ASSAY_GQA_LSE));
        TRY(describe_checkpoint(d, config, mesh, (assay_gqa_tensor)tensor));
    }
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_dims x = {"BSD", {c->batch, c->sequence, c->config.base_emb_dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    const assay_mesh mesh = assay_mesh_of(c);
    assay_gqa_config config;
    TRY(assay_gqa_config_of(ctx, c, &config));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_segments(ctx, list, c));
    const assay_tensor_table weights = assay_gqa_weight_table(&config);
    TRY(assay_describe_weights(&d, &weights, (assay_dims){"", {0}}));
    TRY(describe_checkpoints(&d, &config, &mesh));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
cleanup:
    return status;
}

/* What a run reads, and what it makes of that. */
typedef struct gqa_run {
    assay_gqa_config config;
    assay_tensor_table table;
    int64_t size; /* of x and y */
    double *x, *dx, *dy;
    int32_t *positions, *segment_ids;
    double *weights[ASSAY_GQA_WEIGHTS], *gradients[ASSAY_GQA_WEIGHTS];
    assay_gqa_inputs inputs;
    assay_gqa_weights w;
    assay_gqa_residuals r;
} gqa_run;

static assay_status open_run(assay_context *ctx, const assay_case *c, const assay_source *in, gqa_run *m)
{
    assay_status status;
    const int64_t tokens = c->batch * c->sequence;
    TRY(assay_gqa_config_of(ctx, c, &m->config));
    m->table = assay_gqa_weight_table(&m->config);
    m->size = tokens * m->config.emb_dim;
    TRY(assay_read_whole(ctx, in, "inputs/x", m->size, &m->x));
    TRY(assay_weights_alloc(ctx, in, "", &m->table, m->weights));
    TRY(assay_weights_read(ctx, in, "", &m->table, 0, m->weights));
    TRY(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &m->positions));
    TRY(assay_rope_check_positions(ctx, m->positions, tokens, &m->config.rope));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &m->segment_ids));
    if (m->segment_ids != NULL) TRY(assay_attention_check_segments(ctx, m->segment_ids, tokens));
    m->inputs = (assay_gqa_inputs){m->x, m->positions, m->segment_ids};
    m->w = assay_gqa_weights_of(m->weights);
cleanup:
    return status;
}

static void close_run(gqa_run *m)
{
    assay_weights_free(&m->table, m->weights);
    assay_weights_free(&m->table, m->gradients);
    free(m->x);
    free(m->dx);
    free(m->dy);
    free(m->positions);
    free(m->segment_ids);
    assay_gqa_residuals_free(&m->r);
}

/* No stage begins with lse or out_proj. */
static assay_status forward(assay_context *ctx, const assay_source *in, const assay_sink *out, gqa_run *m)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_GQA_TENSORS; i++) {
        const assay_tensor_row row = assay_gqa_tensor_row(&m->config, (assay_gqa_tensor)i);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        assay_tensor_path("checkpoints/", "", &row, path);
        if (i != ASSAY_GQA_LSE) TRY(assay_gqa_compute(ctx, &m->r, (assay_gqa_tensor)i, &m->inputs, &m->w, &m->config));
        const int64_t count = assay_tensor_row_count(&row);
        TRY(assay_write_result(ctx, out, path, count, i == ASSAY_GQA_LSE ? m->r.lse : m->r.values[i]));
        if (i != ASSAY_GQA_LSE && i != ASSAY_GQA_OUT_PROJ)
            TRY(assay_go_on_from(ctx, in, path, 0, count, m->r.values[i]));
    }
    TRY(assay_write_result(ctx, out, "outputs/y", m->size, m->r.values[ASSAY_GQA_OUT_PROJ]));
cleanup:
    return status;
}

static assay_status backward(assay_context *ctx, const assay_source *in, const assay_sink *out, gqa_run *m)
{
    assay_status status = ASSAY_OK;
    const bool wants_dx = assay_wants(out, "gradients/inputs/x");
    if (!wants_dx && !assay_wants_any_gradient(in, out, "", &m->table)) return ASSAY_OK;
    if (wants_dx) TRY(assay_alloc_f64(ctx, "gradients/inputs/x", m->size, &m->dx));
    TRY(assay_gradients_alloc(ctx, out, "", &m->table, m->weights, m->gradients));
    TRY(assay_read_whole(ctx, in, "cotangents/y", m->size, &m->dy));
    const assay_gqa_gradients g = assay_gqa_gradients_of(m->dx, m->gradients);
    TRY(assay_gqa_backward(ctx, &g, m->dy, &m->r, &m->inputs, &m->w, &m->config));
    if (wants_dx) TRY(assay_write_result(ctx, out, "gradients/inputs/x", m->size, m->dx));
    TRY(assay_gradients_write(ctx, out, "", &m->table, m->gradients));
cleanup:
    return status;
}

static assay_status run_sharded(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                                gqa_run *m)
{
    assay_status status = ASSAY_OK;
    const assay_mesh mesh = assay_mesh_of(c);
    const bool wants_dx = assay_wants(out, "gradients/inputs/x");
    double *y = NULL;
    TRY(assay_alloc_f64(ctx, "outputs/y", m->size, &y));
    if (wants_dx) TRY(assay_alloc_f64(ctx, "gradients/inputs/x", m->size, &m->dx));
    TRY(assay_gradients_alloc(ctx, out, "", &m->table, m->weights, m->gradients));
    if (wants_dx || assay_wants_any_gradient(in, out, "", &m->table))
        TRY(assay_read_whole(ctx, in, "cotangents/y", m->size, &m->dy));
    const assay_head_run all = {&mesh, {m->x, m->positions, m->segment_ids}, m->w.w, y, m->dx, m->gradients, m->dy,
                                out};
    TRY(assay_sharded_gqa_run(ctx, &m->config, &all));
    TRY(assay_write_result(ctx, out, "checkpoints/out_proj", m->size, y));
    TRY(assay_write_result(ctx, out, "outputs/y", m->size, y));
    if (wants_dx) TRY(assay_write_result(ctx, out, "gradients/inputs/x", m->size, m->dx));
    TRY(assay_gradients_write(ctx, out, "", &m->table, m->gradients));
cleanup:
    free(y);
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    const assay_mesh mesh = assay_mesh_of(c);
    gqa_run m = {0};
    (void)precisions;
    (void)precision_count;
    TRY(open_run(ctx, c, in, &m));
    if (assay_mesh_shards(&mesh) > 1) {
        TRY(run_sharded(ctx, c, in, out, &m));
        goto cleanup;
    }
    TRY(forward(ctx, in, out, &m));
    TRY(backward(ctx, in, out, &m));
cleanup:
    close_run(&m);
    return status;
}

static double flops(const assay_case *c, bool backward_too)
{
    assay_context ctx = {0};
    assay_gqa_config config;
    double sum = 0;
    if (assay_gqa_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++)
        sum += assay_gqa_tensor_flops(&config, (assay_gqa_tensor)tensor);
    return sum + (backward_too ? assay_gqa_backward_flops(&config) : 0.0);
}

/* Weights, intermediates, and the gradients of both. */
static int64_t memory(const assay_case *c)
{
    assay_context ctx = {0};
    assay_gqa_config config;
    if (assay_gqa_config_of(&ctx, c, &config) != ASSAY_OK) return 0;
    const assay_tensor_table weights = assay_gqa_weight_table(&config);
    double numbers = 4 * (double)c->batch * (double)c->sequence * (double)config.emb_dim;
    for (int i = 0; i < weights.count; i++) numbers += (double)assay_tensor_row_count(&weights.rows[i]);
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++)
        numbers += (double)assay_gqa_tensor_count(&config, (assay_gqa_tensor)tensor);
    const assay_mesh mesh = assay_mesh_of(c);
    const double copies = assay_mesh_shards(&mesh) > 1 ? 4 : 2; /* and what a shard has */
    const double scratch = 16 * (double)c->sequence * (7 * (double)config.head_dim + 258),
                 bytes = 8 * (copies * numbers + scratch);
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    assay_gqa_config config;
    const assay_mesh mesh = assay_mesh_of(c);
    (void)scales, (void)count;
    if (assay_gqa_config_of(&ctx, c, &config) != ASSAY_OK || assay_mesh_shards(&mesh) > 1) return;
    const assay_tensor_table weights = assay_gqa_weight_table(&config);
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++)
        assay_gqa_tensor_shares(shares, least, &config, (assay_gqa_tensor)tensor);
    if (assay_wants(out, "gradients/inputs/x") || assay_wants_any_gradient(in, out, "", &weights))
        assay_gqa_backward_shares(shares, least, &config);
}

const assay_operation assay_op_gqa = {.name = "gqa",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_SHARING | ASSAY_PART_GROUPED |
                                               ASSAY_PART_ROPE,
                                      .summary = "grouped-query attention with its projections, windows and sinks",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble = assay_every_case,
                                      .mesh = true,
                                      .second_form = {.form = second_form},
                                      .flops = flops,
                                      .memory = memory,
                                      .shares = shares_of};
