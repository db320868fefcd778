/* The block over a mesh against the block on one device: what keeps its bits, and the order of sums. That its numbers are right on every
 * kind of mesh, with losses and shards of H, is certified: the cases moe/mesh-*. */

#include "oracle/moe/tests/sharded_case.h"
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
    moe_case_run(ctx, c, whole);
    sharded_case_run(ctx, c, sharding, actual);
    assert_int_equal(actual->set.count, whole->set.count);
    sharded_case_assert_bits(actual, whole, "routing/selected_experts");
    sharded_case_assert_bits(actual, whole, "routing/weights");
    sharded_case_assert_bits(actual, whole, "routing/margin");
}

/* A token's rows go elsewhere and come back: y and dx keep their bits. */
TEST_WITH_CONTEXT(test_ragged_all_to_all)
{
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        OWNED_BY(moe_case_free) moe_case c = sharded_case(variant, BATCH);
        for (int mesh = 0; mesh < MESHES; mesh++) {
            const assay_sharding sharding = mesh_of(mesh);
            OWNED_BY(test_tensors_free) test_tensors whole, actual;
            run_both(&ctx, &c, &sharding, &whole, &actual);
            sharded_case_assert_bits(&actual, &whole, "outputs/y");
            sharded_case_assert_bits(&actual, &whole, "gradients/inputs/x");
            sharded_case_assert_gradients(&actual, &whole, ROUNDING);
            if (mesh == 0) moe_case_assert_same(&actual, &whole);
        }
    }
}

/* Tensor shards: a is (x wi of the first half of D) + (of the second), each a chain of its own. */
TEST_WITH_CONTEXT(test_tensor_shards_add)
{
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 1, 1, 1, 8, 3);
    assay_sharding sharding = sharded_case_mesh(1, 1, 1);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
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
}

/* y is (h of the first part of H times its rows of wo) + (of the second), each a chain of its own; then the bias, once. */
TEST_WITH_CONTEXT(test_hidden_shards_add)
{
    OWNED_BY(moe_case_free) moe_case c = moe_case_deepseek3(1, 1, 1, 1, 2, 6);
    assay_sharding sharding = sharded_case_mesh(1, 1, 1);
    OWNED_BY(test_tensors_free) test_tensors out = {0};
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
}
