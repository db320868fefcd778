#include "oracle/graph/graph_axes.h"

#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/vector_sums.h"

static graph_loop loop_of(int rank, const int64_t *dims)
{
    graph_loop loop = {.rank = rank, .rows = 1, .width = rank == 0 ? 1 : dims[rank - 1]};
    for (int i = 0; i < rank; i++) loop.dims[i] = dims[i];
    for (int i = 0; i + 1 < rank; i++) loop.rows *= dims[i];
    return loop;
}

graph_loop graph_loop_over(const assay_tensor_row *row)
{
    return loop_of(row->shape.rank, row->shape.dims);
}

graph_loop graph_loop_over_axes(const assay_tensor_row *row, const char *axes)
{
    int64_t dims[ASSAY_MAX_RANK] = {0};
    for (int i = 0; axes[i] != '\0'; i++) dims[i] = row->shape.dims[strchr(row->axes, axes[i]) - row->axes];
    return loop_of((int)strlen(axes), dims);
}

graph_strides graph_strides_of(const assay_tensor_row *row, const char *axes)
{
    graph_strides strides = {{0}};
    for (int i = 0; axes[i] != '\0'; i++) {
        const char *at = strchr(row->axes, axes[i]);
        int64_t apart = at == NULL ? 0 : 1;
        for (int k = at == NULL ? 0 : (int)(at - row->axes) + 1; at != NULL && k < row->shape.rank; k++)
            apart *= row->shape.dims[k];
        strides.along[i] = apart;
    }
    return strides;
}

int64_t graph_row_start(const graph_loop *loop, const graph_strides *strides, int64_t row)
{
    int64_t start = 0;
    for (int i = loop->rank - 2; i >= 0; i--) {
        start += row % loop->dims[i] * strides->along[i];
        row /= loop->dims[i];
    }
    return start;
}

int64_t graph_row_step(const graph_loop *loop, const graph_strides *strides)
{
    return loop->rank == 0 ? 0 : strides->along[loop->rank - 1];
}

void graph_axes_without(const char *axes, const char *other, char left[ASSAY_MAX_RANK + 1])
{
    int count = 0;
    for (; *axes != '\0'; axes++)
        if (strchr(other, *axes) == NULL) left[count++] = *axes;
    left[count] = '\0';
}

void graph_copy(const assay_context *ctx, double *to, const assay_tensor_row *to_row, const double *from,
                const assay_tensor_row *from_row)
{
    const graph_loop loop = graph_loop_over(to_row);
    const graph_strides strides = graph_strides_of(from_row, to_row->axes);
    const int64_t step = graph_row_step(&loop, &strides);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < loop.rows; row++) {
        const double *x = from + graph_row_start(&loop, &strides, row);
        double *y = to + row * loop.width;
        if (step == 1) {
            memcpy(y, x, (size_t)loop.width * sizeof *y);
        } else {
            for (int64_t i = 0; i < loop.width; i++) y[i] = x[i * step];
        }
    }
}

/* One chain over a loop that begins at x, and its rounding. */
static double sum_of(const assay_context *ctx, const graph_loop *over, const graph_strides *strides, const double *x)
{
    const int64_t step = graph_row_step(over, strides);
    const bool rounds = ctx->arithmetic->round_terms != NULL;
    double sum = 0, squares = 0;
    for (int64_t row = 0; row < over->rows; row++) {
        const double *term = x + graph_row_start(over, strides, row);
        for (int64_t i = 0; i < over->width; i++) sum += term[i * step];
        for (int64_t i = 0; i < over->width && rounds; i++) squares += term[i * step] * term[i * step];
    }
    assay_round_terms(ctx, over->rows * over->width, 1, &squares, &sum);
    return sum;
}

void graph_sum(const assay_context *ctx, double *to, const assay_tensor_row *to_row, const double *from,
               const assay_tensor_row *from_row)
{
    char axes[ASSAY_MAX_RANK + 1];
    graph_axes_without(from_row->axes, to_row->axes, axes);
    const int64_t count = assay_shape_count(&to_row->shape);
    const size_t gone = strlen(axes);
    if (gone > 0 && strcmp(from_row->axes + gone, to_row->axes) == 0) { /* over the first axes: rows */
        assay_column_sums(ctx, to, assay_shape_count(&from_row->shape) / count, count, count, from);
        return;
    }
    const graph_loop loop = graph_loop_over(to_row), over = graph_loop_over_axes(from_row, axes);
    const graph_strides kept = graph_strides_of(from_row, to_row->axes), strides = graph_strides_of(from_row, axes);
    const int64_t step = graph_row_step(&loop, &kept);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t i = 0; i < count; i++) {
        const double *x = from + graph_row_start(&loop, &kept, i / loop.width) + i % loop.width * step;
        to[i] = gone == 0 ? *x : sum_of(ctx, &over, &strides, x);
    }
}
