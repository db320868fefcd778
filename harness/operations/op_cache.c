#include "harness/operations/op_cache.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "oracle/base/memory.h"

enum {
    LEAST_BLOCK = 16,
    UNUSED_BYTE = 255, /* NaN, as a code, a scale or a number */
};

static assay_cache_stream stream_of(const char *numbers, const char *bytes, const char *scales, const char *scale,
                                    int64_t columns)
{
    return (assay_cache_stream){
        .numbers = numbers, .bytes = bytes, .scales = scales, .scale = scale, .first_columns = columns};
}

static assay_status grouped_streams(assay_context *ctx, const assay_model_config *m, const assay_cache_format *f,
                                    int64_t heads, assay_cache_append_config *config)
{
    const bool keys = f->kind == ASSAY_CACHE_KEYS;
    assay_cache_stream *s = config->streams;
    config->stream_count = keys ? 1 : 2;
    MUST(assay_require_positive(ctx, "head_dim", m->head_dim));
    if (f->kind == ASSAY_CACHE_LATENT)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_head_dim, "0: %s has latents", f->block.name);
    if (keys && heads > 1)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_num_kv_heads, "1: %s has one head", f->block.name);
    s[0] = stream_of("key", "key_cache", "key_cache_scale", "k_scale", m->head_dim);
    s[1] = stream_of("value", "value_cache", "value_cache_scale", "v_scale", m->head_dim);
    return ASSAY_OK;
}

static assay_status latent_streams(assay_context *ctx, const assay_model_config *m, int64_t heads,
                                   assay_cache_append_config *config)
{
    assay_cache_stream *s = config->streams;
    config->stream_count = m->kv_cache_split ? 2 : 1;
    MUST(assay_require_positive(ctx, "kv_lora_rank", m->kv_lora_rank));
    MUST(assay_require_positive(ctx, "qk_rope_head_dim", m->qk_rope_head_dim));
    if (heads > 1)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_base_num_kv_heads, "1: latents have no heads (head_dim is 0)");
    s[0] = stream_of("kv_c", "kv_cache", "kv_cache_scale", "kv_scale", m->kv_lora_rank);
    if (!m->kv_cache_split) {
        s[0].second = "k_pe";
        s[0].second_columns = m->qk_rope_head_dim;
        return ASSAY_OK;
    }
    s[0].bytes = "ckv_cache";
    s[0].scales = "ckv_cache_scale";
    s[1] = stream_of("k_pe", "kpe_cache", "kpe_cache_scale", "kv_scale", m->qk_rope_head_dim);
    return ASSAY_OK;
}

assay_status assay_cache_streams_of(assay_context *ctx, const assay_case *c, const assay_cache_config *pages,
                                    bool latent, assay_cache_append_config *config)
{
    const assay_model_config *m = &c->config;
    const assay_cache_format *f = assay_cache_format_by_name(m->kv_cache_dtype.text);
    if (f == NULL) return assay_refuse_key(ctx, m, ASSAY_KEY_AT_kv_cache_dtype, "one of docs/operations.md");
    latent &= f->kind != ASSAY_CACHE_KEYS;
    if (m->kv_cache_split && (!latent || f->kind == ASSAY_CACHE_LATENT))
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_kv_cache_split,
                                "false: the format has keys and values, or rows with both parts of a latent");
    if (strcmp(m->quant_scale_layout.text, assay_model_defaults.quant_scale_layout.text) != 0)
        return assay_refuse_key(ctx, m, ASSAY_KEY_AT_quant_scale_layout,
                                "row_major: a cache's format says where its scales lie");
    MUST(latent ? latent_streams(ctx, m, pages->heads, config) : grouped_streams(ctx, m, f, pages->heads, config));
    for (int64_t i = 0; i < config->stream_count; i++) {
        assay_cache_stream *s = &config->streams[i];
        s->cache = *pages;
        s->cache.format = f;
        s->cache.columns = s->first_columns + (f->plain_rope ? 0 : s->second_columns);
        s->cache.rope = f->plain_rope ? s->second_columns : 0;
        s->cache.rules = assay_quantize_rules_of(c, &f->block, 1, 1);
        s->cache.rules.any_number = true;
        MUST(assay_cache_check(ctx, &s->cache));
    }
    return ASSAY_OK;
}

static void path_of(char path[ASSAY_PATH_SIZE], const char *folder, const char *name)
{
    snprintf(path, ASSAY_PATH_SIZE, "%s/%s", folder, name);
}

static void describe_bytes(assay_describer *d, const char *folder, const char *name, const assay_cache_config *c,
                           int64_t bytes)
{
    const assay_fill any = assay_fill_range(ASSAY_INTEGERS, 0.0, 255.0);
    const bool given = strcmp(folder, "inputs") == 0;
    const assay_dims dims = {.labels = "W8", .dims = {c->pages, bytes}};
    char path[ASSAY_PATH_SIZE];
    if (bytes == 0) return;
    path_of(path, folder, name);
    assay_describe_sized(d, path, ASSAY_INT32, given ? &any : NULL, dims);
    if (given) assay_described(d, 1)->most = 255;
    if (!given && assay_cache_row_of(c, 0, 0).unused_bytes > 0) assay_described(d, 1)->unused_row_axes = 2;
}

void assay_describe_cache(assay_describer *d, const char *folder, const assay_cache_append_config *config)
{
    for (int64_t i = 0; i < config->stream_count; i++) {
        const assay_cache_stream *s = &config->streams[i];
        describe_bytes(d, folder, s->bytes, &s->cache, assay_cache_page_bytes(&s->cache));
        describe_bytes(d, folder, s->scales, &s->cache, assay_cache_page_scales(&s->cache));
    }
}

assay_fill assay_cache_scale_fill(void)
{
    return assay_fill_range(ASSAY_UNIFORM, 1.0 / 512, 1.0 / 64);
}

void assay_describe_scale_input(assay_describer *d, const assay_cache_stream *s)
{
    const assay_fill positive = assay_cache_scale_fill();
    const assay_cache_format *f = s->cache.format;
    char path[ASSAY_PATH_SIZE];
    path_of(path, "inputs", s->scale);
    if (f->scales == ASSAY_CACHE_OF_HEAD) assay_describe(d, path, ASSAY_FLOAT32, &positive, "g");
    if (f->scales == ASSAY_CACHE_OF_TENSOR || f->block.tensor_scale)
        assay_describe_sized(d, path, ASSAY_FLOAT32, &positive, (assay_dims){.labels = "1", .dims = {1}});
}

/* Numbers of all tokens of a cache, whose magnitudes and so whose scales differ from block to block. */
static assay_status draw_tokens(assay_context *ctx, uint64_t seed, const char *path, const assay_cache_config *cache,
                                double *numbers, double *rope)
{
    const assay_fill normal = assay_fill_normal(1.0, 0.0), powers = assay_fill_range(ASSAY_UNIFORM, -1.5, 1.5);
    const int64_t tokens = cache->pages * cache->tokens, rows = tokens * cache->heads;
    const int64_t blocks = (cache->columns + LEAST_BLOCK - 1) / LEAST_BLOCK;
    const assay_shape shape = assay_shape_of(3, tokens, cache->heads, cache->columns);
    const assay_shape of_blocks = assay_shape_of(3, tokens, cache->heads, blocks);
    const assay_shape of_rope = assay_shape_of(2, tokens, cache->rope);
    char other[ASSAY_PATH_SIZE + 16];
    OWNED double *magnitude = NULL;
    MUST(assay_alloc_f64(ctx, "magnitudes", rows * blocks, &magnitude));
    MUST(assay_random_fill(ctx, &normal, seed, path, &shape, ASSAY_FLOAT32, 0, rows * cache->columns, numbers));
    snprintf(other, sizeof other, "%s/magnitude", path);
    MUST(assay_random_fill(ctx, &powers, seed, other, &of_blocks, ASSAY_FLOAT32, 0, rows * blocks, magnitude));
    for (int64_t i = 0; i < rows * cache->columns; i++)
        numbers[i] = assay_dtype_round(
            ASSAY_FLOAT32, numbers[i] * exp2(magnitude[i / cache->columns * blocks + i % cache->columns / LEAST_BLOCK]),
            false);
    if (cache->rope == 0) return ASSAY_OK;
    snprintf(other, sizeof other, "%s/rope", path);
    return assay_random_fill(ctx, &normal, seed, other, &of_rope, ASSAY_FLOAT32, 0, tokens * cache->rope, rope);
}

static assay_status write_tokens(assay_context *ctx, uint64_t seed, const assay_cache_stream *s, const assay_source *in,
                                 const int32_t *slots, int32_t *bytes, int32_t *scales)
{
    const assay_cache_config *c = &s->cache;
    const int64_t tokens = c->pages * c->tokens, heads = c->format->scales == ASSAY_CACHE_OF_HEAD ? c->heads : 1;
    char path[ASSAY_PATH_SIZE];
    OWNED double *numbers = NULL;
    OWNED double *rope = NULL;
    OWNED double *scale = NULL;
    MUST(assay_alloc_f64(ctx, "numbers", tokens * c->heads * c->columns, &numbers));
    MUST(assay_alloc_f64(ctx, "rope", tokens * c->rope + 1, &rope));
    path_of(path, "inputs", s->scale);
    MUST(assay_read_all(ctx, in, path, heads, &scale));
    path_of(path, "inputs", s->bytes);
    MUST(draw_tokens(ctx, seed, path, c, numbers, rope));
    const assay_cache_tokens t = {.count = tokens, .slots = slots, .numbers = numbers, .rope = rope, .scale = scale};
    return assay_cache_append(ctx, bytes, scales, &t, c);
}

assay_status assay_draw_cache(assay_context *ctx, uint64_t seed, const assay_cache_append_config *config,
                              const char *path, const assay_source *in, const int32_t *slots, int32_t *wanted)
{
    const char *name = path + strlen("inputs/");
    const assay_cache_stream *s = config->streams, *last = s + config->stream_count - 1;
    while (s < last && strcmp(name, s->bytes) != 0 && strcmp(name, s->scales) != 0) s++;
    const bool scales_wanted = strcmp(name, s->scales) == 0;
    const int64_t counts[] = {s->cache.pages * assay_cache_page_bytes(&s->cache),
                              s->cache.pages * assay_cache_page_scales(&s->cache)};
    OWNED int32_t *other = NULL;
    MUST(assay_alloc_i32(ctx, path, counts[scales_wanted ? 0 : 1] + 1, &other));
    int32_t *const bytes[] = {scales_wanted ? other : wanted, scales_wanted ? wanted : other};
    for (int which = 0; which < 2; which++)
        for (int64_t i = 0; i < counts[which]; i++) bytes[which][i] = UNUSED_BYTE;
    return write_tokens(ctx, seed, s, in, slots, bytes[0], bytes[1]);
}

int32_t *assay_bytes_of_cache(const assay_work *w, const char *folder, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    path_of(path, folder, name);
    return assay_i32(w, path);
}

double *assay_numbers_of_cache(const assay_work *w, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    path_of(path, "inputs", name);
    return assay_f64(w, path);
}
