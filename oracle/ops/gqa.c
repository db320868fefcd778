#include "oracle/ops/gqa.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/ops/gqa_internal.h"
#include "oracle/ops/rms_norm.h"
#include "oracle/ops/vector_sums.h"

assay_gqa_weights assay_gqa_weights_of(double *const weights[ASSAY_GQA_WEIGHTS])
{
    assay_gqa_weights w;
    for (int i = 0; i < ASSAY_GQA_WEIGHTS; i++) w.w[i] = weights[i];
    return w;
}

assay_gqa_gradients assay_gqa_gradients_of(double *dx, double *const gradients[ASSAY_GQA_WEIGHTS])
{
    assay_gqa_gradients g = {.dx = dx};
    for (int i = 0; i < ASSAY_GQA_WEIGHTS; i++) g.g[i] = gradients[i];
    return g;
}

void assay_gqa_residuals_free(assay_gqa_residuals *r)
{
    for (int tensor = 0; tensor < ASSAY_GQA_TENSORS; tensor++) free(r->values[tensor]);
    free(r->lse);
    *r = (assay_gqa_residuals){0};
}

assay_attention_config gqa_attention_config(const assay_gqa_config *config)
{
    return (assay_attention_config){.batch = config->batch,
                                    .sequence = config->sequence,
                                    .heads = config->heads,
                                    .kv_heads = config->kv_heads,
                                    .qk_dim = config->head_dim,
                                    .v_dim = config->head_dim,
                                    .window = config->window,
                                    .mask_padding = config->mask_padding};
}

/* Every tensor is at most as large as one of these. */
static assay_status check_counts(assay_context *ctx, const assay_gqa_config *config)
{
    const int64_t b = config->batch, s = config->sequence, n = config->heads, d = config->emb_dim;
    const struct {
        const char *name;
        int64_t dims[5];
    } tensors[] = {{"inputs/x", {b, s, d, 1, 1}},
                   {"heads", {b, s, 3, n, config->head_dim}},
                   {"query/kernel", {d, 3, n, config->head_dim, 1}}};
    assay_status status = ASSAY_OK;
    int64_t count = 0;
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        TRY(assay_checked_count(ctx, tensors[i].name, 5, tensors[i].dims, &count));
cleanup:
    return status;
}

assay_status assay_gqa_check(assay_context *ctx, const assay_gqa_config *config)
{
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", config->batch},
                 {"sequence", config->sequence},
                 {"base_emb_dim", config->emb_dim},
                 {"base_num_query_heads", config->heads},
                 {"base_num_kv_heads", config->kv_heads},
                 {"head_dim", config->head_dim}};
    const assay_attention_config attention = gqa_attention_config(config);
    assay_status status = ASSAY_OK;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value >= 1) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is %" PRId64 ", expected 1 or more", sizes[i].name, sizes[i].value);
    }
    TRY(assay_attention_check(ctx, &attention));
    if (!(config->epsilon >= 0)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "normalization_layer_epsilon is %g, expected 0 or more",
                          config->epsilon);
    }
    if (!(config->query_scale > 0) || !isfinite(config->query_scale)) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "query_pre_attn_scalar is %g, expected a number above 0",
                          config->query_scale);
    }
    TRY(assay_rope_check(ctx, &config->rope));
    TRY(check_counts(ctx, config));
cleanup:
    return status;
}

gqa_heads gqa_heads_of(const assay_gqa_config *config, assay_gqa_tensor tensor)
{
    const int64_t n = config->heads, kv = config->kv_heads;
    switch (tensor) {
    case ASSAY_GQA_QKV_PROJ:
        return (gqa_heads){ASSAY_GQA_QKV, ASSAY_GQA_QKV_BIAS, -1, 0, n + 2 * kv};
    case ASSAY_GQA_QUERY_PROJ:
        return (gqa_heads){ASSAY_GQA_QUERY, ASSAY_GQA_QUERY_BIAS, ASSAY_GQA_QUERY_NORM, 0, n};
    case ASSAY_GQA_KEY_PROJ:
        return (gqa_heads){ASSAY_GQA_KEY, ASSAY_GQA_KEY_BIAS, ASSAY_GQA_KEY_NORM, n, kv};
    default: /* ASSAY_GQA_VALUE_PROJ */
        return (gqa_heads){ASSAY_GQA_VALUE, ASSAY_GQA_VALUE_BIAS, -1, n + kv, kv};
    }
}

/* c [rows,n] = a [rows,k] w [k,n] + bias, which may be NULL. */
static assay_status linear(assay_context *ctx, double *c, const double *a, const double *w, const double *bias,
                           int64_t rows, int64_t n, int64_t k)
{
    assay_matmul_args args = assay_product_ab(c, a, w, rows, n, k);
    args.kind = ASSAY_PRODUCT_LINEAR;
    const assay_status status = assay_matmul(ctx, &args);
    if (status != ASSAY_OK || bias == NULL) return status;
    assay_round(ctx, ASSAY_ROUND_STORAGE, rows * n, c);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) assay_add_scaled(ctx, n, 1, bias, c + row * n);
    return ASSAY_OK;
}

assay_status gqa_project(assay_context *ctx, double *out, assay_gqa_tensor tensor, const double *qkv, const double *x,
                         const assay_gqa_weights *w, const assay_gqa_config *config)
{
    const gqa_heads h = gqa_heads_of(config, tensor);
    const int64_t tokens = config->batch * config->sequence, width = h.count * config->head_dim;
    const int64_t all = (config->heads + 2 * config->kv_heads) * config->head_dim;
    if (tensor == ASSAY_GQA_QKV_PROJ || !config->fused_qkv) {
        return linear(ctx, out, x, w->w[h.kernel], w->w[h.bias], tokens, width, config->emb_dim);
    }
    for (int64_t t = 0; t < tokens; t++)
        memcpy(out + t * width, qkv + t * all + h.first * config->head_dim, (size_t)width * sizeof *out);
    return ASSAY_OK;
}

assay_rope_rows gqa_rope_rows(double *heads, int64_t count, const assay_gqa_config *config)
{
    const int64_t dim = config->head_dim;
    return (assay_rope_rows){.y = heads,
                             .y_token_stride = count * dim,
                             .y_head_stride = dim,
                             .x = heads,
                             .x_token_stride = count * dim,
                             .x_head_stride = dim,
                             .heads = count};
}

void gqa_scale_query(const assay_context *ctx, double *query, const assay_gqa_config *config)
{
    const int64_t count = assay_gqa_tensor_count(config, ASSAY_GQA_QUERY_PROJ);
    if (config->query_scale == 1) return;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) query[i] *= config->query_scale;
}

/* The query or the key: projected, normed, rotated, scaled. */
static assay_status rotated(assay_context *ctx, double *out, assay_gqa_tensor tensor, const assay_gqa_residuals *r,
                            const assay_gqa_inputs *in, const assay_gqa_weights *w, const assay_gqa_config *config)
{
    assay_status status = ASSAY_OK;
    const gqa_heads h = gqa_heads_of(config, tensor);
    const int64_t tokens = config->batch * config->sequence, heads = tokens * h.count, dim = config->head_dim;
    const assay_rope_rows rows = gqa_rope_rows(out, h.count, config);
    assay_rope_table table = {0};
    double *rstd = NULL;
    TRY(gqa_project(ctx, out, tensor, r->values[ASSAY_GQA_QKV_PROJ], in->x, w, config));
    assay_round(ctx, ASSAY_ROUND_STORAGE, heads * dim, out);
    if (config->qk_norm) {
        TRY(assay_alloc_f64(ctx, "1/rms", heads, &rstd));
        assay_rms_norm_forward(ctx, out, rstd, out, w->w[h.norm], heads, dim, config->epsilon);
        assay_round(ctx, ASSAY_ROUND_STORAGE, heads * dim, out);
    }
    TRY(assay_rope_table_make(ctx, &table, in->positions, tokens, &config->rope));
    assay_rope_forward(ctx, &rows, &table, &config->rope);
    if (tensor == ASSAY_GQA_KEY_PROJ) goto cleanup;
    assay_round(ctx, ASSAY_ROUND_STORAGE, heads * dim, out);
    gqa_scale_query(ctx, out, config);
cleanup:
    assay_rope_table_free(&table);
    free(rstd);
    return status;
}

assay_attention_inputs gqa_attention_inputs(const assay_gqa_residuals *r, const assay_gqa_inputs *in,
                                            const assay_gqa_weights *w)
{
    return (assay_attention_inputs){.query = r->values[ASSAY_GQA_QUERY_PROJ],
                                    .key = r->values[ASSAY_GQA_KEY_PROJ],
                                    .value = r->values[ASSAY_GQA_VALUE_PROJ],
                                    .segment_ids = in->segment_ids,
                                    .sinks = w->w[ASSAY_GQA_SINKS]};
}

static assay_status attention(assay_context *ctx, double *out, assay_gqa_residuals *r, const assay_gqa_inputs *in,
                              const assay_gqa_weights *w, const assay_gqa_config *config)
{
    const assay_attention_config attention_config = gqa_attention_config(config);
    const assay_attention_inputs inputs = gqa_attention_inputs(r, in, w);
    assay_status status = ASSAY_OK;
    double *lse = NULL;
    TRY(assay_alloc_f64(ctx, "lse", config->batch * config->heads * config->sequence, &lse));
    TRY(assay_attention_forward(ctx, out, lse, &inputs, &attention_config));
    free(r->lse);
    r->lse = lse;
    lse = NULL;
cleanup:
    free(lse);
    return status;
}

static assay_status compute(assay_context *ctx, double *out, assay_gqa_residuals *r, assay_gqa_tensor tensor,
                            const assay_gqa_inputs *in, const assay_gqa_weights *w, const assay_gqa_config *config)
{
    switch (tensor) {
    case ASSAY_GQA_QUERY_PROJ:
    case ASSAY_GQA_KEY_PROJ:
        return rotated(ctx, out, tensor, r, in, w, config);
    case ASSAY_GQA_ATTENTION_OUT:
        return attention(ctx, out, r, in, w, config);
    case ASSAY_GQA_OUT_PROJ:
        return linear(ctx, out, r->values[ASSAY_GQA_ATTENTION_OUT], w->w[ASSAY_GQA_OUT], w->w[ASSAY_GQA_OUT_BIAS],
                      config->batch * config->sequence, config->emb_dim, config->heads * config->head_dim);
    default: /* ASSAY_GQA_QKV_PROJ, ASSAY_GQA_VALUE_PROJ */
        return gqa_project(ctx, out, tensor, r->values[ASSAY_GQA_QKV_PROJ], in->x, w, config);
    }
}

assay_status assay_gqa_compute(assay_context *ctx, assay_gqa_residuals *r, assay_gqa_tensor tensor,
                               const assay_gqa_inputs *in, const assay_gqa_weights *w, const assay_gqa_config *config)
{
    assay_status status = ASSAY_OK;
    const assay_tensor_row row = assay_gqa_tensor_row(config, tensor);
    const int64_t count = assay_tensor_row_count(&row);
    double *out = NULL;
    if (r->values[tensor] != NULL || count == 0) return ASSAY_OK;
    TRY(assay_alloc_f64(ctx, row.name, count, &out));
    TRY(compute(ctx, out, r, tensor, in, w, config));
    /* y is the caller's to round. */
    if (tensor != ASSAY_GQA_OUT_PROJ) assay_round(ctx, ASSAY_ROUND_STORAGE, count, out);
    r->values[tensor] = out;
    out = NULL;
cleanup:
    free(out);
    return status;
}

/* Of one product of all tokens with the kernels of these heads. */
static double product_flops(const assay_gqa_config *config, int64_t heads)
{
    const double tokens = (double)config->batch * (double)config->sequence;
    return 2 * tokens * (double)config->emb_dim * (double)heads * (double)config->head_dim;
}

double assay_gqa_tensor_flops(const assay_gqa_config *config, assay_gqa_tensor tensor)
{
    const assay_attention_config attention = gqa_attention_config(config);
    if (tensor == ASSAY_GQA_ATTENTION_OUT) return assay_attention_flops(&attention, false);
    if (tensor == ASSAY_GQA_OUT_PROJ) return product_flops(config, config->heads);
    const bool computed = (tensor == ASSAY_GQA_QKV_PROJ) == config->fused_qkv;
    return computed ? product_flops(config, gqa_heads_of(config, tensor).count) : 0;
}

double assay_gqa_backward_flops(const assay_gqa_config *config)
{
    const assay_attention_config attention = gqa_attention_config(config);
    const int64_t all = config->heads + 2 * config->kv_heads;
    const int64_t again = config->qk_norm && !config->fused_qkv ? config->heads + config->kv_heads : 0;
    return assay_attention_flops(&attention, true) + product_flops(config, 2 * (config->heads + all) + again);
}
