/* Attention over a cache: mla_decode and gqa_decode. */
#include "harness/operations/op_decode.h"

#include <math.h>
#include <string.h>

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
static assay_status splits_of(assay_context *ctx, const assay_case *c, assay_decode_config *d)
{
    const assay_model_config *m = &c->config;
    d->splits = m->num_kv_splits;
    if (!m->use_chunked_prefill) return ASSAY_OK;
    if (m->num_kv_splits > 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_num_kv_splits, "0: use_chunked_prefill has parts of its own");
    const int64_t context = most_keys(d) - d->sequence;
    d->chunk = m->prefill_chunk_size;
    d->splits = (context > 0 ? (context - 1) / d->chunk + 1 : 0) + 1;
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
                                                .variant = m->attention_variant,
                                                .base_2 = m->lse_base.text[0] == '2',
                                                .lse_tokens_first = strcmp(m->lse_layout.text, "BSN") == 0,
                                                .empty_row = m->empty_row.text[0] == '-' ? -INFINITY : INFINITY};
    MUST(assay_window_of(ctx, m, &config->quad.decode.window));
    MUST(pages_of(ctx, c, &config->quad.decode));
    return splits_of(ctx, c, &config->quad.decode);
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
    config->quad.split_cache = m->kv_cache_split;
    if (config->quad.split_cache && !d->latent)
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
    d->value_first = m->value_last ? d->width - d->v_dim : 0;
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
    if (axis == 'B') return d->batch;
    if (axis == 'S') return d->sequence;
    if (axis == 'N') return d->heads;
    if (axis == 'g') return d->kv_heads;
    if (axis == 'W') return d->pages;
    if (axis == 'U' || axis == 'Y') return d->stride;
    if (axis == 'Z') return d->max_pages;
    if (axis == 'X') return d->splits;
    if (axis == '4') return d->topk;
    if (axis == 'w') return d->width;
    if (axis == 'R') return d->width - d->v_dim;
    if (axis == 'i') return d->nope;
    if (axis == 'u') return d->nope + d->out_dim;
    if (axis == 'v') return d->out_dim;
    return d->v_dim; /* l, z */
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
            assay_describe_scale_input(d, &bytes->streams[i]);
}

static void describe_caches(assay_describer *d, const quad_decode_config *config)
{
    const assay_decode_config *c = &config->decode;
    const bool paged = d->c->config.pagedattn_num_pages > 0;
    if (config->bytes.stream_count > 0) {
        describe_bytes(d, &config->bytes);
    } else if (config->split_cache) {
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
    const assay_case_input *rule = assay_case_input_of(d->c, path);
    describe_indices(d, "inputs/indices", NULL, "BS4");
    assay_described(d, 1)->derived = true;
    if (rule != NULL) describe_indices(d, path, &rule->fill, "B");
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
    if (c->splits > 0) {
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

static double operations(const void *config, bool backward)
{
    const assay_decode_config *d = decode_of(config);
    (void)backward;
    return assay_decode_flops(d, d->topk > 0 ? d->topk : most_keys(d));
}

#define ROW(of, say)                                                                                                   \
    const assay_operation assay_op_##of##_decode = {.name = #of "_decode",                                             \
                                                    .components =                                                      \
                                                        ASSAY_USES_ATTENTION | ASSAY_USES_SHARING | ASSAY_USES_DECODE, \
                                                    .summary = say " over a cache, contiguous or in pages",            \
                                                    .config_of = of##_config_of,                                       \
                                                    .axis_size = axis_size,                                            \
                                                    .describe = describe,                                              \
                                                    .derive = decode_derive,                                           \
                                                    .forward = decode_forward,                                         \
                                                    .used_rows = decode_used_rows,                                     \
                                                    .second_form = {.form = quad_decode},                              \
                                                    .operations = operations}

ROW(mla, "multi-head latent attention of few tokens");
ROW(gqa, "grouped-query attention of few tokens");
