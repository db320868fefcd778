/* What the files of MLA share; mla.h is the contract. */
#ifndef ASSAY_OPS_MLA_INTERNAL_H
#define ASSAY_OPS_MLA_INTERNAL_H

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/mla.h"

/* The sizes that everything is made of. */
typedef struct mla_sizes {
    int64_t tokens, dim, heads;
    int64_t nope, rope, value; /* Dn, Dr, Dv */
    int64_t qk, kv;            /* Dn+Dr, Dn+Dv */
    int64_t q_rank, kv_rank;   /* Lq, Lkv */
    int64_t kv_wa;             /* Lkv+Dr */
} mla_sizes;
mla_sizes mla_sizes_of(const assay_mla_config *config);

assay_attention_config mla_attention_config(const assay_mla_config *config);

/* c [m,n] = a [m,k] b [k,n], all contiguous. */
assay_status mla_product(assay_context *ctx, double *c, const double *a, const double *b, int64_t m, int64_t n,
                         int64_t k);

/* What rotates q_pe within the query [T,N,Dn+Dr], in place, and k_pe from kv_wa_proj into the first head of the key. */
assay_rope_rows mla_query_rows(double *query, const mla_sizes *s);
assay_rope_rows mla_key_rows(double *key, const double *kv_wa, const mla_sizes *s);

#endif
