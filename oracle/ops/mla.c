#include "oracle/ops/mla.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/ops/mla_internal.h"
#include "oracle/ops/rms_norm.h"

const char *const assay_mla_tensor_names[ASSAY_MLA_TENSORS] = {
    [ASSAY_MLA_QUERY_WA_PROJ] = "query_wa_proj", [ASSAY_MLA_MLA_Q] = "mla_q",
    [ASSAY_MLA_KV_WA_PROJ] = "kv_wa_proj",       [ASSAY_MLA_MLA_KV] = "mla_kv",
    [ASSAY_MLA_QUERY_PROJ] = "query_proj",       [ASSAY_MLA_KEY_PROJ] = "key_proj",
    [ASSAY_MLA_VALUE_PROJ] = "value_proj",       [ASSAY_MLA_ATTENTION_OUT] = "attention_out",
    [ASSAY_MLA_OUT_PROJ] = "out_proj",
};

void assay_mla_residuals_free(assay_mla_residuals *r)
{
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) free(r->values[tensor]);
    free(r->lse);
    *r = (assay_mla_residuals){0};
}

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
    int64_t count = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= sizes[i].least) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %" PRId64 ", expected %" PRId64 " or more", sizes[i].name,
                          sizes[i].value, sizes[i].least);
    }
    if (!(config->epsilon >= 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "normalization_layer_epsilon is %g, expected 0 or more",
                          config->epsilon);
    }
    if (!isfinite(config->mscale)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "mscale is %g, expected a finite number", config->mscale);
    }
    TRY(assay_rope_check(ctx, &config->rope));
    const int64_t nope = config->qk_nope_head_dim, value = config->v_head_dim, rope = config->rope.dim;
    const int64_t wide = nope > value ? nope : value, wider = wide > rope ? wide : rope;
    TRY(assay_checked_count(ctx, "heads", 5,
                            (int64_t[]){config->batch, config->sequence, config->heads, 2, wider}, &count));
    TRY(assay_checked_count(ctx, "wq_b/kernel", 4, (int64_t[]){config->q_lora_rank + 1, config->heads, 2, wider},
                            &count));
    TRY(assay_checked_count(ctx, "wkv_b/kernel", 4, (int64_t[]){config->kv_lora_rank, config->heads, 2, wider}, &count));
    TRY(assay_checked_count(ctx, "query/kernel", 4, (int64_t[]){config->emb_dim, config->heads, 2, wider}, &count));
cleanup:
    return status;
}

double assay_mla_softmax_scale(const assay_mla_config *config)
{
    const assay_rope_config *rope = &config->rope;
    const double scale = 1 / sqrt((double)(config->qk_nope_head_dim + rope->dim));
    if (rope->max_position_embeddings <= rope->original_max_position_embeddings) return scale;
    const double m = 0.1 * config->mscale * assay_log(rope->rope_factor) + 1;
    return scale * m * m;
}

int64_t assay_mla_tensor_count(const assay_mla_config *config, assay_mla_tensor tensor)
{
    const mla_sizes s = mla_sizes_of(config);
    const int64_t widths[ASSAY_MLA_TENSORS] = {
        [ASSAY_MLA_QUERY_WA_PROJ] = s.q_rank,       [ASSAY_MLA_MLA_Q] = s.q_rank,
        [ASSAY_MLA_KV_WA_PROJ] = s.kv_wa,           [ASSAY_MLA_MLA_KV] = s.kv_rank,
        [ASSAY_MLA_QUERY_PROJ] = s.heads * s.qk,    [ASSAY_MLA_KEY_PROJ] = s.heads * s.qk,
        [ASSAY_MLA_VALUE_PROJ] = s.heads * s.value, [ASSAY_MLA_ATTENTION_OUT] = s.heads * s.value,
        [ASSAY_MLA_OUT_PROJ] = s.dim,
    };
    return s.tokens * widths[tensor];
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

assay_status mla_product(assay_context *ctx, double *c, const double *a, const double *b, int64_t m, int64_t n,
                         int64_t k)
{
    const assay_matmul_args args = {.c = c, .ldc = n, .a = a, .lda = k, .b = b, .ldb = n, .m = m, .n = n, .k = k};
    return assay_matmul(ctx, &args);
}

assay_rope_rows mla_query_rows(double *query, const mla_sizes *s)
{
    return (assay_rope_rows){.y = query + s->nope,
                             .y_token_stride = s->heads * s->qk,
                             .y_head_stride = s->qk,
                             .x = query + s->nope,
                             .x_token_stride = s->heads * s->qk,
                             .x_head_stride = s->qk,
                             .heads = s->heads};
}

assay_rope_rows mla_key_rows(double *key, const double *kv_wa, const mla_sizes *s)
{
    return (assay_rope_rows){.y = key + s->nope,
                             .y_token_stride = s->heads * s->qk,
                             .x = kv_wa + s->kv_rank,
                             .x_token_stride = s->kv_wa,
                             .heads = 1};
}

/* The latent's norm: its first `rank` numbers of rows `ld` apart. */
static assay_status latent(assay_context *ctx, double *y, const double *x, int64_t ld, const double *scale,
                           int64_t rank, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t tokens = config->batch * config->sequence;
    double *rstd = NULL;
    TRY(assay_alloc_f64(ctx, "1/rms", tokens, &rstd));
    for (int64_t t = 0; t < tokens; t++) memmove(y + t * rank, x + t * ld, (size_t)rank * sizeof *y);
    assay_rms_norm_forward(ctx, y, rstd, y, scale, tokens, rank, config->epsilon);
cleanup:
    free(rstd);
    return status;
}

static assay_status query(assay_context *ctx, double *out, const assay_mla_residuals *r, const assay_mla_inputs *in,
                          const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const int64_t width = s.heads * s.qk, count = s.tokens * width;
    const bool compressed = s.q_rank > 0;
    const double scale = assay_mla_softmax_scale(config);
    const assay_rope_rows rows = mla_query_rows(out, &s);
    assay_rope_table table = {0};
    TRY(mla_product(ctx, out, compressed ? r->values[ASSAY_MLA_MLA_Q] : in->x, compressed ? w->wq_b : w->query,
                    s.tokens, width, compressed ? s.q_rank : s.dim));
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
    TRY(assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope));
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) out[i] *= scale;
cleanup:
    assay_rope_table_free(&table);
    return status;
}

/* One part of every head of mla_kv wkv_b, `first` columns into it: a product for each head, straight to its place, so
 * that the key can be had without the value, and the other way round. */
static assay_status expand(assay_context *ctx, double *out, int64_t out_width, int64_t first, int64_t columns,
                           const assay_mla_residuals *r, const assay_mla_weights *w, const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    assay_status status = ASSAY_OK;
    for (int64_t head = 0; head < s.heads; head++) {
        const assay_matmul_args args = {.c = out + head * out_width,
                                        .ldc = s.heads * out_width,
                                        .a = r->values[ASSAY_MLA_MLA_KV],
                                        .lda = s.kv_rank,
                                        .b = w->wkv_b + head * s.kv + first,
                                        .ldb = s.heads * s.kv,
                                        .m = s.tokens,
                                        .n = columns,
                                        .k = s.kv_rank};
        TRY(assay_matmul(ctx, &args));
    }
cleanup:
    return status;
}

static assay_status key(assay_context *ctx, double *out, const assay_mla_residuals *r, const assay_mla_inputs *in,
                        const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const mla_sizes s = mla_sizes_of(config);
    const assay_rope_rows rows = mla_key_rows(out, r->values[ASSAY_MLA_KV_WA_PROJ], &s);
    assay_rope_table table = {0};
    TRY(expand(ctx, out, s.qk, 0, s.nope, r, w, config));
    TRY(assay_rope_table_make(ctx, &table, in->positions, s.tokens, &config->rope));
    assay_rope_forward(ctx, &rows, &table, &config->rope);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t t = 0; t < s.tokens; t++) {
        const double *first = out + t * s.heads * s.qk + s.nope;
        for (int64_t head = 1; head < s.heads; head++)
            memcpy(out + (t * s.heads + head) * s.qk + s.nope, first, (size_t)s.rope * sizeof *out);
    }
cleanup:
    assay_rope_table_free(&table);
    return status;
}

static assay_status attention(assay_context *ctx, double *out, assay_mla_residuals *r, const assay_mla_inputs *in,
                              const assay_mla_config *config)
{
    const assay_attention_config attention_config = mla_attention_config(config);
    const assay_attention_inputs inputs = {.query = r->values[ASSAY_MLA_QUERY_PROJ],
                                           .key = r->values[ASSAY_MLA_KEY_PROJ],
                                           .value = r->values[ASSAY_MLA_VALUE_PROJ],
                                           .segment_ids = in->segment_ids};
    const int64_t count = config->batch * config->heads * config->sequence;
    assay_status status = ASSAY_OK;
    if (r->lse == NULL) TRY(assay_alloc_f64(ctx, "lse", count, &r->lse));
    TRY(assay_attention_forward(ctx, out, r->lse, &inputs, &attention_config));
cleanup:
    return status;
}

static assay_status compute(assay_context *ctx, double *out, assay_mla_residuals *r, assay_mla_tensor tensor,
                            const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config)
{
    const mla_sizes s = mla_sizes_of(config);
    switch (tensor) {
    case ASSAY_MLA_QUERY_WA_PROJ:
        return mla_product(ctx, out, in->x, w->wq_a, s.tokens, s.q_rank, s.dim);
    case ASSAY_MLA_MLA_Q:
        return latent(ctx, out, r->values[ASSAY_MLA_QUERY_WA_PROJ], s.q_rank, w->q_norm, s.q_rank, config);
    case ASSAY_MLA_KV_WA_PROJ:
        return mla_product(ctx, out, in->x, w->wkv_a, s.tokens, s.kv_wa, s.dim);
    case ASSAY_MLA_MLA_KV:
        return latent(ctx, out, r->values[ASSAY_MLA_KV_WA_PROJ], s.kv_wa, w->kv_norm, s.kv_rank, config);
    case ASSAY_MLA_QUERY_PROJ:
        return query(ctx, out, r, in, w, config);
    case ASSAY_MLA_KEY_PROJ:
        return key(ctx, out, r, in, w, config);
    case ASSAY_MLA_VALUE_PROJ:
        return expand(ctx, out, s.value, s.nope, s.value, r, w, config);
    case ASSAY_MLA_ATTENTION_OUT:
        return attention(ctx, out, r, in, config);
    default: /* ASSAY_MLA_OUT_PROJ */
        return mla_product(ctx, out, r->values[ASSAY_MLA_ATTENTION_OUT], w->out, s.tokens, s.dim, s.heads * s.value);
    }
}

assay_status assay_mla_compute(assay_context *ctx, assay_mla_residuals *r, assay_mla_tensor tensor,
                               const assay_mla_inputs *in, const assay_mla_weights *w, const assay_mla_config *config)
{
    const int64_t count = assay_mla_tensor_count(config, tensor);
    if (r->values[tensor] != NULL || count == 0) return ASSAY_OK;
    assay_status status = assay_alloc_f64(ctx, assay_mla_tensor_names[tensor], count, &r->values[tensor]);
    if (status == ASSAY_OK) status = compute(ctx, r->values[tensor], r, tensor, in, w, config);
    /* y is the caller's to round. */
    if (status == ASSAY_OK && tensor != ASSAY_MLA_OUT_PROJ) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, count, r->values[tensor]);
    }
    return status;
}
