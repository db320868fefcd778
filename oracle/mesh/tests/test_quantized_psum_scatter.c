/* A sum over shards whose gradient is quantised: against the plain collectives, and against one shard that has all rows. */
#include "oracle/mesh/quantized_psum_scatter.h"

#include <math.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/mesh/collectives.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { ROWS = 5, COLUMNS = 7, MOST = 2048 };

static const assay_mesh meshes[] = {{{1, 1, 1}}, {{1, 1, 2}}, {{1, 1, 4}}, {{2, 1, 3}}, {{2, 2, 2}}};
enum { MESHES = sizeof meshes / sizeof *meshes };
static const assay_psum_scatter_dims dims = {ROWS, COLUMNS};

/* Of bfloat16, of very different sizes from row to row; the first row of all is zero. */
static void fill(double *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = i < COLUMNS ? 0 : ldexp((double)(int8_t)(seed >> 56), (int)(i / COLUMNS % 40) - 20);
    }
}

static assay_recipe_config config_of(const char *recipe)
{
    assay_recipe_config config = {.recipe = recipe == NULL ? NULL : assay_quant_recipe_by_name(recipe),
                                  .type = ASSAY_BFLOAT16,
                                  .dy = {.factor = 1}};
    assert_true(recipe == NULL || config.recipe != NULL);
    return config;
}

static void backward(double *dx, const double *dy, const assay_mesh *mesh, int64_t rows, const char *recipe,
                     int threads)
{
    assay_context ctx = assay_context_default(threads);
    const assay_psum_scatter_dims of_shard = {rows, COLUMNS};
    const assay_recipe_config config = config_of(recipe);
    assay_fill_nan(dx, MOST);
    assert_ok(&ctx, assay_quantized_psum_scatter_backward(&ctx, dx, dy, &of_shard, mesh, ASSAY_AXIS_EXPERT, &config));
}

/* Forward quantises nothing, and without a recipe backward does not. */
TEST(without_a_recipe_it_is_the_plain_collective)
{
    static double x[MOST], y[MOST], plain[MOST];
    for (int m = 0; m < MESHES; m++) {
        const assay_context ctx = assay_context_default(2);
        const int64_t shards = assay_mesh_shards(&meshes[m]), parts = meshes[m].size[ASSAY_AXIS_EXPERT];
        const int64_t kept = shards * ROWS * COLUMNS;
        const assay_shape whole = assay_shape_of(2, parts * ROWS, (int64_t)COLUMNS),
                          part = assay_shape_of(2, (int64_t)ROWS, (int64_t)COLUMNS);
        fill(x, parts * kept, 5);
        assay_fill_nan(y, MOST);
        assay_quantized_psum_scatter_forward(&ctx, y, x, &dims, &meshes[m], ASSAY_AXIS_EXPERT);
        assay_psum_scatter(&ctx, plain, x, &whole, 0, &meshes[m], ASSAY_AXIS_EXPERT);
        assert_same_bits(y, plain, kept);
        backward(y, x, &meshes[m], ROWS, NULL, 2);
        assay_all_gather(&ctx, plain, x, &part, 0, &meshes[m], ASSAY_AXIS_EXPERT);
        assert_same_bits(y, plain, parts * kept);
    }
}

/* Scales are those of rows, so it is nothing to a row on which shard it is: with any number of threads. */
TEST(every_shard_gets_what_one_shard_makes_of_all_rows)
{
    static double dy[MOST], dx[MOST], one[MOST];
    static const assay_mesh alone = {{1, 1, 1}};
    for (int m = 0; m < MESHES; m++) {
        const int64_t parts = meshes[m].size[ASSAY_AXIS_EXPERT], rows = parts * ROWS, count = rows * COLUMNS;
        const int64_t shards = assay_mesh_shards(&meshes[m]);
        fill(dy, shards * ROWS * COLUMNS, 9);
        for (int threads = 1; threads <= 7; threads += threads == 1 ? 1 : 5) {
            backward(dx, dy, &meshes[m], ROWS, "fp8_full", threads);
            for (int64_t shard = 0; shard < shards; shard++) {
                backward(one, dy + shard / parts * count, &alone, rows, "fp8_full", 1);
                assert_same_bits(dx + shard * count, one, count);
            }
        }
    }
}

/* Two shards of one row: scales 1 and 2^-10, and halves of a step of e5m2 go to the even one. */
TEST(codes_are_multiplied_with_their_own_scales)
{
    static const assay_mesh two = {{1, 1, 2}};
    static const double rows[2][COLUMNS] = {{57344, 4.5, -5.5, 3, 0, 1.125, 1.375}, {56, 0x9p-11, -2, 0, 7, 6, 5}};
    static const double made[2][COLUMNS] = {{57344, 4, -6, 3, 0, 1, 1.5}, {56, 0x8p-11, -2, 0, 7, 6, 5}};
    double dx[MOST];
    backward(dx, rows[0], &two, 1, "fp8_full", 1);
    for (int shard = 0; shard < 2; shard++) assert_same_bits(dx + shard * 2 * COLUMNS, made[0], 2 * COLUMNS);
}

/* What a kernel does that has a bug gives something else, but on one shard, where nobody else's scales are. */
TEST(wrong_scales_are_seen)
{
    static const struct {
        const char *recipe;
        bool alone;
    } table[] = {{"fp8_full next_shard", false},
                 {"fp8_full receiver", false},
                 {"fp8_full ignored", true},
                 {"fp8_full e4m3", true},
                 {"fp8_full other_axis", true}};
    static double dy[MOST], right[MOST], wrong[MOST];
    for (int m = 0; m < MESHES; m++) {
        const int64_t shards = assay_mesh_shards(&meshes[m]), parts = meshes[m].size[ASSAY_AXIS_EXPERT];
        const int64_t count = shards * ROWS * COLUMNS;
        fill(dy, count, 13);
        backward(right, dy, &meshes[m], ROWS, "fp8_full", 1);
        for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
            backward(wrong, dy, &meshes[m], ROWS, table[i].recipe, 1);
            const bool same = memcmp(wrong, right, (size_t)(parts * count) * sizeof *right) == 0;
            assert_int_equal(same, parts == 1 && !table[i].alone);
        }
    }
}

TEST(reports_every_failed_allocation)
{
    static double dy[MOST], dx[MOST];
    const assay_recipe_config config = config_of("fp8_full");
    fill(dy, MOST, 1);
    for (int64_t n = 0;; n++) {
        assay_context ctx = assay_context_default(1);
        assay_fail_allocation(n);
        const assay_status status =
            assay_quantized_psum_scatter_backward(&ctx, dx, dy, &dims, &meshes[1], ASSAY_AXIS_EXPERT, &config);
        if (had_memory(&ctx, status)) break;
    }
}
