#include "oracle/layer/batch_split_weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/collectives.h"

/* What a weight is called below weights/layers/i/, and how it lies on the mesh: the dimension that fsdp splits (-1: the
 * same on every shard), and whether its first dimension is that of the experts. */
static const struct {
    const char *name;
    int fsdp_dimension;
    bool by_expert;
} layouts[BS_WEIGHTS] = {
    [BS_PRE_NORM] = {"pre_self_attention_layer_norm/scale", -1, false},
    [BS_WQ_A] = {"self_attention/wq_a/kernel", 0, false},
    [BS_WQ_B] = {"self_attention/wq_b/kernel", 0, false},
    [BS_Q_NORM] = {"self_attention/q_norm/scale", -1, false},
    [BS_WKV_A] = {"self_attention/wkv_a/kernel", 0, false},
    [BS_WKV_B] = {"self_attention/wkv_b/kernel", 0, false},
    [BS_KV_NORM] = {"self_attention/kv_norm/scale", -1, false},
    [BS_OUT] = {"self_attention/out/kernel", 2, false},
    [BS_POST_NORM] = {"post_self_attention_layer_norm/scale", -1, false},
    [BS_GATE] = {"moe/gate/kernel", 0, false},
    [BS_GATE_BIAS] = {"moe/gate/bias", -1, false},
    [BS_WI_0] = {"moe/wi_0", 1, true},
    [BS_WI_1] = {"moe/wi_1", 1, true},
    [BS_WO] = {"moe/wo", 2, true},
    [BS_SHARED_WI_0] = {"moe/shared_experts/wi_0/kernel", 0, false},
    [BS_SHARED_WI_1] = {"moe/shared_experts/wi_1/kernel", 0, false},
    [BS_SHARED_WO] = {"moe/shared_experts/wo/kernel", 1, false},
};

/* Of the whole tensor. */
static assay_shape shape_of(const bs_run *run, int weight)
{
    const assay_mla_config *mla = &run->mla;
    const assay_moe_config *moe = &run->stack->config->moe;
    const int64_t dim = mla->emb_dim, heads = mla->heads, rope = mla->rope.dim, nope = mla->qk_nope_head_dim;
    const int64_t experts = moe->routing.num_experts, hidden = moe->moe_mlp_dim, shared = moe->shared_mlp_dim;
    switch (weight) {
    case BS_WQ_A:
        return assay_shape_of(2, dim, mla->q_lora_rank);
    case BS_WQ_B:
        return assay_shape_of(3, mla->q_lora_rank, heads, nope + rope);
    case BS_Q_NORM:
        return assay_shape_of(1, mla->q_lora_rank);
    case BS_WKV_A:
        return assay_shape_of(2, dim, mla->kv_lora_rank + rope);
    case BS_WKV_B:
        return assay_shape_of(3, mla->kv_lora_rank, heads, nope + mla->v_head_dim);
    case BS_KV_NORM:
        return assay_shape_of(1, mla->kv_lora_rank);
    case BS_OUT:
        return assay_shape_of(3, heads, mla->v_head_dim, dim);
    case BS_GATE:
        return assay_shape_of(2, dim, experts);
    case BS_GATE_BIAS:
        return assay_shape_of(1, experts);
    case BS_WI_0:
    case BS_WI_1:
        return assay_shape_of(3, experts, dim, hidden);
    case BS_WO:
        return assay_shape_of(3, experts, hidden, dim);
    case BS_SHARED_WI_0:
    case BS_SHARED_WI_1:
        return assay_shape_of(2, dim, shared);
    case BS_SHARED_WO:
        return assay_shape_of(2, shared, dim);
    default:
        return assay_shape_of(1, dim); /* norms */
    }
}

/* Of one shard. */
static assay_shape local_shape(const bs_run *run, int weight, bool gathered)
{
    assay_shape shape = shape_of(run, weight);
    const int split = layouts[weight].fsdp_dimension;
    if (layouts[weight].by_expert) shape.dims[0] /= run->mesh->size[ASSAY_AXIS_EXPERT];
    if (!gathered && split >= 0) shape.dims[split] /= run->mesh->size[ASSAY_AXIS_FSDP];
    return shape;
}

int64_t bs_weight_count(const bs_run *run, int weight, bool gathered)
{
    const assay_shape shape = local_shape(run, weight, gathered);
    return assay_shape_count(&shape);
}

void bs_weights_free(bs_weights *w)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) free(w->values[weight]);
    *w = (bs_weights){0};
}

assay_status bs_weights_alloc(assay_context *ctx, const bs_run *run, bs_weights *w, bool gathered,
                              const bs_weights *like)
{
    assay_status status = ASSAY_OK;
    *w = (bs_weights){0};
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        int64_t count = 0;
        const int64_t dims[] = {run->sizes.shards, bs_weight_count(run, weight, gathered)};
        if (like != NULL && like->values[weight] == NULL) continue;
        TRY(assay_checked_count(ctx, layouts[weight].name, 2, dims, &count));
        TRY(assay_alloc_f64(ctx, layouts[weight].name, count, &w->values[weight]));
    }
cleanup:
    if (status != ASSAY_OK) bs_weights_free(w);
    return status;
}

static void path_of(const bs_run *run, int64_t layer, const char *folder, int weight, char path[ASSAY_PATH_SIZE])
{
    char prefix[LAYER_PREFIX_SIZE];
    layer_prefix(run->stack, layer, prefix);
    snprintf(path, ASSAY_PATH_SIZE, "%s%s%s", folder, prefix, layouts[weight].name);
}

/* Where a shard's part lies within the whole tensor, seen as [blocks,run]: runs of `length` numbers, `stride` apart. */
typedef struct placement {
    int64_t first, runs, length, stride;
} placement;

static placement place(const bs_run *run, int weight, int64_t shard)
{
    const assay_shape whole = shape_of(run, weight), local = local_shape(run, weight, false);
    const int64_t expert = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT);
    const int64_t fsdp = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_FSDP);
    const int split = layouts[weight].fsdp_dimension;
    placement p = {0, 1, 1, 1};
    for (int i = 0; i < local.rank; i++) {
        if (i < split) p.runs *= local.dims[i];
        if (i >= split) p.length *= local.dims[i];
        if (i >= split) p.stride *= whole.dims[i];
    }
    if (layouts[weight].by_expert) p.first = expert * (assay_shape_count(&whole) / run->mesh->size[ASSAY_AXIS_EXPERT]);
    if (split >= 0) p.first += fsdp * p.length;
    return p;
}

/* What MaxText's file does not have, but the plain stack reads where it is there. */
static const char *const foreign[] = {"moe/wi_0_bias", "moe/wi_1_bias", "moe/wo_bias", "moe/per_expert_scale"};

static assay_status refuse_foreign(assay_context *ctx, const bs_run *run, int64_t layer)
{
    const assay_source *in = run->stack->in;
    char prefix[LAYER_PREFIX_SIZE], path[ASSAY_PATH_SIZE];
    layer_prefix(run->stack, layer, prefix);
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++) {
        snprintf(path, sizeof path, "weights/%s%s", prefix, foreign[i]);
        if (in->has(in->self, path))
            return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: use_batch_split_schedule has none", path);
    }
    return ASSAY_OK;
}

/* The gate's bias may be off, and is 0 then. */
static bool is_off(const bs_run *run, int64_t layer, int weight)
{
    const assay_source *in = run->stack->in;
    char path[ASSAY_PATH_SIZE];
    path_of(run, layer, "weights/", weight, path);
    return weight == BS_GATE_BIAS && !in->has(in->self, path);
}

/* Between the whole tensor and a shard's part of it. */
static void move_part(const bs_run *run, int weight, int64_t shard, double *whole, double *part, bool to_whole)
{
    const placement p = place(run, weight, shard);
    for (int64_t i = 0; i < p.runs; i++) {
        double *outside = whole + p.first + i * p.stride, *inside = part + i * p.length;
        memcpy(to_whole ? outside : inside, to_whole ? inside : outside, (size_t)p.length * sizeof *part);
    }
}

assay_status bs_extract_layer_weights(assay_context *ctx, const bs_run *run, bs_weights *scattered, int64_t layer)
{
    assay_status status = ASSAY_OK;
    const assay_source *in = run->stack->in;
    double *whole = NULL;
    TRY(refuse_foreign(ctx, run, layer));
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        const assay_shape shape = shape_of(run, weight);
        const int64_t count = assay_shape_count(&shape), local = bs_weight_count(run, weight, false);
        if (is_off(run, layer, weight)) {
            memset(scattered->values[weight], 0, (size_t)(run->sizes.shards * local) * sizeof(double));
            continue;
        }
        path_of(run, layer, "weights/", weight, path);
        TRY(assay_alloc_f64(ctx, path, count, &whole));
        TRY(in->read(ctx, in->self, path, 0, count, whole));
        for (int64_t shard = 0; shard < run->sizes.shards; shard++)
            move_part(run, weight, shard, whole, scattered->values[weight] + shard * local, false);
        free(whole);
        whole = NULL;
    }
cleanup:
    free(whole);
    return status;
}

assay_status bs_insert_layer_ws_grad(assay_context *ctx, const bs_run *run, const bs_weights *scattered, int64_t layer)
{
    assay_status status = ASSAY_OK;
    const assay_sink *out = run->stack->out;
    double *whole = NULL;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        const assay_shape shape = shape_of(run, weight);
        const int64_t count = assay_shape_count(&shape), local = bs_weight_count(run, weight, false);
        if (scattered->values[weight] == NULL) continue;
        path_of(run, layer, "gradients/weights/", weight, path);
        TRY(assay_alloc_f64(ctx, path, count, &whole));
        for (int64_t shard = 0; shard < run->sizes.shards; shard++)
            move_part(run, weight, shard, whole, scattered->values[weight] + shard * local, true);
        TRY(out->write(ctx, out->self, path, count, whole));
        free(whole);
        whole = NULL;
    }
cleanup:
    free(whole);
    return status;
}

void bs_drop_unwanted(const bs_run *run, bs_weights *w, int64_t layer)
{
    const assay_sink *out = run->stack->out;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        path_of(run, layer, "gradients/weights/", weight, path);
        if (out->wants(out->self, path) && !is_off(run, layer, weight)) continue;
        free(w->values[weight]);
        w->values[weight] = NULL;
    }
}

static size_t bytes_of(const bs_run *run, int weight, bool gathered)
{
    return (size_t)(run->sizes.shards * bs_weight_count(run, weight, gathered)) * sizeof(double);
}

void bs_gather_weights(assay_context *ctx, const bs_run *run, bs_weights *gathered, const bs_weights *scattered)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_shape local = local_shape(run, weight, false);
        const int split = layouts[weight].fsdp_dimension;
        if (split < 0) {
            memcpy(gathered->values[weight], scattered->values[weight], bytes_of(run, weight, true));
        } else {
            assay_all_gather(ctx, gathered->values[weight], scattered->values[weight], &local, split, run->mesh,
                             ASSAY_AXIS_FSDP);
        }
    }
}

/* values [M,count] become their sums over an axis; they may be stored before. */
static assay_status psum_in_place(assay_context *ctx, const bs_run *run, double *values, int64_t count,
                                  assay_mesh_axis axis)
{
    double *sum = NULL;
    if (run->mesh->size[axis] == 1) return ASSAY_OK;
    assay_status status = assay_alloc_f64(ctx, "sum over shards", run->sizes.shards * count, &sum);
    if (status != ASSAY_OK) return status;
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * count, values);
    assay_psum(ctx, sum, values, count, run->mesh, axis);
    memcpy(values, sum, (size_t)(run->sizes.shards * count) * sizeof *values);
    free(sum);
    return ASSAY_OK;
}

assay_status bs_reduce_scatter_ws_grad(assay_context *ctx, const bs_run *run, bs_weights *scattered,
                                       const bs_weights *gathered)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_shape whole = local_shape(run, weight, true);
        const int split = layouts[weight].fsdp_dimension;
        if (gathered->values[weight] == NULL) continue;
        if (split < 0) {
            memcpy(scattered->values[weight], gathered->values[weight], bytes_of(run, weight, true));
            continue;
        }
        if (run->mesh->size[ASSAY_AXIS_FSDP] > 1) {
            assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * assay_shape_count(&whole),
                        gathered->values[weight]);
        }
        assay_psum_scatter(ctx, scattered->values[weight], gathered->values[weight], &whole, split, run->mesh,
                           ASSAY_AXIS_FSDP);
        if (layouts[weight].by_expert) continue;
        TRY(psum_in_place(ctx, run, scattered->values[weight], bs_weight_count(run, weight, false), ASSAY_AXIS_EXPERT));
    }
cleanup:
    return status;
}

assay_status bs_all_reduce_ws_grad_dcn(assay_context *ctx, const bs_run *run, bs_weights *scattered)
{
    assay_status status = ASSAY_OK;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        if (scattered->values[weight] == NULL || layouts[weight].fsdp_dimension < 0) continue;
        TRY(psum_in_place(ctx, run, scattered->values[weight], bs_weight_count(run, weight, false), ASSAY_AXIS_DATA));
    }
cleanup:
    return status;
}
