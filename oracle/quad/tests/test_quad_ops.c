/* The second form of rms_norm, layer_norm, mlp, gmm, permute and unpermute against numbers found by hand. */

#include "oracle/quad/tests/quad_case.h"

TEST(test_rms_norm)
{
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    /* Mean squares 25 and 1; with epsilon 24 the roots are 7 and 5. */
    case_values(&c, "inputs/x", (double[]){1, 7, 1, -1}, DIMS(1, 2, 2));
    case_values(&c, "weights/scale", (double[]){1, 3}, DIMS(2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_rms_norm, &(double){24}));
    assert_result(&c, "outputs/y", 4, (double[]){1. / 7, 3, .2, -.6}, 1e-16);
}

TEST(test_l2_norm)
{
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    /* Sums of squares 25 and 5; with epsilon 11 the roots are 6 and 4. */
    case_values(&c, "inputs/x", (double[]){3, 4, 1, -2}, DIMS(1, 2, 2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_l2_norm, &(double){11}));
    assert_result(&c, "outputs/y", 4, (double[]){.5, 2. / 3, .25, -.5}, 1e-16);
}

TEST(test_layer_norm)
{
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    /* Means 4 and 0, variances 9 and 1; with epsilon 7 the roots are 4 and sqrt 8. */
    case_values(&c, "inputs/x", (double[]){1, 7, 1, -1}, DIMS(1, 2, 2));
    case_values(&c, "weights/scale", (double[]){1, 2}, DIMS(2));
    case_values(&c, "weights/bias", (double[]){.5, -1}, DIMS(2));
    assert_ok(&c.ctx, case_evaluate(&c, quad_layer_norm, &(double){7}));
    const double root = sqrt(8);
    assert_result(&c, "outputs/y", 4, (double[]){-.25, .5, .5 + 1 / root, -1 - 2 / root}, 1e-16);
}

TEST(test_activations)
{
    static const struct {
        assay_activation f;
        double x, value;
    } table[] = {
        {ASSAY_SILU, 1, 0.7310585786300049},
        {ASSAY_SILU, -700, -6.9017735806318396e-302},
        {ASSAY_SILU, 0, 0},
        {ASSAY_GELU, 1, 0.8411919906082768},
        {ASSAY_GELU, -2, -0.04540230591222494},
        {ASSAY_GELU_EXACT, 1, 0.8413447460685429},
        {ASSAY_GELU_EXACT, -2, -0.04550026389635842},
        {ASSAY_RELU, -3, 0},
        {ASSAY_RELU, 3, 3},
        {ASSAY_SIGMOID, 0, .5},
        {ASSAY_SIGMOID, 2, 0.8807970779778823},
        {ASSAY_LINEAR, -3.5, -3.5},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        /* y = act(x * 1) * (x * 0 + 1) * 1 */
        OWNED_BY(case_end) quad_case c;
        case_start(&c, 1);
        const assay_gated_mlp_config config = {
            .rows = 1, .emb_dim = 1, .mlp_dim = 1, .activation = {table[i].f, ASSAY_LINEAR}};
        case_values(&c, "inputs/x", &table[i].x, DIMS(1, 1, 1));
        case_values(&c, "weights/wi_0/kernel", (double[]){1}, DIMS(1, 1));
        case_values(&c, "weights/wi_1/kernel", (double[]){0}, DIMS(1, 1));
        case_values(&c, "weights/wi_1/bias", (double[]){1}, DIMS(1));
        case_values(&c, "weights/wo/kernel", (double[]){1}, DIMS(1, 1));
        assert_ok(&c.ctx, case_evaluate(&c, quad_gated_mlp, &config));
        double value = result_at(&c, "outputs/y", 0);
        assert_close(&value, &table[i].value, 1, 1e-15, 0);
    }
}

/* D = 2, H = 2: a = x + bias, b = (x0 - x1, -x1 / 2) + bias. */
static void add_mlp(quad_case *c, const double x[2])
{
    case_values(c, "inputs/x", x, DIMS(1, 1, 2));
    case_values(c, "weights/wi_0/kernel", (double[]){1, 0, 0, 1}, DIMS(2, 2));
    case_values(c, "weights/wi_1/kernel", (double[]){1, 0, -1, -.5}, DIMS(2, 2));
    case_values(c, "weights/wo/kernel", (double[]){1, 2, 3, 4}, DIMS(2, 2));
}

TEST(test_clamps)
{
    static const struct {
        assay_glu glu;
        double x[2], h[2];
    } table[] = {
        /* limit 0.75; a = (2, -1), b = (3, 0.5): a' = (0.75, -1), b' = (0.75, 0.5) */
        {ASSAY_GLU_CLAMPED, {2, -1}, {.5625, -.5}},
        {ASSAY_GLU_PLAIN, {2, -1}, {6, -.5}},
        {ASSAY_GLU_GPT_OSS, {2, -1}, {.75 * 1.75 * 0.7818534100461838, -1.5 * 0.1542042340671787}},
        /* a = (-2, 3), b = (-5, -1.5): a' = (-2, 0.75), b' = (-0.75, -0.75) */
        {ASSAY_GLU_CLAMPED, {-2, 3}, {1.5, -.5625}},
        {ASSAY_GLU_PLAIN, {-2, 3}, {10, -4.5}},
        {ASSAY_GLU_GPT_OSS, {-2, 3}, {-.5 * 0.03217068842789593, .1875 * 0.7818534100461838}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(case_end) quad_case c;
        case_start(&c, 1);
        const assay_gated_mlp_config config = {.rows = 1,
                                               .emb_dim = 2,
                                               .mlp_dim = 2,
                                               .activation = {ASSAY_LINEAR, ASSAY_LINEAR},
                                               .glu = table[i].glu,
                                               .limit = .75};
        add_mlp(&c, table[i].x);
        assert_ok(&c.ctx, case_evaluate(&c, quad_gated_mlp, &config));
        const double *h = table[i].h;
        assert_result(&c, "outputs/y", 2, (double[]){h[0] + 3 * h[1], 2 * h[0] + 4 * h[1]}, 1e-15);
    }
}

TEST(test_gmm)
{
    OWNED_BY(case_end) quad_case c;
    const quad_gmm_config config = {.gmm = {.dims = {.m = 4, .k = 2, .n = 1, .groups = 3}}};
    assert_by_hand(quad_gmm, &config,
                   "inputs/lhs 1 2 3 4 5 6 nan nan; weights/rhs 1 10 nan nan 2 20; inputs/group_sizes # 1 0 2",
                   "outputs/y 21 86 130 0");
    case_start(&c, 1);
    case_given(&c, "inputs/lhs ~ 8; weights/rhs ~ 6; inputs/group_sizes # 3 1 1");
    assert_int_equal(case_evaluate(&c, quad_gmm, &config), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "inputs/group_sizes[2] is 1, expected 0 to 0");
}

/* Blocks of rows begin with each group: 17 becomes 16 beside 448, and stays with a scale of its own. Of fp8_full scales are
 * 1 but for the last row's, 2^-5, whose share of the weight gradient is small beside the column's largest. */
TEST(test_quantised_gmm)
{
    static const struct {
        const char *recipe;
        assay_dtype type;
        double x[3], dy[3], y[3], dlhs[3], drhs[2];
    } table[] = {
        {"deepseek_v3",
         ASSAY_FLOAT32,
         {448, 17, 448},
         {448, 448, 448},
         {1344, 51, 672},
         {1344, 1344, 672},
         {207872, 200704}},
        {"fp8_full", ASSAY_BFLOAT16, {448, 448, 14}, {128, 64, 64}, {1344, 1344, 21}, {384, 192, 96}, {86016, 896}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(case_end) quad_case c;
        const assay_gmm_config sizes = {.dims = {.m = 3, .k = 1, .n = 1, .groups = 2}};
        assay_quant_recipe_config recipe = {.recipe = assay_quant_recipe_by_name(table[i].recipe),
                                            .type = table[i].type};
        recipe.x = recipe.w = recipe.dy = (assay_calibration){.factor = 1};
        case_start(&c, 1);
        case_values(&c, "inputs/lhs", table[i].x, DIMS(3, 1));
        case_values(&c, "weights/rhs", (double[]){3, 1.5}, DIMS(2, 1, 1));
        case_values(&c, "cotangents/y", table[i].dy, DIMS(3, 1));
        case_indices(&c, "inputs/group_sizes", (int32_t[]){2, 1}, DIMS(2));
        assert_ok(&c.ctx, case_differentiate(&c, quad_gmm, &(quad_gmm_config){sizes, recipe}));
        const double near = i == 0 ? 1e-7 : 0.02; /* bfloat16 scales */
        assert_result(&c, "outputs/y", 3, table[i].y, near);
        assert_result(&c, "gradients/inputs/lhs", 3, table[i].dlhs, near);
        assert_result(&c, "gradients/weights/rhs", 2, table[i].drhs, near);
    }
}

/* Rows 1 to 6 times 10 and 100 of two groups, in each layout. */
TEST(test_gmm_layouts)
{
    static const struct {
        assay_gmm_config config;
        const char *index;
        int32_t values[6];
        double y[6];
    } table[] = {
        {{ASSAY_GMM_CONTIGUOUS, 3, {6, 1, 1, 2}}, "inputs/m_indices", {1, 1, -1, 0, -1, -1}, {100, 200, 0, 40, 0, 0}},
        {{ASSAY_GMM_MASKED, 0, {3, 1, 1, 2}}, "inputs/masked_m", {1, 2}, {10, 0, 0, 400, 500, 0}},
        {{ASSAY_GMM_PSUM, 3, {6, 1, 1, 2}}, "inputs/psum_m", {2, 4}, {10, 20, 0, 400, 0, 0}},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(case_end) quad_case c;
        case_start(&c, 1);
        double lhs[6];
        for (int row = 0; row < 6; row++) lhs[row] = table[i].y[row] == 0 ? (double)NAN : row + 1.0;
        const int64_t count = assay_gmm_index_count(&table[i].config);
        case_values(&c, "inputs/lhs", lhs, DIMS(6, 1));
        case_values(&c, "weights/rhs", (double[]){10, 100}, DIMS(2, 1, 1));
        case_indices(&c, table[i].index, table[i].values, DIMS(count));
        assert_ok(&c.ctx, case_evaluate(&c, quad_gmm, &(quad_gmm_config){.gmm = table[i].config}));
        assert_result(&c, "outputs/y", 6, table[i].y, 0);
    }
}

TEST(test_gmm_k_grouped)
{
#define GROUPED "inputs/lhs 1 2 3 nan; inputs/rhs 1 10 2 20 3 30 nan nan; inputs/group_sizes # 0 3"
    const quad_gmm_config config = {
        .gmm = {.layout = ASSAY_GMM_K_GROUPED, .dims = {.m = 4, .k = 1, .n = 2, .groups = 2}}};
    assert_by_hand(quad_gmm, &config, GROUPED, "outputs/y 0 0 14 140");
    assert_by_hand(quad_gmm, &config, GROUPED "; inputs/c 1 2 3 4", "outputs/y 1 2 17 144");
}

/* And back again with weights 1, 2, 4: y = (1 + 2) 10, (4 + 8) 20, (16 + 32) 30. */
TEST(test_permute)
{
    const assay_permute_dims sizes = {.tokens = 3, .experts_per_token = 2, .experts = 4, .emb_dim = 1};
    assert_by_hand(quad_permute, &sizes, "inputs/x 10 20 30; inputs/selected_experts # 2 0 2 3 0 2",
                   "outputs/sorted_selected_experts 1 4 0 2 5 3; outputs/group_sizes 2 0 3 1; "
                   "outputs/sorted_inputs 10 30 10 20 30 20");
    assert_by_hand(quad_unpermute, &sizes,
                   "inputs/sorted 10 30 10 20 30 20; inputs/sorted_selected_experts # 1 4 0 2 5 3; "
                   "inputs/weights 1 2 4 8 16 32",
                   "outputs/y 30 240 1440");
}

TEST(test_refusals)
{
    OWNED_BY(case_end) quad_case c;
    case_start(&c, 1);
    const assay_permute_dims sizes = {.tokens = 1, .experts_per_token = 2, .experts = 4, .emb_dim = 1};
    case_values(&c, "inputs/x", (double[]){10}, DIMS(1, 1));
    assert_int_equal(case_evaluate(&c, quad_permute, &sizes), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "the tensor 'inputs/selected_experts' is missing");
    case_indices(&c, "inputs/selected_experts", (int32_t[]){2, 4}, DIMS(1, 2));
    assert_int_equal(case_evaluate(&c, quad_permute, &sizes), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "element 1 of 'inputs/selected_experts' is 4, expected -1 to 3");
    const assay_permute_dims wider = {.tokens = 1, .experts_per_token = 2, .experts = 4, .emb_dim = 2};
    assert_int_equal(case_evaluate(&c, quad_permute, &wider), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "'inputs/x' has the shape [1,1], expected 2 elements");
    assay_shape one = DIMS(1);
    assert_int_equal(quad_tensors_copy_f64(&c.ctx, &c.in, "inputs/x", &one, (double[]){1}), ASSAY_BAD_INPUT);
    assert_string_equal(c.ctx.message, "the tensor 'inputs/x' is there twice");
}
