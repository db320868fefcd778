/* The block over a mesh against the block on one device. */
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/tests/sharded_case.h"
#include "oracle/ops/glu.h"
#include "tests/support/assay_test.h"

static const char *const compared[] = {"outputs/*",       "gradients/*",    "routing/selected_experts",
                                       "routing/weights", "routing/margin", NULL};

/* Sums over few terms in another order. */
#define ROUNDING 1e-14

static const int64_t meshes[][3] = {{1, 1, 1}, {2, 1, 1}, {1, 4, 1}, {1, 1, 2}, {1, 1, 4},
                                    {1, 1, 8}, {2, 1, 2}, {1, 2, 4}, {2, 2, 2}, {2, 1, 4}};
enum { MESHES = sizeof meshes / sizeof *meshes, BATCH = 8 };

static assay_sharding mesh_of(int mesh)
{
    return sharded_case_mesh(meshes[mesh][0], meshes[mesh][1], meshes[mesh][2]);
}

/* One device's results in `whole`, the mesh's in `actual`. */
static void run_both(assay_context *ctx, moe_case *c, const assay_sharding *sharding, test_tensors *whole,
                     test_tensors *actual)
{
    *whole = *actual = (test_tensors){.wanted = compared};
    moe_case_run(ctx, c, whole, NULL, 0);
    sharded_case_run(ctx, c, sharding, actual);
    assert_int_equal(actual->set.count, whole->set.count);
    sharded_case_assert_bits(actual, whole, "routing/selected_experts");
    sharded_case_assert_bits(actual, whole, "routing/weights");
    sharded_case_assert_bits(actual, whole, "routing/margin");
}

/* A token's rows go elsewhere and come back: y and dx keep their bits. */
TEST(test_ragged_all_to_all)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case(variant, BATCH);
        for (int mesh = 0; mesh < MESHES; mesh++) {
            const assay_sharding sharding = mesh_of(mesh);
            test_tensors whole, actual;
            run_both(&ctx, &c, &sharding, &whole, &actual);
            sharded_case_assert_bits(&actual, &whole, "outputs/y");
            sharded_case_assert_bits(&actual, &whole, "gradients/inputs/x");
            sharded_case_assert_gradients(&actual, &whole, ROUNDING);
            if (mesh == 0) moe_case_assert_same(&actual, &whole);
            assay_tensor_set_free(&whole.set);
            assay_tensor_set_free(&actual.set);
        }
        moe_case_free(&c);
    }
}

/* The ring adds partial sums of the shards, in another order where P > 1. */
TEST(test_ring_of_experts)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case(variant, BATCH);
        for (int mesh = 0; mesh < MESHES; mesh++) {
            assay_sharding sharding = mesh_of(mesh);
            sharding.ring_of_experts = true;
            test_tensors whole, actual;
            run_both(&ctx, &c, &sharding, &whole, &actual);
            moe_case_assert_close(&actual, &whole, "outputs/y", ROUNDING);
            sharded_case_assert_gradients(&actual, &whole, ROUNDING);
            if (sharding.mesh.size[ASSAY_AXIS_EXPERT] == 1 || variant == SHARDED_CASE_LLAMA4)
                sharded_case_assert_bits(&actual, &whole, "outputs/y");
            if (mesh == 0) moe_case_assert_same(&actual, &whole);
            assay_tensor_set_free(&whole.set);
            assay_tensor_set_free(&actual.set);
        }
        moe_case_free(&c);
    }
}

/* A batch of one: every shard has all tokens and computes those of its experts. */
TEST(test_batch_of_one)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case(variant, 1);
        for (int64_t shards = 1; shards <= 8; shards *= 2) {
            assay_sharding sharding = sharded_case_mesh(1, 1, shards);
            for (int before_wo = 0; before_wo < (variant == SHARDED_CASE_LLAMA4 ? 1 : 2); before_wo++) {
                test_tensors whole, actual;
                sharding.weight_before_wo = before_wo;
                run_both(&ctx, &c, &sharding, &whole, &actual);
                if (!before_wo) sharded_case_assert_bits(&actual, &whole, "outputs/y");
                moe_case_assert_close(&actual, &whole, "outputs/y", ROUNDING);
                sharded_case_assert_gradients(&actual, &whole, ROUNDING);
                if (shards == 1 && !before_wo) moe_case_assert_same(&actual, &whole);
                assay_tensor_set_free(&whole.set);
                assay_tensor_set_free(&actual.set);
            }
        }
        moe_case_free(&c);
    }
}

/* Chunks of the embedding continue one chain; tensor shards add sums of their own. */
TEST(test_chunks_and_tensor_shards)
{
    static const struct {
        int64_t emb, tokens, tensor;
    } forms[] = {{1, 1, 1}, {3, 1, 1}, {12, 1, 1}, {0, 2, 1}, {4, 3, 1}, {0, 1, 2}, {3, 2, 4}};
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case(variant, BATCH);
        for (int mesh = 0; mesh < MESHES; mesh += 3) {
            test_tensors ring = {.wanted = compared};
            assay_sharding sharding = mesh_of(mesh);
            sharding.ring_of_experts = true;
            sharded_case_run(&ctx, &c, &sharding, &ring);
            for (size_t form = 0; form < sizeof forms / sizeof *forms; form++) {
                test_tensors whole, actual;
                sharding.emb_chunks = forms[form].emb;
                sharding.token_chunks = forms[form].tokens;
                sharding.tensor_shards = forms[form].tensor;
                run_both(&ctx, &c, &sharding, &whole, &actual);
                moe_case_assert_close(&actual, &whole, "outputs/y", ROUNDING);
                sharded_case_assert_gradients(&actual, &whole, ROUNDING);
                if (forms[form].tensor == 1) {
                    sharded_case_assert_bits(&actual, &ring, "outputs/y");
                    sharded_case_assert_bits(&actual, &ring, "gradients/inputs/x");
                    if (forms[form].tokens == 1) moe_case_assert_same(&actual, &ring);
                }
                assay_tensor_set_free(&whole.set);
                assay_tensor_set_free(&actual.set);
            }
            assay_tensor_set_free(&ring.set);
        }
        moe_case_free(&c);
    }
}

/* Tensor shards: a is (x wi of the first half of D) + (of the second), each a chain of its own. */
TEST(test_tensor_shards_add)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = moe_case_deepseek3(1, 1, 1, 1, 8, 3);
    assay_sharding sharding = sharded_case_mesh(1, 1, 1);
    test_tensors out = {0};
    double expected[3];
    sharding.tensor_shards = 2;
    moe_case_fill(&c, false);
    sharded_case_run(&ctx, &c, &sharding, &out);
    const double *x = moe_case_get(&c.in, "inputs/x")->values, *wi = moe_case_get(&c.in, "weights/wi_0")->values;
    for (int h = 0; h < 3; h++) {
        double half[2] = {0, 0};
        for (int d = 0; d < 8; d++) half[d / 4] = fma(x[d], wi[d * 3 + h], half[d / 4]);
        expected[h] = half[0] + half[1];
    }
    assert_same_bits(moe_case_get(&out, "checkpoints/moe_mlpwi_0")->values, expected, 3);
    assay_tensor_set_free(&out.set);
    moe_case_free(&c);
}

/* The part of every checkpoint that each shard of H has, from a run without them: its columns of each half. */
static void assert_parts(const test_tensors *parts, const test_tensors *whole, const char *path, int64_t shards,
                         int64_t rows, int64_t halves, int64_t n)
{
    const assay_tensor *actual = moe_case_get(parts, path), *expected = moe_case_get(whole, path);
    const int64_t half = expected->count / shards / rows / halves, share = half / n;
    assert_int_equal(actual->count, expected->count);
    for (int64_t i = 0; i < actual->count; i++) {
        const int64_t shard = i / (rows * halves * share), row = i / share % (rows * halves);
        const int64_t from = (shard / n * rows * halves + row) * half + shard % n * share + i % share;
        assert_same_bits(&actual->values[i], &expected->values[from], 1);
    }
}

/* Shards of H leave a and b alone but that each has its columns, and add up to y and dx. */
TEST(test_hidden_shards)
{
    static const int64_t parts[] = {2, 3, 6};
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case_wide(variant, BATCH);
        const bool fused = c.config.fused_weights;
        for (int i = 0; i < 9; i++) {
            assay_sharding sharding = mesh_of(i);
            test_tensors one = {0}, actual = {0};
            sharding.ring_of_experts = i % 2;
            sharded_case_run(&ctx, &c, &sharding, &one);
            const assay_shard_sizes s = assay_shard_sizes_of(&c.config, &sharding);
            sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = parts[i % 3];
            sharded_case_run(&ctx, &c, &sharding, &actual);
            assert_int_equal(actual.set.count, one.set.count);
            moe_case_assert_close(&actual, &one, "outputs/y", ROUNDING);
            sharded_case_assert_gradients(&actual, &one, ROUNDING);
            sharded_case_assert_bits(&actual, &one, "routing/selected_experts");
            assert_int_equal(moe_case_get(&actual, "routing/group_sizes")->count, s.shards * parts[i % 3] * 8);
            assert_parts(&actual, &one, fused ? "checkpoints/moe_mlpwi" : "checkpoints/moe_mlpwi_0", s.shards,
                         s.chunks * s.buffer, fused ? 2 : 1, parts[i % 3]);
            assay_tensor_set_free(&one.set);
            assay_tensor_set_free(&actual.set);
        }
        moe_case_free(&c);
    }
}

/* y is (h of the first part of H times its rows of wo) + (of the second), each a chain of its own; then the bias, once. */
TEST(test_hidden_shards_add)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = moe_case_deepseek3(1, 1, 1, 1, 2, 6);
    assay_sharding sharding = sharded_case_mesh(1, 1, 1);
    test_tensors out = {0};
    sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 2;
    c.expert_bias = true;
    moe_case_fill(&c, false);
    sharded_case_run(&ctx, &c, &sharding, &out);
    const double *a = moe_case_get(&out, "checkpoints/moe_mlpwi_0")->values;
    const double *b = moe_case_get(&out, "checkpoints/moe_mlpwi_1")->values;
    const double *wo = moe_case_get(&c.in, "weights/wo")->values;
    const double *bias = moe_case_get(&c.in, "weights/wo_bias")->values;
    const assay_gated_mlp_config expert = assay_moe_expert_config(&c.config, 1);
    double hidden[6]; /* a shard has three of a, b and h */
    for (int d = 0; d < 2; d++) {
        double half[2] = {0, 0};
        assay_glu_forward(&ctx, hidden, a, b, 6, &expert);
        for (int h = 0; h < 6; h++) half[h / 3] = fma(hidden[h], wo[h * 2 + d], half[h / 3]);
        const double expected = half[0] + half[1] + bias[d];
        assert_same_bits(&moe_case_get(&out, "checkpoints/moe_mlpwo")->values[d], &expected, 1);
    }
    assay_tensor_set_free(&out.set);
    moe_case_free(&c);
}

/* Every shard of H has its token shard's loss, and its cotangent joins theirs. */
TEST(test_balance_of_hidden_shards)
{
    assay_context ctx = assay_context_default(1);
    for (int before = 0; before < 2; before++) {
        assay_sharding sharding = sharded_case_mesh(2, 1, 2);
        moe_case c = sharded_case_wide(6, BATCH), once = sharded_case_wide(6, BATCH);
        test_tensors actual = {.wanted = compared}, expected = {.wanted = compared};
        c.config.routing.load_balance_loss_weight = once.config.routing.load_balance_loss_weight = 0.5;
        double *d_loss = test_tensors_add(&c.in, "cotangents/lb_loss", 8);
        double *d_sum = test_tensors_add(&once.in, "cotangents/lb_loss", 4);
        for (int i = 0; i < 8; i++) d_loss[i] = 1 + 0.25 * i;
        for (int i = 0; i < 4; i++) d_sum[i] = d_loss[2 * i] + d_loss[2 * i + 1];
        sharding.ring_of_experts = before;
        sharded_case_run(&ctx, &once, &sharding, &expected);
        sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = 2;
        sharded_case_run(&ctx, &c, &sharding, &actual);
        sharded_case_assert_gradients(&actual, &expected, ROUNDING);
        for (int i = 0; i < 8; i++)
            assert_same_bits(&moe_case_get(&actual, "outputs/lb_loss")->values[i],
                             &moe_case_get(&expected, "outputs/lb_loss")->values[i / 2], 1);
        assay_tensor_set_free(&actual.set);
        assay_tensor_set_free(&expected.set);
        moe_case_free(&c);
        moe_case_free(&once);
    }
}

/* The routing weight on h, or on h wo + wo_bias: the same result. */
TEST(test_weight_before_wo)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        moe_case c = sharded_case(variant, BATCH);
        for (int mesh = 0; mesh < MESHES && variant != SHARDED_CASE_LLAMA4; mesh++) {
            for (int ring = 0; ring < 2; ring++) {
                assay_sharding sharding = mesh_of(mesh);
                test_tensors whole, actual;
                sharding.weight_before_wo = true;
                sharding.ring_of_experts = ring;
                run_both(&ctx, &c, &sharding, &whole, &actual);
                moe_case_assert_close(&actual, &whole, "outputs/y", ROUNDING);
                sharded_case_assert_gradients(&actual, &whole, ROUNDING);
                assay_tensor_set_free(&whole.set);
                assay_tensor_set_free(&actual.set);
            }
        }
        moe_case_free(&c);
    }
}

/* A run on the rows of the batch that a shard routes, by itself. */
static void run_part(assay_context *ctx, const moe_case *c, const int64_t place[4], const double *d_lb_loss,
                     test_tensors *out)
{
    moe_case part = sharded_case_part(c, place[0], place[1], place[2], place[3]);
    test_tensors_add(&part.in, "cotangents/lb_loss", 1)[0] = *d_lb_loss;
    *out = (test_tensors){.wanted = compared};
    moe_case_run(ctx, &part, out, NULL, 0);
    moe_case_free(&part);
}

/* Adds every gradient of a weight of `part` to `sums`. */
static void add_gradients(test_tensors *sums, const test_tensors *part)
{
    for (int i = 0; i < part->set.count; i++) {
        const assay_tensor *tensor = &part->set.items[i];
        if (strncmp(tensor->spec.path, "gradients/weights/", 18) != 0) continue;
        assay_tensor *sum = assay_tensor_set_find(&sums->set, tensor->spec.path);
        double *values = sum == NULL ? test_tensors_add(sums, tensor->spec.path, tensor->count) : sum->values;
        for (int64_t j = 0; j < tensor->count; j++)
            values[j] = sum == NULL ? tensor->values[j] : values[j] + tensor->values[j];
    }
}

static moe_case balanced_case(int variant, int64_t shards)
{
    moe_case c = sharded_case(variant, BATCH);
    c.config.routing.load_balance_loss_weight = 0.5;
    c.config.routing.routed_bias_update_rate = 0.25;
    double *d_lb_loss = test_tensors_add(&c.in, "cotangents/lb_loss", shards);
    for (int64_t shard = 0; shard < shards; shard++) d_lb_loss[shard] = 1 + 0.3 * (double)shard;
    return c;
}

/* Each shard's loss and updates are those of its own rows alone, and gradients of weights are sums over the shards. */
TEST(test_balance_of_each_shard)
{
    assay_context ctx = assay_context_default(1);
    for (int mesh = 0; mesh < MESHES; mesh++) {
        const assay_sharding sharding = mesh_of(mesh);
        const int64_t shards = assay_mesh_shards(&sharding.mesh), rows = BATCH / shards;
        moe_case c = balanced_case(mesh % 2 == 0 ? 0 : 6, shards);
        test_tensors actual = {.wanted = compared}, sums = {0};
        sharded_case_run(&ctx, &c, &sharding, &actual);
        assert_int_equal(moe_case_get(&actual, "outputs/lb_loss")->count, shards);
        assert_int_equal(moe_case_get(&actual, "outputs/bias_updates")->count, shards * 8);
        for (int64_t shard = 0; shard < shards; shard++) {
            test_tensors part;
            const int64_t place[] = {shard * rows, rows, 0, 1}, tokens = rows * 6;
            run_part(&ctx, &c, place, &moe_case_get(&c.in, "cotangents/lb_loss")->values[shard], &part);
            assert_same_bits(&moe_case_get(&actual, "outputs/lb_loss")->values[shard],
                             moe_case_get(&part, "outputs/lb_loss")->values, 1);
            assert_same_bits(moe_case_get(&actual, "outputs/bias_updates")->values + shard * 8,
                             moe_case_get(&part, "outputs/bias_updates")->values, 8);
            assert_same_bits(moe_case_get(&actual, "outputs/y")->values + shard * tokens * 12,
                             moe_case_get(&part, "outputs/y")->values, tokens * 12);
            assert_same_bits(moe_case_get(&actual, "gradients/inputs/x")->values + shard * tokens * 12,
                             moe_case_get(&part, "gradients/inputs/x")->values, tokens * 12);
            add_gradients(&sums, &part);
            assay_tensor_set_free(&part.set);
        }
        sharded_case_assert_gradients(&actual, &sums, ROUNDING);
        /* Without an expert axis the very sums. */
        if (sharding.mesh.size[ASSAY_AXIS_EXPERT] == 1) moe_case_assert_same(&actual, &sums);
        assay_tensor_set_free(&actual.set);
        assay_tensor_set_free(&sums.set);
        moe_case_free(&c);
    }
}

/* With the ring a shard routes all rows of its expert axis, chunk by chunk; loss and updates are averages. */
TEST(test_balance_of_the_ring)
{
    enum { CHUNKS = 3 };
    assay_context ctx = assay_context_default(1);
    for (int mesh = 0; mesh < MESHES; mesh += 2) {
        assay_sharding sharding = mesh_of(mesh);
        sharding.ring_of_experts = true;
        sharding.token_chunks = CHUNKS;
        const int64_t shards = assay_mesh_shards(&sharding.mesh), peers = sharding.mesh.size[ASSAY_AXIS_EXPERT];
        const int64_t groups = shards / peers, rows = BATCH / groups;
        moe_case c = balanced_case(6, shards);
        const double *d_lb_loss = moe_case_get(&c.in, "cotangents/lb_loss")->values;
        test_tensors actual = {.wanted = compared}, sums = {0};
        sharded_case_run(&ctx, &c, &sharding, &actual);
        for (int64_t group = 0; group < groups; group++) {
            double loss = 0, updates[8] = {0}, d_loss = 0;
            for (int64_t i = 0; i < peers; i++) d_loss += d_lb_loss[group * peers + i] / CHUNKS;
            for (int64_t chunk = 0; chunk < CHUNKS; chunk++) {
                test_tensors part;
                const int64_t place[] = {group * rows, rows, chunk, CHUNKS};
                run_part(&ctx, &c, place, &d_loss, &part);
                loss += moe_case_get(&part, "outputs/lb_loss")->values[0];
                for (int e = 0; e < 8; e++) updates[e] += moe_case_get(&part, "outputs/bias_updates")->values[e];
                add_gradients(&sums, &part);
                assay_tensor_set_free(&part.set);
            }
            loss /= CHUNKS;
            for (int e = 0; e < 8; e++) updates[e] /= CHUNKS;
            for (int64_t shard = group * peers; shard < (group + 1) * peers; shard++) {
                assert_same_bits(&moe_case_get(&actual, "outputs/lb_loss")->values[shard], &loss, 1);
                assert_same_bits(moe_case_get(&actual, "outputs/bias_updates")->values + shard * 8, updates, 8);
            }
        }
        sharded_case_assert_gradients(&actual, &sums, ROUNDING);
        assay_tensor_set_free(&actual.set);
        assay_tensor_set_free(&sums.set);
        moe_case_free(&c);
    }
}
