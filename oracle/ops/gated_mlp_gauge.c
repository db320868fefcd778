#include "oracle/ops/gated_mlp_gauge.h"

#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/glu.h"

/* Beyond so many standard deviations a kink is out of reach. */
#define KINK_REACH 8.0

/* Scratch of one call: each [rows,H], contiguous. */
typedef struct gauge_buffers {
    double *storage;
    double *va, *vb, *vh; /* variances of a, b, h as stored */
    double *a, *b;        /* a and b without the fused stride */
    double *h, *fa, *fb;  /* the gate again, with its first derivatives */
    double *dh, *vdh;     /* and with a cotangent */
    double *da, *db, *vda, *vdb;
} gauge_buffers;

static assay_status buffers_alloc(assay_context *ctx, gauge_buffers *buffers, int64_t size) {
    enum { COUNT = 14 };
    assay_status status = assay_alloc_f64(ctx, "error scale of a gated MLP", COUNT * size, &buffers->storage);
    RETURN_IF(status != ASSAY_OK, status);
    double **each[COUNT] = {&buffers->va, &buffers->vb, &buffers->vh,  &buffers->a,  &buffers->b,
                            &buffers->h,  &buffers->fa, &buffers->fb,  &buffers->dh, &buffers->vdh,
                            &buffers->da, &buffers->db, &buffers->vda, &buffers->vdb};
    for (int i = 0; i < COUNT; i++)
        *each[i] = buffers->storage + i * size;
    return ASSAY_OK;
}

static double square(double x) {
    return x * x;
}

static void copy_if(double *to, const double *from, int64_t count) {
    for (int64_t i = 0; to != NULL && i < count; i++)
        to[i] = from[i];
}

/* The variance of x w, with x exact, for one half of wi. */
static assay_status up_gauge(assay_context *ctx, const assay_precision *p, double *variance, const double *x,
                             const double *weights, int64_t ldb, const assay_gated_mlp_config *config) {
    assay_matmul_args product = {.c = variance,
                                 .ldc = config->mlp_dim,
                                 .a = x,
                                 .lda = config->emb_dim,
                                 .b = weights,
                                 .ldb = ldb,
                                 .m = config->rows,
                                 .n = config->mlp_dim,
                                 .k = config->emb_dim};
    return assay_gauge_matmul(ctx, p, &product, NULL, NULL);
}

/* va, vb, vh; and the gate with its derivatives. */
static assay_status forward_gauge(assay_context *ctx, const assay_precision *p, const assay_gated_mlp_variances *v,
                                  gauge_buffers *buf, const assay_gated_mlp_residuals *r, const double *x,
                                  const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    int64_t hidden = config->mlp_dim, size = config->rows * hidden, ldb = config->fused ? 2 * hidden : hidden;
    TRY(up_gauge(ctx, p, buf->va, x, config->fused ? w->wi : w->wi_0, ldb, config));
    TRY(up_gauge(ctx, p, buf->vb, x, config->fused ? w->wi + hidden : w->wi_1, ldb, config));
    for (int64_t row = 0; row < config->rows; row++) {
        copy_if(buf->a + row * hidden, r->a + row * r->ld, hidden);
        copy_if(buf->b + row * hidden, r->b + row * r->ld, hidden);
    }
    copy_if(v->a, buf->va, size);
    copy_if(v->b, buf->vb, size);
    assay_gauge_store(p->storage, size, buf->a, buf->va);
    assay_gauge_store(p->storage, size, buf->b, buf->vb);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < config->rows; row++) {
        int64_t at = row * hidden;
        assay_glu_row(ctx, config, hidden, buf->a + at, buf->b + at, buf->h + at, buf->fa + at, buf->fb + at);
        for (int64_t i = at; i < at + hidden; i++) {
            assay_glu_curvature k = assay_glu_curvature_at(
                ctx, config, buf->a[i], buf->b[i], KINK_REACH * sqrt(buf->va[i]), KINK_REACH * sqrt(buf->vb[i]));
            /* across a kink the steeper side counts; the gate's value may be stored before it is multiplied */
            buf->vh[i] = square(fabs(buf->fa[i]) + fabs(k.jump_a)) * buf->va[i] +
                         square(fabs(buf->fb[i]) + fabs(k.jump_b)) * buf->vb[i] +
                         square(buf->h[i] * (p->elementary + p->storage));
        }
    }
    copy_if(v->h, buf->vh, size);
    assay_gauge_store(p->storage, size, buf->h, buf->vh);
    if (v->y != NULL) {
        assay_matmul_args down = {.c = v->y,
                                  .ldc = config->emb_dim,
                                  .a = buf->h,
                                  .lda = hidden,
                                  .b = w->wo,
                                  .ldb = config->emb_dim,
                                  .m = config->rows,
                                  .n = config->emb_dim,
                                  .k = hidden};
        TRY(assay_gauge_matmul(ctx, p, &down, buf->vh, NULL));
    }
cleanup:
    return status;
}

/* vda, vdb from vdh, va and vb: da = dh fa and db = dh fb, where fa and fb move with a and b. */
static void gate_gradient_gauge(assay_context *ctx, const assay_precision *p, gauge_buffers *buf,
                                const assay_gated_mlp_config *config) {
    int64_t size = config->rows * config->mlp_dim;
    double relative = p->elementary + p->storage;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < size; i++) {
        double dh = buf->dh[i], va = buf->va[i], vb = buf->vb[i], vdh = buf->vdh[i];
        assay_glu_curvature k =
            assay_glu_curvature_at(ctx, config, buf->a[i], buf->b[i], KINK_REACH * sqrt(va), KINK_REACH * sqrt(vb));
        buf->da[i] = dh * buf->fa[i];
        buf->db[i] = dh * buf->fb[i];
        buf->vda[i] = square(buf->fa[i]) * vdh + square(dh * k.aa) * va + square(dh * k.ab) * vb +
                      square(dh * k.jump_a) + square(buf->da[i] * relative);
        buf->vdb[i] = square(buf->fb[i]) * vdh + square(dh * k.ab) * va + square(dh * k.bb) * vb +
                      square(dh * k.jump_b) + square(buf->db[i] * relative);
    }
    assay_gauge_store(p->storage, size, buf->da, buf->vda);
    assay_gauge_store(p->storage, size, buf->db, buf->vdb);
}

/* The variance of x^T dy [k,n]; x_variance may be NULL. */
static assay_status weight_gauge(assay_context *ctx, const assay_precision *p, double *variance, int64_t ldc,
                                 const double *x, const double *x_variance, int64_t k, const double *dy,
                                 const double *dy_variance, int64_t n, int64_t rows) {
    if (variance == NULL) return ASSAY_OK;
    assay_matmul_args product = {
        .c = variance, .ldc = ldc, .a = x, .lda = k, .transpose_a = true, .b = dy, .ldb = n, .m = k, .n = n, .k = rows};
    return assay_gauge_matmul(ctx, p, &product, x_variance, dy_variance);
}

static void column_gauge(const assay_precision *p, double *variance, const double *x, const double *x_variance,
                         int64_t rows, int64_t columns) {
    for (int64_t i = 0; variance != NULL && i < columns; i++) {
        double absolute = 0.0, sum = 0.0;
        for (int64_t row = 0; row < rows; row++) {
            absolute += fabs(x[row * columns + i]);
            if (x_variance != NULL) sum += x_variance[row * columns + i];
        }
        variance[i] = sum + (double)rows * square(p->accumulate * absolute);
    }
}

/* dx = da wi_0^T + db wi_1^T. Both terms carry the error of dh, so their standard deviations are added. */
static assay_status input_gauge(assay_context *ctx, const assay_precision *p, double *variance, gauge_buffers *buf,
                                const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    double *second = NULL;
    int64_t hidden = config->mlp_dim, size = config->rows * config->emb_dim;
    TRY(assay_alloc_f64(ctx, "error scale of a gated MLP", size, &second));
    assay_matmul_args product = {.c = variance,
                                 .ldc = config->emb_dim,
                                 .a = buf->da,
                                 .lda = hidden,
                                 .b = config->fused ? w->wi : w->wi_0,
                                 .ldb = config->fused ? 2 * hidden : hidden,
                                 .transpose_b = true,
                                 .m = config->rows,
                                 .n = config->emb_dim,
                                 .k = hidden};
    TRY(assay_gauge_matmul(ctx, p, &product, buf->vda, NULL));
    product.a = buf->db;
    product.b = config->fused ? w->wi + hidden : w->wi_1;
    product.c = second;
    TRY(assay_gauge_matmul(ctx, p, &product, buf->vdb, NULL));
    for (int64_t i = 0; i < size; i++)
        variance[i] = square(sqrt(variance[i]) + sqrt(second[i]));
cleanup:
    free(second);
    return status;
}

static assay_status backward_gauge(assay_context *ctx, const assay_precision *p, const assay_gated_mlp_gradients *g,
                                   gauge_buffers *buf, const double *dy, const double *vdy, const double *x,
                                   const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    int64_t rows = config->rows, dim = config->emb_dim, hidden = config->mlp_dim, size = rows * hidden;
    assay_matmul_args down = {.c = buf->dh,
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
    down.c = buf->vdh;
    TRY(assay_gauge_matmul(ctx, p, &down, vdy, NULL));
    copy_if(g->dh, buf->vdh, size);
    assay_gauge_store(p->storage, size, buf->dh, buf->vdh);
    gate_gradient_gauge(ctx, p, buf, config);

    TRY(weight_gauge(ctx, p, g->dwo, dim, buf->h, buf->vh, hidden, dy, vdy, dim, rows));
    TRY(weight_gauge(ctx, p, g->dwi, 2 * hidden, x, NULL, dim, buf->da, buf->vda, hidden, rows));
    if (g->dwi != NULL) {
        TRY(weight_gauge(ctx, p, g->dwi + hidden, 2 * hidden, x, NULL, dim, buf->db, buf->vdb, hidden, rows));
    }
    TRY(weight_gauge(ctx, p, g->dwi_0, hidden, x, NULL, dim, buf->da, buf->vda, hidden, rows));
    TRY(weight_gauge(ctx, p, g->dwi_1, hidden, x, NULL, dim, buf->db, buf->vdb, hidden, rows));
    column_gauge(p, g->dwi_0_bias, buf->da, buf->vda, rows, hidden);
    column_gauge(p, g->dwi_1_bias, buf->db, buf->vdb, rows, hidden);
    column_gauge(p, g->dwo_bias, dy, vdy, rows, dim);
    if (g->dx != NULL) TRY(input_gauge(ctx, p, g->dx, buf, w, config));
cleanup:
    return status;
}

assay_status assay_gated_mlp_gauge(assay_context *ctx, const assay_precision *precision,
                                   const assay_gated_mlp_variances *v, const double *dy, const double *variance_dy,
                                   const assay_gated_mlp_residuals *r, const double *x,
                                   const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config) {
    assay_status status;
    gauge_buffers buffers = {0};
    TRY(buffers_alloc(ctx, &buffers, config->rows * config->mlp_dim));
    TRY(forward_gauge(ctx, precision, v, &buffers, r, x, w, config));
    if (dy != NULL) TRY(backward_gauge(ctx, precision, &v->gradients, &buffers, dy, variance_dy, x, w, config));
cleanup:
    free(buffers.storage);
    return status;
}
