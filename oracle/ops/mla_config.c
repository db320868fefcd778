/* What a configuration of MLA says: sizes, refusals, the softmax scale, the operations of its products. */
#include <inttypes.h>
#include <math.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/ops/mla_steps.h"

mla_sizes mla_sizes_of(const assay_mla_config *config)
{
    const int64_t nope = config->qk_nope_head_dim, rope = config->rope.dim, value = config->v_head_dim;
    return (mla_sizes){
        .tokens = config->batch * config->sequence,
        .dim = config->emb_dim,
        .heads = config->heads,
        .nope = nope,
        .rope = rope,
        .value = value,
        .qk = nope + rope,
        .kv = nope + value,
        .q_rank = config->q_lora_rank,
        .kv_rank = config->kv_lora_rank,
        .kv_wa = config->kv_lora_rank + rope,
    };
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
        return assay_fail(ctx, ASSAY_BAD_INPUT, "mscale is %g, expected a finite number", config->mscale);
    }
    if (is_extended(&config->rope) && (!(factor > 0) || !isfinite(factor))) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "rope_factor is %g, expected a number above 0", factor);
    }
    return ASSAY_OK;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Every tensor is at most as large as one of these: a sum of two sizes as twice the larger. */
static assay_status check_counts(assay_context *ctx, const assay_mla_config *config)
{
    const int64_t b = config->batch, s = config->sequence, n = config->heads, d = config->emb_dim;
    const int64_t head = larger(larger(config->qk_nope_head_dim, config->v_head_dim), config->rope.dim);
    const int64_t latent = larger(larger(config->q_lora_rank, config->kv_lora_rank), config->rope.dim);
    const struct {
        const char *name;
        int64_t dims[5];
    } tensors[] = {{"inputs/x", {b, s, d, 1, 1}},        {"heads", {b, s, n, 2, head}},
                   {"latents", {b, s, 2, latent, 1}},    {"wq_a/kernel, wkv_a/kernel", {d, 2, latent, 1, 1}},
                   {"query/kernel", {d, n, 2, head, 1}}, {"wq_b/kernel, wkv_b/kernel", {latent, n, 2, head, 1}}};
    assay_status status = ASSAY_OK;
    int64_t count = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        TRY(assay_checked_count(ctx, tensors[i].name, 5, tensors[i].dims, &count));
cleanup:
    return status;
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
    assay_status status = ASSAY_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= sizes[i].least) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %" PRId64 ", expected %" PRId64 " or more", sizes[i].name,
                          sizes[i].value, sizes[i].least);
    }
    if (!(config->epsilon >= 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "latent_norm_epsilon is %g, expected 0 or more (-1: as normalization_layer_epsilon)",
                          config->epsilon);
    }
    TRY(assay_rope_check(ctx, &config->rope));
    TRY(check_softmax_scale(ctx, config));
    TRY(check_counts(ctx, config));
cleanup:
    return status;
}

double assay_mla_softmax_scale(const assay_mla_config *config)
{
    const assay_rope_config *rope = &config->rope;
    const double scale = 1 / sqrt((double)(config->qk_nope_head_dim + rope->dim));
    if (!is_extended(rope)) return scale;
    const double m = 0.1 * config->mscale * assay_log(rope->rope_factor) + 1;
    return scale * m * m;
}

assay_attention_config mla_attention_config(const assay_mla_config *config)
{
    return (assay_attention_config){.batch = config->batch,
                                    .sequence = config->sequence,
                                    .heads = config->heads,
                                    .qk_dim = config->qk_nope_head_dim + config->rope.dim,
                                    .v_dim = config->v_head_dim,
                                    .mask_padding = config->mask_padding};
}

double assay_mla_tensor_flops(const assay_mla_config *config, assay_mla_tensor tensor)
{
    const mla_sizes s = mla_sizes_of(config);
    const assay_attention_config attention = mla_attention_config(config);
    const double heads = (double)s.heads;
    const double from = (double)(s.q_rank > 0 ? s.q_rank : s.dim); /* what the query is made of */
    const double sums[ASSAY_MLA_TENSORS] = {
        [ASSAY_MLA_QUERY_WA_PROJ] = (double)s.dim * (double)s.q_rank,
        [ASSAY_MLA_KV_WA_PROJ] = (double)s.dim * (double)s.kv_wa,
        [ASSAY_MLA_QUERY_PROJ] = from * heads * (double)s.qk,
        [ASSAY_MLA_KEY_PROJ] = (double)s.kv_rank * heads * (double)s.nope,
        [ASSAY_MLA_VALUE_PROJ] = (double)s.kv_rank * heads * (double)s.value,
        [ASSAY_MLA_OUT_PROJ] = heads * (double)s.value * (double)s.dim,
    };
    if (tensor == ASSAY_MLA_ATTENTION_OUT) return assay_attention_flops(&attention, false);
    return 2 * (double)s.tokens * sums[tensor];
}

double assay_mla_backward_flops(const assay_mla_config *config)
{
    const assay_attention_config attention = mla_attention_config(config);
    double sum = assay_attention_flops(&attention, true);
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        /* a weight's gradient and an input's for each product */
        if (tensor != ASSAY_MLA_ATTENTION_OUT) sum += 2 * assay_mla_tensor_flops(config, (assay_mla_tensor)tensor);
    }
    return sum;
}
