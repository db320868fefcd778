#include "oracle/base/tensor_table.h"

#include <string.h>

#include "oracle/base/memory.h"
#include "tests/support/assay_test.h"

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

typedef struct store {
    const char *lacks;    /* of the source */
    const char *unwanted; /* of the sink */
    char written[4][ASSAY_PATH_SIZE];
    int writes;
} store;

static bool has(void *self, const char *path)
{
    const store *s = self;
    return s->lacks == NULL || strcmp(path, s->lacks) != 0;
}

static assay_status read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out)
{
    if (!has(self, path)) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is missing", path);
    for (int64_t i = 0; i < count; i++) out[i] = (double)(first + i);
    return ASSAY_OK;
}

static bool wants(void *self, const char *path)
{
    const store *s = self;
    return s->unwanted == NULL || strcmp(path, s->unwanted) != 0;
}

static assay_status write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    store *s = self;
    (void)ctx;
    assert_true(s->writes < 4 && count > 0 && values != NULL);
    memcpy(s->written[s->writes++], path, strlen(path) + 1);
    return ASSAY_OK;
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

static void run(const char *lacks, const char *unwanted, assay_status expected, int gradients)
{
    assay_context ctx = {0};
    store s = {.lacks = lacks, .unwanted = unwanted};
    const assay_source in = {.self = &s, .has = has, .read = read};
    const assay_sink out = {.self = &s, .wants = wants, .write = write};
    const assay_tensor_table table = table_of(2);
    double *weights[3] = {NULL}, *g[3] = {NULL};
    assert_ok(&ctx, assay_weights_alloc(&ctx, &in, "", &table, weights));
    assert_int_equal(assay_weights_read(&ctx, &in, "", &table, 1, weights), expected);
    assert_null(weights[1]);
    if (expected == ASSAY_OK) {
        assert_true(weights[0][0] == 6 && weights[0][5] == 11); /* the second expert's */
        assert_ok(&ctx, assay_gradients_alloc(&ctx, &out, "", &table, weights, g));
        assert_ok(&ctx, assay_gradients_write(&ctx, &out, "", &table, g));
        assert_int_equal(s.writes, gradients);
        assert_int_equal(assay_wants_any_gradient(&in, &out, "", &table), gradients > 0);
    }
    assay_weights_free(&table, weights);
    assay_weights_free(&table, g);
    assert_null(weights[0]);
}

TEST(test_weights_and_gradients)
{
    run(NULL, NULL, ASSAY_OK, 2);
    run(NULL, "gradients/weights/wi", ASSAY_OK, 1);
    run("weights/wi_bias", NULL, ASSAY_OK, 1); /* a bias may be missing, and has no gradient then */
    run("weights/wi_bias", "gradients/weights/wi", ASSAY_OK, 0);
    run("weights/wi", NULL, ASSAY_BAD_INPUT, 0); /* a kernel may not */
}

TEST(test_no_memory)
{
    assay_context ctx = {0};
    store s = {0};
    const assay_source in = {.self = &s, .has = has, .read = read};
    const assay_tensor_table table = table_of(2);
    for (int64_t n = 0; n < 2; n++) {
        double *weights[3] = {NULL};
        assay_fail_allocation(n);
        assert_int_equal(assay_weights_alloc(&ctx, &in, "", &table, weights), ASSAY_NO_MEMORY);
        assay_fail_allocation(-1);
        assay_weights_free(&table, weights);
    }
}
