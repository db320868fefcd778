#include <inttypes.h>
#include <string.h>

#include "harness/operations/op_block.h"

static assay_status rope_of_width(assay_context *ctx, const assay_case *c, int64_t dim, assay_rope_config *config)
{
    const assay_model_config *m = &c->config;
    const bool yarn = strcmp(m->rope_type.text, "yarn") == 0;
    *config = (assay_rope_config){
        .dim = dim,
        .yarn = yarn,
        .rope_max_timescale = m->rope_max_timescale,
        .rope_factor = m->rope_factor,
        .beta_fast = m->beta_fast,
        .beta_slow = m->beta_slow,
        .max_position_embeddings = m->max_position_embeddings,
        .original_max_position_embeddings = m->original_max_position_embeddings,
        .interleave = m->rope_interleave,
        .truncate = m->rope_truncate,
        .attention_scaling = yarn && m->rope_attention_scaling,
        .pairwise = m->rope_pairwise,
    };
    if (!yarn && strcmp(m->rope_type.text, "default") != 0) {
        return assay_refuse(ctx, "rope_type is \"%s\", expected default or yarn", m->rope_type.text);
    }
    MUST(assay_rope_check(ctx, config));
    /* neither start nor step is negative; explicit positions are checked where they are read */
    const int64_t first = c->position_start, last = first + c->position_step * (c->sequence - 1);
    if (assay_case_input_of(c, "inputs/positions") == NULL && last >= config->max_position_embeddings) {
        return assay_refuse(
            ctx, "positions go from %" PRId64 " to %" PRId64 ", expected 0 to %" PRId64 " (max_position_embeddings)",
            first, last, config->max_position_embeddings - 1);
    }
    return ASSAY_OK;
}

assay_status assay_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    return rope_of_width(ctx, c, c->config.qk_rope_head_dim, config);
}

/* Of a head's numbers the first ones are turned (partial_rotary_factor of them). */
static assay_status rotary_width_of(assay_context *ctx, const assay_model_config *m, int64_t *width)
{
    const double turned = m->partial_rotary_factor * (double)m->head_dim;
    *width = 0;
    if (turned >= 2 && turned <= (double)m->head_dim) *width = (int64_t)turned;
    if (*width % 2 == 0 && *width > 0 && (double)*width == turned) return ASSAY_OK;
    return assay_refuse(
        ctx, "partial_rotary_factor is %g, expected an even number of the %" PRId64 " of a head (head_dim), found %g",
        m->partial_rotary_factor, m->head_dim, turned);
}

assay_status assay_key_rope_config_of(assay_context *ctx, const assay_case *c, assay_rope_config *config)
{
    int64_t turned = 0;
    MUST(rotary_width_of(ctx, &c->config, &turned));
    return rope_of_width(ctx, c, turned, config);
}

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

static void graph_of(const void *config, graph *g)
{
    graph_begin(g, config, axis_size);
    const int x = graph_input(g, "inputs/x", "BSNR");
    const graph_turns turns =
        graph_rotations(g, graph_indices(g, "inputs/positions", "BS"), &((const rope_config *)config)->rope);
    graph_end(g, graph_rope(g, x, 0, &turns), GRAPH_LEFT);
}

/* It has no products: six operations a pair. */
const assay_operation assay_op_yarn_rope = {.name = "yarn_rope",
                                            .components = ASSAY_USES_ROPE,
                                            .summary = "rotary position embedding, plain or YaRN, in every layout",
                                            .config_of = config_of,
                                            .axis_size = axis_size,
                                            .graph = graph_of,
                                            .second_form = {.form = quad_yarn_rope},
                                            .count = {"BSNR", 3, 6}};
