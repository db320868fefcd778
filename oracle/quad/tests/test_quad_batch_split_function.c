/* Functions of the batch-split module, in the second form, against numbers found by hand. */
#include <math.h>

#include "oracle/layer/batch_split_function.h"
#include "oracle/quad/tests/quad_case.h"

/* Two shards of one expert each, one token a shard, one expert a token, and one number everywhere. */
static assay_function_config config_of(const char *function)
{
    assay_function_config config = {.function = assay_batch_split_function_of(function), .layers = 2};
    config.stack =
        (assay_stack_config){.layers = 1,
                             .single = true,
                             .mla = {.batch = 2, .sequence = 1, .emb_dim = 1, .heads = 1, .rope = {.dim = 2}},
                             .moe = {.emb_dim = 1, .moe_mlp_dim = 1, .shared_mlp_dim = 1},
                             .sharding = {.mesh = {{1, 1, 2}}, .tensor_shards = 1, .token_chunks = 1},
                             .batch_split_factor = 1,
                             .epsilon = 3};
    config.stack.moe.routing = (assay_routing_config){
        .batch = 2, .sequence = 1, .num_experts = 2, .num_experts_per_tok = 1, .n_routing_groups = -1};
    return config;
}

static void evaluate(quad_case *c, const char *function)
{
    const assay_function_config config = config_of(function);
    assay_function_view view;
    assay_function_view_of(&config, &view);
    assert_ok(&c->ctx, case_differentiate(c, quad_function, &view));
}

/* The token of shard 0 goes to expert 1, that of shard 1 to expert 0. */
TEST(route_sorts_by_rolled_ids)
{
    quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){3, 5}, DIMS(2, 1, 1));
    case_indices(&c, "inputs/selected_experts", (int32_t[]){1, 0}, DIMS(2, 1, 1));
    case_values(&c, "inputs/weights", (double[]){.5, .25}, DIMS(2, 1, 1));
    case_indices(&c, "inputs/group_sizes", (int32_t[]){0, 1, 1, 0}, DIMS(2, 2));
    evaluate(&c, "route");
    assert_result(&c, "outputs/x", 4, (double[]){5, 3, 3, 5}, 0);
    assert_result(&c, "outputs/weights", 4, (double[]){.25, .5, .5, .25}, 0);
    assert_indices(&c, "outputs/selected_experts", 4, (int32_t[]){1, 0, 0, 1});
    assert_indices(&c, "outputs/group_sizes", 2, (int32_t[]){1, 1});
    case_end(&c);
}

/* Each shard's rows go back to whose they are, and are added. */
TEST(unroute_adds_over_shards)
{
    quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){5, 3, 30, 50}, DIMS(2, 2, 1));
    case_indices(&c, "inputs/selected_experts", (int32_t[]){1, 0, 0, 1}, DIMS(2, 2, 1));
    evaluate(&c, "unroute");
    assert_result(&c, "outputs/x", 2, (double[]){33, 55}, 0);
    case_end(&c);
}

/* y = x k on the rows of a shard's expert; of the other row nothing comes. */
TEST(a_gradient_is_a_difference)
{
    quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/inputs", (double[]){2, 9, 4, 9}, DIMS(2, 2, 1));
    case_indices(&c, "inputs/group_sizes", (int32_t[]){1, 2}, DIMS(2, 1));
    case_values(&c, "inputs/output_grad", (double[]){7, 100, 1, 10}, DIMS(2, 2, 1));
    case_values(&c, "weights/kernel", (double[]){3, 5}, DIMS(2, 1, 1));
    evaluate(&c, "gmm_bwd");
    assert_result(&c, "outputs/inputs_grad", 4, (double[]){21, 0, 5, 50}, 1e-16);
    assert_result(&c, "outputs/kernel_grad", 2, (double[]){14, 94}, 1e-16);
    case_end(&c);
}

/* x = 1 and epsilon 3: y = x / 2; of the scale's gradient both shards' terms are added. */
TEST(gradients_of_scales_are_summed)
{
    quad_case c;
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){1, -1}, DIMS(2, 1, 1, 1));
    case_values(&c, "inputs/y_grad", (double[]){8, 2}, DIMS(2, 1, 1, 1));
    case_values(&c, "weights/scale", (double[]){1}, DIMS(1));
    evaluate(&c, "rms_norm_bwd");
    assert_result(&c, "outputs/scale_grad", 1, (double[]){3}, 1e-16);
    /* d(x (x^2 + 3)^-1/2) = 3 (x^2 + 3)^-3/2 = 3/8 */
    assert_result(&c, "outputs/x_grad", 2, (double[]){3, .75}, 1e-16);
    case_end(&c);
}

static void evaluate_by_recipe(quad_case *c, assay_function_config *config)
{
    assay_function_view view;
    config->recipe = (assay_recipe_config){.recipe = assay_quant_recipe_by_name("fp8_full"),
                                           .type = ASSAY_BFLOAT16,
                                           .x = {.factor = 1},
                                           .w = {.factor = 1},
                                           .dy = {.factor = 1}};
    assay_function_view_of(config, &view);
    assert_ok(&c->ctx, case_differentiate(c, quad_function, &view));
}

/* Scales are 1 on shard 0 and 2^-10 on shard 1: 4.5 goes to 4, and 9/2048 to 8/2048. Forward only adds. */
TEST(a_quantised_gradient_is_gathered)
{
    quad_case c;
    assay_function_config config = config_of("quantized_psum_scatter");
    static const double gathered[] = {57344, 4, 3, 56, 0x8p-11, -2};
    config.stack.mla.emb_dim = config.stack.moe.emb_dim = 3;
    case_start(&c, 1);
    case_values(&c, "inputs/x", (double[]){1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60}, DIMS(2, 2, 3));
    case_values(&c, "cotangents/out", (double[]){57344, 4.5, 3, 56, 0x9p-11, -2}, DIMS(2, 1, 3));
    evaluate_by_recipe(&c, &config);
    assert_result(&c, "outputs/out", 6, (double[]){11, 22, 33, 44, 55, 66}, 0);
    const quad_tensor *dx = quad_tensors_find(&c.out, "gradients/inputs/x");
    assert_non_null(dx);
    for (int i = 0; i < 12; i++) assert_true((double)dx->values[i] == gathered[i % 6]);
    case_end(&c);
}

/* The second row of each shard is of no group: on shard 0 its gradient is the column's largest, so 4.5 goes to 4. */
TEST(rows_of_no_group_count_for_scales)
{
    quad_case c;
    assay_function_config config = config_of("gmm_bwd");
    case_start(&c, 1);
    case_values(&c, "inputs/inputs", (double[]){448, 448, 448, 448}, DIMS(2, 2, 1));
    case_indices(&c, "inputs/group_sizes", (int32_t[]){1, 1}, DIMS(2, 1));
    case_values(&c, "weights/kernel", (double[]){448, 448}, DIMS(2, 1, 1));
    case_values(&c, "inputs/output_grad", (double[]){4.5, 57344, 4.5, 1}, DIMS(2, 2, 1));
    evaluate_by_recipe(&c, &config);
    assert_result(&c, "outputs/inputs_grad", 4, (double[]){2016, 0, 2016, 0}, 0.01);
    assert_result(&c, "outputs/kernel_grad", 2, (double[]){1792, 2016}, 0.01);
    case_end(&c);
}

/* h is w0 sigmoid(w0) w1 weight = 2 sigmoid(2) * 56 / sigmoid(2) * 4 = 448: its scale is 1, as those of wo and of dy. */
TEST(what_goes_into_wo_is_quantised_weighed)
{
    quad_case c;
    assay_function_config config = config_of("compute_linear_bwd");
    const double s = 1 / (1 + exp(-2)), up = 56 / s;
    case_start(&c, 1);
    case_values(&c, "inputs/layer_w0", (double[]){2, 2, 2, 2}, DIMS(2, 2, 1));
    case_values(&c, "inputs/layer_w1", (double[]){up, up, up, up}, DIMS(2, 2, 1));
    case_values(&c, "inputs/weights", (double[]){4, 4, 4, 4}, DIMS(2, 2));
    case_indices(&c, "inputs/group_sizes", (int32_t[]){1, 1}, DIMS(2, 1));
    case_values(&c, "weights/wo", (double[]){448, 448}, DIMS(2, 1, 1));
    case_values(&c, "inputs/layer_wo_grad", (double[]){4.5, 57344, 4.5, 1}, DIMS(2, 2, 1));
    evaluate_by_recipe(&c, &config);
    assert_result(&c, "checkpoints/intermediate_layer", 4, (double[]){448, 448, 448, 448}, 1e-12);
    /* the gradient of h weighed is 4.5 * 448, as 4.5 is its row's largest; for wo it goes to 4 where a row of no group is
     * larger */
    assert_result(&c, "outputs/weights_grad", 4, (double[]){2016 * 112., 0, 2016 * 112., 0}, 0.01);
    assert_result(&c, "outputs/layer_w1_grad", 4, (double[]){2016 * 8 * s, 0, 2016 * 8 * s, 0}, 0.01);
    assert_result(&c, "outputs/layer_w0_grad", 4,
                  (double[]){2016 * 4 * up * s * (1 + 2 * (1 - s)), 0, 2016 * 4 * up * s * (1 + 2 * (1 - s)), 0}, 0.01);
    assert_result(&c, "outputs/wo_grad", 2, (double[]){1792, 2016}, 0.01);
    case_end(&c);
}
