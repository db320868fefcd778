/* cache_append: new tokens into the pages of a cache, as bytes. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/operations/op_cache.h"
#include "oracle/base/memory.h"
#include "oracle/base/step_change.h"

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    const assay_model_config *m = &c->config;
    assay_cache_append_config *config = to;
    const assay_cache_config pages = {.pages = m->pagedattn_num_pages,
                                      .tokens = m->pagedattn_tokens_per_page,
                                      .stride = m->pagedattn_page_stride > 0 ? m->pagedattn_page_stride
                                                                             : m->pagedattn_tokens_per_page,
                                      .heads = m->base_num_kv_heads > 0 ? m->base_num_kv_heads : 1,
                                      .heads_first = strcmp(m->kv_layout.text, "HND") == 0};
    *config = (assay_cache_append_config){.tokens = c->batch * c->sequence};
    if (c->dtype == ASSAY_FLOAT64)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "dtype is float64, expected float32 or one of fewer bits");
    MUST(assay_require_positive(ctx, "pagedattn_num_pages", m->pagedattn_num_pages));
    MUST(assay_require_positive(ctx, "pagedattn_tokens_per_page", m->pagedattn_tokens_per_page));
    return assay_cache_streams_of(ctx, c, &pages, m->head_dim == 0, config);
}

/* T, g and the columns of what is appended. */
static int64_t axis_size(const void *of, char axis)
{
    const assay_cache_append_config *config = of;
    const assay_cache_stream *s = config->streams;
    const bool two = config->stream_count == 2;
    if (axis == 'T') return config->tokens;
    if (axis == 'g') return s->cache.heads;
    if (axis == 'R') return two ? s[1].first_columns : s->second_columns;
    return s->first_columns; /* l, z */
}

static bool has_heads(const assay_cache_append_config *config)
{
    return strcmp(config->streams[0].numbers, "key") == 0;
}

static void describe_numbers(assay_describer *d, const char *name, const char *axes)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", name);
    assay_describe(d, path, d->c->dtype, &one, axes);
    assay_described(d, 1)->any_number = true;
}

static void describe(assay_describer *d, const void *of)
{
    const assay_cache_append_config *config = of;
    const bool heads = has_heads(config);
    for (int64_t i = 0; i < config->stream_count; i++) {
        const assay_cache_stream *s = &config->streams[i];
        describe_numbers(d, s->numbers, heads ? "Tgz" : i == 0 ? "Tl" : "TR");
        if (s->second != NULL) describe_numbers(d, s->second, "TR");
        if (i == 0 || heads) assay_describe_given_scale(d, s);
    }
    assay_describe(d, "inputs/slot_mapping", ASSAY_INT32, NULL, "T");
    assay_described(d, 1)->derived = true;
    assay_require_all_values(d, "inputs/slot_mapping", config->tokens);
    assay_describe_cache(d, "inputs", config);
    assay_describe_cache(d, "outputs", config);
}

/* Slots in any order, none of them twice; every fifth token is padding, which is not kept. */
static assay_status derive(assay_context *ctx, const assay_case *c, const assay_tensor_entry *entry,
                           const assay_source *in, double *values, int32_t *indices)
{
    enum { PADDING = 5 };
    assay_operation_config of;
    const assay_fill fill = {.distribution = ASSAY_PERMUTATION};
    const assay_cache_append_config *config = (const void *)&of;
    OWNED int32_t *slots = NULL;
    int64_t next = 0;
    (void)in, (void)values;
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
    const assay_shape shape = assay_shape_of(1, config->streams[0].cache.pages * config->streams[0].cache.tokens);
    MUST(assay_alloc_i32(ctx, "slots", shape.dims[0], &slots));
    MUST(assay_random_fill_i32(ctx, &fill, c->seed, entry->spec.path, &shape, slots));
    for (int64_t i = 0; i < config->tokens; i++) {
        const bool kept = i % PADDING != PADDING - 1 && next < shape.dims[0];
        indices[i] = kept ? slots[next++] : -1;
    }
    return ASSAY_OK;
}

/* Bytes that a kernel may write or leave, which of a token's scales have no number. */
static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of_entry,
                              const assay_source *in, bool **used)
{
    assay_operation_config of;
    const assay_cache_append_config *config = (const void *)&of;
    OWNED int32_t *slots = NULL;
    (void)of_entry; /* there is one such tensor */
    MUST(assay_operation_configure(ctx, assay_operation_by_name(c->op), c, &of));
    const assay_cache_config *cache = &config->streams[0].cache;
    const int64_t page = assay_cache_page_bytes(cache);
    MUST(assay_read_whole_i32(ctx, in, "inputs/slot_mapping", config->tokens, &slots));
    MUST(assay_cache_check_slots(ctx, cache, config->tokens, slots));
    MUST(assay_alloc(ctx, "bytes that are used", cache->pages * page, sizeof **used, used));
    memset(*used, 1, (size_t)(cache->pages * page) * sizeof **used);
    for (int64_t i = 0; i < config->tokens; i++) {
        if (slots[i] < 0) continue;
        const assay_cache_row row = assay_cache_row_of(cache, slots[i] % cache->tokens, 0);
        bool *unused = *used + slots[i] / cache->tokens * page + row.scales + row.scale_bytes;
        memset(unused, 0, (size_t)row.unused_bytes * sizeof *unused);
    }
    return ASSAY_OK;
}

/* Rows of two tensors that are quantised together. */
static assay_status joined(assay_context *ctx, const assay_cache_stream *s, int64_t tokens, const double *numbers,
                           const double *second, double **out)
{
    MUST(assay_alloc_f64(ctx, "rows", tokens * s->cache.columns, out));
    for (int64_t i = 0; i < tokens; i++) {
        double *row = *out + i * s->cache.columns;
        memcpy(row, numbers + i * s->first_columns, (size_t)s->first_columns * sizeof *row);
        memcpy(row + s->first_columns, second + i * s->second_columns, (size_t)s->second_columns * sizeof *row);
    }
    return ASSAY_OK;
}

static int32_t *start_from(const assay_work *w, const char *name, int64_t bytes)
{
    int32_t *to = assay_bytes_of_cache(w, "outputs", name);
    if (bytes > 0) memcpy(to, assay_bytes_of_cache(w, "inputs", name), (size_t)bytes * sizeof *to);
    return to;
}

static assay_status append(assay_context *ctx, const assay_work *w, const assay_cache_stream *s, int64_t tokens)
{
    const assay_cache_config *c = &s->cache;
    const double *second = s->second != NULL ? assay_numbers_of_cache(w, s->second) : NULL;
    OWNED double *rows = NULL;
    assay_cache_tokens t = {.count = tokens,
                            .slots = assay_i32(w, "inputs/slot_mapping"),
                            .numbers = assay_numbers_of_cache(w, s->numbers),
                            .rope = second,
                            .scale = assay_numbers_of_cache(w, s->scale)};
    if (t.scale != NULL && strcmp(s->scale, "v_scale") == 0 && assay_step_is_changed(ctx, "scale of keys", NULL))
        t.scale = assay_numbers_of_cache(w, "k_scale");
    if (second != NULL && c->rope == 0) {
        MUST(joined(ctx, s, tokens, t.numbers, second, &rows));
        t.numbers = rows;
    }
    int32_t *bytes = start_from(w, s->bytes, c->pages * assay_cache_page_bytes(c));
    return assay_cache_append(ctx, bytes, start_from(w, s->scales, c->pages * assay_cache_page_scales(c)), &t, c);
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_cache_append_config *config = w->config;
    for (int64_t i = 0; i < config->stream_count; i++) MUST(append(ctx, w, &config->streams[i], config->tokens));
    return ASSAY_OK;
}

const assay_operation assay_op_cache_append = {.name = "cache_append",
                                               .parts = ASSAY_PART_CACHE,
                                               .summary = "new tokens into the pages of a cache, as bytes",
                                               .config_of = config_of,
                                               .axis_size = axis_size,
                                               .describe = describe,
                                               .derive = derive,
                                               .forward = forward,
                                               .used_rows = used_rows,
                                               .second_form = {.form = quad_cache_append},
                                               .count = {"Tl", 2, 2}};
