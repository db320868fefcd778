/* Caches of keys and values as bytes: what a page of tokens holds, by format, the writer that appends tokens to it, and the reader.
 *
 * A page has `stride` rows (of `tokens` of them tokens are kept) for each head, [token,head] or, heads_first, [head,token].
 * A row holds a token's numbers of one head: first those that are quantised, `columns` of them, as codes (two of e2m1 a byte,
 * the first in the low four bits), then `rope` numbers of bfloat16. Scales, one a block of columns, lie
 *   IN_ROW   between the two
 *   BEHIND   behind all rows of the page, in the order of the rows: pages without a stride of their own, one head
 *   APART    in a tensor of their own [pages,rows,scales]
 *   GIVEN    nowhere: a float32 scale of the tensor, or of each head, is known beforehand
 * Bytes are little endian. A token's scales take a multiple of `scale_multiple` bytes, of which the last may be unused, a page
 * one of `page_multiple`.
 *
 * Sources: FlashMLA, tests/quant.py (fp8_ds_mla, fp8_model1); DeepGEMM, tests/test_attention.py (the indexer's pages); vLLM,
 * csrc/cache_kernels.cu (e4m3 with given scales, slots); FlashInfer, mla/_core.py (latents and rope as two tensors). */
#pragma once

#include "oracle/ops/cache_numbers.h"
#include "oracle/ops/quantize.h"

typedef enum assay_cache_scales {
    ASSAY_CACHE_NO_SCALES,
    ASSAY_CACHE_IN_ROW,
    ASSAY_CACHE_BEHIND,
    ASSAY_CACHE_APART,
    ASSAY_CACHE_OF_TENSOR,
    ASSAY_CACHE_OF_HEAD
} assay_cache_scales;

/* What it is a cache of: latents with their rope, keys alone (of an indexer), or either of latents and keys with values. */
typedef enum assay_cache_kind { ASSAY_CACHE_ANY, ASSAY_CACHE_LATENT, ASSAY_CACHE_KEYS } assay_cache_kind;

typedef struct assay_cache_format {
    assay_block_format block; /* its name is the cache's; columns 0: the whole row. Element bfloat16: plain numbers */
    assay_cache_scales scales;
    assay_cache_kind kind;
    bool plain_rope; /* rope is bfloat16; else it is quantised as the latents are */
    int scale_multiple, page_multiple;
} assay_cache_format;

extern const char *const assay_cache_format_names[]; /* "auto" first, which is bfloat16; ends with NULL */
const assay_cache_format *assay_cache_format_by_name(const char *); /* NULL when there is none */

typedef struct assay_cache_config {
    const assay_cache_format *format;
    int64_t pages, tokens, stride, heads;
    bool heads_first;
    int64_t columns, rope;       /* of a row; rope 0: none that is plain */
    assay_quantize_config rules; /* its rows, columns and format are not read */
} assay_cache_config;

assay_status assay_cache_check(assay_context *ctx, const assay_cache_config *config);

int64_t assay_cache_page_bytes(const assay_cache_config *config);
int64_t assay_cache_page_scales(const assay_cache_config *config); /* bytes of a page's scales that lie APART */

/* Where a token of a page and head has the first byte of its codes, rope and scales, in its page (of scales that lie APART,
 * in theirs), and how many bytes its scales have. */
typedef struct assay_cache_row {
    int64_t codes, rope, scales, scale_bytes, unused_bytes; /* unused: behind the scales */
} assay_cache_row;
assay_cache_row assay_cache_row_of(const assay_cache_config *config, int64_t token, int64_t head);

typedef struct assay_cache_tokens {
    int64_t count;
    const int32_t *slots;  /* [count]: page * tokens + token; below 0: not kept */
    const double *numbers; /* [count,heads,columns] */
    const double *rope;    /* [count,rope] */
    const double *scale;   /* GIVEN: [1] or [heads]; a format with a scale of the tensor: [1] */
} assay_cache_tokens;

/* A tensor of bytes with what goes into it, by their names under inputs/ and outputs/. Where rope is not plain, the numbers of the
 * second tensor follow those of the first in each row. */
typedef struct assay_cache_stream {
    const char *numbers, *second; /* second NULL: none */
    const char *bytes, *scales, *scale;
    int64_t first_columns, second_columns; /* of the two tensors */
    assay_cache_config cache;
} assay_cache_stream;

typedef struct assay_cache_append_config {
    int64_t tokens, stream_count;
    assay_cache_stream streams[2];
    assay_cache_numbers_config numbers; /* of the first tensor, and of latents the second, before they are written */
} assay_cache_append_config;

/* Slots out of range, and two tokens for one slot, are refused. */
assay_status assay_cache_check_slots(assay_context *ctx, const assay_cache_config *config, int64_t count,
                                     const int32_t *slots);

/* inputs/NAME, which is given of a tensor or its heads, is above 0; NULL: there is none. */
assay_status assay_cache_check_scale(assay_context *ctx, const char *name, const double *scale,
                                     const assay_cache_config *config);

/* Into `bytes` [pages,page bytes] and `scales` (APART; else NULL), each byte an int32. Bytes of no token stay. */
assay_status assay_cache_append(assay_context *ctx, int32_t *bytes, int32_t *scales, const assay_cache_tokens *tokens,
                                const assay_cache_config *config);

/* The numbers of all rows, of tokens or not, [pages,rows of a page,width] in the order of the rows: of each row the columns,
 * then the rope. code * scale is exact. `scale` as assay_cache_tokens has it. */
void assay_cache_read(const assay_context *ctx, double *numbers, int64_t width, const int32_t *bytes,
                      const int32_t *scales, const double *scale, const assay_cache_config *config);
