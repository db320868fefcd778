#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/tests/ops_test.h"

enum { ROWS = 7, WIDTH = 5, GROUPS = 2, WEIGHTS = GROUPS * WIDTH * WIDTH };

static assay_quant_recipe_config config_of(const char *recipe)
{
    assay_quant_recipe_config config = {.recipe = assay_quant_recipe_by_name(recipe), .type = ASSAY_BFLOAT16};
    assert_non_null(config.recipe);
    config.x = config.w = config.dy = (assay_calibration){.factor = 1};
    return config;
}

static assay_status quantise(assay_context *ctx, assay_quant_recipe_operands *o, const double *x, const double *w,
                             const double *dy, const int32_t *groups, const assay_gmm_dims *of,
                             const assay_quant_recipe_config *config)
{
    const assay_quant_recipe_inputs given = {.x = x, .w = w, .dy = dy, .group_sizes = groups};
    return assay_quant_recipe_quantise(ctx, o, &given, of, config);
}

/* Two rows of a group have a scale of 1, the third row, of another group, its own; without a recipe nothing is copied. */
TEST_WITH_CONTEXT(blocks_begin_with_each_group)
{
    static const assay_gmm_dims small = {.m = 3, .k = 1, .n = 1, .groups = 2};
    static const int32_t of_groups[] = {2, 1};
    static const double x[] = {448, 17, 17}, dy[] = {1, 1, 1}, w[] = {1, 1};
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o;
    assay_quant_recipe_config config = config_of("deepseek_v3");
    assert_ok(&ctx, quantise(&ctx, &o, x, w, dy, of_groups, &small, &config));
    assert_true(o.dw_x[0] == 448 && o.dw_x[1] == 16 && fabs(o.dw_x[2] - 17) < 1e-5 && o.x == x);
    assay_quant_recipe_operands_free(&o);
    config.recipe = NULL;
    assert_ok(&ctx, quantise(&ctx, &o, x, w, dy, of_groups, &small, &config));
    assert_true(o.dx_dy == dy && o.dw_dy == dy && o.dw_x == x && o.dx_w == w && o.w == w);
}

/* bfloat16: 3 / 448 is stored as 219 / 2^15; a fixed range cuts off, and a scale too small is 1. */
TEST_WITH_CONTEXT(each_step_is_rounded_to_the_tensors_type)
{
    static const assay_gmm_dims small = {.m = 1, .k = 2, .n = 1, .groups = 1};
    static const int32_t one[] = {1};
    static const double x[] = {3, 1}, dy[] = {0x1p-80}, w[] = {448, 448};
    OWNED_BY(assay_quant_recipe_operands_free) assay_quant_recipe_operands o;
    assay_quant_recipe_config config = config_of("fp8_full");
    assert_ok(&ctx, quantise(&ctx, &o, x, w, dy, one, &small, &config));
    assert_true(o.dw_x[0] == 448 && o.x[0] == 448 * 219 * 0x1p-15);
    assert_true(o.dw_x[1] == 144 && o.dx_dy[0] == 0);
    assay_quant_recipe_operands_free(&o);
    config.x.fixed = 2;
    assert_ok(&ctx, quantise(&ctx, &o, x, w, dy, one, &small, &config));
    assert_true(o.dw_x[0] == 448 && o.x[0] < 2.01);
}

TEST(calibrations_are_read)
{
    static const struct {
        const char *text;
        double factor, fixed; /* 0, 0: refused */
    } table[] = {{"absmax", 1, 0},     {"absmax,0.5", 0.5, 0}, {"fixed,2.5", 1, 2.5}, {"fixed,-2.5,2.5", 1, 2.5},
                 {"", 0, 0},           {"minmax", 0, 0},       {"rms,3", 0, 0},       {"absmax,", 0, 0},
                 {"absmax,1,2", 0, 0}, {"absmax,0", 0, 0},     {"fixed", 0, 0},       {"fixed,-1", 0, 0},
                 {"fixed,-1,2", 0, 0}, {"fixed,1,2,3", 0, 0},  {"fixed,nan", 0, 0},   {"fixed,1x", 0, 0},
                 {"absmax,inf", 0, 0}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_calibration found;
        const bool right = assay_calibration_of(table[i].text, &found);
        if (right != (table[i].factor > 0)) fail_msg("%s: %d", table[i].text, (int)right);
        if (right) assert_true(found.factor == table[i].factor && found.fixed == table[i].fixed);
    }
}
