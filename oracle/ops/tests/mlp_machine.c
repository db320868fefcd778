#include "oracle/ops/tests/mlp_machine.h"

#include <stdlib.h>

#include "oracle/ops/tests/ops_test.h"

static double store(const mlp_machine *m, double x)
{
    return assay_dtype_round(m->storage, x, false);
}

static double single(double x)
{
    return (float)x;
}

/* One sum of products of strided vectors. */
static double dot(const mlp_machine *m, int64_t count, const double *a, int64_t a_step, const double *b, int64_t b_step)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double x = assay_dtype_round(m->multiply, a[i * a_step], false);
        double y = assay_dtype_round(m->multiply, b[i * b_step], false);
        sum = single(sum + single(x * y));
    }
    return sum;
}

static double with_bias(const mlp_machine *m, double product, const double *bias, int64_t i)
{
    if (bias == NULL) return store(m, product);
    return store(m, single((m->stores_inside ? store(m, product) : product) + bias[i]));
}

/* The factors of the gate and their derivatives, as an implementation computes them. */
static void factors(const assay_gated_mlp_config *config, double a, double b, double *u, double *du, double *v,
                    double *dv)
{
    assay_context ctx = assay_context_default(1);
    const double limit = config->limit;
    double cut_a = a, cut_b = b;
    if (config->glu != ASSAY_GLU_PLAIN) {
        cut_a = a > limit ? limit : a;
        cut_b = b > limit ? limit : b < -limit ? -limit : b;
    }
    if (config->glu == ASSAY_GLU_GPT_OSS) {
        assay_quick_gelu_many(&ctx, 1, &cut_a, u, du);
    } else {
        assay_activation_many(&ctx, config->activation[0], 1, &cut_a, u, du);
    }
    if (config->glu == ASSAY_GLU_PLAIN) {
        assay_activation_many(&ctx, config->activation[1], 1, &cut_b, v, dv);
    } else {
        *v = cut_b + (config->glu == ASSAY_GLU_GPT_OSS ? 1 : 0);
        *dv = cut_b != b ? 0 : 1;
        *du = cut_a != a ? 0 : *du;
    }
    *u = single(*u);
    *du = single(*du);
    *v = single(*v);
    *dv = single(*dv);
}

void mlp_results_make(mlp_results *out, const mlp_problem *p)
{
    double **const hidden[] = {&out->a, &out->b, &out->h, &out->dh, &out->da, &out->db};
    for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++)
        *hidden[i] = test_nans(p->config.rows * p->config.mlp_dim);
    out->y = test_nans(p->config.rows * p->config.emb_dim);
    for (int i = 0; i < MLP_PARTS; i++) out->gradient[i] = test_nans(p->size[i]);
}

void mlp_results_free(mlp_results *out)
{
    double *const all[] = {out->a, out->b, out->h, out->dh, out->da, out->db, out->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    for (int i = 0; i < MLP_PARTS; i++) free(out->gradient[i]);
}

static void run_forward(const mlp_machine *m, const mlp_problem *p, mlp_results *out)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    for (int64_t row = 0; row < rows; row++) {
        const double *x = p->part[MLP_X] + row * dim;
        for (int64_t j = 0; j < hidden; j++) {
            const int64_t i = row * hidden + j;
            double u, du, v, dv;
            out->a[i] = with_bias(m, dot(m, dim, x, 1, p->part[MLP_WI_0] + j, hidden), p->w.w[ASSAY_MLP_WI_0_BIAS], j);
            out->b[i] = with_bias(m, dot(m, dim, x, 1, p->part[MLP_WI_1] + j, hidden), p->w.w[ASSAY_MLP_WI_1_BIAS], j);
            factors(&p->config, out->a[i], out->b[i], &u, &du, &v, &dv);
            out->h[i] = store(m, single(u * v));
        }
        for (int64_t d = 0; d < dim; d++) {
            double product = dot(m, hidden, out->h + row * hidden, 1, p->part[MLP_WO] + d, dim);
            out->y[row * dim + d] = with_bias(m, product, p->w.w[ASSAY_MLP_WO_BIAS], d);
        }
    }
}

static void run_gate_gradient(const mlp_machine *m, const mlp_problem *p, mlp_results *out)
{
    const int64_t dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    for (int64_t i = 0; i < p->config.rows * hidden; i++) {
        double u, du, v, dv;
        factors(&p->config, out->a[i], out->b[i], &u, &du, &v, &dv);
        double dh = store(m, dot(m, dim, p->dy + i / hidden * dim, 1, p->part[MLP_WO] + i % hidden * dim, 1));
        out->dh[i] = dh;
        out->da[i] = store(m, single(dh * single(du * v)));
        out->db[i] = store(m, single(dh * single(u * dv)));
    }
}

static void run_backward(const mlp_machine *m, const mlp_problem *p, mlp_results *out)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    mlp_machine sums = *m;
    sums.multiply = ASSAY_FLOAT64;
    const double one = 1;
    run_gate_gradient(m, p, out);
    for (int64_t j = 0; j < hidden; j++) {
        for (int64_t d = 0; d < dim; d++) {
            const double *x = p->part[MLP_X] + d;
            out->gradient[MLP_WI_0][d * hidden + j] = store(m, dot(m, rows, x, dim, out->da + j, hidden));
            out->gradient[MLP_WI_1][d * hidden + j] = store(m, dot(m, rows, x, dim, out->db + j, hidden));
            out->gradient[MLP_WO][j * dim + d] = store(m, dot(m, rows, out->h + j, hidden, p->dy + d, dim));
        }
        out->gradient[MLP_WI_0_BIAS][j] = store(m, dot(&sums, rows, &one, 0, out->da + j, hidden));
        out->gradient[MLP_WI_1_BIAS][j] = store(m, dot(&sums, rows, &one, 0, out->db + j, hidden));
    }
    for (int64_t d = 0; d < dim; d++) {
        out->gradient[MLP_WO_BIAS][d] = store(m, dot(&sums, rows, &one, 0, p->dy + d, dim));
        for (int64_t row = 0; row < rows; row++) {
            double first = dot(m, hidden, out->da + row * hidden, 1, p->part[MLP_WI_0] + d * hidden, 1);
            double second = dot(m, hidden, out->db + row * hidden, 1, p->part[MLP_WI_1] + d * hidden, 1);
            if (m->stores_inside) {
                first = store(m, first);
                second = store(m, second);
            }
            out->gradient[MLP_X][row * dim + d] = store(m, single(first + second));
        }
    }
}

void mlp_machine_run(const mlp_machine *m, const mlp_problem *p, mlp_results *out)
{
    run_forward(m, p, out);
    run_backward(m, p, out);
}
