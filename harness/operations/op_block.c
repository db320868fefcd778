#include "harness/operations/op_block.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/head_shards.h"

static bool is_sharded(const assay_case *c)
{
    const assay_mesh mesh = assay_mesh_of(c);
    return assay_mesh_shards(&mesh) > 1;
}

/* Shard by shard. By a recipe scales are of what all shards have, so the layer runs as one, with sums in parts. */
static bool runs_apart(const assay_case *c, const graph *g)
{
    return is_sharded(c) && g->gradient_count == 0;
}

/* Rows of a matrix, which a product sums along. */
static void mark_rows(assay_describer *d, const assay_operation *operation, int back, const assay_tensor_row *row)
{
    if (operation->quantised) assay_described(d, back)->operand = (assay_operand_axes){0, row->shape.rank - 1, false};
}

static void describe_inputs(assay_describer *d, const assay_operation *operation, const graph *g)
{
    for (int t = 1; t < g->tensor_count; t++) {
        const assay_tensor_row *row = &g->tensors[t].row;
        if (g->tensors[t].role == GRAPH_INPUT) {
            assay_describe_sized_variable(d, row->name, assay_fill_normal(1.0, 0.0),
                                          assay_dims_of(row->axes, &row->shape));
            mark_rows(d, operation, 2, row);
        }
        if (g->tensors[t].role != GRAPH_INDICES) continue;
        const bool positions = strcmp(row->name, "inputs/positions") == 0;
        (positions ? assay_describe_positions : assay_describe_segments)(d);
    }
}

void assay_describe_graph_checkpoints(assay_describer *d, const graph *g, const graph *own)
{
    const assay_mesh mesh = assay_mesh_of(d->c);
    const int64_t shards = assay_mesh_shards(&mesh);
    for (int t = 1; t < g->tensor_count; t++) {
        assay_tensor_row row = g->tensors[t].row;
        if (g->tensors[t].role != GRAPH_CHECKPOINT) continue;
        if (own != NULL && assay_row_has_heads(&row)) row = assay_tensor_row_below("m", &shards, own->tensors[t].row);
        assay_describe_checkpoint(d, &row);
        assay_described(d, 1)->made = graph_is_made(g, t);
    }
    for (int i = 0; i < g->gradient_count; i++) {
        assay_describe_checkpoint(d, &g->steps[g->gradients[i]].gradient);
        assay_described(d, 1)->made = true;
    }
}

/* Whether x of padding may hold NaN: then nothing that a token of padding gives is judged. */
static bool has_unused_tokens(const assay_case *c)
{
    const assay_case_input *x = assay_case_input_of(c, "inputs/x");
    return assay_has_padding(c) && x != NULL && (x->tail_nan_rows > 0 || x->unused_nan);
}

void assay_mark_unused_tokens(assay_describer *d)
{
    if (!has_unused_tokens(d->c)) return;
    for (int i = 0; i < d->list->count; i++) {
        const assay_tensor_spec *spec = &d->list->entries[i].spec;
        const int rank = spec->shape.rank, least = assay_role_is_result(spec->role) ? 2 : 3;
        const bool rows = rank >= least && strcmp(spec->labels[0], "B") == 0 && strcmp(spec->labels[1], "S") == 0;
        if (rows) d->list->entries[i].unused_row_axes = 2;
    }
}

assay_status assay_block_used_rows(assay_context *ctx, const assay_case *c, const assay_source *in, bool **used)
{
    const int64_t tokens = c->batch * c->sequence;
    OWNED int32_t *segments = NULL;
    MUST(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &segments));
    MUST(assay_alloc(ctx, "tokens that are used", tokens, sizeof **used, used));
    for (int64_t t = 0; t < tokens; t++) (*used)[t] = segments == NULL || segments[t] != 0 || !c->config.mask_padding;
    return ASSAY_OK;
}

void assay_block_describe(assay_describer *d, const assay_operation *operation)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    graph g, own;
    operation->graph(d->config, false, &g);
    operation->graph(d->config, true, &own);
    describe_inputs(d, operation, &g);
    const assay_tensor_table weights = graph_weight_table(&g);
    assay_describe_weights(d, &weights);
    assay_describe_graph_checkpoints(d, &g, is_sharded(d->c) ? &own : NULL);
    const assay_tensor_row *y = &g.tensors[g.result].row;
    assay_describe_sized_output(d, "y", &one, assay_dims_of(y->axes, &y->shape));
    mark_rows(d, operation, 1, y);
    assay_mark_unused_tokens(d);
}

/* What a run reads, and what it makes of that. */
typedef struct block_run {
    const assay_source *in;
    const assay_sink *out;
    graph g;
    graph_run r;
    assay_mesh mesh;
    assay_head_layout layout; /* by a recipe over a mesh; else nothing */
    assay_source checkpoints;
    assay_sink shown;
    assay_tensor_table table;
    int x, positions, segment_ids; /* tensors */
    int64_t size;                  /* of x and y */
    double *x_values, *dx, *dy;
    int32_t *position_values, *segment_values;
    double *weights[ASSAY_MOST_ROWS], *gradients[ASSAY_MOST_ROWS];
} block_run;

static assay_status open_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                             const void *config, block_run *m)
{
    const assay_source *in = m->in;
    const int64_t tokens = c->batch * c->sequence;
    m->mesh = assay_mesh_of(c);
    operation->graph(config, false, &m->g);
    m->table = graph_weight_table(&m->g);
    m->x = graph_find(&m->g, "inputs/x");
    m->positions = graph_find(&m->g, "inputs/positions");
    m->segment_ids = graph_find(&m->g, "inputs/segment_ids");
    m->size = graph_size(&m->g, m->x);
    MUST(assay_read_whole(ctx, in, "inputs/x", m->size, &m->x_values));
    MUST(assay_weights_alloc(ctx, in, "", &m->table, m->weights));
    MUST(assay_weights_read(ctx, in, "", &m->table, 0, m->weights));
    if (m->positions > 0) MUST(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &m->position_values));
    if (m->segment_ids > 0) MUST(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &m->segment_values));
    if (m->segment_values != NULL) MUST(assay_attention_check_segments(ctx, m->segment_values, tokens));
    MUST(assay_attention_check_tokens(ctx, "inputs/x", m->x_values, tokens, c->sequence, m->size / tokens,
                                      c->config.mask_padding ? m->segment_values : NULL));
    if (m->segment_values != NULL) assay_attention_clear_padding(m->x_values, NULL, tokens, m->size / tokens);
    graph_open(&m->r, &m->g);
    m->r.in = in;
    m->r.out = m->out;
    if (is_sharded(c) && !runs_apart(c, &m->g)) {
        m->layout = (assay_head_layout){&m->mesh, &m->g, in, m->out};
        m->checkpoints = assay_head_layout_source(&m->layout);
        m->shown = assay_head_layout_sink(&m->layout);
        m->r.in = &m->checkpoints;
        m->r.out = &m->shown;
        assay_head_shards_in_parts(&m->g, &m->mesh);
    }
    graph_lend(&m->r, m->x, m->x_values);
    m->r.indices[m->positions] = m->position_values;
    m->r.indices[m->segment_ids] = m->segment_values;
    graph_lend_weights(&m->r, m->weights);
    return graph_read_spreads(ctx, &m->r);
}

static void close_run(block_run *m)
{
    if (m->r.graph != NULL) graph_close(&m->r);
    assay_weights_free(&m->table, m->weights);
    assay_weights_free(&m->table, m->gradients);
    free(m->x_values);
    free(m->dx);
    free(m->dy);
    free(m->position_values);
    free(m->segment_values);
}

/* Room for what is wanted, and the cotangent where anything is. */
static assay_status open_gradients(assay_context *ctx, block_run *m)
{
    const bool wants_dx = assay_wants(m->out, "gradients/inputs/x");
    const bool wants =
        wants_dx || assay_wants_any_gradient(m->in, m->out, "", &m->table) || graph_wants_gradients(&m->r);
    if (!wants) return ASSAY_OK;
    if (wants_dx) MUST(assay_alloc_f64(ctx, "gradients/inputs/x", m->size, &m->dx));
    MUST(assay_gradients_alloc(ctx, m->out, "", &m->table, m->weights, m->gradients));
    return assay_read_whole(ctx, m->in, "cotangents/y", m->size, &m->dy);
}

static assay_status forward(assay_context *ctx, block_run *m, bool keeps)
{
    if (!keeps) m->r.release = graph_let_go;
    MUST(graph_forward(ctx, &m->r));
    return assay_write_result(ctx, m->out, "outputs/y", m->size, m->r.value[m->g.result]);
}

static assay_status backward(assay_context *ctx, block_run *m)
{
    if (m->dy == NULL) return ASSAY_OK;
    graph_lend_gradient(&m->r, m->g.result, m->dy);
    graph_want_gradient(&m->r, m->x, m->dx);
    graph_want_weight_gradients(&m->r, m->gradients);
    return graph_backward(ctx, &m->r);
}

static assay_status run_sharded(assay_context *ctx, const graph *own, block_run *m)
{
    OWNED double *y = NULL;
    MUST(assay_alloc_f64(ctx, "outputs/y", m->size, &y));
    const assay_head_run all = {.mesh = &m->mesh,
                                .whole = &m->g,
                                .own = own,
                                .x = m->x_values,
                                .positions = m->position_values,
                                .segment_ids = m->segment_values,
                                .weights = m->weights,
                                .y = y,
                                .dx = m->dx,
                                .gradients = m->gradients,
                                .dy = m->dy,
                                .out = m->out};
    MUST(assay_head_shards_run(ctx, &all));
    MUST(assay_write_result(ctx, m->out, "checkpoints/out_proj", m->size, y));
    return assay_write_result(ctx, m->out, "outputs/y", m->size, y);
}

assay_status assay_block_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                             const void *config, const assay_source *in, const assay_sink *out,
                             const assay_precision *precisions, int precision_count)
{
    assay_status status;
    block_run m = {.in = in, .out = out};
    const int propagated = operation->graph_scales != NULL ? precision_count : 0;
    TRY(open_run(ctx, operation, c, config, &m));
    TRY(open_gradients(ctx, &m));
    if (runs_apart(c, &m.g)) {
        graph own;
        operation->graph(config, true, &own);
        TRY(run_sharded(ctx, &own, &m));
    } else {
        TRY(forward(ctx, &m, m.dy != NULL || propagated > 0));
        if (propagated > 0) TRY(operation->graph_scales(ctx, config, &m.r, precisions, propagated));
        TRY(backward(ctx, &m));
    }
    if (m.dx != NULL) TRY(assay_write_result(ctx, out, "gradients/inputs/x", m.size, m.dx));
    TRY(assay_gradients_write(ctx, out, "", &m.table, m.gradients));
cleanup:
    close_run(&m);
    return status;
}

assay_status assay_block_run_as(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                const assay_source *in, const assay_sink *out,
                                assay_status (*form)(assay_context *ctx, const void *config, graph_run *r, double *y))
{
    assay_status status;
    assay_operation_config config;
    block_run m = {.in = in, .out = out};
    double *y = NULL;
    TRY(operation->config_of(ctx, c, &config));
    TRY(open_run(ctx, operation, c, &config, &m));
    TRY(assay_alloc_f64(ctx, "outputs/y", m.size, &y));
    TRY(form(ctx, &config, &m.r, y));
    TRY(assay_write_result(ctx, out, "outputs/y", m.size, y));
cleanup:
    close_run(&m);
    free(y);
    return status;
}

double assay_block_flops(const assay_operation *operation, const void *config, bool backward)
{
    graph g;
    operation->graph(config, false, &g);
    return graph_forward_operations(&g) + (backward ? graph_backward_operations(&g) : 0.0);
}

/* Weights, intermediates, and the gradients of both. */
int64_t assay_block_memory(const assay_operation *operation, const assay_case *c, const void *config)
{
    graph g;
    operation->graph(config, false, &g);
    double numbers = 4 * (double)graph_size(&g, g.result) + graph_numbers(&g);
    const double copies = is_sharded(c) ? 4 : 2; /* and what a shard has */
    if (g.gradient_count > 0) numbers *= 4;      /* codes, scales and numbers of a product's operands, and spreads */
    const double bytes = 8 * (copies * numbers + graph_scratch(&g));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

void assay_block_shares(const assay_operation *operation, const assay_case *c, const void *config, double least,
                        const assay_source *in, const assay_sink *out, assay_run_shares *shares)
{
    graph g;
    if (is_sharded(c)) return;
    operation->graph(config, false, &g);
    const assay_tensor_table weights = graph_weight_table(&g);
    for (int t = 1; t < g.tensor_count; t++)
        if (g.tensors[t].role == GRAPH_CHECKPOINT) graph_shares(shares, least, &g, t);
    if (assay_wants(out, "gradients/inputs/x") || assay_wants_any_gradient(in, out, "", &weights))
        graph_backward_shares(shares, least, &g);
}
