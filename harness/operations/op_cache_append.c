/* cache_append: new tokens into the pages of a cache, as bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_cache.h"
#include "oracle/base/memory.h"

static bool has_heads(const assay_cache_append_config *config)
{
    return strcmp(config->streams[0].numbers, "key") == 0;
}

/* What is computed before it is written. */
static assay_status numbers_of(assay_context *ctx, const assay_case *c, assay_cache_append_config *config)
{
    const assay_model_config *m = &c->config;
    const assay_cache_stream *s = config->streams;
    const bool keys = has_heads(config);
    assay_cache_numbers_config *made = &config->numbers;
    *made = (assay_cache_numbers_config){.tokens = config->tokens,
                                         .heads = s->cache.heads,
                                         .columns = s->first_columns,
                                         .second = keys                        ? 0
                                                   : config->stream_count == 2 ? s[1].first_columns
                                                                               : s->second_columns,
                                         .epsilon = keys ? m->normalization_layer_epsilon : assay_latent_epsilon_of(m),
                                         .norm = (assay_cache_norm)assay_model_choice(m, ASSAY_KEY_AT_cache_norm),
                                         .rotates = m->cache_rope};
    if (keys && made->norm == ASSAY_CACHE_NORM_LATENT)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_cache_norm, "none or row: keys have heads, and no latent");
    made->norm_of_row = (made->norm == ASSAY_CACHE_NORM_ROW) != m->cache_variant.norm_of_others;
    made->norm_last = m->cache_variant.norm_last;
    if (!made->rotates) return ASSAY_OK;
    if (!keys && m->partial_rotary_factor != 1)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_partial_rotary_factor, "1: the rope of latents is rotated whole");
    MUST((keys ? assay_key_rope_config_of : assay_rope_config_of)(ctx, c, &made->rope));
    if (keys && m->cache_variant.rope_of_rest) made->rope_at = made->columns - made->rope.dim;
    if (!keys && !m->cache_variant.rope_of_rest) made->rope_at = made->columns;
    return ASSAY_OK;
}

/* Of the two tensors that are written: latents with their rope, or keys with values; NULL: there is one. */
static const char *name_of(const assay_cache_append_config *config, int i)
{
    const assay_cache_stream *s = config->streams;
    if (i == 0) return s->numbers;
    return config->stream_count == 2 ? s[1].numbers : s->second;
}

static bool makes_numbers(const assay_case *c, const void *of)
{
    const assay_cache_append_config *config = of;
    (void)c;
    return config->numbers.norm != ASSAY_CACHE_NORM_NONE || config->numbers.rotates;
}

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
    if (c->dtype == ASSAY_FLOAT64) return assay_refuse(ctx, "dtype is float64, expected float32 or one of fewer bits");
    MUST(assay_require_positive(ctx, "pagedattn_num_pages", m->pagedattn_num_pages));
    MUST(assay_require_positive(ctx, "pagedattn_tokens_per_page", m->pagedattn_tokens_per_page));
    MUST(assay_cache_streams_of(ctx, c, &pages, m->head_dim == 0, config));
    return numbers_of(ctx, c, config);
}

#define KEY_SCALE "weights/key_norm/scale"
#define LATENT_SCALE "weights/kv_norm/scale"

/* T, g and the columns of what is appended. */
static int64_t axis_size(const void *of, char axis)
{
    const assay_cache_append_config *config = of;
    const assay_cache_stream *s = config->streams;
    const bool two = config->stream_count == 2;
    if (axis == 'T') return config->tokens;
    if (axis == 'g') return s->cache.heads;
    if (axis == 'R') return two ? s[1].first_columns : s->second_columns;
    if (axis == 'w') return config->numbers.columns + config->numbers.second;
    return s->first_columns; /* l, z */
}

static void describe_numbers(assay_describer *d, const char *name, const char *axes)
{
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "inputs/%s", name);
    assay_describe(d, path, d->c->dtype, &one, axes);
    assay_described(d, 1)->any_number = true;
}

/* Positions, the weight of the norm, and the numbers that are written. */
static void describe_intermediates(assay_describer *d, const assay_cache_append_config *config)
{
    const assay_fill near_one = assay_fill_normal(0.1, 1.0);
    const assay_cache_numbers_config *made = &config->numbers;
    const bool heads = has_heads(config), row = made->norm == ASSAY_CACHE_NORM_ROW;
    if (made->rotates) assay_describe_positions(d);
    if (made->norm != ASSAY_CACHE_NORM_NONE)
        assay_describe(d, heads ? KEY_SCALE : LATENT_SCALE, d->c->dtype, &near_one, heads ? "z" : row ? "w" : "l");
    for (int i = 0; i < 2 && makes_numbers(d->c, config); i++) {
        char path[ASSAY_PATH_SIZE];
        if (name_of(config, i) == NULL) continue;
        snprintf(path, sizeof path, "checkpoints/%s", name_of(config, i));
        assay_describe(d, path, ASSAY_FLOAT64, NULL, heads ? "Tgz" : i == 0 ? "Tl" : "TR");
        assay_described(d, 1)->always_stored = true;
    }
}

static void describe(assay_describer *d, const void *of)
{
    const assay_cache_append_config *config = of;
    const bool heads = has_heads(config);
    for (int64_t i = 0; i < config->stream_count; i++) {
        const assay_cache_stream *s = &config->streams[i];
        describe_numbers(d, s->numbers, heads ? "Tgz" : i == 0 ? "Tl" : "TR");
        if (s->second != NULL) describe_numbers(d, s->second, "TR");
        if (i == 0 || heads) assay_describe_scale_input(d, s);
    }
    assay_describe(d, "inputs/slot_mapping", ASSAY_INT32, NULL, "T");
    assay_described(d, 1)->derived = true;
    assay_require_all_values(d, "inputs/slot_mapping", config->tokens);
    assay_describe_cache(d, "inputs", config);
    describe_intermediates(d, config);
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
    MUST(assay_read_all_i32(ctx, in, "inputs/slot_mapping", config->tokens, &slots));
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

/* The two tensors as they are written. */
typedef struct written {
    double *numbers[2];
} written;

static void written_free(written *n)
{
    free(n->numbers[0]);
    free(n->numbers[1]);
}

static int64_t width_of(const assay_cache_append_config *config, int i)
{
    const assay_cache_numbers_config *made = &config->numbers;
    return i == 0 || made->second == 0 ? made->heads * made->columns : made->second;
}

static assay_status take_given(assay_context *ctx, const assay_work *w, written *n)
{
    const assay_cache_append_config *config = w->config;
    for (int i = 0; i < 2; i++) {
        const char *name = name_of(config, i);
        const int64_t count = config->tokens * width_of(config, i);
        if (name == NULL) continue;
        MUST(assay_alloc_f64(ctx, name, count, &n->numbers[i]));
        memcpy(n->numbers[i], assay_numbers_of_cache(w, name), (size_t)count * sizeof *n->numbers[i]);
    }
    return ASSAY_OK;
}

/* Results of their own; a kernel has float32 numbers, and goes on from what it has where stages are judged. */
static assay_status keep_made(assay_context *ctx, const assay_work *w, written *n)
{
    const assay_cache_append_config *config = w->config;
    for (int i = 0; i < 2; i++) {
        char path[ASSAY_PATH_SIZE];
        const int64_t count = config->tokens * width_of(config, i);
        if (n->numbers[i] == NULL) continue;
        snprintf(path, sizeof path, "checkpoints/%s", name_of(config, i));
        memcpy(assay_f64(w, path), n->numbers[i], (size_t)count * sizeof *n->numbers[i]);
        MUST(assay_go_on_from(ctx, w->in, path, 0, count, n->numbers[i]));
        for (int64_t k = 0; k < count; k++)
            n->numbers[i][k] = assay_dtype_round(ASSAY_FLOAT32, n->numbers[i][k], false);
    }
    return ASSAY_OK;
}

static assay_status make_numbers(assay_context *ctx, const assay_work *w, written *n)
{
    const assay_cache_append_config *config = w->config;
    const assay_cache_numbers made = {.numbers = n->numbers[0],
                                      .second = config->numbers.second > 0 ? n->numbers[1] : NULL,
                                      .scale = assay_f64(w, has_heads(config) ? KEY_SCALE : LATENT_SCALE),
                                      .positions = assay_i32(w, "inputs/positions")};
    MUST(assay_cache_make_numbers(ctx, &made, &config->numbers));
    return keep_made(ctx, w, n);
}

static assay_status append(assay_context *ctx, const assay_work *w, const written *n, int stream)
{
    const assay_cache_append_config *config = w->config;
    const assay_cache_stream *s = &config->streams[stream];
    const assay_cache_config *c = &s->cache;
    const double *second = s->second != NULL ? n->numbers[1] : NULL;
    OWNED double *rows = NULL;
    assay_cache_tokens t = {.count = config->tokens,
                            .slots = assay_i32(w, "inputs/slot_mapping"),
                            .numbers = n->numbers[stream],
                            .rope = second};
    t.scale = assay_numbers_of_cache(w, s->scale);
    MUST(assay_cache_check_scale(ctx, s->scale, t.scale, c));
    if (second != NULL && c->rope == 0) {
        MUST(joined(ctx, s, config->tokens, t.numbers, second, &rows));
        t.numbers = rows;
    }
    int32_t *bytes = start_from(w, s->bytes, c->pages * assay_cache_page_bytes(c));
    return assay_cache_append(ctx, bytes, start_from(w, s->scales, c->pages * assay_cache_page_scales(c)), &t, c);
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_cache_append_config *config = w->config;
    OWNED_BY(written_free) written n = {{NULL}};
    MUST(take_given(ctx, w, &n));
    if (makes_numbers(w->c, config)) MUST(make_numbers(ctx, w, &n));
    for (int i = 0; i < config->stream_count; i++) MUST(append(ctx, w, &n, i));
    return ASSAY_OK;
}

const assay_operation assay_op_cache_append = {.name = "cache_append",
                                               .components = ASSAY_USES_CACHE | ASSAY_USES_ROPE,
                                               .summary = "new tokens into the pages of a cache, as bytes",
                                               .config_of = config_of,
                                               .axis_size = axis_size,
                                               .describe = describe,
                                               .derive = derive,
                                               .compute = forward,
                                               .used_rows = used_rows,
                                               .second_form = {.form = quad_cache_append},
                                               .count = {"Tl", 2, 2}};
