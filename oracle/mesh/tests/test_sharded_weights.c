/* Kernels as they lie on shards: where each number is, the same results as with whole ones, and what is refused. */
#include <stdio.h>
#include <string.h>

#include "oracle/mesh/sharded_weights.h"
#include "oracle/mesh/tests/sharded_case.h"
#include "tests/support/assay_test.h"

static const char *const kernels[] = {"wi", "wi_0", "wi_1", "wo"};
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

/* Numbers of whole kernels [E,D,2H], [E,D,H] or [E,H,D], shard by shard, expert by expert, row by row. */
static void put_on_shards(int mesh, const char *name, const double *whole, double *on_shards)
{
    const int64_t fsdp = meshes[mesh].fsdp, transpose = meshes[mesh].transpose, expert = meshes[mesh].expert;
    const int64_t hidden = meshes[mesh].hidden, h_parts = transpose * hidden;
    const bool exp = meshes[mesh].exp_on_fsdp, down = strcmp(name, "wo") == 0;
    const int64_t halves = strcmp(name, "wi") == 0 ? 2 : 1;
    const int64_t experts = E / expert / (exp ? fsdp : 1), dims = exp ? D : D / fsdp, widths = H / h_parts;
    for (int64_t f = 0; f < fsdp; f++) {
        for (int64_t t = 0; t < transpose; t++) {
            for (int64_t p = 0; p < expert * hidden; p++) {
                const int64_t h_first = (t * hidden + p % hidden) * widths, d_first = exp ? 0 : f * dims;
                const int64_t e_first = exp ? (p / hidden * fsdp + f) * experts : p / hidden * experts;
                for (int64_t i = 0; i < experts * dims * halves * widths; i++) {
                    int64_t e, d, h, half = 0;
                    if (down) {
                        d = i % dims, h = i / dims % widths, e = i / dims / widths;
                        *on_shards++ = whole[((e_first + e) * H + h_first + h) * D + d_first + d];
                        continue;
                    }
                    h = i % widths, half = i / widths % halves, d = i / widths / halves % dims;
                    e = i / widths / halves / dims;
                    *on_shards++ = whole[(((e_first + e) * D + d_first + d) * halves + half) * H + h_first + h];
                }
            }
        }
    }
}

/* The case's kernels, moved; or gradients of the whole ones, to compare with. */
static void move(test_tensors *tensors, const char *folder, int mesh)
{
    for (int i = 0; i < 4; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "%s%s", folder, kernels[i]);
        assay_tensor *tensor = assay_tensor_set_find(&tensors->set, path);
        double moved[E * D * 2 * H];
        if (tensor == NULL) continue;
        put_on_shards(mesh, kernels[i], tensor->values, moved);
        memcpy(tensor->values, moved, (size_t)tensor->count * sizeof *moved);
    }
}

TEST(the_same_bits_as_whole_kernels)
{
    assay_context ctx = assay_context_default(1);
    for (int variant = 0; variant < SHARDED_CASES; variant++) {
        for (int mesh = 0; mesh < MESHES; mesh++) {
            moe_case c = sharded_case_wide(variant, 24);
            assay_sharding sharding = sharding_of(mesh);
            test_tensors whole = {0}, actual = {0};
            sharding.ring_of_experts = (variant + mesh) % 2;
            sharded_case_run(&ctx, &c, &sharding, &whole);
            move(&c.in, "weights/", mesh);
            move(&whole, "gradients/weights/", mesh);
            sharding.weights_on_shards = true;
            sharded_case_run(&ctx, &c, &sharding, &actual);
            moe_case_assert_same(&actual, &whole);
            assay_tensor_set_free(&whole.set);
            assay_tensor_set_free(&actual.set);
            moe_case_free(&c);
        }
    }
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
        assert_int_equal(assay_sharded_moe_check(&ctx, &c.config, &s), ASSAY_BAD_INPUT);
        if (strstr(ctx.message, rows[i].message) == NULL) fail_msg("%s", ctx.message);
    }
}
