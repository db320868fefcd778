#include "harness/operations/op_work.h"

typedef struct rope_config {
    assay_rope_config rope; /* the first, since it is what the second form gets */
    int64_t batch, sequence, heads;
} rope_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    rope_config *config = to;
    config->batch = c->batch;
    config->sequence = c->sequence;
    config->heads = c->config.base_num_query_heads;
    const assay_status status = assay_rope_config_of(ctx, c, &config->rope);
    return status == ASSAY_OK ? assay_require_positive(ctx, "base_num_query_heads", config->heads) : status;
}

static int64_t axis_size(const void *of, char axis)
{
    const rope_config *config = of;
    return axis == 'B'   ? config->batch
           : axis == 'S' ? config->sequence
           : axis == 'N' ? config->heads
                         : config->rope.dim;
}

static void describe(assay_describer *d, const void *config)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    (void)config;
    assay_describe_variable(d, "inputs/x", one, "BSNR");
    assay_describe_positions(d);
    assay_describe_output(d, "y", &one, "BSNR");
}

static assay_rope_rows rows_of(double *y, const double *x, const rope_config *config)
{
    const int64_t dim = config->rope.dim;
    return (assay_rope_rows){.y = y,
                             .y_token_stride = config->heads * dim,
                             .y_head_stride = dim,
                             .x = x,
                             .x_token_stride = config->heads * dim,
                             .x_head_stride = dim,
                             .heads = config->heads};
}

static assay_status compute(assay_context *ctx, const assay_work *w)
{
    const rope_config *config = w->config;
    const int64_t tokens = config->batch * config->sequence;
    const int32_t *positions = assay_i32(w, "inputs/positions");
    OWNED_BY(assay_rope_table_free) assay_rope_table table = {0};
    MUST(assay_rope_check_positions(ctx, positions, tokens, &config->rope));
    MUST(assay_rope_table_make(ctx, &table, positions, tokens, &config->rope));
    const assay_rope_rows rows = rows_of(assay_f64(w, "outputs/y"), assay_f64(w, "inputs/x"), config);
    const assay_rope_rows back = rows_of(assay_f64(w, "gradients/inputs/x"), assay_f64(w, "cotangents/y"), config);
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    assay_rope_backward(ctx, &back, &table, &config->rope);
    return ASSAY_OK;
}

/* It has no products: six operations a pair. */
const assay_operation assay_op_yarn_rope = {.name = "yarn_rope",
                                            .parts = ASSAY_PART_ROPE,
                                            .summary = "rotary position embedding, plain or YaRN, in every layout",
                                            .config_of = config_of,
                                            .axis_size = axis_size,
                                            .describe = describe,
                                            .forward = compute,
                                            .ensemble = assay_every_case,
                                            .second_form = {.form = quad_yarn_rope},
                                            .count = {"BSNR", 3, 6}};
