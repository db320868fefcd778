#include "oracle/ops/tests/ops_test.h"

void test_fill(uint64_t *seed, double scale, assay_dtype grid, int64_t count, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        do {
            out[i] = assay_dtype_round(grid, scale * test_normal(seed), false);
        } while (out[i] == 0);
    }
}

double *test_normals(uint64_t *seed, double scale, assay_dtype grid, int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    test_fill(seed, scale, grid, count, values);
    return values;
}

double *test_nans(int64_t count)
{
    double *values = malloc((size_t)(count + 1) * sizeof *values);
    assert_non_null(values);
    assay_fill_nan(values, count);
    return values;
}

static assay_status counting_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    test_operations *operations = (test_operations *)(uintptr_t)ctx->emulation;
    operations->count += 2 * (double)args->m * (double)args->n * (double)args->k;
    return assay_arithmetic_reference.matmul(ctx, args);
}

void test_count_operations(assay_context *ctx, test_operations *operations)
{
    static const assay_arithmetic counting = {.name = "counting", .matmul = counting_matmul};
    ctx->arithmetic = &counting;
    ctx->emulation = &operations->none;
}

void test_each_context(void (*check)(assay_context *ctx, void *data), void *data)
{
    assay_context ctx = assay_context_default(1);
    for (int form = 0; test_next_context(&form, &ctx);) check(&ctx, data);
}
