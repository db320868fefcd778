/* Attention over a cache of latents from wkv_b on: absorbed into the query, or with heads of their own. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/decode_internal.h"

/* A second form expands keys and values of every head, where these are no more numbers. */
static const int64_t EXPANDED = INT64_C(1) << 22;

/* query [B,S,N,W] of query_nope and query_pe. */
static assay_status absorb_queries(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   double *query)
{
    const int64_t tokens = c->batch * c->sequence, rope = c->width - c->v_dim, wide = c->nope + c->out_dim;
    for (int64_t head = 0; head < c->heads; head++) {
        assay_matmul_args product = assay_product_abt(query + head * c->width, in->query + head * c->nope,
                                                      in->kernel + head * wide, tokens, c->v_dim, c->nope);
        product.lda = c->heads * c->nope;
        product.ldb = c->heads * wide;
        product.ldc = c->heads * c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
    }
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        double *to = query + row * c->width;
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, to);
        memcpy(to + c->v_dim, in->query_pe + row * rope, (size_t)rope * sizeof *to);
    }
    return ASSAY_OK;
}

/* Of the parts by themselves, where these are named. */
static assay_status release_outputs(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    double *latent, double *out)
{
    const int64_t tokens = decode_splits(c) * c->batch * c->sequence, wide = c->nope + c->out_dim;
    assay_round(ctx, ASSAY_ROUND_STORAGE, tokens * c->heads * c->v_dim, latent);
    for (int64_t head = 0; head < c->heads; head++) {
        assay_matmul_args product = assay_product_ab(out + head * c->out_dim, latent + head * c->v_dim,
                                                     in->kernel + head * wide + c->nope, tokens, c->out_dim, c->v_dim);
        product.lda = c->heads * c->v_dim;
        product.ldb = c->heads * wide;
        product.ldc = c->heads * c->out_dim;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
    }
    return ASSAY_OK;
}

static assay_status attend_absorbed(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    double *out, double *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads;
    OWNED double *query = NULL;
    OWNED double *latent = NULL;
    MUST(assay_alloc_f64(ctx, "absorbed query", rows * c->width, &query));
    MUST(assay_alloc_f64(ctx, "latent output", decode_splits(c) * rows * c->v_dim, &latent));
    MUST(absorb_queries(ctx, c, in, query));
    MUST(decode_attend(ctx, c, in, query, latent, lse));
    return release_outputs(ctx, c, in, latent, out);
}

/* Keys and values of every head, [B,L,N,Dn+Dr] and [B,L,N,Dv], of the cache of each sequence. */
static assay_status expand_keys(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                int64_t longest, double *key, double *value)
{
    const int64_t rope = c->width - c->v_dim, wide = c->nope + c->out_dim, deep = c->nope + rope;
    OWNED double *rows = NULL;
    OWNED double *made = NULL;
    MUST(assay_alloc_f64(ctx, "keys of a sequence", longest * c->width, &rows));
    MUST(assay_alloc_f64(ctx, "expanded keys", longest * c->heads * wide, &made));
    for (int64_t b = 0; b < c->batch; b++) {
        const decode_cached d = {.config = c, .in = in, .sequence = b};
        const int64_t keys = in->cache_seqlens[b];
        assay_matmul_args product = assay_product_ab(made, rows, in->kernel, keys, c->heads * wide, c->v_dim);
        decode_gather(&d, in->key_cache, c->width, (decode_keys){0, keys}, rows);
        product.lda = c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
        assay_round(ctx, ASSAY_ROUND_STORAGE, keys * c->heads * wide, made);
        for (int64_t i = 0; i < keys * c->heads; i++) {
            double *to = key + (b * longest * c->heads + i) * deep;
            memcpy(to, made + i * wide, (size_t)c->nope * sizeof *to);
            memcpy(to + c->nope, rows + i / c->heads * c->width + c->v_dim, (size_t)rope * sizeof *to);
            memcpy(value + (b * longest * c->heads + i) * c->out_dim, made + i * wide + c->nope,
                   (size_t)c->out_dim * sizeof *to);
        }
    }
    return ASSAY_OK;
}

/* As a kernel does it that has a head of keys and values for every query head. Parts are those of the cache's pages. */
static assay_status attend_expanded(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    int64_t longest, double *out, double *lse)
{
    const int64_t rope = c->width - c->v_dim, deep = c->nope + rope, rows = c->batch * c->sequence * c->heads;
    const int64_t keys = c->batch * longest * c->heads;
    assay_decode_config heads = *c;
    assay_decode_inputs expanded = *in;
    OWNED double *query = NULL;
    OWNED double *key = NULL;
    OWNED double *value = NULL;
    OWNED int32_t *starts = NULL;
    heads.kv_heads = c->heads;
    heads.width = deep;
    heads.v_dim = c->out_dim;
    heads.pages = c->batch;
    heads.page = heads.stride = longest;
    heads.max_pages = heads.nope = 0;
    heads.latent = heads.heads_first = false;
    MUST(assay_alloc_f64(ctx, "query", rows * deep, &query));
    MUST(assay_alloc_f64(ctx, "keys of every head", keys * deep, &key));
    MUST(assay_alloc_f64(ctx, "values of every head", keys * c->out_dim, &value));
    MUST(assay_alloc_i32(ctx, "parts", c->batch * (c->parts + 1), &starts));
    MUST(expand_keys(ctx, c, in, longest, key, value));
    for (int64_t row = 0; row < rows; row++) {
        memcpy(query + row * deep, in->query + row * c->nope, (size_t)c->nope * sizeof *query);
        memcpy(query + row * deep + c->nope, in->query_pe + row * rope, (size_t)rope * sizeof *query);
    }
    for (int64_t i = 0; i < c->batch * c->parts; i++) {
        const decode_cached d = {.config = c, .in = in, .sequence = i / c->parts};
        const decode_keys part = decode_split(&d, i % c->parts);
        starts[i + d.sequence] = (int32_t)part.begin;
        starts[i + d.sequence + 1] = (int32_t)part.end;
    }
    expanded.key_cache = key;
    expanded.value_cache = value;
    expanded.split_starts = c->parts > 0 ? starts : NULL;
    return decode_attend(ctx, &heads, &expanded, query, out, lse);
}

assay_status decode_attend_from_kernel(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                       double *out, double *lse)
{
    int64_t longest = 1;
    for (int64_t b = 0; b < c->batch; b++) longest = in->cache_seqlens[b] > longest ? in->cache_seqlens[b] : longest;
    const int64_t numbers = c->batch * longest * c->heads * (c->nope + c->width - c->v_dim + c->out_dim);
    return assay_uses_second_form(ctx) && numbers <= EXPANDED ? attend_expanded(ctx, c, in, longest, out, lse)
                                                              : attend_absorbed(ctx, c, in, out, lse);
}
