#include "oracle/ops/ops_shares.h"

#include "oracle/arithmetic/arithmetic.h"

/* c [tokens,n] = a [tokens,k] w [k,n]. */
static void add_product(assay_run_shares *shares, double least, int64_t tokens, int64_t n, int64_t k)
{
    assay_matmul_shares(&shares->loops[ASSAY_SHARE_ROWS], least, tokens, n, k);
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
