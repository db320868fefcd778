#include "oracle/base/tensor_table.h"
#include "tests/support/assay_test.h"
#include "tests/support/test_tensors.h"

/* A kernel [2,3] of each of two experts, a bias [3] of each, and a tensor that the configuration does not have. */
static int64_t axis_size(const void *config, char axis)
{
    return axis == 'D' ? *(const int64_t *)config : 3;
}

static assay_tensor_table table_of(int64_t dim)
{
    static const assay_tensor_form kernel = {"wi", ASSAY_KERNEL, "DH", 1}, bias = {"wi_bias", ASSAY_BIAS, "H", 0};
    return (assay_tensor_table){.count = 3,
                                .rows = {assay_tensor_row_of(&kernel, &dim, axis_size),
                                         {.name = NULL},
                                         assay_tensor_row_of(&bias, &dim, axis_size)}};
}

/* Of two experts, but for what it lacks. */
static void fill(test_tensors *given, const char *lacks)
{
    double *wi = test_tensors_add(given, "weights/wi", 2 * 6);
    assert_non_null(test_tensors_add(given, "weights/wi_bias", 2 * 3));
    for (int i = 0; i < 2 * 6; i++) wi[i] = i;
    if (lacks != NULL) test_tensors_remove(given, lacks);
}

TEST(test_rows)
{
    const assay_tensor_table table = table_of(2);
    const int64_t rows[] = {5, 7};
    const assay_tensor_row below = assay_tensor_row_below("BS", rows, table.rows[0]);
    assert_string_equal(below.axes, "BSDH");
    const assay_shape shape = assay_shape_of(4, (int64_t)5, (int64_t)7, (int64_t)2, (int64_t)3);
    assert_true(assay_shape_equal(&below.shape, &shape));
    assert_int_equal(below.fan_in, 2);
    assert_int_equal(assay_tensor_row_count(&table.rows[0]), 6);
    assert_int_equal(assay_tensor_row_count(&table.rows[1]), 0);
    assert_int_equal(assay_tensor_row_count(&table.rows[2]), 3);
    char path[ASSAY_PATH_SIZE];
    assay_tensor_row row = table.rows[0];
    row.folder = "mlp/";
    assay_tensor_path("gradients/weights/", "layers/3/", &row, path);
    assert_string_equal(path, "gradients/weights/layers/3/mlp/wi");
}

static void run(const char *lacks, const char *wanted, assay_status expected, int gradients)
{
    assay_context ctx = {0};
    const char *const globs[] = {wanted, NULL};
    OWNED_BY(test_tensors_free) test_tensors given = {0}, written = {.wanted = globs};
    fill(&given, lacks);
    const assay_source in = test_tensors_source(&given);
    const assay_sink out = test_tensors_sink(&written);
    const assay_tensor_table table = table_of(2);
    double *room[3] = {NULL}, *weights[3] = {NULL}, *g[3] = {NULL};
    assert_ok(&ctx, assay_weights_alloc(&ctx, &in, "", &table, room));
    assert_int_equal(assay_weights_lend(&ctx, &in, "", &table, 1, room, weights), expected);
    assert_null(weights[1]);
    if (expected == ASSAY_OK) {
        assert_true(weights[0][0] == 6 && weights[0][5] == 11); /* the second expert's */
        assert_ok(&ctx, assay_gradients_alloc(&ctx, &out, "", &table, weights, g));
        assert_ok(&ctx, assay_gradients_write(&ctx, &out, "", &table, g));
        assert_int_equal(written.set.count, gradients);
        assert_int_equal(assay_wants_any_gradient(&in, &out, "", &table), gradients > 0);
    }
    assay_weights_free(&table, room);
    assay_weights_free(&table, g);
    assert_null(room[0]);
}

TEST(test_weights_and_gradients)
{
    run(NULL, "*", ASSAY_OK, 2);
    run(NULL, "*wi_bias", ASSAY_OK, 1);
    run("weights/wi_bias", "*", ASSAY_OK, 1); /* a bias may be missing, and has no gradient then */
    run("weights/wi_bias", "*wi_bias", ASSAY_OK, 0);
    run("weights/wi", "*", ASSAY_BAD_INPUT, 0); /* a kernel may not */
}

TEST(test_no_memory)
{
    assay_context ctx = {0};
    OWNED_BY(test_tensors_free) test_tensors given = {0};
    fill(&given, NULL);
    const assay_source in = test_tensors_source(&given);
    const assay_tensor_table table = table_of(2);
    for (int64_t n = 0; n < 2; n++) {
        double *weights[3] = {NULL};
        assay_fail_allocation(n);
        assert_int_equal(assay_weights_alloc(&ctx, &in, "", &table, weights), ASSAY_NO_MEMORY);
        assay_fail_allocation(-1);
        assay_weights_free(&table, weights);
    }
}
