/* The pieces of the schedule's attention on one shard, each against its formula and against the plain form. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/layer/tests/mla_shard_case.h"

/* batch, sequence, Dr, size */
static const int64_t shapes[][4] = {{1, 1, 2, 1}, {3, 1, 4, 2}, {1, 5, 2, 3}, {3, 5, 6, 1}, {1, 7, 4, 1}, {3, 7, 2, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static assay_mla_config config_of(int shape)
{
    return mla_shard_config(shapes[shape][0], shapes[shape][1], shapes[shape][2], shapes[shape][3]);
}

static int64_t count_of(const mla_shard_case *c, int tensor)
{
    return assay_mla_tensor_count(&c->p.config, (assay_mla_tensor)tensor);
}

/* --- rotation --- */

TEST(test_mask)
{
    static const double two[4] = {0, 1, -1, 0};
    static const double six[36] = {0, 1, 0,  0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0,  0,
                                   0, 0, -1, 0, 0, 0, 0,  0, 0, 0, 0, 1, 0, 0, 0, 0, -1, 0};
    double mask[36];
    assay_fill_nan(mask, 36);
    bs_initialize_yarn_mask(mask, 2);
    assert_same_bits(mask, two, 4);
    assert_all_nan(mask + 4, 32);
    bs_initialize_yarn_mask(mask, 6);
    assert_same_bits(mask, six, 36);
}

/* SPEC 2 as it stands, for positions whose angles float64 holds well. */
static double naive_angle(const assay_rope_config *c, int32_t position, int64_t i)
{
    const double dim = (double)c->dim, theta = c->rope_max_timescale;
    const double original = (double)c->original_max_position_embeddings;
    const double base = 1 / pow(theta, 2 * (double)i / dim);
    const double from = dim * log(original / (c->beta_fast * 2 * M_PI)) / (2 * log(theta));
    const double to = dim * log(original / (c->beta_slow * 2 * M_PI)) / (2 * log(theta));
    const double low = fmax(floor(from), 0), high = fmin(ceil(to), dim - 1);
    const double ramp = fmin(fmax(((double)i - low) / (low >= high ? 0.001 : high - low), 0), 1);
    return position * (base / c->rope_factor * ramp + base * (1 - ramp));
}

TEST(test_freqs)
{
    static const int32_t positions[] = {0, 1, 3, 399, 2, 60, 0};
    static const int64_t dims[] = {2, 4, 6, 10, 64};
    assay_context ctx = assay_context_default(2);
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        const assay_mla_config config = mla_shard_config(1, 7, dims[d], 1);
        const int64_t half = dims[d] / 2;
        double *freqs = test_nans(7 * half + 1);
        bs_initialize_yarn_freqs(&ctx, freqs, positions, &config);
        for (int64_t t = 0; t < 7; t++) {
            for (int64_t i = 0; i < half; i++) {
                const double angle = freqs[t * half + i];
                const double expected = remainder(naive_angle(&config.rope, positions[t], i), 2 * M_PI);
                assert_true(fabs(angle) <= M_PI);
                assert_close(&angle, &expected, 1, 0, 1e-12);
            }
        }
        assert_all_nan(freqs + 7 * half, 1);
        free(freqs);
    }
}

/* Heads of Dr numbers in rows that are wider. */
enum { HEADS = 3, GAP = 2 };
static assay_rope_rows wide_rows(double *y, const double *x, int64_t dim)
{
    const int64_t head = dim + GAP;
    return (assay_rope_rows){y, HEADS * head, head, x, HEADS * head, head, HEADS};
}

/* y = x cos + (x mask) sin, or with the mask transposed. */
static double rotated(const double *x, const double *freqs, const double *mask, int64_t dim, int64_t i, bool back)
{
    double sum = 0;
    for (int64_t j = 0; j < dim; j++) sum += x[j] * (back ? mask[i * dim + j] : mask[j * dim + i]);
    return x[i] * cos(freqs[i / 2]) + sum * sin(freqs[i / 2]);
}

TEST(test_yarn_is_the_formula_with_the_mask)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        const int64_t dim = config.rope.dim, tokens = config.batch * config.sequence;
        const int64_t head = dim + GAP, count = tokens * HEADS * head;
        uint64_t seed = 3;
        double *x = test_normals(&seed, 1, ASSAY_FLOAT64, count), *y = test_nans(count), mask[36];
        double *freqs = test_normals(&seed, 1, ASSAY_FLOAT64, tokens * dim / 2);
        bs_initialize_yarn_mask(mask, dim);
        for (int back = 0; back < 2; back++) {
            const assay_rope_rows rows = wide_rows(y, x, dim);
            assay_fill_nan(y, count);
            assert_ok(&ctx, back ? bs_yarn_bwd(&ctx, &rows, freqs, &config) : bs_yarn(&ctx, &rows, freqs, &config));
            for (int64_t row = 0; row < tokens * HEADS; row++) {
                for (int64_t i = 0; i < dim; i++) {
                    const double *angles = freqs + row / HEADS * dim / 2;
                    const double expected = rotated(x + row * head, angles, mask, dim, i, back);
                    assert_close(&y[row * head + i], &expected, 1, 1e-15, 4e-15);
                }
                assert_all_nan(y + row * head + dim, GAP);
            }
        }
        free(x);
        free(y);
        free(freqs);
    }
}

/* --- projections --- */

TEST(test_projections_are_the_formula_and_the_plain_form)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        mla_shard_case c;
        assay_mla_residuals query = {0}, kv = {0}, all = {0};
        mla_shard_open(&c, &config);
        mla_shard_make_expected(&c);
        assert_ok(&ctx, mla_problem_forward(&ctx, &c.p));
        assert_ok(&ctx, bs_query_projection(&ctx, &c.at, &query));
        assert_ok(&ctx, bs_kv_projection(&ctx, &c.at, &kv));
        assert_ok(&ctx, bs_mla_remat(&ctx, &c.at, &all));
        for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
            const bool of_query = tensor <= ASSAY_MLA_MLA_Q || tensor == ASSAY_MLA_QUERY_PROJ;
            const double *found = of_query ? query.values[tensor] : kv.values[tensor];
            assert_null(of_query ? kv.values[tensor] : query.values[tensor]);
            if (tensor >= ASSAY_MLA_ATTENTION_OUT) {
                assert_null(found);
                assert_null(all.values[tensor]);
                continue;
            }
            mla_shard_assert_near(
                found, mla_shard_expected(&c, assay_mla_tensor_row(&c.p.config, (assay_mla_tensor)tensor).name),
                count_of(&c, tensor));
            assert_same_bits(found, c.p.r.values[tensor], count_of(&c, tensor));
            assert_same_bits(all.values[tensor], found, count_of(&c, tensor));
        }
        assert_null(all.lse);
        assay_mla_residuals_free(&query);
        assay_mla_residuals_free(&kv);
        assay_mla_residuals_free(&all);
        mla_shard_close(&c);
    }
}

static double *cotangent(uint64_t *seed, const mla_shard_case *c, int tensor)
{
    return test_normals(seed, 1, ASSAY_FLOAT64, count_of(c, tensor));
}

TEST(test_query_projection_bwd)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        uint64_t seed = 11;
        mla_shard_case c;
        assay_mla_residuals r = {0};
        mla_shard_open(&c, &config);
        mla_shard_make_expected(&c);
        double *dquery = cotangent(&seed, &c, ASSAY_MLA_QUERY_PROJ),
               *used = test_nans(count_of(&c, ASSAY_MLA_QUERY_PROJ));
        const double *const cotangents[ASSAY_MLA_TENSORS] = {[ASSAY_MLA_QUERY_PROJ] = dquery};
        memcpy(used, dquery, (size_t)count_of(&c, ASSAY_MLA_QUERY_PROJ) * sizeof *used);
        assert_ok(&ctx, bs_query_projection(&ctx, &c.at, &r));
        const assay_mla_gradients g = mla_shard_gradients(&c);
        assert_ok(&ctx, bs_query_projection_bwd(&ctx, &c.at, &g, used, &r));
        double *const gradients[MLA_VARIABLES] = {[MLA_X] = g.dx,
                                                  [MLA_WQ_A] = g.g[ASSAY_MLA_WQ_A],
                                                  [MLA_Q_NORM] = g.g[ASSAY_MLA_Q_NORM],
                                                  [MLA_WQ_B] = g.g[ASSAY_MLA_WQ_B]};
        mla_shard_assert_gradients(&c, cotangents, gradients);
        assert_all_nan(g.g[ASSAY_MLA_WKV_A], c.p.sizes[MLA_WKV_A]);
        assert_all_nan(g.g[ASSAY_MLA_WKV_B], c.p.sizes[MLA_WKV_B]);
        free(dquery);
        free(used);
        assay_mla_residuals_free(&r);
        mla_shard_close(&c);
    }
}

TEST(test_kv_projection_bwd)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        uint64_t seed = 12;
        mla_shard_case c;
        assay_mla_residuals r = {0};
        mla_shard_open(&c, &config);
        mla_shard_make_expected(&c);
        double *dkey = cotangent(&seed, &c, ASSAY_MLA_KEY_PROJ), *dvalue = cotangent(&seed, &c, ASSAY_MLA_VALUE_PROJ);
        const double *const cotangents[ASSAY_MLA_TENSORS] = {
            [ASSAY_MLA_KEY_PROJ] = dkey, [ASSAY_MLA_VALUE_PROJ] = dvalue};
        assert_ok(&ctx, bs_kv_projection(&ctx, &c.at, &r));
        const assay_mla_gradients g = mla_shard_gradients(&c);
        assert_ok(&ctx, bs_kv_projection_bwd(&ctx, &c.at, &g, dkey, dvalue, &r));
        double *const gradients[MLA_VARIABLES] = {[MLA_X] = g.dx,
                                                  [MLA_WKV_A] = g.g[ASSAY_MLA_WKV_A],
                                                  [MLA_KV_NORM] = g.g[ASSAY_MLA_KV_NORM],
                                                  [MLA_WKV_B] = g.g[ASSAY_MLA_WKV_B]};
        mla_shard_assert_gradients(&c, cotangents, gradients);
        assert_all_nan(g.g[ASSAY_MLA_WQ_A], c.p.sizes[MLA_WQ_A]);
        assert_all_nan(g.g[ASSAY_MLA_OUT], c.p.sizes[MLA_OUT]);
        free(dkey);
        free(dvalue);
        assay_mla_residuals_free(&r);
        mla_shard_close(&c);
    }
}

/* --- get_key_value --- */

typedef struct key_value {
    double *low, *rope, *w; /* inputs */
    double *key, *value, *dkey, *dvalue;
    mla_key_value_gradients d;
    int64_t key_count, value_count, w_count;
} key_value;

static void key_value_open(key_value *v, const mla_sizes *s)
{
    uint64_t seed = 21;
    v->key_count = s->tokens * s->heads * s->qk;
    v->value_count = s->tokens * s->heads * s->value;
    v->w_count = s->kv_rank * s->heads * s->kv;
    v->low = test_normals(&seed, 1, ASSAY_FLOAT64, s->tokens * s->kv_rank);
    v->rope = test_normals(&seed, 1, ASSAY_FLOAT64, s->tokens * s->rope);
    v->w = test_normals(&seed, 1, ASSAY_FLOAT64, v->w_count);
    v->dkey = test_normals(&seed, 1, ASSAY_FLOAT64, v->key_count);
    v->dvalue = test_normals(&seed, 1, ASSAY_FLOAT64, v->value_count);
    v->key = test_nans(v->key_count);
    v->value = test_nans(v->value_count);
    v->d = (mla_key_value_gradients){test_nans(s->tokens * s->kv_rank), test_nans(s->tokens * s->rope),
                                     test_nans(v->w_count)};
}

static void key_value_close(key_value *v)
{
    double *all[] = {v->low,  v->rope,   v->w,        v->key,        v->value,
                     v->dkey, v->dvalue, v->d.mla_kv, v->d.key_rope, v->d.wkv_b};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Column `i` of a head of (k_nope, value), or of its gradient. */
static double of_key_or_value(const double *key, const double *value, const mla_sizes *s, int64_t row, int64_t i)
{
    return i < s->nope ? key[row * s->qk + i] : value[row * s->value + i - s->nope];
}

static void assert_key_value(const key_value *v, const mla_sizes *s)
{
    const int64_t width = s->heads * s->kv;
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        const int64_t t = row / s->heads, head = row % s->heads;
        for (int64_t i = 0; i < s->kv; i++) {
            quad sum = 0;
            for (int64_t l = 0; l < s->kv_rank; l++)
                sum += (quad)v->low[t * s->kv_rank + l] * v->w[l * width + head * s->kv + i];
            const double found = of_key_or_value(v->key, v->value, s, row, i), expected = (double)sum;
            assert_close(&found, &expected, 1, 1e-14, 1e-14);
        }
        assert_same_bits(v->key + row * s->qk + s->nope, v->rope + t * s->rope, s->rope);
    }
}

static void assert_key_value_bwd(const key_value *v, const mla_sizes *s)
{
    const int64_t width = s->heads * s->kv;
    for (int64_t l = 0; l < s->kv_rank; l++) {
        for (int64_t column = 0; column < width; column++) {
            const int64_t head = column / s->kv, i = column % s->kv;
            quad sum = 0;
            for (int64_t t = 0; t < s->tokens; t++)
                sum +=
                    (quad)v->low[t * s->kv_rank + l] * of_key_or_value(v->dkey, v->dvalue, s, t * s->heads + head, i);
            const double expected = (double)sum;
            assert_close(&v->d.wkv_b[l * width + column], &expected, 1, 1e-14, 1e-14);
        }
        for (int64_t t = 0; t < s->tokens; t++) {
            quad sum = 0;
            for (int64_t column = 0; column < width; column++) {
                const int64_t row = t * s->heads + column / s->kv;
                sum += (quad)v->w[l * width + column] * of_key_or_value(v->dkey, v->dvalue, s, row, column % s->kv);
            }
            const double expected = (double)sum;
            assert_close(&v->d.mla_kv[t * s->kv_rank + l], &expected, 1, 1e-14, 1e-13);
        }
    }
    for (int64_t i = 0; i < s->tokens * s->rope; i++) {
        const int64_t t = i / s->rope;
        double sum = 0;
        for (int64_t head = 0; head < s->heads; head++)
            sum += v->dkey[(t * s->heads + head) * s->qk + s->nope + i % s->rope];
        assert_close(&v->d.key_rope[i], &sum, 1, 0, 0);
    }
}

TEST(test_get_key_value)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        const mla_sizes s = mla_sizes_of(&config);
        key_value v;
        key_value_open(&v, &s);
        assert_ok(&ctx, bs_get_key_value(&ctx, v.key, v.value, v.low, v.rope, v.w, &config));
        assert_key_value(&v, &s);
        assert_ok(&ctx, bs_get_key_value_bwd(&ctx, &v.d, v.dkey, v.dvalue, v.low, v.w, &config));
        assert_key_value_bwd(&v, &s);
        const mla_key_value_gradients d = {test_nans(s.tokens * s.kv_rank), test_nans(s.tokens * s.rope), NULL};
        assert_ok(&ctx, bs_get_key_value_bwd(&ctx, &d, v.dkey, v.dvalue, v.low, v.w, &config));
        assert_same_bits(d.mla_kv, v.d.mla_kv, s.tokens * s.kv_rank);
        assert_same_bits(d.key_rope, v.d.key_rope, s.tokens * s.rope);
        free(d.mla_kv);
        free(d.key_rope);
        key_value_close(&v);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mask),
        cmocka_unit_test(test_freqs),
        cmocka_unit_test(test_yarn_is_the_formula_with_the_mask),
        cmocka_unit_test(test_projections_are_the_formula_and_the_plain_form),
        cmocka_unit_test(test_query_projection_bwd),
        cmocka_unit_test(test_kv_projection_bwd),
        cmocka_unit_test(test_get_key_value),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
