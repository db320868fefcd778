#include "harness/operations/op_block.h"
#include "oracle/mesh/head_shards.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_gqa_config *config = to;
    assay_gqa_config *gqa = &config->gqa;
    config->mesh = assay_mesh_of(c);
    MUST(assay_gqa_config_of(ctx, c, gqa));
    MUST(assay_linear_recipe_of(ctx, c, &gqa->recipe));
    MUST(assay_head_shards_check(ctx, "gqa", &config->mesh, gqa->heads, gqa->kv_heads, gqa->batch));
    return assay_check_head_mesh(ctx, c);
}

static void graph_of(const void *of, bool one_shard, graph *g)
{
    const quad_gqa_config *config = of;
    const int64_t shards = one_shard ? assay_head_shards(&config->mesh) : 1;
    assay_gqa_config gqa = config->gqa;
    gqa.heads /= shards;
    gqa.kv_heads /= shards;
    if (one_shard) gqa.batch /= assay_head_batch_shards(&config->mesh);
    assay_gqa_graph(g, &gqa);
}

const assay_operation assay_op_gqa = {.name = "gqa",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_SHARING | ASSAY_PART_GROUPED |
                                               ASSAY_PART_ROPE,
                                      .summary = "grouped-query attention with its projections, windows and sinks",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .used_rows = assay_block_used_rows,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = quad_gqa}};
