/* Weights of the schedule (MaxText deepseek_batchsplit.py). */
#include "oracle/layer/batch_split_internal.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/mesh/collectives.h"

static assay_tensor_row routed_row(const bs_run *run, int weight)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const assay_gated_mlp_config expert = assay_moe_expert_config(moe, 0);
    return assay_tensor_row_below("E", &moe->routing.num_experts,
                                  assay_mlp_weight_row(&expert, ASSAY_MLP_ROUTED, weight));
}

static assay_tensor_row moe_row(const bs_run *run, int weight)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const int64_t dim = run->mla.emb_dim, experts = moe->routing.num_experts;
    const assay_gated_mlp_config shared = assay_moe_shared_config(moe, 0);
    if (weight == BS_GATE)
        return (assay_tensor_row){.name = "gate/kernel",
                                  .kind = ASSAY_KERNEL,
                                  .axes = "DE",
                                  .shape = assay_shape_of(2, dim, experts),
                                  .inputs = 1};
    if (weight == BS_GATE_BIAS)
        return (assay_tensor_row){
            .name = "gate/bias", .kind = ASSAY_BIAS, .axes = "E", .shape = assay_shape_of(1, experts)};
    const assay_tensor_row row = weight >= BS_ROUTED
                                     ? routed_row(run, weight - BS_ROUTED)
                                     : assay_mlp_weight_row(&shared, ASSAY_MLP_SHARED, weight - BS_SHARED);
    return row.kind == ASSAY_BIAS ? (assay_tensor_row){0} : row;
}

assay_tensor_row bs_weight_row(const bs_run *run, int weight)
{
    if (weight == BS_PRE_NORM) return layer_norm_row(run->stack->config, LAYER_PRE_NORM);
    if (weight == BS_POST_NORM) return layer_norm_row(run->stack->config, LAYER_POST_NORM);
    const bool attention = weight < BS_POST_NORM;
    assay_tensor_row row = attention ? assay_mla_weight_row(&run->mla, weight - BS_MLA) : moe_row(run, weight);
    row.folder = attention ? "self_attention/" : "moe/";
    return row;
}

/* How a weight lies on the mesh: experts over expert; of a kernel fsdp splits D, or the latent where there is none; -1:
 * the same on every shard. */
static bool is_by_expert(int weight)
{
    return weight >= BS_ROUTED;
}

static int fsdp_axis(const assay_tensor_row *row)
{
    const char *dim = strchr(row->axes, 'D');
    if (row->kind != ASSAY_KERNEL) return -1;
    return dim == NULL ? 0 : (int)(dim - row->axes);
}

assay_shape bs_weight_shape(const bs_run *run, int weight, bool gathered)
{
    assay_tensor_row row = bs_weight_row(run, weight);
    const int split = fsdp_axis(&row);
    if (is_by_expert(weight)) row.shape.dims[0] /= run->mesh->size[ASSAY_AXIS_EXPERT];
    if (!gathered && split >= 0) row.shape.dims[split] /= run->mesh->size[ASSAY_AXIS_FSDP];
    return row.shape;
}

int64_t bs_weight_count(const bs_run *run, int weight, bool gathered)
{
    const assay_shape shape = bs_weight_shape(run, weight, gathered);
    return bs_weight_row(run, weight).name == NULL ? 0 : assay_shape_count(&shape);
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
        const char *name = bs_weight_row(run, weight).name;
        const int64_t dims[] = {run->sizes.shards, bs_weight_count(run, weight, gathered)};
        if (name == NULL || (like != NULL && like->values[weight] == NULL)) continue;
        TRY(assay_checked_count(ctx, name, 2, dims, &count));
        TRY(assay_alloc_f64(ctx, name, count, &w->values[weight]));
    }
cleanup:
    if (status != ASSAY_OK) bs_weights_free(w);
    return status;
}

static void path_of(const bs_run *run, int64_t layer, const char *root, const assay_tensor_row *row,
                    char path[ASSAY_PATH_SIZE])
{
    char prefix[ASSAY_LAYER_PREFIX_SIZE];
    assay_layer_prefix(run->stack->config, layer, prefix);
    assay_tensor_path(root, prefix, row, path);
}

/* Where a shard's part lies within the whole tensor, seen as [blocks,run]: runs of `length` numbers, `stride` apart. */
typedef struct placement {
    int64_t first, runs, length, stride;
} placement;

static placement place(const bs_run *run, int weight, int64_t shard)
{
    const assay_tensor_row whole = bs_weight_row(run, weight);
    const assay_shape local = bs_weight_shape(run, weight, false);
    const int64_t expert = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_EXPERT);
    const int64_t fsdp = assay_mesh_index(run->mesh, shard, ASSAY_AXIS_FSDP);
    const int split = fsdp_axis(&whole);
    placement p = {0, 1, 1, 1};
    for (int i = 0; i < local.rank; i++) {
        if (i < split) p.runs *= local.dims[i];
        if (i >= split) p.length *= local.dims[i];
        if (i >= split) p.stride *= whole.shape.dims[i];
    }
    if (is_by_expert(weight)) p.first = expert * (assay_shape_count(&whole.shape) / run->mesh->size[ASSAY_AXIS_EXPERT]);
    if (split >= 0) p.first += fsdp * p.length;
    return p;
}

/* What MaxText's file does not have, but the plain stack reads where it is there. */
static assay_status refuse_foreign(assay_context *ctx, const bs_run *run, int64_t layer)
{
    const assay_source *in = run->stack->in;
    for (int weight = 0; weight <= ASSAY_MLP_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        assay_tensor_row row = {.name = "per_expert_scale", .kind = ASSAY_NORM_SCALE};
        if (weight < ASSAY_MLP_WEIGHTS) row = routed_row(run, weight);
        if (row.kind == ASSAY_KERNEL) continue;
        row.folder = "moe/";
        path_of(run, layer, "weights/", &row, path);
        if (in->has(in->self, path)) return assay_refuse(ctx, "%s: use_batch_split_schedule has none", path);
    }
    return ASSAY_OK;
}

/* The gate's bias may be off, and is 0 then; so is the gate where the weights of a choice are given. */
static bool is_off(const bs_run *run, int64_t layer, int weight)
{
    const assay_source *in = run->stack->in;
    char path[ASSAY_PATH_SIZE], given[ASSAY_PATH_SIZE];
    const assay_tensor_row row = bs_weight_row(run, weight), of_choice = {.name = "routing_weights"};
    if (weight != BS_GATE && weight != BS_GATE_BIAS) return false;
    path_of(run, layer, "weights/", &row, path);
    path_of(run, layer, "inputs/", &of_choice, given);
    return in->has(in->self, given) || (weight == BS_GATE_BIAS && !in->has(in->self, path));
}

void bs_move_parts(const bs_run *run, int weight, double *whole, double *scattered, bool to_whole)
{
    const int64_t local = bs_weight_count(run, weight, false);
    for (int64_t shard = 0; shard < run->sizes.shards; shard++) {
        const placement p = place(run, weight, shard);
        for (int64_t i = 0; i < p.runs; i++) {
            double *outside = whole + p.first + i * p.stride, *inside = scattered + shard * local + i * p.length;
            memcpy(to_whole ? outside : inside, to_whole ? inside : outside, (size_t)p.length * sizeof *inside);
        }
    }
}

assay_status bs_extract_layer_weights(assay_context *ctx, const bs_run *run, bs_weights *scattered, int64_t layer)
{
    const assay_source *in = run->stack->in;
    OWNED double *whole = NULL;
    MUST(refuse_foreign(ctx, run, layer));
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        const assay_tensor_row row = bs_weight_row(run, weight);
        const int64_t count = assay_tensor_row_count(&row), local = bs_weight_count(run, weight, false);
        if (count == 0) continue;
        if (is_off(run, layer, weight)) {
            memset(scattered->values[weight], 0, (size_t)(run->sizes.shards * local) * sizeof(double));
            continue;
        }
        path_of(run, layer, "weights/", &row, path);
        MUST(assay_alloc_f64(ctx, path, count, &whole));
        MUST(in->read(ctx, in->self, path, 0, count, whole));
        bs_move_parts(run, weight, whole, scattered->values[weight], false);
        free(whole);
        whole = NULL;
    }
    return ASSAY_OK;
}

assay_status bs_insert_layer_ws_grad(assay_context *ctx, const bs_run *run, const bs_weights *scattered, int64_t layer)
{
    const assay_sink *out = run->stack->out;
    OWNED double *whole = NULL;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        const assay_tensor_row row = bs_weight_row(run, weight);
        const int64_t count = assay_tensor_row_count(&row);
        if (scattered->values[weight] == NULL) continue;
        path_of(run, layer, "gradients/weights/", &row, path);
        MUST(assay_alloc_f64(ctx, path, count, &whole));
        bs_move_parts(run, weight, whole, scattered->values[weight], true);
        MUST(out->write(ctx, out->self, path, count, whole));
        free(whole);
        whole = NULL;
    }
    return ASSAY_OK;
}

void bs_drop_unwanted(const bs_run *run, bs_weights *w, int64_t layer)
{
    const assay_sink *out = run->stack->out;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        char path[ASSAY_PATH_SIZE];
        const assay_tensor_row row = bs_weight_row(run, weight);
        if (row.name == NULL) continue;
        path_of(run, layer, "gradients/weights/", &row, path);
        if (assay_wants(out, path) && !is_off(run, layer, weight)) continue;
        free(w->values[weight]);
        w->values[weight] = NULL;
    }
}

static size_t bytes_of(const bs_run *run, int weight, bool gathered)
{
    return (size_t)(run->sizes.shards * bs_weight_count(run, weight, gathered)) * sizeof(double);
}

void bs_gather_weights(const bs_run *run, bs_weights *gathered, const bs_weights *scattered)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_shape local = bs_weight_shape(run, weight, false);
        const assay_tensor_row row = bs_weight_row(run, weight);
        const int split = fsdp_axis(&row);
        if (row.name == NULL) continue;
        if (split < 0) {
            memcpy(gathered->values[weight], scattered->values[weight], bytes_of(run, weight, true));
        } else {
            assay_all_gather(gathered->values[weight], scattered->values[weight], sizeof(double), &local, split,
                             run->mesh, ASSAY_AXIS_FSDP);
        }
    }
}

/* values [M,count] become their sums over an axis; they may be stored before. */
static assay_status psum_in_place(assay_context *ctx, const bs_run *run, double *values, int64_t count,
                                  assay_mesh_axis axis)
{
    double *sum = NULL;
    if (run->mesh->size[axis] == 1) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "sum over shards", run->sizes.shards * count, &sum));
    assay_round(ctx, ASSAY_ROUND_STORAGE, run->sizes.shards * count, values);
    assay_psum(ctx, sum, values, count, run->mesh, axis);
    memcpy(values, sum, (size_t)(run->sizes.shards * count) * sizeof *values);
    free(sum);
    return ASSAY_OK;
}

assay_status bs_reduce_scatter_ws_grad(assay_context *ctx, const bs_run *run, bs_weights *scattered,
                                       const bs_weights *gathered)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_shape whole = bs_weight_shape(run, weight, true);
        const assay_tensor_row row = bs_weight_row(run, weight);
        const int split = fsdp_axis(&row);
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
        if (is_by_expert(weight)) continue;
        MUST(
            psum_in_place(ctx, run, scattered->values[weight], bs_weight_count(run, weight, false), ASSAY_AXIS_EXPERT));
    }
    return ASSAY_OK;
}

assay_status bs_all_reduce_ws_grad_dcn(assay_context *ctx, const bs_run *run, bs_weights *scattered)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        const assay_tensor_row row = bs_weight_row(run, weight);
        if (scattered->values[weight] == NULL || fsdp_axis(&row) < 0) continue;
        MUST(psum_in_place(ctx, run, scattered->values[weight], bs_weight_count(run, weight, false), ASSAY_AXIS_DATA));
    }
    return ASSAY_OK;
}
