/* Attention of the schedule on one shard, and all of its MLA: against the formula, against the plain form, bit by bit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/tests/mla_shard_case.h"

/* batch, sequence, Dr, size */
static const int64_t shapes[][4] = {{1, 1, 2, 1}, {3, 1, 4, 2}, {1, 5, 2, 2}, {3, 5, 4, 2}, {1, 7, 6, 1}, {3, 7, 2, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static assay_mla_config config_of(int shape)
{
    return mla_shard_config(shapes[shape][0], shapes[shape][1], shapes[shape][2], shapes[shape][3]);
}

/* --- flash attention, dense and in binary128 --- */

typedef struct dense {
    const assay_mla_config *config;
    mla_sizes s;
    const double *query, *key, *value, *dout;
    quad *out, *dquery, *dkey, *dvalue;
    quad *sums; /* [b,N,S]: e^lse */
} dense;

static quad dot(const double *a, const double *b, int64_t count)
{
    quad sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (quad)a[i] * b[i];
    return sum;
}

/* One query of one head; `row` and the keys' rows are of [b,S,N]. */
static void dense_query(dense *d, int64_t batch, int64_t at, int64_t head)
{
    const int64_t n = d->s.heads, length = d->config->sequence, qk = d->s.qk, wide = d->s.value;
    const int64_t first = batch * length * n + head, row = first + at * n;
    quad p[16], dp[16], total = 0, weighted = 0;
    for (int64_t j = 0; j <= at; j++) {
        p[j] = expq(dot(d->query + row * qk, d->key + (first + j * n) * qk, qk));
        dp[j] = dot(d->dout + row * wide, d->value + (first + j * n) * wide, wide);
        total += p[j];
    }
    d->sums[(batch * n + head) * length + at] = total;
    for (int64_t j = 0; j <= at; j++) {
        p[j] /= total;
        weighted += p[j] * dp[j];
    }
    for (int64_t j = 0; j <= at; j++) {
        const int64_t other = first + j * n;
        const quad ds = p[j] * (dp[j] - weighted);
        for (int64_t i = 0; i < wide; i++) {
            d->out[row * wide + i] += p[j] * d->value[other * wide + i];
            d->dvalue[other * wide + i] += p[j] * d->dout[row * wide + i];
        }
        for (int64_t i = 0; i < qk; i++) {
            d->dquery[row * qk + i] += ds * d->key[other * qk + i];
            d->dkey[other * qk + i] += ds * d->query[row * qk + i];
        }
    }
}

static quad *zeros(int64_t count)
{
    quad *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = 0;
    return values;
}

TEST(test_flash_attention_is_the_dense_formula)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        const mla_sizes s = mla_sizes_of(&config);
        const int64_t rows = s.tokens * s.heads, qk = rows * s.qk, wide = rows * s.value;
        uint64_t seed = 31;
        double *query = test_normals(&seed, 0.7, ASSAY_FLOAT64, qk), *key = test_normals(&seed, 0.7, ASSAY_FLOAT64, qk);
        double *value = test_normals(&seed, 1, ASSAY_FLOAT64, wide),
               *dout = test_normals(&seed, 1, ASSAY_FLOAT64, wide);
        double *out = test_nans(wide), *lse = test_nans(rows), *dquery = test_nans(qk), *dkey = test_nans(qk);
        double *dvalue = test_nans(wide);
        dense d = {&config, s, query, key, value, dout, zeros(wide), zeros(qk), zeros(qk), zeros(wide), zeros(rows)};
        const assay_attention_inputs in = {.query = query, .key = key, .value = value};
        const assay_attention_gradients g = {dquery, dkey, dvalue};
        for (int64_t t = 0; t < s.tokens; t++) {
            for (int64_t head = 0; head < s.heads; head++)
                dense_query(&d, t / config.sequence, t % config.sequence, head);
        }
        assert_ok(&ctx, bs_flash_attention(&ctx, out, lse, &in, &config));
        assert_ok(&ctx, bs_flash_attention_bwd(&ctx, &g, dout, out, lse, &in, &config));
        mla_shard_assert_near(out, d.out, wide);
        for (int64_t i = 0; i < rows; i++) lse[i] = exp(lse[i]);
        mla_shard_assert_near(lse, d.sums, rows);
        mla_shard_assert_near(dquery, d.dquery, qk);
        mla_shard_assert_near(dkey, d.dkey, qk);
        mla_shard_assert_near(dvalue, d.dvalue, wide);
        double *doubles[] = {query, key, value, dout, out, lse, dquery, dkey, dvalue};
        quad *wides[] = {d.out, d.dquery, d.dkey, d.dvalue, d.sums};
        for (size_t i = 0; i < sizeof doubles / sizeof *doubles; i++) free(doubles[i]);
        for (size_t i = 0; i < sizeof wides / sizeof *wides; i++) free(wides[i]);
    }
}

/* --- mla --- */

/* Results of bs_mla, and what its backward takes. */
typedef struct whole {
    double *out, *attn_out, *lse;
    assay_mla_residuals r;
} whole;

static void whole_open(whole *v, const mla_shard_case *c)
{
    *v = (whole){.out = test_nans(c->p.sizes[MLA_X]),
                 .attn_out = test_nans(assay_mla_tensor_count(&c->p.config, ASSAY_MLA_ATTENTION_OUT)),
                 .lse = test_nans(c->p.tokens * c->p.config.heads)};
}

static void whole_close(whole *v)
{
    free(v->out);
    free(v->attn_out);
    free(v->lse);
    assay_mla_residuals_free(&v->r);
}

/* Forward, _remat and _bwd; `c->p.gradients` are filled. */
static assay_status whole_run(assay_context *ctx, mla_shard_case *c, whole *v)
{
    assay_status status = ASSAY_OK;
    bs_mla_shard at = c->at;
    const assay_mla_gradients g = mla_shard_gradients(c);
    TRY(bs_mla(ctx, &at, v->out, v->attn_out, v->lse));
    TRY(bs_mla_remat(ctx, &at, &v->r));
    at.attn_out = v->attn_out;
    at.lse = v->lse;
    TRY(bs_mla_bwd(ctx, &at, &g, c->p.dy, &v->r));
cleanup:
    return status;
}

static void assert_plain(assay_context *ctx, mla_shard_case *c)
{
    mla_problem plain;
    whole v;
    mla_problem_make(&plain, &c->p.config, NULL);
    mla_problem_run(ctx, &plain);
    whole_open(&v, c);
    assert_ok(ctx, whole_run(ctx, c, &v));
    assert_same_bits(v.out, plain.r.values[ASSAY_MLA_OUT_PROJ], plain.sizes[MLA_X]);
    assert_same_bits(v.attn_out, plain.r.values[ASSAY_MLA_ATTENTION_OUT],
                     assay_mla_tensor_count(&plain.config, ASSAY_MLA_ATTENTION_OUT));
    assert_same_bits(v.lse, plain.r.lse, plain.tokens * plain.config.heads);
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(c->p.gradients[i], plain.gradients[i], plain.sizes[i]);
    whole_close(&v);
    mla_problem_free(&plain);
}

TEST(test_mla_is_the_plain_form)
{
    const assay_emulation emulation = {
        .precision = {"bf16", RMS(0x1p-8), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0},
        .storage = ASSAY_BFLOAT16,
        .multiply = ASSAY_FLOAT32, /* operands are rounded where they are stored, or nowhere */
        .seed = 3};
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        assay_context ctx = assay_context_default(2), emulated = ctx;
        mla_shard_case c;
        emulated.arithmetic = &assay_arithmetic_emulated;
        emulated.emulation = &emulation;
        mla_shard_open(&c, &config);
        assert_plain(&ctx, &c);
        bs_initialize_yarn_freqs(&emulated, c.yarn_freqs, c.p.positions, &config);
        assert_plain(&emulated, &c);
        mla_shard_close(&c);
    }
}

TEST(test_mla_is_the_formula)
{
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        mla_shard_case c;
        whole v;
        mla_shard_open(&c, &config);
        mla_shard_make_expected(&c);
        whole_open(&v, &c);
        assert_ok(&ctx, whole_run(&ctx, &c, &v));
        mla_shard_assert_near(v.out, mla_shard_expected(&c, "out_proj"), c.p.sizes[MLA_X]);
        mla_shard_assert_near(v.attn_out, mla_shard_expected(&c, "attention_out"),
                              assay_mla_tensor_count(&config, ASSAY_MLA_ATTENTION_OUT));
        mla_shard_assert_near(v.lse, mla_shard_expected(&c, "lse"), c.p.tokens * config.heads);
        const double *const cotangents[ASSAY_MLA_TENSORS] = {[ASSAY_MLA_OUT_PROJ] = c.p.dy};
        mla_shard_assert_gradients(&c, cotangents, c.p.gradients);
        whole_close(&v);
        mla_shard_close(&c);
    }
}

/* Each gradient by itself, and none. */
TEST(test_missing_gradients_are_skipped)
{
    const assay_mla_config config = config_of(3);
    assay_context ctx = assay_context_default(1);
    for (int wanted = -1; wanted < MLA_VARIABLES; wanted++) {
        mla_shard_case all, c;
        whole first, v;
        mla_shard_open(&all, &config);
        mla_shard_open(&c, &config);
        whole_open(&first, &all);
        whole_open(&v, &c);
        for (int i = 0; i < MLA_VARIABLES; i++) {
            if (i == wanted) continue;
            free(c.p.gradients[i]);
            c.p.gradients[i] = NULL;
        }
        assert_ok(&ctx, whole_run(&ctx, &all, &first));
        assert_ok(&ctx, whole_run(&ctx, &c, &v));
        if (wanted >= 0) assert_same_bits(c.p.gradients[wanted], all.p.gradients[wanted], c.p.sizes[wanted]);
        whole_close(&first);
        whole_close(&v);
        mla_shard_close(&all);
        mla_shard_close(&c);
    }
}

typedef struct first_run {
    mla_shard_case c;
    whole v;
    bool done;
} first_run;

/* Large enough for several blocks, and of sizes that no block divides. */
static const int64_t large[] = {1, 131, 6, 5};

static void check_same_bits(assay_context *ctx, void *data)
{
    first_run *first = data;
    const assay_mla_config config = mla_shard_config(large[0], large[1], large[2], large[3]);
    mla_shard_case c;
    whole v;
    if (!first->done) assert_ok(ctx, whole_run(ctx, &first->c, &first->v));
    first->done = true;
    mla_shard_open(&c, &config);
    whole_open(&v, &c);
    assay_fill_nan(c.yarn_freqs, c.p.tokens * config.rope.dim / 2);
    bs_initialize_yarn_freqs(ctx, c.yarn_freqs, c.p.positions, &config);
    assert_ok(ctx, whole_run(ctx, &c, &v));
    assert_same_bits(v.out, first->v.out, c.p.sizes[MLA_X]);
    assert_same_bits(v.lse, first->v.lse, c.p.tokens * config.heads);
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(c.p.gradients[i], first->c.p.gradients[i], c.p.sizes[i]);
    whole_close(&v);
    mla_shard_close(&c);
}

TEST(test_same_bits_with_any_threads_and_isa)
{
    const assay_mla_config config = mla_shard_config(large[0], large[1], large[2], large[3]);
    first_run first = {0};
    mla_shard_open(&first.c, &config);
    whole_open(&first.v, &first.c);
    test_each_context(check_same_bits, &first);
    whole_close(&first.v);
    mla_shard_close(&first.c);
}

TEST(test_every_allocation_may_fail)
{
    const assay_mla_config config = config_of(3);
    assay_context ctx = assay_context_default(1);
    mla_shard_case c, expected;
    whole v;
    mla_shard_open(&c, &config);
    mla_shard_open(&expected, &config);
    whole_open(&v, &c);
    assert_ok(&ctx, whole_run(&ctx, &expected, &v));
    int64_t n;
    for (n = 0;; n++) {
        assay_mla_residuals_free(&v.r);
        assay_fail_allocation(n);
        const assay_status status = whole_run(&ctx, &c, &v);
        assay_fail_allocation(-1);
        if (!assay_allocation_failed()) break;
        assert_int_equal(status, ASSAY_NO_MEMORY);
    }
    assert_true(n > 30);
    for (int i = 0; i < MLA_VARIABLES; i++) assert_same_bits(c.p.gradients[i], expected.p.gradients[i], c.p.sizes[i]);
    whole_close(&v);
    mla_shard_close(&c);
    mla_shard_close(&expected);
}
