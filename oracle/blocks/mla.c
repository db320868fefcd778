/* Multi-head latent attention as a graph, and what its configuration says: sizes, refusals, the softmax scale. */
#include "oracle/blocks/mla.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

static const assay_tensor_form weights[ASSAY_MLA_WEIGHTS] = {
    [ASSAY_MLA_WQ_A] = {"wq_a/kernel", ASSAY_KERNEL, "DL", 1},
    [ASSAY_MLA_Q_NORM] = {"q_norm/scale", ASSAY_NORM_SCALE, "L", 0},
    [ASSAY_MLA_WKV_A] = {"wkv_a/kernel", ASSAY_KERNEL, "Dw", 1},
    [ASSAY_MLA_KV_NORM] = {"kv_norm/scale", ASSAY_NORM_SCALE, "l", 0},
    [ASSAY_MLA_WQ_B] = {"wq_b/kernel", ASSAY_KERNEL, "LNq", 1},
    [ASSAY_MLA_QUERY] = {"query/kernel", ASSAY_KERNEL, "DNq", 1},
    [ASSAY_MLA_WKV_B] = {"wkv_b/kernel", ASSAY_KERNEL, "lNu", 1},
    [ASSAY_MLA_OUT] = {"out/kernel", ASSAY_KERNEL, "NvD", 2},
};

static int64_t axis_size(const void *self, char axis)
{
    const assay_mla_config *config = self;
    if (axis == 'B') return config->batch;
    if (axis == 'S') return config->sequence;
    if (axis == 'D') return config->emb_dim;
    if (axis == 'N') return config->heads;
    if (axis == 'L') return config->q_lora_rank;
    if (axis == 'l') return config->kv_lora_rank;
    if (axis == 'w') return config->kv_lora_rank + config->rope.dim;
    if (axis == 'q') return config->qk_nope_head_dim + config->rope.dim;
    if (axis == 'u') return config->qk_nope_head_dim + config->v_head_dim;
    if (axis == 'R') return config->rope.dim;
    return config->v_head_dim; /* 'v' */
}

/* Without query compression there is nothing along Lq. */
assay_tensor_row assay_mla_weight_row(const assay_mla_config *config, int weight)
{
    const assay_tensor_row row = assay_tensor_row_of(&weights[weight], config, axis_size);
    const bool there = weight != ASSAY_MLA_QUERY || config->q_lora_rank == 0;
    return there && assay_tensor_row_count(&row) > 0 ? row : (assay_tensor_row){0};
}

int assay_mla_steps(graph *g, const assay_mla_config *config, const assay_attention_operands *in, const int *w)
{
    const int64_t nope = config->qk_nope_head_dim, rank = config->kv_lora_rank;
    const assay_quant_recipe_config *recipe = &config->recipe;
    const bool compressed = config->q_lora_rank > 0;
    const assay_attention_config attention = {.batch = config->batch,
                                              .sequence = config->sequence,
                                              .heads = config->heads,
                                              .qk_dim = nope + config->rope.dim,
                                              .v_dim = config->v_head_dim,
                                              .mask_padding = config->mask_padding,
                                              .soft_cap = config->soft_cap,
                                              .variant = config->variant,
                                              .window = config->window};
    int query_wa = 0, latent = 0;
    graph_within(g, config, axis_size);
    const graph_turns turns = graph_rotations(g, in->positions, &config->rope);

    if (compressed) {
        query_wa = graph_named(g, "query_wa_proj", graph_linear(g, "BSL", in->x, w[ASSAY_MLA_WQ_A], 0, recipe));
        latent = graph_named(g, "mla_q", graph_rms_norm(g, query_wa, w[ASSAY_MLA_Q_NORM], config->epsilon));
    }
    const int kv_wa = graph_named(g, "kv_wa_proj", graph_linear(g, "BSw", in->x, w[ASSAY_MLA_WKV_A], 0, recipe));
    const int down = graph_fused(g, graph_slice(g, "BSl", kv_wa, 'w', 0));
    const int mla_kv = graph_named(g, "mla_kv", graph_rms_norm(g, down, w[ASSAY_MLA_KV_NORM], config->epsilon));

    const int q = compressed ? graph_linear(g, "BSNq", latent, w[ASSAY_MLA_WQ_B], 0, recipe)
                             : graph_linear(g, "BSNq", in->x, w[ASSAY_MLA_QUERY], 0, recipe);
    const int turned = graph_rope(g, q, nope, &turns);
    const int query = graph_named(g, "query_proj", graph_scale(g, turned, assay_mla_softmax_scale(config)));

    const int k_pe = graph_fused(g, graph_slice(g, "BSR", kv_wa, 'w', rank));
    const int key_rope = graph_called(g, "rotated_key", graph_fused(g, graph_rope(g, k_pe, 0, &turns)));
    const graph_key_value kv = graph_expand(g, mla_kv, w[ASSAY_MLA_WKV_B], key_rope, recipe);
    const int key = graph_named(g, "key_proj", kv.key), value = graph_named(g, "value_proj", kv.value);

    const int out = graph_attention(g, "BSNv", query, key, value, in->segment_ids, 0, &attention);
    const int y = graph_named(g, "out_proj", graph_linear(g, "BSD", out, w[ASSAY_MLA_OUT], 0, recipe));
    graph_quantised(g, "q_gradient", "BSNq", q);
    if (compressed) graph_quantised(g, "query_wa_proj_gradient", "BSL", query_wa);
    graph_quantised(g, "kv_gradient", "BSNu", key);
    graph_quantised(g, "kv_wa_proj_gradient", "BSw", kv_wa);
    return y;
}

void assay_mla_graph(graph *g, const assay_mla_config *config)
{
    int w[ASSAY_MLA_WEIGHTS];
    graph_begin(g, config, axis_size);
    const assay_attention_operands in = assay_attention_inputs_of(g);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) w[i] = graph_weight(g, assay_mla_weight_row(config, i));
    graph_end(g, assay_mla_steps(g, config, &in, w), GRAPH_LEFT);
}

/* Whether the softmax scale has mscale's factor. */
static bool is_extended(const assay_rope_config *rope)
{
    return rope->max_position_embeddings > rope->original_max_position_embeddings;
}

static assay_status check_softmax_scale(assay_context *ctx, const assay_mla_config *config)
{
    const double factor = config->rope.rope_factor;
    if (!isfinite(config->mscale)) {
        return assay_refuse(ctx, "mscale is %g, expected a finite number", config->mscale);
    }
    if (!(config->query_scale >= 0) || !isfinite(config->query_scale)) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "query_pre_attn_scalar is %g, expected a number above 0 (0: what follows from sizes and mscale)",
            config->query_scale);
    }
    if (is_extended(&config->rope) && (!(factor > 0) || !isfinite(factor))) {
        return assay_refuse(ctx, "rope_factor is %g, expected a number above 0", factor);
    }
    return ASSAY_OK;
}

/* Every tensor is at most as large as one of these: a sum of two sizes as twice the larger. */
static assay_status check_counts(assay_context *ctx, const assay_mla_config *config)
{
    const int64_t b = config->batch, s = config->sequence, n = config->heads, d = config->emb_dim;
    const int64_t head = assay_larger(assay_larger(config->qk_nope_head_dim, config->v_head_dim), config->rope.dim);
    const int64_t latent = assay_larger(assay_larger(config->q_lora_rank, config->kv_lora_rank), config->rope.dim);
    const struct {
        const char *name;
        int64_t dims[5];
    } tensors[] = {{"inputs/x", {b, s, d, 1, 1}},        {"heads", {b, s, n, 2, head}},
                   {"latents", {b, s, 2, latent, 1}},    {"wq_a/kernel, wkv_a/kernel", {d, 2, latent, 1, 1}},
                   {"query/kernel", {d, n, 2, head, 1}}, {"wq_b/kernel, wkv_b/kernel", {latent, n, 2, head, 1}}};
    int64_t count = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        MUST(assay_checked_count(ctx, tensors[i].name, 5, tensors[i].dims, &count));
    return ASSAY_OK;
}

assay_status assay_mla_check(assay_context *ctx, const assay_mla_config *config)
{
    const struct {
        const char *name;
        int64_t value, least;
    } sizes[] = {{"batch", config->batch, 1},
                 {"sequence", config->sequence, 1},
                 {"base_emb_dim", config->emb_dim, 1},
                 {"base_num_query_heads", config->heads, 1},
                 {"qk_nope_head_dim", config->qk_nope_head_dim, 1},
                 {"v_head_dim", config->v_head_dim, 1},
                 {"q_lora_rank", config->q_lora_rank, 0},
                 {"kv_lora_rank", config->kv_lora_rank, 1}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= sizes[i].least) continue;
        return assay_refuse(ctx, "%s is %" PRId64 ", expected %" PRId64 " or more", sizes[i].name, sizes[i].value,
                            sizes[i].least);
    }
    if (!(config->epsilon >= 0)) {
        return assay_refuse(ctx, "latent_norm_epsilon is %g, expected 0 or more (-1: as normalization_layer_epsilon)",
                            config->epsilon);
    }
    MUST(assay_rope_check(ctx, &config->rope));
    MUST(check_softmax_scale(ctx, config));
    return check_counts(ctx, config);
}

double assay_mla_softmax_scale(const assay_mla_config *config)
{
    const assay_rope_config *rope = &config->rope;
    if (config->query_scale > 0) return config->query_scale;
    const double scale = 1 / sqrt((double)(config->qk_nope_head_dim + rope->dim));
    if (!is_extended(rope)) return scale;
    const double m = 0.1 * config->mscale * assay_log(rope->rope_factor) + 1;
    return scale * m * m;
}
