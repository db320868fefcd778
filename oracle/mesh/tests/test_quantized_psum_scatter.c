/* A sum over shards whose gradient is quantised, against one shard that has all rows; what it gives the certified cases hold. */
#include "oracle/mesh/quantized_psum_scatter.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

enum { ROWS = 5, COLUMNS = 7, MOST = 2048 };

static const assay_mesh meshes[] = {{{1, 1, 1}}, {{1, 1, 2}}, {{1, 1, 4}}, {{2, 1, 3}}, {{2, 2, 2}}};
enum { MESHES = sizeof meshes / sizeof *meshes };

/* Of bfloat16, of very different sizes from row to row; the first row of all is zero. */
static void fill(double *values, int64_t count, uint64_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        values[i] = i < COLUMNS ? 0 : ldexp((double)(int8_t)(seed >> 56), (int)(i / COLUMNS % 40) - 20);
    }
}

static assay_quant_recipe_config config_of(const char *recipe)
{
    assay_quant_recipe_config config = {.recipe = recipe == NULL ? NULL : assay_quant_recipe_by_name(recipe),
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
    const assay_quant_recipe_config config = config_of(recipe);
    assay_fill_nan(dx, MOST);
    assert_ok(&ctx, assay_quantized_psum_scatter_backward(&ctx, dx, dy, &of_shard, mesh, ASSAY_AXIS_EXPERT, &config));
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
