/* Kernels as they lie on shards: what each has, and what is refused. The same bits as with whole ones are the equivalence gathered-whole, and
 * harness/tests/test_certified.c has the numbers. */

#include "oracle/moe/sharded_weights.h"
#include "oracle/moe/tests/sharded_case.h"
#include "tests/support/assay_test.h"

static const int weights[] = {ASSAY_MLP_WI, ASSAY_MLP_WI_0, ASSAY_MLP_WI_1, ASSAY_MLP_WO};

static const struct {
    int64_t data, fsdp, transpose, expert, hidden;
    bool exp_on_fsdp;
} meshes[] = {{1, 2, 1, 1, 1, false}, {2, 2, 1, 2, 1, false}, {1, 2, 2, 1, 1, true}, {1, 1, 3, 2, 2, false},
              {1, 4, 1, 2, 1, true},  {1, 2, 1, 4, 3, true},  {1, 1, 1, 8, 1, false}};
enum { MESHES = sizeof meshes / sizeof *meshes, E = 8, D = 12, H = 6 };

static assay_sharding sharding_of(int mesh)
{
    assay_sharding s =
        sharded_case_mesh(meshes[mesh].data, meshes[mesh].fsdp * meshes[mesh].transpose, meshes[mesh].expert);
    s.mesh.size[ASSAY_AXIS_MLP_TENSOR] = meshes[mesh].hidden;
    s.fsdp_transpose = meshes[mesh].transpose;
    s.shard_exp_on_fsdp = meshes[mesh].exp_on_fsdp;
    return s;
}

/* What a shard has, and that shards have everything once. */
TEST(shapes)
{
    const moe_case c = moe_case_deepseek3(8, 6, E, 3, D, H);
    for (int mesh = 0; mesh < MESHES; mesh++) {
        const assay_sharding sharding = sharding_of(mesh);
        const int64_t shards = meshes[mesh].fsdp * meshes[mesh].transpose * meshes[mesh].expert * meshes[mesh].hidden;
        for (int i = 0; i < 4; i++) {
            const assay_kernel_layout l = assay_kernel_layout_of(&c.config, &sharding, weights[i]);
            assert_int_equal(l.shards, shards);
            assert_int_equal(l.shards * l.experts * l.rows * l.columns, E * D * H * (i == 0 ? 2 : 1));
        }
    }
    const assay_sharding two = sharding_of(5);
    const assay_kernel_layout wo = assay_kernel_layout_of(&c.config, &two, ASSAY_MLP_WO);
    assert_int_equal(wo.experts, 1);
    assert_int_equal(wo.rows, 2);
    assert_int_equal(wo.columns, 12);
}

TEST(refusals)
{
    const struct {
        int64_t mesh[4], transpose, experts;
        bool exp_on_fsdp;
        const char *message;
    } rows[] = {
        {{4, 1, 1, 1}, 1, 8, false, "weights_on_shards needs fsdp, fsdp_transpose, expert or mlp_tensor of 2 or more"},
        {{1, 8, 1, 1}, 1, 8, false, "emb_dim is 12, expected a multiple of mesh.fsdp, which is 8"},
        {{1, 4, 2, 1}, 1, 6, true, "num_experts is 6, expected a multiple of mesh.expert times mesh.fsdp"},
        {{1, 4, 1, 1},
         4,
         8,
         false,
         "moe_mlp_dim is 6, expected a multiple of mesh.fsdp_transpose times mesh.mlp_tensor, which is 4"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        const moe_case c = moe_case_deepseek3(8, 6, rows[i].experts, 3, D, H);
        assay_sharding s = sharded_case_mesh(rows[i].mesh[0], rows[i].mesh[1], rows[i].mesh[2]);
        s.fsdp_transpose = rows[i].transpose;
        s.shard_exp_on_fsdp = rows[i].exp_on_fsdp;
        assert_ok(&ctx, assay_sharded_moe_check(&ctx, &c.config, &s));
        s.weights_on_shards = true;
        assert_bad_input(&ctx, assay_sharded_moe_check(&ctx, &c.config, &s), rows[i].message);
    }
}
