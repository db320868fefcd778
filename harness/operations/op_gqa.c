#include "harness/operations/op_block.h"
#include "oracle/mesh/head_shards.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, assay_gqa_config *config)
{
    assay_status status;
    TRY(assay_gqa_config_of(ctx, c, config));
    TRY(assay_linear_recipe_of(ctx, c, &config->recipe));
    TRY(assay_refuse_recipe_on_mesh(ctx, c, &config->recipe));
cleanup:
    return status;
}

static assay_status check(assay_context *ctx, const assay_case *c)
{
    const assay_mesh mesh = assay_mesh_of(c);
    assay_gqa_config config;
    assay_status status;
    TRY(config_of(ctx, c, &config));
    TRY(assay_head_shards_check(ctx, "gqa", &mesh, config.heads, config.kv_heads, config.batch));
    TRY(assay_check_head_mesh(ctx, c));
cleanup:
    return status;
}

static void second_form(quad_tape *t, const void *c)
{
    quad_gqa_config config = {.mesh = assay_mesh_of(c)};
    if (quad_try(t, config_of(quad_context(t), c, &config.gqa))) quad_gqa(t, &config);
}

static assay_status graph_of(assay_context *ctx, const assay_case *c, bool one_shard, graph *g)
{
    const assay_mesh mesh = assay_mesh_of(c);
    const int64_t shards = one_shard ? assay_head_shards(&mesh) : 1;
    assay_gqa_config config;
    const assay_status status = config_of(ctx, c, &config);
    if (status != ASSAY_OK) return status;
    config.heads /= shards;
    config.kv_heads /= shards;
    if (one_shard) config.batch /= assay_head_batch_shards(&mesh);
    assay_gqa_graph(g, &config);
    return ASSAY_OK;
}

const assay_operation assay_op_gqa = {.name = "gqa",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_SHARING | ASSAY_PART_GROUPED |
                                               ASSAY_PART_ROPE,
                                      .summary = "grouped-query attention with its projections, windows and sinks",
                                      .check = check,
                                      .graph = graph_of,
                                      .describe = assay_block_describe,
                                      .run = assay_block_run,
                                      .ensemble = assay_every_case,
                                      .used_rows = assay_block_used_rows,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = second_form},
                                      .flops = assay_block_flops,
                                      .memory = assay_block_memory,
                                      .shares = assay_block_shares};
