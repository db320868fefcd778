/* The second form of the MoE block: weights that are read an expert at a time, what is refused, failing allocations. Its numbers are
 * held against the first form, on one device and on meshes, in harness/tests/test_certified.c. */

#include "oracle/quad/tests/quad_case.h"

/* As many batch rows as experts, so that a mesh divides both. */
enum { EXPERTS = 5, BATCH = 5, DIM = 6, WIDTH = 4, TOKENS = 3, K = 2 };

static quad_moe_config block(void)
{
    return (quad_moe_config){.moe = {.routing = {.batch = BATCH,
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
    case_random(c, "inputs/x", 1, DIMS(BATCH, TOKENS, DIM));
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
    OWNED_BY(case_end) quad_case c;
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
    for (int i = 0; i < BATCH * TOKENS * K; i++)
        used[quad_tensors_find(&c.out, "routing/selected_experts")->indices[i]] = true;
    for (int e = 0; e < EXPERTS; e++) count += used[e];
    assert_int_equal(r.reads, count * 3 * DIM * WIDTH);
    free(in.items);
    quad_tensors_free(&out);
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
    OWNED_BY(case_end) quad_case c;
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
    assert_bad_input(&c.ctx, quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &c.out), "'weights/wi_0' has");
    quad_tensors_free(&c.out);
    assert_int_equal(quad_tensors_stream(&c.ctx, &in, "weights/gate/kernel", &gate, &source), ASSAY_BAD_INPUT);
    for (int i = 0; i < in.count; i++) {
        if (strcmp(in.items[i].path, "weights/wi_0") == 0) in.items[i].shape = DIMS(EXPERTS, DIM, WIDTH);
        if (strcmp(in.items[i].path, "inputs/x") == 0) in.items[i].source = &source;
    }
    assert_int_equal(quad_evaluate(&c.ctx, quad_moe, &config, &in, NULL, &c.out), ASSAY_INTERNAL);
    assert_non_null(strstr(c.ctx.message, "inputs/x"));
    free(in.items);
}

/* Every way of the block, without memory: on one device with places and groups, read in streams, and over meshes. */
static quad_moe_config way(int number)
{
    quad_moe_config config = block();
    config.moe.routing.load_balance_loss_weight = config.moe.routing.routed_bias_update_rate = 1;
    if (number == 0) {
        config.moe.path = ASSAY_MOE_DROPPING;
        config.moe.capacity_factor = 1;
        config.moe.routing.n_routing_groups = EXPERTS;
        config.moe.routing.topk_routing_group = K;
    }
    if (number >= 2) config.sharding.mesh.size[ASSAY_AXIS_EXPERT] = EXPERTS;
    config.sharding.ring_of_experts = number == 3;
    return config;
}

TEST(test_every_allocation_may_fail)
{
    for (int number = 0; number < 4; number++) {
        const quad_moe_config config = way(number);
        quad_case c;
        add_block(&c);
        case_random(&c, "cotangents/y", 1, DIMS(BATCH, TOKENS, DIM));
        reader r = {.c = &c};
        const assay_source source = {.self = &r, .read = read_kernel};
        quad_tensors in = number == 1 ? streamed(&c, &source) : (quad_tensors){0};
        for (int64_t n = 0;; n++) {
            quad_tensors_free(&c.out);
            assay_fail_allocation(n);
            const assay_status status =
                quad_differentiate(&c.ctx, quad_moe, &config, number == 1 ? &in : &c.in, NULL, &c.out, NULL);
            if (!had_memory(&c.ctx, status)) continue;
            assert_true(n > 20);
            break;
        }
        free(in.items);
        case_end(&c);
    }
}

TEST(test_refusals)
{
    static const struct {
        int64_t mesh[3], chunks, dim;
        bool fused;
        const char *message;
    } table[] = {
        {{1, 1, 1}, 1, DIM + 1, false, "'inputs/x' has the shape [5,3,6], expected 105 elements"},
        {{1, 1, 1}, 1, DIM, true, "the tensor 'weights/wi' is missing"},
        {{2, 1, 5}, 1, DIM, false, "5 batch rows, 3 tokens in each and 5 experts are not to be divided by 10, 1 and 5"},
        {{1, 1, 1}, 2, DIM, false, "5 batch rows, 3 tokens in each and 5 experts are not to be divided by 1, 2 and 1"},
        {{1, 1, 3}, 1, DIM, false, "5 batch rows, 3 tokens in each and 5 experts are not to be divided by 3, 1 and 3"},
        {{INT64_MAX, 2, 2}, 1, DIM, false, "mesh"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_moe_config config = block();
        OWNED_BY(case_end) quad_case c;
        add_block(&c);
        config.moe.emb_dim = table[i].dim;
        config.moe.fused_weights = table[i].fused;
        memcpy(config.sharding.mesh.size, table[i].mesh, sizeof table[i].mesh);
        config.sharding.token_chunks = table[i].chunks;
        assert_bad_input(&c.ctx, case_evaluate(&c, quad_moe, &config), table[i].message);
    }
}
