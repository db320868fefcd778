/* The second form of layers and stacks, worked out by hand: one token or two, all widths 1. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/tests/narrow_stack.h"

/* With losses and bias updates. */
static assay_stack_config small_stack(int64_t layers, int64_t dense)
{
    assay_stack_config config = narrow_stack(1, layers, dense);
    config.moe.routing.load_balance_loss_weight = 1;
    config.moe.routing.routed_bias_update_rate = .5;
    return config;
}

/* The norm gives .5; of it 1 times 4 times wo. */
static void add_dense(quad_case *c, const char *prefix, double wo)
{
    narrow_attention(c, prefix);
    narrow_weight(c, prefix, "mlp/wi_0/kernel", (double[]){2}, DIMS(1, 1));
    narrow_weight(c, prefix, "mlp/wi_1/kernel", (double[]){8}, DIMS(1, 1));
    narrow_weight(c, prefix, "mlp/wo/kernel", &wo, DIMS(1, 1));
}

static void start(quad_case *c)
{
    case_start(c, 1);
    case_values(c, "inputs/x", (double[]){2}, DIMS(1, 1, 1));
    case_indices(c, "inputs/positions", (int32_t[]){0}, DIMS(1, 1));
}

TEST(test_dense_layer)
{
    quad_case c;
    const assay_stack_config config = small_stack(1, 1);
    start(&c);
    add_dense(&c, "", 3);
    assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
    assert_result(&c, "outputs/y", 1, (double[]){2 + 5 + 12}, 0);
    assert_result(&c, "checkpoints/decoder_layer_input", 1, (double[]){2}, 0);
    assert_result(&c, "checkpoints/kv_wa_proj", 3, (double[]){15, 3, 3}, 0);
    assert_result(&c, "checkpoints/value_proj", 1, (double[]){40}, 0);
    assert_result(&c, "checkpoints/out_proj", 1, (double[]){5}, 0);
    assert_result(&c, "checkpoints/mlpwi_0", 1, (double[]){1}, 0);
    assert_result(&c, "checkpoints/mlpwi_1", 1, (double[]){4}, 0);
    assert_result(&c, "checkpoints/mlpwo", 1, (double[]){12}, 0);
    case_end(&c);
}

/* The weight of the one expert is 2.5, whichever it is. */
TEST(test_moe_layer)
{
    for (int given = 0; given < 2; given++) {
        quad_case c;
        const assay_stack_config config = small_stack(1, 0);
        const int32_t expert = given ? 0 : 1;
        const double output = given ? 12 : 20;
        start(&c);
        narrow_moe(&c, "");
        if (given) case_indices(&c, "routing/selected_experts", &expert, DIMS(1, 1, 1));
        assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
        assert_result(&c, "outputs/y", 1, (double[]){2 + 5 + 2.5 * output}, 1e-15);
        assert_indices(&c, "routing/selected_experts", 1, &expert);
        assert_result(&c, "routing/weights", 1, (double[]){2.5}, 1e-15);
        assert_result(&c, "outputs/bias_updates", 2, given ? (double[]){-.5, .5} : (double[]){.5, -.5}, 0);
        assert_non_null(quad_tensors_find(&c.out, "outputs/lb_loss"));
        assert_result(&c, "checkpoints/moe_mlpwo", 1, &output, 0);
        case_end(&c);
    }
}

/* Twelve layers, of which layers/1/ and layers/10/ are others; the last has experts. */
TEST(test_stack)
{
    quad_case c;
    const assay_stack_config config = small_stack(12, 11);
    start(&c);
    for (int layer = 0; layer < 11; layer++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers/%d/", layer);
        add_dense(&c, prefix, layer == 1 ? 7 : layer == 10 ? 11 : 3);
    }
    narrow_moe(&c, "layers/11/");
    assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
    double last = 2 + 11 * (5 + 12) + 4 * (7 - 3) + 4 * (11 - 3);
    assert_result(&c, "outputs/y", 1, (double[]){last + 5 + 50}, 1e-15);
    assert_indices(&c, "routing/layers/11/selected_experts", 1, (int32_t[]){1});
    assert_result(&c, "outputs/layers/11/bias_updates", 2, (double[]){.5, -.5}, 0);
    assert_result(&c, "checkpoints/layers/1/mlpwo", 1, (double[]){28}, 0);
    assert_result(&c, "checkpoints/layers/10/mlpwo", 1, (double[]){44}, 0);
    assert_result(&c, "checkpoints/layers/11/decoder_layer_input", 1, &last, 0);
    assert_result(&c, "checkpoints/layers/11/moe_mlpwo", 1, (double[]){20}, 0);
    case_end(&c);
}

/* The norm gives 3 times the sign, the value 9 times it and so much is added, or that of the second layer twice over. No
 * query sees more than its own key where there is a window, and with none the second sees both alike: nothing is added. */
TEST(test_windows)
{
    static const struct {
        assay_window_layers windows;
        double y[2];
    } rows[] = {{ASSAY_WINDOWS_EVERYWHERE, {1 + 9 + 18, -1 - 9 - 18}},
                {ASSAY_WINDOWS_EVEN, {1 + 9 + 18, -1 - 9}},
                {ASSAY_WINDOWS_ODD, {1 + 9 + 18, -1 - 18}}};
    for (int row = 0; row < 3; row++) {
        assay_stack_config config = narrow_stack(1, 2, 2);
        quad_case c;
        config.attention = ASSAY_LAYER_GQA;
        config.windows = rows[row].windows;
        config.gqa = (assay_gqa_config){.batch = 1,
                                        .sequence = 2,
                                        .emb_dim = 1,
                                        .heads = 1,
                                        .kv_heads = 1,
                                        .head_dim = 2,
                                        .window = 1,
                                        .query_scale = 1,
                                        .rope = config.mla.rope};
        config.mlp.rows = 2;
        case_start(&c, 1);
        case_values(&c, "inputs/x", (double[]){1, -1}, DIMS(1, 2, 1));
        case_indices(&c, "inputs/positions", (int32_t[]){0, 1}, DIMS(1, 2));
        for (int layer = 0; layer < 2; layer++) {
            const char *prefix = layer == 0 ? "layers/0/" : "layers/1/";
            const double twice = layer + 1;
            narrow_weight(&c, prefix, "pre_self_attention_layer_norm/scale", (double[]){3}, DIMS(1));
            narrow_weight(&c, prefix, "self_attention/query/kernel", (double[]){0, 0}, DIMS(1, 1, 2));
            narrow_weight(&c, prefix, "self_attention/key/kernel", (double[]){1, 1}, DIMS(1, 1, 2));
            narrow_weight(&c, prefix, "self_attention/value/kernel", (double[]){1, 10}, DIMS(1, 1, 2));
            narrow_weight(&c, prefix, "self_attention/out/kernel", (double[]){.5 * twice, .25 * twice}, DIMS(1, 2, 1));
            narrow_weight(&c, prefix, "post_self_attention_layer_norm/scale", (double[]){.5}, DIMS(1));
            narrow_weight(&c, prefix, "mlp/wi_0/kernel", (double[]){2}, DIMS(1, 1));
            narrow_weight(&c, prefix, "mlp/wi_1/kernel", (double[]){8}, DIMS(1, 1));
            narrow_weight(&c, prefix, "mlp/wo/kernel", (double[]){0}, DIMS(1, 1));
        }
        assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
        assert_result(&c, "outputs/y", 2, rows[row].y, 0);
        case_end(&c);
    }
}

TEST(test_refusals)
{
    quad_case c;
    const assay_stack_config config = small_stack(2, 2);
    start(&c);
    add_dense(&c, "layers/0/", 3);
    assert_int_equal(case_evaluate(&c, quad_stack, &config), ASSAY_BAD_INPUT);
    assert_non_null(strstr(c.ctx.message, "'weights/layers/1/pre_self_attention_layer_norm/scale' is missing"));
    case_end(&c);
}

TEST(test_out_of_memory)
{
    quad_case c;
    const assay_stack_config config = small_stack(2, 1);
    start(&c);
    add_dense(&c, "layers/0/", 3);
    narrow_moe(&c, "layers/1/");
    case_values(&c, "cotangents/y", (double[]){1}, DIMS(1, 1, 1));
    for (int64_t n = 0;; n++) {
        assay_fail_allocation(n);
        const assay_status status = case_differentiate(&c, quad_stack, &config);
        if (had_memory(&c.ctx, status)) break;
        assert_true(n < 10000);
    }
    case_end(&c);
}
