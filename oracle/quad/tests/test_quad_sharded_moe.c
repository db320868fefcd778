/* The second form of the MoE block over a mesh and under the batch-split schedule, worked out by hand: every width
 * is 1. */
#include <math.h>
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/certify_internal.h"
#include "oracle/quad/tests/narrow_stack.h"

/* Four experts, of which e makes x^2 10^e of x; the weight is x. Token t is t + 1. */
static quad_moe_config small_block(quad_case *c, int64_t batch, int64_t sequence, const int32_t *chosen)
{
    const quad_moe_config config = {.moe = {.routing = {.batch = batch,
                                                        .sequence = sequence,
                                                        .num_experts = 4,
                                                        .num_experts_per_tok = 1,
                                                        .family = ASSAY_ROUTER_DEEPSEEK3,
                                                        .score_func = ASSAY_SCORE_NONE,
                                                        .n_routing_groups = -1,
                                                        .routed_scaling_factor = 1},
                                            .emb_dim = 1,
                                            .moe_mlp_dim = 1,
                                            .path = ASSAY_MOE_SPARSE,
                                            .activation = ASSAY_LINEAR},
                                    .sharding = {.mesh = {{1, 1, 2}}}};
    case_start(c, 1);
    case_values(c, "inputs/x", (double[]){1, 2, 3, 4, 5, 6}, DIMS(batch, sequence, 1));
    case_values(c, "weights/gate/kernel", (double[]){1, 1, 1, 1}, DIMS(1, 4));
    case_values(c, "weights/wi_0", (double[]){1, 1, 1, 1}, DIMS(4, 1, 1));
    case_values(c, "weights/wi_1", (double[]){1, 1, 1, 1}, DIMS(4, 1, 1));
    case_values(c, "weights/wo", (double[]){1, 10, 100, 1000}, DIMS(4, 1, 1));
    case_indices(c, "routing/selected_experts", chosen, DIMS(batch, sequence, 1));
    return config;
}

static const int32_t chosen[] = {3, 0, 2, 2, 3, 2};
static const double whole_y[] = {1000, 8, 2700, 6400, 125000, 21600};

#define INDICES(path, ...)                                                                                             \
    assert_indices(&c, path, sizeof((int32_t[]){__VA_ARGS__}) / sizeof(int32_t), (int32_t[]){__VA_ARGS__})
#define VALUES(path, ...)                                                                                              \
    assert_result(&c, path, sizeof((double[]){__VA_ARGS__}) / sizeof(double), (double[]){__VA_ARGS__}, 0)

static void evaluate(quad_case *c, const quad_moe_config *config)
{
    quad_tensors_free(&c->out);
    assert_ok(&c->ctx, case_evaluate(c, quad_moe, config));
}

static assay_shape shape_of(const quad_case *c, const char *path)
{
    const quad_tensor *tensor = quad_tensors_find(&c->out, path);
    assert_non_null(tensor);
    return tensor->shape;
}

#define assert_shape(c, path, ...)                                                                                     \
    do {                                                                                                               \
        const assay_shape expected_shape = DIMS(__VA_ARGS__), shape = shape_of(c, path);                               \
        assert_true(assay_shape_equal(&shape, &expected_shape));                                                       \
    } while (0)

/* Experts 0 and 1 are on the first shard, 2 and 3 on the second. */
TEST(test_ragged_all_to_all)
{
    quad_case c;
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.moe.routing.routed_bias_update_rate = 3;
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700, 6400, 125000, 21600);
    INDICES("routing/group_sizes", 1, 0, 1, 1, 0, 0, 2, 1);
    INDICES("routing/sorted_selected_experts", 1, 2, 0, 0, 2, 1);
    INDICES("routing/local_group_sizes", 1, 0, 3, 2);
    INDICES("routing/expert_shard_id", 0, 1);
    INDICES("routing/reshaped_group_sizes", 1, 2, 0, 3);
    INDICES("routing/all_shards_group_sizes", 1, 2, 0, 3, 1, 2, 0, 3);
    /* the second shard gets tokens 2 and 0, then 3, 5 and 4 */
    INDICES("routing/local_sorted_indices", 0, 1, 2, 3, 4, 5, 0, 2, 3, 1, 4, 5);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 0, 0, 0, 3, 4, 6, 1, 5, 0);
    VALUES("checkpoints/moe_mlpwo", 4, 0, 0, 0, 0, 0, 900, 1600, 3600, 1000, 25000, 0);
    VALUES("outputs/bias_updates", -3, 3, -3, -3, 3, 3, -3, -3);
    assert_shape(&c, "routing/local_sorted_indices", 2, 6);
    assert_shape(&c, "routing/all_shards_group_sizes", 2, 2, 2);
    assert_shape(&c, "checkpoints/moe_mlpwo", 2, 6, 1);
    config.sharding.weight_before_wo = true;
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700, 6400, 125000, 21600);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 0, 0, 0, 3, 4, 6, 1, 5, 0);
    VALUES("checkpoints/moe_mlpwo", 8, 0, 0, 0, 0, 0, 2700, 6400, 21600, 1000, 125000, 0);
    case_end(&c);
}

TEST(test_dropped_copies)
{
    quad_case c;
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.sharding.ragged_buffer_factor = 1;
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700, 6400, 0, 0);
    INDICES("routing/all_shards_group_sizes", 1, 2, 0, 3, 1, 2, 0, 3);
    INDICES("routing/local_group_sizes", 1, 0, 2, 1);
    INDICES("routing/local_sorted_indices", 0, 1, 2, 0, 2, 1);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 3, 4, 1);
    config.sharding.ragged_buffer_factor = .5; /* one row; the buffer may end within a sender's rows */
    evaluate(&c, &config);
    VALUES("outputs/y", 0, 8, 2700, 0, 0, 0);
    INDICES("routing/local_sorted_indices", 0, 0);
    VALUES("checkpoints/moe_mlpwi_0", 2, 3);
    case_end(&c);
}

/* fused_moe_func: both shards sort all copies, and a shard's rows stay among them. */
TEST(test_rows_that_stay)
{
    quad_case c;
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.moe.path = ASSAY_MOE_FUSED;
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700, 6400, 125000, 21600);
    INDICES("routing/group_sizes", 1, 0, 3, 2, 1, 0, 3, 2);
    INDICES("routing/sorted_selected_experts", 1, 2, 3, 5, 0, 4, 1, 2, 3, 5, 0, 4);
    INDICES("routing/local_group_sizes", 1, 0, 3, 2);
    INDICES("routing/expert_shard_id", 0, 1);
    assert_null(quad_tensors_find(&c.out, "routing/local_sorted_indices"));
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 0, 0, 0, 0, 3, 4, 6, 1, 5);
    VALUES("checkpoints/moe_mlpwo", 4, 0, 0, 0, 0, 0, 0, 900, 1600, 3600, 1000, 25000);
    config.sharding.mesh.size[ASSAY_AXIS_DATA] = 2;
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700, 6400, 125000, 21600);
    INDICES("routing/group_sizes", 1, 0, 1, 1, 1, 0, 1, 1, 0, 0, 2, 1, 0, 0, 2, 1);
    INDICES("routing/sorted_selected_experts", 1, 2, 0, 1, 2, 0, 0, 2, 1, 0, 2, 1);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 0, 3, 1, 0, 0, 0, 4, 6, 5);
    case_end(&c);
}

TEST(test_same_tokens)
{
    quad_case c;
    const quad_moe_config config = small_block(&c, 1, 3, chosen);
    evaluate(&c, &config);
    VALUES("outputs/y", 1000, 8, 2700);
    INDICES("routing/group_sizes", 1, 0, 1, 1, 1, 0, 1, 1);
    INDICES("routing/sorted_selected_experts", 1, 2, 0, 1, 2, 0);
    INDICES("routing/local_group_sizes", 1, 0, 1, 1);
    INDICES("routing/reshaped_group_sizes", 1, 2, 1, 2);
    INDICES("routing/local_sorted_indices", 0, 1, 2, 1, 2, 0);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 3, 1, 0);
    assert_null(quad_tensors_find(&c.out, "routing/all_shards_group_sizes"));
    case_end(&c);
}

/* Both shards sort all six copies, the second with its own experts as 0 and 1. */
TEST(test_ring_of_experts)
{
    quad_case c;
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.sharding.ring_of_experts = true;
    config.moe.routing.routed_bias_update_rate = 3;
    evaluate(&c, &config);
    assert_result(&c, "outputs/y", 6, whole_y, 0);
    INDICES("routing/group_sizes", 1, 0, 3, 2, 3, 2, 1, 0);
    INDICES("routing/sorted_selected_experts", 1, 2, 3, 5, 0, 4, 2, 3, 5, 0, 4, 1);
    INDICES("routing/local_group_sizes", 1, 0, 3, 2);
    INDICES("routing/expert_shard_id", 0, 1);
    VALUES("checkpoints/moe_mlpwi_0", 2, 0, 0, 0, 0, 0, 3, 4, 6, 1, 5, 0);
    VALUES("outputs/bias_updates", 3, 3, -3, -3, 3, 3, -3, -3);
    assert_null(quad_tensors_find(&c.out, "routing/local_sorted_indices"));
    assert_null(quad_tensors_find(&c.out, "routing/reshaped_group_sizes"));
    assert_shape(&c, "routing/group_sizes", 2, 4);
    case_end(&c);
}

/* Tokens 0 and 3, then 1 and 4, then 2 and 5. */
TEST(test_token_chunks)
{
    quad_case c;
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.sharding.ring_of_experts = true;
    config.sharding.token_chunks = 3;
    config.moe.routing.routed_bias_update_rate = 3;
    evaluate(&c, &config);
    assert_result(&c, "outputs/y", 6, whole_y, 0);
    INDICES("routing/group_sizes", 0, 0, 1, 1, 1, 0, 0, 1, 0, 0, 2, 0, /* of the second: */ 1, 1, 0, 0, 0, 1, 1, 0, 2,
            0, 0, 0);
    INDICES("routing/sorted_selected_experts", 1, 0, 0, 1, 0, 1, /* of the second: */ 1, 0, 1, 0, 0, 1);
    INDICES("routing/local_group_sizes", 0, 0, 1, 0, 0, 0, 1, 1, 0, 1, 2, 0);
    VALUES("checkpoints/moe_mlpwi_0", 0, 0, 2, 0, 0, 0, 4, 1, 5, 0, 3, 6);
    assert_result(&c, "outputs/bias_updates", 8, (double[]){1, 3, -1, -1, 1, 3, -1, -1}, 1e-15);
    assert_shape(&c, "routing/group_sizes", 2, 3, 4);
    assert_shape(&c, "checkpoints/moe_mlpwi_0", 2, 3, 2, 1);
    case_end(&c);
}

/* Each shard's loss is that of a block of its own tokens. */
TEST(test_load_balance)
{
    quad_case c;
    case_start(&c, 3);
    quad_moe_config config = small_block(&c, 2, 3, chosen);
    config.moe.routing.load_balance_loss_weight = .5;
    quad_tensor *gate = &c.in.items[1];
    assert_string_equal(gate->path, "weights/gate/kernel");
    for (int e = 0; e < 4; e++) gate->values[e] = e - 1;
    evaluate(&c, &config);
    for (int shard = 0; shard < 2; shard++) {
        quad_case alone;
        quad_moe_config one = small_block(&alone, 1, 3, chosen + 3 * shard);
        for (int i = 0; i < 3; i++) alone.in.items[0].values[i] = 3 * shard + i + 1;
        for (int e = 0; e < 4; e++) alone.in.items[1].values[e] = e - 1;
        one.sharding = (assay_sharding){0};
        one.moe.routing.load_balance_loss_weight = .5;
        evaluate(&alone, &one);
        assert_true(result_at(&c, "outputs/lb_loss", shard) == result_at(&alone, "outputs/lb_loss", 0));
        case_end(&alone);
    }
    assert_true(fabs(result_at(&c, "outputs/lb_loss", 0) - result_at(&c, "outputs/lb_loss", 1)) > 1e-3);
    case_end(&c);
}

static quad_moe_config random_block(quad_case *c, int64_t batch)
{
    enum { S = 6, D = 3, H = 4, E = 12 };
    case_random(c, "inputs/x", 2, DIMS(batch, S, D));
    case_random(c, "weights/gate/kernel", 1, DIMS(D, E));
    case_random(c, "weights/wi_0", 1, DIMS(E, D, H));
    case_random(c, "weights/wi_1", 1, DIMS(E, D, H));
    case_random(c, "weights/wo", 1, DIMS(E, H, D));
    return (quad_moe_config){.moe = {.routing = {.batch = batch,
                                                 .sequence = S,
                                                 .num_experts = E,
                                                 .num_experts_per_tok = 5,
                                                 .family = ASSAY_ROUTER_DEEPSEEK3,
                                                 .score_func = ASSAY_SCORE_SIGMOID,
                                                 .n_routing_groups = -1,
                                                 .routed_scaling_factor = 2.5,
                                                 .load_balance_loss_weight = 1,
                                                 .routed_bias_update_rate = 1},
                                     .emb_dim = D,
                                     .moe_mlp_dim = H,
                                     .path = ASSAY_MOE_SPARSE,
                                     .activation = ASSAY_SILU}};
}

/* What shards sort and compute, together: [E] of copies, from [M,C,E] (gathered ones count once an expert axis) or from
 * [M,C,E/P]. */
static void assert_all_counted(const quad_case *c, const quad_moe_config *config, const int32_t *counts)
{
    const int64_t experts = 12, p = config->sharding.mesh.size[ASSAY_AXIS_EXPERT], local = experts / p;
    const int64_t axis = config->sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR], n = axis > 1 ? axis : 1;
    const quad_tensor *sorted = quad_tensors_find(&c->out, "routing/group_sizes");
    const quad_tensor *computed = quad_tensors_find(&c->out, "routing/local_group_sizes");
    const int64_t shards = sorted->shape.dims[0], parts = assay_shape_count(&sorted->shape) / experts / shards;
    const bool ring = config->sharding.ring_of_experts;
    for (int64_t e = 0; e < experts; e++) {
        int64_t sorts = 0, computes = 0;
        for (int64_t i = 0; i < shards * parts; i++) {
            if (i / parts % n > 0) continue; /* shards of the hidden dimension have the same */
            const int64_t shard = i / parts / n % p, rolled = ring ? (e - shard * local + experts) % experts : e;
            sorts += sorted->indices[i * experts + rolled];
            if (e / local == shard) computes += computed->indices[i * local + e % local];
        }
        const bool repeated = ring || config->moe.routing.batch == 1;
        assert_int_equal(sorts, counts[e] * (repeated ? p : 1));
        assert_int_equal(computes, counts[e]);
    }
}

/* Where nothing is dropped a mesh changes of y the order of sums alone (one device adds a token's copies in the order of experts,
 * shards in that of choices), and every copy is sorted and computed once. */
TEST(test_any_mesh)
{
    static const int64_t table[][7] = {
        /* data, fsdp, expert, batch, ring, chunks, mlp_tensor */
        {1, 1, 2, 2, 0, 1},  {2, 1, 1, 2, 0, 1},    {1, 2, 3, 6, 0, 1},    {2, 2, 2, 8, 0, 1},
        {1, 1, 12, 1, 0, 1}, {1, 1, 4, 1, 0, 1},    {1, 1, 2, 2, 1, 1},    {2, 1, 3, 6, 1, 2},
        {1, 1, 1, 3, 1, 6},  {2, 1, 3, 6, 1, 2, 2}, {1, 2, 3, 6, 0, 1, 2},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const int64_t *row = table[i];
        quad_case alone, c;
        case_start(&alone, i);
        case_start(&c, i);
        const quad_moe_config one = random_block(&alone, row[3]);
        quad_moe_config config = random_block(&c, row[3]);
        config.sharding = (assay_sharding){
            .mesh = {{row[0], row[1], row[2], row[6]}}, .ring_of_experts = row[4] == 1, .token_chunks = row[5]};
        evaluate(&alone, &one);
        evaluate(&c, &config);
        const quad_tensor *y = quad_tensors_find(&c.out, "outputs/y"),
                          *expected = quad_tensors_find(&alone.out, y->path);
        const int64_t count = assay_shape_count(&y->shape);
        const quad allowed = 0x1p-108Q * quad_largest(count, expected->values);
        for (int64_t k = 0; k < count; k++) assert_true(fabsq(y->values[k] - expected->values[k]) <= allowed);
        assert_all_counted(&c, &config, quad_tensors_find(&alone.out, "routing/group_sizes")->indices);
        case_end(&alone);
        case_end(&c);
    }
}

/* Whatever the norm gets, of rows of a stack with all widths 1, it leaves the sign: attention adds 5 times it, each
 * checkpoint of the experts is it, and expert e gives 12 or 20. */
static assay_stack_config small_schedule(quad_case *c)
{
    case_start(c, 1);
    case_values(c, "inputs/x", (double[]){2, -2, -2, 2}, DIMS(4, 1, 1));
    case_indices(c, "inputs/positions", (int32_t[]){0, 0, 0, 0}, DIMS(4, 1));
    case_indices(c, "routing/selected_experts", (int32_t[]){1, 0, 1, 1}, DIMS(4, 1, 1));
    narrow_moe(c, "");
    assay_stack_config config = narrow_stack(4, 1, 0);
    config.moe.routing.renormalize_exactly = true;
    config.sharding = (assay_sharding){.mesh = {{1, 1, 2}}, .tensor_shards = 1, .token_chunks = 1};
    config.batch_split_factor = 2;
    return config;
}

/* Rows 0 and 1 are the first shard's, 2 and 3 the second's; microbatches are rows 0 and 2, then 1 and 3. */
TEST(test_batch_split)
{
    quad_case c;
    assay_stack_config config = small_schedule(&c);
    assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
    assert_result(&c, "outputs/y", 4, (double[]){7 + 50, -7 + 30, -7 + 50, 7 + 50}, 1e-15);
    INDICES("routing/selected_experts", 1, 0, 1, 1);
    INDICES("routing/group_sizes", 0, 1, 2, 1);
    assert_shape(&c, "routing/group_sizes", 2, 2, 1);
    VALUES("checkpoints/decoder_layer_input", 2, -2, -2, 2);
    VALUES("checkpoints/mla_out", 7, -7, -7, 7);
    VALUES("checkpoints/attention_out", 40, -40, -40, 40);
    VALUES("checkpoints/moe_mlpwi_0", 0, 0, -1, 0, 1, -1, 1, 0);
    VALUES("checkpoints/moe_mlpwi_1", 0, 0, -4, 0, 4, -4, 4, 0);
    assert_shape(&c, "checkpoints/moe_mlpwi_0", 2, 2, 2, 1);
    /* on one device again rows 0 and 2, then 1 and 3: not halves */
    config.sharding.mesh = (assay_mesh){{1, 1, 1}};
    quad_tensors_free(&c.out);
    assert_ok(&c.ctx, case_evaluate(&c, quad_stack, &config));
    INDICES("routing/group_sizes", 0, 2, 1, 1);
    VALUES("checkpoints/moe_mlpwi_0", 1, -1, -1, 1);
    case_end(&c);
}

TEST(test_refusals)
{
    static const struct {
        int64_t batch, mesh[3], chunks;
        const char *message;
    } table[] = {
        {2, {2, 1, 2}, 1, "2 batch rows, 3 tokens in each and 4 experts are not to be divided by 4, 1 and 2"},
        {2, {1, 1, 1}, 2, "2 batch rows, 3 tokens in each and 4 experts are not to be divided by 1, 2 and 1"},
        {3, {1, 1, 3}, 1, "3 batch rows, 2 tokens in each and 4 experts are not to be divided by 3, 1 and 3"},
        {2, {INT64_MAX, 2, 2}, 1, "mesh"},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        quad_case c;
        quad_moe_config config = small_block(&c, table[i].batch, 6 / table[i].batch, chosen);
        memcpy(config.sharding.mesh.size, table[i].mesh, sizeof table[i].mesh);
        config.sharding.token_chunks = table[i].chunks;
        assert_int_equal(case_evaluate(&c, quad_moe, &config), ASSAY_BAD_INPUT);
        if (strstr(c.ctx.message, table[i].message) == NULL) fail_msg("%d: %s", (int)i, c.ctx.message);
        case_end(&c);
    }
}

/* form 0 to 2: a block; 3: a layer under the schedule */
TEST(test_every_allocation_may_fail)
{
    for (int form = 0; form < 4; form++) {
        quad_case c;
        quad_moe_config block = {0};
        assay_stack_config schedule = {0};
        if (form < 3) block = small_block(&c, form == 2 ? 1 : 2, 3, chosen);
        if (form == 3) schedule = small_schedule(&c);
        block.sharding.ring_of_experts = form == 1;
        block.moe.routing.load_balance_loss_weight = block.moe.routing.routed_bias_update_rate = 1;
        for (int64_t n = 0;; n++) {
            assay_fail_allocation(n);
            const assay_status status =
                form == 3 ? case_differentiate(&c, quad_stack, &schedule) : case_differentiate(&c, quad_moe, &block);
            if (had_memory(&c.ctx, status)) {
                assert_true(n > 20);
                break;
            }
        }
        case_end(&c);
    }
}
