#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    assay_status status = assay_rope_config_of(ctx, c, config);
    return status == ASSAY_OK ? assay_require_positive(ctx, "base_num_query_heads", c->config.base_num_query_heads)
                              : status;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_rope_config config;
    return config_of(ctx, c, &config);
}

static void second_form(quad_tape *t, const void *c)
{
    assay_rope_config config;
    if (quad_try(t, config_of(quad_context(t), c, &config))) quad_yarn_rope(t, &config);
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const int64_t heads = c->config.base_num_query_heads, dim = c->config.qk_rope_head_dim;
    const assay_dims x = {"BSNR", {c->batch, c->sequence, heads, dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
cleanup:
    return status;
}

static assay_rope_rows rows_in_place(double *values, int64_t heads, int64_t dim)
{
    return (assay_rope_rows){.y = values,
                             .y_token_stride = heads * dim,
                             .y_head_stride = dim,
                             .x = values,
                             .x_token_stride = heads * dim,
                             .x_head_stride = dim,
                             .heads = heads};
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    const int64_t tokens = c->batch * c->sequence, heads = c->config.base_num_query_heads;
    const int64_t dim = c->config.qk_rope_head_dim, size = tokens * heads * dim;
    double *x = NULL, *dy = NULL;
    int32_t *positions = NULL;
    assay_rope_table table = {0};
    assay_rope_config config;
    (void)precisions;
    (void)precision_count;
    TRY(config_of(ctx, c, &config));
    TRY(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &positions));
    TRY(assay_rope_check_positions(ctx, positions, tokens, &config));
    TRY(assay_rope_table_make(ctx, &table, positions, tokens, &config));
    TRY(assay_read_whole(ctx, in, "inputs/x", size, &x));
    assay_rope_rows rows = rows_in_place(x, heads, dim);
    assay_rope_forward(ctx, &rows, &table, &config);
    TRY(assay_write_result(ctx, out, "outputs/y", size, x));
    free(x);
    x = NULL;
    TRY(assay_read_whole(ctx, in, "cotangents/y", size, &dy));
    rows = rows_in_place(dy, heads, dim);
    assay_rope_backward(ctx, &rows, &table, &config);
    TRY(assay_write_result(ctx, out, "gradients/inputs/x", size, dy));
cleanup:
    assay_rope_table_free(&table);
    free(x);
    free(dy);
    free(positions);
    return status;
}

/* It has no products: six operations a pair. */
static double flops(const assay_case *c, bool backward)
{
    const double pairs = (double)c->batch * (double)c->sequence * (double)c->config.base_num_query_heads *
                         (double)c->config.qk_rope_head_dim / 2;
    return (backward ? 12.0 : 6.0) * pairs;
}

static int64_t memory(const assay_case *c)
{
    const double heads = (double)c->config.base_num_query_heads, dim = (double)c->config.qk_rope_head_dim;
    const double bytes = 8.0 * (double)c->batch * (double)c->sequence * dim * (heads + 2.0);
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

const assay_operation assay_op_yarn_rope = {.name = "yarn_rope",
                                            .parts = ASSAY_PART_ROPE,
                                            .summary = "rotary position embedding, plain or YaRN, in every layout",
                                            .check = check,
                                            .describe = describe,
                                            .run = run,
                                            .ensemble = assay_every_case,
                                            .second_form = {.form = second_form},
                                            .flops = flops,
                                            .memory = memory};
