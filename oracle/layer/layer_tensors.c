/* The tensors of one layer: weights and their gradients, checkpoints. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"
#include "oracle/layer/layer_internal.h"

void layer_prefix(const stack_run *run, int64_t layer, char prefix[LAYER_PREFIX_SIZE])
{
    prefix[0] = '\0';
    if (!run->config->single) snprintf(prefix, LAYER_PREFIX_SIZE, "layers/%" PRId64 "/", layer);
}

assay_tensor_table layer_weight_table(const assay_stack_config *config, int64_t layer)
{
    graph g;
    assay_layer_graph(&g, config, layer);
    return graph_weight_table(&g);
}

static void path_of(const stack_run *run, int64_t layer, const char *folder, const char *name, char *path)
{
    char prefix[LAYER_PREFIX_SIZE];
    layer_prefix(run, layer, prefix);
    snprintf(path, ASSAY_PATH_SIZE, "%s%s%s", folder, prefix, name);
}

assay_status layer_weights_read(assay_context *ctx, const stack_run *run, int64_t layer, layer_weights *w)
{
    *w = (layer_weights){.table = layer_weight_table(run->config, layer)};
    layer_prefix(run, layer, w->prefix);
    MUST(assay_weights_alloc(ctx, run->in, w->prefix, &w->table, w->values));
    return assay_weights_read(ctx, run->in, w->prefix, &w->table, 0, w->values);
}

void layer_weights_free(layer_weights *w)
{
    for (int weight = 0; weight < ASSAY_MOST_ROWS; weight++) free(w->values[weight]);
    *w = (layer_weights){0};
}

/* Gradients that a recipe quantises are checkpoints. */
static bool wants_quantised(const stack_run *run, const char *prefix, const assay_tensor_row *row)
{
    char path[ASSAY_PATH_SIZE];
    if (row->name == NULL) return false;
    assay_tensor_path("checkpoints/", prefix, row, path);
    return assay_wants(run->out, path);
}

/* Rows of the routed experts' tensors, in the layout of the path (moe.h). */
static int64_t routed_rows(const assay_stack_config *config)
{
    const assay_moe_config *moe = &config->moe;
    const assay_routing_config *routing = &moe->routing;
    const int64_t tokens = routing->batch * routing->sequence;
    if (assay_is_sharded(moe, &config->sharding)) {
        const assay_shard_sizes sizes = assay_shard_sizes_of(moe, &config->sharding);
        return sizes.shards * sizes.chunks * sizes.buffer;
    }
    if (moe->path == ASSAY_MOE_DENSE) return tokens * routing->num_experts;
    if (moe->path == ASSAY_MOE_DROPPING) {
        return routing->num_experts * routing->batch * assay_expert_capacity(routing, moe->capacity_factor);
    }
    return tokens * assay_moe_slots(moe);
}

int64_t layer_checkpoint_count(const assay_stack_config *config, int64_t layer, int slot)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const int64_t tokens = sizes.batch * sizes.sequence;
    const bool of_routed = slot >= ASSAY_REMAT_MOE_MLPWI && slot <= ASSAY_REMAT_MOE_MLPWO;
    if (slot == ASSAY_REMAT_DECODER_LAYER_INPUT) return tokens * sizes.emb_dim;
    if (layer_is_dense(config, layer) || slot <= ATTENTION_LAST || slot == ASSAY_REMAT_LSE) {
        graph g;
        assay_layer_graph(&g, config, layer);
        return graph_size(&g, layer_tensor(&g, slot));
    }
    /* slots stand in the order of the table, in which mlp_intermediate has none */
    const int first = of_routed ? ASSAY_REMAT_MOE_MLPWI : ASSAY_REMAT_MLPWI;
    const int last = of_routed ? ASSAY_REMAT_MOE_MLPWO : ASSAY_REMAT_MLPWO;
    const int checkpoint = slot == last ? ASSAY_MLPWO : slot - first;
    const assay_gated_mlp_config mlp =
        of_routed ? assay_moe_expert_config(&config->moe, 0) : assay_moe_shared_config(&config->moe, 0);
    const assay_tensor_row row =
        assay_mlp_checkpoint_row(&mlp, of_routed ? ASSAY_MLP_ROUTED : ASSAY_MLP_SHARED, checkpoint);
    return (of_routed ? routed_rows(config) : tokens) * assay_tensor_row_count(&row);
}

assay_status layer_write_checkpoint(assay_context *ctx, const stack_run *run, int64_t layer, int slot,
                                    const double *values)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t count = layer_checkpoint_count(run->config, layer, slot);
    path_of(run, layer, "checkpoints/", slot == ASSAY_REMAT_LSE ? "lse" : assay_remat_names[slot], path);
    if (count == 0 || !assay_wants(run->out, path)) return ASSAY_OK;
    return run->out->write(ctx, run->out->self, path, count, values);
}

assay_status layer_go_on(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double *values)
{
    char path[ASSAY_PATH_SIZE];
    const int64_t count = layer_checkpoint_count(run->config, layer, slot);
    if (slot == ASSAY_REMAT_LSE || count == 0) return ASSAY_OK;
    path_of(run, layer, "checkpoints/", assay_remat_names[slot], path);
    return assay_go_on_from(ctx, run->in, path, 0, count, values);
}

#define BOUNDARY "gradients/checkpoints/"

static bool wants_boundary(const stack_run *run, int64_t layer, char path[ASSAY_PATH_SIZE])
{
    path_of(run, layer, BOUNDARY, assay_remat_names[ASSAY_REMAT_DECODER_LAYER_INPUT], path);
    return !run->config->single && run->config->batch_split_factor == 0 && assay_wants(run->out, path);
}

assay_status layer_write_boundary(assay_context *ctx, const stack_run *run, int64_t layer, double *dx)
{
    char path[ASSAY_PATH_SIZE];
    if (wants_boundary(run, layer, path)) MUST(run->out->write(ctx, run->out->self, path, run->size, dx));
    return assay_go_on_from(ctx, run->in, path, 0, run->size, dx);
}

bool layer_wants_gradient(const stack_run *run, int64_t layer)
{
    graph g;
    char prefix[LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE];
    assay_layer_graph(&g, run->config, layer);
    const assay_tensor_table table = graph_weight_table(&g);
    layer_prefix(run, layer, prefix);
    bool wants = wants_boundary(run, layer, path) || assay_wants_any_gradient(run->in, run->out, prefix, &table);
    for (int i = 0; i < g.gradient_count; i++)
        wants |= wants_quantised(run, prefix, &g.tensors[g.gradients[i]].gradient);
    return wants;
}

assay_status layer_release(assay_context *ctx, const stack_run *run, int64_t layer, int slot, double **values)
{
    const int64_t count = layer_checkpoint_count(run->config, layer, slot);
    if (run->store != NULL) return assay_remat_put(ctx, run->store, layer, slot, count, values);
    free(*values);
    *values = NULL;
    return ASSAY_OK;
}

void layer_add(const assay_context *ctx, double *sum, const double *a, const double *b, int64_t count)
{
    enum { PIECE = 4096 };
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t end = count - first < PIECE ? count : first + PIECE;
        for (int64_t i = first; i < end; i++) sum[i] = a[i] + b[i];
        assay_round(ctx, ASSAY_ROUND_STORAGE, end - first, sum + first);
    }
}

bool layer_adds_block(const assay_context *ctx)
{
    return !assay_step_is_changed(ctx, "add", LAYER_SUM);
}

void layer_add_block(const assay_context *ctx, double *sum, const double *h, const double *block, int64_t count)
{
    if (layer_adds_block(ctx)) {
        layer_add(ctx, sum, h, block, count);
    } else {
        memcpy(sum, block, (size_t)count * sizeof *sum);
    }
}
