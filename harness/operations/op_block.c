#include "harness/operations/op_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/head_shards.h"

static bool is_sharded(const assay_case *c)
{
    const assay_mesh mesh = assay_mesh_of(c);
    return assay_mesh_shards(&mesh) > 1;
}

/* Rows of a matrix, which a product sums along. */
static void mark_rows(assay_describer *d, const assay_operation *operation, int back, const assay_tensor_row *row)
{
    if (operation->quantised) assay_described(d, back)->operand = (assay_operand_axes){0, row->shape.rank - 1, false};
}

static void describe_inputs(assay_describer *d, const assay_operation *operation, const graph *g)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    for (int t = 1; t < g->tensor_count; t++) {
        const assay_tensor_row *row = &g->tensors[t].row;
        const assay_dims dims = assay_dims_of(row->axes, &row->shape);
        char path[ASSAY_PATH_SIZE];
        assay_tensor_path("", "", row, path);
        if (g->tensors[t].role == GRAPH_INPUT && g->tensors[t].flows) {
            assay_describe_sized_variable(d, path, one, dims);
            mark_rows(d, operation, 2, row);
        } else if (g->tensors[t].role == GRAPH_INPUT) {
            assay_describe_sized(d, path, d->c->dtype, &one, dims);
        } else if (g->tensors[t].role == GRAPH_INDICES && strcmp(path, "inputs/positions") == 0) {
            assay_describe_positions(d);
        } else if (g->tensors[t].role == GRAPH_INDICES && strcmp(path, "inputs/segment_ids") == 0) {
            assay_describe_segments(d);
        } else if (g->tensors[t].role == GRAPH_INDICES) {
            assay_describe_sized(d, path, ASSAY_INT32, NULL, dims);
        }
    }
}

void assay_describe_graph_checkpoints(assay_describer *d, const graph *g, bool by_heads)
{
    const assay_mesh mesh = assay_mesh_of(d->c);
    for (int t = 1; t < g->tensor_count; t++) {
        assay_tensor_row row = g->tensors[t].row;
        if (g->tensors[t].role != GRAPH_CHECKPOINT) continue;
        if (by_heads && assay_row_has_heads(&row)) row = assay_head_row(&mesh, row);
        assay_describe_checkpoint(d, &row);
        assay_described(d, 1)->requantised = graph_is_requantised(g, t);
    }
    for (int i = 0; i < g->gradient_count; i++) {
        assay_describe_checkpoint(d, &g->tensors[g->gradients[i]].gradient);
        assay_described(d, 1)->requantised = true;
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

assay_status assay_block_used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                                   const assay_source *in, bool **used)
{
    const int64_t tokens = c->batch * c->sequence;
    OWNED int32_t *segments = NULL;
    (void)of;
    MUST(assay_read_all_i32(ctx, in, "inputs/segment_ids", tokens, &segments));
    MUST(assay_alloc(ctx, "tokens that are used", tokens, sizeof **used, used));
    for (int64_t t = 0; t < tokens; t++) (*used)[t] = segments == NULL || segments[t] != 0 || !c->config.mask_padding;
    return ASSAY_OK;
}

void assay_block_describe(assay_describer *d, const assay_operation *operation)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    graph g;
    operation->graph(d->config, &g);
    describe_inputs(d, operation, &g);
    const assay_tensor_table weights = graph_weight_table(&g);
    assay_describe_weights(d, &weights);
    assay_describe_graph_checkpoints(d, &g, is_sharded(d->c));
    for (int i = 0; i < g.output_count; i++) {
        const assay_tensor_row *y = &g.tensors[g.outputs[i].tensor].row;
        assay_describe_sized_output(d, g.outputs[i].name, &one, assay_dims_of(y->axes, &y->shape));
        mark_rows(d, operation, 1, y);
    }
    assay_mark_unused_tokens(d);
}

assay_status assay_operation_describe(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                      const void *config, assay_tensor_list *list)
{
    assay_describer d = assay_describer_of(ctx, operation, c, config, list);
    if (operation->describe != NULL) {
        operation->describe(&d, config);
    } else {
        assay_block_describe(&d, operation);
    }
    return d.status;
}

/* What a run reads, and what it makes of that. */
typedef struct block_run {
    const assay_case *c;
    const assay_source *in;
    const assay_sink *out;
    graph g;
    graph_run r;
    assay_mesh mesh;
    assay_head_layout layout; /* over a mesh; else nothing */
    assay_source checkpoints;
    assay_sink shown;
    double **values, **gradients, **cotangents; /* of each tensor, and of each output */
    int32_t **indices;
    bool back; /* something comes of backward that is wanted */
} block_run;

static void path_of(const graph *g, int t, char path[ASSAY_PATH_SIZE])
{
    const bool weight = g->tensors[t].role == GRAPH_WEIGHT;
    assay_tensor_path(weight ? "weights/" : "", "", &g->tensors[t].row, path);
}

static assay_status read_given(assay_context *ctx, block_run *m, int t)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t count = graph_size(&m->g, t);
    path_of(&m->g, t, path);
    m->r.streams[t] = ctx->change == NULL && graph_can_stream(&m->g, t); /* a mutant may read any of it */
    if (m->r.streams[t]) return ASSAY_OK;
    const bool optional = m->g.tensors[t].row.kind == ASSAY_BIAS || strcmp(path, "inputs/segment_ids") == 0;
    if (optional && !m->in->has(m->in->self, path)) return ASSAY_OK;
    if (m->g.tensors[t].role == GRAPH_INDICES) {
        MUST(assay_alloc_i32(ctx, path, count, &m->indices[t]));
        m->r.indices[t] = m->indices[t];
        return m->in->read_i32(ctx, m->in->self, path, 0, count, m->indices[t]);
    }
    MUST(assay_alloc_f64(ctx, path, count, &m->values[t]));
    MUST(m->in->read(ctx, m->in->self, path, 0, count, m->values[t]));
    graph_lend(&m->r, t, m->values[t]);
    return ASSAY_OK;
}

/* A program's are numbers as any others. */
static const int32_t *segments_of(const block_run *m)
{
    return m->c->program != NULL ? NULL : m->indices[graph_find(&m->g, "inputs/segment_ids")];
}

/* [B,S,...]: tokens of padding may hold anything, NaN too, and nothing else may. */
static assay_status check_tokens(assay_context *ctx, const block_run *m, const char *path, int t, const double *values)
{
    const int64_t tokens = m->c->batch * m->c->sequence;
    if (strncmp(m->g.tensors[t].row.axes, "BS", 2) != 0 || m->c->program != NULL) return ASSAY_OK;
    return assay_attention_check_tokens(ctx, path, values, tokens, m->c->sequence, graph_size(&m->g, t) / tokens,
                                        m->c->config.mask_padding ? segments_of(m) : NULL);
}

static assay_status check_given(assay_context *ctx, const block_run *m)
{
    const int64_t tokens = m->c->batch * m->c->sequence;
    const int32_t *segments = segments_of(m);
    if (segments != NULL) MUST(assay_attention_check_segments(ctx, segments, tokens));
    for (int t = 1; t < m->g.tensor_count; t++) {
        if (m->g.tensors[t].role != GRAPH_INPUT) continue;
        MUST(check_tokens(ctx, m, m->g.tensors[t].row.name, t, m->values[t]));
        if (segments != NULL) assay_attention_clear_padding(m->values[t], NULL, tokens, graph_size(&m->g, t) / tokens);
    }
    return ASSAY_OK;
}

static assay_status open_run(assay_context *ctx, const assay_operation *operation, const void *config, block_run *m)
{
    m->mesh = assay_mesh_of(m->c);
    operation->graph(config, &m->g);
    m->g.unrounded = true;
    MUST(graph_open(ctx, &m->r, &m->g));
    MUST(assay_alloc_list(ctx, "inputs", m->g.tensor_count, sizeof *m->values, &m->values));
    MUST(assay_alloc_list(ctx, "gradients", m->g.tensor_count, sizeof *m->gradients, &m->gradients));
    MUST(assay_alloc_list(ctx, "inputs", m->g.tensor_count, sizeof *m->indices, &m->indices));
    MUST(assay_alloc_list(ctx, "cotangents", m->g.output_count, sizeof *m->cotangents, &m->cotangents));
    for (int t = 1; t < m->g.tensor_count; t++) {
        const graph_role role = m->g.tensors[t].role;
        if (role == GRAPH_INPUT || role == GRAPH_WEIGHT || role == GRAPH_INDICES) MUST(read_given(ctx, m, t));
    }
    MUST(check_given(ctx, m));
    m->r.in = m->r.weights = m->in;
    m->r.out = m->r.gradients = m->out;
    if (is_sharded(m->c)) {
        m->layout = (assay_head_layout){{m->in, m->out}, &m->mesh, &m->g};
        m->checkpoints = assay_head_layout_source(&m->layout);
        m->shown = assay_head_layout_sink(&m->layout);
        m->r.in = &m->checkpoints;
        m->r.out = &m->shown;
        assay_head_shards_by_shard(&m->g, &m->mesh);
    }
    return graph_read_deviations(ctx, &m->r);
}

static void close_run(block_run *m)
{
    if (m->r.graph != NULL) graph_close(&m->r);
    for (int t = 0; m->cotangents != NULL && t < m->g.tensor_count; t++) {
        free(m->values[t]);
        free(m->gradients[t]);
        free(m->indices[t]);
    }
    for (int i = 0; m->cotangents != NULL && i < m->g.output_count; i++) free(m->cotangents[i]);
    free(m->values);
    free(m->gradients);
    free(m->indices);
    free(m->cotangents);
}

/* Outputs that are one tensor have one gradient, the sum of their cotangents. */
static assay_status read_cotangent(assay_context *ctx, block_run *m, int i)
{
    char path[ASSAY_PATH_SIZE];
    const int t = m->g.outputs[i].tensor;
    const int64_t count = graph_size(&m->g, t);
    snprintf(path, sizeof path, "cotangents/%s", m->g.outputs[i].name);
    MUST(assay_read_all(ctx, m->in, path, count, &m->cotangents[i]));
    if (m->cotangents[i] == NULL) return ASSAY_OK;
    MUST(check_tokens(ctx, m, path, t, m->cotangents[i]));
    for (int64_t k = 0; k < count && m->r.gradient[t] != NULL; k++) m->cotangents[i][k] += m->r.gradient[t][k];
    graph_lend_gradient(&m->r, t, m->cotangents[i]);
    return ASSAY_OK;
}

/* *path: of its gradient. */
static bool wants_gradient(const block_run *m, int t, char gradient[ASSAY_PATH_SIZE])
{
    char path[ASSAY_PATH_SIZE];
    if (m->values[t] == NULL && !m->r.streams[t]) return false;
    path_of(&m->g, t, path);
    assay_gradient_path(path, gradient);
    return assay_wants(m->out, gradient);
}

/* Room for what is wanted, which stays 0 where nothing comes back, and the cotangents where anything is. */
static assay_status open_gradients(assay_context *ctx, block_run *m)
{
    char path[ASSAY_PATH_SIZE];
    m->back = graph_wants_gradients(&m->r);
    for (int t = 1; t < m->g.tensor_count; t++) {
        if (!wants_gradient(m, t, path)) continue;
        m->back = true;
        m->r.gradient_streams[t] = m->r.streams[t];
        if (m->r.streams[t]) continue;
        MUST(assay_alloc_zeros(ctx, path, graph_size(&m->g, t), &m->gradients[t]));
        graph_want_gradient(&m->r, t, m->gradients[t]);
    }
    for (int i = 0; m->back && i < m->g.output_count; i++) MUST(read_cotangent(ctx, m, i));
    return ASSAY_OK;
}

static assay_status write_output(assay_context *ctx, const block_run *m, int i, double *values)
{
    char path[ASSAY_PATH_SIZE];
    const int t = m->g.outputs[i].tensor;
    snprintf(path, sizeof path, "outputs/%s", m->g.outputs[i].name);
    MUST(assay_write_result(ctx, m->out, path, graph_size(&m->g, t), values));
    bool left = m->g.tensors[t].kept != GRAPH_STORED && !assay_path_ends(path, "lse");
    for (int d = 0; d < m->c->dtype_count; d++) left |= assay_case_dtype_matches(&m->c->dtypes[d], path);
    if (left) assay_round(ctx, ASSAY_ROUND_STORAGE, graph_size(&m->g, t), values);
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, block_run *m, bool keeps)
{
    if (!keeps) m->r.release = graph_let_go;
    MUST(graph_forward(ctx, &m->r));
    for (int i = 0; i < m->g.output_count; i++) MUST(write_output(ctx, m, i, m->r.value[m->g.outputs[i].tensor]));
    return ASSAY_OK;
}

static assay_status write_gradients(assay_context *ctx, const block_run *m)
{
    char path[ASSAY_PATH_SIZE];
    for (int t = 1; t < m->g.tensor_count; t++)
        if (m->gradients[t] != NULL && wants_gradient(m, t, path))
            MUST(assay_write_result(ctx, m->out, path, graph_size(&m->g, t), m->gradients[t]));
    return ASSAY_OK;
}

assay_status assay_block_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                             const void *config, const assay_source *in, const assay_sink *out)
{
    OWNED_BY(close_run) block_run m = {.c = c, .in = in, .out = out};
    MUST(open_run(ctx, operation, config, &m));
    MUST(open_gradients(ctx, &m));
    MUST(forward(ctx, &m, m.back));
    if (m.back) MUST(graph_backward(ctx, &m.r));
    return write_gradients(ctx, &m);
}

double assay_block_flops(const assay_operation *operation, const void *config, bool backward)
{
    graph g;
    operation->graph(config, &g);
    return graph_forward_operations(&g) + (backward ? graph_backward_operations(&g) : 0.0);
}

/* Weights, intermediates, and the gradients of both. */
int64_t assay_block_memory(const assay_operation *operation, const assay_case *c, const void *config)
{
    graph g;
    operation->graph(config, &g);
    double numbers = graph_numbers(&g); /* of weights and checkpoints; of inputs and outputs both, and gradients */
    for (int t = 1; t < g.tensor_count; t++) {
        if (g.tensors[t].role == GRAPH_INPUT) numbers += 2 * (double)graph_size(&g, t);
        if (g.tensors[t].role == GRAPH_INDICES) numbers += (double)graph_size(&g, t) / 2;
    }
    for (int i = 0; i < g.output_count; i++) numbers += 2 * (double)graph_size(&g, g.outputs[i].tensor);
    const double copies = is_sharded(c) ? 4 : 2; /* and what a shard has */
    if (g.gradient_count > 0) numbers *= 4;      /* codes, scales and numbers of a product's operands, and spreads */
    const double bytes = 8 * (copies * numbers + graph_scratch(&g));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}
