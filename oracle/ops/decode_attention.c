#include "oracle/ops/decode_attention.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/base/memory.h"
#include "oracle/ops/decode_internal.h"

int64_t assay_decode_most_keys(const assay_decode_config *c)
{
    return c->max_pages > 0 ? c->max_pages * c->page : c->page;
}

/* --- what is refused --- */

assay_status assay_decode_check(assay_context *ctx, const assay_decode_config *c)
{
    const assay_attention_config attention = {
        .heads = c->heads, .kv_heads = c->kv_heads, .window = c->window, .soft_cap = c->soft_cap};
    const int64_t keys = c->max_pages > 0 ? c->max_pages : 1;
    int64_t count = 0;
    MUST(assay_attention_check(ctx, &attention));
    if (c->stride < c->page)
        return assay_refuse(
            ctx, "pagedattn_page_stride is %" PRId64 ", expected %" PRId64 " (pagedattn_tokens_per_page) or more",
            c->stride, c->page);
    if (!(c->scale > 0) || !isfinite(c->scale))
        return assay_refuse(ctx, "query_pre_attn_scalar is %g, expected a number above 0", c->scale);
    if (c->topk > 0 && c->pages > INT32_MAX / c->stride)
        return assay_refuse(ctx, "the cache has more than 2^31 rows, expected what indices may name");
    return assay_checked_count(ctx, "scores", 3, (int64_t[]){DECODE_ROWS, c->page, keys}, &count);
}

static assay_status check_lengths(assay_context *ctx, const assay_decode_config *c, const char *name,
                                  const int32_t *lengths, int64_t most, const char *why)
{
    for (int64_t b = 0; lengths != NULL && b < c->batch; b++)
        if (lengths[b] < 0 || lengths[b] > most)
            return assay_refuse(ctx, "inputs/%s[%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64 " (%s)", name, b,
                                lengths[b], most, why);
    return ASSAY_OK;
}

assay_status assay_decode_check_table(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in)
{
    const char *why =
        c->max_pages > 0 ? "pagedattn_max_pages_per_group pages of pagedattn_tokens_per_page" : "cache_length";
    if (c->topk > 0) return check_lengths(ctx, c, "topk_length", in->lengths, c->topk, "indexer_topk");
    MUST(check_lengths(ctx, c, "cache_seqlens", in->lengths, assay_decode_most_keys(c), why));
    for (int64_t i = 0; i < c->batch * c->max_pages; i++) {
        const int64_t b = i / c->max_pages, m = i % c->max_pages;
        const int32_t keys = in->lengths[b], page = in->places[i];
        if (m * c->page >= keys || (page >= 0 && page < c->pages)) continue;
        return assay_refuse(ctx,
                            "inputs/block_table[%" PRId64 ",%" PRId64 "] is %" PRId32 ", expected 0 to %" PRId64
                            " (pagedattn_num_pages): sequence %" PRId64 " has %" PRId32 " keys",
                            b, m, page, c->pages - 1, b, keys);
    }
    return ASSAY_OK;
}
