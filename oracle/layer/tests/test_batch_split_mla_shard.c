/* The pieces of the schedule's attention on one shard, each against the second form and against the plain form. */
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

/* Their cosines and sines are where the second form turns (1, 0). */
TEST(test_freqs)
{
    static const int32_t positions[] = {0, 1, 3, 399, 2, 60, 0};
    static const int64_t dims[] = {2, 4, 6, 10, 64};
    assay_context ctx = assay_context_default(2);
    for (size_t d = 0; d < sizeof dims / sizeof *dims; d++) {
        const assay_mla_config config = mla_shard_config(1, 7, dims[d], 1);
        const int64_t count = 7 * dims[d];
        const assay_shape shape = assay_shape_of(4, (int64_t)1, (int64_t)7, (int64_t)1, dims[d]);
        const assay_shape tokens = assay_shape_of(1, (int64_t)7);
        double *freqs = test_nans(count / 2 + 1), *turned = test_nans(count);
        for (int64_t i = 0; i < count; i++) turned[i] = i % 2 == 0;
        quad_tensors in = {0}, out = {0};
        assert_ok(&ctx, quad_tensors_copy_f64(&ctx, &in, "inputs/x", &shape, turned));
        assert_ok(&ctx, quad_tensors_copy_i32(&ctx, &in, "inputs/positions", &tokens, positions));
        assert_ok(&ctx, quad_evaluate(&ctx, quad_yarn_rope, &config.rope, &in, NULL, &out));
        bs_initialize_yarn_freqs(&ctx, freqs, positions, &config);
        for (int64_t i = 0; i < count; i++) {
            assert_true(fabs(freqs[i / 2]) <= M_PI);
            turned[i] = i % 2 == 0 ? cos(freqs[i / 2]) : sin(freqs[i / 2]);
        }
        mla_shard_assert_near(turned, quad_tensors_find(&out, "outputs/y")->values, count);
        assert_all_nan(freqs + count / 2, 1);
        quad_tensors_free(&in);
        quad_tensors_free(&out);
        free(freqs);
        free(turned);
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

/* Of the query, or of key and value; what belongs to the other is left alone. */
TEST(test_projections_bwd)
{
    assay_context ctx = assay_context_default(2);
    for (int i = 0; i < 2 * SHAPES; i++) {
        const assay_mla_config config = config_of(i / 2);
        const bool of_query = i % 2 == 0;
        uint64_t seed = 11;
        mla_shard_case c;
        assay_mla_residuals r = {0};
        mla_shard_open(&c, &config);
        mla_shard_make_expected(&c);
        double *dquery = cotangent(&seed, &c, ASSAY_MLA_QUERY_PROJ),
               *used = test_nans(count_of(&c, ASSAY_MLA_QUERY_PROJ));
        double *dkey = cotangent(&seed, &c, ASSAY_MLA_KEY_PROJ), *dvalue = cotangent(&seed, &c, ASSAY_MLA_VALUE_PROJ);
        const double *const cotangents[ASSAY_MLA_TENSORS] = {[ASSAY_MLA_QUERY_PROJ] = of_query ? dquery : NULL,
                                                             [ASSAY_MLA_KEY_PROJ] = of_query ? NULL : dkey,
                                                             [ASSAY_MLA_VALUE_PROJ] = of_query ? NULL : dvalue};
        memcpy(used, dquery, (size_t)count_of(&c, ASSAY_MLA_QUERY_PROJ) * sizeof *used);
        const assay_mla_gradients g = mla_shard_gradients(&c);
        assert_ok(&ctx, of_query ? bs_query_projection(&ctx, &c.at, &r) : bs_kv_projection(&ctx, &c.at, &r));
        assert_ok(&ctx, of_query ? bs_query_projection_bwd(&ctx, &c.at, &g, used, &r)
                                 : bs_kv_projection_bwd(&ctx, &c.at, &g, dkey, dvalue, &r));
        double *gradients[MLA_VARIABLES] = {[MLA_X] = c.p.gradients[MLA_X]};
        for (int v = MLA_WQ_A; v < MLA_VARIABLES; v++) {
            if (c.p.gradients[v] == NULL) continue;
            const bool is_query = v == MLA_WQ_A || v == MLA_Q_NORM || v == MLA_WQ_B;
            if (v != MLA_OUT && of_query == is_query) {
                gradients[v] = c.p.gradients[v];
            } else {
                assert_all_nan(c.p.gradients[v], c.p.sizes[v]);
            }
        }
        mla_shard_assert_gradients(&c, cotangents, gradients);
        double *all[] = {dquery, used, dkey, dvalue};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++) free(all[k]);
        assay_mla_residuals_free(&r);
        mla_shard_close(&c);
    }
}

static double inner(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* From the latents of kv_projection come its key and value. The cotangents' products with these are those of the
 * gradients with the latents, and with the kernel. */
TEST(test_get_key_value)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        const mla_sizes s = mla_sizes_of(&config);
        const int64_t keys = s.tokens * s.heads * s.qk, values = s.tokens * s.heads * s.value;
        const int64_t lows = s.tokens * s.kv_rank, ropes = s.tokens * s.rope, kernels = s.kv_rank * s.heads * s.kv;
        uint64_t seed = 21;
        mla_shard_case c;
        assay_mla_residuals r = {0};
        mla_shard_open(&c, &config);
        const double *w = c.at.w.w[ASSAY_MLA_WKV_B];
        assert_ok(&ctx, bs_kv_projection(&ctx, &c.at, &r));
        const double *low = r.values[ASSAY_MLA_MLA_KV];
        double *rope = test_nans(ropes), *key = test_nans(keys), *value = test_nans(values);
        double *dkey = cotangent(&seed, &c, ASSAY_MLA_KEY_PROJ), *dvalue = cotangent(&seed, &c, ASSAY_MLA_VALUE_PROJ);
        const mla_key_value_gradients d = {test_nans(lows), test_nans(ropes), test_nans(kernels)};
        const mla_key_value_gradients alone = {test_nans(lows), test_nans(ropes), NULL};
        for (int64_t i = 0; i < ropes; i++)
            rope[i] = r.values[ASSAY_MLA_KEY_PROJ][i / s.rope * s.heads * s.qk + s.nope + i % s.rope];
        assert_ok(&ctx, bs_get_key_value(&ctx, key, value, low, rope, w, &config));
        assert_same_bits(key, r.values[ASSAY_MLA_KEY_PROJ], keys);
        assert_same_bits(value, r.values[ASSAY_MLA_VALUE_PROJ], values);
        assert_ok(&ctx, bs_get_key_value_bwd(&ctx, &d, dkey, dvalue, low, w, &config));
        const double sum = inner(dkey, key, keys) + inner(dvalue, value, values);
        const double of_rope = inner(d.key_rope, rope, ropes), of_low = inner(d.mla_kv, low, lows) + of_rope;
        const double of_kernel = inner(d.wkv_b, w, kernels) + of_rope;
        assert_close(&of_low, &sum, 1, 1e-13, 1e-12);
        assert_close(&of_kernel, &sum, 1, 1e-13, 1e-12);
        assert_ok(&ctx, bs_get_key_value_bwd(&ctx, &alone, dkey, dvalue, low, w, &config));
        assert_same_bits(alone.mla_kv, d.mla_kv, lows);
        assert_same_bits(alone.key_rope, d.key_rope, ropes);
        double *all[] = {rope, key, value, dkey, dvalue, d.mla_kv, d.key_rope, d.wkv_b, alone.mla_kv, alone.key_rope};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
        assay_mla_residuals_free(&r);
        mla_shard_close(&c);
    }
}
