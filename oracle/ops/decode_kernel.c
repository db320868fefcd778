/* Attention over a cache of latents from wkv_b on: absorbed into the query, or with heads of their own. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/decode_internal.h"

/* A second form expands keys and values of every head, where these are no more numbers. */
static const int64_t EXPANDED = INT64_C(1) << 22;

/* query [B,S,N,W] of query_nope and query_pe, which are beside each other. */
static assay_status absorb_queries(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   double *query)
{
    const int64_t tokens = c->batch * c->sequence, rope = c->width - c->v_dim, wide = c->nope + c->out_dim,
                  deep = c->nope + rope;
    for (int64_t head = 0; head < c->heads; head++) {
        assay_matmul_args product = assay_product_abt(query + head * c->width, in->query + head * deep,
                                                      in->kernel + head * wide, tokens, c->v_dim, c->nope);
        product.lda = c->heads * deep;
        product.ldb = c->heads * wide;
        product.ldc = c->heads * c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
    }
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        double *to = query + row * c->width;
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, to);
        memcpy(to + c->v_dim, in->query + row * deep + c->nope, (size_t)rope * sizeof *to);
    }
    return ASSAY_OK;
}

/* Of the splits by themselves, where these are named. */
static assay_status release_outputs(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    const assay_decode_plan *plan, double *latent, double *out)
{
    const int64_t tokens = plan->splits * c->batch * c->sequence, wide = c->nope + c->out_dim;
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
                                    const assay_decode_plan *plan, double *out, double *lse)
{
    const int64_t rows = c->batch * c->sequence * c->heads;
    OWNED double *query = NULL;
    OWNED double *latent = NULL;
    MUST(assay_alloc_f64(ctx, "absorbed query", rows * c->width, &query));
    MUST(assay_alloc_f64(ctx, "latent output", plan->splits * rows * c->v_dim, &latent));
    MUST(absorb_queries(ctx, c, in, query));
    MUST(decode_attend(ctx, c, in, plan, query, latent, lse));
    return release_outputs(ctx, c, in, plan, latent, out);
}

/* Keys and values of every head, [lists,longest,N,Dn+Dr] and [lists,longest,N,Dv], of what is read. */
static assay_status expand_keys(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                const assay_decode_plan *plan, double *key, double *value)
{
    const int64_t rope = c->width - c->v_dim, wide = c->nope + c->out_dim, deep = c->nope + rope;
    OWNED double *rows = NULL;
    OWNED double *made = NULL;
    MUST(assay_alloc_f64(ctx, "keys of a sequence", plan->longest * c->width, &rows));
    MUST(assay_alloc_f64(ctx, "expanded keys", plan->longest * c->heads * wide, &made));
    for (int64_t list = 0; list < plan->lists; list++) {
        const int64_t keys = assay_decode_keys(plan, list), first = list * plan->longest;
        assay_matmul_args product = assay_product_ab(made, rows, in->kernel, keys, c->heads * wide, c->v_dim);
        for (int64_t i = 0; i < keys; i++)
            memcpy(rows + i * c->width, in->key_cache + plan->rows[first + i] * c->width,
                   (size_t)c->width * sizeof *rows);
        product.lda = c->width;
        product.kind = ASSAY_PRODUCT_LINEAR;
        MUST(assay_matmul(ctx, &product));
        assay_round(ctx, ASSAY_ROUND_STORAGE, keys * c->heads * wide, made);
        for (int64_t i = 0; i < keys * c->heads; i++) {
            double *to = key + (first * c->heads + i) * deep;
            memcpy(to, made + i * wide, (size_t)c->nope * sizeof *to);
            memcpy(to + c->nope, rows + i / c->heads * c->width + c->v_dim, (size_t)rope * sizeof *to);
            memcpy(value + (first * c->heads + i) * c->out_dim, made + i * wide + c->nope,
                   (size_t)c->out_dim * sizeof *to);
        }
    }
    return ASSAY_OK;
}

/* As a kernel does it that has a head of keys and values for every query head. */
static assay_status attend_expanded(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    const assay_decode_plan *plan, double *out, double *lse)
{
    const int64_t deep = c->nope + c->width - c->v_dim, all = plan->lists * plan->longest, keys = all * c->heads;
    assay_decode_config heads = *c;
    assay_decode_inputs expanded = *in;
    assay_decode_plan own = *plan;
    OWNED double *key = NULL;
    OWNED double *value = NULL;
    OWNED int64_t *places = NULL;
    heads.kv_heads = c->heads;
    heads.width = deep;
    heads.v_dim = c->out_dim;
    heads.max_pages = heads.nope = 0;
    heads.latent = heads.heads_first = false;
    MUST(assay_alloc_f64(ctx, "keys of every head", keys * deep, &key));
    MUST(assay_alloc_f64(ctx, "values of every head", keys * c->out_dim, &value));
    MUST(assay_alloc(ctx, "rows of expanded keys", all, sizeof *places, &places));
    MUST(expand_keys(ctx, c, in, plan, key, value));
    for (int64_t i = 0; i < all; i++) places[i] = i;
    own.rows = places;
    expanded.key_cache = key;
    expanded.value_cache = value;
    return decode_attend(ctx, &heads, &expanded, &own, in->query, out, lse);
}

assay_status assay_decode_attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                 const assay_decode_plan *plan, double *out, double *lse)
{
    if (c->nope == 0) return decode_attend(ctx, c, in, plan, in->query, out, lse);
    const int64_t keys = plan->lists * plan->longest, each = c->nope + c->width - c->v_dim + c->out_dim;
    const bool expands = assay_uses_second_form(ctx) && keys * c->heads * each <= EXPANDED;
    return (expands ? attend_expanded : attend_absorbed)(ctx, c, in, plan, out, lse);
}
