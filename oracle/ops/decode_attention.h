/* Attention of the last few tokens of each sequence over a cache, contiguous or in pages (docs/operations.md, "gqa_decode",
 * "mla_decode"; FlashMLA flash_mla_interface.py, FlashInfer mla/_core.py, vLLM's MLA backends, DeepSeek-V3 inference/model.py).
 *
 * query [B,S,N,W], key_cache, value_cache, block_table [B,M]?, cache_seqlens [B], sinks [N]? -> attention_out [B,S,N,V], lse [B,N,S]
 *   key j of sequence b is row j % K of page block_table[b, j / K], without pages row j of sequence b; query head n has key and
 *   value of head n / (N / Nkv); query i of S sees the keys j <= length - S + i, in a window the last so many of these
 *   s_ij = scale <query_i, key_j>, capped as in attention.h; out, lse and sinks are those of attention.h
 * Caches are [P,R,Nkv,W], or heads first [P,Nkv,R,W], R rows of a page of which K hold keys. Of a latent cache (MLA, Nkv = 1) the
 * value is the first V numbers of the key. What no sequence has in its length is never read, and may hold anything.
 * A query that sees no key has out 0 and lse `empty_row`.
 *
 * With topk (FlashMLA's sparse decode) a query sees the rows that its list names, indices [B,S,topk], of which the first topk_length [B] are
 * read: index i is row i % K of page i / K, and none where it is not one of the P K keys. There are no lengths and no block table, and
 * Nkv is 1.
 *
 * From wkv_b on (nope above 0): query [B,S,N,Dn+Dr], kernel [V,N,Dn+Dv]: query = (query_nope kernel_k^T, query_pe), and
 * attention_out [B,S,N,Dv] = out kernel_v.
 *
 * Splits: partial_out [splits,B,S,N,V or Dv] and partial_lse [splits,B,N,S] are what attention over some of the keys gives, without a
 * sink; merge_states.h makes the whole of them. Split i of a sequence has its pages, without pages its keys, from i * ceil(count / splits)
 * on. With a chunk (vLLM's _compute_prefill_context) the keys before the S tokens are cut into chunks of so many, and the last split is
 * that of the S tokens' own keys. Of a list a split has the entries from i * ceil(count / splits) on. */
#pragma once

#include "oracle/ops/attention.h"
#include "oracle/ops/merge_states.h"

typedef struct assay_decode_config {
    int64_t batch, sequence, heads, kv_heads; /* B, S, N, Nkv */
    int64_t width, v_dim;                     /* W, V: numbers of a key and a value in the cache */
    int64_t pages, page, stride;              /* P, K, R; without pages B, L, L */
    int64_t max_pages;                        /* M; 0: no pages */
    bool latent, heads_first;
    int64_t nope, out_dim; /* Dn, Dv; 0: the query comes absorbed */
    double scale;
    int64_t window, splits; /* 0: none */
    int64_t chunk;          /* 0: splits share all keys */
    int64_t topk;           /* 0: every key that a query may see */
    double soft_cap;        /* 0: none */
    bool base_2, lse_tokens_first;
    bool gradients;      /* somebody may want them */
    double empty_row;    /* an infinity */
    int64_t value_first; /* of the numbers of a latent key those of its value begin here */
    assay_attention_variant variant;
} assay_decode_config;

typedef struct assay_decode_inputs {
    const double *query, *key_cache, *value_cache;
    const int32_t *lengths,
        *places; /* cache_seqlens and block_table; of lists topk_length, NULL: all entries, and indices */
    const double *kernel, *sinks; /* NULL: none */
} assay_decode_inputs;

typedef struct assay_key_range {
    int64_t begin, end;
} assay_key_range;

/* What is read, in whole numbers: lists of keys, which are sequences, or with topk those of tokens. Everything goes by it, whatever
 * it was made of. */
typedef struct assay_decode_plan {
    int64_t lists, tokens, splits; /* tokens of a list; splits: 1 where none are named */
    int64_t longest;               /* of whole pages */
    int64_t *rows;   /* [lists,longest]: page * stride + row of the page, to the end of the last page; below 0: zeros */
    int64_t *starts; /* [lists,splits+1]: keys of a split begin there, and the last one ends */
    assay_key_range *seen; /* [lists,tokens,splits]: of these the ones that a token sees */
    int64_t *heads;        /* [N]: query heads, those of the first head of keys first */
    double unseen;         /* score of keys of a list that a token does not see */
    int64_t *numbers;      /* owned; so is seen */
} assay_decode_plan;
/* Refuses what assay_decode_check_table does. */
assay_status assay_decode_plan_make(assay_context *ctx, const assay_decode_config *config,
                                    const assay_decode_inputs *in, assay_decode_plan *plan);
void assay_decode_plan_free(assay_decode_plan *plan); /* safe on a zeroed struct */
int64_t assay_decode_keys(const assay_decode_plan *plan, int64_t list);
/* Of each split a token sees those that are among these keys. */
void assay_decode_see(const assay_decode_plan *plan, int64_t list, int64_t token, assay_key_range keys);
/* The row of heads in which row `row` of a plan has a head. */
int64_t assay_decode_place(const assay_decode_config *config, int64_t row, int64_t head);

assay_status assay_decode_check(assay_context *ctx, const assay_decode_config *config);
/* "inputs/block_table[1,2] is 9, expected 0 to 7 (pagedattn_num_pages): sequence 1 has 70 keys" */
assay_status assay_decode_check_table(assay_context *ctx, const assay_decode_config *config,
                                      const assay_decode_inputs *in);

/* Keys in the length of a sequence or in a list are finite, as they are given; `numbers` of a row. */
assay_status assay_decode_check_cached(assay_context *ctx, const assay_decode_config *config,
                                       const assay_decode_plan *plan, const char *path, const double *cache,
                                       int64_t numbers);

/* attention_out [B,S,N,V or Dv] and lse [B,N,S]; with splits partial_out and partial_lse. */
assay_status assay_decode_attend(assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                                 const assay_decode_plan *plan, double *out, double *lse);
/* What forward gave, and what came back to it; dlse may be NULL. */
typedef struct assay_decode_call {
    const double *out, *lse, *dout, *dlse;
} assay_decode_call;
/* Of caches as they lie: what nobody reads has 0. dsinks NULL: nobody wants it. dkernel: from wkv_b on. */
typedef struct assay_decode_gradients {
    double *dquery, *dkey, *dvalue, *dsinks, *dkernel;
} assay_decode_gradients;
assay_status assay_decode_backward(assay_context *ctx, const assay_decode_config *config, const assay_decode_inputs *in,
                                   const assay_decode_plan *plan, const assay_decode_call *call,
                                   const assay_decode_gradients *g);
/* Of the partial ones of all splits. */
assay_merge_states_config assay_decode_merge_config(const assay_decode_config *config, int64_t states, int64_t v_dim);

int64_t assay_decode_most_keys(const assay_decode_config *config); /* of a sequence */
