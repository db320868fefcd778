/* What is asked of a layer without running it, and sums outside of graphs. */
#include <inttypes.h>
#include <stdio.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/layer_internal.h"

void assay_layer_prefix(const assay_stack_config *config, int64_t layer, char prefix[ASSAY_LAYER_PREFIX_SIZE])
{
    prefix[0] = '\0';
    if (!config->single) snprintf(prefix, ASSAY_LAYER_PREFIX_SIZE, "layers/%" PRId64 "/", layer);
}

static int graph_of(const assay_stack_config *config, int64_t layer)
{
    const int odd = config->windows == ASSAY_WINDOWS_EVERYWHERE ? 0 : (int)(layer % 2);
    return (assay_layer_is_dense(config, layer) ? 2 : 0) + odd;
}

int64_t layer_plain_end(const assay_stack_config *config)
{
    return config->batch_split_factor > 0 ? config->dense_layers : config->layers;
}

assay_status layer_graphs_make(assay_context *ctx, stack_run *run)
{
    const assay_stack_config *config = run->config;
    for (int64_t layer = config->first_layer; layer < layer_plain_end(config); layer++) {
        graph **g = &run->graphs[graph_of(config, layer)];
        if (*g != NULL) continue;
        MUST(assay_alloc(ctx, "graph of a layer", 1, sizeof **g, g));
        assay_layer_graph(*g, config, layer);
    }
    return ASSAY_OK;
}

const graph *layer_graph(const stack_run *run, int64_t layer)
{
    return run->graphs[graph_of(run->config, layer)];
}

bool layer_wants_boundary(const stack_run *run, const char *path)
{
    return !run->config->single && run->config->batch_split_factor == 0 && assay_wants(run->out, path);
}

bool layer_wants_gradient(const stack_run *run, int64_t layer)
{
    const bool split = layer >= layer_plain_end(run->config);
    graph own;
    if (split) assay_layer_graph(&own, run->config, layer);
    const graph *g = split ? &own : layer_graph(run, layer);
    const assay_tensor_table table = graph_weight_table(g);
    char prefix[ASSAY_LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE];
    assay_layer_prefix(run->config, layer, prefix);
    const graph_run r = {.graph = g, .out = run->out, .prefix = prefix};
    snprintf(path, sizeof path, "gradients/checkpoints/%s%s", prefix,
             assay_remat_names[ASSAY_REMAT_DECODER_LAYER_INPUT]);
    return layer_wants_boundary(run, path) || assay_wants_any_gradient(run->in, run->out, prefix, &table) ||
           graph_wants_gradients(&r) ||
           (!assay_layer_is_dense(run->config, layer) && layer_moe_wants_gradient(run, prefix));
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
