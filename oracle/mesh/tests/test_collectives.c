/* Collectives against a naive reading of what jax.lax says, and against their transposes. */

#include "oracle/mesh/collectives.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { MOST = 4096 };

static const assay_mesh meshes[] = {{{1, 1, 1}}, {{1, 1, 4}}, {{2, 1, 1}}, {{1, 3, 2}}, {{2, 1, 2, 3}}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static void fill(double *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = (double)(int32_t)(seed >> 52) / 16 - 128;
    }
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* Every shard knows its place, and its peers know it. */
TEST(shards_have_places)
{
    const assay_mesh mesh = {{2, 3, 4}};
    assert_int_equal(assay_mesh_shards(&mesh), 24);
    assert_int_equal(assay_mesh_index(&mesh, 17, ASSAY_AXIS_DATA), 1);
    assert_int_equal(assay_mesh_index(&mesh, 17, ASSAY_AXIS_FSDP), 1);
    assert_int_equal(assay_mesh_index(&mesh, 17, ASSAY_AXIS_EXPERT), 1);
    assert_int_equal(assay_mesh_peer(&mesh, 17, ASSAY_AXIS_DATA, 0), 5);
    assert_int_equal(assay_mesh_peer(&mesh, 17, ASSAY_AXIS_FSDP, 2), 21);
    assert_int_equal(assay_mesh_peer(&mesh, 17, ASSAY_AXIS_EXPERT, 3), 19);
}

/* in [shards,2,3,5], gathered along each dimension. */
TEST(all_gather_puts_shards_side_by_side)
{
    const assay_shape local = assay_shape_of(3, (int64_t)2, (int64_t)3, (int64_t)5);
    static double in[MOST], out[MOST];
    static int32_t in_i[MOST], out_i[MOST];
    for (int m = 0; m < MESHES; m++) {
        for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) {
            for (int dimension = 0; dimension < 3; dimension++) {
                const assay_mesh *mesh = &meshes[m];
                const int64_t shards = assay_mesh_shards(mesh), parts = assay_mesh_size(mesh, (assay_mesh_axis)axis);
                int64_t whole[3] = {2, 3, 5};
                whole[dimension] *= parts;
                fill(in, shards * 30, 7);
                for (int64_t i = 0; i < shards * 30; i++) in_i[i] = (int32_t)i;
                assay_fill_nan(out, MOST);
                assay_all_gather(out, in, sizeof *in, &local, dimension, mesh, (assay_mesh_axis)axis);
                assay_all_gather(out_i, in_i, sizeof *in_i, &local, dimension, mesh, (assay_mesh_axis)axis);
                for (int64_t i = 0; i < shards * 30 * parts; i++) {
                    const int64_t shard = i / (30 * parts), at = i % (30 * parts);
                    int64_t index[3] = {at / (whole[1] * whole[2]), at / whole[2] % whole[1], at % whole[2]};
                    const int64_t part = index[dimension] / local.dims[dimension];
                    index[dimension] %= local.dims[dimension];
                    const int64_t from = assay_mesh_peer(mesh, shard, (assay_mesh_axis)axis, part) * 30 +
                                         (index[0] * 3 + index[1]) * 5 + index[2];
                    assert_true(out[i] == in[from]);
                    assert_int_equal(out_i[i], in_i[from]);
                }
            }
        }
    }
}

TEST(psum_adds_shards_in_order)
{
    static double in[MOST], out[MOST];
    for (int m = 0; m < MESHES; m++) {
        for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) {
            const assay_context ctx = assay_context_default(1 + axis);
            const assay_mesh *mesh = &meshes[m];
            const int64_t shards = assay_mesh_shards(mesh);
            fill(in, shards * 7, 9);
            for (int64_t i = 0; i < shards * 7; i++) in[i] /= 3;
            assay_fill_nan(out, MOST);
            assay_psum(&ctx, out, in, 7, mesh, (assay_mesh_axis)axis);
            for (int64_t i = 0; i < shards * 7; i++) {
                double sum = 0;
                for (int64_t part = 0; part < assay_mesh_size(mesh, (assay_mesh_axis)axis); part++) {
                    const int64_t at = assay_mesh_peer(mesh, i / 7, (assay_mesh_axis)axis, part) * 7 + i % 7;
                    sum += in[at];
                }
                assert_true(out[i] == sum);
            }
        }
    }
}

/* <all_gather(x), y> = <x, psum_scatter(y)>, exactly: the numbers are small multiples of 1/16. */
TEST(psum_scatter_is_the_transpose_of_all_gather)
{
    const assay_context ctx = assay_context_default(2);
    const assay_shape local = assay_shape_of(3, (int64_t)2, (int64_t)3, (int64_t)5);
    static double x[MOST], y[MOST], gathered[MOST], scattered[MOST];
    for (int m = 0; m < MESHES; m++) {
        for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) {
            for (int dimension = 0; dimension < 3; dimension++) {
                const assay_mesh *mesh = &meshes[m];
                const int64_t count = assay_mesh_shards(mesh) * 30,
                              parts = assay_mesh_size(mesh, (assay_mesh_axis)axis);
                assay_shape whole = local;
                whole.dims[dimension] *= parts;
                fill(x, count, 1);
                fill(y, count * parts, 2);
                assay_fill_nan(gathered, MOST);
                assay_fill_nan(scattered, MOST);
                assay_all_gather(gathered, x, sizeof *x, &local, dimension, mesh, (assay_mesh_axis)axis);
                assay_psum_scatter(&ctx, scattered, y, &whole, dimension, mesh, (assay_mesh_axis)axis);
                assert_true(dot(gathered, y, count * parts) == dot(x, scattered, count));
            }
        }
    }
}
