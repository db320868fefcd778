#include "oracle/blocks/tests/block_problem.h"

static const int32_t segments[] = {1, 1, 2, 0, 2, 1, 2, 0, 3, 3, 3, 0, 0, 0};
enum { SEGMENTS = sizeof segments / sizeof *segments };

const assay_emulation block_bfloat16 = {
    .precision = {"bf16", RMS(0x1p-8), RMS(0x1p-24), RMS(0x1p-24), RMS(0x1p-24), 0x1p-22, .accumulator = {0}},
    .storage = ASSAY_BFLOAT16,
    .multiply = ASSAY_BFLOAT16,
    .seed = 3};

bool block_is_given(const graph *g, int tensor)
{
    return g->tensors[tensor].role == GRAPH_INPUT || g->tensors[tensor].role == GRAPH_WEIGHT;
}

static bool is_checkpoint(const graph *g, int tensor)
{
    return g->tensors[tensor].role == GRAPH_CHECKPOINT;
}

static int32_t *integers(int64_t count)
{
    int32_t *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    return values;
}

void block_open(block_problem *p, const graph *g, bool segmented)
{
    uint64_t seed = 7;
    *p = (block_problem){.graph = g, .dim = graph_last_axis(g, g->result)};
    p->tokens = graph_size(g, g->result) / p->dim;
    for (int t = 1; t < g->tensor_count; t++) {
        if (block_is_given(g, t)) p->values[t] = test_normals(&seed, 0.7, ASSAY_FLOAT64, graph_size(g, t));
        if (block_is_given(g, t)) p->gradients[t] = test_nans(graph_size(g, t));
        if (is_checkpoint(g, t)) p->values[t] = test_nans(graph_size(g, t));
    }
    p->dy = test_normals(&seed, 1, ASSAY_FLOAT64, p->tokens * p->dim);
    p->positions = integers(p->tokens);
    p->segment_ids = segmented ? integers(p->tokens) : NULL;
    for (int64_t t = 0; t < p->tokens; t++) p->positions[t] = (int32_t)(5 + 11 * t) % 160;
    for (int64_t t = 0; t < p->tokens && segmented; t++) p->segment_ids[t] = segments[t % SEGMENTS];
}

void block_close(block_problem *p)
{
    graph_close(&p->run);
    for (int t = 0; t < GRAPH_TENSORS; t++) {
        free(p->values[t]);
        free(p->gradients[t]);
    }
    free(p->dy);
    free(p->positions);
    free(p->segment_ids);
}

void block_begin(block_problem *p)
{
    static const int32_t group_sizes[] = {2, 0, 4}; /* where rows come in groups */
    const graph *g = p->graph;
    graph_close(&p->run);
    assay_context quiet = assay_context_default(1);
    assert_ok(&quiet, graph_open(&quiet, &p->run, g));
    p->run.in = p->in;
    p->run.out = p->out;
    p->run.group_sizes = group_sizes;
    p->run.indices[graph_find(g, "inputs/positions")] = p->positions;
    p->run.indices[graph_find(g, "inputs/segment_ids")] = p->segment_ids;
    for (int t = 1; t < g->tensor_count; t++) {
        if (block_is_given(g, t)) graph_lend(&p->run, t, p->values[t]);
        if (!is_checkpoint(g, t)) continue;
        assay_fill_nan(p->values[t], graph_size(g, t));
        p->run.room[t] = p->values[t];
    }
}

assay_status block_backward(assay_context *ctx, block_problem *p)
{
    for (int t = 1; t < p->graph->tensor_count; t++) {
        if (p->gradients[t] != NULL) assay_fill_nan(p->gradients[t], graph_size(p->graph, t));
        if (block_is_given(p->graph, t)) graph_want_gradient(&p->run, t, p->gradients[t]);
    }
    graph_lend_gradient(&p->run, p->graph->result, p->dy);
    return graph_backward(ctx, &p->run);
}

void block_run(assay_context *ctx, block_problem *p)
{
    block_begin(p);
    assert_ok(ctx, graph_forward(ctx, &p->run));
    assert_ok(ctx, block_backward(ctx, p));
}

static int find(const block_problem *p, const char *name)
{
    const int tensor = graph_find(p->graph, name);
    if (tensor == 0) fail_msg("there is no %s", name);
    return tensor;
}

double *block_value(const block_problem *p, const char *name)
{
    return p->values[find(p, name)];
}

double *block_gradient(const block_problem *p, const char *name)
{
    return p->gradients[find(p, name)];
}

int64_t block_size(const block_problem *p, const char *name)
{
    return graph_size(p->graph, find(p, name));
}

static void assert_same_of(const block_problem *p, const block_problem *expected, double *const *values,
                           double *const *those)
{
    int compared = 0;
    for (int t = 1; t < p->graph->tensor_count; t++) {
        const int other = graph_find(expected->graph, p->graph->tensors[t].row.name);
        const int64_t count = graph_size(p->graph, t);
        if (values[t] == NULL || those[other] == NULL || graph_size(expected->graph, other) != count) continue;
        assert_same_bits(values[t], those[other], count);
        compared++;
    }
    assert_true(compared > 0);
}

double block_largest(const double *values, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = isfinite(values[i]) ? fmax(largest, fabs(values[i])) : largest;
    return largest;
}

void block_assert_near(const double *actual, const double *expected, int64_t count, double relative)
{
    assert_close(actual, expected, count, 0, relative * block_largest(expected, count));
}

/* --- what holds of every block --- */

/* The checkpoints of a run, but for y and for those of a subset. */
static void lend_others(block_problem *p, const block_problem *kept, unsigned subset)
{
    int number = 0;
    for (int t = 1; t < p->graph->tensor_count; t++) {
        if (!is_checkpoint(p->graph, t) || t == p->graph->result) continue;
        if ((subset >> number++ & 1) == 0) graph_lend(&p->run, t, kept->values[t]);
    }
}

static void assert_made_again(const block_problem *p, const block_problem *kept, unsigned subset)
{
    int number = 0;
    for (int t = 1; t < p->graph->tensor_count; t++) {
        if (!is_checkpoint(p->graph, t)) continue;
        if (t == p->graph->result || (subset >> number++ & 1) != 0)
            assert_same_bits(p->values[t], kept->values[t], graph_size(p->graph, t));
    }
}

static unsigned all_subsets(const graph *g)
{
    unsigned subsets = 1;
    for (int t = 1; t < g->tensor_count; t++)
        if (is_checkpoint(g, t) && t != g->result) subsets *= 2;
    return subsets;
}

static void check_recomputing(assay_context *ctx, const graph *g, bool segmented)
{
    OWNED_BY(block_close) block_problem kept, p;
    block_open(&kept, g, segmented);
    block_open(&p, g, segmented);
    block_run(ctx, &kept);
    for (unsigned subset = 0; subset < all_subsets(g); subset++) {
        block_begin(&p);
        lend_others(&p, &kept, subset);
        assert_ok(ctx, graph_forward(ctx, &p.run));
        assert_made_again(&p, &kept, subset);
        block_begin(&p);
        lend_others(&p, &kept, subset);
        assert_ok(ctx, block_backward(ctx, &p));
        assert_same_of(&p, &kept, p.gradients, kept.gradients);
    }
}

void block_check_recomputing(const graph *g, bool segmented)
{
    assay_context plain = assay_context_default(1), emulated = plain;
    emulated.arithmetic = &assay_arithmetic_emulated;
    emulated.emulation = &block_bfloat16;
    check_recomputing(&plain, g, segmented);
    check_recomputing(&emulated, g, segmented);
}

/* Of one tensor, from all other checkpoints. */
static double count_one(assay_context *ctx, test_operations *operations, block_problem *p, const block_problem *kept,
                        int tensor)
{
    block_begin(p);
    for (int t = 1; t < p->graph->tensor_count; t++)
        if (is_checkpoint(p->graph, t) && t != tensor) graph_lend(&p->run, t, kept->values[t]);
    operations->count = 0;
    assert_ok(ctx, graph_require(ctx, &p->run, tensor));
    return operations->count;
}

/* To attention_out, and from what attention is given. */
static double count_backward(assay_context *ctx, test_operations *operations, block_problem *p,
                             const block_problem *kept)
{
    static const char *const given[] = {"query_proj", "key_proj", "value_proj"};
    const int out = graph_find(p->graph, "attention_out");
    OWNED double *dout = test_nans(graph_size(p->graph, out));
    operations->count = 0;
    block_begin(p);
    lend_others(p, kept, 0);
    graph_want_gradient(&p->run, out, dout);
    assert_ok(ctx, block_backward(ctx, p));
    assert_true(isfinite(dout[0]) && isnan(block_gradient(p, "inputs/x")[0]));
    block_begin(p);
    lend_others(p, kept, 0);
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        graph_lend_gradient(&p->run, graph_find(p->graph, given[i]), block_value(kept, given[i]));
    for (int t = 1; t < p->graph->tensor_count; t++) graph_want_gradient(&p->run, t, p->gradients[t]);
    assert_ok(ctx, graph_backward(ctx, &p->run));
    assert_true(isfinite(block_gradient(p, "inputs/x")[0]));
    return operations->count;
}

/* Attention's own are its own to count: a triangle is no product. */
void block_check_operations(const graph *g)
{
    assay_context ctx = assay_context_default(1);
    const int out = graph_find(g, "attention_out");
    const assay_attention_config *attention = &g->steps[g->tensors[out].step].with.attention;
    test_operations operations = {.count = 0};
    double sum = 0;
    block_problem kept, p;
    block_open(&kept, g, false);
    block_open(&p, g, false);
    block_run(&ctx, &kept);
    test_count_operations(&ctx, &operations);
    for (int t = 1; t < g->tensor_count; t++) {
        const bool attends = g->tensors[t].step == g->tensors[out].step;
        if (!is_checkpoint(g, t)) continue;
        sum += graph_operations(g, t);
        if (!attends) assert_true(count_one(&ctx, &operations, &p, &kept, t) == graph_operations(g, t));
    }
    assert_true(graph_operations(g, out) == assay_attention_flops(attention, false));
    assert_true(sum == graph_forward_operations(g));
    assert_true(count_backward(&ctx, &operations, &p, &kept) ==
                graph_backward_operations(g) - assay_attention_flops(attention, true));
    block_close(&kept);
    block_close(&p);
}

void block_check_padding(const graph *g)
{
    const int x = graph_find(g, "inputs/x");
    assay_context ctx = assay_context_default(1);
    OWNED_BY(block_close) block_problem p, other;
    int64_t padding = 0;
    block_open(&p, g, true);
    block_open(&other, g, true);
    block_run(&ctx, &p);
    for (int64_t t = 0; t < p.tokens; t++) {
        if (p.segment_ids[t] == 0) assay_fill_nan(other.values[x] + t * p.dim, p.dim);
        padding += p.segment_ids[t] == 0;
    }
    block_run(&ctx, &other);
    assert_same_bits(other.values[g->result], p.values[g->result], p.tokens * p.dim);
    for (int64_t t = 0; t < p.tokens; t++) {
        const double *dx = p.gradients[x] + t * p.dim;
        if (p.segment_ids[t] != 0) assert_same_bits(other.gradients[x] + t * p.dim, dx, p.dim);
        for (int64_t i = 0; i < p.dim && p.segment_ids[t] == 0; i++) assert_true(dx[i] == 0);
    }
    assert_true(padding > 0 && padding < p.tokens);
}

void block_check_grid(const graph *g)
{
    assay_context ctx = assay_context_default(1);
    block_problem p;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &block_bfloat16;
    block_open(&p, g, true);
    block_run(&ctx, &p);
    for (int t = 1; t < g->tensor_count; t++) {
        int64_t off = 0;
        if (!is_checkpoint(g, t)) continue;
        for (int64_t i = 0; i < graph_size(g, t); i++)
            off += assay_dtype_round(ASSAY_BFLOAT16, p.values[t][i], false) != p.values[t][i];
        assert_true(g->tensors[t].kept == GRAPH_STORED ? off == 0 : off > 0);
    }
    assert_true(g->tensors[g->result].kept == GRAPH_LEFT);
    block_close(&p);
}
