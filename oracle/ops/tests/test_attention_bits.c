/* Attention's order of sums, bit for bit; its behaviour without memory; its emulated members. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/elementary.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/ops/activation.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/tests/attention_problem.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads, slow);

static double chain(int64_t count, const double *a, const double *b)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum = fma(a[i], b[i], sum);
    return sum;
}

static void advance(int64_t count, double factor, const double *x, double *sums)
{
    for (int64_t i = 0; i < count; i++) sums[i] = fma(factor, x[i], sums[i]);
}

/* What one head adds to the gradients of the keys and values that it has. */
typedef struct key_part {
    double *dkey, *dvalue; /* [S,Dq], [S,Dv] */
} key_part;

/* The header's sums in the header's order, row after row. */
static void row_in_order(const attention_problem *a, double *r[ATTENTION_RESULTS], double *p, int64_t batch,
                         int64_t head, int64_t i, const key_part *part)
{
    const int64_t qk = a->config.qk_dim, v = a->config.v_dim, at = attention_row(a, batch, head, i, 1);
    const int64_t at_lse = (batch * a->config.heads + head) * a->config.sequence + i;
    double *out = r[ATTENTION_OUT] + at * v, largest = -INFINITY, sum = 0, gate = 1;
    for (int64_t j = 0; j <= i; j++) {
        const int64_t key = attention_key_row(a, batch, head, j, qk);
        p[j] = attention_sees(a, batch, i, j) ? chain(qk, a->query + at * qk, a->key + key) : -INFINITY;
        largest = fmax(largest, p[j]);
    }
    for (int64_t j = 0; j <= i; j++) {
        if (attention_sees(a, batch, i, j)) sum += assay_exp(p[j] - largest);
    }
    const double lse = largest + assay_log(sum);
    r[ATTENTION_LSE][at_lse] = lse;
    for (int64_t j = 0; j <= i; j++) {
        if (!attention_sees(a, batch, i, j)) continue;
        advance(v, assay_exp(p[j] - largest) / sum, a->value + attention_key_row(a, batch, head, j, v), out);
    }
    if (a->sinks != NULL) gate = assay_sigmoid(lse - a->sinks[head]);
    double *dout = test_nans(v);
    for (int64_t d = 0; d < v; d++) {
        out[d] *= gate;
        dout[d] = gate * a->dout[at * v + d];
    }
    if (a->sinks != NULL) {
        r[ATTENTION_DSINKS][head] =
            fma(-assay_sigmoid(a->sinks[head] - lse), chain(v, a->dout + at * v, out), r[ATTENTION_DSINKS][head]);
    }
    const double shift = chain(v, dout, out) - a->dlse[at_lse];
    for (int64_t j = 0; j <= i; j++) {
        const int64_t key = attention_key_row(a, batch, head, j, 1);
        if (!attention_sees(a, batch, i, j)) continue;
        const double weight = assay_exp(p[j] - lse);
        const double ds = weight * (chain(v, dout, a->value + key * v) - shift);
        advance(qk, ds, a->key + key * qk, r[ATTENTION_DQUERY] + at * qk);
        advance(qk, ds, a->query + at * qk, part->dkey + j * qk);
        advance(v, weight, dout, part->dvalue + j * v);
    }
    free(dout);
}

typedef struct trial {
    attention_problem p;
    double *expected[ATTENTION_RESULTS];
} trial;

/* To what the heads before it left. */
static void add_part(const trial *t, int64_t batch, int64_t head, const double *part, double *sums, int64_t dim)
{
    for (int64_t i = 0; i < t->p.config.sequence; i++) {
        double *to = sums + attention_key_row(&t->p, batch, head, i, dim);
        for (int64_t d = 0; d < dim; d++) to[d] = part[i * dim + d] + to[d];
    }
}

static void head_in_order(trial *t, int64_t batch, int64_t head)
{
    const assay_attention_config *c = &t->p.config;
    double *scratch = test_nans(c->sequence);
    const key_part part = {calloc((size_t)(c->sequence * c->qk_dim), sizeof(double)),
                           calloc((size_t)(c->sequence * c->v_dim), sizeof(double))};
    assert_non_null(part.dkey);
    assert_non_null(part.dvalue);
    for (int64_t i = 0; i < c->sequence; i++) {
        if (!attention_is_padding(&t->p, batch, i)) {
            row_in_order(&t->p, t->expected, scratch, batch, head, i, &part);
        } else {
            t->expected[ATTENTION_LSE][(batch * c->heads + head) * c->sequence + i] = -INFINITY;
        }
    }
    add_part(t, batch, head, part.dkey, t->expected[ATTENTION_DKEY], c->qk_dim);
    add_part(t, batch, head, part.dvalue, t->expected[ATTENTION_DVALUE], c->v_dim);
    free(part.dkey);
    free(part.dvalue);
    free(scratch);
}

static void in_order(trial *t)
{
    for (int r = 0; r < ATTENTION_RESULTS; r++) {
        t->expected[r] = calloc((size_t)t->p.count[r] + 1, sizeof *t->expected[r]);
        assert_non_null(t->expected[r]);
    }
    for (int64_t batch = 0; batch < t->p.config.batch; batch++) {
        for (int64_t head = 0; head < t->p.config.heads; head++) head_in_order(t, batch, head);
    }
}

static void same_bits(assay_context *ctx, void *data)
{
    trial *t = data;
    attention_problem_run(ctx, &t->p);
    for (int r = 0; r < ATTENTION_RESULTS; r++) assert_same_bits(t->p.results[r], t->expected[r], t->p.count[r]);
}

/* In every context; 7 threads are more than there are heads, 1 and 2 are not. */
static void check_bits_of(const assay_attention_config *config, attention_pattern pattern, bool sinks)
{
    trial t;
    attention_problem_make(&t.p, config, pattern, ASSAY_FLOAT64);
    if (sinks) attention_problem_add_sinks(&t.p);
    in_order(&t);
    test_each_context(same_bits, &t);
    for (int r = 0; r < ATTENTION_RESULTS; r++) free(t.expected[r]);
    attention_problem_free(&t.p);
}

static void check_bits(const assay_attention_config *config, attention_pattern pattern)
{
    check_bits_of(config, pattern, false);
}

/* Up to and beyond the blocks of keys; harness/tests/test_certified.c has the plain loop's formula right. */
TEST(test_every_length_and_width)
{
    static const int64_t LENGTHS[] = {1, 2, 7, 64, 65, 127, 128, 129, 257};
    static const int64_t WIDTHS[][2] = {{5, 3}, {1, 1}, {192, 128}, {128, 96}, {3, 17}};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        for (size_t j = 0; j < (LENGTHS[i] < 64 ? 5 : 3); j++) {
            const assay_attention_config config = {.batch = 1,
                                                   .sequence = LENGTHS[i],
                                                   .heads = LENGTHS[i] == 257 ? 3 : 1,
                                                   .qk_dim = WIDTHS[j][0],
                                                   .v_dim = WIDTHS[j][1],
                                                   .mask_padding = true};
            check_bits(&config, ONE_SEGMENT);
        }
    }
}

TEST(test_every_pattern)
{
    static const int64_t LENGTHS[] = {1, 7, 65, 265}; /* the last: segments longer than a block */
    for (int pattern = 0; pattern < ATTENTION_PATTERNS; pattern++) {
        for (size_t i = 0; i < 8; i++) {
            const assay_attention_config config = {
                .batch = 3, .sequence = LENGTHS[i / 2], .heads = 2, .qk_dim = 5, .v_dim = 3, .mask_padding = i % 2};
            check_bits(&config, (attention_pattern)pattern);
        }
    }
}

/* Windows of one key, shorter and longer than small triangles and blocks, and than everything. */
TEST(test_windows_groups_and_sinks)
{
    static const int64_t WINDOWS[] = {0, 1, 2, 3, 8, 13, 100, 128, 130, 300}, HEADS[][2] = {{4, 2}, {6, 1}, {3, 3}};
    for (size_t w = 0; w < sizeof WINDOWS / sizeof *WINDOWS; w++) {
        for (int pattern = 0; pattern < ATTENTION_PATTERNS; pattern++) {
            const int64_t *heads = HEADS[(w + (size_t)pattern) % 3];
            const assay_attention_config config = {.batch = 2,
                                                   .sequence = pattern == ONE_SEGMENT ? 267 : 45,
                                                   .heads = heads[0],
                                                   .kv_heads = heads[1],
                                                   .qk_dim = 5,
                                                   .v_dim = 3,
                                                   .window = WINDOWS[w],
                                                   .mask_padding = true};
            check_bits_of(&config, (attention_pattern)pattern, w % 2 == 0);
        }
    }
}

TEST(test_huge_scores_do_not_overflow)
{
    const assay_attention_config config = {.batch = 1, .sequence = 150, .heads = 1, .qk_dim = 6, .v_dim = 3};
    for (int sign = -1; sign <= 1; sign += 2) {
        trial t;
        attention_problem_make(&t.p, &config, ONE_SEGMENT, ASSAY_FLOAT64);
        /* all of one sign: -1e4 is no smaller a score than 1e4 to a softmax */
        for (int64_t i = 0; i < t.p.count[ATTENTION_DQUERY]; i++) {
            t.p.query[i] = 3000 * (1 + 0.1 * t.p.query[i]);
            t.p.key[i] = sign * (1 + 0.1 * t.p.key[i]);
        }
        in_order(&t);
        test_each_context(same_bits, &t);
        assert_true(fabs(t.p.results[ATTENTION_LSE][0]) > 1e4);
        for (int r = 0; r < ATTENTION_RESULTS; r++) {
            for (int64_t i = 0; i < t.p.count[r]; i++) assert_true(isfinite(t.p.results[r][i]));
            free(t.expected[r]);
        }
        attention_problem_free(&t.p);
    }
}

TEST(test_blas_agrees)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 200, .heads = 2, .qk_dim = 24, .v_dim = 16, .mask_padding = true};
    assay_context ctx = assay_context_default(2), blas = ctx;
    attention_problem p, other;
    blas.arithmetic = &assay_arithmetic_blas;
    attention_problem_make(&p, &config, PADDED_END, ASSAY_FLOAT64);
    attention_problem_make(&other, &config, PADDED_END, ASSAY_FLOAT64);
    attention_problem_run(&ctx, &p);
    attention_problem_run(&blas, &other);
    for (int r = 0; r < ATTENTION_RESULTS; r++) {
        assert_close(other.results[r], p.results[r], p.count[r], 1e-13, 1e-13);
    }
    attention_problem_free(&p);
    attention_problem_free(&other);
}

TEST(test_every_allocation_may_fail)
{
    const assay_attention_config config = {.batch = 2, .sequence = 140, .heads = 2, .qk_dim = 24, .v_dim = 16};
    attention_problem p;
    attention_problem_make(&p, &config, INTERLEAVED, ASSAY_FLOAT64);
    const assay_attention_inputs in = attention_problem_inputs(&p);
    const assay_attention_gradients g = attention_problem_gradients(&p);
    /* 2 threads: heads at the same time; 7: within products */
    for (int i = 0; i < 4; i++) {
        int64_t failures = 0;
        for (;; failures++) {
            assay_context ctx = assay_context_default(i < 2 ? 2 : 7);
            assay_fail_allocation(failures);
            const assay_status status =
                i % 2 == 0
                    ? assay_attention_forward(&ctx, p.results[0], p.results[1], &in, &config)
                    : assay_attention_backward(&ctx, &g, p.dout, p.dlse, p.results[0], p.results[1], &in, &config);
            if (had_memory(&ctx, status)) break;
        }
        /* the scratch, the segments, then products, which the scalar form packs nothing for */
        assert_true(failures >= (assay_isa_best() == ASSAY_ISA_SCALAR ? 3 : 4));
    }
    attention_problem_free(&p);
}

static float rounded(assay_dtype storage, float x)
{
    return (float)assay_dtype_round(storage, x, false);
}

static float sum_of(int64_t count, const double *a, const double *b)
{
    float sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (float)a[i] * (float)b[i];
    return sum;
}

static void add_to(int64_t count, float factor, const double *x, double *sums)
{
    for (int64_t i = 0; i < count; i++) sums[i] = (float)sums[i] + factor * (float)x[i];
}

static float lse_of(int64_t count, const float *s)
{
    float largest = -INFINITY, sum = 0;
    for (int64_t j = 0; j < count; j++) largest = fmaxf(largest, s[j]);
    for (int64_t j = 0; j < count; j++) sum += expf(s[j] - largest);
    return largest + logf(sum);
}

/* The shares of a row whose two halves are computed apart and merged by their lse, and the lse of all. */
static float merged(int64_t count, const float *s, float *p)
{
    const int64_t half = count / 2;
    const float lse[2] = {lse_of(half, s), lse_of(count - half, s + half)}, whole = lse_of(2, lse);
    for (int64_t j = 0; j < count; j++) p[j] = expf(s[j] - lse[j >= half]) * expf(lse[j >= half] - whole);
    return whole;
}

/* An implementation in float32 that stores s, p, dp and ds, and the output before it reads it again, as `storage`. Every other row is
 * merged from two halves. */
static void low_precision_row(const attention_problem *a, assay_dtype storage, double *r[ATTENTION_RESULTS], float *s,
                              int64_t i)
{
    const int64_t qk = a->config.qk_dim, v = a->config.v_dim;
    const double *dout = a->dout + i * v;
    float d = 0, gate = 1, *share = s + i + 1;
    for (int64_t j = 0; j <= i; j++) s[j] = rounded(storage, sum_of(qk, a->query + i * qk, a->key + j * qk));
    float lse = lse_of(i + 1, s);
    for (int64_t j = 0; j <= i; j++) share[j] = expf(s[j] - lse);
    if (i % 2 == 1) lse = merged(i + 1, s, share);
    r[ATTENTION_LSE][i] = lse;
    if (a->sinks != NULL) gate = 1 / (1 + expf((float)a->sinks[0] - lse));
    for (int64_t j = 0; j <= i; j++) {
        add_to(v, rounded(storage, gate * share[j]), a->value + j * v, r[ATTENTION_OUT] + i * v);
    }
    for (int64_t k = 0; k < v; k++) d += (float)dout[k] * rounded(storage, (float)r[ATTENTION_OUT][i * v + k]);
    for (int64_t j = 0; j <= i; j++) {
        const float p = expf(s[j] - lse), dp = rounded(storage, sum_of(v, dout, a->value + j * v));
        const float ds = rounded(storage, p * (gate * (dp - d) + (float)a->dlse[i]));
        add_to(qk, ds, a->key + j * qk, r[ATTENTION_DQUERY] + i * qk);
        add_to(qk, ds, a->query + i * qk, r[ATTENTION_DKEY] + j * qk);
        add_to(v, rounded(storage, gate * p), dout, r[ATTENTION_DVALUE] + j * v);
    }
}

static double squared_error(int64_t count, const double *a, const double *golden)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += (a[i] - golden[i]) * (a[i] - golden[i]);
    return sum;
}

/* As the operation's row in the harness runs it: what backward reads of the output was stored. */
static void run_member(assay_context *ctx, attention_problem *p, double *out)
{
    const assay_attention_inputs in = attention_problem_inputs(p);
    const assay_attention_gradients g = attention_problem_gradients(p);
    double *stored = p->results[ATTENTION_OUT], *lse = p->results[ATTENTION_LSE];
    assert_ok(ctx, assay_attention_forward(ctx, stored, lse, &in, &p->config));
    memcpy(out, stored, (size_t)p->count[ATTENTION_OUT] * sizeof *out);
    assay_round(ctx, ASSAY_ROUND_STORAGE, p->count[ATTENTION_OUT], stored);
    assert_ok(ctx, assay_attention_backward(ctx, &g, p->dout, p->dlse, stored, lse, &in, &p->config));
}

/* ratio: squared error of the float32 implementation over that of the members, for each result but the gradient of the
 * sink, which is one number. */
static void compare_spread(const assay_emulation *profile, int64_t length, bool sinks, double ratio[ATTENTION_RESULTS])
{
    enum { MEMBERS = 8 };
    const assay_attention_config config = {.batch = 1, .sequence = length, .heads = 1, .qk_dim = 24, .v_dim = 16};
    assay_emulation emulation = *profile;
    assay_context ctx = assay_context_default(1), member = ctx;
    attention_problem golden, p;
    double *low[ATTENTION_RESULTS], squares[ATTENTION_RESULTS] = {0};
    attention_problem_make(&golden, &config, ONE_SEGMENT, profile->storage);
    attention_problem_make(&p, &config, ONE_SEGMENT, profile->storage);
    if (sinks) attention_problem_add_sinks(&golden);
    if (sinks) attention_problem_add_sinks(&p);
    attention_problem_run(&ctx, &golden);
    double *out = test_nans(p.count[ATTENTION_OUT]);
    member.arithmetic = &assay_arithmetic_emulated;
    member.emulation = &emulation;
    for (int i = 0; i < MEMBERS; i++) {
        emulation.seed = (uint64_t)i;
        run_member(&member, &p, out);
        for (int r = 0; r < ATTENTION_DSINKS; r++) {
            const double *of = r == ATTENTION_OUT ? out : p.results[r];
            squares[r] += squared_error(p.count[r], of, golden.results[r]) / MEMBERS;
        }
    }
    float *scratch = malloc(2 * (size_t)length * sizeof *scratch);
    assert_non_null(scratch);
    for (int r = 0; r < ATTENTION_DSINKS; r++) {
        low[r] = calloc((size_t)p.count[r], sizeof *low[r]);
        assert_non_null(low[r]);
    }
    for (int64_t i = 0; i < length; i++) low_precision_row(&golden, profile->storage, low, scratch, i);
    for (int r = 0; r < ATTENTION_DSINKS; r++) {
        ratio[r] = squared_error(p.count[r], low[r], golden.results[r]) / squares[r];
        free(low[r]);
    }
    free(scratch);
    free(out);
    attention_problem_free(&golden);
    attention_problem_free(&p);
}

/* The members are an envelope of a sound float32 implementation, and not a wide one. */
TEST(test_emulated_spread_is_that_of_a_float32_implementation)
{
    static const assay_emulation PROFILES[] = {
        {.precision = {"f32", RMS(0x1p-24), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
         .storage = ASSAY_FLOAT32,
         .multiply = ASSAY_FLOAT32},
        {.precision = {"bf16", RMS(0x1p-8), 0, RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), .least = 0},
         .storage = ASSAY_BFLOAT16,
         .multiply = ASSAY_BFLOAT16},
    };
    static const int64_t LENGTHS[] = {24, 120, 180};
    for (size_t i = 0; i < 12; i++) {
        double ratio[ATTENTION_RESULTS];
        compare_spread(&PROFILES[i % 2], LENGTHS[i / 2 % 3], i >= 6, ratio);
        for (int r = 0; r < ATTENTION_DSINKS; r++) {
            if (ratio[r] > 0.15 && ratio[r] < 1.5) continue;
            fail_msg("%s, S %d, %s: %g", PROFILES[i % 2].precision.name, (int)LENGTHS[i / 2 % 3],
                     attention_result_names[r], ratio[r]);
        }
    }
}
