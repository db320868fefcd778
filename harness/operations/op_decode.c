/* Attention over a cache: mla_decode and gqa_decode. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

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
    d->max_pages = m->pagedattn_max_pages_per_group;
    if (d->max_pages < 1 && d->page > 0) d->max_pages = (m->cache_length + d->page - 1) / d->page;
    return d->max_pages > 0 ? ASSAY_OK
                            : assay_refuse_key(ctx, m, ASSAY_KEY_AT_pagedattn_max_pages_per_group,
                                               "1 or more, or a cache_length that says it");
}

/* What both operations have. */
static assay_status common_of(assay_context *ctx, const assay_case *c, decode_config *config)
{
    const assay_model_config *m = &c->config;
    config->sinks = m->attention_sink;
    config->padding = (int32_t)m->block_table_padding;
    config->quad.query_scale = m->query_pre_attn_scalar;
    config->quad.decode = (assay_decode_config){.batch = c->batch,
                                                .sequence = c->sequence,
                                                .heads = m->base_num_query_heads,
                                                .kv_heads = 1,
                                                .splits = m->num_kv_splits,
                                                .soft_cap = m->attn_logits_soft_cap,
                                                .base_2 = m->lse_base.text[0] == '2',
                                                .lse_tokens_first = strcmp(m->lse_layout.text, "BSN") == 0,
                                                .empty_row = m->empty_row.text[0] == '-' ? -INFINITY : INFINITY};
    MUST(assay_window_of(ctx, m, &config->quad.decode.window));
    return pages_of(ctx, c, &config->quad.decode);
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
    d->v_dim = m->kv_lora_rank;
    d->width = m->kv_lora_rank + m->qk_rope_head_dim;
    d->nope = naive ? m->qk_nope_head_dim : 0;
    d->out_dim = naive ? m->v_head_dim : 0;
    d->scale = m->query_pre_attn_scalar != 0 ? m->query_pre_attn_scalar : assay_mla_softmax_scale(mla);
    return assay_decode_check(ctx, d);
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
    d->kv_heads = m->base_num_kv_heads > 0 ? m->base_num_kv_heads : d->heads;
    d->width = d->v_dim = m->head_dim;
    d->heads_first = strcmp(m->kv_layout.text, "HND") == 0;
    d->scale = m->query_pre_attn_scalar != 0 ? m->query_pre_attn_scalar : 1 / sqrt((double)m->head_dim);
    return assay_decode_check(ctx, d);
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
        return d->splits;
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

static void describe_caches(assay_describer *d, const assay_decode_config *c)
{
    const bool paged = c->max_pages > 0;
    if (c->latent) {
        describe_cache(d, "inputs/kv_cache", paged ? "WUw" : "BYw");
        return;
    }
    const char *axes = c->heads_first ? paged ? "WgUz" : "BgYz" : paged ? "WUgz" : "BYgz";
    describe_cache(d, "inputs/key_cache", axes);
    describe_cache(d, "inputs/value_cache", axes);
}

/* Where the case lists them, all of them. */
static void describe_indices(assay_describer *d, const char *path, const assay_fill *fill, const char *axes)
{
    assay_describe(d, path, ASSAY_INT32, fill, axes);
    assay_require_all_values(d, path, assay_shape_count(&assay_described(d, 1)->spec.shape));
}

static void describe(assay_describer *d, const void *of)
{
    const decode_config *config = of;
    const assay_decode_config *c = &config->quad.decode;
    const int64_t most = c->max_pages > 0 ? c->max_pages * c->page : c->page;
    const assay_fill one = assay_fill_normal(1.0, 0.0), drawn = assay_fill_range(ASSAY_INTEGERS, 0, (double)most);
    if (c->nope > 0) {
        assay_describe(d, "inputs/query_nope", d->c->dtype, &one, "BSNi");
        assay_describe(d, "inputs/query_pe", d->c->dtype, &one, "BSNR");
    } else {
        assay_describe(d, "inputs/query", d->c->dtype, &one, c->latent ? "BSNw" : "BSNz");
    }
    describe_indices(d, "inputs/cache_seqlens", &drawn, "B");
    if (c->max_pages > 0) {
        describe_indices(d, "inputs/block_table", NULL, "BZ");
        assay_described(d, 1)->derived = true;
    }
    describe_caches(d, c);
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
        assay_describe_result(d, "checkpoints", "partial_out", ASSAY_FLOAT64, c->latent ? "XBSNl" : "XBSNz");
    }
    assay_describe_output(d, "lse", NULL, c->lse_tokens_first ? "BSN" : "BNS");
    assay_describe_output(d, "attention_out", NULL, c->nope > 0 ? "BSNv" : c->latent ? "BSNl" : "BSNz");
}

/* Pages in any order, none of them twice; what lies behind those of a sequence is padding. */
static assay_status derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices)
{
    assay_operation_config of;
    const decode_config *config = (const void *)&of;
    const assay_decode_config *d = &config->quad.decode;
    const assay_fill fill = {.distribution = ASSAY_PERMUTATION};
    const char *path = entry->spec.path;
    OWNED int32_t *keys = NULL;
    OWNED int32_t *pages = NULL;
    int64_t next = 0;
    (void)values;
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
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
    if (next <= d->pages) return assay_decode_check_table(ctx, d, indices, keys);
    return assay_fail(
        ctx, ASSAY_BAD_INPUT,
        "pagedattn_num_pages is %" PRId64 ", expected %" PRId64
        " or more, which the keys of inputs/cache_seqlens fill; or an inputs/block_table that shares pages",
        d->pages, next);
}

static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_source *in, bool **used)
{
    assay_operation_config of;
    const assay_decode_config *d = decode_of(&of);
    OWNED int32_t *keys = NULL;
    OWNED int32_t *table = NULL;
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
    const int64_t rows = d->pages * d->stride * d->kv_heads;
    MUST(assay_read_whole_i32(ctx, in, "inputs/cache_seqlens", d->batch, &keys));
    MUST(assay_read_whole_i32(ctx, in, "inputs/block_table", d->batch * d->max_pages, &table));
    MUST(assay_decode_check_table(ctx, d, table, keys));
    MUST(assay_alloc(ctx, "rows that are used", rows, sizeof **used, used));
    memset(*used, 0, (size_t)rows * sizeof **used);
    for (int64_t b = 0; b < d->batch; b++) {
        for (int64_t key = 0; key < keys[b]; key++) {
            for (int64_t head = 0; head < d->kv_heads; head++) (*used)[assay_decode_row(d, table, b, head, key)] = true;
        }
    }
    return ASSAY_OK;
}

static assay_status merge(assay_context *ctx, const assay_work *w, const assay_decode_call *call)
{
    const assay_decode_config *d = call->config;
    const int64_t rows = d->splits * d->batch * d->sequence * d->heads;
    assay_decode_call staged = *call;
    OWNED double *out = NULL;
    OWNED double *lse = NULL;
    MUST(assay_alloc_f64(ctx, "partial results", rows * d->v_dim, &out));
    MUST(assay_alloc_f64(ctx, "partial log-sum-exps", rows, &lse));
    memcpy(out, call->partial_out, (size_t)(rows * d->v_dim) * sizeof *out);
    memcpy(lse, call->partial_lse, (size_t)rows * sizeof *lse);
    MUST(assay_go_on_from(ctx, w->in, "checkpoints/partial_out", 0, rows * d->v_dim, out));
    MUST(assay_go_on_from(ctx, w->in, "checkpoints/partial_lse", 0, rows, lse));
    staged.partial_out = out;
    staged.partial_lse = lse;
    return assay_decode_merge(ctx, &staged);
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_decode_config *d = decode_of(w->config);
    const assay_decode_inputs in = {.query = assay_f64(w, d->nope > 0 ? "inputs/query_nope" : "inputs/query"),
                                    .query_pe = assay_f64(w, "inputs/query_pe"),
                                    .key_cache = assay_f64(w, d->latent ? "inputs/kv_cache" : "inputs/key_cache"),
                                    .value_cache = assay_f64(w, "inputs/value_cache"),
                                    .block_table = assay_i32(w, "inputs/block_table"),
                                    .cache_seqlens = assay_i32(w, "inputs/cache_seqlens"),
                                    .kernel = assay_f64(w, "weights/wkv_b/kernel"),
                                    .sinks = assay_f64(w, "weights/sinks")};
    const assay_decode_call call = {.config = d,
                                    .in = &in,
                                    .attention_out = assay_f64(w, "outputs/attention_out"),
                                    .lse = assay_f64(w, "outputs/lse"),
                                    .partial_out = assay_f64(w, "checkpoints/partial_out"),
                                    .partial_lse = assay_f64(w, "checkpoints/partial_lse")};
    MUST(assay_decode_attend(ctx, &call));
    return d->splits > 0 ? merge(ctx, w, &call) : ASSAY_OK;
}

static double operations(const void *config, bool backward)
{
    const assay_decode_config *d = decode_of(config);
    (void)backward;
    return assay_decode_flops(d, d->max_pages > 0 ? d->max_pages * d->page : d->page);
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
                                                    .ensemble = assay_every_case,                                      \
                                                    .used_rows = used_rows,                                            \
                                                    .second_form = {.form = quad_decode},                              \
                                                    .operations = operations}

ROW(mla, "multi-head latent attention of few tokens");
ROW(gqa, "grouped-query attention of few tokens");
