/* Layers and stacks: what must be the same however it is computed, refusals, want of memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

/* Moves the tensors of one layer of a stack's source to a source of that layer alone. */
static layer_case single_layer(const layer_case *stack, int layer)
{
    layer_case c = {.config = stack->config};
    char prefix[64];
    c.config.layers = 1;
    c.config.single = true;
    c.config.dense_layers = layer < stack->config.dense_layers;
    snprintf(prefix, sizeof prefix, "weights/layers/%d/", layer);
    for (int i = 0; i < stack->in.count; i++) {
        const memory_tensor *from = &stack->in.items[i];
        char path[2 * ASSAY_PATH_SIZE];
        if (strncmp(from->path, prefix, strlen(prefix)) == 0) {
            snprintf(path, sizeof path, "weights/%s", from->path + strlen(prefix));
        } else if (strncmp(from->path, "weights/", 8) != 0) {
            snprintf(path, sizeof path, "%s", from->path);
        } else {
            continue;
        }
        if (from->values != NULL) {
            memcpy(memory_store_add(&c.in, path, from->count), from->values, (size_t)from->count * sizeof(double));
        } else {
            memcpy(memory_store_add_i32(&c.in, path, from->count), from->indices,
                   (size_t)from->count * sizeof(int32_t));
        }
    }
    return c;
}

static void set_input(layer_case *c, const char *path, const memory_tensor *from)
{
    const memory_tensor *to = layer_case_get(&c->in, path);
    assert_int_equal(to->count, from->count);
    memcpy(to->values, from->values, (size_t)from->count * sizeof(double));
}

/* A result of a single layer under its name in the stack. */
static void stack_path(const char *path, int layer, char *to)
{
    static const char *const folders[] = {"gradients/weights/", "checkpoints/", "routing/"};
    snprintf(to, 2 * ASSAY_PATH_SIZE, "%s", path);
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        if (strncmp(path, folders[i], strlen(folders[i])) != 0) continue;
        snprintf(to, 2 * ASSAY_PATH_SIZE, "%slayers/%d/%s", folders[i], layer, path + strlen(folders[i]));
    }
}

/* A stack is its layers, one after the other, forward and back. */
TEST(test_layers)
{
    enum { LAYERS = 3 };
    assay_context ctx = assay_context_default(2);
    layer_case stack = layer_case_make(LAYERS, 1, 2, 5), layers[LAYERS];
    memory_store whole = {0}, parts[LAYERS] = {{0}};
    layer_case_fill(&stack);
    layer_case_run(&ctx, &stack, &whole);
    for (int layer = 0; layer < LAYERS; layer++) {
        memory_store forward = {0};
        layers[layer] = single_layer(&stack, layer);
        if (layer > 0) set_input(&layers[layer], "inputs/x", layer_case_get(&parts[layer - 1], "outputs/y"));
        layer_case_run(&ctx, &layers[layer], &forward);
        parts[layer] = forward;
    }
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        memory_store backward = {0};
        if (layer + 1 < LAYERS) {
            set_input(&layers[layer], "cotangents/y", layer_case_get(&parts[layer + 1], "gradients/inputs/x"));
        }
        layer_case_run(&ctx, &layers[layer], &backward);
        memory_store_free(&parts[layer]);
        parts[layer] = backward;
        for (int i = 0; i < backward.count; i++) {
            char path[2 * ASSAY_PATH_SIZE];
            const memory_tensor *found = &backward.items[i];
            stack_path(found->path, layer, path);
            if (strcmp(path, "outputs/y") == 0 && layer + 1 < LAYERS) continue;
            if (strcmp(path, "gradients/inputs/x") == 0 && layer > 0) continue;
            if (strncmp(path, "remat/", 6) == 0 || found->values == NULL) continue;
            const memory_tensor *expected = layer_case_get(&whole, path);
            assert_int_equal(found->count, expected->count);
            assert_same_bits(found->values, expected->values, expected->count);
        }
    }
    for (int layer = 0; layer < LAYERS; layer++) {
        memory_store_free(&parts[layer]);
        layer_case_free(&layers[layer]);
    }
    memory_store_free(&whole);
    layer_case_free(&stack);
}

/* Every gradient has the size of what it is the gradient of, every output is written once. */
TEST(test_sizes)
{
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 2, 5);
    memory_store out = {0};
    int gradients = 0;
    layer_case_fill(&c);
    layer_case_run(&ctx, &c, &out);
    for (int i = 0; i < out.count; i++) {
        const memory_tensor *found = &out.items[i];
        if (strncmp(found->path, "gradients/", 10) != 0) continue;
        assert_int_equal(found->count, layer_case_get(&c.in, found->path + 10)->count);
        gradients++;
    }
    assert_int_equal(gradients, 2 * 9 + 3 + 8 + 1);
    assert_int_equal(layer_case_get(&out, "outputs/y")->count, 80);
    assert_int_equal(layer_case_get(&out, "routing/layers/1/weights")->count, 20);
    assert_int_equal(layer_case_get(&out, "checkpoints/layers/1/moe_mlpwo")->count, 160);
    memory_store_free(&out);
    layer_case_free(&c);
}

static void zero(layer_case *c, const char *path)
{
    const memory_tensor *tensor = layer_case_get(&c->in, path);
    memset(tensor->values, 0, (size_t)tensor->count * sizeof(double));
}

/* Blocks that give nothing leave the residual stream alone, both ways. */
TEST(test_residual)
{
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 1, 7);
    memory_store out = {0};
    layer_case_fill(&c);
    zero(&c, "weights/layers/0/self_attention/out/kernel");
    zero(&c, "weights/layers/0/mlp/wo/kernel");
    zero(&c, "weights/layers/1/self_attention/out/kernel");
    zero(&c, "weights/layers/1/moe/wo");
    zero(&c, "weights/layers/1/moe/shared_experts/wo/kernel");
    layer_case_run(&ctx, &c, &out);
    const memory_tensor *x = layer_case_get(&c.in, "inputs/x"), *dy = layer_case_get(&c.in, "cotangents/y");
    assert_same_bits(layer_case_get(&out, "outputs/y")->values, x->values, x->count);
    assert_same_bits(layer_case_get(&out, "gradients/inputs/x")->values, dy->values, dy->count);
    memory_store_free(&out);
    layer_case_free(&c);
}

static void assert_near(const memory_store *actual, const memory_store *expected, double relative)
{
    for (int i = 0; i < actual->count; i++) {
        const memory_tensor *found = &actual->items[i], *other = memory_store_find(expected, found->path);
        double largest = 0;
        if (other == NULL || found->values == NULL || found->count != other->count) continue;
        if (strncmp(found->path, "remat/", 6) == 0 || strncmp(found->path, "checkpoints/", 12) == 0) continue;
        for (int64_t j = 0; j < other->count; j++) largest = fmax(largest, fabs(other->values[j]));
        assert_close(found->values, other->values, other->count, 0, relative * largest);
    }
}

TEST(test_engines)
{
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 2, 5);
    memory_store expected = {0};
    layer_case_fill(&c);
    layer_case_run(&ctx, &c, &expected);
    for (int form = 0; test_next_context(&form, &ctx);) {
        memory_store out = {0};
        layer_case_run(&ctx, &c, &out);
        assert_int_equal(out.count, expected.count);
        layer_case_assert_same(&out, &expected);
        memory_store_free(&out);
    }
    ctx = assay_context_default(2);
    ctx.arithmetic = &assay_arithmetic_blas;
    memory_store blas = {0};
    layer_case_run(&ctx, &c, &blas);
    assert_near(&blas, &expected, 1e-12);
    memory_store_free(&blas);
    memory_store_free(&expected);
    layer_case_free(&c);
}

/* A token of segment 0 sees nothing and nobody sees it; other segments do not see each other. */
TEST(test_segments)
{
    static const int32_t ids[] = {1, 1, 1, 2, 2, 0};
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 1, 6);
    memory_store before = {0}, after = {0};
    layer_case_fill(&c);
    memcpy(memory_store_add_i32(&c.in, "inputs/segment_ids", 6), ids, sizeof ids);
    layer_case_run(&ctx, &c, &before);
    double *x = layer_case_get(&c.in, "inputs/x")->values;
    for (int i = 0; i < 8; i++) x[5 * 8 + i] += 1; /* the padding */
    for (int i = 0; i < 8; i++) x[i] *= -2;        /* the first token of segment 1 */
    layer_case_run(&ctx, &c, &after);
    const double *y = layer_case_get(&before, "outputs/y")->values,
                 *moved = layer_case_get(&after, "outputs/y")->values;
    assert_same_bits(moved + 3 * 8, y + 3 * 8, 2 * 8);
    for (int token = 0; token < 3; token++) assert_memory_not_equal(moved + token * 8, y + token * 8, 64);
    memory_store_free(&before);
    memory_store_free(&after);
    layer_case_free(&c);
}

/* Less asked for, the same numbers; nothing differentiated, nothing kept. */
TEST(test_wanted)
{
    static const char *const outputs[] = {"outputs/*", "remat/*", NULL};
    static const char *const one[] = {"gradients/weights/layers/1/moe/gate/bias", "remat/*", NULL};
    static const char *const other[] = {"gradients/weights/layers/0/self_attention/q_norm/scale", NULL};
    static const char *const *const lists[] = {outputs, one, other};
    static const int counts[] = {1, 4, 1};
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 1, 5);
    memory_store whole = {0};
    layer_case_fill(&c);
    layer_case_run(&ctx, &c, &whole);
    for (int i = 0; i < 3; i++) {
        memory_store out = {.wanted = lists[i]};
        layer_case_run(&ctx, &c, &out);
        assert_int_equal(out.count, counts[i]);
        layer_case_assert_same(&out, &whole);
        memory_store_free(&out);
    }
    memory_store_remove(&c.in, "cotangents/y");
    memory_store zeros = {0};
    layer_case_run(&ctx, &c, &zeros);
    const memory_tensor *dx = layer_case_get(&zeros, "gradients/inputs/x");
    for (int64_t i = 0; i < dx->count; i++) assert_true(dx->values[i] == 0);
    memory_store_free(&zeros);
    memory_store_free(&whole);
    layer_case_free(&c);
}

/* The load-balance loss of each MoE layer is an output of its own, and has a gradient of its own. */
TEST(test_balance)
{
    assay_context ctx = assay_context_default(1);
    layer_case c = layer_case_make(2, 1, 2, 5);
    memory_store without = {0}, with = {0};
    c.config.moe.routing.load_balance_loss_weight = 0.1;
    c.config.moe.routing.routed_bias_update_rate = 0.01;
    layer_case_fill(&c);
    layer_case_run(&ctx, &c, &without);
    *memory_store_add(&c.in, "cotangents/layers/1/lb_loss", 1) = 3;
    layer_case_run(&ctx, &c, &with);
    assert_true(layer_case_get(&with, "outputs/layers/1/lb_loss")->values[0] > 0);
    assert_int_equal(layer_case_get(&with, "outputs/layers/1/bias_updates")->count, 4);
    const memory_tensor *bias = layer_case_get(&with, "gradients/weights/layers/1/moe/gate/bias");
    const memory_tensor *none = layer_case_get(&without, bias->path);
    double moved = 0;
    for (int e = 0; e < 4; e++) {
        assert_true(none->values[e] == 0);
        moved += fabs(bias->values[e]);
    }
    assert_true(moved > 0);
    memory_store_free(&without);
    memory_store_free(&with);
    layer_case_free(&c);
}

TEST(test_refusals)
{
    static const char *const messages[] = {"2 layers, 3 of them dense",
                                           "normalization_layer_epsilon",
                                           "hash routing",
                                           "positions",
                                           "MoE block",
                                           "the MLP has"};
    for (int i = 0; i < 6; i++) {
        assay_context ctx = assay_context_default(1);
        layer_case c = layer_case_make(2, 1, 1, 5);
        memory_store out = {0};
        layer_case_fill(&c);
        if (i == 0) c.config.dense_layers = 3;
        if (i == 1) c.config.epsilon = NAN;
        if (i == 2) c.config.moe.routing.hash_rows = 4;
        if (i == 3) layer_case_get(&c.in, "inputs/positions")->indices[2] = -1;
        if (i == 4) c.config.moe.emb_dim = 7;
        if (i == 5) c.config.mlp.rows = 4;
        const assay_source in = memory_store_source(&c.in);
        const assay_sink sink = memory_store_sink(&out);
        assert_int_equal(assay_stack_run(&ctx, &c.config, &in, &sink), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, messages[i]) == NULL) fail_msg("message: %s", ctx.message);
        assert_int_equal(out.count, 0);
        memory_store_free(&out);
        layer_case_free(&c);
    }
}

TEST(test_no_memory)
{
    layer_case c = layer_case_make(2, 1, 1, 3);
    int64_t n = 0;
    c.config.policy.action[ASSAY_REMAT_ATTENTION_OUT] = ASSAY_OFFLOAD;
    c.config.policy.action[ASSAY_REMAT_MLPWI_0] = c.config.policy.action[ASSAY_REMAT_MOE_MLPWI_1] = ASSAY_DEVICE;
    layer_case_fill(&c);
    for (;; n++) {
        assay_context ctx = assay_context_default(1);
        memory_store out = {0};
        const assay_source in = memory_store_source(&c.in);
        const assay_sink sink = memory_store_sink(&out);
        assay_fail_allocation(n);
        const assay_status status = assay_stack_run(&ctx, &c.config, &in, &sink);
        memory_store_free(&out);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(n > 100);
    layer_case_free(&c);
}
