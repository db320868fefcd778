#include "oracle/ops/decode_attention.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/base/memory.h"
#include "oracle/ops/decode_internal.h"

int64_t assay_decode_out_dim(const assay_decode_config *config)
{
    return config->nope > 0 ? config->out_dim : config->v_dim;
}

int64_t assay_decode_most_keys(const assay_decode_config *c)
{
    return c->max_pages > 0 ? c->max_pages * c->page : c->page;
}

static int64_t pages_of(const assay_decode_config *c, int64_t keys)
{
    return (keys + c->page - 1) / c->page;
}

/* --- what is refused --- */

static assay_status check_sizes(assay_context *ctx, const assay_decode_config *c)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", c->batch},
                 {"sequence", c->sequence},
                 {"base_num_query_heads", c->heads},
                 {c->latent ? "qk_rope_head_dim" : "head_dim", c->latent ? c->width - c->v_dim : c->width},
                 {c->latent ? "kv_lora_rank" : "head_dim", c->v_dim},
                 {c->max_pages > 0 ? "pagedattn_tokens_per_page" : "cache_length", c->page},
                 {"pagedattn_num_pages", c->pages},
                 {"v_head_dim", assay_decode_out_dim(c)}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= 1) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %" PRId64 ", expected 1 or more", sizes[i].name, sizes[i].value);
    }
    if (c->stride < c->page) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "pagedattn_page_stride is %" PRId64 ", expected %" PRId64
                          " (pagedattn_tokens_per_page) or more",
                          c->stride, c->page);
    }
    return ASSAY_OK;
}

assay_status assay_decode_check(assay_context *ctx, const assay_decode_config *c)
{
    const assay_attention_config attention = {
        .heads = c->heads, .kv_heads = c->kv_heads, .window = c->window, .soft_cap = c->soft_cap};
    const int64_t keys = c->max_pages > 0 ? c->max_pages : 1;
    int64_t count = 0;
    MUST(check_sizes(ctx, c));
    MUST(assay_attention_check(ctx, &attention));
    if (!(c->scale > 0) || !isfinite(c->scale))
        return assay_fail(ctx, ASSAY_BAD_INPUT, "query_pre_attn_scalar is %g, expected a number above 0", c->scale);
    if (c->topk > 0 && c->pages > INT32_MAX / c->stride)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "the cache has more than 2^31 rows, expected what indices may name");
    MUST(assay_checked_count(ctx, "cache", 4, (int64_t[]){c->pages, c->stride, c->kv_heads, c->width}, &count));
    MUST(assay_checked_count(ctx, "scores", 3, (int64_t[]){DECODE_ROWS, c->page, keys}, &count));
    return assay_checked_count(
        ctx, "checkpoints/partial_out", 5,
        (int64_t[]){c->splits > 0 ? c->splits : 1, c->batch, c->sequence, c->heads, assay_decode_out_dim(c)}, &count);
}

static assay_status check_lists(assay_context *ctx, const assay_decode_config *c, const int32_t *topk_length)
{
    for (int64_t b = 0; b < c->batch && topk_length != NULL; b++) {
        if (topk_length[b] >= 0 && topk_length[b] <= c->topk) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "inputs/topk_length[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (indexer_topk)", b,
                          topk_length[b], c->topk);
    }
    return ASSAY_OK;
}

assay_status assay_decode_check_table(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in)
{
    const int64_t most = assay_decode_most_keys(c);
    if (c->topk > 0) return check_lists(ctx, c, in->topk_length);
    for (int64_t b = 0; b < c->batch; b++) {
        const int32_t keys = in->cache_seqlens[b];
        if (keys < 0 || keys > most) {
            return assay_fail(
                ctx, ASSAY_BAD_INPUT,
                "inputs/cache_seqlens[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (%s)", b, keys, most,
                c->max_pages > 0 ? "pagedattn_max_pages_per_group pages of pagedattn_tokens_per_page" : "cache_length");
        }
        for (int64_t m = 0; m < pages_of(c, keys) && c->max_pages > 0; m++) {
            const int32_t page = in->block_table[b * c->max_pages + m];
            if (page >= 0 && page < c->pages) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT,
                              "inputs/block_table[%" PRId64 ",%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64
                              " (pagedattn_num_pages): sequence %" PRId64 " has %" PRId32 " keys",
                              b, m, page, c->pages - 1, b, keys);
        }
    }
    return ASSAY_OK;
}
