/* The gated MLP against its formulas in binary128, and its gradients against their differences. */
#include <math.h>

#include "oracle/ops/gated_mlp_gauge.h"
#include "oracle/ops/tests/mlp_problem.h"
#include "oracle/ops/tests/ops_test.h"

/* The formulas once more, in binary128, element by element. */
static quad sigmoid(quad x)
{
    return 1 / (1 + expq(-x));
}

static quad activation(assay_activation f, quad x)
{
    const quad pi = 3.14159265358979323846264338327950288420Q;
    switch (f) {
    case ASSAY_SILU:
        return x * sigmoid(x);
    case ASSAY_GELU:
        return x * sigmoid(2 * sqrtq(2 / pi) * (x + 0.044715Q * x * x * x));
    case ASSAY_GELU_EXACT:
        return x * erfcq(-x / sqrtq(2)) / 2;
    case ASSAY_RELU:
        return x > 0 ? x : 0;
    case ASSAY_SIGMOID:
        return sigmoid(x);
    default:
        return x;
    }
}

static quad glu(const assay_gated_mlp_config *config, quad a, quad b)
{
    quad low = a > config->limit ? config->limit : a, clipped = b > config->limit ? config->limit : b;
    if (clipped < -config->limit) clipped = -config->limit;
    if (config->glu == ASSAY_GLU_GPT_OSS) return low * sigmoid(1.702Q * low) * (clipped + 1);
    if (config->glu == ASSAY_GLU_CLAMPED) return activation(config->activation[0], low) * clipped;
    return activation(config->activation[0], a) * activation(config->activation[1], b);
}

/* y, and a, b, h where not NULL, from the parameters of mlp_problem.h. */
static void formula(const mlp_problem *p, const quad *at, quad *y, quad *a, quad *b, quad *h)
{
    const int64_t rows = p->config.rows, dim = p->config.emb_dim, hidden = p->config.mlp_dim;
    const quad *part[MLP_PARTS];
    for (int i = 0; i < MLP_PARTS; i++) part[i] = at + (p->part[i] - p->part[0]);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t d = 0; d < dim; d++) y[row * dim + d] = p->biased ? part[MLP_WO_BIAS][d] : 0;
        for (int64_t j = 0; j < hidden; j++) {
            quad sum_a = p->biased ? part[MLP_WI_0_BIAS][j] : 0, sum_b = p->biased ? part[MLP_WI_1_BIAS][j] : 0;
            for (int64_t d = 0; d < dim; d++) {
                sum_a += part[MLP_X][row * dim + d] * part[MLP_WI_0][d * hidden + j];
                sum_b += part[MLP_X][row * dim + d] * part[MLP_WI_1][d * hidden + j];
            }
            quad product = glu(&p->config, sum_a, sum_b);
            for (int64_t d = 0; d < dim; d++) y[row * dim + d] += product * part[MLP_WO][j * dim + d];
            if (a != NULL) a[row * hidden + j] = sum_a;
            if (b != NULL) b[row * hidden + j] = sum_b;
            if (h != NULL) h[row * hidden + j] = product;
        }
    }
}

static quad loss(const mlp_problem *p, const quad *at)
{
    quad y[64], sum = 0;
    formula(p, at, y, NULL, NULL, NULL);
    for (int64_t i = 0; i < p->config.rows * p->config.emb_dim; i++) sum += p->dy[i] * y[i];
    return sum;
}

/* Every combination that a configuration can have. */
static int next_config(int i, assay_gated_mlp_config *config)
{
    enum { PLAIN = ASSAY_ACTIVATION_COUNT * ASSAY_ACTIVATION_COUNT, CLAMPED = PLAIN + ASSAY_ACTIVATION_COUNT };
    *config = (assay_gated_mlp_config){.rows = 2,
                                       .emb_dim = 4,
                                       .mlp_dim = 3,
                                       .activation = {ASSAY_SIGMOID, ASSAY_LINEAR},
                                       .glu = ASSAY_GLU_GPT_OSS,
                                       .limit = 0.7};
    if (i < PLAIN) {
        config->glu = ASSAY_GLU_PLAIN;
        config->activation[0] = (assay_activation)(i / ASSAY_ACTIVATION_COUNT);
        config->activation[1] = (assay_activation)(i % ASSAY_ACTIVATION_COUNT);
    } else if (i < CLAMPED) {
        config->glu = ASSAY_GLU_CLAMPED;
        config->activation[0] = (assay_activation)(i - PLAIN);
    }
    return i <= CLAMPED;
}

static double largest(const double *values, int64_t count)
{
    double largest_size = 0;
    for (int64_t i = 0; i < count; i++) largest_size = fabs(values[i]) > largest_size ? fabs(values[i]) : largest_size;
    return largest_size;
}

static void assert_near(const double *actual, int64_t ld, const quad *expected, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows * columns; i++) {
        quad error = fabsq(actual[i / columns * ld + i % columns] - expected[i]);
        assert_true(error <= 1e-14 * (1 + fabsq(expected[i])));
    }
}

static void test_forward_is_the_formula(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(2);
    assay_gated_mlp_config config;
    for (int i = 0; next_config(i, &config); i++) {
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, i % 2 == 0, ASSAY_FLOAT64, 10 + (uint64_t)i);
        mlp_problem_run(&ctx, &p);
        quad at[128], y[64], a[64], b[64], h[64];
        for (int64_t j = 0; j < p.count; j++) at[j] = p.part[0][j];
        formula(&p, at, y, a, b, h);
        assert_near(p.y, config.emb_dim, y, config.rows, config.emb_dim);
        assert_near(p.r.a, p.r.ld, a, config.rows, config.mlp_dim);
        assert_near(p.r.b, p.r.ld, b, config.rows, config.mlp_dim);
        assert_near(p.r.h, config.mlp_dim, h, config.rows, config.mlp_dim);
        mlp_problem_free(&p);
    }
}

/* The library's own numbers against its error scale for float64. */
static void test_errors_in_float64_lie_under_sigma(void **state)
{
    (void)state;
    const assay_precision f64 = {"f64", RMS(0x1p-53), 0, RMS(0x1p-53), RMS(0x1p-53), 0x1p-53, .least = 0};
    assay_context ctx = assay_context_default(1);
    assay_gated_mlp_config config;
    double squares = 0;
    int64_t count = 0;
    for (int i = 0; next_config(i, &config); i++) {
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, false, ASSAY_FLOAT64, 50 + (uint64_t)i);
        mlp_problem_run(&ctx, &p);
        quad at[128], y[64];
        double variance[64];
        for (int64_t j = 0; j < p.count; j++) at[j] = p.part[0][j];
        formula(&p, at, y, NULL, NULL, NULL);
        const assay_gated_mlp_variances v = {.y = variance};
        assert_ok(&ctx, assay_gated_mlp_gauge(&ctx, &f64, &v, NULL, NULL, &p.r, p.part[MLP_X], &p.w, &config));
        for (int64_t j = 0; j < p.size[MLP_X]; j++) {
            const double sigma = hypot(sqrt(variance[j]), RMS(0x1p-53) * p.y[j]);
            assert_true(fabsq(p.y[j] - y[j]) <= 5 * (quad)sigma);
            if (sigma == 0) continue; /* where relu is off */
            squares += (double)((p.y[j] - y[j]) * (p.y[j] - y[j]) / ((quad)sigma * sigma));
            count++;
        }
        mlp_problem_free(&p);
    }
    assert_true(sqrt(squares / (double)count) >= 0.3 && sqrt(squares / (double)count) <= 1.05);
}

static void test_gradients_are_differences_of_the_formula(void **state)
{
    (void)state;
    assay_context ctx = assay_context_default(2);
    assay_gated_mlp_config config;
    for (int i = 0; next_config(i, &config); i++) {
        mlp_problem p;
        mlp_problem_make(&ctx, &p, &config, true, ASSAY_FLOAT64, 200 + (uint64_t)i);
        mlp_problem_run(&ctx, &p);
        quad at[128];
        for (int64_t j = 0; j < p.count; j++) at[j] = p.part[0][j];
        for (int part = 0; part < MLP_PARTS; part++) {
            double scale = largest(p.gradient[part], p.size[part]);
            assert_true(scale > 0);
            for (int64_t j = 0; j < p.size[part]; j++) {
                quad *moving = &at[p.part[part] - p.part[0] + j], here = *moving, up;
                *moving = here + 1e-10Q;
                up = loss(&p, at);
                *moving = here - 1e-10Q;
                quad slope = (up - loss(&p, at)) / 2e-10Q;
                *moving = here;
                assert_true(fabsq(p.gradient[part][j] - slope) <= 1e-13 * (quad)scale);
            }
        }
        mlp_problem_free(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward_is_the_formula),
        cmocka_unit_test(test_errors_in_float64_lie_under_sigma),
        cmocka_unit_test(test_gradients_are_differences_of_the_formula),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
