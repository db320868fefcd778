/* The absorbed form of MLA, one head at a time: wkv_b's key half goes into the query, its value half onto the output.
 */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/blocks/mla.h"

/* What every head works with. */
typedef struct absorbed {
    const assay_mla_config *config;
    int64_t tokens, heads, nope, rope, value; /* Dn, Dr, Dv */
    int64_t rank, wide;                       /* Lkv, Lkv+Dr */
    const double *query_proj, *mla_kv, *key_rope, *wkv_b, *out_kernel;
    const int32_t *segment_ids;
    double *query;  /* [T,Lkv+Dr]: the head's query in latent space, then q_pe */
    double *key;    /* [T,Lkv+Dr]: mla_kv, then k_pe; every head's */
    double *latent; /* [T,Lkv]: the head's attention over mla_kv */
    double *lse;
    double *out; /* [T,N,Dv] */
} absorbed;

/* The latent and the rotated part of the key, without the key itself. */
static void make_key(const assay_context *ctx, const absorbed *a)
{
    for (int64_t t = 0; t < a->tokens; t++) {
        double *row = a->key + t * a->wide;
        memcpy(row, a->mla_kv + t * a->rank, (size_t)a->rank * sizeof *row);
        memcpy(row + a->rank, a->key_rope + t * a->rope, (size_t)a->rope * sizeof *row);
        assay_round(ctx, ASSAY_ROUND_STORAGE, a->rope, row + a->rank);
    }
}

static assay_status one_head(assay_context *ctx, const absorbed *a, int64_t head)
{
    const int64_t qk = a->nope + a->rope, kv = a->nope + a->value;
    const double *query = a->query_proj + head * qk;
    const double *up = a->wkv_b + head * kv; /* [Lkv,Dn+Dv] of this head, rows N (Dn+Dv) apart */
    const assay_attention_config attention = {.batch = a->config->batch,
                                              .sequence = a->config->sequence,
                                              .heads = 1,
                                              .qk_dim = a->wide,
                                              .v_dim = a->rank,
                                              .mask_padding = a->config->mask_padding,
                                              .soft_cap = a->config->soft_cap,
                                              .window = a->config->window};
    assay_matmul_args absorb = assay_product_abt(a->query, query, up, a->tokens, a->rank, a->nope);
    absorb.ldc = a->wide;
    absorb.lda = a->heads * qk;
    absorb.ldb = a->heads * kv;
    absorb.kind = ASSAY_PRODUCT_LINEAR;
    assay_matmul_args release =
        assay_product_ab(a->out + head * a->value, a->latent, up + a->nope, a->tokens, a->value, a->rank);
    release.ldc = a->heads * a->value;
    release.ldb = a->heads * kv;
    release.kind = ASSAY_PRODUCT_LINEAR;
    const assay_attention_inputs inputs = {
        .query = a->query, .key = a->key, .value = a->mla_kv, .segment_ids = a->segment_ids};
    MUST(assay_matmul(ctx, &absorb));
    for (int64_t t = 0; t < a->tokens; t++) {
        double *row = a->query + t * a->wide;
        assay_round(ctx, ASSAY_ROUND_STORAGE, a->rank, row);
        memcpy(row + a->rank, query + t * a->heads * qk + a->nope, (size_t)a->rope * sizeof *row);
    }
    MUST(assay_attention_forward(ctx, a->latent, a->lse, &inputs, &attention));
    assay_round(ctx, ASSAY_ROUND_STORAGE, a->tokens * a->rank, a->latent);
    return assay_matmul(ctx, &release);
}

/* Of the graph: what the absorbed form goes on from. */
static assay_status require(assay_context *ctx, graph_run *r, const char *name, const double **values)
{
    const int tensor = graph_find(r->graph, name);
    const assay_status status = graph_require(ctx, r, tensor);
    *values = r->value[tensor];
    return status;
}

assay_status assay_mla_absorbed_forward(assay_context *ctx, double *y, graph_run *r, const assay_mla_config *config)
{
    assay_status status;
    absorbed a = {.config = config,
                  .tokens = config->batch * config->sequence,
                  .heads = config->heads,
                  .nope = config->qk_nope_head_dim,
                  .rope = config->rope.dim,
                  .value = config->v_head_dim,
                  .rank = config->kv_lora_rank,
                  .wide = config->kv_lora_rank + config->rope.dim,
                  .segment_ids = r->indices[graph_find(r->graph, "inputs/segment_ids")]};
    const int64_t wide = a.heads * a.value;
    TRY(require(ctx, r, "wkv_b/kernel", &a.wkv_b));
    TRY(require(ctx, r, "out/kernel", &a.out_kernel));
    TRY(require(ctx, r, "mla_kv", &a.mla_kv));
    TRY(require(ctx, r, "query_proj", &a.query_proj));
    TRY(require(ctx, r, "rotated_key", &a.key_rope));
    TRY(assay_alloc_f64(ctx, "absorbed query", a.tokens * a.wide, &a.query));
    TRY(assay_alloc_f64(ctx, "latent key", a.tokens * a.wide, &a.key));
    TRY(assay_alloc_f64(ctx, "latent output", a.tokens * a.rank, &a.latent));
    TRY(assay_alloc_f64(ctx, "lse", a.tokens, &a.lse));
    TRY(assay_alloc_f64(ctx, "attention_out", a.tokens * wide, &a.out));
    make_key(ctx, &a);
    for (int64_t head = 0; head < a.heads; head++) TRY(one_head(ctx, &a, head));
    assay_round(ctx, ASSAY_ROUND_STORAGE, a.tokens * wide, a.out);
    assay_matmul_args down = assay_product_ab(y, a.out, a.out_kernel, a.tokens, config->emb_dim, wide);
    down.kind = ASSAY_PRODUCT_LINEAR;
    TRY(assay_matmul(ctx, &down));
cleanup:
    free(a.query);
    free(a.key);
    free(a.latent);
    free(a.lse);
    free(a.out);
    return status;
}
