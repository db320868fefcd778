#include "oracle/propagate/propagate_gated_mlp.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/propagate/glu_factor.h"

/* One call, and [rows,H] each: variances of a, b, h, dh, da, db as they are used (stored), and what da and db share of
 * their errors. */
typedef struct pass {
    const assay_precision *precision;
    const assay_gated_mlp_variances *v;
    const assay_gated_mlp_run *run;
    const assay_gated_mlp_values *r;
    const double *wi_0, *wi_1;       /* rows r->ld apart */
    int64_t rows, dim, hidden, size; /* size: rows * hidden */
    double *memory;
    double *va, *vb, *vh;
    double *dh, *vdh, *da, *vda, *db, *vdb, *shared;
} pass;

static assay_status alloc_scratch(assay_context *ctx, pass *p)
{
    double **const parts[] = {&p->va, &p->vb, &p->vh, &p->dh, &p->vdh, &p->da, &p->vda, &p->db, &p->vdb, &p->shared};
    const int64_t backward = sizeof parts / sizeof *parts, count = p->run->dy != NULL ? backward : 3;
    int64_t total = 0;
    MUST(assay_checked_count(ctx, "error scales of the gated MLP", 3, (int64_t[]){count, p->rows, p->hidden}, &total));
    MUST(assay_alloc_f64(ctx, "error scales of the gated MLP", total, &p->memory));
    for (int64_t i = 0; i < count; i++) *parts[i] = p->memory + i * p->size;
    if (p->v->dh_values != NULL && p->run->dy != NULL) p->dh = p->v->dh_values;
    return ASSAY_OK;
}

/* Rows of values, packed, to a result whose rows are `ld` apart. */
static void copy_out(const pass *p, double *out, int64_t ld, const double *values)
{
    for (int64_t row = 0; out != NULL && row < p->rows; row++)
        memcpy(out + row * ld, values + row * p->hidden, (size_t)p->hidden * sizeof *out);
}

/* variance [rows,columns] += that of a bias, which is given. */
static void add_bias(const pass *p, double *variance, const double *bias, int64_t columns)
{
    for (int64_t column = 0; p->precision->given != ASSAY_FLOAT64 && column < columns; column++) {
        const double given = assay_propagate_given(p->precision->given, bias[column]);
        for (int64_t row = 0; row < p->rows; row++) variance[row * columns + column] += given;
    }
}

/* Variance of a product, then of that plus its bias (NULL: none), before which it may be stored. */
static assay_status biased_product(assay_context *ctx, const pass *p, const assay_matmul_args *args,
                                   const double *variance_a, const double *bias)
{
    assay_status status = assay_propagate_product(ctx, p->precision, bias != NULL, args, variance_a, NULL);
    if (status == ASSAY_OK && bias != NULL) add_bias(p, args->c, bias, args->n);
    return status;
}

/* Variance of x wi_0 or x wi_1 and its bias. */
static assay_status project(assay_context *ctx, const pass *p, double *variance, const double *wi, const double *bias)
{
    assay_matmul_args args = assay_product_ab(variance, p->run->x, wi, p->rows, p->hidden, p->dim);
    args.ldb = p->r->ld;
    return biased_product(ctx, p, &args, p->run->variance_x, bias);
}

static void store(const pass *p, int64_t count, const double *value, double *variance)
{
    assay_propagate_store(p->precision->storage, p->precision->least, count, value, variance);
}

static void store_rows(const pass *p, const double *value, double *variance)
{
    for (int64_t row = 0; row < p->rows; row++) store(p, p->hidden, value + row * p->r->ld, variance + row * p->hidden);
}

/* The two factors at element i of [rows,H]. */
static void factors_at(const pass *p, int64_t i, assay_glu_factor *u, assay_glu_factor *v)
{
    const int64_t at = i / p->hidden * p->r->ld + i % p->hidden;
    *u = assay_glu_gate(p->run->config, p->r->a[at], sqrt(p->va[i]));
    *v = assay_glu_up(p->run->config, p->r->b[at], sqrt(p->vb[i]));
}

/* A relative error of each elementary function; of terms that cancel an absolute one, up to all that is `left` of them. */
static double elementary_error(double unit, double value, double cancels, double left)
{
    return assay_square(fmax(unit * value, fmin(unit * cancels, left)));
}

static double factor_error(const pass *p, const assay_glu_factor *f)
{
    return f->elementary ? elementary_error(p->precision->elementary, fabs(f->value), f->cancels, fabs(f->value)) : 0;
}

static double slope_error(const pass *p, const assay_glu_factor *f)
{
    return f->elementary ? elementary_error(p->precision->elementary, f->first_size, f->first_cancels, f->first_left)
                         : 0;
}

/* h = u v, which errs where both are 0, too. */
static void gate(const assay_context *ctx, const pass *p)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < p->size; i++) {
        assay_glu_factor u, v;
        factors_at(p, i, &u, &v);
        const double of_u = assay_square(u.slope) * p->va[i] + factor_error(p, &u),
                     of_v = assay_square(v.slope) * p->vb[i] + factor_error(p, &v);
        p->vh[i] = assay_square(v.value) * of_u + assay_square(u.value) * of_v + of_u * of_v;
    }
}

/* Columns of equal weights next to each other have equal values, which err alike: in a sum over n such each counts n times. */
static void weigh_alike(const pass *p, const double *value, int64_t ld, double *variance)
{
    for (int64_t row = 0; row < p->rows; row++) {
        const double *v = value + row * ld;
        double *errors = variance + row * p->hidden;
        for (int64_t first = 0, end = 0; first < p->hidden; first = end) {
            while (end < p->hidden && v[end] == v[first] && errors[end] == errors[first]) end++;
            if (end == first) end++; /* NaN */
            for (int64_t i = first; end > first + 1 && i < end; i++) errors[i] *= (double)(end - first);
        }
    }
}

static assay_status forward(assay_context *ctx, const pass *p)
{
    double *const *w = p->run->w;
    MUST(project(ctx, p, p->va, p->wi_0, w[ASSAY_MLP_WI_0_BIAS]));
    MUST(project(ctx, p, p->vb, p->wi_1, w[ASSAY_MLP_WI_1_BIAS]));
    copy_out(p, p->v->a, p->r->ld, p->va);
    copy_out(p, p->v->b, p->r->ld, p->vb);
    store_rows(p, p->r->a, p->va);
    store_rows(p, p->r->b, p->vb);
    gate(ctx, p);
    copy_out(p, p->v->h, p->hidden, p->vh);
    store(p, p->size, p->r->h, p->vh);
    weigh_alike(p, p->r->h, p->hidden, p->vh);
    weigh_alike(p, p->r->a, p->r->ld, p->va); /* for the gradients */
    weigh_alike(p, p->r->b, p->r->ld, p->vb);
    if (p->v->y != NULL) {
        const assay_matmul_args args = assay_product_ab(p->v->y, p->r->h, w[ASSAY_MLP_WO], p->rows, p->dim, p->hidden);
        MUST(biased_product(ctx, p, &args, p->vh, w[ASSAY_MLP_WO_BIAS]));
    }
    return ASSAY_OK;
}

static assay_status hidden_gradient(assay_context *ctx, const pass *p)
{
    assay_matmul_args args = assay_product_abt(p->dh, p->run->dy, p->run->w[ASSAY_MLP_WO], p->rows, p->hidden, p->dim);
    MUST(assay_matmul(ctx, &args));
    args.c = p->vdh;
    MUST(assay_propagate_product(ctx, p->precision, false, &args, p->run->variance_dy, NULL));
    copy_out(p, p->v->dh, p->hidden, p->vdh);
    store(p, p->size, p->dh, p->vdh);
    weigh_alike(p, p->dh, p->hidden, p->vdh);
    return ASSAY_OK;
}

/* da = dh u' v and db = dh u v'. Errors of dh, a and b move both at once, with the sign of the slope; those of rounding and of
 * a kink do not. */
static void gate_gradient(const assay_context *ctx, const pass *p)
{
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < p->size; i++) {
        const double dh = p->dh[i], va = p->va[i], vb = p->vb[i], vdh = p->vdh[i];
        assay_glu_factor u, v;
        factors_at(p, i, &u, &v);
        const double da_dh = u.first * v.value, da_a = dh * u.second * v.value,
                     da_b = dh * u.first * copysign(v.slope, v.first);
        const double db_dh = u.value * v.first, db_b = dh * u.value * v.second,
                     db_a = dh * copysign(u.slope, u.first) * v.first;
        p->da[i] = dh * da_dh;
        p->db[i] = dh * db_dh;
        p->vda[i] = assay_square(da_dh) * vdh + assay_square(da_a) * va + assay_square(da_b) * vb +
                    assay_square(dh) * (assay_square(v.value) * (slope_error(p, &u) + assay_square(u.jump)) +
                                        assay_square(u.first) * factor_error(p, &v));
        p->vdb[i] = assay_square(db_dh) * vdh + assay_square(db_a) * va + assay_square(db_b) * vb +
                    assay_square(dh) * (assay_square(u.value) * (slope_error(p, &v) + assay_square(v.jump)) +
                                        assay_square(v.first) * factor_error(p, &u));
        p->shared[i] = da_dh * db_dh * vdh + da_a * db_a * va + da_b * db_b * vb;
    }
    store(p, p->size, p->da, p->vda);
    store(p, p->size, p->db, p->vdb);
}

/* A tensor [rows,columns] and its variance. */
typedef struct factor {
    const double *value, *variance;
    int64_t columns;
} factor;

/* Variance of a^T b over the rows; NULL: skipped. */
static assay_status weight_gradient(assay_context *ctx, const pass *p, double *variance, int64_t ld, const factor *a,
                                    const factor *b)
{
    assay_matmul_args args = assay_product_atb(variance, a->value, b->value, a->columns, b->columns, p->rows);
    args.ldc = ld;
    return variance == NULL ? ASSAY_OK
                            : assay_propagate_product(ctx, p->precision, false, &args, a->variance, b->variance);
}

/* A sum over rows is a product with ones, but for what operands of a product lose. */
static assay_status bias_gradient(assay_context *ctx, const pass *p, double *variance, const factor *values)
{
    OWNED double *ones = NULL;
    pass sum = *p;
    assay_precision precision = *p->precision;
    if (variance == NULL) return ASSAY_OK;
    precision.multiply = 0;
    sum.precision = &precision;
    MUST(assay_alloc_f64(ctx, "ones", p->rows, &ones));
    for (int64_t row = 0; row < p->rows; row++) ones[row] = 1;
    return weight_gradient(ctx, &sum, variance, values->columns, &(factor){ones, NULL, 1}, values);
}

/* dx += twice what its two products share: sum over h of shared wi_0 wi_1. */
static assay_status add_shared(assay_context *ctx, const pass *p)
{
    enum { BLOCK = 256 };
    const int64_t hidden = p->hidden;
    OWNED double *memory = NULL;
    double *dx = p->v->dx;
    MUST(assay_alloc_f64(ctx, "what da and db share", BLOCK * (hidden + p->rows), &memory));
    double *both = memory, *product = memory + BLOCK * hidden;
    for (int64_t first = 0; first < p->dim; first += BLOCK) {
        const int64_t count = p->dim - first < BLOCK ? p->dim - first : BLOCK;
        const assay_matmul_args args = assay_product_abt(product, p->shared, both, p->rows, count, hidden);
#pragma omp parallel for num_threads(ctx->threads)
        for (int64_t d = 0; d < count; d++) {
            for (int64_t i = 0; i < hidden; i++)
                both[d * hidden + i] = 2 * p->wi_0[(first + d) * p->r->ld + i] * p->wi_1[(first + d) * p->r->ld + i];
        }
        MUST(assay_matmul(ctx, &args));
        for (int64_t row = 0; row < p->rows; row++) {
            for (int64_t d = 0; d < count; d++) {
                double *at = &dx[row * p->dim + first + d];
                *at += product[row * count + d];
                if (*at < 0) *at = 0; /* by rounding: the whole is a sum of squares */
            }
        }
    }
    return ASSAY_OK;
}

/* dx = da wi_0^T + db wi_1^T, each of which may be stored before they are added. */
static assay_status input_gradient(assay_context *ctx, const pass *p)
{
    OWNED double *through_b = NULL;
    double *dx = p->v->dx;
    assay_matmul_args args = assay_product_abt(dx, p->da, p->wi_0, p->rows, p->dim, p->hidden);
    args.ldb = p->r->ld;
    MUST(assay_alloc_f64(ctx, "variance of dx", p->rows * p->dim, &through_b));
    MUST(assay_propagate_product(ctx, p->precision, true, &args, p->vda, NULL));
    args.c = through_b;
    args.a = p->db;
    args.b = p->wi_1;
    MUST(assay_propagate_product(ctx, p->precision, true, &args, p->vdb, NULL));
    for (int64_t i = 0; i < p->rows * p->dim; i++) dx[i] += through_b[i];
    return add_shared(ctx, p);
}

static assay_status backward(assay_context *ctx, const pass *p)
{
    const assay_gated_mlp_variances *out = p->v;
    const int64_t dim = p->dim, hidden = p->hidden;
    double *dwi = out->g[ASSAY_MLP_WI];
    const factor x = {p->run->x, p->run->variance_x, dim}, dy = {p->run->dy, p->run->variance_dy, dim},
                 h = {p->r->h, p->vh, hidden}, da = {p->da, p->vda, hidden}, db = {p->db, p->vdb, hidden};
    MUST(hidden_gradient(ctx, p));
    gate_gradient(ctx, p);
    for (int64_t i = 0; p->run->weighted != NULL && i < p->size; i++) p->vh[i] += p->run->weighted[i];
    MUST(weight_gradient(ctx, p, out->g[ASSAY_MLP_WO], dim, &h, &dy));
    MUST(bias_gradient(ctx, p, out->g[ASSAY_MLP_WO_BIAS], &dy));
    MUST(weight_gradient(ctx, p, dwi != NULL ? dwi : out->g[ASSAY_MLP_WI_0], p->r->ld, &x, &da));
    MUST(weight_gradient(ctx, p, dwi != NULL ? dwi + hidden : out->g[ASSAY_MLP_WI_1], p->r->ld, &x, &db));
    MUST(bias_gradient(ctx, p, out->g[ASSAY_MLP_WI_0_BIAS], &da));
    MUST(bias_gradient(ctx, p, out->g[ASSAY_MLP_WI_1_BIAS], &db));
    if (out->dx != NULL) MUST(input_gradient(ctx, p));
    return ASSAY_OK;
}

assay_status assay_propagate_gated_mlp(assay_context *ctx, const assay_precision *precision,
                                       const assay_gated_mlp_variances *v, const assay_gated_mlp_run *run)
{
    assay_status status = ASSAY_OK;
    const assay_gated_mlp_config *config = run->config;
    const bool fused = config->fused;
    const double *wi = run->w[ASSAY_MLP_WI];
    pass p = {.precision = precision,
              .v = v,
              .run = run,
              .r = &run->r,
              .wi_0 = fused ? wi : run->w[ASSAY_MLP_WI_0],
              .wi_1 = fused ? wi + config->mlp_dim : run->w[ASSAY_MLP_WI_1],
              .rows = config->rows,
              .dim = config->emb_dim,
              .hidden = config->mlp_dim,
              .size = config->rows * config->mlp_dim};
    TRY(alloc_scratch(ctx, &p));
    TRY(forward(ctx, &p));
    if (run->dy != NULL) TRY(backward(ctx, &p));
cleanup:
    free(p.memory);
    return status;
}
