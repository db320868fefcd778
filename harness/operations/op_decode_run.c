/* A run of attention over a cache. */
#include "harness/operations/op_decode.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

static assay_status merge(assay_context *ctx, const assay_work *w, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    const int64_t rows = d->splits * d->batch * d->sequence * d->heads, numbers = rows * assay_decode_out_dim(d);
    assay_decode_call staged = *call;
    OWNED double *out = NULL;
    OWNED double *lse = NULL;
    MUST(assay_alloc_f64(ctx, "partial results", numbers, &out));
    MUST(assay_alloc_f64(ctx, "partial log-sum-exps", rows, &lse));
    memcpy(out, call->partial_out, (size_t)numbers * sizeof *out);
    memcpy(lse, call->partial_lse, (size_t)rows * sizeof *lse);
    MUST(assay_go_on_from(ctx, w->in, "checkpoints/partial_out", 0, numbers, out));
    MUST(assay_go_on_from(ctx, w->in, "checkpoints/partial_lse", 0, rows, lse));
    staged.partial_out = out;
    staged.partial_lse = lse;
    return assay_decode_merge(ctx, &staged);
}

/* Caches as attention reads them, where they are not given so. */
typedef struct decode_caches {
    double *key, *value;
} decode_caches;

static void release_caches(decode_caches *caches)
{
    free(caches->key);
    free(caches->value);
}

/* Latents and their rope beside one another. */
static void join_parts(const assay_work *w, const assay_decode_config *d, double *key)
{
    const int64_t rope = d->width - d->v_dim;
    const double *latent = assay_f64(w, "inputs/ckv_cache"), *of_rope = assay_f64(w, "inputs/kpe_cache");
    for (int64_t row = 0; row < d->pages * d->stride; row++) {
        memcpy(key + row * d->width, latent + row * d->v_dim, (size_t)d->v_dim * sizeof *key);
        memcpy(key + row * d->width + d->v_dim, of_rope + row * rope, (size_t)rope * sizeof *key);
    }
}

static assay_status read_bytes(assay_context *ctx, const assay_work *w, const quad_decode_config *config,
                               const decode_caches *to)
{
    const assay_decode_config *d = &config->decode;
    for (int64_t i = 0; i < config->bytes.stream_count; i++) {
        const assay_cache_stream *s = &config->bytes.streams[i];
        const bool value = i > 0 && !d->latent;
        double *numbers = value ? to->value : i > 0 ? to->key + d->v_dim : to->key;
        const double *scale = NULL;
        MUST(assay_scale_of_cache(ctx, w, s, &scale));
        assay_cache_read(ctx, numbers, value ? d->v_dim : d->width, assay_bytes_of_cache(w, "inputs", s->bytes),
                         assay_bytes_of_cache(w, "inputs", s->scales), scale, &s->cache);
    }
    return ASSAY_OK;
}

static assay_status read_inputs(assay_context *ctx, const assay_work *w, decode_caches *made, assay_decode_inputs *in)
{
    const quad_decode_config *config = w->config;
    const assay_decode_config *d = &config->decode;
    const int64_t rows = d->pages * d->stride * d->kv_heads;
    *in = (assay_decode_inputs){.query = assay_f64(w, d->nope > 0 ? "inputs/query_nope" : "inputs/query"),
                                .query_pe = assay_f64(w, "inputs/query_pe"),
                                .key_cache = assay_f64(w, d->latent ? "inputs/kv_cache" : "inputs/key_cache"),
                                .value_cache = assay_f64(w, "inputs/value_cache"),
                                .block_table = assay_i32(w, "inputs/block_table"),
                                .cache_seqlens = assay_i32(w, "inputs/cache_seqlens"),
                                .indices = assay_i32(w, "inputs/indices"),
                                .topk_length = assay_i32(w, "inputs/topk_length"),
                                .kernel = assay_f64(w, "weights/wkv_b/kernel"),
                                .sinks = assay_f64(w, "weights/sinks")};
    if (config->bytes.stream_count == 0 && !config->split_cache) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "keys of a cache", rows * d->width, &made->key));
    if (!d->latent) MUST(assay_alloc_f64(ctx, "values of a cache", rows * d->v_dim, &made->value));
    if (config->bytes.stream_count > 0) MUST(read_bytes(ctx, w, config, made));
    if (config->bytes.stream_count == 0) join_parts(w, d, made->key);
    in->key_cache = made->key;
    in->value_cache = made->value;
    return ASSAY_OK;
}

static bool is_finite(const double *row, int64_t numbers)
{
    bool finite = true;
    for (int64_t n = 0; n < numbers; n++) finite &= isfinite(row[n]) != 0;
    return finite;
}

/* Of the keys in the length of a sequence or in a list, as they are given; `numbers` of a row. */
static assay_status check_cached(assay_context *ctx, const assay_decode_config *d, const assay_decode_inputs *in,
                                 const char *path, const double *cache, int64_t numbers)
{
    OWNED_BY(assay_decode_plan_free) assay_decode_plan plan = {0};
    if (cache == NULL || ctx->change != NULL) return ASSAY_OK; /* a mutant may read others */
    MUST(assay_decode_plan_make(ctx, d, in, &plan));
    for (int64_t list = 0; list < plan.lists; list++) {
        for (int64_t i = 0; i < assay_decode_keys(&plan, list) * d->kv_heads; i++) {
            const int64_t key = i / d->kv_heads, row = plan.rows[list * plan.longest + key];
            if (is_finite(cache + assay_decode_place(d, row, i % d->kv_heads) * numbers, numbers)) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "%s: row %" PRId64
                              " holds NaN or an infinity, expected finite numbers: it is key %" PRId64
                              " of %s %" PRId64,
                              path, row, key, d->topk > 0 ? "the list of token" : "sequence", list);
        }
    }
    return ASSAY_OK;
}

assay_status decode_forward(assay_context *ctx, const assay_work *w)
{
    const assay_decode_config *d = decode_of(w->config);
    const quad_decode_config *config = w->config;
    const char *path = config->split_cache ? "inputs/ckv_cache" : d->latent ? "inputs/kv_cache" : "inputs/key_cache";
    OWNED_BY(release_caches) decode_caches made = {0};
    assay_decode_inputs in;
    const assay_decode_call call = {.config = d,
                                    .in = &in,
                                    .attention_out = assay_f64(w, "outputs/attention_out"),
                                    .lse = assay_f64(w, "outputs/lse"),
                                    .partial_out = assay_f64(w, "checkpoints/partial_out"),
                                    .partial_lse = assay_f64(w, "checkpoints/partial_lse")};
    MUST(read_inputs(ctx, w, &made, &in));
    MUST(assay_decode_check_table(ctx, d, &in));
    MUST(check_cached(ctx, d, &in, path, in.key_cache, d->width));
    MUST(check_cached(ctx, d, &in, "inputs/value_cache", in.value_cache, d->v_dim));
    MUST(assay_decode_attend(ctx, &call));
    return d->splits > 0 ? merge(ctx, w, &call) : ASSAY_OK;
}
