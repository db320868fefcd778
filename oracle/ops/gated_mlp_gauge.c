#include "oracle/ops/gated_mlp_gauge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/glu.h"

/* One call: what it was given, and [rows,H] each: variances of a, b, h, dh, da, db as they are used (stored), and what
 * da and db share of their errors. */
typedef struct gauge {
    const assay_precision *precision;
    const assay_gated_mlp_variances *v;
    const double *dy, *variance_dy, *x;
    const assay_gated_mlp_residuals *r;
    const assay_gated_mlp_weights *w;
    const assay_gated_mlp_config *config;
    int64_t rows, dim, hidden, size; /* size: rows * hidden */
    double *memory;
    double *va, *vb, *vh;
    double *dh, *vdh, *da, *vda, *db, *vdb, *shared;
} gauge;

static double square(double x)
{
    return x * x;
}

static assay_status alloc_scratch(assay_context *ctx, gauge *g)
{
    double **const parts[] = {&g->va, &g->vb, &g->vh, &g->dh, &g->vdh, &g->da, &g->vda, &g->db, &g->vdb, &g->shared};
    const int64_t backward = sizeof parts / sizeof *parts, count = g->dy != NULL ? backward : 3;
    int64_t total = 0;
    assay_status status =
        assay_checked_count(ctx, "error scales of the gated MLP", 3, (int64_t[]){count, g->rows, g->hidden}, &total);
    RETURN_IF(status != ASSAY_OK, status);
    status = assay_alloc_f64(ctx, "error scales of the gated MLP", total, &g->memory);
    RETURN_IF(status != ASSAY_OK, status);
    for (int64_t i = 0; i < count; i++) *parts[i] = g->memory + i * g->size;
    return ASSAY_OK;
}

static void copy_out(double *out, const double *values, int64_t count)
{
    if (out != NULL) memcpy(out, values, (size_t)count * sizeof *out);
}

/* variance [rows,columns] += that of a bias, which is given. */
static void add_bias(const gauge *g, double *variance, const double *bias, int64_t columns)
{
    for (int64_t column = 0; g->precision->given != ASSAY_FLOAT64 && column < columns; column++) {
        const double given = assay_gauge_given(g->precision->given, bias[column]);
        for (int64_t row = 0; row < g->rows; row++) variance[row * columns + column] += given;
    }
}

/* Variance of a product, then of that plus its bias (NULL: none), before which it may be stored. */
static assay_status biased_product(assay_context *ctx, const gauge *g, const assay_matmul_args *args,
                                   const double *variance_a, const double *bias)
{
    if (bias == NULL) return assay_gauge_matmul(ctx, g->precision, args, variance_a, NULL);
    assay_status status = assay_gauge_matmul_stored(ctx, g->precision, args, variance_a, NULL);
    if (status == ASSAY_OK) add_bias(g, args->c, bias, args->n);
    return status;
}

/* Variance of x wi_0 or x wi_1 and its bias. */
static assay_status project(assay_context *ctx, const gauge *g, double *variance, const double *wi, const double *bias)
{
    assay_matmul_args args = assay_product_ab(variance, g->x, wi, g->rows, g->hidden, g->dim);
    args.ldb = g->r->ld;
    return biased_product(ctx, g, &args, g->v->x, bias);
}

static void store(const gauge *g, int64_t count, const double *value, double *variance)
{
    assay_gauge_store(g->precision->storage, g->precision->least, count, value, variance);
}

static void store_rows(const gauge *g, const double *value, double *variance)
{
    for (int64_t row = 0; row < g->rows; row++) store(g, g->hidden, value + row * g->r->ld, variance + row * g->hidden);
}

/* The two factors at element i of [rows,H]. */
static void factors_at(const gauge *g, int64_t i, assay_glu_factor *u, assay_glu_factor *v)
{
    const int64_t at = i / g->hidden * g->r->ld + i % g->hidden;
    *u = assay_glu_gate(g->config, g->r->a[at], sqrt(g->va[i]));
    *v = assay_glu_up(g->config, g->r->b[at], sqrt(g->vb[i]));
}

static double factor_error(const gauge *g, const assay_glu_factor *f)
{
    return f->elementary ? square(g->precision->elementary * f->value) : 0;
}

static double slope_error(const gauge *g, const assay_glu_factor *f)
{
    return f->elementary ? square(g->precision->elementary * f->first_size) : 0;
}

/* h = u v */
static void gate(const assay_context *ctx, const gauge *g)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < g->size; i++) {
        assay_glu_factor u, v;
        factors_at(g, i, &u, &v);
        g->vh[i] = square(v.value) * (square(u.slope) * g->va[i] + factor_error(g, &u)) +
                   square(u.value) * (square(v.slope) * g->vb[i] + factor_error(g, &v));
    }
}

static assay_status forward(assay_context *ctx, const gauge *g)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_weights *w = g->w;
    TRY(project(ctx, g, g->va, g->config->fused ? w->w[ASSAY_MLP_WI] : w->w[ASSAY_MLP_WI_0],
                w->w[ASSAY_MLP_WI_0_BIAS]));
    TRY(project(ctx, g, g->vb, g->config->fused ? w->w[ASSAY_MLP_WI] + g->hidden : w->w[ASSAY_MLP_WI_1],
                w->w[ASSAY_MLP_WI_1_BIAS]));
    copy_out(g->v->a, g->va, g->size);
    copy_out(g->v->b, g->vb, g->size);
    store_rows(g, g->r->a, g->va);
    store_rows(g, g->r->b, g->vb);
    gate(ctx, g);
    copy_out(g->v->h, g->vh, g->size);
    store(g, g->size, g->r->h, g->vh);
    if (g->v->y != NULL) {
        const assay_matmul_args args =
            assay_product_ab(g->v->y, g->r->h, w->w[ASSAY_MLP_WO], g->rows, g->dim, g->hidden);
        TRY(biased_product(ctx, g, &args, g->vh, w->w[ASSAY_MLP_WO_BIAS]));
    }
cleanup:
    return status;
}

static assay_status hidden_gradient(assay_context *ctx, const gauge *g)
{
    assay_status status = ASSAY_OK;
    assay_matmul_args args = assay_product_abt(g->dh, g->dy, g->w->w[ASSAY_MLP_WO], g->rows, g->hidden, g->dim);
    TRY(assay_matmul(ctx, &args));
    args.c = g->vdh;
    TRY(assay_gauge_matmul(ctx, g->precision, &args, g->variance_dy, NULL));
    copy_out(g->v->gradients.dh, g->vdh, g->size);
    store(g, g->size, g->dh, g->vdh);
cleanup:
    return status;
}

/* da = dh u' v and db = dh u v'. Errors of dh, a and b move both at once; those of rounding and of a kink do not. */
static void gate_gradient(const assay_context *ctx, const gauge *g)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < g->size; i++) {
        const double dh = g->dh[i], va = g->va[i], vb = g->vb[i], vdh = g->vdh[i];
        assay_glu_factor u, v;
        factors_at(g, i, &u, &v);
        const double da_dh = u.first * v.value, da_a = dh * u.second * v.value, da_b = dh * u.first * v.slope;
        const double db_dh = u.value * v.first, db_b = dh * u.value * v.second, db_a = dh * u.slope * v.first;
        g->da[i] = dh * da_dh;
        g->db[i] = dh * db_dh;
        g->vda[i] = square(da_dh) * vdh + square(da_a) * va + square(da_b) * vb +
                    square(dh) * (square(v.value) * (slope_error(g, &u) + square(u.jump)) +
                                  square(u.first) * factor_error(g, &v));
        g->vdb[i] = square(db_dh) * vdh + square(db_a) * va + square(db_b) * vb +
                    square(dh) * (square(u.value) * (slope_error(g, &v) + square(v.jump)) +
                                  square(v.first) * factor_error(g, &u));
        g->shared[i] = da_dh * db_dh * vdh + da_a * db_a * va + da_b * db_b * vb;
    }
    store(g, g->size, g->da, g->vda);
    store(g, g->size, g->db, g->vdb);
}

/* Variance of a^T b over the rows, a [rows,m], b [rows,n]; NULL: skipped. */
static assay_status weight_gradient(assay_context *ctx, const gauge *g, double *variance, int64_t ld, const double *a,
                                    const double *variance_a, int64_t m, const double *b, const double *variance_b,
                                    int64_t n)
{
    assay_matmul_args args = assay_product_atb(variance, a, b, m, n, g->rows);
    args.ldc = ld;
    return variance == NULL ? ASSAY_OK : assay_gauge_matmul(ctx, g->precision, &args, variance_a, variance_b);
}

/* A sum over rows is a product with ones, but for what operands of a product lose. */
static assay_status bias_gradient(assay_context *ctx, const gauge *g, double *variance, const double *values,
                                  const double *variance_values, int64_t columns)
{
    assay_status status = ASSAY_OK;
    double *ones = NULL;
    gauge sum = *g;
    assay_precision precision = *g->precision;
    if (variance == NULL) return ASSAY_OK;
    precision.multiply = 0;
    sum.precision = &precision;
    TRY(assay_alloc_f64(ctx, "ones", g->rows, &ones));
    for (int64_t row = 0; row < g->rows; row++) ones[row] = 1;
    TRY(weight_gradient(ctx, &sum, variance, columns, ones, NULL, 1, values, variance_values, columns));
cleanup:
    free(ones);
    return status;
}

/* dx += twice what its two products share: sum over h of shared wi_0 wi_1. */
static assay_status add_shared(assay_context *ctx, const gauge *g, const double *wi_0, const double *wi_1)
{
    enum { BLOCK = 256 };
    assay_status status = ASSAY_OK;
    const int64_t hidden = g->hidden;
    double *memory = NULL, *dx = g->v->gradients.dx;
    TRY(assay_alloc_f64(ctx, "what da and db share", BLOCK * (hidden + g->rows), &memory));
    double *both = memory, *product = memory + BLOCK * hidden;
    for (int64_t first = 0; first < g->dim; first += BLOCK) {
        const int64_t count = g->dim - first < BLOCK ? g->dim - first : BLOCK;
        const assay_matmul_args args = assay_product_abt(product, g->shared, both, g->rows, count, hidden);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t d = 0; d < count; d++) {
            for (int64_t i = 0; i < hidden; i++)
                both[d * hidden + i] = 2 * wi_0[(first + d) * g->r->ld + i] * wi_1[(first + d) * g->r->ld + i];
        }
        TRY(assay_matmul(ctx, &args));
        for (int64_t row = 0; row < g->rows; row++) {
            for (int64_t d = 0; d < count; d++) {
                double *at = &dx[row * g->dim + first + d];
                *at += product[row * count + d];
                if (*at < 0) *at = 0; /* by rounding: the whole is a sum of squares */
            }
        }
    }
cleanup:
    free(memory);
    return status;
}

/* dx = da wi_0^T + db wi_1^T, each of which may be stored before they are added. */
static assay_status input_gradient(assay_context *ctx, const gauge *g)
{
    assay_status status = ASSAY_OK;
    const double *wi_0 = g->config->fused ? g->w->w[ASSAY_MLP_WI] : g->w->w[ASSAY_MLP_WI_0];
    const double *wi_1 = g->config->fused ? g->w->w[ASSAY_MLP_WI] + g->hidden : g->w->w[ASSAY_MLP_WI_1];
    double *through_b = NULL, *dx = g->v->gradients.dx;
    assay_matmul_args args = assay_product_abt(dx, g->da, wi_0, g->rows, g->dim, g->hidden);
    args.ldb = g->r->ld;
    TRY(assay_alloc_f64(ctx, "variance of dx", g->rows * g->dim, &through_b));
    TRY(assay_gauge_matmul_stored(ctx, g->precision, &args, g->vda, NULL));
    args.c = through_b;
    args.a = g->db;
    args.b = wi_1;
    TRY(assay_gauge_matmul_stored(ctx, g->precision, &args, g->vdb, NULL));
    for (int64_t i = 0; i < g->rows * g->dim; i++) dx[i] += through_b[i];
    TRY(add_shared(ctx, g, wi_0, wi_1));
cleanup:
    free(through_b);
    return status;
}

static assay_status backward(assay_context *ctx, const gauge *g)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_gradients *out = &g->v->gradients;
    const int64_t dim = g->dim, hidden = g->hidden;
    TRY(hidden_gradient(ctx, g));
    gate_gradient(ctx, g);
    for (int64_t i = 0; g->v->weighted != NULL && i < g->size; i++) g->vh[i] += g->v->weighted[i];
    TRY(weight_gradient(ctx, g, out->g[ASSAY_MLP_WO], dim, g->r->h, g->vh, hidden, g->dy, g->variance_dy, dim));
    TRY(bias_gradient(ctx, g, out->g[ASSAY_MLP_WO_BIAS], g->dy, g->variance_dy, dim));
    double *dwi_0 = out->g[ASSAY_MLP_WI] != NULL ? out->g[ASSAY_MLP_WI] : out->g[ASSAY_MLP_WI_0];
    double *dwi_1 = out->g[ASSAY_MLP_WI] != NULL ? out->g[ASSAY_MLP_WI] + hidden : out->g[ASSAY_MLP_WI_1];
    TRY(weight_gradient(ctx, g, dwi_0, g->r->ld, g->x, g->v->x, dim, g->da, g->vda, hidden));
    TRY(weight_gradient(ctx, g, dwi_1, g->r->ld, g->x, g->v->x, dim, g->db, g->vdb, hidden));
    TRY(bias_gradient(ctx, g, out->g[ASSAY_MLP_WI_0_BIAS], g->da, g->vda, hidden));
    TRY(bias_gradient(ctx, g, out->g[ASSAY_MLP_WI_1_BIAS], g->db, g->vdb, hidden));
    if (out->dx != NULL) TRY(input_gradient(ctx, g));
cleanup:
    return status;
}

assay_status assay_gated_mlp_gauge(assay_context *ctx, const assay_precision *precision,
                                   const assay_gated_mlp_variances *v, const double *dy, const double *variance_dy,
                                   const assay_gated_mlp_residuals *r, const double *x,
                                   const assay_gated_mlp_weights *w, const assay_gated_mlp_config *config)
{
    assay_status status = ASSAY_OK;
    gauge g = {.precision = precision,
               .v = v,
               .dy = dy,
               .variance_dy = variance_dy,
               .x = x,
               .r = r,
               .w = w,
               .config = config,
               .rows = config->rows,
               .dim = config->emb_dim,
               .hidden = config->mlp_dim,
               .size = config->rows * config->mlp_dim};
    TRY(alloc_scratch(ctx, &g));
    TRY(forward(ctx, &g));
    if (dy != NULL) TRY(backward(ctx, &g));
cleanup:
    free(g.memory);
    return status;
}
