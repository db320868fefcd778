/* Layers and stacks: what must be the same however it is computed, refusals. Numbers are certified: the cases
 * deepseek_layer, deepseek_stack, decoder_layer and decoder_stack, with segments, windows and losses. */

#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* Less asked for, the same numbers; nothing differentiated, nothing kept. */
TEST_WITH_CONTEXT(test_wanted)
{
    static const char *const outputs[] = {"outputs/*", "remat/*", NULL};
    static const char *const one[] = {"gradients/weights/layers/1/moe/gate/bias", "remat/*", NULL};
    static const char *const other[] = {"gradients/weights/layers/0/self_attention/q_norm/scale", NULL};
    static const char *const gate[] = {"gradients/weights/layers/1/moe/shared_expert_gate/kernel", NULL};
    static const char *const *const lists[] = {outputs, one, other, gate};
    static const int counts[] = {1, 4, 1, 1};
    OWNED_BY(layer_case_free) layer_case c = layer_case_make(2, 1, 1, 5);
    OWNED_BY(test_tensors_free) test_tensors whole = {0};
    c.config.moe.shared_gate = true;
    layer_case_fill(&c);
    layer_case_run(&ctx, &c, &whole);
    for (int i = 0; i < 4; i++) {
        OWNED_BY(test_tensors_free) test_tensors out = {.wanted = lists[i]};
        layer_case_run(&ctx, &c, &out);
        assert_int_equal(out.set.count, counts[i]);
        layer_case_assert_same(&out, &whole);
    }
    test_tensors_remove(&c.in, "cotangents/y");
    OWNED_BY(test_tensors_free) test_tensors zeros = {0};
    layer_case_run(&ctx, &c, &zeros);
    const assay_tensor *dx = layer_case_get(&zeros, "gradients/inputs/x");
    for (int64_t i = 0; i < dx->count; i++) assert_true(dx->values[i] == 0);
}

TEST(test_refusals)
{
    static const char *const messages[] = {"2 layers, 3 of them dense",
                                           "normalization_layer_epsilon",
                                           "hash routing",
                                           "positions",
                                           "MoE block",
                                           "the MLP has",
                                           "has multi-head latent attention"};
    for (int i = 0; i < 7; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(layer_case_free) layer_case c = i == 6 ? layer_case_gqa(2, 1, 5) : layer_case_make(2, 1, 1, 5);
        OWNED_BY(test_tensors_free) test_tensors out = {0};
        layer_case_fill(&c);
        if (i == 0) c.config.dense_layers = 3;
        if (i == 1) c.config.epsilon = NAN;
        if (i == 2) c.config.moe.routing.hash_rows = 4;
        if (i == 3) layer_case_get(&c.in, "inputs/positions")->indices[2] = -1;
        if (i == 4) c.config.moe.emb_dim = 7;
        if (i == 5) c.config.mlp.rows = 4;
        if (i == 6) c.config.batch_split_factor = 1;
        const assay_source in = test_tensors_source(&c.in);
        const assay_sink sink = test_tensors_sink(&out);
        assert_bad_input(&ctx, assay_stack_run(&ctx, &c.config, &in, &sink), messages[i]);
        assert_int_equal(out.set.count, 0);
    }
}
