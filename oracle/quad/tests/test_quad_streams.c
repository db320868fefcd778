/* Weights that are read an expert at a time: the same bits as with the weights in memory. And attention in blocks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/quad/tests/quad_case.h"

enum { EXPERTS = 5, DIM = 6, WIDTH = 4, TOKENS = 3, K = 2, KERNEL = EXPERTS * DIM * WIDTH };

static quad_moe_config block(void)
{
    return (quad_moe_config){.moe = {.routing = {.batch = 1,
                                                 .sequence = TOKENS,
                                                 .num_experts = EXPERTS,
                                                 .num_experts_per_tok = K,
                                                 .family = ASSAY_ROUTER_DEEPSEEK3,
                                                 .score_func = ASSAY_SCORE_SIGMOID,
                                                 .n_routing_groups = -1,
                                                 .routed_scaling_factor = 1},
                                     .emb_dim = DIM,
                                     .moe_mlp_dim = WIDTH,
                                     .shared_mlp_dim = WIDTH,
                                     .path = ASSAY_MOE_SPARSE,
                                     .activation = ASSAY_SILU}};
}

static void add_block(quad_case *c)
{
    case_start(c, 7);
    case_random(c, "inputs/x", 1, DIMS(1, TOKENS, DIM));
    case_random(c, "weights/gate/kernel", 1, DIMS(DIM, EXPERTS));
    case_random(c, "weights/wi_0", 1, DIMS(EXPERTS, DIM, WIDTH));
    case_random(c, "weights/wi_1", 1, DIMS(EXPERTS, DIM, WIDTH));
    case_random(c, "weights/wo", 1, DIMS(EXPERTS, WIDTH, DIM));
    case_random(c, "weights/shared_experts/wi_0/kernel", 1, DIMS(DIM, WIDTH));
    case_random(c, "weights/shared_experts/wi_1/kernel", 1, DIMS(DIM, WIDTH));
    case_random(c, "weights/shared_experts/wo/kernel", 1, DIMS(WIDTH, DIM));
}

static void assert_same(const quad_tensors *a, const quad_tensors *b, const char *path)
{
    const quad_tensor *of_a = quad_tensors_find(a, path), *of_b = quad_tensors_find(b, path);
    assert_non_null(of_a);
    assert_non_null(of_b);
    const size_t bytes = (size_t)assay_shape_count(&of_a->shape) * sizeof *of_a->values;
    assert_memory_equal(of_a->values, of_b->values, bytes);
}

/* Gives the kernels in memory, and counts. */
typedef struct reader {
    quad_case *c;
    int64_t reads;
} reader;

static assay_status read_kernel(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    reader *r = self;
    const quad *values = quad_tensors_find(&r->c->in, path)->values;
    (void)ctx;
    for (int64_t i = 0; i < count; i++) out[i] = (double)values[first + i];
    r->reads += count;
    return ASSAY_OK;
}

/* `in` with the kernels of the experts streamed. Its tensors are c's. */
static quad_tensors streamed(quad_case *c, const assay_source *source)
{
    static const quad_moe_config sharded = {.sharding = {.ring_of_experts = true}};
    const quad_moe_config config = block();
    quad_tensors in = {.items = calloc((size_t)c->in.count, sizeof *c->in.items)};
    assert_non_null(in.items);
    for (int i = 0; i < c->in.count; i++) {
        quad_tensor *tensor = &in.items[in.count++];
        *tensor = c->in.items[i];
        assert_false(quad_moe_streams(&sharded, tensor->path));
        if (!quad_moe_streams(&config, tensor->path)) continue;
        tensor->values = NULL;
        tensor->source = source;
    }
    return in;
}

TEST(test_streamed_weights)
{
    quad_case c;
    const quad_moe_config config = block();
    add_block(&c);
    reader r = {.c = &c};
    const assay_source source = {.self = &r, .read = read_kernel};
    quad_tensors in = streamed(&c, &source), out = {0};
    bool used[EXPERTS] = {0};
    int64_t count = 0;
    assert_ok(&c.ctx, case_evaluate(&c, quad_moe, &config));
    assert_ok(&c.ctx, quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &out));
    assert_same(&out, &c.out, "outputs/y");
    assert_same(&out, &c.out, "checkpoints/moe_mlpwo");
    assert_same(&out, &c.out, "checkpoints/mlpwo");
    /* each expert that anybody goes to once, the others never */
    for (int i = 0; i < TOKENS * K; i++) used[quad_tensors_find(&c.out, "routing/selected_experts")->indices[i]] = true;
    for (int e = 0; e < EXPERTS; e++) count += used[e];
    assert_int_equal(r.reads, count * 3 * DIM * WIDTH);
    free(in.items);
    quad_tensors_free(&out);
    case_end(&c);
}

static assay_status broken(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out)
{
    (void)self;
    (void)first;
    (void)count;
    (void)out;
    return assay_fail(ctx, ASSAY_IO, "'%s' cannot be read", path);
}

/* A source that fails, one of another size, one where the second form needs the tensor as a whole, one twice. */
TEST(test_streams_that_are_refused)
{
    quad_case c;
    const quad_moe_config config = block();
    const assay_source source = {.read = broken};
    const assay_shape shape = DIMS(EXPERTS, DIM, WIDTH + 1), gate = DIMS(DIM, EXPERTS);
    add_block(&c);
    quad_tensors in = streamed(&c, &source);
    assert_int_equal(quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &c.out), ASSAY_IO);
    quad_tensors_free(&c.out);
    for (int i = 0; i < in.count; i++) {
        if (strcmp(in.items[i].path, "weights/wi_0") == 0) in.items[i].shape = shape;
    }
    assert_int_equal(quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &c.out), ASSAY_BAD_INPUT);
    assert_non_null(strstr(c.ctx.message, "'weights/wi_0' has"));
    quad_tensors_free(&c.out);
    assert_int_equal(quad_tensors_stream(&c.ctx, &in, "weights/gate/kernel", &gate, &source), ASSAY_BAD_INPUT);
    for (int i = 0; i < in.count; i++) {
        if (strcmp(in.items[i].path, "weights/wi_0") == 0) in.items[i].shape = DIMS(EXPERTS, DIM, WIDTH);
        if (strcmp(in.items[i].path, "inputs/x") == 0) in.items[i].source = &source;
    }
    assert_int_equal(quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &c.out), ASSAY_INTERNAL);
    assert_non_null(strstr(c.ctx.message, "inputs/x"));
    free(in.items);
    case_end(&c);
}

TEST(test_allocation_failures)
{
    for (int64_t n = 0;; n++) {
        quad_case c;
        const quad_moe_config config = block();
        add_block(&c);
        reader r = {.c = &c};
        const assay_source source = {.self = &r, .read = read_kernel};
        quad_tensors in = streamed(&c, &source);
        assay_fail_allocation(n);
        const assay_status status = quad_differentiate(&c.ctx, quad_moe, &config, &in, NULL, &c.out, NULL);
        const bool last = had_memory(&c.ctx, status);
        free(in.items);
        case_end(&c);
        if (last) break;
    }
}

/* Attention in blocks of queries, each product large enough for slices, against the formula. What is not visible may be no
 * number. */
TEST(test_blocks_of_queries)
{
    enum { S = 150, HEADS = 2, SIZE = 24 };
    for (int form = 0; form < 3; form++) {
        quad_case c;
        int32_t segments[S];
        const assay_attention_config config = {.batch = 1,
                                               .sequence = S,
                                               .heads = HEADS,
                                               .kv_heads = 1,
                                               .qk_dim = SIZE,
                                               .v_dim = SIZE,
                                               .window = form == 1 ? 70 : 0};
        case_start(&c, 3);
        case_random(&c, "inputs/query", 1, DIMS(1, S, HEADS, SIZE));
        case_random(&c, "inputs/key", 1, DIMS(1, S, 1, SIZE));
        case_random(&c, "inputs/value", 1, DIMS(1, S, 1, SIZE));
        for (int i = 0; i < S; i++) segments[i] = i < 90 ? 1 : 2;
        if (form == 2) case_indices(&c, "inputs/segment_ids", segments, DIMS(1, S));
        const quad *q = quad_tensors_find(&c.in, "inputs/query")->values;
        const quad *k = quad_tensors_find(&c.in, "inputs/key")->values;
        quad *v = quad_tensors_find(&c.in, "inputs/value")->values;
        if (form == 2) v[S / 2 * SIZE] = INFINITY; /* in the first segment */
        assert_ok(&c.ctx, case_evaluate(&c, quad_attention, &config));
        for (int i = 0; i < S * HEADS; i++) {
            const int query = i / HEADS, head = i % HEADS;
            double sum = 0, first = 0;
            for (int key = 0; key <= query; key++) {
                double score = 0;
                if ((form == 1 && query - key >= 70) || (form == 2 && segments[key] != segments[query])) continue;
                for (int d = 0; d < SIZE; d++) score += (double)q[i * SIZE + d] * (double)k[key * SIZE + d];
                sum += exp(score);
                first += exp(score) * (double)v[key * SIZE];
            }
            const double expected = first / sum, found = result_at(&c, "outputs/attention_out", i * SIZE);
            const double lse = log(sum), found_lse = result_at(&c, "outputs/lse", head * S + query);
            assert_close(&found, &expected, 1, 1e-12, 1e-13);
            assert_close(&found_lse, &lse, 1, 1e-12, 1e-13);
        }
        case_end(&c);
    }
}
