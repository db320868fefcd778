/* Layers one after the other, each made of the second forms of its parts. A part sees the layer's tensors under its own
 * names; nothing is copied, since a certificate evaluates a stack thousands of times. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_internal.h"

/* A layer at work. Results go to `out`: outputs and routing, or the checkpoints alone. */
typedef struct layer_run {
    const assay_stack_config *config;
    const quad_tensors *in;
    quad_tensors *out;
    bool checkpoints;
    int64_t layer;
    char prefix[32];         /* "layers/3/", or "" for the single layer */
    assay_shape shape;       /* [B,S,D] */
    quad *x, *x_normed; /* [B,S,D]: the residual stream, and what a part gets of it */
} layer_run;

static assay_status join(assay_context *ctx, char path[ASSAY_PATH_SIZE], const char *folder, const char *prefix,
                         const char *name)
{
    const int length = snprintf(path, ASSAY_PATH_SIZE, "%s%s%s", folder, prefix, name);
    if (length < ASSAY_PATH_SIZE) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "the path '%s%s%s' is too long", folder, prefix, name);
}

/* Every tensor of the stack that begins with `from`, which becomes `to`. */
static assay_status lend(assay_context *ctx, const layer_run *run, const char *from, const char *to, quad_tensors *part)
{
    const size_t length = strlen(from);
    char path[ASSAY_PATH_SIZE];
    for (int i = 0; i < run->in->count; i++) {
        const quad_tensor *tensor = &run->in->items[i];
        if (strncmp(tensor->path, from, length) != 0) continue;
        assay_status status = join(ctx, path, to, "", tensor->path + length);
        if (status == ASSAY_OK) status = quad_tensors_list(ctx, part, path, tensor);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

static assay_status lend_weights(assay_context *ctx, const layer_run *run, const char *block, quad_tensors *part)
{
    char from[ASSAY_PATH_SIZE];
    assay_status status = join(ctx, from, "weights/", run->prefix, block);
    return status == ASSAY_OK ? lend(ctx, run, from, "weights/", part) : status;
}

/* h that codes are of, where the input has it (spec.h). */
static assay_status lend_hidden(assay_context *ctx, const layer_run *run, quad_tensors *part)
{
    static const char *const names[] = {"mlp_intermediate", "moe_intermediate"};
    assay_status status = ASSAY_OK;
    for (int i = 0; i < 2; i++) {
        char from[ASSAY_PATH_SIZE], to[ASSAY_PATH_SIZE];
        TRY(join(ctx, from, "checkpoints/", run->prefix, names[i]));
        TRY(join(ctx, to, "checkpoints/", "", names[i]));
        TRY(lend(ctx, run, from, to, part));
    }
cleanup:
    return status;
}

/* A part's results FOLDERname, all but outputs/y, become the stack's FOLDERPREFIXname. */
static assay_status hand_over(assay_context *ctx, const layer_run *run, const char *folder, quad_tensors *part)
{
    const size_t length = strlen(folder);
    char path[ASSAY_PATH_SIZE];
    for (int i = 0; i < part->count; i++) {
        quad_tensor *tensor = &part->items[i];
        if (strncmp(tensor->path, folder, length) != 0 || strcmp(tensor->path, "outputs/y") == 0) continue;
        assay_status status = join(ctx, path, folder, run->prefix, tensor->path + length);
        if (status == ASSAY_OK) status = quad_tensors_list(ctx, run->out, path, tensor);
        if (status != ASSAY_OK) return status;
        tensor->values = NULL;
        tensor->indices = NULL;
    }
    return ASSAY_OK;
}

/* inputs/x of a part: the stream under the norm of that name. */
static assay_status lend_normed(assay_context *ctx, const layer_run *run, const char *norm, quad_tensors *part)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = run->shape.dims[2], rows = assay_shape_count(&run->shape) / dim;
    const quad *scale = NULL;
    char path[ASSAY_PATH_SIZE];
    TRY(join(ctx, path, "weights/", run->prefix, norm));
    TRY(quad_read(ctx, run->in, path, dim, &scale));
    quad_rms_norm_rows(rows, dim, run->config->epsilon, run->x, dim, scale, run->x_normed);
    TRY(quad_tensors_list(ctx, part, "inputs/x", &(quad_tensor){.shape = run->shape, .values = run->x_normed}));
cleanup:
    return status;
}

static assay_status add_to_stream(assay_context *ctx, const layer_run *run, const quad_tensors *part, const char *path)
{
    const int64_t count = assay_shape_count(&run->shape);
    const quad *y = NULL;
    assay_status status = quad_read(ctx, part, path, count, &y);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) run->x[i] += y[i];
    return status;
}

/* GPT-OSS: sliding windows in the first layer of each two. */
static assay_status attention(assay_context *ctx, const layer_run *run, const quad_tensors *in, quad_tensors *parts)
{
    const assay_stack_config *config = run->config;
    assay_gqa_config gqa = config->gqa;
    if (config->attention == ASSAY_LAYER_MLA) return quad_mla_parts(ctx, &config->mla, in, parts);
    if (config->windows == ASSAY_WINDOWS_EVEN && run->layer % 2 != 0) gqa.window = 0;
    if (config->windows == ASSAY_WINDOWS_ODD && run->layer % 2 == 0) gqa.window = 0;
    return quad_gqa_parts(ctx, &gqa, in, parts);
}

static assay_status attention_half(assay_context *ctx, const layer_run *run)
{
    assay_status status = ASSAY_OK;
    quad_tensors in = {0}, parts = {0};
    TRY(lend_normed(ctx, run, "pre_self_attention_layer_norm/scale", &in));
    TRY(lend(ctx, run, "inputs/positions", "inputs/positions", &in));
    TRY(lend(ctx, run, "inputs/segment_ids", "inputs/segment_ids", &in));
    TRY(lend_weights(ctx, run, "self_attention/", &in));
    TRY(attention(ctx, run, &in, &parts));
    TRY(add_to_stream(ctx, run, &parts, "checkpoints/out_proj"));
    if (run->checkpoints) TRY(hand_over(ctx, run, "checkpoints/", &parts));
cleanup:
    free(in.items);
    quad_tensors_free(&parts);
    return status;
}

static assay_status dense_half(assay_context *ctx, const layer_run *run, quad_tensors *in, quad_tensors *parts)
{
    assay_status status = ASSAY_OK;
    TRY(lend_weights(ctx, run, "mlp/", in));
    TRY(quad_gated_mlp(ctx, &run->config->mlp, in, parts));
    TRY(add_to_stream(ctx, run, parts, "outputs/y"));
    if (run->checkpoints) TRY(hand_over(ctx, run, "checkpoints/", parts));
cleanup:
    return status;
}

static assay_status moe_half(assay_context *ctx, const layer_run *run, quad_tensors *in, quad_tensors *parts)
{
    assay_status status = ASSAY_OK;
    static const char *const given[] = {"selected_experts", "routing_weights"};
    char choice[ASSAY_PATH_SIZE], own[ASSAY_PATH_SIZE];
    const assay_stack_config *stack = run->config;
    const quad_moe_config config = {.moe = stack->moe, .sharding = stack->sharding};
    const bool split = stack->batch_split_factor > 0;
    TRY(lend_weights(ctx, run, "moe/", in));
    TRY(join(ctx, choice, "routing/", run->prefix, "selected_experts"));
    TRY(lend(ctx, run, choice, "routing/selected_experts", in));
    for (int i = 0; i < 2; i++) {
        TRY(join(ctx, choice, "inputs/", run->prefix, given[i]));
        TRY(join(ctx, own, "inputs/", "", given[i]));
        TRY(lend(ctx, run, choice, own, in));
    }
    TRY(split ? quad_batch_split_moe(ctx, stack, in, parts) : quad_moe(ctx, &config, in, parts));
    TRY(add_to_stream(ctx, run, parts, "outputs/y"));
    if (run->checkpoints) {
        TRY(split ? quad_batch_split_checkpoints(ctx, stack, in, parts)
                  : quad_moe_checkpoints(ctx, &config, in, parts));
        TRY(hand_over(ctx, run, "checkpoints/", parts));
    } else {
        TRY(hand_over(ctx, run, "routing/", parts));
        TRY(hand_over(ctx, run, "outputs/", parts));
    }
cleanup:
    return status;
}

static assay_status mlp_half(assay_context *ctx, const layer_run *run)
{
    assay_status status = ASSAY_OK;
    quad_tensors in = {0}, parts = {0};
    const bool dense = run->layer < run->config->dense_layers;
    TRY(lend_normed(ctx, run, "post_self_attention_layer_norm/scale", &in));
    TRY(lend_hidden(ctx, run, &in));
    TRY(dense ? dense_half(ctx, run, &in, &parts) : moe_half(ctx, run, &in, &parts));
cleanup:
    free(in.items);
    quad_tensors_free(&parts);
    return status;
}

/* The stream as it is. */
static assay_status add_stream(assay_context *ctx, const layer_run *run, const char *folder, const char *prefix,
                               const char *name)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    quad *values = NULL;
    TRY(join(ctx, path, folder, prefix, name));
    TRY(quad_tensors_add(ctx, run->out, path, &run->shape, &values));
    memcpy(values, run->x, (size_t)assay_shape_count(&run->shape) * sizeof *values);
cleanup:
    return status;
}

static assay_status run_stack(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                              bool checkpoints, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_mla_config *mla = &config->mla;
    const assay_gqa_config *gqa = &config->gqa;
    const bool latent = config->attention == ASSAY_LAYER_MLA;
    layer_run run = {.config = config,
                     .in = in,
                     .out = out,
                     .checkpoints = checkpoints,
                     .shape = latent ? assay_shape_of(3, mla->batch, mla->sequence, mla->emb_dim)
                                     : assay_shape_of(3, gqa->batch, gqa->sequence, gqa->emb_dim)};
    const int64_t count = assay_shape_count(&run.shape);
    const quad *x = NULL;
    TRY(quad_read(ctx, in, "inputs/x", count, &x));
    TRY(quad_alloc(ctx, count, &run.x));
    TRY(quad_alloc(ctx, count, &run.x_normed));
    memcpy(run.x, x, (size_t)count * sizeof *x);
    for (run.layer = config->first_layer; run.layer < config->layers; run.layer++) {
        if (!config->single) snprintf(run.prefix, sizeof run.prefix, "layers/%lld/", (long long)run.layer);
        if (checkpoints) TRY(add_stream(ctx, &run, "checkpoints/", run.prefix, "decoder_layer_input"));
        TRY(attention_half(ctx, &run));
        const bool split = config->batch_split_factor > 0 && run.layer >= config->dense_layers;
        if (checkpoints && split) TRY(add_stream(ctx, &run, "checkpoints/", run.prefix, "mla_out"));
        TRY(mlp_half(ctx, &run));
    }
    if (!checkpoints) TRY(add_stream(ctx, &run, "outputs/", "", "y"));
cleanup:
    free(run.x);
    free(run.x_normed);
    return status;
}

assay_status quad_stack(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in, quad_tensors *out)
{
    return run_stack(ctx, config, in, false, out);
}

assay_status quad_stack_checkpoints(assay_context *ctx, const assay_stack_config *config, const quad_tensors *in,
                                    quad_tensors *out)
{
    return run_stack(ctx, config, in, true, out);
}
