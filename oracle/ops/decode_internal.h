/* The keys of a cache that a query sees, by parts, and where they lie: by the definition, or as a mutant has it. */
#pragma once

#include "oracle/base/step_change.h"
#include "oracle/ops/decode_attention.h"
#include "oracle/ops/merge_states.h"

/* What a mutant takes for what, and the word of the change. */
#define DECODE_DENSE (c->topk == 0)
#define DECODE_PAGED (DECODE_DENSE && c->max_pages > 0)
#define DECODE_CHANGES(X)                                                                                              \
    X(NEXT_KEY, "next key", DECODE_DENSE && c->sequence > 1)                                                           \
    X(FIRST_KEYS, "first keys", DECODE_DENSE && c->sequence > 1) /* query i sees the keys up to i */                   \
    X(ALL_KEYS, "all keys", DECODE_DENSE && c->sequence > 1)                                                           \
    X(HEADS_MODULO, "heads modulo", c->kv_heads > 1 && c->heads > c->kv_heads)                                         \
    X(NEXT_LENGTH, "next length", DECODE_DENSE && c->batch > 1)                                                        \
    X(PARTIAL_PAGE, "partial page", DECODE_PAGED) /* is left out */                                                    \
    X(WHOLE_PAGE, "whole page", DECODE_PAGED)                                                                          \
    X(NEXT_PAGE, "next page", DECODE_PAGED) /* is read, too, where the last one is full */                             \
    X(WHOLE_TABLE, "whole table", DECODE_PAGED)                                                                        \
    X(FIRST_TABLE, "first table", DECODE_PAGED && c->batch > 1)                                                        \
    X(TABLE_TRANSPOSED, "table transposed", DECODE_PAGED && c->max_pages > 1 && c->batch > 1)                          \
    X(NO_TABLE, "no table", DECODE_PAGED)                                                                              \
    X(NO_STRIDE, "no stride", c->stride > c->page)                                                                     \
    X(OTHER_LAYOUT, "other layout", c->kv_heads > 1 && c->stride > 1)                                                  \
    X(LATENT_SCALE, "latent scale", c->latent)                                                                         \
    X(LAST_NUMBERS, "last numbers", c->latent) /* of a key for its value */                                            \
    X(BELOW_FIRST, "index below 0 as the first", !DECODE_DENSE)                                                        \
    X(BELOW_LAST, "index below 0 as the last", !DECODE_DENSE)                                                          \
    X(BEYOND_LAST, "index beyond as the last", !DECODE_DENSE)                                                          \
    X(ALL_ENTRIES, "all entries", !DECODE_DENSE)                                                                       \
    X(WHOLE_TILE, "whole tile", !DECODE_DENSE) /* of entries */                                                        \
    X(INDEX_OF_PAGE, "index of a page", !DECODE_DENSE && c->page > 1)                                                  \
    X(INDEX_LOCAL, "index of the sequence", !DECODE_DENSE && c->batch > 1) /* counts from its share of the rows */     \
    X(FIRST_LIST, "first list", !DECODE_DENSE && c->sequence > 1)                                                      \
    X(LARGEST, "largest of a split", c->parts > 0)                                                                     \
    X(LSE_OF_PIECE, "lse of a piece", c->parts > 0)      /* of a part is that of its last half */                      \
    X(LSE_OF_LAST, "lse of the last part", c->parts > 1) /* is that of the whole */                                    \
    X(OTHER_BASE, "other base", c->parts > 1)            /* of the log-sum-exps that are merged */                     \
    X(MERGE_STRIDES, "merge strides", c->parts > 1)                                                                    \
    X(EMPTY_COUNTED, "empty parts counted", c->parts > 0) /* their log-sum-exp is 0 */                                 \
    X(FIRST_CHUNK, "first chunk", c->chunk > 0)           /* is what every chunk reads */                              \
    X(CAUSAL_CONTEXT, "causal context", c->chunk > 0 && c->sequence > 1)                                               \
    X(SPLIT_LOST, "last split", c->parts > 1)                                                                          \
    X(SPLIT_SINKS, "sinks of splits", c->parts > 1)                                                                    \
    X(NEWEST_LOST, "newest key", DECODE_DENSE)                                                                         \
    X(ONE_MORE, "one key more", DECODE_DENSE)                                                                          \
    X(WRAPPED, "wrapped table", DECODE_PAGED)                       /* is read whole, -1 as the last page of all */    \
    X(ADJACENT, "adjacent pages", DECODE_PAGED && c->max_pages > 1) /* of two entries the second is the one after */   \
    X(HALF_PAGES, "half pages", DECODE_PAGED && c->page % 2 == 0 && c->stride == c->page)                              \
    X(ZERO_LANES, "zero lanes", DECODE_PAGED && c->page > 1)     /* up to a page's end: keys that are zeros */         \
    X(TAIL_WEIGHED, "weighed tail", DECODE_PAGED && c->page > 1) /* with 0, which does not take NaN out */             \
    X(WHOLE_WINDOW, "pages of the window", DECODE_PAGED && c->window > 0 && c->page > 1)                               \
    X(CAPPED_MASK, "capped mask", DECODE_DENSE && c->soft_cap > 0 && (c->sequence > 1 || c->window > 0))

enum { DECODE_ROWS = 128 }; /* queries at a time */

typedef enum decode_change { NOTHING, DECODE_CHANGES(ASSAY_CHANGE_NAME) } decode_change;
decode_change decode_change_of(const assay_context *ctx, const assay_decode_config *config);

/* The keys of a sequence, of one head. */
typedef struct decode_cached {
    const assay_decode_config *config;
    const assay_decode_inputs *in;
    int64_t sequence, kv;
    decode_change change;
} decode_cached;

/* A range of keys. */
typedef struct decode_keys {
    int64_t begin, end;
} decode_keys;
decode_keys decode_overlap(decode_keys a, decode_keys b);

int64_t decode_splits(const assay_decode_config *config); /* 1 where none are named */
int64_t decode_length(const decode_cached *cached);
int64_t decode_read_length(const decode_cached *cached); /* keys that are read: in two mutants, whole pages */
/* Those that a token sees; of a part, or of all where none are named; and those of a part that a token sees. */
decode_keys decode_seen(const decode_cached *cached, int64_t token);
decode_keys decode_split(const decode_cached *cached, int64_t part);
decode_keys decode_seen_of_split(const decode_cached *cached, int64_t token, int64_t part);
/* What a token's softmax runs over, and what is read for some tokens: in mutants more than they see. */
decode_keys decode_weighed(const decode_cached *cached, int64_t token);
decode_keys decode_read(const decode_cached *cached, int64_t first, int64_t last);
void decode_gather(const decode_cached *cached, const double *cache, int64_t width, decode_keys keys, double *to);

/* Lists of rows as a block table of pages of one row, for sequences of one token each. */
typedef struct decode_lists {
    int32_t *rows, *counts, *starts; /* [B*S,topk], [B*S], of parts [B*S,parts+1] */
} decode_lists;
void decode_list(const assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                 decode_lists *lists);

/* In [B,N,S], of a row of [B,S,N]. */
int64_t decode_place_of_lse(const assay_decode_config *config, int64_t row);

/* out [parts or 1,B,S,N,V], lse [parts or 1,B,N,S], of absorbed queries or of heads of their own. */
assay_status decode_attend(assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                           const double *query, double *out, double *lse);
/* The same from wkv_b on. */
assay_status decode_attend_from_kernel(assay_context *ctx, const assay_decode_config *config,
                                       const assay_decode_inputs *in, double *out, double *lse);

/* Parts of rows of so many numbers become the whole, lse [B,N,S]. */
assay_status decode_merge(assay_context *ctx, const assay_decode_config *config, int64_t v_dim,
                          const assay_merge_states_inputs *parts, double *out, double *lse);
