/* The attention half of the batch-split schedule: on one shard it is the plain layer's half; what is skipped, what may fail, what
 * is counted. harness/tests/test_certified.c has it on meshes against the second form. */
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/layer/batch_split_mla.h"
#include "oracle/layer/tests/layer_case.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads);

/* data, fsdp, expert; rows of a shard's microbatch, sequence */
static const int64_t shapes[][5] = {{1, 1, 1, 1, 1}, {1, 1, 1, 3, 5}, {2, 1, 2, 1, 5}};
enum { SHAPES = sizeof shapes / sizeof *shapes, ONE_SHARD = 2, MESH = 2, MICROBATCH = 1 };

/* What a half does not have has no numbers. */
enum { FIRST = BS_PRE_NORM, END = BS_POST_NORM };

static bool is_scale(int weight)
{
    return weight == BS_PRE_NORM || weight == BS_MLA + ASSAY_MLA_Q_NORM || weight == BS_MLA + ASSAY_MLA_KV_NORM;
}

/* What the plain half calls it. */
static int plain_of(int weight)
{
    return weight - BS_PRE_NORM; /* the norm, then the attention */
}

typedef struct mla_half {
    layer_case layer;
    assay_mesh mesh;
    test_tensors sunk;
    assay_source in;
    assay_sink sink;
    stack_run stack; /* of the whole microbatch */
    bs_run run;
    int32_t *positions; /* [M,b,S] */
    int64_t count;      /* numbers of an activation [M,b,S,D] */
    double *x, *dy;
    bs_weights w, g;
    layer_weights plain_w, plain_g;
    double *out, *attn_out, *lse, *dx; /* results */
    bs_mla_state state;
} mla_half;

static double *scales_or_numbers(uint64_t *seed, int64_t count, bool scales)
{
    double *values = test_normals(seed, 0.4, ASSAY_FLOAT64, count);
    for (int64_t i = 0; scales && i < count; i++) values[i] += 1;
    return values;
}

/* The same numbers on each shard. */
static void open_weights(mla_half *h, uint64_t *seed)
{
    const int64_t shards = h->run.sizes.shards;
    for (int i = FIRST; i < END; i++) {
        const int64_t each = bs_weight_count(&h->run, i, true);
        double *whole = scales_or_numbers(seed, each, is_scale(i)), *gathered = test_nans(shards * each);
        for (int64_t shard = 0; shard < shards; shard++)
            memcpy(gathered + shard * each, whole, (size_t)each * sizeof *whole);
        h->plain_w.values[plain_of(i)] = whole;
        h->plain_g.values[plain_of(i)] = test_nans(each);
        h->w.values[i] = gathered;
        h->g.values[i] = test_nans(shards * each);
    }
}

static void configure(mla_half *h, const int64_t shape[5])
{
    const int64_t shards = shape[0] * shape[1] * shape[2], batch = shards * shape[3];
    h->layer = layer_case_make(2, 1, batch, shape[4]);
    h->layer.config.mla.rope.pairwise = true;
    h->layer.config.mla.rope.dim = 4;
    h->layer.config.epsilon = 1e-3; /* the first norm's alone: 1e-6 is the latents' */
    h->in = test_tensors_source(&h->layer.in);
    h->sink = test_tensors_sink(&h->sunk);
    h->mesh = (assay_mesh){{shape[0], shape[1], shape[2]}};
    h->count = batch * shape[4] * h->layer.config.mla.emb_dim;
    h->stack = (stack_run){
        .config = &h->layer.config, .in = &h->in, .out = &h->sink, .tokens = batch * shape[4], .size = h->count};
    h->run = (bs_run){.stack = &h->stack,
                      .mesh = &h->mesh,
                      .factor = 2,
                      .sizes = {.shards = shards, .rows = shape[3], .tokens = shape[3] * shape[4]},
                      .mla = h->layer.config.mla};
    h->run.mla.batch = shape[3];
    assay_mla_graph(&h->run.attention, &h->run.mla);
}

/* Pointers into itself: it must stay where it is. */
static void half_open(mla_half *h, const int64_t shape[5])
{
    assay_context ctx = assay_context_default(1);
    uint64_t seed = 5;
    *h = (mla_half){0};
    configure(h, shape);
    const int64_t tokens = h->stack.tokens, heads = h->run.mla.heads;
    assert_ok(&ctx, assay_remat_open(&ctx, &h->stack.store, &h->layer.config.policy, 2));
    h->positions = malloc((size_t)tokens * sizeof *h->positions);
    assert_non_null(h->positions);
    for (int64_t t = 0; t < tokens; t++) h->positions[t] = (int32_t)(7919 * t + 3) % 163840;
    h->stack.positions = h->positions;
    h->run.yarn_freqs[MICROBATCH] = test_nans(tokens * h->run.mla.rope.dim / 2); /* nothing reads another's */
    h->x = test_normals(&seed, 1, ASSAY_FLOAT64, h->count);
    h->dy = test_normals(&seed, 1, ASSAY_FLOAT64, h->count);
    h->out = test_nans(h->count);
    h->dx = test_nans(h->count);
    h->attn_out = test_nans(tokens * heads * h->run.mla.v_head_dim);
    h->lse = test_nans(tokens * heads);
    open_weights(h, &seed);
}

static void half_close(mla_half *h)
{
    double *all[] = {h->x, h->dy, h->out, h->dx, h->attn_out, h->lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(h->positions);
    free(h->run.yarn_freqs[MICROBATCH]);
    bs_weights_free(&h->w);
    bs_weights_free(&h->g);
    layer_weights_free(&h->plain_w);
    layer_weights_free(&h->plain_g);
    bs_mla_state_free(&h->state, &h->run);
    assay_remat_close(h->stack.store);
    assay_tensor_set_free(&h->sunk.set);
    layer_case_free(&h->layer);
}

static assay_status half_run(assay_context *ctx, mla_half *h)
{
    assay_status status;
    const bs_run *run = &h->run;
    bs_mla_state_free(&h->state, run);
    assay_rope_angles(ctx, run->yarn_freqs[MICROBATCH], h->positions, h->stack.tokens, &run->mla.rope);
    TRY(bs_mla_with_norms(ctx, run, MICROBATCH, h->out, h->attn_out, h->lse, h->x, &h->w));
    TRY(bs_mla_with_norms_remat(ctx, run, MICROBATCH, &h->state, h->x, h->attn_out, h->lse, &h->w));
    TRY(bs_mla_with_norms_bwd(ctx, run, h->dx, &h->g, h->dy, h->x, &h->state, &h->w));
cleanup:
    return status;
}

static void assert_plain(assay_context *ctx, mla_half *h)
{
    graph g;
    graph_run r;
    double *dx = test_nans(h->count);
    const int64_t sums = h->stack.tokens * h->run.mla.heads;
    assert_ok(ctx, half_run(ctx, h));
    assay_layer_graph(&g, h->stack.config, 1);
    graph_open(&r, &g);
    const int x = graph_find(&g, "inputs/x"), y = graph_find(&g, LAYER_H);
    graph_lend(&r, x, h->x);
    r.indices[graph_find(&g, "inputs/positions")] = h->stack.positions;
    graph_lend_weights(&r, h->plain_w.values);
    assert_ok(ctx, graph_require(ctx, &r, y));
    assert_same_bits(h->out, r.value[y], h->count);
    assert_same_bits(h->attn_out, r.value[graph_find(&g, "attention_out")], sums * h->run.mla.v_head_dim);
    assert_same_bits(h->lse, r.value[graph_find(&g, "lse")], sums);
    graph_lend_gradient(&r, y, h->dy);
    graph_want_gradient(&r, x, dx);
    graph_want_weight_gradients(&r, h->plain_g.values);
    assert_ok(ctx, graph_backward(ctx, &r));
    assay_round(ctx, ASSAY_ROUND_STORAGE, h->count, dx);
    assert_same_bits(h->dx, dx, h->count);
    for (int i = FIRST; i < END; i++)
        assert_same_bits(h->g.values[i], h->plain_g.values[plain_of(i)], bs_weight_count(&h->run, i, true));
    graph_close(&r);
    free(dx);
}

/* Whatever the threads; emulated it is rounded in the same places. */
TEST(test_one_shard_is_the_plain_half)
{
    const assay_emulation emulation = {
        .precision = {"bf16", RMS(0x1p-8), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .least = 0},
        .storage = ASSAY_BFLOAT16,
        .multiply = ASSAY_FLOAT32, /* operands are rounded where they are stored, or nowhere */
        .seed = 3};
    for (int shape = 0; shape < ONE_SHARD; shape++) {
        assay_context ctx = assay_context_default(1);
        mla_half h;
        half_open(&h, shapes[shape]);
        for (int form = 0; test_next_context(&form, &ctx);) assert_plain(&ctx, &h);
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &emulation;
        assert_plain(&ctx, &h);
        half_close(&h);
    }
}

static void assert_same_results(const mla_half *h, const mla_half *expected)
{
    const int64_t sums = h->stack.tokens * h->run.mla.heads;
    assert_same_bits(h->out, expected->out, h->count);
    assert_same_bits(h->dx, expected->dx, h->count);
    assert_same_bits(h->attn_out, expected->attn_out, sums * h->run.mla.v_head_dim);
    assert_same_bits(h->lse, expected->lse, sums);
    for (int i = FIRST; i < END; i++) {
        const int64_t count = h->run.sizes.shards * bs_weight_count(&h->run, i, true);
        if (h->g.values[i] != NULL) assert_same_bits(h->g.values[i], expected->g.values[i], count);
    }
}

TEST(test_missing_gradients_are_skipped)
{
    assay_context ctx = assay_context_default(1);
    mla_half all;
    half_open(&all, shapes[MESH]);
    assert_ok(&ctx, half_run(&ctx, &all));
    for (int wanted = FIRST - 1; wanted < END; wanted++) {
        mla_half h;
        half_open(&h, shapes[MESH]);
        for (int i = FIRST; i < END; i++) {
            if (i == wanted) continue;
            free(h.g.values[i]);
            h.g.values[i] = NULL;
        }
        assert_ok(&ctx, half_run(&ctx, &h));
        assert_same_results(&h, &all);
        half_close(&h);
    }
    half_close(&all);
}

TEST(test_every_allocation_may_fail)
{
    assay_context ctx = assay_context_default(1);
    mla_half h, expected;
    half_open(&h, shapes[MESH]);
    half_open(&expected, shapes[MESH]);
    assert_ok(&ctx, half_run(&ctx, &expected));
    int64_t n;
    for (n = 0;; n++) {
        assay_fail_allocation(n);
        const assay_status status = half_run(&ctx, &h);
        if (had_memory(&ctx, status)) break;
        bs_mla_state_free(&h.state, &h.run); /* whatever there is of it */
        assert_null(h.state.shards);
    }
    assert_true(n > 60);
    assert_same_results(&h, &expected);
    half_close(&h);
    half_close(&expected);
}

TEST(test_operations_are_those_of_remat)
{
    for (int shape = 0; shape < SHAPES; shape++) {
        assay_context ctx = assay_context_default(1);
        test_operations operations = {.count = 0};
        mla_half h;
        half_open(&h, shapes[shape]);
        assert_ok(&ctx, bs_mla_with_norms(&ctx, &h.run, MICROBATCH, h.out, h.attn_out, h.lse, h.x, &h.w));
        test_count_operations(&ctx, &operations);
        assert_ok(&ctx, bs_mla_with_norms_remat(&ctx, &h.run, MICROBATCH, &h.state, h.x, h.attn_out, h.lse, &h.w));
        assert_true(operations.count > 0 && operations.count == bs_mla_remat_flops(&h.run));
        half_close(&h);
    }
}
