/* Layers one after the other, each made of the second forms of its parts: their tensors are copied under the paths that
 * those read, and their results back under the layer's. */
#include <stdio.h>
#include <string.h>

#include "oracle/spec/spec_internal.h"

/* "layers/3/", or "" for the single layer. */
static void prefix_of(const assay_stack_config *config, int64_t layer, char prefix[32])
{
    prefix[0] = '\0';
    if (!config->single) snprintf(prefix, 32, "layers/%lld/", (long long)layer);
}

static assay_status copy_as(assay_context *ctx, const spec_tensor *from, const char *path, spec_tensors *to)
{
    spec_quad *values = NULL;
    if (from->indices != NULL) return spec_tensors_copy_i32(ctx, to, path, &from->shape, from->indices);
    assay_status status = spec_tensors_add(ctx, to, path, &from->shape, &values);
    if (status != ASSAY_OK) return status;
    memcpy(values, from->values, (size_t)assay_shape_count(&from->shape) * sizeof *values);
    return ASSAY_OK;
}

/* Every tensor FROMname of `in` as TOname. */
static assay_status copy_folder(assay_context *ctx, const spec_tensors *in, const char *from, const char *to,
                                spec_tensors *out)
{
    const size_t length = strlen(from);
    char path[2 * ASSAY_PATH_SIZE];
    for (int i = 0; i < in->count; i++) {
        if (strncmp(in->items[i].path, from, length) != 0) continue;
        snprintf(path, sizeof path, "%s%s", to, in->items[i].path + length);
        assay_status status = copy_as(ctx, &in->items[i], path, out);
        if (status != ASSAY_OK) return status;
    }
    return ASSAY_OK;
}

/* inputs/x [B,S,D] of a part: the layer's stream, normalised by the scale at weights/PREFIXnorm. */
static assay_status add_normalised(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in,
                                   const char *prefix, const char *norm, const spec_quad *x, spec_tensors *part)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = config->mla.emb_dim, rows = config->mla.batch * config->mla.sequence;
    const assay_shape shape = assay_shape_of(3, config->mla.batch, config->mla.sequence, dim);
    const spec_quad *scale = NULL;
    spec_quad *values = NULL;
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "weights/%s%s/scale", prefix, norm);
    TRY(spec_read(ctx, in, path, dim, &scale));
    TRY(spec_tensors_add(ctx, part, "inputs/x", &shape, &values));
    spec_rms_norm_rows(rows, dim, config->epsilon, x, dim, scale, values);
cleanup:
    return status;
}

/* A layer at work: `x` [B,S,D] is its input and becomes its output. Results go to `out`, checkpoints only when asked. */
typedef struct layer_run {
    const assay_stack_config *config;
    const spec_tensors *in;
    int64_t layer;
    char prefix[32];
    bool checkpoints;
    spec_quad *x;
    spec_tensors *out;
} layer_run;

static assay_status keep(assay_context *ctx, const layer_run *run, const char *folder, const spec_tensors *part)
{
    char to[64], from[32];
    snprintf(from, sizeof from, "%s/", folder);
    snprintf(to, sizeof to, "%s/%s", folder, run->prefix);
    return copy_folder(ctx, part, from, to, run->out);
}

/* The stream plus what the part gave at `path`. */
static assay_status add_to_stream(assay_context *ctx, layer_run *run, const spec_tensors *part, const char *path)
{
    const spec_quad *y = NULL;
    const int64_t count = run->config->mla.batch * run->config->mla.sequence * run->config->mla.emb_dim;
    assay_status status = spec_read(ctx, part, path, count, &y);
    for (int64_t i = 0; status == ASSAY_OK && i < count; i++) run->x[i] += y[i];
    return status;
}

static assay_status weights_of(assay_context *ctx, const layer_run *run, const char *block, spec_tensors *part)
{
    char from[ASSAY_PATH_SIZE];
    snprintf(from, sizeof from, "weights/%s%s/", run->prefix, block);
    return copy_folder(ctx, run->in, from, "weights/", part);
}

static assay_status attention_half(assay_context *ctx, layer_run *run)
{
    assay_status status = ASSAY_OK;
    spec_tensors in = {0}, parts = {0};
    TRY(add_normalised(ctx, run->config, run->in, run->prefix, "pre_self_attention_layer_norm", run->x, &in));
    TRY(copy_folder(ctx, run->in, "inputs/positions", "inputs/positions", &in));
    TRY(copy_folder(ctx, run->in, "inputs/segment_ids", "inputs/segment_ids", &in));
    TRY(weights_of(ctx, run, "self_attention", &in));
    TRY(spec_mla_parts(ctx, &run->config->mla, &in, &parts));
    if (run->checkpoints) TRY(keep(ctx, run, "checkpoints", &parts));
    TRY(add_to_stream(ctx, run, &parts, "checkpoints/out_proj"));
cleanup:
    spec_tensors_free(&in);
    spec_tensors_free(&parts);
    return status;
}

static assay_status dense_half(assay_context *ctx, layer_run *run, spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    TRY(weights_of(ctx, run, "mlp", in));
    TRY(spec_gated_mlp(ctx, &run->config->mlp, in, out));
    if (run->checkpoints) TRY(keep(ctx, run, "checkpoints", out));
cleanup:
    return status;
}

static assay_status moe_half(assay_context *ctx, layer_run *run, spec_tensors *in, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    char choice[ASSAY_PATH_SIZE];
    spec_tensors balance = {0};
    snprintf(choice, sizeof choice, "routing/%sselected_experts", run->prefix);
    TRY(weights_of(ctx, run, "moe", in));
    TRY(copy_folder(ctx, run->in, choice, "routing/selected_experts", in));
    TRY(spec_moe(ctx, &run->config->moe, in, out));
    TRY(keep(ctx, run, "routing", out));
    for (int i = 0; i < out->count; i++) {
        if (strcmp(out->items[i].path, "outputs/y") == 0) continue;
        TRY(copy_folder(ctx, &(spec_tensors){&out->items[i], 1}, "outputs/", "outputs/", &balance));
    }
    TRY(keep(ctx, run, "outputs", &balance));
    if (run->checkpoints) {
        TRY(spec_moe_checkpoints(ctx, &run->config->moe, in, out));
        TRY(keep(ctx, run, "checkpoints", out));
    }
cleanup:
    spec_tensors_free(&balance);
    return status;
}

static assay_status mlp_half(assay_context *ctx, layer_run *run)
{
    assay_status status = ASSAY_OK;
    spec_tensors in = {0}, out = {0};
    const bool dense = run->layer < run->config->dense_layers;
    TRY(add_normalised(ctx, run->config, run->in, run->prefix, "post_self_attention_layer_norm", run->x, &in));
    TRY(dense ? dense_half(ctx, run, &in, &out) : moe_half(ctx, run, &in, &out));
    TRY(add_to_stream(ctx, run, &out, "outputs/y"));
cleanup:
    spec_tensors_free(&in);
    spec_tensors_free(&out);
    return status;
}

static assay_status run_stack(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in,
                              bool checkpoints, spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = config->mla.emb_dim, count = config->mla.batch * config->mla.sequence * dim;
    const assay_shape shape = assay_shape_of(3, config->mla.batch, config->mla.sequence, dim);
    const spec_quad *x = NULL;
    layer_run run = {.config = config, .in = in, .checkpoints = checkpoints, .out = out};
    TRY(spec_read(ctx, in, "inputs/x", count, &x));
    TRY(spec_alloc(ctx, count, &run.x));
    memcpy(run.x, x, (size_t)count * sizeof *x);
    for (run.layer = 0; run.layer < config->layers; run.layer++) {
        prefix_of(config, run.layer, run.prefix);
        if (checkpoints) {
            char path[ASSAY_PATH_SIZE];
            spec_quad *values = NULL;
            snprintf(path, sizeof path, "checkpoints/%sdecoder_layer_input", run.prefix);
            TRY(spec_tensors_add(ctx, out, path, &shape, &values));
            memcpy(values, run.x, (size_t)count * sizeof *values);
        }
        TRY(attention_half(ctx, &run));
        TRY(mlp_half(ctx, &run));
    }
    if (!checkpoints) {
        spec_quad *y = NULL;
        TRY(spec_tensors_add(ctx, out, "outputs/y", &shape, &y));
        memcpy(y, run.x, (size_t)count * sizeof *y);
    }
cleanup:
    free(run.x);
    return status;
}

assay_status spec_stack(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in, spec_tensors *out)
{
    return run_stack(ctx, config, in, false, out);
}

assay_status spec_stack_checkpoints(assay_context *ctx, const assay_stack_config *config, const spec_tensors *in,
                                    spec_tensors *out)
{
    assay_status status = ASSAY_OK;
    spec_tensors all = {0};
    TRY(run_stack(ctx, config, in, true, &all));
    TRY(copy_folder(ctx, &all, "checkpoints/", "checkpoints/", out));
cleanup:
    spec_tensors_free(&all);
    return status;
}
