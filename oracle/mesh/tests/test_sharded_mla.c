/* Heads of MLA over a mesh against all of them on one device. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/mesh/sharded_mla.h"
#include "oracle/ops/tests/mla_problem.h"
#include "tests/support/test_tensors.h"

/* Sums over few terms in another order. */
#define ROUNDING 1e-14

enum { HEADS = 6, MESHES = 6 };

/* data, fsdp, expert, mlp_tensor */
static const assay_mesh meshes[MESHES] = {{{1, 1, 2, 1}}, {{1, 1, 1, 3}}, {{1, 1, 2, 3}},
                                          {{2, 1, 3, 1}}, {{1, 2, 3, 2}}, {{2, 1, 1, 1}}};

static void make(mla_problem *p, int sample)
{
    assay_mla_config config = mla_samples[sample].config;
    config.heads = HEADS;
    config.batch = 2;
    mla_problem_make(p, &config, mla_samples[sample].segment_ids);
}

typedef struct sharded {
    double *y;
    test_tensors out;
} sharded;

static assay_status run(assay_context *ctx, mla_problem *p, const assay_mesh *mesh, bool backward, sharded *s)
{
    const assay_mla_weights w = mla_problem_weights(p);
    const assay_sink out = test_tensors_sink(&s->out);
    for (int i = 0; i < MLA_VARIABLES; i++) {
        if (p->gradients[i] != NULL) assay_fill_nan(p->gradients[i], p->sizes[i]);
    }
    assay_fill_nan(s->y, p->sizes[MLA_X]);
    const assay_head_run all = {.mesh = mesh,
                                .in = {p->values[MLA_X], p->positions, p->segment_ids},
                                .w = w.w,
                                .y = s->y,
                                .dx = p->gradients[MLA_X],
                                .gradients = p->gradients + MLA_WQ_A,
                                .dy = backward ? p->dy : NULL,
                                .out = &out};
    return assay_sharded_mla_run(ctx, &p->config, &all);
}

static void assert_near(const double *actual, const double *expected, int64_t count, const char *what)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(expected[i]));
    for (int64_t i = 0; i < count; i++) {
        if (!(fabs(actual[i] - expected[i]) <= ROUNDING * largest)) fail_msg("%s[%d]", what, (int)i);
    }
}

TEST(test_sharded_is_whole)
{
    assay_context ctx = assay_context_default(1);
    for (int sample = 0; sample < 5; sample++) {
        mla_problem whole, p;
        make(&whole, sample);
        mla_problem_run(&ctx, &whole);
        for (int mesh = 0; mesh < MESHES; mesh++) {
            make(&p, sample);
            sharded s = {.y = test_nans(p.sizes[MLA_X])};
            assert_ok(&ctx, run(&ctx, &p, &meshes[mesh], true, &s));
            assert_near(s.y, whole.r.values[ASSAY_MLA_OUT_PROJ], p.sizes[MLA_X], "y");
            for (int i = 0; i < MLA_VARIABLES; i++) {
                if (p.sizes[i] > 0) assert_near(p.gradients[i], whole.gradients[i], p.sizes[i], "a gradient");
            }
            assay_tensor_set_free(&s.out.set);
            free(s.y);
            mla_problem_free(&p);
        }
        mla_problem_free(&whole);
    }
}

/* A shard's heads have the bits that they have among all; heads lie in blocks by (mlp_tensor, expert). */
TEST(test_each_shard_has_its_heads)
{
    assay_context ctx = assay_context_default(1);
    const assay_mesh mesh = {{2, 1, 3, 2}};
    mla_problem whole, p;
    make(&whole, 0);
    make(&p, 0);
    mla_problem_run(&ctx, &whole);
    sharded s = {.y = test_nans(p.sizes[MLA_X])};
    assert_ok(&ctx, run(&ctx, &p, &mesh, false, &s));
    static const int64_t first_heads[] = {0, 3, 1, 4, 2, 5}; /* of shards (expert, mlp_tensor) */
    const int64_t sequence = p.config.sequence, width = p.config.qk_nope_head_dim + p.config.rope.dim;
    const double *keys = assay_tensor_set_find(&s.out.set, "checkpoints/key_proj")->values;
    const double *lse = assay_tensor_set_find(&s.out.set, "checkpoints/lse")->values;
    for (int64_t shard = 0; shard < 12; shard++) {
        const int64_t head = first_heads[shard % 6], row = shard / 6;
        assert_int_equal(assay_head_part(&mesh, shard), head);
        assert_int_equal(assay_head_batch_part(&mesh, shard), row);
        for (int64_t t = 0; t < sequence; t++) {
            const double *expected = whole.r.values[ASSAY_MLA_KEY_PROJ] + ((row * sequence + t) * HEADS + head) * width;
            assert_same_bits(keys + (shard * sequence + t) * width, expected, width);
        }
        assert_same_bits(lse + shard * sequence, whole.r.lse + (row * HEADS + head) * sequence, sequence);
    }
    const assay_tensor *latent = assay_tensor_set_find(&s.out.set, "checkpoints/mla_kv");
    assert_int_equal(latent->count, assay_mla_tensor_count(&p.config, ASSAY_MLA_MLA_KV));
    assert_same_bits(latent->values, whole.r.values[ASSAY_MLA_MLA_KV], latent->count);
    assert_null(assay_tensor_set_find(&s.out.set, "checkpoints/out_proj"));
    assay_tensor_set_free(&s.out.set);
    free(s.y);
    mla_problem_free(&p);
    mla_problem_free(&whole);
}

TEST(test_threads_leave_the_bits)
{
    mla_problem one, p;
    make(&one, 0);
    assay_context ctx = assay_context_default(1);
    sharded expected = {.y = test_nans(one.sizes[MLA_X])};
    assert_ok(&ctx, run(&ctx, &one, &meshes[4], true, &expected));
    for (int threads = 2; threads <= 7; threads += 5) {
        make(&p, 0);
        sharded s = {.y = test_nans(p.sizes[MLA_X])};
        ctx = assay_context_default(threads);
        assert_ok(&ctx, run(&ctx, &p, &meshes[4], true, &s));
        assert_same_bits(s.y, expected.y, p.sizes[MLA_X]);
        for (int i = 0; i < MLA_VARIABLES; i++) {
            if (p.sizes[i] > 0) assert_same_bits(p.gradients[i], one.gradients[i], p.sizes[i]);
        }
        assay_tensor_set_free(&s.out.set);
        free(s.y);
        mla_problem_free(&p);
    }
    assay_tensor_set_free(&expected.out.set);
    free(expected.y);
    mla_problem_free(&one);
}

TEST(test_want_of_memory)
{
    assay_context ctx = assay_context_default(1);
    mla_problem p;
    make(&p, 0);
    sharded s = {.y = test_nans(p.sizes[MLA_X])};
    int64_t n = 0;
    for (;; n++) {
        assay_fail_allocation(n);
        const assay_status status = run(&ctx, &p, &meshes[0], true, &s);
        assay_tensor_set_free(&s.out.set);
        if (had_memory(&ctx, status)) break;
    }
    assert_true(n > 40);
    free(s.y);
    mla_problem_free(&p);
}

TEST(test_refusals)
{
    static const struct {
        assay_mesh mesh;
        const char *words;
    } rows[] = {
        {{{1, 1, 4, 1}},
         "heads (base_num_query_heads) is 6, expected a multiple of mesh.expert times mesh.mlp_tensor, which is 4"},
        {{{1, 1, 3, 4}}, "which is 12"},
        {{{3, 1, 1, 1}}, "batch is 2, expected a multiple of mesh.data times mesh.fsdp, which is 3"},
        {{{INT64_MAX, 2, 1, 1}}, "mesh: its size does not fit"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        mla_problem p;
        make(&p, 0);
        assert_int_equal(assay_sharded_mla_check(&ctx, &p.config, &rows[i].mesh), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, rows[i].words) == NULL) fail_msg("%s", ctx.message);
        mla_problem_free(&p);
    }
}
