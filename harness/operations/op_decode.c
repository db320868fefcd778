/* Attention over a cache: mla_decode and gqa_decode. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_cache.h"
#include "harness/operations/op_work.h"
#include "oracle/base/memory.h"
#include "oracle/ops/decode_attention.h"

typedef struct decode_config {
    quad_decode_config quad; /* the first, since it is what the second form gets */
    bool sinks;
    int32_t padding; /* of the block table */
} decode_config;

static const assay_decode_config *decode_of(const void *config)
{
    return &((const decode_config *)config)->quad.decode;
}

/* Of a sequence. */
static int64_t most_keys(const assay_decode_config *d)
{
    return d->max_pages > 0 ? d->max_pages * d->page : d->page;
}

static assay_status pages_of(assay_context *ctx, const assay_case *c, assay_decode_config *d)
{
    const assay_model_config *m = &c->config;
    if (m->pagedattn_num_pages == 0) {
        if (m->pagedattn_page_stride > 0)
            return assay_refuse_key(ctx, m, ASSAY_KEY_AT_pagedattn_page_stride, "0: there are no pages");
        d->pages = c->batch;
        d->page = d->stride = m->cache_length;
        return ASSAY_OK;
    }
    d->pages = m->pagedattn_num_pages;
    d->page = m->pagedattn_tokens_per_page;
    d->stride = m->pagedattn_page_stride > 0 ? m->pagedattn_page_stride : d->page;
    if (m->use_indexer) return ASSAY_OK; /* there is no block table */
    d->max_pages = m->pagedattn_max_pages_per_group;
    if (d->max_pages < 1 && d->page > 0) d->max_pages = (m->cache_length + d->page - 1) / d->page;
    return d->max_pages > 0 ? ASSAY_OK
                            : assay_refuse_key(ctx, m, ASSAY_KEY_AT_pagedattn_max_pages_per_group,
                                               "1 or more, or a cache_length that says it");
}

/* Chunks of the longest context that there may be, and the new tokens' own keys. */
static assay_status parts_of(assay_context *ctx, const assay_case *c, assay_decode_config *d)
{
    const assay_model_config *m = &c->config;
    d->parts = m->num_kv_splits;
    if (!m->use_chunked_prefill) return ASSAY_OK;
    if (m->num_kv_splits > 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_num_kv_splits, "0: use_chunked_prefill has parts of its own");
    const int64_t context = most_keys(d) - d->sequence;
    d->chunk = m->prefill_chunk_size;
    d->parts = (context > 0 ? (context - 1) / d->chunk + 1 : 0) + 1;
    return ASSAY_OK;
}

/* What both operations have. */
static assay_status common_of(assay_context *ctx, const assay_case *c, decode_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (decode_config){.sinks = m->attention_sink,
                              .padding = (int32_t)m->block_table_padding,
                              .quad.query_scale = m->query_pre_attn_scalar};
    config->quad.decode = (assay_decode_config){.batch = c->batch,
                                                .sequence = c->sequence,
                                                .heads = m->base_num_query_heads,
                                                .kv_heads = 1,
                                                .soft_cap = m->attn_logits_soft_cap,
                                                .base_2 = m->lse_base.text[0] == '2',
                                                .lse_tokens_first = strcmp(m->lse_layout.text, "BSN") == 0,
                                                .empty_row = m->empty_row.text[0] == '-' ? -INFINITY : INFINITY};
    MUST(assay_window_of(ctx, m, &config->quad.decode.window));
    MUST(pages_of(ctx, c, &config->quad.decode));
    return parts_of(ctx, c, &config->quad.decode);
}

/* Of rows, which an indexer has chosen. */
static assay_status lists_of(assay_context *ctx, const assay_model_config *m, assay_decode_config *d)
{
    if (!m->use_indexer) return ASSAY_OK;
    if (m->use_chunked_prefill)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_use_chunked_prefill, "false: lists of rows have no context");
    if (d->window > 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_sliding_window_size, "0: lists of rows have no order");
    d->topk = m->indexer_topk;
    return ASSAY_OK;
}

/* Numbers, or bytes of a format. */
static assay_status cache_of(assay_context *ctx, const assay_case *c, decode_config *config)
{
    const assay_model_config *m = &c->config;
    const assay_decode_config *d = &config->quad.decode;
    const assay_cache_format *f = assay_cache_format_by_name(m->kv_cache_dtype.text);
    const assay_cache_config pages = {
        .pages = d->pages, .tokens = d->page, .stride = d->stride, .heads = d->kv_heads, .heads_first = d->heads_first};
    MUST(assay_decode_check(ctx, d));
    config->quad.split = m->kv_cache_split;
    if (config->quad.split && !d->latent)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_kv_cache_split, "false: keys and values are two caches");
    if (f != NULL && (f->kind == ASSAY_CACHE_KEYS || (f->kind == ASSAY_CACHE_LATENT && !d->latent)))
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_kv_cache_dtype,
                                d->latent ? "a format of latents" : "a format of keys and values");
    if (strcmp(m->kv_cache_dtype.text, assay_cache_format_names[0]) == 0) return ASSAY_OK;
    return assay_cache_streams_of(ctx, c, &pages, d->latent, &config->quad.bytes);
}

static assay_status mla_config_of(assay_context *ctx, const assay_case *c, void *to)
{
    const assay_model_config *m = &c->config;
    decode_config *config = to;
    assay_decode_config *d = &config->quad.decode;
    const bool naive = strcmp(m->attn_impl.text, "naive") == 0;
    assay_mla_config *mla = &config->quad.mla;
    MUST(common_of(ctx, c, config));
    MUST(assay_require_positive(ctx, "qk_nope_head_dim", m->qk_nope_head_dim));
    if (strcmp(m->kv_layout.text, "NHD") != 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_kv_layout, "NHD: the cache of op mla_decode has no heads");
    *mla = (assay_mla_config){
        .qk_nope_head_dim = m->qk_nope_head_dim, .mscale = m->mscale, .query_scale = m->query_pre_attn_scalar};
    MUST(assay_rope_config_of(ctx, c, &mla->rope));
    d->latent = true;
    MUST(lists_of(ctx, m, d));
    d->v_dim = m->kv_lora_rank;
    d->width = m->kv_lora_rank + m->qk_rope_head_dim;
    d->nope = naive ? m->qk_nope_head_dim : 0;
    d->out_dim = naive ? m->v_head_dim : 0;
    d->scale = m->query_pre_attn_scalar != 0 ? m->query_pre_attn_scalar : assay_mla_softmax_scale(mla);
    return cache_of(ctx, c, config);
}

static assay_status gqa_config_of(assay_context *ctx, const assay_case *c, void *to)
{
    const assay_model_config *m = &c->config;
    decode_config *config = to;
    assay_decode_config *d = &config->quad.decode;
    MUST(common_of(ctx, c, config));
    MUST(assay_require_positive(ctx, "head_dim", m->head_dim));
    if (strcmp(m->attn_impl.text, "absorb") != 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_attn_impl, "absorb: op gqa_decode has one form");
    if (m->use_indexer)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_use_indexer, "false: an indexer chooses keys of op mla_decode");
    d->kv_heads = m->base_num_kv_heads > 0 ? m->base_num_kv_heads : d->heads;
    d->width = d->v_dim = m->head_dim;
    d->heads_first = strcmp(m->kv_layout.text, "HND") == 0;
    d->scale = m->query_pre_attn_scalar != 0 ? m->query_pre_attn_scalar : 1 / sqrt((double)m->head_dim);
    return cache_of(ctx, c, config);
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_decode_config *d = decode_of(config);
    switch (axis) {
    case 'B':
        return d->batch;
    case 'S':
        return d->sequence;
    case 'N':
        return d->heads;
    case 'g':
        return d->kv_heads;
    case 'W':
        return d->pages;
    case 'U':
    case 'Y':
        return d->stride;
    case 'Z':
        return d->max_pages;
    case 'X':
        return d->parts;
    case '4':
        return d->topk;
    case 'w':
        return d->width;
    case 'R':
        return d->width - d->v_dim;
    case 'i':
        return d->nope;
    case 'u':
        return d->nope + d->out_dim;
    case 'v':
        return d->out_dim;
    default:
        return d->v_dim; /* l, z */
    }
}

/* Rows of the cache hold what nobody looks at, where no sequence has them. */
static void describe_cache(assay_describer *d, const char *path, const char *axes)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_describe(d, path, d->c->dtype, &one, axes);
    assay_described(d, 1)->unused_row_axes = (int)strlen(axes) - 1;
}

static void describe_bytes(assay_describer *d, const assay_cache_append_config *bytes)
{
    const int before = d->list->count;
    assay_describe_cache(d, "inputs", bytes);
    for (int back = d->list->count - before; back > 0; back--) assay_described(d, back)->derived = true;
    for (int64_t i = 0; i < bytes->stream_count; i++)
        if (i == 0 || strcmp(bytes->streams[i].scale, bytes->streams[0].scale) != 0)
            assay_describe_given_scale(d, &bytes->streams[i]);
}

static void describe_caches(assay_describer *d, const quad_decode_config *config)
{
    const assay_decode_config *c = &config->decode;
    const bool paged = d->c->config.pagedattn_num_pages > 0;
    if (config->bytes.stream_count > 0) {
        describe_bytes(d, &config->bytes);
    } else if (config->split) {
        describe_cache(d, "inputs/ckv_cache", paged ? "WUl" : "BYl");
        describe_cache(d, "inputs/kpe_cache", paged ? "WUR" : "BYR");
    } else if (c->latent) {
        describe_cache(d, "inputs/kv_cache", paged ? "WUw" : "BYw");
    } else {
        const char *axes = c->heads_first ? paged ? "WgUz" : "BgYz" : paged ? "WUgz" : "BYgz";
        describe_cache(d, "inputs/key_cache", axes);
        describe_cache(d, "inputs/value_cache", axes);
    }
}

/* Where the case lists them, all of them. */
static void describe_indices(assay_describer *d, const char *path, const assay_fill *fill, const char *axes)
{
    assay_describe(d, path, ASSAY_INT32, fill, axes);
    assay_require_all_values(d, path, assay_shape_count(&assay_described(d, 1)->spec.shape));
}

/* Scores have a deviation of 1: those of a latent cache are not scaled by the width of its rows. */
static assay_fill query_fill(const assay_decode_config *c)
{
    const int64_t numbers = c->nope > 0 ? c->nope + c->width - c->v_dim : c->width;
    return assay_fill_normal(c->latent ? 1 / (c->scale * sqrt((double)numbers)) : 1.0, 0.0);
}

/* How many entries of a list are read, where the case says that. */
static void describe_lists(assay_describer *d)
{
    static const char path[] = "inputs/topk_length";
    const assay_case_input *given = assay_case_input_of(d->c, path);
    describe_indices(d, "inputs/indices", NULL, "BS4");
    assay_described(d, 1)->derived = true;
    if (given != NULL) describe_indices(d, path, &given->fill, "B");
}

static void describe(assay_describer *d, const void *of)
{
    const decode_config *config = of;
    const assay_decode_config *c = &config->quad.decode;
    const assay_fill one = assay_fill_normal(1.0, 0.0),
                     drawn = assay_fill_range(ASSAY_INTEGERS, 0, (double)most_keys(c));
    const assay_fill query = query_fill(c);
    if (c->nope > 0) {
        assay_describe(d, "inputs/query_nope", d->c->dtype, &query, "BSNi");
        assay_describe(d, "inputs/query_pe", d->c->dtype, &query, "BSNR");
    } else {
        assay_describe(d, "inputs/query", d->c->dtype, &query, c->latent ? "BSNw" : "BSNz");
    }
    if (c->topk > 0) describe_lists(d);
    if (c->topk == 0) describe_indices(d, "inputs/cache_seqlens", &drawn, "B");
    if (c->max_pages > 0) {
        describe_indices(d, "inputs/block_table", NULL, "BZ");
        assay_described(d, 1)->derived = true;
    }
    describe_caches(d, &config->quad);
    if (c->nope > 0) {
        const assay_fill kernel = assay_fill_fan_in(c->v_dim);
        assay_describe(d, "weights/wkv_b/kernel", d->c->dtype, &kernel, "lNu");
    }
    if (config->sinks) {
        assay_describe(d, "weights/sinks", d->c->dtype, &one, "N");
        assay_described(d, 1)->infinite = true;
    }
    if (c->parts > 0) {
        assay_describe_result(d, "checkpoints", "partial_lse", ASSAY_FLOAT64, "XBNS");
        assay_describe_result(d, "checkpoints", "partial_out", ASSAY_FLOAT64,
                              c->nope > 0 ? "XBSNv"
                              : c->latent ? "XBSNl"
                                          : "XBSNz");
        assay_described(d, 1)->unused_row_axes = 4;
    }
    if (d->c->config.return_lse) assay_describe_output(d, "lse", NULL, c->lse_tokens_first ? "BSN" : "BNS");
    assay_describe_output(d, "attention_out", NULL, c->nope > 0 ? "BSNv" : c->latent ? "BSNl" : "BSNz");
}

/* Of each list other rows in a drawn order, none of them twice, but for about one entry in eight, which is no row. */
static assay_status derive_lists(assay_context *ctx, const assay_decode_config *d, uint64_t seed, int32_t *indices)
{
    enum { SOME = 8, APART = 7919 };
    const assay_fill order = {.distribution = ASSAY_PERMUTATION}, which = assay_fill_range(ASSAY_INTEGERS, 0, SOME - 1);
    const int64_t all = d->pages * d->page, entries = d->batch * d->sequence * d->topk;
    const int32_t none[] = {-1, INT32_MAX, INT32_MIN, (int32_t)all};
    const assay_shape rows_shape = assay_shape_of(1, all), shape = assay_shape_of(1, entries);
    OWNED int32_t *rows = NULL;
    MUST(assay_alloc_i32(ctx, "rows", all, &rows));
    MUST(assay_random_fill_i32(ctx, &order, seed, "inputs/indices", &rows_shape, rows));
    MUST(assay_random_fill_i32(ctx, &which, seed, "inputs/indices/invalid", &shape, indices));
    for (int64_t i = 0; i < entries; i++) {
        const int64_t entry = i % d->topk, first = i / d->topk * APART % all;
        indices[i] = indices[i] == 0 || entry >= all ? none[i % 4] : rows[(first + entry) % all];
    }
    return ASSAY_OK;
}

/* Pages in any order, none of them twice; what lies behind those of a sequence is padding. */
static assay_status derive_table(assay_context *ctx, const assay_case *c, const decode_config *config,
                                 const assay_tensor_entry *entry, const assay_source *in, int32_t *indices)
{
    const assay_decode_config *d = &config->quad.decode;
    const assay_fill fill = {.distribution = ASSAY_PERMUTATION};
    const char *path = entry->spec.path;
    OWNED int32_t *keys = NULL;
    OWNED int32_t *pages = NULL;
    int64_t next = 0;
    const assay_shape shape = assay_shape_of(1, d->pages);
    MUST(assay_alloc_i32(ctx, "inputs/cache_seqlens", d->batch, &keys));
    MUST(in->read_i32(ctx, in->self, "inputs/cache_seqlens", 0, d->batch, keys));
    MUST(assay_alloc_i32(ctx, "pages", d->pages, &pages));
    MUST(assay_random_fill_i32(ctx, &fill, c->seed, path, &shape, pages));
    for (int64_t b = 0; b < d->batch; b++) {
        const int64_t used = (keys[b] + d->page - 1) / d->page;
        for (int64_t i = 0; i < d->max_pages; i++) {
            indices[b * d->max_pages + i] = i < used && next < d->pages ? pages[next] : config->padding;
            next += i < used;
        }
    }
    const assay_decode_inputs made = {.block_table = indices, .cache_seqlens = keys};
    if (next <= d->pages) return assay_decode_check_table(ctx, d, &made);
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "pagedattn_num_pages is %" PRId64 ", expected %" PRId64
        " or more, which the keys of inputs/cache_seqlens fill; or an inputs/block_table that shares pages",
        d->pages, next);
}

/* What is given of the keys: lengths and a table, or lists. */
typedef struct decode_given {
    int32_t *keys, *table, *indices, *lengths;
} decode_given;

static void release_given(decode_given *given)
{
    free(given->keys);
    free(given->table);
    free(given->indices);
    free(given->lengths);
}

static assay_status read_given(assay_context *ctx, const assay_decode_config *d, const assay_source *source,
                               decode_given *given, assay_decode_inputs *in)
{
    MUST(assay_read_whole_i32(ctx, source, "inputs/cache_seqlens", d->batch, &given->keys));
    MUST(assay_read_whole_i32(ctx, source, "inputs/block_table", d->batch * d->max_pages, &given->table));
    MUST(assay_read_whole_i32(ctx, source, "inputs/indices", d->batch * d->sequence * d->topk, &given->indices));
    MUST(assay_read_whole_i32(ctx, source, "inputs/topk_length", d->batch, &given->lengths));
    *in = (assay_decode_inputs){.cache_seqlens = given->keys,
                                .block_table = given->table,
                                .indices = given->indices,
                                .topk_length = given->lengths};
    return assay_decode_check_table(ctx, d, in);
}

/* Rows of the cache that lie in the length of a sequence or in a list, of heads by themselves. */
static void use_cached(const assay_decode_config *d, const assay_decode_inputs *in, bool *used)
{
    for (int64_t i = 0; i < d->batch * d->sequence * d->topk; i++) {
        const int64_t row = assay_decode_listed_row(d, in, i / d->topk, i % d->topk);
        if (row >= 0) used[row] = true;
    }
    for (int64_t b = 0; b < d->batch && d->topk == 0; b++) {
        for (int64_t i = 0; i < in->cache_seqlens[b] * d->kv_heads; i++)
            used[assay_decode_row(d, in->block_table, b, i % d->kv_heads, i / d->kv_heads)] = true;
    }
}

/* The slots of tokens that sequences have, and -1 for others. */
static assay_status slots_of(assay_context *ctx, const assay_decode_config *d, const assay_source *source,
                             int32_t *slots)
{
    const int64_t rows = d->pages * d->stride * d->kv_heads;
    OWNED_BY(release_given) decode_given given = {0};
    OWNED bool *used = NULL;
    assay_decode_inputs in;
    MUST(read_given(ctx, d, source, &given, &in));
    MUST(assay_alloc(ctx, "rows that are used", rows, sizeof *used, &used));
    memset(used, 0, (size_t)rows * sizeof *used);
    use_cached(d, &in, used);
    for (int64_t i = 0; i < d->pages * d->page; i++) {
        const int64_t first = i / d->page * d->stride * d->kv_heads;
        slots[i] = used[first + i % d->page * (d->heads_first ? 1 : d->kv_heads)] ? (int32_t)i : -1;
    }
    return ASSAY_OK;
}

static assay_status derive_bytes(assay_context *ctx, const assay_case *c, const decode_config *config, const char *path,
                                 const assay_source *in, int32_t *indices)
{
    const assay_decode_config *d = &config->quad.decode;
    const assay_cache_append_config *streams = &config->quad.bytes;
    OWNED int32_t *slots = NULL;
    MUST(assay_alloc_i32(ctx, "slots", d->pages * d->page, &slots));
    MUST(slots_of(ctx, d, in, slots));
    return assay_draw_cache(ctx, c->seed, streams, path, in, slots, indices);
}

static assay_status derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices)
{
    assay_operation_config of;
    const decode_config *config = (const void *)&of;
    (void)values;
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
    if (strcmp(entry->spec.path, "inputs/block_table") == 0) return derive_table(ctx, c, config, entry, in, indices);
    if (strcmp(entry->spec.path, "inputs/indices") == 0)
        return derive_lists(ctx, &config->quad.decode, c->seed, indices);
    return derive_bytes(ctx, c, config, entry->spec.path, in, indices);
}

/* Rows [parts,B,S,N] of parts that have keys. */
static void use_parts(const assay_decode_config *d, const assay_decode_inputs *in, bool *used)
{
    const int64_t tokens = d->batch * d->sequence;
    for (int64_t i = 0; i < d->parts * tokens; i++) {
        const int64_t token = i % tokens, part = i / tokens;
        const bool some = assay_decode_keys_of_part(d, in, part, token / d->sequence, token % d->sequence) > 0;
        for (int64_t head = 0; head < d->heads; head++) used[i * d->heads + head] = some;
    }
}

static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *source, bool **used)
{
    assay_operation_config config;
    const assay_decode_config *d = decode_of(&config);
    OWNED_BY(release_given) decode_given given = {0};
    assay_decode_inputs in;
    const int64_t rows = assay_shape_count(&of->spec.shape) / assay_unused_row_width(of);
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &config));
    MUST(read_given(ctx, d, source, &given, &in));
    MUST(assay_alloc(ctx, "rows that are used", rows, sizeof **used, used));
    memset(*used, 0, (size_t)rows * sizeof **used);
    if (of->spec.role == ASSAY_ROLE_CHECKPOINT) use_parts(d, &in, *used);
    if (of->spec.role == ASSAY_ROLE_INPUT) use_cached(d, &in, *used);
    return ASSAY_OK;
}

static assay_status merge(assay_context *ctx, const assay_work *w, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    const int64_t rows = d->parts * d->batch * d->sequence * d->heads, numbers = rows * assay_decode_out_dim(d);
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
    if (config->bytes.stream_count == 0 && !config->split) return ASSAY_OK;
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
    if (cache == NULL || ctx->change != NULL) return ASSAY_OK; /* a mutant may read others */
    for (int64_t i = 0; i < d->batch * d->sequence * d->topk; i++) {
        const int64_t row = assay_decode_listed_row(d, in, i / d->topk, i % d->topk);
        if (row < 0 || is_finite(cache + row * numbers, numbers)) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "%s: row %" PRId64
                          " holds NaN or an infinity, expected finite numbers: inputs/indices[%" PRId64 "] names it",
                          path, row, i);
    }
    for (int64_t i = 0; i < d->batch * d->kv_heads && d->topk == 0; i++) {
        const int64_t b = i / d->kv_heads;
        for (int64_t key = 0; key < in->cache_seqlens[b]; key++) {
            const int64_t row = assay_decode_row(d, in->block_table, b, i % d->kv_heads, key);
            if (is_finite(cache + row * numbers, numbers)) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "%s: key %" PRId64 " of sequence %" PRId64
                              " holds NaN or an infinity, expected finite numbers: it lies in the sequence's length",
                              path, key, b);
        }
    }
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_decode_config *d = decode_of(w->config);
    const quad_decode_config *config = w->config;
    const char *path = config->split ? "inputs/ckv_cache" : d->latent ? "inputs/kv_cache" : "inputs/key_cache";
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
    return d->parts > 0 ? merge(ctx, w, &call) : ASSAY_OK;
}

static double operations(const void *config, bool backward)
{
    const assay_decode_config *d = decode_of(config);
    (void)backward;
    return assay_decode_flops(d, d->topk > 0 ? d->topk : most_keys(d));
}

#define ROW(of, say)                                                                                                   \
    const assay_operation assay_op_##of##_decode = {.name = #of "_decode",                                             \
                                                    .parts =                                                           \
                                                        ASSAY_PART_ATTENTION | ASSAY_PART_SHARING | ASSAY_PART_DECODE, \
                                                    .summary = say " over a cache, contiguous or in pages",            \
                                                    .config_of = of##_config_of,                                       \
                                                    .axis_size = axis_size,                                            \
                                                    .describe = describe,                                              \
                                                    .derive = derive,                                                  \
                                                    .forward = forward,                                                \
                                                    .used_rows = used_rows,                                            \
                                                    .second_form = {.form = quad_decode},                              \
                                                    .operations = operations}

ROW(mla, "multi-head latent attention of few tokens");
ROW(gqa, "grouped-query attention of few tokens");
