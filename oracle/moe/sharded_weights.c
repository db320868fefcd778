#include "oracle/moe/sharded_weights.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/tensor_set.h"
#include "oracle/moe/moe_block.h"

static int64_t transpose_shards(const assay_sharding *sharding)
{
    return sharding->fsdp_transpose > 1 ? sharding->fsdp_transpose : 1;
}

assay_kernel_layout assay_kernel_layout_of(const assay_moe_config *config, const assay_sharding *sharding, int weight)
{
    const assay_mesh *mesh = &sharding->mesh;
    const int64_t transpose = transpose_shards(sharding), fsdp = mesh->size[ASSAY_AXIS_FSDP] / transpose;
    const int64_t expert = mesh->size[ASSAY_AXIS_EXPERT];
    assay_kernel_layout l = {
        .shards = assay_mesh_shards(mesh) / mesh->size[ASSAY_AXIS_DATA],
        .expert_parts = sharding->shard_exp_on_fsdp ? expert * fsdp : expert,
        .hidden_parts = transpose * assay_mesh_size(mesh, ASSAY_AXIS_MLP_TENSOR),
        .emb_shards = sharding->shard_exp_on_fsdp ? 1 : fsdp,
        .halves = weight == ASSAY_MLP_WI ? 2 : 1,
        .down = weight == ASSAY_MLP_WO,
    };
    const int64_t hidden = l.halves * config->moe_mlp_dim / l.hidden_parts, dim = config->emb_dim / l.emb_shards;
    l.experts = config->routing.num_experts / l.expert_parts;
    l.rows = l.down ? hidden : dim;
    l.columns = l.down ? dim : hidden;
    return l;
}

/* Where what a shard has of a row, or of its gate or up, begins in the whole kernels [E,D,H] or [E,H,D]. */
static int64_t place_of(const assay_kernel_layout *l, const assay_sharding *sharding, int64_t run)
{
    const int64_t half = run % l->halves, row = run / l->halves % l->rows;
    const int64_t expert = run / l->halves / l->rows % l->experts, shard = run / l->halves / l->rows / l->experts;
    const int64_t hidden_shards = assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR);
    const int64_t expert_shards = sharding->mesh.size[ASSAY_AXIS_EXPERT], transpose = transpose_shards(sharding);
    const int64_t n = shard % hidden_shards, p = shard / hidden_shards % expert_shards;
    const int64_t t = shard / hidden_shards / expert_shards % transpose;
    const int64_t f = shard / hidden_shards / expert_shards / transpose;
    const int64_t expert_shard = l->expert_parts > expert_shards ? p * (l->expert_parts / expert_shards) + f : p;
    const int64_t hidden_shard = t * hidden_shards + n, emb_shard = l->emb_shards > 1 ? f : 0;
    const int64_t row_shards = l->down ? l->hidden_parts : l->emb_shards;
    const int64_t column_shards = l->down ? l->emb_shards : l->hidden_parts;
    const int64_t row_shard = l->down ? hidden_shard : emb_shard, column_shard = l->down ? emb_shard : hidden_shard;
    const int64_t whole_row = ((expert_shard * l->experts + expert) * row_shards + row_shard) * l->rows + row;
    return (whole_row * l->halves + half) * (l->columns / l->halves) * column_shards +
           column_shard * (l->columns / l->halves);
}

/* Between kernels as they lie on shards and whole ones, of `count` numbers. */
static assay_status move(assay_context *ctx, const assay_kernel_layout *l, const assay_sharding *sharding, bool gather,
                         int64_t count, double *values)
{
    const int64_t length = l->columns / l->halves;
    OWNED double *from = NULL;
    MUST(assay_alloc_f64(ctx, "kernels of all shards", count, &from));
    memcpy(from, values, (size_t)count * sizeof *from);
    for (int64_t run = 0; run < count / length; run++) {
        const int64_t whole = place_of(l, sharding, run), own = run * length;
        memcpy(values + (gather ? whole : own), from + (gather ? own : whole), (size_t)length * sizeof *from);
    }
    return ASSAY_OK;
}

/* Keeps the gradients of kernels, and hands on the rest. */
typedef struct gathering_sink {
    assay_wrapped wrapped;
    assay_tensor_set *gradients;
} gathering_sink;

static assay_status gathering_write(assay_context *ctx, void *self, const char *path, int64_t count,
                                    const double *values)
{
    gathering_sink *sink = self;
    const assay_sink kept = assay_tensor_set_sink(sink->gradients);
    const assay_sink *to = kept.wants(kept.self, path) ? &kept : sink->wrapped.out;
    return to->write(ctx, to->self, path, count, values);
}

/* The kernels that there are, and a place for each gradient that is wanted. */
static assay_status gather(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                           const assay_source *in, assay_tensor_set *kernels, gathering_sink *sink)
{
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row row = assay_mlp_weight_row(&expert, ASSAY_MLP_ROUTED, weight);
        char path[ASSAY_PATH_SIZE], gradient[ASSAY_PATH_SIZE];
        if (row.name == NULL || row.kind != ASSAY_KERNEL) continue;
        const assay_kernel_layout layout = assay_kernel_layout_of(config, sharding, weight);
        assay_tensor_spec spec = {.type = ASSAY_FLOAT64,
                                  .shape =
                                      assay_shape_of(4, layout.shards, layout.experts, layout.rows, layout.columns)};
        assay_tensor_path("weights/", "", &row, path);
        assay_gradient_path(path, gradient);
        assay_tensor_call(&spec, path);
        MUST(assay_tensor_set_read(ctx, kernels, &spec, in));
        assay_tensor *kernel = assay_tensor_set_find(kernels, path);
        MUST(move(ctx, &layout, sharding, true, kernel->count, kernel->values));
        if (!assay_wants(sink->wrapped.out, gradient)) continue;
        assay_tensor_call(&spec, gradient);
        MUST(assay_tensor_set_add(ctx, sink->gradients, &spec, NULL));
    }
    return ASSAY_OK;
}

static assay_status scatter(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                            gathering_sink *sink)
{
    const assay_gated_mlp_config expert = assay_moe_expert_config(config, 0);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row row = assay_mlp_weight_row(&expert, ASSAY_MLP_ROUTED, weight);
        char path[ASSAY_PATH_SIZE];
        if (row.name == NULL) continue;
        const assay_kernel_layout layout = assay_kernel_layout_of(config, sharding, weight);
        assay_tensor_path("gradients/weights/", "", &row, path);
        assay_tensor *gradient = assay_tensor_set_find(sink->gradients, path);
        if (gradient == NULL) continue;
        MUST(move(ctx, &layout, sharding, false, gradient->count, gradient->values));
        MUST(sink->wrapped.out->write(ctx, sink->wrapped.out->self, path, gradient->count, gradient->values));
    }
    return ASSAY_OK;
}

assay_status assay_moe_run(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding,
                           const assay_source *in, const assay_sink *out)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set kernels = {0}, gradients = {0};
    gathering_sink gathering = {{in, out}, &gradients};
    MUST(assay_sharded_moe_check(ctx, config, sharding));
    if (!sharding->weights_on_shards) return moe_block_run(ctx, config, sharding, in, out);
    MUST(gather(ctx, config, sharding, in, &kernels, &gathering));
    assay_overlay overlay = {assay_tensor_set_source(&kernels), *in};
    const assay_source whole = assay_overlay_source(&overlay);
    const assay_sink sink = {.self = &gathering,
                             .wants = assay_wrapped_wants,
                             .write = gathering_write,
                             .write_i32 = assay_wrapped_write_i32};
    MUST(moe_block_run(ctx, config, sharding, &whole, &sink));
    return scatter(ctx, config, sharding, &gathering);
}
