/* Attention of the schedule on one shard against the second form, and all of its MLA against the plain form, bit by bit.
 */
#include <stdlib.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/tests/mla_shard_case.h"

/* batch, sequence, Dr, size */
static const int64_t shapes[][4] = {{1, 1, 2, 1}, {3, 1, 4, 2}, {1, 5, 2, 2}, {3, 5, 4, 2}, {1, 7, 6, 1}, {3, 7, 2, 1}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static assay_mla_config config_of(int shape)
{
    return mla_shard_config(shapes[shape][0], shapes[shape][1], shapes[shape][2], shapes[shape][3]);
}

/* --- flash attention --- */

typedef struct attention_case {
    assay_attention_config config;
    quad_tensors in, out;
    const double *dout;
    int64_t count; /* of dout */
} attention_case;

static quad attention_loss(void *self)
{
    attention_case *c = self;
    assay_context ctx = assay_context_default(1);
    quad sum = 0;
    quad_tensors_free(&c->out);
    assert_ok(&ctx, quad_evaluate(&ctx, quad_attention, &c->config, &c->in, NULL, &c->out));
    const quad *out = quad_tensors_find(&c->out, "outputs/attention_out")->values;
    for (int64_t i = 0; i < c->count; i++) sum += c->dout[i] * out[i];
    return sum;
}

TEST(test_flash_attention)
{
    static const char *const paths[] = {"inputs/query", "inputs/key", "inputs/value"};
    assay_context ctx = assay_context_default(2);
    for (int shape = 0; shape < SHAPES; shape++) {
        const assay_mla_config config = config_of(shape);
        const mla_sizes s = mla_sizes_of(&config);
        const int64_t rows = s.tokens * s.heads, counts[] = {rows * s.qk, rows * s.qk, rows * s.value};
        uint64_t seed = 31;
        double *values[3], *gradients[3], *out = test_nans(counts[2]), *lse = test_nans(rows);
        double *dout = test_normals(&seed, 1, ASSAY_FLOAT64, counts[2]);
        attention_case c = {.config = mla_attention_config(&config), .dout = dout, .count = counts[2]};
        for (int i = 0; i < 3; i++) {
            const assay_shape of = assay_shape_of(1, counts[i]);
            values[i] = test_normals(&seed, i < 2 ? 0.7 : 1, ASSAY_FLOAT64, counts[i]);
            gradients[i] = test_nans(counts[i]);
            assert_ok(&ctx, quad_tensors_copy_f64(&ctx, &c.in, paths[i], &of, values[i]));
        }
        const assay_attention_inputs in = {.query = values[0], .key = values[1], .value = values[2]};
        const assay_attention_gradients g = {.dquery = gradients[0], .dkey = gradients[1], .dvalue = gradients[2]};
        assert_ok(&ctx, bs_flash_attention(&ctx, out, lse, &in, &config));
        assert_ok(&ctx, bs_flash_attention_bwd(&ctx, &g, dout, out, lse, &in, &config));
        attention_loss(&c);
        mla_shard_assert_near(out, quad_tensors_find(&c.out, "outputs/attention_out")->values, counts[2]);
        mla_shard_assert_near(lse, quad_tensors_find(&c.out, "outputs/lse")->values, rows);
        for (int i = 0; i < 3; i++) {
            quad *of = quad_tensors_find(&c.in, paths[i])->values;
            mla_shard_assert_differences(attention_loss, &c, of, gradients[i], counts[i]);
            free(values[i]);
            free(gradients[i]);
        }
        quad_tensors_free(&c.in);
        quad_tensors_free(&c.out);
        free(out);
        free(lse);
        free(dout);
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
