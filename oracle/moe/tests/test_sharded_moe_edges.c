/* What is read, and memory. */
#include <malloc.h>

#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

/* Experts' weights are read once, however many shards use them, and not at all where nothing needs them. */
TEST_WITH_CONTEXT(test_reading)
{
    static const char *const routing[] = {"routing/*", "outputs/lb_loss", NULL};
    assay_sharding sharding = sharded_case_mesh(2, 1, 2);
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(4, 6, 4, 2, 6, 5);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
    moe_case_fill(&c, false);
    const int64_t kernels = 3 * moe_case_get(&c.in, "weights/wo")->count;
    c.in.reads = 0;
    sharded_case_run(&ctx, &c, &sharding, &out);
    assert_int_equal(c.in.reads, kernels + 2 * 24 * 6 + 6 * 4 + 4);
    assay_tensor_set_free(&out.set);
    out.wanted = routing;
    c.in.reads = 0;
    sharded_case_run(&ctx, &c, &sharding, &out);
    assert_int_equal(c.in.reads, 24 * 6 + 6 * 4 + 4);
    assert_int_equal(out.set.count, 11);
}

/* A sink that keeps nothing and looks how much memory is taken. */
static size_t memory_now(void)
{
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static bool wants_all(void *self, const char *path)
{
    (void)self;
    (void)path;
    return true;
}

static assay_status look(void *self)
{
    size_t *most = self, now = memory_now();
    if (now > *most) *most = now;
    return ASSAY_OK;
}

static assay_status drop_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx;
    (void)path;
    (void)count;
    (void)values;
    return look(self);
}

static assay_status drop_i32(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values)
{
    (void)ctx;
    (void)path;
    (void)count;
    (void)values;
    return look(self);
}

TEST(test_memory)
{
    for (int form = 0; form < SHARDED_FORMS; form++) {
        assay_context ctx = assay_context_default(1);
        assay_sharding sharding;
        OWNED_BY(moe_case_free) moe_case c = sharded_case_form(form, &sharding);
        const assay_source source = test_tensors_source(&c.in);
        const size_t before = memory_now();
        size_t most = before;
        const assay_sink sink = {.self = &most, .wants = wants_all, .write = drop_f64, .write_i32 = drop_i32};
        assert_ok(&ctx, assay_moe_run(&ctx, &c.config, &sharding, &source, &sink));
        const int64_t bound = assay_moe_memory(&c.config, &sharding);
        assert_true((int64_t)(most - before) <= bound);
    }
    /* A block of DeepSeek-V3's width on 16 shards: rows of y and dx are 4 GiB, and it is not far above. */
    moe_case large = moe_case_deepseek3(16, 256, 256, 8, 7168, 2048);
    assay_sharding sharding = sharded_case_mesh(2, 1, 8);
    sharding.ragged_buffer_factor = 1;
    const int64_t rows = 16 * 256 * 8;
    assert_true(assay_moe_memory(&large.config, &sharding) > rows * 2 * 7168 * 8);
    assert_true(assay_moe_memory(&large.config, &sharding) < 3 * rows * 2 * 7168 * 8);
}
