#include "oracle/layer/decoder_stack.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split.h"
#include "oracle/layer/layer_internal.h"

static bool any_moe_layers(const assay_stack_config *config)
{
    return config->dense_layers < config->layers;
}

static assay_status check_sizes(assay_context *ctx, const assay_stack_config *config)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(config);
    const assay_moe_config *moe = &config->moe;
    const int64_t tokens = sizes.batch * sizes.sequence;
    const bool any_dense = config->dense_layers > 0, any_moe = any_moe_layers(config);
    if (any_dense && (config->mlp.emb_dim != sizes.emb_dim || config->mlp.rows != tokens || config->mlp.mlp_dim < 1)) {
        return assay_refuse(ctx,
                            "layer: the MLP has %" PRId64 " rows of %" PRId64 " and width %" PRId64
                            ", expected %" PRId64 " of %" PRId64 " and 1 or more (mlp_dim)",
                            config->mlp.rows, config->mlp.emb_dim, config->mlp.mlp_dim, tokens, sizes.emb_dim);
    }
    if (any_moe &&
        (moe->emb_dim != sizes.emb_dim || moe->routing.batch != sizes.batch || moe->routing.sequence != sizes.sequence))
        return assay_refuse(ctx, "layer: the MoE block's batch, sequence or emb_dim is not the layer's");
    if (any_moe && moe->routing.hash_rows > 0) {
        return assay_refuse(ctx,
                            "layer: hash routing (first_num_hash_layers) needs input_ids, which a layer does not have");
    }
    return ASSAY_OK;
}

assay_status assay_stack_check(assay_context *ctx, const assay_stack_config *config)
{
    if (config->layers < 1 || config->dense_layers < 0 || config->dense_layers > config->layers ||
        config->first_layer < 0 || config->first_layer >= config->layers || (config->single && config->layers != 1)) {
        return assay_refuse(ctx,
                            "stack: %" PRId64 " layers, %" PRId64 " of them dense, expected 1 or more and 0 to all",
                            config->layers, config->dense_layers);
    }
    if (!(config->epsilon >= 0))
        return assay_refuse(ctx, "normalization_layer_epsilon is %g, expected 0 or more", config->epsilon);
    if (config->attention == ASSAY_LAYER_MLA) MUST(assay_mla_check(ctx, &config->mla));
    if (config->attention == ASSAY_LAYER_GQA) MUST(assay_gqa_check(ctx, &config->gqa));
    MUST(check_sizes(ctx, config));
    if (config->batch_split_factor > 0 && any_moe_layers(config)) MUST(assay_moe_check(ctx, &config->moe));
    if (config->batch_split_factor > 0 && config->attention != ASSAY_LAYER_MLA)
        return assay_refuse(ctx, "stack: the batch-split schedule has multi-head latent attention");
    if (config->batch_split_factor > 0) return assay_batch_split_check(ctx, config);
    return any_moe_layers(config) ? assay_sharded_moe_check(ctx, &config->moe, &config->sharding) : ASSAY_OK;
}

static assay_status clear_padding(assay_context *ctx, stack_run *run, double *x)
{
    const assay_stack_config *config = run->config;
    const bool latent = config->attention == ASSAY_LAYER_MLA;
    const bool masks = latent ? config->mla.mask_padding : config->gqa.mask_padding;
    const int64_t width = run->size / run->tokens, sequence = assay_stack_sizes_of(config).sequence;
    MUST(assay_attention_check_tokens(ctx, "inputs/x", x, run->tokens, sequence, width,
                                      masks ? run->segment_ids : NULL));
    MUST(assay_alloc(ctx, "tokens that count as 0", run->tokens, sizeof *run->cleared, &run->cleared));
    assay_attention_clear_padding(x, run->cleared, run->tokens, width);
    return ASSAY_OK;
}

static assay_status read_inputs(assay_context *ctx, stack_run *run, double **x)
{
    const assay_source *in = run->in;
    const assay_stack_config *config = run->config;
    const assay_rope_config *rope = config->attention == ASSAY_LAYER_MLA ? &config->mla.rope : &config->gqa.rope;
    MUST(assay_read_needed(ctx, in, "inputs/x", run->size, x));
    MUST(assay_read_needed_i32(ctx, in, "inputs/positions", run->tokens, &run->positions));
    MUST(assay_rope_check_positions(ctx, run->positions, run->tokens, rope));
    MUST(assay_read_all_i32(ctx, in, "inputs/segment_ids", run->tokens, &run->segment_ids));
    if (run->segment_ids == NULL) return ASSAY_OK;
    MUST(assay_attention_check_segments(ctx, run->segment_ids, run->tokens));
    return clear_padding(ctx, run, *x);
}

/* Whether the sink wants any gradient of the stack. */
static bool wants_backward(const stack_run *run)
{
    bool wants = assay_wants(run->out, "gradients/inputs/x");
    for (int64_t layer = run->config->first_layer; !wants && layer < run->config->layers; layer++)
        wants = layer_wants_gradient(run, layer);
    return wants;
}

static assay_status write_report(assay_context *ctx, const stack_run *run)
{
    const assay_remat_report report = assay_remat_report_of(run->store);
    const double kept = (double)report.bytes_kept, offloaded = (double)report.bytes_offloaded;
    MUST(assay_write_result(ctx, run->out, "remat/bytes_kept", 1, &kept));
    MUST(assay_write_result(ctx, run->out, "remat/bytes_offloaded", 1, &offloaded));
    return assay_write_result(ctx, run->out, "remat/operations_recomputed", 1, &report.operations_recomputed);
}

static void clear_gradient(const stack_run *run, double *dx)
{
    const int64_t width = run->size / run->tokens;
    for (int64_t t = 0; run->cleared != NULL && t < run->tokens; t++)
        if (run->cleared[t]) memset(dx + t * width, 0, (size_t)width * sizeof *dx);
}

/* An output without a cotangent is not differentiated. */
static assay_status backward(assay_context *ctx, const stack_run *run, assay_batch_split *split)
{
    const assay_source *in = run->in;
    OWNED double *dy = NULL;
    MUST(assay_read_all(ctx, in, "cotangents/y", run->size, &dy));
    if (dy == NULL) MUST(assay_alloc_zeros(ctx, "cotangents/y", run->size, &dy));
    if (split != NULL) MUST(assay_batch_split_backward(ctx, run, split, dy));
    for (int64_t layer = layer_plain_end(run->config) - 1; layer >= run->config->first_layer; layer--)
        MUST(layer_backward(ctx, run, layer, dy));
    clear_gradient(run, dy);
    MUST(assay_write_result(ctx, run->out, "gradients/inputs/x", run->size, dy));
    return write_report(ctx, run);
}

static assay_status begin(assay_context *ctx, stack_run *run, double **x)
{
    const assay_stack_sizes sizes = assay_stack_sizes_of(run->config);
    MUST(assay_stack_check(ctx, run->config));
    run->tokens = sizes.batch * sizes.sequence;
    run->size = run->tokens * sizes.emb_dim;
    MUST(layer_graphs_make(ctx, run));
    return read_inputs(ctx, run, x);
}

static void end(stack_run *run)
{
    assay_remat_close(run->store);
    free(run->positions);
    free(run->segment_ids);
    free(run->cleared);
    for (int i = 0; i < LAYER_GRAPHS; i++) free(run->graphs[i]);
}

assay_status assay_stack_run(assay_context *ctx, const assay_stack_config *config, const assay_source *in,
                             const assay_sink *out)
{
    assay_status status = ASSAY_OK;
    stack_run run = {.config = config, .in = in, .out = out};
    assay_batch_split *split = NULL;
    double *x = NULL;
    TRY(begin(ctx, &run, &x));
    if (run.segment_ids != NULL && config->batch_split_factor > 0) {
        status = assay_refuse(ctx, "inputs/segment_ids: use_batch_split_schedule has none");
        goto cleanup;
    }
    const int64_t items =
        config->layers * assay_larger(config->batch_split_factor, 1); /* residuals of microbatches of layers */
    if (wants_backward(&run)) TRY(assay_remat_open(ctx, &run.store, &config->policy, items));
    for (int64_t layer = config->first_layer; layer < layer_plain_end(config); layer++)
        TRY(layer_forward(ctx, &run, layer, &x));
    if (config->batch_split_factor > 0) TRY(assay_batch_split_forward(ctx, &run, &split, &x));
    TRY(assay_write_result(ctx, out, "outputs/y", run.size, x));
    free(x);
    x = NULL;
    if (run.store != NULL) TRY(backward(ctx, &run, split));
cleanup:
    assay_batch_split_close(split);
    end(&run);
    free(x);
    return status;
}
