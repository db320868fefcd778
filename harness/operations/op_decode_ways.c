/* Attention over a cache in other ways: from other places, token by token, from lists, without a cache. */
#include <math.h>
#include <string.h>

#include "harness/operations/op_decode.h"
#include "oracle/base/memory.h"
#include "oracle/ops/attention.h"

/* A way computes outputs/attention_out and outputs/lse of a call. */
typedef assay_status decode_way(assay_context *ctx, const assay_decode_call *call);

static assay_status run_in_a_way(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                                 decode_way *way)
{
    const assay_operation *operation = assay_operation_by_name(c->op);
    assay_operation_config config;
    MUST(assay_operation_configure(ctx, operation, c, &config));
    OWNED_BY(assay_work_close) assay_work w = {.c = c, .config = &config, .in = in, .out = out};
    MUST(assay_work_open(ctx, &w, operation));
    const assay_decode_config *d = &((const quad_decode_config *)(const void *)&config)->decode;
    OWNED_BY(assay_decode_release_caches) assay_decode_caches made = {0};
    assay_decode_inputs given;
    MUST(assay_decode_read_inputs(ctx, &w, &made, &given));
    const assay_decode_call call = {.config = d,
                                    .in = &given,
                                    .attention_out = assay_f64(&w, "outputs/attention_out"),
                                    .lse = assay_f64(&w, "outputs/lse")};
    MUST(way(ctx, &call));
    return assay_work_write(ctx, &w, false);
}

static int64_t longest_of(const assay_decode_config *d, const int32_t *keys)
{
    int64_t longest = 1;
    for (int64_t b = 0; b < d->batch; b++) longest = keys[b] > longest ? keys[b] : longest;
    return longest;
}

static int64_t place_of_lse(const assay_decode_config *d, int64_t b, int64_t token, int64_t head)
{
    return d->lse_tokens_first ? (b * d->sequence + token) * d->heads + head
                               : (b * d->heads + head) * d->sequence + token;
}

/* The tokens of a sequence in a cache without pages, as if all of them had come at once. */
static assay_status prefill_sequence(assay_context *ctx, const assay_decode_call *call, int64_t b)
{
    const assay_decode_config *d = call->config;
    const assay_decode_inputs *in = call->in;
    const int64_t keys = in->cache_seqlens[b], group = d->kv_heads * d->width, wide = d->heads * d->width;
    const int64_t row_of_value = d->kv_heads * d->v_dim, out_wide = d->heads * d->v_dim;
    const assay_attention_config attention = {.batch = 1,
                                              .sequence = keys,
                                              .heads = d->heads,
                                              .qk_dim = d->width,
                                              .v_dim = d->v_dim,
                                              .kv_heads = d->kv_heads,
                                              .window = d->window,
                                              .soft_cap = d->soft_cap};
    OWNED double *room = NULL;
    MUST(assay_alloc_f64(ctx, "a sequence", keys * (wide + group + row_of_value + out_wide + d->heads), &room));
    double *query = room, *key = query + keys * wide, *value = key + keys * group, *out = value + keys * row_of_value;
    double *lse = out + keys * out_wide;
    memset(query, 0, (size_t)(keys * wide) * sizeof *query);
    for (int64_t i = 0; i < keys * d->kv_heads; i++) {
        const int64_t row = assay_decode_row(d, in->block_table, b, i % d->kv_heads, i / d->kv_heads);
        const double *numbers = d->latent ? in->key_cache + row * d->width : in->value_cache + row * d->v_dim;
        memcpy(key + i * d->width, in->key_cache + row * d->width, (size_t)d->width * sizeof *key);
        memcpy(value + i * d->v_dim, numbers, (size_t)d->v_dim * sizeof *value);
    }
    for (int64_t token = 0; token < d->sequence; token++) {
        const int64_t at = keys - d->sequence + token;
        for (int64_t i = 0; i < wide && at >= 0; i++)
            query[at * wide + i] = d->scale * in->query[(b * d->sequence + token) * wide + i];
    }
    const assay_attention_inputs inputs = {.query = query, .key = key, .value = value, .sinks = in->sinks};
    MUST(assay_attention_forward(ctx, out, lse, &inputs, &attention));
    for (int64_t token = 0; token < d->sequence; token++) {
        const int64_t at = keys - d->sequence + token;
        if (at < 0) continue;
        memcpy(call->attention_out + (b * d->sequence + token) * out_wide, out + at * out_wide,
               (size_t)out_wide * sizeof *out);
        for (int64_t head = 0; head < d->heads && call->lse != NULL; head++)
            call->lse[place_of_lse(d, b, token, head)] = lse[head * keys + at] / (d->base_2 ? M_LN2 : 1);
    }
    return ASSAY_OK;
}

static assay_status as_prefill(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    const int64_t rows = d->batch * d->sequence * d->heads;
    memset(call->attention_out, 0, (size_t)(rows * d->v_dim) * sizeof *call->attention_out);
    for (int64_t row = 0; row < rows && call->lse != NULL; row++) call->lse[row] = d->empty_row;
    for (int64_t b = 0; b < d->batch; b++)
        if (call->in->cache_seqlens[b] > 0) MUST(prefill_sequence(ctx, call, b));
    return ASSAY_OK;
}

/* Every key that a token sees, in a list. */
static assay_status in_lists(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    assay_decode_config to = *d;
    assay_decode_inputs in = *call->in;
    assay_decode_call other = *call;
    OWNED int32_t *indices = NULL;
    to.topk = longest_of(d, in.cache_seqlens);
    to.max_pages = to.window = 0;
    MUST(assay_alloc_i32(ctx, "lists of rows", d->batch * d->sequence * to.topk, &indices));
    for (int64_t i = 0; i < d->batch * d->sequence * to.topk; i++) {
        const int64_t b = i / to.topk / d->sequence, token = i / to.topk % d->sequence, key = i % to.topk;
        const int64_t end = in.cache_seqlens[b] - d->sequence + token + 1;
        const bool seen = key < end && (d->window == 0 || key >= end - d->window);
        const int64_t row = seen ? assay_decode_row(d, in.block_table, b, 0, key) : -1;
        indices[i] = seen ? (int32_t)(row / d->stride * d->page + row % d->stride) : -1;
    }
    in.indices = indices;
    other.config = &to;
    other.in = &in;
    return assay_decode_attend(ctx, &other);
}

/* What is read of each list, from its end to its beginning. */
static assay_status in_other_order(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    assay_decode_inputs in = *call->in;
    assay_decode_call other = *call;
    OWNED int32_t *indices = NULL;
    MUST(assay_alloc_i32(ctx, "lists of rows", d->batch * d->sequence * d->topk, &indices));
    for (int64_t i = 0; i < d->batch * d->sequence * d->topk; i++) {
        const int64_t list = i / d->topk, entry = i % d->topk;
        const int64_t count = in.topk_length == NULL ? d->topk : in.topk_length[list / d->sequence];
        indices[i] = entry < count ? call->in->indices[list * d->topk + count - 1 - entry] : -1;
    }
    in.indices = indices;
    other.in = &in;
    return assay_decode_attend(ctx, &other);
}

assay_status assay_decode_run_in_lists(assay_context *ctx, const assay_case *c, const assay_source *in,
                                       const assay_sink *out)
{
    return run_in_a_way(ctx, c, in, out, in_lists);
}

assay_status assay_decode_run_in_other_order(assay_context *ctx, const assay_case *c, const assay_source *in,
                                             const assay_sink *out)
{
    return run_in_a_way(ctx, c, in, out, in_other_order);
}

assay_status assay_decode_run_as_prefill(assay_context *ctx, const assay_case *c, const assay_source *in,
                                         const assay_sink *out)
{
    return run_in_a_way(ctx, c, in, out, as_prefill);
}
