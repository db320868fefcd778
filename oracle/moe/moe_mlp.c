/* One gated MLP of a block with its buffers: they are allocated once and serve every expert, and every piece of its rows, in
 * turn. What is computed of rows is the graph's (oracle/blocks/mlp.h). */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static assay_status alloc_weights(assay_context *ctx, moe_mlp *mlp, const moe_block *block)
{
    const assay_sink *out = block->results.out;
    mlp->table = graph_weight_table(&mlp->graph);
    MUST(assay_weights_alloc(ctx, block->in, "", &mlp->table, mlp->room_of_weights));
    memcpy(mlp->weights, mlp->room_of_weights, sizeof mlp->weights);
    MUST(assay_gradients_alloc(ctx, out, "", &mlp->table, mlp->weights, mlp->room_of_gradients));
    if (mlp->pieces > 1) MUST(assay_gradients_alloc(ctx, out, "", &mlp->table, mlp->weights, mlp->partials));
    return ASSAY_OK;
}

assay_status moe_mlp_alloc(assay_context *ctx, moe_mlp *mlp, const moe_block *block)
{
    const bool routed = mlp->config.place == ASSAY_MLP_ROUTED;
    mlp->most = mlp->config.mlp.rows;
    mlp->config.mlp.hidden_shards = block->sizes.hidden_shards;
    mlp->config.slices = routed ? block->sharding->tensor_shards : 1;
    mlp->config.chunks = routed ? block->sharding->emb_chunks : 0;
    mlp->config.weighs_h = routed && block->weighs_h;
    mlp->config.stored = true;
    assay_mlp_graph(&mlp->graph, &mlp->config);
    MUST(alloc_weights(ctx, mlp, block));
    for (int t = 1; t < mlp->graph.tensor_count; t++) {
        const graph_tensor *tensor = &mlp->graph.tensors[t];
        if (tensor->step < 0 || t == mlp->graph.result) continue;
        MUST(assay_alloc_f64(ctx, tensor->row.name, graph_size(&mlp->graph, t), &mlp->room[t]));
    }
    MUST(moe_checkpoints_open(ctx, &mlp->checkpoints, block, routed));
    mlp->in = moe_checkpoints_source(&mlp->checkpoints);
    mlp->out = moe_checkpoints_sink(&mlp->checkpoints);
    return ASSAY_OK;
}

void moe_mlp_free(moe_mlp *mlp)
{
    assay_weights_free(&mlp->table, mlp->room_of_weights);
    assay_weights_free(&mlp->table, mlp->room_of_gradients);
    assay_weights_free(&mlp->table, mlp->partials);
    for (int t = 0; t < GRAPH_TENSORS; t++) free(mlp->room[t]);
    graph_close(&mlp->run);
    moe_checkpoints_close(&mlp->checkpoints);
    memset(mlp, 0, sizeof *mlp);
}

void moe_mlp_begin(moe_mlp *mlp)
{
    assay_gradients_place(mlp->checkpoints.block->results.out, "", &mlp->table, mlp->room_of_gradients, mlp->gradients);
}

assay_status moe_mlp_read_weights(assay_context *ctx, moe_mlp *mlp, int64_t expert)
{
    const assay_source *in = mlp->checkpoints.block->in;
    return assay_weights_lend(ctx, in, "", &mlp->table, expert, mlp->room_of_weights, mlp->weights);
}

/* The graph of so many rows: all of them have the same tensors at the same places. */
static void set_rows(moe_mlp *mlp, const moe_rows *rows)
{
    mlp->config.mlp.rows = rows->count;
    assay_mlp_graph(&mlp->graph, &mlp->config);
    mlp->checkpoints.rows = rows;
}

static assay_status lend_rows(assay_context *ctx, moe_mlp *mlp, const moe_rows *rows)
{
    graph_run *r = &mlp->run;
    graph_close(r);
    MUST(graph_open(ctx, r, &mlp->graph));
    r->in = &mlp->in;
    r->out = &mlp->out;
    r->group_sizes = rows->group_sizes;
    memcpy(r->room, mlp->room, (size_t)r->tensor_count * sizeof *r->room);
    r->room[mlp->graph.result] = rows->y;
    graph_lend_weights(r, mlp->weights);
    graph_lend(r, graph_find(&mlp->graph, "inputs/x"), rows->x);
    graph_lend(r, graph_find(&mlp->graph, ASSAY_MLP_ROW_WEIGHTS), rows->h_weights);
    return ASSAY_OK;
}

assay_status moe_mlp_forward(assay_context *ctx, moe_mlp *mlp, const moe_rows *rows, bool down)
{
    set_rows(mlp, rows);
    MUST(lend_rows(ctx, mlp, rows));
    if (!down) graph_lend(&mlp->run, mlp->graph.result, rows->y); /* as if it were there */
    MUST(graph_read_deviations(ctx, &mlp->run));
    MUST(graph_read_inputs(ctx, &mlp->run));
    return graph_forward(ctx, &mlp->run);
}

assay_status moe_mlp_backward(assay_context *ctx, moe_mlp *mlp, const moe_rows *rows)
{
    graph_run *r = &mlp->run;
    set_rows(mlp, rows);
    graph_lend_gradient(r, mlp->graph.result, rows->dy);
    graph_want_gradient(r, graph_find(&mlp->graph, "inputs/x"), rows->dx);
    graph_want_gradient(r, graph_find(&mlp->graph, ASSAY_MLP_ROW_WEIGHTS), rows->d_h_weights);
    graph_want_weight_gradients(r, mlp->summing ? mlp->partials : mlp->gradients);
    MUST(graph_backward(ctx, r));
    for (int weight = 0; mlp->summing && weight < ASSAY_MLP_WEIGHTS; weight++) {
        if (mlp->gradients[weight] == NULL) continue;
        graph_join(ctx, assay_tensor_row_count(&mlp->table.rows[weight]), mlp->gradients[weight],
                   mlp->partials[weight]);
    }
    mlp->summing = true;
    return ASSAY_OK;
}

assay_status moe_mlp_write(assay_context *ctx, moe_mlp *mlp, const moe_results *r)
{
    if (!mlp->summing) return assay_gradients_write_zeros(ctx, r->out, "", &mlp->table, mlp->gradients);
    mlp->summing = false;
    return assay_gradients_write(ctx, r->out, "", &mlp->table, mlp->gradients);
}
