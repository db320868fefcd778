#include "oracle/layer/tests/moe_half_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_scan.h"
#include "oracle/ops/rms_norm.h"
#include "tests/support/assay_test.h"

static const char *const names[BS_WEIGHTS] = {
    [BS_POST_NORM] = "post_self_attention_layer_norm/scale",
    [BS_GATE] = "moe/gate/kernel",
    [BS_GATE_BIAS] = "moe/gate/bias",
    [BS_ROUTED + ASSAY_MLP_WI_0] = "moe/wi_0",
    [BS_ROUTED + ASSAY_MLP_WI_1] = "moe/wi_1",
    [BS_ROUTED + ASSAY_MLP_WO] = "moe/wo",
    [BS_SHARED + ASSAY_MLP_WI_0] = "moe/shared_experts/wi_0/kernel",
    [BS_SHARED + ASSAY_MLP_WI_1] = "moe/shared_experts/wi_1/kernel",
    [BS_SHARED + ASSAY_MLP_WO] = "moe/shared_experts/wo/kernel",
};

const char *moe_half_weight_name(int weight)
{
    return names[weight];
}

bool moe_half_is_routed(int weight)
{
    return weight >= BS_ROUTED;
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

static void load_weight(moe_half *c, int weight)
{
    char path[2 * ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "weights/layers/1/%s", names[weight]);
    const assay_tensor *from = layer_case_get(&c->layer.in, path);
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

void moe_half_load(moe_half *c)
{
    const int64_t width = c->run.mla.sequence * c->run.mla.emb_dim;
    for (int weight = 0; weight < BS_WEIGHTS; weight++) {
        if (names[weight] != NULL) load_weight(c, weight);
    }
    bs_split(c->xs, layer_case_get(&c->layer.in, "inputs/x")->values, &c->run, width);
    bs_split(c->dxs, layer_case_get(&c->layer.in, "cotangents/y")->values, &c->run, width);
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
    c->in = test_tensors_source(&c->layer.in);
    c->sink = test_tensors_sink(&c->out);
    c->stack = (stack_run){.config = config, .in = &c->in, .out = &c->sink};
    assert_ok(&ctx, assay_remat_open(&ctx, &c->stack.store, &config->policy, config->layers));
    bs_run_of(&c->run, &c->stack);
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
    assay_tensor_set_free(&c->out.set);
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

static double *add_copy(test_tensors *store, const char *path, const assay_tensor *from)
{
    double *to = test_tensors_add(store, path, from->count);
    assert_non_null(to);
    return memcpy(to, from->values, (size_t)from->count * sizeof *to);
}

void moe_half_plain(assay_context *ctx, moe_half *c, test_tensors *plain)
{
    assay_stack_config config = c->layer.config;
    const assay_sink sink = test_tensors_sink(plain);
    const assay_tensor *x = layer_case_get(&c->layer.in, "inputs/x");
    const int64_t tokens = config.mla.batch * config.mla.sequence;
    stack_run stack = {.config = &config, .in = &c->in, .out = &sink, .tokens = tokens, .size = x->count};
    layer_weights w, g = {0};
    config.sharding = (assay_sharding){.mesh = {{1, 1, 1}}, .tensor_shards = 1, .token_chunks = 1};
    double *y = add_copy(plain, "outputs/y", x);
    double *dx = add_copy(plain, "gradients/inputs/x", layer_case_get(&c->layer.in, "cotangents/y"));
    assert_ok(ctx, assay_remat_open(ctx, &stack.store, &config.policy, config.layers));
    assert_ok(ctx, layer_weights_read(ctx, &stack, MOE_HALF_LAYER, &w));
    assert_ok(ctx, assay_gradients_alloc(ctx, &sink, w.prefix, &w.table, w.values, g.values));
    int post = 0;
    while (w.table.rows[post].name == NULL ||
           strcmp(w.table.rows[post].name, "post_self_attention_layer_norm/scale") != 0)
        post++;
    const int64_t dim = config.mla.emb_dim;
    const double *scale = w.values[post];
    double *h_norm = moe_half_alloc(x->count), *rstd = moe_half_alloc(tokens), *dh = moe_half_alloc(x->count);
    double *moe = NULL, *dh_norm = NULL;
    assay_rms_norm_forward(ctx, h_norm, rstd, x->values, scale, tokens, dim, config.epsilon);
    assay_round(ctx, ASSAY_ROUND_STORAGE, x->count, h_norm);
    assert_ok(ctx, layer_moe_forward(ctx, &stack, MOE_HALF_LAYER, h_norm, &moe));
    assay_round(ctx, ASSAY_ROUND_STORAGE, x->count, moe);
    layer_add(ctx, y, x->values, moe, x->count);
    assert_ok(ctx, layer_moe_backward(ctx, &stack, MOE_HALF_LAYER, h_norm, dx, &dh_norm));
    assay_round(ctx, ASSAY_ROUND_STORAGE, x->count, dh_norm);
    assay_rms_norm_backward(ctx, dh, g.values[post], dh_norm, x->values, scale, rstd, tokens, dim);
    assay_round(ctx, ASSAY_ROUND_STORAGE, x->count, dh);
    layer_add(ctx, dx, dx, dh, x->count);
    assert_ok(ctx, assay_gradients_write(ctx, &sink, w.prefix, &w.table, g.values));
    layer_weights_free(&w);
    layer_weights_free(&g);
    assay_remat_close(stack.store);
    free(h_norm);
    free(rstd);
    free(moe);
    free(dh_norm);
    free(dh);
}
