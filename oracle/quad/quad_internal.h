/* What the files of the second form share. */
#pragma once

#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/quad/quad.h"

quad quad_sigmoid(quad x);
quad quad_activation(assay_activation f, quad x);
quad quad_activation_slope(assay_activation f, quad x);
/* y [columns] = x [rows] times w [rows,columns], whose rows are `ld` apart. */
void quad_vector_matrix(int64_t rows, int64_t columns, const quad *x, const quad *w, int64_t ld, quad *y);

/* Elements [first, first + count) of a tensor that has a source. */
assay_status quad_read_piece(assay_context *ctx, const quad_tensor *tensor, int64_t first, int64_t count, quad *values);

/* h as codes and scales, and the numbers that these are. */
void quad_requantise_blocks(const assay_quantize_config *config, const quad *h, quad *codes, quad *scale,
                            quad *numbers);

/* order [count]: positions of `keys` sorted ascending, equal keys in their order; sizes [groups]: how many of each. Keys
 * of no group are left out, and as many -1 follow. */
void quad_sort_by_expert(int64_t count, const int32_t *keys, int64_t groups, int32_t *order, int32_t *sizes);

/* The choice of one token by `biased` [E], and its margin. `allowed` [E] is scratch. */
assay_status quad_select(assay_context *ctx, const assay_routing_config *config, const quad *biased, bool *allowed,
                         int32_t *selected, quad *margin);
