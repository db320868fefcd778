/* Tensors by the letters of their axes: where the numbers of one lie for a loop over the axes of another. */
#pragma once

#include "oracle/base/tensor_table.h"

/* A loop over axes, row by row: a row is the last axis, or one number where there is none. */
typedef struct graph_loop {
    int rank;
    int64_t dims[2 * ASSAY_MAX_RANK];
    int64_t rows, width;
} graph_loop;
/* How far numbers of a tensor are apart along each of the axes of a loop; 0 along what it lacks. */
typedef struct graph_strides {
    int64_t along[2 * ASSAY_MAX_RANK];
} graph_strides;

graph_loop graph_loop_over(const assay_tensor_row *row);
graph_strides graph_strides_of(const assay_tensor_row *row, const char *axes);
/* Of the first number of a row; numbers of a row are graph_step_of apart. */
int64_t graph_row_start(const graph_loop *loop, const graph_strides *strides, int64_t row);
int64_t graph_row_step(const graph_loop *loop, const graph_strides *strides);

/* Axes of the first that the second lacks, in its order. */
void graph_axes_without(const char *axes, const char *other, char left[ASSAY_MAX_RANK + 1]);
/* The loop over some axes of a tensor. */
graph_loop graph_loop_over_axes(const assay_tensor_row *row, const char *axes);

/* to = from, whose numbers are repeated along axes that it lacks; either order of axes. */
void graph_copy(const assay_context *ctx, double *to, const assay_tensor_row *to_row, const double *from,
                const assay_tensor_row *from_row);
/* to = the sum of from over the axes that `to` lacks, each a chain in the order of from's axes. */
void graph_sum(const assay_context *ctx, double *to, const assay_tensor_row *to_row, const double *from,
               const assay_tensor_row *from_row);
