/* fused_moe_func over a mesh: every shard of an expert axis routes the same tokens and adds what its experts make of them. */
#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/tests/sharded_case.h"
#include "tests/support/assay_test.h"

enum { BATCH = 8 };

/* Sums over few terms in another order. */
#define ROUNDING 1e-14

static const int64_t meshes[][4] = {{1, 1, 1, 2}, {2, 1, 1, 1}, {1, 4, 1, 1}, {1, 1, 2, 1}, {1, 1, 8, 1},
                                    {2, 1, 4, 1}, {2, 2, 2, 1}, {2, 1, 1, 3}, {8, 1, 8, 1}, {1, 8, 1, 6}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static assay_sharding mesh_of(int mesh)
{
    assay_sharding sharding = sharded_case_mesh(meshes[mesh][0], meshes[mesh][1], meshes[mesh][2]);
    sharding.mesh.size[ASSAY_AXIS_MLP_TENSOR] = meshes[mesh][3];
    return sharding;
}

TEST(test_sharded_is_whole)
{
    static const char *const compared[] = {"outputs/*",       "gradients/*",    "routing/selected_experts",
                                           "routing/weights", "routing/margin", NULL};
    assay_context ctx = assay_context_default(1);
    moe_case c = sharded_case_wide(SHARDED_CASE_FUSED, BATCH);
    for (int mesh = 0; mesh < MESHES; mesh++) {
        const assay_sharding sharding = mesh_of(mesh);
        test_tensors whole = {.wanted = compared}, actual = {.wanted = compared};
        moe_case_run(&ctx, &c, &whole, NULL, 0);
        sharded_case_run(&ctx, &c, &sharding, &actual);
        assert_int_equal(actual.set.count, whole.set.count);
        sharded_case_assert_bits(&actual, &whole, "routing/selected_experts");
        sharded_case_assert_bits(&actual, &whole, "routing/weights");
        moe_case_assert_close(&actual, &whole, "outputs/y", ROUNDING);
        sharded_case_assert_gradients(&actual, &whole, ROUNDING);
        assay_tensor_set_free(&whole.set);
        assay_tensor_set_free(&actual.set);
    }
    moe_case_free(&c);
}

/* What a shard sorts is what one device sorts of its tokens, and its experts' rows lie at their place among them. */
TEST(test_rows_lie_where_they_are_sorted)
{
    assay_context ctx = assay_context_default(1);
    moe_case c = sharded_case_wide(SHARDED_CASE_FUSED, 2 * BATCH);
    for (int64_t data = 1; data <= 2; data++) {
        const assay_sharding sharding = sharded_case_mesh(data, 1, 4);
        const int64_t copies = 2 * BATCH / data * 6 * 3, width = 2 * c.config.moe_mlp_dim;
        test_tensors out = {0};
        sharded_case_run(&ctx, &c, &sharding, &out);
        for (int64_t shard = 0; shard < data * 4; shard++) {
            moe_case part = sharded_case_part(&c, shard / 4 * (2 * BATCH / data), 2 * BATCH / data, 0, 1);
            test_tensors one = {0};
            moe_case_run(&ctx, &part, &one, NULL, 0);
            const int32_t *sizes = moe_case_get(&one, "routing/group_sizes")->indices;
            const double *rows = moe_case_get(&one, "checkpoints/moe_mlpwi")->values;
            const double *own = moe_case_get(&out, "checkpoints/moe_mlpwi")->values + shard * copies * width;
            assert_memory_equal(moe_case_get(&out, "routing/group_sizes")->indices + shard * 8, sizes,
                                8 * sizeof *sizes);
            assert_memory_equal(moe_case_get(&out, "routing/local_group_sizes")->indices + shard * 2,
                                sizes + shard % 4 * 2, 2 * sizeof *sizes);
            assert_memory_equal(moe_case_get(&out, "routing/sorted_selected_experts")->indices + shard * copies,
                                moe_case_get(&one, "routing/sorted_selected_experts")->indices,
                                (size_t)copies * sizeof *sizes);
            int64_t row = 0;
            for (int64_t e = 0; e < 8; e++) {
                for (int32_t i = 0; i < sizes[e]; i++, row++) {
                    for (int64_t j = 0; j < width; j++)
                        assert_true(own[row * width + j] == (e / 2 == shard % 4 ? rows[row * width + j] : 0));
                }
            }
            assert_int_equal(row, copies);
            assay_tensor_set_free(&one.set);
            moe_case_free(&part);
        }
        assay_tensor_set_free(&out.set);
    }
    moe_case_free(&c);
}
