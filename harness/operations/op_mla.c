#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/sharded_mla.h"
#include "oracle/ops/ops_shares.h"
#include "oracle/ops/quantised_spread.h"

static bool has_recipe(const void *c)
{
    return ((const assay_case *)c)->config.quant_recipe.text[0] != '\0';
}

static assay_status config_of(assay_context *ctx, const assay_case *c, assay_mla_config *config)
{
    assay_status status;
    const assay_mesh mesh = assay_mesh_of(c);
    TRY(assay_mla_config_of(ctx, c, config));
    TRY(assay_linear_recipe_of(ctx, c, &config->recipe));
    if (config->recipe.recipe == NULL || assay_mesh_shards(&mesh) == 1) return ASSAY_OK;
    status =
        assay_fail(ctx, ASSAY_BAD_INPUT, "quant_recipe is %s, expected \"\" with a mesh", config->recipe.recipe->name);
cleanup:
    return status;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    const assay_mesh mesh = assay_mesh_of(c);
    assay_mla_config config;
    assay_status status;
    TRY(config_of(ctx, c, &config));
    TRY(assay_sharded_mla_check(ctx, &config, &mesh));
    TRY(assay_check_head_mesh(ctx, c));
cleanup:
    return status;
}

static void second_form(quad_tape *t, const void *c)
{
    quad_mla_config config = {.mesh = assay_mesh_of(c)};
    if (quad_try(t, config_of(quad_context(t), c, &config.mla))) quad_mla(t, &config);
}

/* By a recipe what its products take that it computed itself, and the gradients of what they give. */
static bool quantises_made(const assay_mla_config *config, assay_mla_tensor tensor)
{
    const bool latent = tensor == ASSAY_MLA_MLA_Q || tensor == ASSAY_MLA_MLA_KV;
    return config->recipe.recipe != NULL && (latent || tensor == ASSAY_MLA_ATTENTION_OUT || tensor > ASSAY_MLA_LSE);
}

/* Of a mesh: what has heads is each shard's own. */
static assay_status describe_checkpoint(const assay_describer *d, const assay_mla_config *config,
                                        const assay_mesh *mesh, assay_mla_tensor tensor)
{
    const assay_mla_config own = assay_mla_shard_config(config, mesh);
    const int64_t shards = assay_mesh_shards(mesh);
    const assay_tensor_row whole = assay_mla_tensor_row(config, tensor), part = assay_mla_tensor_row(&own, tensor);
    const assay_tensor_row each = assay_tensor_row_below("m", &shards, part);
    const assay_status status =
        assay_describe_checkpoint(d, shards > 1 && assay_row_has_heads(&whole) ? &each : &whole);
    if (status == ASSAY_OK && whole.name != NULL && quantises_made(config, tensor))
        d->list->entries[d->list->count - 1].made = true;
    return status;
}

static assay_status describe_checkpoints(const assay_describer *d, const assay_mla_config *config,
                                         const assay_mesh *mesh)
{
    assay_status status = ASSAY_OK;
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        if (tensor == ASSAY_MLA_ATTENTION_OUT) TRY(describe_checkpoint(d, config, mesh, ASSAY_MLA_LSE));
        TRY(describe_checkpoint(d, config, mesh, (assay_mla_tensor)tensor));
    }
    for (int gradient = ASSAY_MLA_LSE + 1; gradient < ASSAY_MLA_ROWS; gradient++)
        TRY(describe_checkpoint(d, config, mesh, (assay_mla_tensor)gradient));
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_mesh mesh = assay_mesh_of(c);
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_dims x = {"BSD", {c->batch, c->sequence, c->config.base_emb_dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_mla_config config;
    TRY(config_of(ctx, c, &config));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    assay_mark_operand(list, 2, (assay_operand_axes){0, 2, false});
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_segments(ctx, list, c));
    const assay_tensor_table weights = assay_mla_weight_table(&config);
    TRY(assay_describe_weights(&d, &weights, (assay_dims){"", {0}}));
    TRY(describe_checkpoints(&d, &config, &mesh));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    assay_mark_operand(list, 1, (assay_operand_axes){0, 2, false});
cleanup:
    return status;
}

/* What a run reads, and what it makes of that. */
typedef struct mla_run {
    const assay_source *in;
    const assay_sink *out;
    assay_mla_config config;
    assay_tensor_table table;
    int64_t size; /* of x and y */
    double *x, *dx, *dy;
    int32_t *positions, *segment_ids;
    double *weights[ASSAY_MLA_WEIGHTS], *gradients[ASSAY_MLA_WEIGHTS];
    double *spread[ASSAY_MLA_ROWS]; /* of what is quantised in an emulated run */
    assay_mla_inputs inputs;
    assay_mla_weights w;
    assay_mla_residuals r;
} mla_run;

/* "checkpoints/mla_q" and its elements; 0: there is none. */
static int64_t checkpoint_path(const assay_mla_config *config, int row, char path[ASSAY_PATH_SIZE])
{
    const assay_tensor_row tensor = assay_mla_tensor_row(config, (assay_mla_tensor)row);
    if (tensor.name == NULL) return 0;
    assay_tensor_path("checkpoints/", "", &tensor, path);
    return assay_tensor_row_count(&tensor);
}

static assay_status read_spreads(assay_context *ctx, const assay_source *in, mla_run *m)
{
    assay_status status = ASSAY_OK;
    for (int row = 0; row < ASSAY_MLA_ROWS; row++) {
        char checkpoint[ASSAY_PATH_SIZE], path[ASSAY_PATH_SIZE];
        const int64_t count = checkpoint_path(&m->config, row, checkpoint);
        if (count == 0) continue;
        assay_spread_path(checkpoint, path);
        if (in->has(in->self, path)) TRY(assay_read_whole(ctx, in, path, count, &m->spread[row]));
        m->r.spread[row] = m->spread[row];
    }
cleanup:
    return status;
}

static assay_status open_run(assay_context *ctx, const assay_case *c, const assay_source *in, mla_run *m)
{
    assay_status status;
    const int64_t tokens = c->batch * c->sequence;
    TRY(config_of(ctx, c, &m->config));
    m->table = assay_mla_weight_table(&m->config);
    m->size = tokens * m->config.emb_dim;
    TRY(assay_read_whole(ctx, in, "inputs/x", m->size, &m->x));
    TRY(assay_weights_alloc(ctx, in, "", &m->table, m->weights));
    TRY(assay_weights_read(ctx, in, "", &m->table, 0, m->weights));
    TRY(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &m->positions));
    TRY(assay_rope_check_positions(ctx, m->positions, tokens, &m->config.rope));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &m->segment_ids));
    if (m->segment_ids != NULL) TRY(assay_attention_check_segments(ctx, m->segment_ids, tokens));
    m->inputs = (assay_mla_inputs){m->x, m->positions, m->segment_ids};
    m->w = assay_mla_weights_of(m->weights);
    TRY(read_spreads(ctx, in, m));
cleanup:
    return status;
}

static void close_run(mla_run *m)
{
    assay_weights_free(&m->table, m->weights);
    assay_weights_free(&m->table, m->gradients);
    free(m->x);
    free(m->dx);
    free(m->dy);
    free(m->positions);
    free(m->segment_ids);
    for (int row = 0; row < ASSAY_MLA_ROWS; row++) free(m->spread[row]);
    assay_mla_residuals_free(&m->r);
}

/* No stage begins with lse or out_proj. */
static assay_status forward(assay_context *ctx, const assay_source *in, const assay_sink *out, mla_run *m)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i <= ASSAY_MLA_TENSORS; i++) {
        char path[ASSAY_PATH_SIZE];
        const int64_t count = checkpoint_path(&m->config, i, path);
        if (count == 0) continue;
        if (i != ASSAY_MLA_LSE) TRY(assay_mla_compute(ctx, &m->r, (assay_mla_tensor)i, &m->inputs, &m->w, &m->config));
        TRY(assay_write_result(ctx, out, path, count, i == ASSAY_MLA_LSE ? m->r.lse : m->r.values[i]));
        if (i != ASSAY_MLA_LSE && i != ASSAY_MLA_OUT_PROJ)
            TRY(assay_go_on_from(ctx, in, path, 0, count, m->r.values[i]));
    }
    TRY(assay_write_result(ctx, out, "outputs/y", m->size, m->r.values[ASSAY_MLA_OUT_PROJ]));
cleanup:
    return status;
}

static assay_status write_gradient(assay_context *ctx, void *self, assay_mla_tensor gradient, double *values)
{
    const mla_run *m = self;
    char path[ASSAY_PATH_SIZE];
    const int64_t count = checkpoint_path(&m->config, (int)gradient, path);
    return assay_write_stage(ctx, m->in, m->out, path, count, values);
}

static bool wants_backward(const mla_run *m)
{
    bool wanted = assay_wants(m->out, "gradients/inputs/x") || assay_wants_any_gradient(m->in, m->out, "", &m->table);
    for (int row = ASSAY_MLA_LSE + 1; row < ASSAY_MLA_ROWS; row++) {
        char path[ASSAY_PATH_SIZE];
        wanted |= checkpoint_path(&m->config, row, path) > 0 && assay_wants(m->out, path);
    }
    return wanted;
}

static assay_status backward(assay_context *ctx, const assay_source *in, const assay_sink *out, mla_run *m)
{
    assay_status status = ASSAY_OK;
    const bool wants_dx = assay_wants(out, "gradients/inputs/x");
    if (!wants_backward(m)) return ASSAY_OK;
    if (wants_dx) TRY(assay_alloc_f64(ctx, "gradients/inputs/x", m->size, &m->dx));
    TRY(assay_gradients_alloc(ctx, out, "", &m->table, m->weights, m->gradients));
    TRY(assay_read_whole(ctx, in, "cotangents/y", m->size, &m->dy));
    assay_mla_gradients g = assay_mla_gradients_of(m->dx, m->gradients);
    g.take = write_gradient;
    g.self = m;
    TRY(assay_mla_backward(ctx, &g, m->dy, &m->r, &m->inputs, &m->w, &m->config));
    if (wants_dx) TRY(assay_write_result(ctx, out, "gradients/inputs/x", m->size, m->dx));
    TRY(assay_gradients_write(ctx, out, "", &m->table, m->gradients));
cleanup:
    return status;
}

static assay_status run_sharded(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                                mla_run *m)
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
    TRY(assay_sharded_mla_run(ctx, &m->config, &all));
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
    mla_run m = {.in = in, .out = out};
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

assay_status assay_mla_run_absorbed(assay_context *ctx, const assay_case *c, const assay_source *in,
                                    const assay_sink *out)
{
    assay_status status;
    mla_run m = {0};
    double *y = NULL;
    TRY(open_run(ctx, c, in, &m));
    TRY(assay_alloc_f64(ctx, "outputs/y", m.size, &y));
    TRY(assay_mla_absorbed_forward(ctx, y, &m.inputs, &m.w, &m.config));
    TRY(assay_write_result(ctx, out, "outputs/y", m.size, y));
cleanup:
    close_run(&m);
    free(y);
    return status;
}

static double flops(const assay_case *c, bool backward_too)
{
    assay_context ctx = {0};
    assay_mla_config config;
    double sum = 0;
    if (assay_mla_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        sum += assay_mla_tensor_flops(&config, (assay_mla_tensor)tensor);
    return sum + (backward_too ? assay_mla_backward_flops(&config) : 0.0);
}

/* Weights, intermediates, and the gradients of both. */
static int64_t memory(const assay_case *c)
{
    assay_context ctx = {0};
    assay_mla_config config;
    if (config_of(&ctx, c, &config) != ASSAY_OK) return 0;
    const assay_tensor_table weights = assay_mla_weight_table(&config);
    const double qk = (double)(config.qk_nope_head_dim + config.rope.dim), v = (double)config.v_head_dim;
    double numbers = 4 * (double)c->batch * (double)c->sequence * (double)config.emb_dim;
    for (int i = 0; i < weights.count; i++) numbers += (double)assay_tensor_row_count(&weights.rows[i]);
    for (int tensor = 0; tensor < ASSAY_MLA_ROWS; tensor++)
        numbers += (double)assay_mla_tensor_count(&config, (assay_mla_tensor)tensor);
    const assay_mesh mesh = assay_mesh_of(c);
    const double copies = assay_mesh_shards(&mesh) > 1 ? 4 : 2; /* and what a shard has */
    numbers += has_recipe(c) ? 3 * numbers : 0; /* codes, scales and numbers of a product's operands, and spreads */
    const double scratch = 16 * (double)c->sequence * (4 * qk + 3 * v + 258), bytes = 8 * (copies * numbers + scratch);
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    assay_mla_config config;
    const assay_mesh mesh = assay_mesh_of(c);
    (void)scales, (void)count;
    if (assay_mla_config_of(&ctx, c, &config) != ASSAY_OK || assay_mesh_shards(&mesh) > 1) return;
    const assay_tensor_table weights = assay_mla_weight_table(&config);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        assay_mla_tensor_shares(shares, least, &config, (assay_mla_tensor)tensor);
    if (assay_wants(out, "gradients/inputs/x") || assay_wants_any_gradient(in, out, "", &weights))
        assay_mla_backward_shares(shares, least, &config);
}

const assay_operation assay_op_mla = {.name = "mla",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_LATENT | ASSAY_PART_ROPE,
                                      .summary = "multi-head latent attention with YaRN",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble = assay_every_case,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = second_form},
                                      .flops = flops,
                                      .memory = memory,
                                      .shares = shares_of};
