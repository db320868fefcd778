#include "oracle/ops/ops_shares.h"

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/gqa_internal.h"
#include "oracle/ops/mla_steps.h"

/* c [tokens,n] = a [tokens,k] w [k,n]. */
static void add_product(assay_run_shares *shares, double least, int64_t tokens, int64_t n, int64_t k)
{
    assay_matmul_shares(&shares->loops[ASSAY_SHARE_ROWS], least, tokens, n, k);
}

/* Its gradients, of w and of a. */
static void add_gradients(assay_run_shares *shares, double least, int64_t tokens, int64_t n, int64_t k)
{
    add_product(shares, least, k, n, tokens);
    add_product(shares, least, tokens, k, n);
}

void assay_attention_shares(assay_run_shares *shares, double least, const assay_attention_config *config, bool backward)
{
    const double rows = (double)config->batch * (double)config->sequence;
    const double qk = (double)config->qk_dim, v = (double)config->v_dim;
    const double heads = rows * (double)config->heads, kv_heads = rows * (double)assay_attention_kv_heads(config);
    const double numbers = backward ? heads * qk + kv_heads * (qk + v) : heads * (v + 1);
    assay_ranks_loop_fill(&shares->loops[ASSAY_SHARE_HEADS], least, config->batch * assay_attention_kv_heads(config),
                          assay_attention_flops(config, backward), numbers);
}

/* Columns, and length of the sums, of the product that makes a tensor. */
typedef struct product_size {
    int64_t n, k;
} product_size;

static product_size size_of(double flops, int64_t count, int64_t tokens)
{
    if (flops == 0) return (product_size){0};
    return (product_size){count / tokens, (int64_t)(flops / (2 * (double)count))};
}

static product_size mla_size(const assay_mla_config *config, assay_mla_tensor tensor)
{
    return size_of(assay_mla_tensor_flops(config, tensor), assay_mla_tensor_count(config, tensor),
                   config->batch * config->sequence);
}

static const assay_mla_tensor mla_products[] = {ASSAY_MLA_QUERY_WA_PROJ, ASSAY_MLA_KV_WA_PROJ, ASSAY_MLA_QUERY_PROJ,
                                                ASSAY_MLA_OUT_PROJ};

/* Key and value have a product for each head. */
void assay_mla_tensor_shares(assay_run_shares *shares, double least, const assay_mla_config *config,
                             assay_mla_tensor tensor)
{
    const assay_attention_config attention = mla_attention_config(config);
    const int64_t tokens = config->batch * config->sequence;
    if (tensor == ASSAY_MLA_ATTENTION_OUT) assay_attention_shares(shares, least, &attention, false);
    for (size_t i = 0; i < sizeof mla_products / sizeof *mla_products; i++) {
        const product_size size = mla_size(config, mla_products[i]);
        if (mla_products[i] == tensor) add_product(shares, least, tokens, size.n, size.k);
    }
}

/* Those of key and value are one product with wkv_b. */
void assay_mla_backward_shares(assay_run_shares *shares, double least, const assay_mla_config *config)
{
    const assay_attention_config attention = mla_attention_config(config);
    const mla_sizes s = mla_sizes_of(config);
    assay_attention_shares(shares, least, &attention, true);
    add_gradients(shares, least, s.tokens, s.heads * s.kv, s.kv_rank);
    for (size_t i = 0; i < sizeof mla_products / sizeof *mla_products; i++) {
        const product_size size = mla_size(config, mla_products[i]);
        add_gradients(shares, least, s.tokens, size.n, size.k);
    }
}

static product_size gqa_size(const assay_gqa_config *config, assay_gqa_tensor tensor)
{
    return size_of(assay_gqa_tensor_flops(config, tensor), assay_gqa_tensor_count(config, tensor),
                   config->batch * config->sequence);
}

void assay_gqa_tensor_shares(assay_run_shares *shares, double least, const assay_gqa_config *config,
                             assay_gqa_tensor tensor)
{
    const assay_attention_config attention = gqa_attention_config(config);
    const product_size size = gqa_size(config, tensor);
    if (tensor == ASSAY_GQA_ATTENTION_OUT) {
        assay_attention_shares(shares, least, &attention, false);
    } else {
        add_product(shares, least, config->batch * config->sequence, size.n, size.k);
    }
}

/* What a norm of query or key was given is computed again, where it is no part of qkv_proj. */
void assay_gqa_backward_shares(assay_run_shares *shares, double least, const assay_gqa_config *config)
{
    const assay_attention_config attention = gqa_attention_config(config);
    const int64_t tokens = config->batch * config->sequence;
    assay_attention_shares(shares, least, &attention, true);
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++) {
        const product_size size = gqa_size(config, (assay_gqa_tensor)tensor);
        const bool normed = tensor == ASSAY_GQA_QUERY_PROJ || tensor == ASSAY_GQA_KEY_PROJ;
        if (tensor == ASSAY_GQA_ATTENTION_OUT) continue;
        add_gradients(shares, least, tokens, size.n, size.k);
        if (config->qk_norm && normed) add_product(shares, least, tokens, size.n, size.k);
    }
}

void assay_gated_mlp_up_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config,
                               int branches)
{
    const int fused = config->fused ? 2 : 1;
    for (int i = 0; i < branches; i += fused)
        add_product(shares, least, config->rows, fused * config->mlp_dim, config->emb_dim);
}

void assay_gated_mlp_down_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config)
{
    add_product(shares, least, config->rows, config->emb_dim, config->mlp_dim);
}

/* The gradient of h has gaps between its rows where the branches are fused. */
void assay_gated_mlp_backward_shares(assay_run_shares *shares, double least, const assay_gated_mlp_config *config,
                                     bool weights, bool dx)
{
    const int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    if (weights) add_product(shares, least, hidden, dim, rows);
    if (!config->fused && (weights || dx)) add_product(shares, least, rows, hidden, dim);
    if (weights && config->fused) add_product(shares, least, dim, 2 * hidden, rows);
    for (int branch = 0; branch < 2; branch++) {
        if (weights && !config->fused) add_product(shares, least, dim, hidden, rows);
        if (dx) add_product(shares, least, rows, dim, hidden);
    }
}
