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
    const assay_context ctx = assay_context_default(2);
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
                assay_all_gather(&ctx, out, in, &local, dimension, mesh, (assay_mesh_axis)axis);
                assay_all_gather_i32(out_i, in_i, &local, dimension, mesh, (assay_mesh_axis)axis);
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
    static int32_t in_i[MOST], out_i[MOST];
    for (int m = 0; m < MESHES; m++) {
        for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) {
            const assay_context ctx = assay_context_default(1 + axis);
            const assay_mesh *mesh = &meshes[m];
            const int64_t shards = assay_mesh_shards(mesh);
            fill(in, shards * 7, 9);
            for (int64_t i = 0; i < shards * 7; i++) in[i] /= 3;
            for (int64_t i = 0; i < shards * 7; i++) in_i[i] = (int32_t)(i * i);
            assay_fill_nan(out, MOST);
            assay_psum(&ctx, out, in, 7, mesh, (assay_mesh_axis)axis);
            assay_psum_i32(out_i, in_i, 7, mesh, (assay_mesh_axis)axis);
            for (int64_t i = 0; i < shards * 7; i++) {
                double sum = 0;
                int32_t sum_i = 0;
                for (int64_t part = 0; part < assay_mesh_size(mesh, (assay_mesh_axis)axis); part++) {
                    const int64_t at = assay_mesh_peer(mesh, i / 7, (assay_mesh_axis)axis, part) * 7 + i % 7;
                    sum += in[at];
                    sum_i += in_i[at];
                }
                assert_true(out[i] == sum);
                assert_int_equal(out_i[i], sum_i);
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
                assay_all_gather(&ctx, gathered, x, &local, dimension, mesh, (assay_mesh_axis)axis);
                assay_psum_scatter(&ctx, scattered, y, &whole, dimension, mesh, (assay_mesh_axis)axis);
                assert_true(dot(gathered, y, count * parts) == dot(x, scattered, count));
            }
        }
    }
}

/* Three shards of five rows; 0 sends a row to everyone, also to itself; 1 sends one row twice; 2 gets nothing from 1.
 */
typedef struct ragged {
    int32_t input_offsets[9], send_sizes[9], output_offsets[9], recv_sizes[9];
} ragged;
static const ragged exchange = {
    {0, 1, 2, 3, 3, 0, 0, 2, 4},
    {1, 1, 1, 1, 1, 0, 2, 0, 1},
    {0, 0, 0, 1, 1, 0, 2, 0, 1},
    {1, 1, 2, 1, 1, 0, 1, 0, 1},
};
static const assay_mesh three = {{1, 1, 3}};
static const assay_ragged_dims dims = {5, 4, 2};

static assay_ragged_params params_of(ragged *r)
{
    return (assay_ragged_params){r->input_offsets, r->send_sizes, r->output_offsets, r->recv_sizes};
}

TEST_WITH_CONTEXT(rows_go_where_they_are_sent)
{
    /* row of `in` (shard * 5 + row) in each row of out, -1: kept */
    static const int expected[12] = {0, 8, 10, 11, 1, 8, -1, -1, 2, 14, -1, -1};
    ragged r = exchange;
    const assay_ragged_params params = params_of(&r);
    double in[30], out[24];
    fill(in, 30, 5);
    for (int i = 0; i < 24; i++) out[i] = -1.5;
    assert_ok(&ctx, assay_ragged_all_to_all(&ctx, out, in, &params, &dims, &three, ASSAY_AXIS_EXPERT));
    for (int i = 0; i < 24; i++) {
        assert_true(out[i] == (expected[i / 2] < 0 ? -1.5 : in[expected[i / 2] * 2 + i % 2]));
    }
}

/* <exchange(x, o), y> = <x, x'> + <o, o'>, exactly. */
TEST_WITH_CONTEXT(the_way_back_is_the_transpose)
{
    ragged r = exchange;
    const assay_ragged_params params = params_of(&r);
    double x[30], operand[24], out[24], y[24], dx[30], d_operand[24];
    fill(x, 30, 5);
    fill(operand, 24, 6);
    fill(y, 24, 7);
    assay_fill_nan(dx, 30);
    assay_fill_nan(d_operand, 24);
    memcpy(out, operand, sizeof out);
    assert_ok(&ctx, assay_ragged_all_to_all(&ctx, out, x, &params, &dims, &three, ASSAY_AXIS_EXPERT));
    assert_ok(&ctx,
              assay_ragged_all_to_all_transpose(&ctx, dx, d_operand, y, &params, &dims, &three, ASSAY_AXIS_EXPERT));
    assert_true(dot(out, y, 24) == dot(x, dx, 30) + dot(operand, d_operand, 24));
    assert_ok(&ctx, assay_ragged_all_to_all_transpose(&ctx, x, NULL, y, &params, &dims, &three, ASSAY_AXIS_EXPERT));
    assert_memory_equal(x, dx, sizeof x);
}

TEST(what_does_not_fit_is_refused)
{
    static const struct {
        size_t field; /* of the ragged struct, in rows of nine */
        int at;
        int32_t value;
        const char *message;
    } table[] = {
        {0, 1, 5, "shard 0 sends rows 5 to 5, expected within its 5"},
        {0, 0, -1, "shard 0 sends rows -1 to -1"},
        {1, 5, -2, "shard 1 sends -2 rows"},
        {2, 6, 3, "shard 2 sends 2 rows to row 3 of shard 0, expected within its 4"},
        {2, 8, -1, "shard 2 sends 1 rows to row -1"},
        {3, 2, 1, "shard 0 expects 1 rows from shard 2, which sends 2"},
    };
    double in[30] = {0}, out[24];
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_context ctx = assay_context_default(1);
        ragged r = exchange;
        ((int32_t *)&r)[table[i].field * 9 + (size_t)table[i].at] = table[i].value;
        const assay_ragged_params params = params_of(&r);
        assay_fill_nan(out, 24);
        assert_bad_input(&ctx, assay_ragged_all_to_all(&ctx, out, in, &params, &dims, &three, ASSAY_AXIS_EXPERT),
                         table[i].message);
        assert_true(isnan(out[0]));
        assert_int_equal(
            assay_ragged_all_to_all_transpose(&ctx, in, NULL, out, &params, &dims, &three, ASSAY_AXIS_EXPERT),
            ASSAY_BAD_INPUT);
    }
}
