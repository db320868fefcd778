#include "oracle/layer/tests/moe_half_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/rms_norm.h"
#include "tests/support/assay_test.h"

static const char *const names[BS_WEIGHTS] = {
    [BS_POST_NORM] = "post_norm",
    [BS_GATE] = "gate/kernel",
    [BS_GATE_BIAS] = "gate/bias",
    [BS_WI_0] = "wi_0",
    [BS_WI_1] = "wi_1",
    [BS_WO] = "wo",
    [BS_SHARED_WI_0] = "shared_experts/wi_0/kernel",
    [BS_SHARED_WI_1] = "shared_experts/wi_1/kernel",
    [BS_SHARED_WO] = "shared_experts/wo/kernel",
};

const char *moe_half_weight_name(int weight)
{
    return names[weight];
}

bool moe_half_is_routed(int weight)
{
    return weight == BS_WI_0 || weight == BS_WI_1 || weight == BS_WO;
}

double *moe_half_alloc(int64_t count)
{
    double *values = malloc((size_t)(count > 0 ? count : 1) * sizeof *values);
    assert_non_null(values);
    assay_fill_nan(values, count);
    return values;
}

double *moe_half_random(uint64_t *seed, int64_t count)
{
    double *values = moe_half_alloc(count);
    for (int64_t i = 0; i < count; i++) values[i] = layer_case_uniform(seed);
    return values;
}

static const memory_tensor *weight_of(const moe_half *c, int weight)
{
    char path[2 * ASSAY_PATH_SIZE];
    if (weight == BS_POST_NORM) {
        return layer_case_get(&c->layer.in, "weights/layers/1/post_self_attention_layer_norm/scale");
    }
    snprintf(path, sizeof path, "weights/layers/1/moe/%s", names[weight]);
    return layer_case_get(&c->layer.in, path);
}

static void load_weight(moe_half *c, int weight)
{
    const memory_tensor *from = weight_of(c, weight);
    const int64_t shards = c->run.sizes.shards, parts = moe_half_is_routed(weight) ? c->run.sizes.expert_shards : 1;
    const int64_t count = from->count / parts;
    assert_int_equal(count, bs_weight_count(&c->run, weight, true));
    free(c->w.values[weight]);
    free(c->g.values[weight]);
    c->w.values[weight] = moe_half_alloc(shards * count);
    c->g.values[weight] = moe_half_alloc(shards * count);
    for (int64_t shard = 0; shard < shards; shard++) {
        const int64_t part = parts > 1 ? shard % parts : 0;
        memcpy(c->w.values[weight] + shard * count, from->values + part * count, (size_t)count * sizeof(double));
    }
}

/* Row r of a shard goes to microbatch r mod f. */
static void load_microbatches(moe_half *c, double *const *to, const char *path)
{
    const double *from = layer_case_get(&c->layer.in, path)->values;
    const int64_t factor = c->run.factor, rows = c->run.sizes.rows;
    const int64_t width = c->run.mla.sequence * c->run.mla.emb_dim;
    for (int64_t row = 0; row < c->run.sizes.shards * rows; row++) {
        for (int64_t i = 0; i < factor; i++)
            memcpy(to[i] + row * width, from + (row * factor + i) * width, (size_t)width * sizeof *from);
    }
}

void moe_half_load(moe_half *c)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        if (names[weight] != NULL) load_weight(c, weight);
    }
    load_microbatches(c, c->xs, "inputs/x");
    load_microbatches(c, c->dxs, "cotangents/y");
}

static assay_batch_split_sizes sizes_of(const moe_half_shape *shape)
{
    const int64_t shards = shape->data * shape->fsdp * shape->expert, tokens = shape->rows * shape->sequence;
    const int64_t copies = tokens * shape->expert * shape->per_token;
    const int64_t capacity = 2 * copies / shape->expert;
    return (assay_batch_split_sizes){.shards = shards,
                                     .expert_shards = shape->expert,
                                     .rows = shape->rows,
                                     .tokens = tokens,
                                     .gathered = tokens * shape->expert,
                                     .copies = copies,
                                     .capacity = capacity < copies ? capacity : copies,
                                     .local_experts = shape->experts / shape->expert};
}

static void configure(moe_half *c, const moe_half_shape *shape)
{
    const int64_t batch = shape->data * shape->fsdp * shape->expert * shape->factor * shape->rows;
    c->layer = layer_case_make(2, 1, batch, shape->sequence);
    assay_routing_config *routing = &c->layer.config.moe.routing;
    routing->num_experts = shape->experts;
    routing->num_experts_per_tok = shape->per_token;
    routing->n_routing_groups = shape->groups > 0 ? shape->groups : -1;
    routing->topk_routing_group = shape->groups > 0 ? shape->groups_kept : -1;
    routing->renormalize_exactly = true;
    c->layer.config.sharding = (assay_sharding){.mesh = {{shape->data, shape->fsdp, shape->expert}},
                                                .tensor_shards = 1,
                                                .token_chunks = 1,
                                                .weight_before_wo = true};
    c->layer.config.batch_split_factor = shape->factor;
    layer_case_fill(&c->layer);
}

void moe_half_open(moe_half *c, const moe_half_shape *shape)
{
    assay_context ctx = assay_context_default(1);
    *c = (moe_half){0};
    configure(c, shape);
    const assay_stack_config *config = &c->layer.config;
    c->in = memory_store_source(&c->layer.in);
    c->sink = memory_store_sink(&c->out);
    c->mesh = config->sharding.mesh;
    c->stack = (stack_run){.config = config, .in = &c->in, .out = &c->sink};
    assert_ok(&ctx, assay_remat_open(&ctx, &c->stack.store, &config->policy, config->layers));
    c->run = (bs_run){.stack = &c->stack,
                      .mesh = &c->mesh,
                      .factor = shape->factor,
                      .sizes = sizes_of(shape),
                      .mla = config->mla,
                      .routing = config->moe.routing};
    c->run.mla.batch = c->run.routing.batch = shape->rows;
    c->count = c->run.sizes.shards * c->run.sizes.tokens * config->mla.emb_dim;
    for (int64_t i = 0; i < shape->factor; i++) {
        c->xs[i] = moe_half_alloc(c->count);
        c->dxs[i] = moe_half_alloc(c->count);
    }
    moe_half_load(c);
}

void moe_half_close(moe_half *c)
{
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        free(c->w.values[weight]);
        free(c->g.values[weight]);
    }
    for (int i = 0; i < ASSAY_MOST_MICROBATCHES; i++) {
        free(c->xs[i]);
        free(c->dxs[i]);
    }
    assay_schedule_free(&c->run.schedule);
    assay_remat_close(c->stack.store);
    memory_store_free(&c->out);
    layer_case_free(&c->layer);
}

assay_status moe_half_run(assay_context *ctx, moe_half *c)
{
    assay_status status = ASSAY_OK;
    const int64_t last = c->run.factor - 1;
    const size_t size = (size_t)c->count * sizeof(double);
    bs_deferred deferred = {0}, d_deferred = {0};
    bs_residuals residuals = {0};
    for (int64_t i = 0; i <= last; i++) {
        TRY(assay_alloc_f64(ctx, "mla_out", c->count, &residuals.mla_out[i]));
        memcpy(residuals.mla_out[i], c->xs[i], size);
    }
    TRY(bs_moe(ctx, &c->run, MOE_HALF_LAYER, c->xs, &deferred, &residuals, &c->w));
    TRY(bs_unroute_ubatch(ctx, &c->run, c->xs[last], &deferred));
    TRY(bs_unroute_ubatch_remat_and_bwd(ctx, &c->run, &d_deferred, residuals.selected_experts, c->dxs[last]));
    TRY(bs_moe_bwd(ctx, &c->run, MOE_HALF_LAYER, c->dxs, &d_deferred, &residuals, &c->w, &c->g));
cleanup:
    bs_deferred_free(&deferred);
    bs_deferred_free(&d_deferred);
    bs_residuals_free(&residuals);
    return status;
}

static double *add_copy(memory_store *store, const char *path, int64_t count, const double *values)
{
    double *to = memory_store_add(store, path, count);
    assert_non_null(to);
    memcpy(to, values, (size_t)count * sizeof *to);
    return to;
}

void moe_half_plain(assay_context *ctx, moe_half *c, memory_store *plain)
{
    const assay_stack_config *config = &c->layer.config;
    const int64_t tokens = config->mla.batch * config->mla.sequence, dim = config->mla.emb_dim;
    const double *h = layer_case_get(&c->layer.in, "inputs/x")->values, *scale = weight_of(c, BS_POST_NORM)->values;
    const double *dy = layer_case_get(&c->layer.in, "cotangents/y")->values;
    double *rstd = moe_half_alloc(tokens), *dh = moe_half_alloc(tokens * dim);
    memory_store in = {0};
    const assay_source source = memory_store_source(&in);
    const assay_sink sink = memory_store_sink(plain);
    double *x = memory_store_add(&in, "inputs/x", tokens * dim);
    assay_rms_norm_forward(ctx, x, rstd, h, scale, tokens, dim, config->epsilon);
    add_copy(&in, "cotangents/y", tokens * dim, dy);
    for (int weight = BS_GATE; weight < BS_WEIGHTS; weight++) {
        char path[2 * ASSAY_PATH_SIZE];
        const memory_tensor *from = weight_of(c, weight);
        snprintf(path, sizeof path, "weights/%s", names[weight]);
        add_copy(&in, path, from->count, from->values);
    }
    const memory_tensor *given = memory_store_find(&c->layer.in, "routing/layers/1/selected_experts");
    if (given != NULL) {
        int32_t *to = memory_store_add_i32(&in, "routing/selected_experts", given->count);
        memcpy(to, given->indices, (size_t)given->count * sizeof *to);
    }
    assert_ok(ctx, assay_moe_run(ctx, &config->moe, &source, &sink, NULL));
    memory_store_free(&in);
    double *d_scale = memory_store_add(plain, "gradients/weights/post_norm", dim);
    double *dx = memory_store_find(plain, "gradients/inputs/x")->values;
    double *y = memory_store_find(plain, "outputs/y")->values;
    assay_rms_norm_backward(ctx, dh, d_scale, dx, h, scale, rstd, tokens, dim);
    layer_add(ctx, y, h, y, tokens * dim);
    layer_add(ctx, dx, dy, dh, tokens * dim);
    free(rstd);
    free(dh);
}
