/* The steps of MLA one by one, as the files of mla.h and the batch-split schedule (oracle/layer) put them together. Sizes
 * are what assay_mla_check lets through; results are overwritten. */
#ifndef ASSAY_OPS_MLA_STEPS_H
#define ASSAY_OPS_MLA_STEPS_H

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

/* c [m,n] = a [m,k] b [k,n], all contiguous; b is a weight. */
assay_status mla_product(assay_context *ctx, double *c, const double *a, const double *b, int64_t m, int64_t n,
                         int64_t k);

/* What the products of a linear layer x [T,k] w [k,n] take by the configuration's recipe; without one what is given. */
assay_status mla_operands(assay_context *ctx, assay_recipe_operands *operands, assay_recipe_given given, int64_t k,
                          int64_t n, const assay_mla_config *config);

/* What rotates q_pe within the query [T,N,Dn+Dr], in place, k_pe from kv_wa_proj to key_rope [T,Dr], and its gradient
 * back. */
assay_rope_rows mla_query_rows(double *query, const mla_sizes *s);
assay_rope_rows mla_key_rows(double *key_rope, const double *kv_wa, const mla_sizes *s);
assay_rope_rows mla_key_gradient_rows(double *d_kv_wa, const double *d_key_rope, const mla_sizes *s);

/* --- around the rotation --- */

/* The query [T,N,Dn+Dr], or its gradient, times the softmax scale. */
void mla_scale_query(const assay_context *ctx, double *query, const assay_mla_config *config);

/* key [T,N,Dn+Dr] from mla_kv [T,Lkv] and the rotated key_rope [T,Dr], which every head gets. */
assay_status mla_key(assay_context *ctx, double *key, const double *mla_kv, const double *key_rope, const double *wkv_b,
                     const assay_mla_config *config);
assay_status mla_value(assay_context *ctx, double *value, const double *mla_kv, const double *wkv_b,
                       const assay_mla_config *config);

/* dw [n_x,n_dy] = x^T dy over the tokens. A dw that is NULL is skipped. */
assay_status mla_weight_gradient(assay_context *ctx, double *dw, const double *x, int64_t n_x, const double *dy,
                                 int64_t n_dy, int64_t tokens);
/* dx [tokens,n_x] = dy w^T, which may be stored. */
assay_status mla_input_gradient(assay_context *ctx, double *dx, const double *dy, int64_t n_dy, const double *w,
                                int64_t n_x, int64_t tokens);

/* What backward works with. */
typedef struct mla_call {
    const assay_mla_gradients *g; /* dx apart: each step has its own */
    const assay_mla_residuals *r;
    const double *x;
    const assay_mla_weights *w;
    const assay_mla_config *config;
} mla_call;

/* dx (NULL: skipped) and the gradients of the query's weights from that of the query before its rotation. */
assay_status mla_query_backward(assay_context *ctx, const mla_call *call, double *dx, const double *dquery);

/* Of mla_key and mla_value; what may be stored. */
typedef struct mla_key_value_gradients {
    double *mla_kv;   /* [T,Lkv] */
    double *key_rope; /* [T,Dr]: summed over heads, ascending */
    double *wkv_b;    /* NULL: skipped */
} mla_key_value_gradients;
/* Without a recipe. */
assay_status mla_key_value_backward(assay_context *ctx, const mla_key_value_gradients *d, const double *dkey,
                                    const double *dvalue, const double *mla_kv, const double *wkv_b,
                                    const assay_mla_config *config);

/* dx (NULL: skipped), dkv_norm and dwkv_a from d_mla_kv and the last Dr columns of d_kv_wa [T,Lkv+Dr], where the
 * gradient of k_pe before its rotation is, and may be stored; the first Lkv are written. */
assay_status mla_kv_latent_backward(assay_context *ctx, const mla_call *call, double *dx, double *d_kv_wa,
                                    const double *d_mla_kv);

#endif
