/* Weights between the source, the mesh and the sink: what nobody wants, what is missing, and where memory ends. Who has which part is
 * certified: the cases batch_split/extract-layer-weights, gather-weights, reduce-scatter-ws-grad, insert-layer-ws-grad. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/layer/batch_split_scan.h"
#include "oracle/layer/batch_split_weights.h"
#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

enum { LAYER = 2 };

static bool is_there(int w)
{
    static const int all[] = {BS_PRE_NORM,
                              BS_MLA + ASSAY_MLA_WQ_A,
                              BS_MLA + ASSAY_MLA_WQ_B,
                              BS_MLA + ASSAY_MLA_Q_NORM,
                              BS_MLA + ASSAY_MLA_WKV_A,
                              BS_MLA + ASSAY_MLA_WKV_B,
                              BS_MLA + ASSAY_MLA_KV_NORM,
                              BS_MLA + ASSAY_MLA_OUT,
                              BS_POST_NORM,
                              BS_GATE,
                              BS_GATE_BIAS,
                              BS_ROUTED + ASSAY_MLP_WI_0,
                              BS_ROUTED + ASSAY_MLP_WI_1,
                              BS_ROUTED + ASSAY_MLP_WO,
                              BS_SHARED + ASSAY_MLP_WI_0,
                              BS_SHARED + ASSAY_MLP_WI_1,
                              BS_SHARED + ASSAY_MLP_WO};
    bool found = false;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) found |= all[i] == w;
    return found;
}

typedef struct weights_case {
    layer_case layers;
    test_tensors out;
    assay_source source;
    assay_sink sink;
    stack_run stack;
    bs_run run;
} weights_case;

static void open_case(weights_case *c, assay_mesh mesh)
{
    *c = (weights_case){.layers = layer_case_make(5, 1, assay_mesh_shards(&mesh), 1)};
    assay_stack_config *config = &c->layers.config;
    config->mla.heads = 3;
    config->mla.v_head_dim = 5;
    config->mla.kv_lora_rank = 4;
    config->mla.rope.pairwise = true;
    config->moe.routing.num_experts = 6;
    config->moe.moe_mlp_dim = 7;
    config->moe.shared_mlp_dim = 11;
    config->sharding = (assay_sharding){.mesh = mesh, .tensor_shards = 1, .token_chunks = 1};
    config->batch_split_factor = 1;
    layer_case_fill(&c->layers);
    c->source = test_tensors_source(&c->layers.in);
    c->sink = test_tensors_sink(&c->out);
    c->stack = (stack_run){.config = config, .in = &c->source, .out = &c->sink};
    bs_run_of(&c->run, &c->stack);
}

static void close_case(weights_case *c)
{
    assay_tensor_set_free(&c->out.set);
    layer_case_free(&c->layers);
}

static void alloc_nan(assay_context *ctx, const weights_case *c, bs_weights *w, bool gathered)
{
    assert_ok(ctx, bs_weights_alloc(ctx, &c->run, w, gathered, NULL));
    for (int i = 0; i < BS_WEIGHTS; i++)
        assay_fill_nan(w->values[i], c->run.sizes.shards * bs_weight_count(&c->run, i, gathered));
}

/* Gradients that nobody wants are not there on the way, nor written. */
TEST(unwanted_gradients_are_left_out)
{
    static const char *const wanted[] = {"gradients/weights/layers/2/moe/wo", "gradients/weights/*/q_norm/scale", NULL};
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights gathered, like;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    c.out.wanted = wanted;
    alloc_nan(&ctx, &c, &gathered, true);
    bs_drop_unwanted(&c.run, &gathered, LAYER);
    assert_ok(&ctx, bs_weights_alloc(&ctx, &c.run, &like, false, &gathered));
    for (int w = 0; w < BS_WEIGHTS; w++) {
        if (!is_there(w)) continue;
        const bool kept = w == BS_ROUTED + ASSAY_MLP_WO || w == BS_MLA + ASSAY_MLA_Q_NORM;
        assert_int_equal(gathered.values[w] != NULL, kept);
        assert_int_equal(like.values[w] != NULL, kept);
    }
    assert_ok(&ctx, bs_reduce_scatter_ws_grad(&ctx, &c.run, &like, &gathered));
    assert_ok(&ctx, bs_all_reduce_ws_grad_dcn(&ctx, &c.run, &like));
    assert_ok(&ctx, bs_insert_layer_ws_grad(&ctx, &c.run, &like, LAYER));
    assert_int_equal(c.out.set.count, 2);
    bs_weights_free(&gathered);
    bs_weights_free(&like);
    close_case(&c);
}

static assay_status there_and_back(assay_context *ctx, const weights_case *c)
{
    assay_status status;
    bs_weights scattered = {0}, gathered = {0};
    TRY(bs_weights_alloc(ctx, &c->run, &scattered, false, NULL));
    TRY(bs_extract_layer_weights(ctx, &c->run, &scattered, LAYER));
    TRY(bs_weights_alloc(ctx, &c->run, &gathered, true, NULL));
    bs_gather_weights(ctx, &c->run, &gathered, &scattered);
    TRY(bs_reduce_scatter_ws_grad(ctx, &c->run, &scattered, &gathered));
    TRY(bs_all_reduce_ws_grad_dcn(ctx, &c->run, &scattered));
    TRY(bs_insert_layer_ws_grad(ctx, &c->run, &scattered, LAYER));
cleanup:
    bs_weights_free(&scattered);
    bs_weights_free(&gathered);
    return status;
}

TEST(no_memory)
{
    assay_context ctx = assay_context_default(1);
    weights_case c;
    int64_t n = 0;
    open_case(&c, (assay_mesh){{2, 2, 1}});
    for (;; n++) {
        assay_fail_allocation(n);
        const assay_status status = there_and_back(&ctx, &c);
        assay_tensor_set_free(&c.out.set);
        if (had_memory(&ctx, status)) break;
    }
    int64_t there = 0;
    for (int w = 0; w < BS_WEIGHTS; w++) there += is_there(w);
    assert_true(n > 5 * there);
    close_case(&c);
}

/* A gate without bias has one of 0, whose gradient nobody gets. */
TEST(the_gates_bias_may_be_off)
{
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights scattered;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    test_tensors_remove(&c.layers.in, "weights/layers/2/moe/gate/bias");
    alloc_nan(&ctx, &c, &scattered, false);
    assert_ok(&ctx, bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER));
    for (int i = 0; i < 2 * 6; i++) assert_true(scattered.values[BS_GATE_BIAS][i] == 0);
    bs_drop_unwanted(&c.run, &scattered, LAYER);
    for (int w = 0; w < BS_WEIGHTS; w++)
        assert_int_equal(scattered.values[w] == NULL, w == BS_GATE_BIAS || !is_there(w));
    bs_weights_free(&scattered);
    close_case(&c);
}

TEST(missing_and_foreign_weights_are_refused)
{
    static const char *const foreign[] = {"wi_0_bias", "wi_1_bias", "wo_bias", "per_expert_scale"};
    assay_context ctx = assay_context_default(1);
    weights_case c;
    bs_weights scattered;
    open_case(&c, (assay_mesh){{1, 2, 1}});
    alloc_nan(&ctx, &c, &scattered, false);
    for (int i = 0; i < 4; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "weights/layers/2/moe/%s", foreign[i]);
        assert_non_null(test_tensors_add(&c.layers.in, path, 6 * 8));
        assert_int_equal(bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER), ASSAY_BAD_INPUT);
        assert_non_null(strstr(ctx.message, path));
        test_tensors_remove(&c.layers.in, path);
    }
    assert_ok(&ctx, bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER));
    test_tensors_remove(&c.layers.in, "weights/layers/2/moe/wo");
    assert_int_not_equal(bs_extract_layer_weights(&ctx, &c.run, &scattered, LAYER), ASSAY_OK);
    bs_weights_free(&scattered);
    close_case(&c);
}
