#include <string.h>

#include "cases/decoder_block.h"
#include "harness/operations/op_block.h"

bool assay_says_latent(const assay_model_config *m)
{
    if (m->attention_type.text[0] != '\0') return strcmp(m->attention_type.text, "mla") == 0;
    return m->decoder_block.text[0] != '\0' && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_LATENT);
}

bool assay_has_grouped_heads(const assay_model_config *m)
{
    return m->head_dim > 0 && !assay_says_latent(m);
}

/* A window is for local attention; a type that is left open is what sliding_window_size says. */
assay_status assay_window_of(assay_context *ctx, const assay_model_config *m, int64_t *window)
{
    const char *type = m->attention_type.text;
    *window = strcmp(type, "global") == 0 ? 0 : m->sliding_window_size;
    if (strcmp(type, "local_sliding") == 0 && m->sliding_window_size == 0) {
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_sliding_window_size,
                                "1 or more with attention_type local_sliding");
    }
    return ASSAY_OK;
}

static assay_status attention_config_of(assay_context *ctx, const assay_case *c, assay_attention_config *config)
{
    const assay_model_config *m = &c->config;
    const bool grouped = assay_has_grouped_heads(m);
    *config = (assay_attention_config){.batch = c->batch,
                                       .sequence = c->sequence,
                                       .heads = m->base_num_query_heads,
                                       .qk_dim = grouped ? m->head_dim : m->qk_nope_head_dim + m->qk_rope_head_dim,
                                       .v_dim = grouped ? m->head_dim : m->v_head_dim,
                                       .mask_padding = m->mask_padding,
                                       .soft_cap = m->attn_logits_soft_cap,
                                       .variant = m->attention_variant};
    MUST(assay_require_positive(ctx, "base_num_query_heads", config->heads));
    MUST(assay_require_positive(ctx, "qk_nope_head_dim", m->qk_nope_head_dim));
    MUST(assay_require_positive(ctx, "qk_rope_head_dim", m->qk_rope_head_dim));
    MUST(assay_require_positive(ctx, "v_head_dim", config->v_dim));
    MUST(assay_window_of(ctx, m, &config->window));
    if (!assay_says_latent(m)) config->kv_heads = m->base_num_kv_heads;
    MUST(assay_attention_check(ctx, config));
    config->kv_heads = assay_attention_kv_heads(config);
    return ASSAY_OK;
}

typedef struct attention_config {
    assay_attention_config attention; /* the first, since it is what the second form gets */
    bool sinks, padding;
    bool grouped; /* heads of one width, head_dim */
    bool lse;     /* is an output */
    bool shared;  /* key-value heads were said */
} attention_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    attention_config *config = to;
    config->sinks = c->config.attention_sink;
    config->padding = assay_has_padding(c);
    config->lse = c->config.return_lse;
    config->grouped = assay_has_grouped_heads(&c->config);
    config->shared = c->config.base_num_kv_heads > 0 && !assay_says_latent(&c->config);
    return attention_config_of(ctx, c, &config->attention);
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_attention_config *a = &((const attention_config *)config)->attention;
    if (axis == 'B') return a->batch;
    if (axis == 'S') return a->sequence;
    if (axis == 'N') return a->heads;
    if (axis == 'g') return a->kv_heads;
    if (axis == 'v') return a->v_dim;
    return a->qk_dim;
}

static void graph_of(const void *of, graph *g)
{
    static const assay_tensor_form sinks = {"sinks", ASSAY_SINK, "N", 0};
    const attention_config *config = of;
    const bool grouped = config->grouped, shared = config->shared;
    graph_begin(g, config, axis_size);
    const int query = graph_input(g, "inputs/query", grouped ? "BSNz" : "BSNq");
    const int key = graph_input(g, "inputs/key", grouped ? "BSgz" : shared ? "BSgq" : "BSNq");
    const int value = graph_input(g, "inputs/value", grouped ? "BSgz" : shared ? "BSgv" : "BSNv");
    const int segments = graph_indices(g, "inputs/segment_ids", "BS");
    const int sink = config->sinks ? graph_weight(g, assay_tensor_row_of(&sinks, config, axis_size)) : 0;
    const int out =
        graph_attend(g, grouped ? "BSNz" : "BSNv", "BNS", query, key, value, segments, sink, &config->attention);
    if (config->lse) graph_gives(g, "lse", graph_lse_of(g, out));
    graph_gives(g, "attention_out", out);
    graph_end(g, out, GRAPH_LEFT);
}

/* Scores are of order 1, by what scales them in MLA. Padding of what is given may hold anything. */
static void describe(assay_describer *d, const void *of)
{
    const attention_config *config = of;
    assay_block_describe(d, &assay_op_attention);
    for (int i = 0; i < d->list->count; i++) {
        assay_tensor_entry *entry = &d->list->entries[i];
        const char *path = entry->spec.path;
        if (strcmp(path, "inputs/query") == 0) entry->fill = assay_fill_fan_in(config->attention.qk_dim);
        const bool rows = entry->spec.type != ASSAY_INT32 && entry->spec.shape.rank == 4;
        if (config->padding && rows && assay_role_is_input(entry->spec.role)) entry->unused_row_axes = 2;
    }
}

const assay_operation assay_op_attention = {.name = "attention",
                                            .components = ASSAY_USES_ATTENTION | ASSAY_USES_SHARING,
                                            .summary = "causal attention with log-sum-exp and segments",
                                            .config_of = config_of,
                                            .describe = describe,
                                            .graph = graph_of,
                                            .second_form = {.form = quad_attention}};
