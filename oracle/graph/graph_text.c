/* What a step is told besides its tensors, for people; graph.h is the contract. */
#include <inttypes.h>
#include <stdio.h>

#include "oracle/graph/graph_kind.h"

static void glu_text(const assay_gated_mlp_config *mlp, char *text, size_t size)
{
    const char *gate = assay_activation_name(mlp->activation[0]), *up = assay_activation_name(mlp->activation[1]);
    if (mlp->glu == ASSAY_GLU_PLAIN) snprintf(text, size, "%s * %s", gate, up);
    if (mlp->glu == ASSAY_GLU_GPT_OSS) snprintf(text, size, "gpt_oss, limit %g", mlp->limit);
    if (mlp->glu == ASSAY_GLU_CLAMPED) snprintf(text, size, "%s, clamped at %g", gate, mlp->limit);
}

static void attention_text(const assay_attention_config *a, char *text, size_t size)
{
    int used = snprintf(text, size, "%" PRId64 " heads", a->heads);
    if (assay_attention_kv_heads(a) != a->heads)
        used += snprintf(text + used, size - (size_t)used, " on %" PRId64, assay_attention_kv_heads(a));
    if (a->window > 0) used += snprintf(text + used, size - (size_t)used, ", window %" PRId64, a->window);
    if (a->soft_cap > 0) snprintf(text + used, size - (size_t)used, ", soft cap %g", a->soft_cap);
}

static void angles_text(const assay_rope_config *rope, char *text, size_t size)
{
    const int used = snprintf(text, size, "theta %g", rope->rope_max_timescale);
    if (rope->yarn) snprintf(text + used, size - (size_t)used, ", yarn, factor %g", rope->rope_factor);
}

void graph_parameters_text(const graph_step *step, char *text, size_t size)
{
    const graph_kind *kind = step->kind;
    const graph_parameters *with = &step->with;
    const bool product = kind == &graph_kind_linear || kind == &graph_kind_expand;
    text[0] = '\0';
    if (kind == &graph_kind_reduce || kind == &graph_kind_softmax || kind == &graph_kind_logsumexp ||
        kind == &graph_kind_running_sum)
        snprintf(text, size, "over %s", with->general.over);
    if (graph_is_factor(step)) snprintf(text, size, "by %g", with->general.b);
    if (kind == &graph_kind_slice) snprintf(text, size, "from %" PRId64, with->general.first);
    if (kind == &graph_kind_linear && (step->in[GRAPH_GROUP_SIZES] != 0 || with->product.partition.groups > 0))
        snprintf(text, size, "in groups of rows");
    if (product && with->product.recipe.recipe != NULL)
        snprintf(text, size, "recipe %s", with->product.recipe.recipe->name);
    if (kind == &graph_kind_rms_norm || kind == &graph_kind_layer_norm)
        snprintf(text, size, "epsilon %g", with->number);
    if (kind == &graph_kind_angles) angles_text(&with->rope.config, text, size);
    if (kind == &graph_kind_rope)
        snprintf(text, size, "columns %" PRId64 " to %" PRId64 "%s", with->rope.first,
                 with->rope.first + with->rope.config.dim - 1, with->rope.config.interleave ? ", interleaved" : "");
    if (kind == &graph_kind_attention) attention_text(&with->attention, text, size);
    if (kind == &graph_kind_glu) glu_text(&with->mlp, text, size);
    if (kind == &graph_kind_quantise_hidden) snprintf(text, size, "%s", with->quantise.format->name);
}
