#include "oracle/ops/gated_mlp.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/glu.h"

assay_status assay_gated_mlp_residuals_alloc(assay_context *ctx, assay_gated_mlp_residuals *r,
                                             const assay_gated_mlp_config *config) {
    int64_t size = 0;
    *r = (assay_gated_mlp_residuals){0};
    assay_status status =
        assay_checked_count(ctx, "gated MLP", 3, (int64_t[]){config->rows, config->mlp_dim, 3}, &size);
    if (status == ASSAY_OK) status = assay_alloc_f64(ctx, "gated MLP", size, &r->storage);
    if (status != ASSAY_OK) return status;
    int64_t block = config->rows * config->mlp_dim;
    r->a = r->storage;
    r->b = r->storage + (config->fused ? config->mlp_dim : block);
    r->ld = config->fused ? 2 * config->mlp_dim : config->mlp_dim;
    r->h = r->storage + 2 * block;
    return ASSAY_OK;
}

void assay_gated_mlp_residuals_free(assay_gated_mlp_residuals *r) {
    free(r->storage);
    *r = (assay_gated_mlp_residuals){0};
}

/* A fused weight is its two halves side by side. */
static const double *half(const double *fused, const double *separate, int64_t offset) {
    return fused != NULL ? fused + offset : separate;
}

static void add_bias(const assay_context *ctx, double *x, const double *bias, int64_t rows, int64_t columns,
                     int64_t ld) {
    if (bias == NULL) return;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < columns; i++)
            x[row * ld + i] += bias[i];
    }
}

assay_status assay_gated_mlp_forward(assay_context *ctx, double *y, assay_gated_mlp_residuals *r, const double *x,
                                     const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    assay_matmul_args up = {
        .a = x, .lda = dim, .c = r->a, .ldc = r->ld, .b = w->wi_0, .ldb = hidden, .m = rows, .n = hidden, .k = dim};
    assay_matmul_args down = {
        .a = r->h, .lda = hidden, .c = y, .ldc = dim, .b = w->wo, .ldb = dim, .m = rows, .n = dim, .k = hidden};
    if (config->fused) {
        up.b = w->wi;
        up.ldb = up.n = 2 * hidden;
        TRY(assay_matmul(ctx, &up));
    } else {
        TRY(assay_matmul(ctx, &up));
        up.b = w->wi_1;
        up.c = r->b;
        TRY(assay_matmul(ctx, &up));
    }
    add_bias(ctx, r->a, w->wi_0_bias, rows, hidden, r->ld);
    add_bias(ctx, r->b, w->wi_1_bias, rows, hidden, r->ld);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        assay_glu_row(ctx, config, hidden, r->a + row * r->ld, r->b + row * r->ld, r->h + row * hidden, NULL, NULL);
    }
    TRY(assay_matmul(ctx, &down));
    add_bias(ctx, y, w->wo_bias, rows, dim, dim);
cleanup:
    return status;
}

/* The sum over rows of x [rows,columns]. */
static void column_sums(const assay_context *ctx, double *sums, const double *x, int64_t rows, int64_t columns,
                        int64_t ld) {
    if (sums == NULL) return;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < columns; i++) {
        double sum = 0.0;
        for (int64_t row = 0; row < rows; row++)
            sum += x[row * ld + i];
        sums[i] = sum;
    }
}

/* da = dh fa and db = dh fb, into the layout of the residuals. */
static void glu_backward(const assay_context *ctx, double *da, double *db, const double *dh,
                         const assay_gated_mlp_residuals *r, const assay_gated_mlp_config *config, double *h_scratch) {
    int64_t hidden = config->mlp_dim;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < config->rows; row++) {
        double *da_row = da + row * r->ld, *db_row = db + row * r->ld;
        assay_glu_row(ctx, config, hidden, r->a + row * r->ld, r->b + row * r->ld, h_scratch + row * hidden, da_row,
                      db_row);
        for (int64_t i = 0; i < hidden; i++) {
            da_row[i] *= dh[row * hidden + i];
            db_row[i] *= dh[row * hidden + i];
        }
    }
}

/* dx = da wi_0^T + db wi_1^T: two products and one addition, fused weights or not. */
static assay_status input_gradient(assay_context *ctx, double *dx, double *scratch, const double *da, const double *db,
                                   const assay_gated_mlp_residuals *r, const assay_gated_mlp_weights *w,
                                   const assay_gated_mlp_config *config) {
    assay_status status;
    int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    assay_matmul_args product = {.c = dx,
                                 .ldc = dim,
                                 .a = da,
                                 .lda = r->ld,
                                 .b = half(w->wi, w->wi_0, 0),
                                 .ldb = config->fused ? 2 * hidden : hidden,
                                 .transpose_b = true,
                                 .m = rows,
                                 .n = dim,
                                 .k = hidden};
    TRY(assay_matmul(ctx, &product));
    product.a = db;
    product.b = half(w->wi, w->wi_1, hidden);
    product.c = scratch;
    TRY(assay_matmul(ctx, &product));
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t i = 0; i < dim; i++)
            dx[row * dim + i] += scratch[row * dim + i];
    }
cleanup:
    return status;
}

static assay_status weight_gradient(assay_context *ctx, double *dw, const double *x, int64_t x_ld, const double *dy,
                                    int64_t dy_ld, int64_t k, int64_t n, int64_t rows) {
    if (dw == NULL) return ASSAY_OK;
    assay_matmul_args product = {
        .c = dw, .ldc = n, .a = x, .lda = x_ld, .transpose_a = true, .b = dy, .ldb = dy_ld, .m = k, .n = n, .k = rows};
    return assay_matmul(ctx, &product);
}

assay_status assay_gated_mlp_backward(assay_context *ctx, const assay_gated_mlp_gradients *g, const double *dy,
                                      const assay_gated_mlp_residuals *r, const double *x,
                                      const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    double *dh = NULL, *dab = NULL, *scratch = NULL;
    int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim;
    bool inner = g->dx != NULL || g->dwi != NULL || g->dwi_0 != NULL || g->dwi_1 != NULL || g->dwi_0_bias != NULL ||
                 g->dwi_1_bias != NULL;
    TRY(weight_gradient(ctx, g->dwo, r->h, hidden, dy, dim, hidden, dim, rows));
    column_sums(ctx, g->dwo_bias, dy, rows, dim, dim);
    if (!inner && g->dh == NULL) goto cleanup;

    if (g->dh == NULL) TRY(assay_alloc_f64(ctx, "gated MLP gradient", rows * hidden, &dh));
    double *dh_here = g->dh != NULL ? g->dh : dh;
    assay_matmul_args down = {.c = dh_here,
                              .ldc = hidden,
                              .a = dy,
                              .lda = dim,
                              .b = w->wo,
                              .ldb = dim,
                              .transpose_b = true,
                              .m = rows,
                              .n = hidden,
                              .k = dim};
    TRY(assay_matmul(ctx, &down));
    if (!inner) goto cleanup;

    TRY(assay_alloc_f64(ctx, "gated MLP gradient", 2 * rows * hidden, &dab));
    TRY(assay_alloc_f64(ctx, "gated MLP gradient", rows * (dim > hidden ? dim : hidden), &scratch));
    double *da = dab, *db = dab + (config->fused ? hidden : rows * hidden);
    glu_backward(ctx, da, db, dh_here, r, config, scratch);
    TRY(weight_gradient(ctx, g->dwi, x, dim, dab, 2 * hidden, dim, 2 * hidden, rows));
    TRY(weight_gradient(ctx, g->dwi_0, x, dim, da, r->ld, dim, hidden, rows));
    TRY(weight_gradient(ctx, g->dwi_1, x, dim, db, r->ld, dim, hidden, rows));
    column_sums(ctx, g->dwi_0_bias, da, rows, hidden, r->ld);
    column_sums(ctx, g->dwi_1_bias, db, rows, hidden, r->ld);
    if (g->dx != NULL) TRY(input_gradient(ctx, g->dx, scratch, da, db, r, w, config));
cleanup:
    free(dh);
    free(dab);
    free(scratch);
    return status;
}
