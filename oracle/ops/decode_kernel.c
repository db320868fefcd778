/* Attention over a cache of latents from wkv_b on: absorbed into the query, or with heads of their own. */
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/decode_internal.h"
#include "oracle/ops/vector_sums.h"

/* A second form expands keys and values of every head, where these are no more numbers. */
static const int64_t EXPANDED = INT64_C(1) << 22;

/* A product for each head, whose numbers lie beside those of the next: so many in each operand and in the result. */
static assay_status for_each_head(assay_context *ctx, int64_t heads, assay_matmul_args product, int64_t a, int64_t b,
                                  int64_t c)
{
    product.lda = heads * a;
    product.ldb = heads * b;
    product.ldc = heads * c;
    product.kind = product.transpose_a ? ASSAY_PRODUCT_LINEAR_GRADIENT : ASSAY_PRODUCT_LINEAR;
    for (int64_t head = 0; head < heads; head++, product.a += a, product.b += b, product.c += c)
        MUST(assay_matmul(ctx, &product));
    return ASSAY_OK;
}

/* Numbers of a head in a query, and in wkv_b. */
static int64_t deep_of(const assay_decode_config *c)
{
    return c->nope + c->width - c->v_dim;
}

static int64_t wide_of(const assay_decode_config *c)
{
    return c->nope + c->out_dim;
}

/* query [B,S,N,W] of query_nope and query_pe, which are beside each other. */
static assay_status absorb_queries(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   double *query)
{
    const int64_t tokens = c->batch * c->sequence, rope = c->width - c->v_dim, deep = deep_of(c);
    MUST(for_each_head(ctx, c->heads, assay_product_abt(query, in->query, in->kernel, tokens, c->v_dim, c->nope), deep,
                       wide_of(c), c->width));
    for (int64_t row = 0; row < tokens * c->heads; row++) {
        double *to = query + row * c->width;
        assay_round(ctx, ASSAY_ROUND_STORAGE, c->v_dim, to);
        memcpy(to + c->v_dim, in->query + row * deep + c->nope, (size_t)rope * sizeof *to);
    }
    return ASSAY_OK;
}

/* query, and what attention over latents with it gives: latent [splits,B,S,N,V], lse [splits,B,N,S]. */
static assay_status attend_latents(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   const assay_decode_plan *plan, double *query, double *latent, double *lse)
{
    MUST(absorb_queries(ctx, c, in, query));
    MUST(decode_attend(ctx, c, in, plan, query, latent, lse));
    assay_round(ctx, ASSAY_ROUND_STORAGE, plan->splits * c->batch * c->sequence * c->heads * c->v_dim, latent);
    return ASSAY_OK;
}

static assay_status attend_absorbed(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    const assay_decode_plan *plan, double *out, double *lse)
{
    const int64_t tokens = c->batch * c->sequence, all = plan->splits * tokens;
    OWNED double *query = NULL;
    OWNED double *latent = NULL;
    MUST(assay_alloc_f64(ctx, "absorbed query", tokens * c->heads * c->width, &query));
    MUST(assay_alloc_f64(ctx, "latent output", all * c->heads * c->v_dim, &latent));
    MUST(attend_latents(ctx, c, in, plan, query, latent, lse));
    return for_each_head(ctx, c->heads, assay_product_ab(out, latent, in->kernel + c->nope, all, c->out_dim, c->v_dim),
                         c->v_dim, wide_of(c), c->out_dim);
}

/* Through the products with wkv_b after attention over latents, and before it. */
static assay_status absorbed_back(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                  const assay_decode_plan *plan, const assay_decode_call *call,
                                  const assay_decode_gradients *g)
{
    const int64_t tokens = c->batch * c->sequence, all = plan->splits * tokens, rope = c->width - c->v_dim;
    const int64_t queries = tokens * c->heads * c->width, latents = all * c->heads * c->v_dim;
    const int64_t n = c->heads, deep = deep_of(c), wide = wide_of(c);
    OWNED double *query = NULL;
    OWNED double *latent = NULL;
    MUST(assay_alloc_f64(ctx, "absorbed query", 2 * queries, &query));
    MUST(assay_alloc_f64(ctx, "latent output", 2 * latents + all * n, &latent));
    double *dquery = query + queries, *dlatent = latent + latents;
    assay_decode_inputs absorbed = *in;
    assay_decode_gradients own = *g;
    absorbed.query = query;
    own.dquery = dquery;
    MUST(attend_latents(ctx, c, in, plan, query, latent, dlatent + latents));
    MUST(for_each_head(ctx, n, assay_product_abt(dlatent, call->dout, in->kernel + c->nope, all, c->v_dim, c->out_dim),
                       c->out_dim, wide, c->v_dim));
    MUST(for_each_head(ctx, n, assay_product_atb(g->dkernel + c->nope, latent, call->dout, c->v_dim, c->out_dim, all),
                       c->v_dim, c->out_dim, wide));
    assay_round(ctx, ASSAY_ROUND_STORAGE, latents, dlatent);
    MUST(decode_back(ctx, c, &absorbed, plan, &(assay_decode_call){latent, call->lse, dlatent, call->dlse}, &own));
    assay_round(ctx, ASSAY_ROUND_STORAGE, queries, dquery);
    MUST(for_each_head(ctx, n, assay_product_ab(g->dquery, dquery, in->kernel, tokens, c->nope, c->v_dim), c->width,
                       wide, deep));
    MUST(for_each_head(ctx, n, assay_product_atb(g->dkernel, dquery, in->query, c->v_dim, c->nope, tokens), c->width,
                       deep, wide));
    for (int64_t row = 0; row < tokens * n; row++)
        memcpy(g->dquery + row * deep + c->nope, dquery + row * c->width + c->v_dim, (size_t)rope * sizeof *dquery);
    return ASSAY_OK;
}

/* The rows of a list, or zeros. */
static void gather_rows(const assay_decode_config *c, const assay_decode_inputs *in, const assay_decode_plan *plan,
                        int64_t list, double *rows)
{
    const int64_t *places = plan->rows + list * plan->longest, keys = assay_decode_keys(plan, list);
    memset(rows, 0, (size_t)(keys * c->width) * sizeof *rows);
    for (int64_t i = 0; i < keys; i++)
        if (places[i] >= 0)
            memcpy(rows + i * c->width, in->key_cache + places[i] * c->width, (size_t)c->width * sizeof *rows);
}

/* Keys and values of every head, [lists,longest,N,Dn+Dr] and [lists,longest,N,Dv], of what is read. */
static assay_status expand_keys(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                const assay_decode_plan *plan, double *key, double *value)
{
    const int64_t rope = c->width - c->v_dim, wide = wide_of(c), deep = deep_of(c);
    OWNED double *rows = NULL;
    MUST(assay_alloc_f64(ctx, "expanded keys", plan->longest * (c->width + c->heads * wide), &rows));
    double *made = rows + plan->longest * c->width;
    for (int64_t list = 0; list < plan->lists; list++) {
        const int64_t keys = assay_decode_keys(plan, list), first = list * plan->longest;
        assay_matmul_args product = assay_product_ab(made, rows, in->kernel, keys, c->heads * wide, c->v_dim);
        gather_rows(c, in, plan, list, rows);
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

/* The gradients of these keys and values become those of wkv_b and of the rows that they were made of. */
static assay_status expanded_back(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                  const assay_decode_plan *plan, const double *dkey, const double *dvalue,
                                  const assay_decode_gradients *g)
{
    const int64_t rope = c->width - c->v_dim, wide = wide_of(c), deep = deep_of(c), n = c->heads;
    OWNED double *rows = NULL;
    MUST(assay_alloc_f64(ctx, "gradients of expanded keys", plan->longest * (2 * c->width + n * wide), &rows));
    double *drows = rows + plan->longest * c->width, *made = drows + plan->longest * c->width;
    memset(g->dkey, 0, (size_t)(c->pages * c->stride * c->width) * sizeof *g->dkey);
    memset(g->dkernel, 0, (size_t)(c->v_dim * n * wide) * sizeof *g->dkernel);
    for (int64_t list = 0; list < plan->lists; list++) {
        const int64_t keys = assay_decode_keys(plan, list), *places = plan->rows + list * plan->longest;
        const double *key = dkey + list * plan->longest * n * deep,
                     *value = dvalue + list * plan->longest * n * c->out_dim;
        for (int64_t i = 0; i < keys * n; i++) {
            memcpy(made + i * wide, key + i * deep, (size_t)c->nope * sizeof *made);
            memcpy(made + i * wide + c->nope, value + i * c->out_dim, (size_t)c->out_dim * sizeof *made);
        }
        assay_round(ctx, ASSAY_ROUND_STORAGE, keys * n * wide, made);
        assay_matmul_args to_rows = assay_product_abt(drows, made, in->kernel, keys, c->v_dim, n * wide);
        assay_matmul_args to_kernel = assay_product_atb(g->dkernel, rows, made, c->v_dim, n * wide, keys);
        to_rows.kind = ASSAY_PRODUCT_LINEAR;
        to_kernel.kind = ASSAY_PRODUCT_LINEAR_GRADIENT;
        to_rows.ldc = to_kernel.lda = c->width;
        to_kernel.accumulate = true;
        gather_rows(c, in, plan, list, rows);
        MUST(assay_matmul(ctx, &to_rows));
        for (int64_t i = 0; i < keys; i++) {
            double *sum = drows + i * c->width + c->v_dim;
            memset(sum, 0, (size_t)rope * sizeof *sum);
            for (int64_t head = 0; head < n; head++) assay_add(ctx, rope, key + (i * n + head) * deep + c->nope, sum);
            assay_round(ctx, ASSAY_ROUND_STORAGE, c->width, drows + i * c->width);
            if (places[i] >= 0) assay_add(ctx, c->width, drows + i * c->width, g->dkey + places[i] * c->width);
        }
        MUST(assay_matmul(ctx, &to_kernel));
    }
    return ASSAY_OK;
}

/* As a kernel does it that has a head of keys and values for every query head; call NULL: forward, else back. */
static assay_status attend_expanded(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                    const assay_decode_plan *plan, double *out, double *lse,
                                    const assay_decode_call *call, const assay_decode_gradients *g)
{
    const int64_t all = plan->lists * plan->longest, numbers = all * c->heads * (deep_of(c) + c->out_dim);
    assay_decode_config heads = *c;
    assay_decode_inputs expanded = *in;
    assay_decode_plan own = *plan;
    OWNED double *key = NULL;
    OWNED int64_t *places = NULL;
    heads.kv_heads = c->heads;
    heads.width = deep_of(c);
    heads.v_dim = c->out_dim;
    heads.pages = plan->lists;
    heads.stride = plan->longest;
    heads.max_pages = heads.nope = 0;
    heads.latent = heads.heads_first = false;
    MUST(assay_alloc_f64(ctx, "keys and values of every head", (call == NULL ? 1 : 2) * numbers, &key));
    MUST(assay_alloc(ctx, "rows of expanded keys", all, sizeof *places, &places));
    double *value = key + all * c->heads * heads.width;
    MUST(expand_keys(ctx, c, in, plan, key, value));
    for (int64_t i = 0; i < all; i++) places[i] = i;
    own.rows = places;
    expanded.key_cache = key;
    expanded.value_cache = value;
    if (call == NULL) return decode_attend(ctx, &heads, &expanded, &own, in->query, out, lse);
    const assay_decode_gradients made = {g->dquery, key + numbers, value + numbers, g->dsinks, NULL};
    MUST(decode_back(ctx, &heads, &expanded, &own, call, &made));
    return expanded_back(ctx, c, in, plan, made.dkey, made.dvalue, g);
}

static bool expands(const assay_context *ctx, const assay_decode_config *c, const assay_decode_plan *plan)
{
    const int64_t numbers = plan->lists * plan->longest * c->heads * (deep_of(c) + c->out_dim);
    return assay_uses_second_form(ctx) && numbers <= EXPANDED;
}

assay_status assay_decode_attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                 const assay_decode_plan *plan, double *out, double *lse)
{
    if (c->nope == 0) return decode_attend(ctx, c, in, plan, in->query, out, lse);
    if (expands(ctx, c, plan)) return attend_expanded(ctx, c, in, plan, out, lse, NULL, NULL);
    return attend_absorbed(ctx, c, in, plan, out, lse);
}

assay_status assay_decode_backward(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                   const assay_decode_plan *plan, const assay_decode_call *call,
                                   const assay_decode_gradients *g)
{
    if (c->nope == 0) return decode_back(ctx, c, in, plan, call, g);
    if (expands(ctx, c, plan)) return attend_expanded(ctx, c, in, plan, NULL, NULL, call, g);
    return absorbed_back(ctx, c, in, plan, call, g);
}
