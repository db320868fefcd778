/* Attention's bits over threads and instruction sets; its behaviour without memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/ops/attention.h"
#include "oracle/ops/tests/attention_problem.h"
#include "oracle/ops/tests/ops_test.h"

TEST_LABELS(threads, slow);

typedef struct trial {
    attention_problem p;
    double *first[ATTENTION_RESULTS]; /* of the first context */
} trial;

static void same_bits(assay_context *ctx, void *data)
{
    trial *t = data;
    attention_problem_run(ctx, &t->p);
    for (int r = 0; r < ATTENTION_RESULTS; r++) {
        if (t->first[r] == NULL) {
            t->first[r] = test_nans(t->p.count[r]);
            memcpy(t->first[r], t->p.results[r], (size_t)t->p.count[r] * sizeof *t->first[r]);
        }
        assert_same_bits(t->p.results[r], t->first[r], t->p.count[r]);
    }
}

static void trial_free(trial *t)
{
    for (int r = 0; r < ATTENTION_RESULTS; r++) free(t->first[r]);
    attention_problem_free(&t->p);
}

/* In every context; 7 threads are more than there are heads, 1 and 2 are not. */
static void check_bits(const assay_attention_config *config, attention_pattern pattern, bool sinks)
{
    trial t = {0};
    attention_problem_make(&t.p, config, pattern);
    if (sinks) attention_problem_add_sinks(&t.p);
    test_each_context(same_bits, &t);
    trial_free(&t);
}

/* Up to and beyond the blocks of keys; harness/tests/test_certified.c has the numbers. */
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
            check_bits(&config, ONE_SEGMENT, false);
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
            check_bits(&config, (attention_pattern)pattern, false);
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
            check_bits(&config, (attention_pattern)pattern, w % 2 == 0);
        }
    }
}

TEST(test_huge_scores_do_not_overflow)
{
    const assay_attention_config config = {.batch = 1, .sequence = 150, .heads = 1, .qk_dim = 6, .v_dim = 3};
    for (int sign = -1; sign <= 1; sign += 2) {
        trial t = {0};
        attention_problem_make(&t.p, &config, ONE_SEGMENT);
        /* all of one sign: -1e4 is no smaller a score than 1e4 to a softmax */
        for (int64_t i = 0; i < t.p.count[ATTENTION_DQUERY]; i++) {
            t.p.query[i] = 3000 * (1 + 0.1 * t.p.query[i]);
            t.p.key[i] = sign * (1 + 0.1 * t.p.key[i]);
        }
        test_each_context(same_bits, &t);
        assert_true(fabs(t.p.results[ATTENTION_LSE][0]) > 1e4);
        for (int r = 0; r < ATTENTION_RESULTS; r++) {
            for (int64_t i = 0; i < t.p.count[r]; i++) assert_true(isfinite(t.p.results[r][i]));
        }
        trial_free(&t);
    }
}

TEST(test_blas_agrees)
{
    const assay_attention_config config = {
        .batch = 2, .sequence = 200, .heads = 2, .qk_dim = 24, .v_dim = 16, .mask_padding = true};
    assay_context ctx = assay_context_default(2), blas = ctx;
    attention_problem p, other;
    blas.arithmetic = &assay_arithmetic_blas;
    attention_problem_make(&p, &config, PADDED_END);
    attention_problem_make(&other, &config, PADDED_END);
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
    attention_problem_make(&p, &config, INTERLEAVED);
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
