#include "oracle/ops/decode_attention.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/decode_internal.h"

int64_t assay_decode_out_dim(const assay_decode_config *config)
{
    return config->nope > 0 ? config->out_dim : config->v_dim;
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
    return assay_checked_count(ctx, "checkpoints/partial_out", 5,
                               (int64_t[]){decode_splits(c), c->batch, c->sequence, c->heads, assay_decode_out_dim(c)},
                               &count);
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
    const int64_t most = c->max_pages > 0 ? c->max_pages * c->page : c->page;
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

/* --- the whole --- */

/* lse is made as [B,N,S]. */
static void place_lse(const assay_decode_config *c, double *to, const double *lse)
{
    if (to == NULL) return;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++)
        to[c->lse_tokens_first ? row : decode_place_of_lse(c, row)] = lse[decode_place_of_lse(c, row)];
}

/* Of rows that see no key, in a mutant. */
static void fill_blind(const assay_context *ctx, const assay_decode_config *c, double *out, const double *lse)
{
    const int64_t wide = assay_decode_out_dim(c);
    bool blind = false;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++) blind |= isinf(lse[row]);
    if (!blind || !assay_step_is_changed(ctx, "blind rows", NULL)) return;
    for (int64_t row = 0; row < c->batch * c->sequence * c->heads; row++)
        for (int64_t d = 0; d < wide && isinf(lse[decode_place_of_lse(c, row)]); d++) out[row * wide + d] = NAN;
}

/* The last part, whose heads lie half as far apart again, as a mutant reads it that thinks they do not. */
static void misread_last(const assay_decode_config *c, const double *partial_out, double *to)
{
    const int64_t wide = assay_decode_out_dim(c), rows = c->batch * c->sequence * c->heads, apart = wide + wide / 2;
    const double *last = partial_out + (c->parts - 1) * rows * wide;
    memcpy(to, partial_out, (size_t)(c->parts * rows * wide) * sizeof *to);
    for (int64_t i = 0; i < rows * wide; i++) {
        const int64_t at = i / apart * wide + i % apart;
        to[(c->parts - 1) * rows * wide + i] = i % apart < wide ? last[at] : 0;
    }
}

/* out [parts or 1,B,S,N,.], lse [parts or 1,B,N,S]. */
static assay_status attend_keys(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                double *out, double *lse)
{
    return c->nope > 0 ? decode_attend_from_kernel(ctx, c, in, out, lse)
                       : decode_attend(ctx, c, in, in->query, out, lse);
}

static assay_status attend_listed(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in,
                                  double *out, double *lse)
{
    const int64_t tokens = c->batch * c->sequence, rows = tokens * c->heads;
    assay_decode_config each = *c;
    assay_decode_inputs listed = *in;
    OWNED int32_t *entries = NULL;
    OWNED double *by_token = NULL;
    MUST(assay_alloc_i32(ctx, "lists of rows", tokens * (c->topk + decode_splits(c) + 2), &entries));
    MUST(assay_alloc_f64(ctx, "lse of tokens", decode_splits(c) * rows, &by_token));
    decode_lists lists = {
        .rows = entries, .counts = entries + tokens * c->topk, .starts = entries + tokens * (c->topk + 1)};
    decode_list(ctx, c, in, &lists);
    each.batch = tokens;
    each.pages = c->pages * c->stride;
    each.sequence = each.page = each.stride = 1;
    each.max_pages = c->topk;
    listed.block_table = lists.rows;
    listed.cache_seqlens = lists.counts;
    listed.split_starts = c->parts > 0 ? lists.starts : NULL;
    MUST(attend_keys(ctx, &each, &listed, out, by_token));
    for (int64_t i = 0; i < decode_splits(c) * rows; i++)
        lse[i / rows * rows + decode_place_of_lse(c, i % rows)] = by_token[i];
    return ASSAY_OK;
}

static assay_status attend(assay_context *ctx, const assay_decode_config *c, const assay_decode_inputs *in, double *out,
                           double *lse)
{
    return c->topk > 0 ? attend_listed(ctx, c, in, out, lse) : attend_keys(ctx, c, in, out, lse);
}

assay_status assay_decode_attend(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *c = call->config;
    const assay_decode_inputs *in = call->in;
    OWNED double *lse = NULL;
    MUST(assay_decode_check_table(ctx, c, in));
    if (c->parts > 0) return attend(ctx, c, in, call->partial_out, call->partial_lse);
    MUST(assay_alloc_f64(ctx, "lse", c->batch * c->sequence * c->heads, &lse));
    MUST(attend(ctx, c, in, call->attention_out, lse));
    fill_blind(ctx, c, call->attention_out, lse);
    place_lse(c, call->lse, lse);
    return ASSAY_OK;
}

assay_status assay_decode_merge(assay_context *ctx, const assay_decode_call *call)
{
    const assay_decode_config *c = call->config;
    const decode_change change = decode_change_of(ctx, c);
    const int64_t rows = c->batch * c->sequence * c->heads;
    assay_merge_states_inputs parts = {call->partial_out, call->partial_lse, call->in->sinks};
    assay_decode_config as = *c;
    OWNED double *lse = NULL;
    OWNED double *sinks = NULL;
    OWNED double *misread = NULL;
    if (c->parts == 0) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "lse", rows, &lse));
    MUST(assay_alloc_f64(ctx, "sinks", c->heads, &sinks));
    for (int64_t head = 0; head < c->heads && change == SPLIT_SINKS && parts.sinks != NULL; head++)
        sinks[head] = parts.sinks[head] + assay_log((double)c->parts);
    if (change == SPLIT_SINKS && parts.sinks != NULL) parts.sinks = sinks;
    if (change == MERGE_STRIDES) {
        MUST(assay_alloc_f64(ctx, "misread parts", c->parts * rows * assay_decode_out_dim(c), &misread));
        misread_last(c, parts.partial_out, misread);
        parts.partial_out = misread;
    }
    if (change == SPLIT_LOST) as.parts--;
    if (change == OTHER_BASE) as.base_2 = !c->base_2;
    MUST(decode_merge(ctx, &as, assay_decode_out_dim(c), &parts, call->attention_out, lse));
    if (change == LSE_OF_LAST) memcpy(lse, call->partial_lse + (c->parts - 1) * rows, (size_t)rows * sizeof *lse);
    place_lse(c, call->lse, lse);
    return ASSAY_OK;
}

double assay_decode_flops(const assay_decode_config *c, int64_t keys)
{
    const double rows = (double)c->batch * (double)c->sequence * (double)c->heads;
    const double kernel = (double)c->v_dim * (double)(c->nope + c->out_dim);
    return 2 * rows * ((double)keys * (double)(c->width + c->v_dim) + kernel);
}
