#include "harness/operations/op_block.h"

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

static void graph_of(const void *config, bool one_shard, graph *g)
{
    (void)one_shard;
    graph_begin(g, config, axis_size);
    const int x = graph_input(g, "inputs/x", "BSNR");
    const graph_turns turns =
        graph_rotations(g, graph_indices(g, "inputs/positions", "BS"), &((const rope_config *)config)->rope);
    graph_end(g, graph_rope(g, x, 0, &turns));
}

/* It has no products: six operations a pair. */
const assay_operation assay_op_yarn_rope = {.name = "yarn_rope",
                                            .parts = ASSAY_PART_ROPE,
                                            .summary = "rotary position embedding, plain or YaRN, in every layout",
                                            .config_of = config_of,
                                            .axis_size = axis_size,
                                            .graph = graph_of,
                                            .second_form = {.form = quad_yarn_rope},
                                            .count = {"BSNR", 3, 6}};
