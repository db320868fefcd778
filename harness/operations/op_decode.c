/* Attention over a cache: mla_decode and gqa_decode. */
#include "harness/operations/op_decode.h"

#include <math.h>
#include <string.h>

#include "oracle/graph/graph_kind.h"

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
    const int64_t context = assay_decode_most_keys(d) - d->sequence;
    d->chunk = m->prefill_chunk_size;
    d->splits = (context > 0 ? (context - 1) / d->chunk + 1 : 0) + 1;
    return ASSAY_OK;
}

/* What both operations have. */
static assay_status common_of(assay_context *ctx, const assay_case *c, decode_config *config)
{
    const assay_model_config *m = &c->config;
    *config = (decode_config){.sinks = m->attention_sink,
                              .paged = m->pagedattn_num_pages > 0,
                              .lse = m->return_lse,
                              .lengths = m->use_indexer && assay_case_input_of(c, "inputs/topk_length") != NULL,
                              .padding = (int32_t)m->block_table_padding,
                              .quad.query_scale = m->query_pre_attn_scalar};
    config->quad.decode = (assay_decode_config){.batch = c->batch,
                                                .gradients = m->cache_gradients,
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
    MUST(assay_require_positive(ctx, "base_num_query_heads", d->heads));
    MUST(assay_require_positive(ctx, d->max_pages > 0 ? "pagedattn_tokens_per_page" : "cache_length", d->page));
    MUST(assay_require_positive(ctx, "pagedattn_num_pages", d->pages));
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
    MUST(assay_require_positive(ctx, "qk_rope_head_dim", m->qk_rope_head_dim));
    MUST(assay_require_positive(ctx, "kv_lora_rank", m->kv_lora_rank));
    if (naive) MUST(assay_require_positive(ctx, "v_head_dim", m->v_head_dim));
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
    if (axis == 'q') return d->nope + d->width - d->v_dim;
    if (axis == '1') return 1;
    return d->v_dim; /* l, z */
}

/* Numbers beside each other. */
static int joined(graph *g, const char *axes, int first, int second)
{
    const char *last = axes + strlen(axes) - 1;
    return graph_fused(g, graph_step_of(g, &graph_kind_concatenate, axes, (int[]){first, second}, 2,
                                        &(graph_general){.over = {*last}}));
}

/* inputs/NAME [pages,bytes] of a cache, or what is given of it besides. */
static int given_bytes(graph *g, const char *name, int64_t bytes)
{
    if (bytes == 0) return 0;
    const int tensor = graph_indices(g, name, "W8");
    g->tensors[tensor].row.folder = "inputs/";
    g->tensors[tensor].row.shape.dims[1] = bytes;
    return tensor;
}

static int given_scale(graph *g, const assay_cache_stream *s)
{
    const bool heads = s->cache.format->scales == ASSAY_CACHE_OF_HEAD, there = graph_find(g, s->scale) > 0;
    if (!heads && s->cache.format->scales != ASSAY_CACHE_OF_TENSOR && !s->cache.format->block.tensor_scale) return 0;
    const int tensor = there ? graph_find(g, s->scale) : graph_input(g, s->scale, heads ? "g" : "1");
    g->tensors[tensor].row.folder = "inputs/";
    return tensor;
}

/* Of keys with their heads, or of latents. */
static int cached(graph *g, const decode_config *of, int i, char last)
{
    static const char *const latent[] = {"inputs/ckv_cache", "inputs/kpe_cache"};
    static const char *const grouped[] = {"inputs/key_cache", "inputs/value_cache"};
    const quad_decode_config *config = &of->quad;
    const assay_decode_config *d = &config->decode;
    const char page = of->paged ? 'W' : 'B', row = of->paged ? 'U' : 'Y';
    const char of_heads[] = {page, d->heads_first ? 'g' : row, d->heads_first ? row : 'g', last, '\0'};
    const char of_latents[] = {page, row, last, '\0'}, *axes = d->latent ? of_latents : of_heads;
    if (config->bytes.stream_count == 0)
        return graph_input(g, !d->latent ? grouped[i] : config->split_cache ? latent[i] : "inputs/kv_cache", axes);
    const assay_cache_stream *s = &config->bytes.streams[i];
    const int bytes = given_bytes(g, s->bytes, assay_cache_page_bytes(&s->cache));
    const int scales = given_bytes(g, s->scales, assay_cache_page_scales(&s->cache));
    const int numbers = graph_step_of(g, &graph_kind_cache_numbers, axes, (int[]){bytes, scales, given_scale(g, s)}, 3,
                                      &(graph_general){0});
    g->steps[g->tensors[numbers].step].with.cache = s->cache;
    return graph_fused(g, numbers);
}

static void graph_of(const void *of, graph *g)
{
    static const assay_tensor_form kernel = {"wkv_b/kernel", ASSAY_KERNEL, "lNu", 1},
                                   sinks = {"sinks", ASSAY_SINK, "N", 0};
    const decode_config *config = of;
    const assay_decode_config *d = decode_of(config);
    const bool splits = d->splits > 0, lists = d->topk > 0;
    const char *axes = d->nope > 0 ? "XBSNv" : d->latent ? "XBSNl" : "XBSNz"; /* X: of splits */
    int in[GRAPH_IN] = {0}; /* as graph_kind_decode_attention has them */
    graph_begin(g, config, axis_size);
    in[0] = graph_input(g, d->nope > 0 ? "inputs/query_nope" : "inputs/query",
                        d->nope > 0 ? "BSNi"
                        : d->latent ? "BSNw"
                                    : "BSNz");
    if (d->nope > 0) in[0] = joined(g, "BSNq", in[0], graph_input(g, "inputs/query_pe", "BSNR"));
    if (!lists) in[3] = graph_indices(g, "inputs/cache_seqlens", "B");
    if (lists) in[4] = graph_indices(g, "inputs/indices", "BS4");
    if (config->lengths) in[3] = graph_indices(g, "inputs/topk_length", "B");
    if (d->max_pages > 0) in[4] = graph_indices(g, "inputs/block_table", "BZ");
    in[1] = cached(g, config, 0, !d->latent ? 'z' : config->quad.split_cache ? 'l' : 'w');
    if (config->quad.split_cache) in[1] = joined(g, config->paged ? "WUw" : "BYw", in[1], cached(g, config, 1, 'R'));
    if (!d->latent) in[2] = cached(g, config, 1, 'z');
    if (d->nope > 0) in[6] = graph_weight(g, assay_tensor_row_of(&kernel, config, axis_size));
    const int sink = config->sinks ? graph_weight(g, assay_tensor_row_of(&sinks, config, axis_size)) : 0;
    if (!splits) in[5] = sink;
    int out = graph_with_lse(g, &graph_kind_decode_attention, axes + !splits, splits ? "XBNS" : "BNS", in, GRAPH_IN,
                             &(graph_parameters){.decode = *d});
    if (splits) {
        const assay_merge_states_config merge =
            assay_decode_merge_config(d, d->splits, d->nope > 0 ? d->out_dim : d->v_dim);
        const int lse = graph_named(g, "partial_lse", graph_lse_of(g, out));
        g->tensors[out].kept = GRAPH_LEFT;
        out = graph_with_lse(g, &graph_kind_merge_states, axes + 1, "BNS",
                             (int[]){graph_named(g, "partial_out", out), lse, sink}, 3,
                             &(graph_parameters){.merge = merge});
    }
    int lse = graph_lse_of(g, out);
    if (d->lse_tokens_first)
        lse = graph_fused(g, graph_step_of(g, &graph_kind_order, "BSN", &lse, 1, &(graph_general){0}));
    if (config->lse) graph_gives(g, "lse", lse);
    graph_gives(g, "attention_out", out);
    graph_end(g, out, GRAPH_LEFT);
}

/* Scores have a deviation of 1: those of a latent cache are not scaled by the width of its rows. */
static assay_fill query_fill(const assay_decode_config *c)
{
    const int64_t numbers = c->nope > 0 ? c->nope + c->width - c->v_dim : c->width;
    return assay_fill_normal(c->latent ? 1 / (c->scale * sqrt((double)numbers)) : 1.0, 0.0);
}

/* Lengths are drawn, or as the case says; all else follows from them. Where the case lists numbers, all of them. */
static void refine_integers(assay_describer *d, const assay_decode_config *c, assay_tensor_entry *e)
{
    const assay_case_input *rule = assay_case_input_of(d->c, e->spec.path);
    const bool drawn = strcmp(e->spec.path, "inputs/cache_seqlens") == 0;
    e->derived = e->spec.shape.rank > 1;
    const bool bytes = e->derived && strcmp(e->spec.labels[1], "bytes") == 0;
    if (drawn) e->fill = assay_fill_range(ASSAY_INTEGERS, 0, (double)assay_decode_most_keys(c));
    if (!drawn && !e->derived) e->fill = rule->fill;
    if (bytes) e->most = 255;
    if (!bytes) assay_require_all_values(d, e->spec.path, assay_shape_count(&e->spec.shape));
}

/* What the graph does not say of a tensor. Rows of a cache hold what nobody looks at, where no sequence has them. */
static void refine(assay_describer *d, const decode_config *config, assay_tensor_entry *e)
{
    const char *path = e->spec.path;
    if (e->spec.type == ASSAY_INT32) {
        refine_integers(d, decode_of(config), e);
    } else if (strncmp(path, "inputs/query", strlen("inputs/query")) == 0) {
        e->fill = query_fill(decode_of(config));
    } else if (e->spec.role == ASSAY_ROLE_INPUT && e->spec.shape.rank == 1) {
        e->fill = assay_cache_scale_fill();
        e->spec.type = ASSAY_FLOAT32;
    } else if (e->spec.role == ASSAY_ROLE_INPUT) {
        e->unused_row_axes = e->spec.shape.rank - 1;
    }
    if (strcmp(path, "weights/sinks") == 0) e->infinite = true;
    if (strcmp(path, "checkpoints/partial_out") == 0) e->unused_row_axes = 4;
}

static void describe(assay_describer *d, const void *of)
{
    int count = 0;
    assay_block_describe(d, &assay_op_mla_decode); /* both have one graph */
    for (int i = 0; i < d->list->count; i++) {
        assay_tensor_entry *e = &d->list->entries[i];
        if (!decode_of(of)->gradients && (e->spec.role == ASSAY_ROLE_COTANGENT || e->spec.role == ASSAY_ROLE_GRADIENT))
            continue;
        refine(d, of, e);
        d->list->entries[count++] = *e;
    }
    d->list->count = count;
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
                                                    .graph = graph_of,                                                 \
                                                    .used_rows = decode_used_rows,                                     \
                                                    .second_form = {.form = quad_decode}}

ROW(mla, "multi-head latent attention of few tokens");
ROW(gqa, "grouped-query attention of few tokens");
