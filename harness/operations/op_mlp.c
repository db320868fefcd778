#include <string.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_block.h"
#include "oracle/blocks/mlp.h"

assay_status assay_activation_of(assay_context *ctx, const assay_model_config *m, int index, assay_activation *f)
{
    const char *name = m->mlp_activations.item[index];
    if (!assay_activation_from_name(name, f)) {
        return assay_refuse(ctx,
                            "mlp_activations[%d] is \"%s\", expected silu, gelu, gelu_exact, relu, sigmoid or linear",
                            index, name);
    }
    return ASSAY_OK;
}

/* GPT-OSS has its own gate; DeepSeek-V4 clamps when there is a limit; everything else is plain. */
assay_status assay_glu_of(assay_context *ctx, const assay_model_config *m, bool asked, assay_glu *glu)
{
    *glu = ASSAY_GLU_PLAIN;
    if (strcmp(m->decoder_block.text, "gpt_oss") == 0) {
        *glu = ASSAY_GLU_GPT_OSS;
    } else if (m->mlp_activations_limit > 0.0 &&
               (asked || assay_block_has(m->decoder_block.text, ASSAY_BLOCK_CLAMPS))) {
        *glu = ASSAY_GLU_CLAMPED;
    }
    if (*glu == ASSAY_GLU_GPT_OSS && !(m->mlp_activations_limit > 0.0)) {
        return assay_refuse(ctx, "mlp_activations_limit is %g, expected above 0 with decoder_block gpt_oss",
                            m->mlp_activations_limit);
    }
    if (*glu == ASSAY_GLU_GPT_OSS && strcmp(m->mlp_activations.item[0], "sigmoid") != 0) {
        return assay_refuse(ctx, "mlp_activations[0] is \"%s\", expected sigmoid with decoder_block gpt_oss",
                            m->mlp_activations.item[0]);
    }
    return ASSAY_OK;
}

assay_status assay_mlp_config_of(assay_context *ctx, const assay_case *c, assay_gated_mlp_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (assay_gated_mlp_config){.rows = c->batch * c->sequence,
                                       .emb_dim = m->base_emb_dim,
                                       .mlp_dim = m->base_mlp_dim,
                                       .limit = m->mlp_activations_limit,
                                       .fused = m->fused_mlp};
    MUST(assay_require_positive(ctx, "base_emb_dim", m->base_emb_dim));
    MUST(assay_require_positive(ctx, "base_mlp_dim", m->base_mlp_dim));
    MUST(assay_activation_of(ctx, m, 0, &config->activation[0]));
    MUST(assay_activation_of(ctx, m, 1, &config->activation[1]));
    MUST(assay_glu_of(ctx, m, true, &config->glu));
    MUST(assay_hidden_config_of(ctx, c, config->mlp_dim, &config->hidden));
    MUST(assay_linear_recipe_of(ctx, c, &config->recipe));
    if (config->glu != ASSAY_GLU_PLAIN && config->activation[1] != ASSAY_LINEAR) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "mlp_activations[1] is \"%s\", expected linear: with a limit the second branch is clamped alone",
            m->mlp_activations.item[1]);
    }
    return ASSAY_OK;
}

typedef struct mlp_config {
    assay_gated_mlp_config mlp; /* the first, since it is what the second form gets */
    int64_t batch, sequence;
} mlp_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    mlp_config *config = to;
    config->batch = c->batch;
    config->sequence = c->sequence;
    return assay_mlp_config_of(ctx, c, &config->mlp);
}

static void graph_of(const void *of, graph *g)
{
    const mlp_config *config = of;
    const assay_mlp_graph_config whole = {.batch = config->batch, .sequence = config->sequence, .mlp = config->mlp};
    assay_mlp_graph(g, &whole);
}

const assay_operation assay_op_mlp = {.name = "mlp",
                                      .components = ASSAY_USES_MLP,
                                      .by_token = true,
                                      .summary = "gated MLP of a dense layer, fused or not",
                                      .config_of = config_of,
                                      .graph = graph_of,
                                      .quantised = true,
                                      .second_form = {.form = quad_gated_mlp}};
