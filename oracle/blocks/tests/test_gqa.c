/* Grouped-query attention against itself: other threads, heads that share keys or have copies of them, windows and
 * sinks without an effect, fused projections. harness/tests/test_certified.c has it against the second form. */
#include "oracle/blocks/gqa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/blocks/tests/block_problem.h"

/* Several blocks of a product and of attention, sizes that no block divides, and everything on. */
static const assay_gqa_config EVERYTHING = {.batch = 1,
                                            .sequence = 137,
                                            .emb_dim = 29,
                                            .heads = 6,
                                            .kv_heads = 2,
                                            .head_dim = 10,
                                            .window = 21,
                                            .query_scale = 0.3,
                                            .bias = true,
                                            .qk_norm = true,
                                            .sinks = true,
                                            .epsilon = 1e-3,
                                            .rope = {10, true, 10000, 32, 32, 1, 160, 64, false, false, true, false},
                                            .mask_padding = true};

static assay_gqa_config of_length(int64_t sequence, bool fused)
{
    assay_gqa_config config = EVERYTHING;
    config.sequence = sequence;
    config.window = sequence < config.window ? 4 : config.window;
    config.fused_qkv = fused;
    return config;
}

static graph graph_of(int64_t sequence, bool fused)
{
    const assay_gqa_config config = of_length(sequence, fused);
    graph g;
    assay_gqa_graph(&g, &config);
    return g;
}

TEST(test_any_checkpoints_can_be_computed_again)
{
    for (int fused = 0; fused < 2; fused++) {
        const graph g = graph_of(14, fused);
        block_check_recomputing(&g, true);
    }
}

TEST(test_missing_gradients_are_skipped)
{
    for (int fused = 0; fused < 2; fused++) {
        const graph g = graph_of(14, fused);
        block_check_missing_gradients(&g, true);
    }
}

/* Without biases: the gradient of one takes a product that is not counted, a sum. */
TEST(test_operations_are_those_of_the_products)
{
    for (int fused = 0; fused < 2; fused++) {
        assay_gqa_config config = of_length(14, fused);
        graph g;
        config.bias = false;
        assay_gqa_graph(&g, &config);
        block_check_operations(&g);
    }
}

TEST(test_every_allocation_may_fail)
{
    for (int fused = 0; fused < 2; fused++) {
        const graph g = graph_of(14, fused);
        block_check_memory(&g, 20);
    }
}

TEST(test_padding_reaches_nobody)
{
    const graph g = graph_of(14, false);
    block_check_padding(&g);
}

TEST(test_intermediates_lie_on_the_grid)
{
    const graph g = graph_of(14, true);
    block_check_grid(&g);
}

TEST(test_same_bits_with_any_threads_and_isa)
{
    for (int fused = 0; fused < 2; fused++) {
        const graph g = graph_of(EVERYTHING.sequence, fused);
        block_check_threads(&g);
    }
}

/* --- two configurations of the same --- */

typedef struct pair {
    graph graphs[2];
    block_problem p, other;
} pair;

/* What both have under a name and in one size has the same numbers. Pointers into itself: it must stay where it is. */
static void open_pair(pair *two, const assay_gqa_config *config, const assay_gqa_config *other)
{
    assay_gqa_graph(&two->graphs[0], config);
    assay_gqa_graph(&two->graphs[1], other);
    block_open(&two->p, &two->graphs[0], true);
    block_open(&two->other, &two->graphs[1], true);
    memcpy(two->other.dy, two->p.dy, (size_t)(two->p.tokens * two->p.dim) * sizeof(double));
    for (int t = 1; t < two->graphs[0].tensor_count; t++) {
        const int to = graph_find(&two->graphs[1], two->graphs[0].tensors[t].row.name);
        const int64_t count = graph_size(&two->graphs[0], t);
        if (block_is_given(&two->graphs[0], t) && graph_size(&two->graphs[1], to) == count)
            memcpy(two->other.values[to], two->p.values[t], (size_t)count * sizeof(double));
    }
}

static void run_pair(pair *two)
{
    assay_context ctx = assay_context_default(2);
    block_run(&ctx, &two->p);
    block_run(&ctx, &two->other);
    assert_same_bits(block_value(&two->p, "out_proj"), block_value(&two->other, "out_proj"),
                     two->p.tokens * two->p.dim);
    assert_same_bits(block_value(&two->p, "lse"), block_value(&two->other, "lse"), block_size(&two->p, "lse"));
}

static void close_pair(pair *two)
{
    block_close(&two->p);
    block_close(&two->other);
}

/* A window that no token goes beyond, and sinks far below every score. */
TEST(test_windows_and_sinks_without_an_effect)
{
    assay_gqa_config config = EVERYTHING, plain = EVERYTHING;
    pair two;
    config.window = config.sequence;
    plain.window = 0;
    plain.sinks = false;
    open_pair(&two, &config, &plain);
    for (int64_t head = 0; head < config.heads; head++) block_value(&two.p, "sinks")[head] = -1000;
    run_pair(&two);
    block_assert_same(&two.other, &two.p);
    for (int64_t head = 0; head < config.heads; head++) assert_true(block_gradient(&two.p, "sinks")[head] == 0);
    close_pair(&two);
}

/* Rows [D] of heads [from, from + count) of a weight that has `of` heads of Dh, to the same of another. */
static void copy_heads(double *to, int64_t to_of, int64_t to_head, const double *from, int64_t from_of,
                       int64_t from_head, int64_t count, int64_t rows, int64_t dim)
{
    for (int64_t row = 0; row < rows; row++)
        memcpy(to + (row * to_of + to_head) * dim, from + (row * from_of + from_head) * dim,
               (size_t)(count * dim) * sizeof(double));
}

/* Each head of queries has a copy of its keys and values: the same forward, and shared ones get the sum of what copies
 * get. */
TEST(test_shared_keys_are_copies)
{
    static const char *const shared[] = {"key/kernel", "value/kernel", "key/bias", "value/bias"};
    assay_gqa_config own = EVERYTHING;
    const int64_t n = own.heads, kv = own.kv_heads, dim = own.head_dim;
    pair two;
    own.kv_heads = own.heads;
    open_pair(&two, &EVERYTHING, &own);
    for (int i = 0; i < 4; i++) {
        for (int64_t head = 0; head < n; head++)
            copy_heads(block_value(&two.other, shared[i]), n, head, block_value(&two.p, shared[i]), kv, head / (n / kv),
                       1, i < 2 ? own.emb_dim : 1, dim);
    }
    run_pair(&two);
    assert_close(block_gradient(&two.other, "inputs/x"), block_gradient(&two.p, "inputs/x"), two.p.tokens * two.p.dim,
                 1e-11, 1e-12);
    for (int i = 0; i < 4; i++) {
        const int64_t rows = i < 2 ? own.emb_dim : 1, size = block_size(&two.p, shared[i]);
        const double *each = block_gradient(&two.other, shared[i]);
        double *sum = calloc((size_t)size, sizeof *sum);
        assert_non_null(sum);
        for (int64_t k = 0; k < rows * n * dim; k++) {
            const int64_t row = k / (n * dim), head = k / dim % n;
            sum[(row * kv + head / (n / kv)) * dim + k % dim] += each[k];
        }
        assert_close(sum, block_gradient(&two.p, shared[i]), size, 1e-11, 1e-11);
        free(sum);
    }
    close_pair(&two);
}

/* One kernel for all three is the three side by side. */
TEST(test_fused_projections)
{
    static const char *const parts[] = {"query/kernel", "query/bias",   "key/kernel",
                                        "key/bias",     "value/kernel", "value/bias"};
    static const char *const fused[] = {"qkv_proj/kernel", "qkv_proj/bias"};
    const assay_gqa_config config = of_length(EVERYTHING.sequence, true);
    const int64_t n = config.heads, kv = config.kv_heads, all = n + 2 * kv, dim = config.head_dim;
    const int64_t heads[] = {n, kv, kv}, first[] = {0, n, n + kv};
    pair two;
    open_pair(&two, &EVERYTHING, &config);
    for (int i = 0; i < 6; i++) {
        copy_heads(block_value(&two.other, fused[i % 2]), all, first[i / 2], block_value(&two.p, parts[i]),
                   heads[i / 2], 0, heads[i / 2], i % 2 == 0 ? config.emb_dim : 1, dim);
    }
    run_pair(&two);
    assert_close(block_gradient(&two.other, "inputs/x"), block_gradient(&two.p, "inputs/x"), two.p.tokens * two.p.dim,
                 1e-11, 1e-12);
    for (int i = 0; i < 6; i++) {
        double *part = test_nans(block_size(&two.p, parts[i]));
        copy_heads(part, heads[i / 2], 0, block_gradient(&two.other, fused[i % 2]), all, first[i / 2], heads[i / 2],
                   i % 2 == 0 ? config.emb_dim : 1, dim);
        assert_same_bits(part, block_gradient(&two.p, parts[i]), block_size(&two.p, parts[i]));
        free(part);
    }
    close_pair(&two);
}

TEST(test_refusals)
{
    static const struct {
        const char *words;
        size_t offset;
        int64_t value;
    } rows[] = {
        {"base_emb_dim is 0, expected 1 or more", offsetof(assay_gqa_config, emb_dim), 0},
        {"base_num_kv_heads is 0, expected 1 or more", offsetof(assay_gqa_config, kv_heads), 0},
        {"base_num_kv_heads is 4, expected a divisor of base_num_query_heads (6)", offsetof(assay_gqa_config, kv_heads),
         4},
        {"base_num_kv_heads is 12, expected a divisor", offsetof(assay_gqa_config, kv_heads), 12},
        {"sliding_window_size is -1, expected 1 or more", offsetof(assay_gqa_config, window), -1},
        {"head_dim is 0, expected 1 or more", offsetof(assay_gqa_config, head_dim), 0},
        {"inputs/x: ", offsetof(assay_gqa_config, emb_dim), INT64_MAX / 2},
    };
    assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_gqa_config config = EVERYTHING;
        *(int64_t *)(void *)((char *)&config + rows[i].offset) = rows[i].value;
        assert_int_not_equal(assay_gqa_check(&ctx, &config), ASSAY_OK);
        if (strstr(ctx.message, rows[i].words) == NULL) fail_msg("%s: %s", rows[i].words, ctx.message);
    }
    assay_gqa_config config = EVERYTHING;
    config.query_scale = NAN;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    config = EVERYTHING;
    config.epsilon = -1;
    assert_int_equal(assay_gqa_check(&ctx, &config), ASSAY_BAD_INPUT);
    assert_ok(&ctx, assay_gqa_check(&ctx, &EVERYTHING));
}
