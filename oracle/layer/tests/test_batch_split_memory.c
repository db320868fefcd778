/* What the batch-split schedule holds in memory, and what it leaves to the spill file. */
#include <malloc.h>

#include "oracle/layer/tests/layer_case.h"
#include "tests/support/assay_test.h"

enum { HIDDEN = 512, EXPERTS = 4 };

/* Layers whose memory is their experts' weights. */
static layer_case wide_case(int64_t layers, int64_t factor)
{
    layer_case c = layer_case_make(layers, 0, factor, 1);
    c.config.mla.rope.pairwise = true;
    c.config.moe.moe_mlp_dim = HIDDEN;
    c.config.sharding = (assay_sharding){.mesh = {{1, 1, 1}}, .tensor_shards = 1, .token_chunks = 1};
    c.config.batch_split_factor = factor;
    layer_case_fill(&c);
    return c;
}

static size_t memory_now(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* A sink that keeps nothing and a source of another one, which look how much memory is taken. */
typedef struct meter {
    assay_source in;
    bool gradients;
    size_t most;
} meter;

static void look(meter *m)
{
    const size_t now = memory_now();
    if (now > m->most) m->most = now;
}

static bool has(void *self, const char *path)
{
    meter *m = self;
    look(m);
    return m->in.has(m->in.self, path);
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *values)
{
    meter *m = self;
    look(m);
    return m->in.read(ctx, m->in.self, path, first, count, values);
}

static assay_status read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *values)
{
    meter *m = self;
    return m->in.read_i32(ctx, m->in.self, path, first, count, values);
}

static bool wants(void *self, const char *path)
{
    meter *m = self;
    look(m);
    return m->gradients || strncmp(path, "gradients/", 10) != 0;
}

static assay_status drop_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx, (void)path, (void)count, (void)values;
    look(self);
    return ASSAY_OK;
}

static assay_status drop_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    (void)ctx, (void)path, (void)count, (void)values;
    look(self);
    return ASSAY_OK;
}

/* Bytes at the peak of a run. */
static size_t peak_of(layer_case *c, bool gradients)
{
    assay_context ctx = assay_context_default(1);
    meter m = {.in = test_tensors_source(&c->in), .gradients = gradients};
    const assay_source in = {.self = &m, .has = has, .read = read_f64, .read_i32 = read_i32};
    const assay_sink out = {.self = &m, .wants = wants, .write = drop_f64, .write_i32 = drop_i32};
    const size_t before = memory_now();
    m.most = before;
    assert_ok(&ctx, assay_stack_run(&ctx, &c->config, &in, &out));
    return m.most - before;
}

/* Forward: two layers' gathered weights, and those that are on their way; with backward their gradients too. However
 * many layers there are. */
TEST(weights_of_two_layers_at_a_time)
{
    const double layer = 3.0 * EXPERTS * 8 * HIDDEN * sizeof(double);
    size_t peaks[2][2];
    for (int i = 0; i < 2; i++) {
        OWNED_BY(layer_case_free) layer_case c = wide_case(i == 0 ? 6 : 12, 1);
        for (int backward = 0; backward < 2; backward++) peaks[i][backward] = peak_of(&c, backward == 1);
        assert_true((int64_t)peaks[i][1] <= assay_stack_memory(&c.config));
    }
    if (peaks[0][0] == 0) skip(); /* a sanitizer's allocator, which counts nothing */
    for (int i = 0; i < 2; i++) {
        assert_true((double)peaks[i][0] > 2 * layer);
        assert_true((double)peaks[i][0] < 2.75 * layer);
        assert_true((double)peaks[i][1] < 4.75 * layer);
    }
    /* residuals that stay grow with the layers */
    assert_true((double)peaks[1][0] < (double)peaks[0][0] + 0.1 * layer);
    assert_true((double)peaks[1][1] < (double)peaks[0][1] + 0.1 * layer);
}

TEST_WITH_CONTEXT(residuals_are_offloaded)
{
    OWNED_BY(layer_case_free) layer_case c = wide_case(4, 2);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    const assay_source in = test_tensors_source(&c.in);
    const assay_sink sink = test_tensors_sink(&out);
    assert_int_equal(setenv("TMPDIR", "/nowhere", 1), 0);
    assert_int_equal(assay_stack_run(&ctx, &c.config, &in, &sink), ASSAY_IO);
    assert_non_null(strstr(ctx.message, "/nowhere: no spill file"));
    unsetenv("TMPDIR");
    assay_tensor_set_free(&out.set);
    layer_case_run(&ctx, &c, &out);
    /* of three layers and two microbatches of one token: layer_inputs, attn_out, mlpwi_0, mlpwi_1 of 2 rows */
    const double offloaded = 3 * 2 * (8 + 2 * 3 + 2 * 2 * HIDDEN) * sizeof(double);
    /* of all four: mla_out, lse, of the last microbatch selected_experts; the last layer's other ones */
    const double others = 4 * (2 * (8 + 2) * sizeof(double) + 2 * sizeof(int32_t)) + offloaded / 3;
    assert_true(layer_case_get(&out, "remat/bytes_offloaded")->values[0] == offloaded);
    assert_true(layer_case_get(&out, "remat/bytes_kept")->values[0] == others);
}
