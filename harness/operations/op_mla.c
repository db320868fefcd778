#include "harness/operations/op_block.h"
#include "oracle/mesh/head_shards.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    quad_mla_config *config = to;
    assay_mla_config *mla = &config->mla;
    config->mesh = assay_mesh_of(c);
    MUST(assay_mla_config_of(ctx, c, mla));
    MUST(assay_linear_recipe_of(ctx, c, &mla->recipe));
    MUST(assay_head_shards_check(ctx, "mla", &config->mesh, mla->heads, mla->heads, mla->batch));
    return assay_check_head_mesh(ctx, c);
}

static void graph_of(const void *of, bool one_shard, graph *g)
{
    const quad_mla_config *config = of;
    assay_mla_config mla = config->mla;
    if (one_shard) mla.heads /= assay_head_shards(&config->mesh);
    if (one_shard) mla.batch /= assay_head_batch_shards(&config->mesh);
    assay_mla_graph(g, &mla);
}

const assay_operation assay_op_mla = {.name = "mla",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_LATENT | ASSAY_PART_ROPE,
                                      .summary = "multi-head latent attention with YaRN",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .used_rows = assay_block_used_rows,
                                      .mesh = true,
                                      .quantised = true,
                                      .second_form = {.form = quad_mla}};
