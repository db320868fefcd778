/* What a tensor is called and what shape it has, and the two streams through which operations see tensors.
 *
 * An operation asks a source for a tensor, or for a slice of its flattened elements (row-major, last axis contiguous), and
 * hands results to a sink. A source may make elements from a seed, read them from a file or hold them in memory; the
 * operation cannot tell. So the same code serves a toy case and a block whose weights exceed memory. */
#ifndef ASSAY_BASE_TENSOR_H
#define ASSAY_BASE_TENSOR_H

#include "oracle/base/dtype.h"
#include "oracle/base/status.h"

#define ASSAY_MAX_RANK 6
#define ASSAY_PATH_SIZE 160

typedef struct assay_shape {
    int rank;
    int64_t dims[ASSAY_MAX_RANK];
} assay_shape;

assay_shape assay_shape_of(int rank, ...);           /* rank arguments of type int64_t */
int64_t assay_shape_count(const assay_shape *shape); /* of a shape that was checked before; rank 0 is 1 */
bool assay_shape_equal(const assay_shape *a, const assay_shape *b);
/* "[2,16,64]", "[]" for a scalar */
void assay_shape_text(const assay_shape *shape, char *text, size_t size);

/* One dataset: path inside the fixture ("inputs/x", "gradients/weights/wo"), stored type, shape, and for each axis its
 * letter as SPEC.md names it ("B", "S", "D"). */
typedef struct assay_tensor_spec {
    char path[ASSAY_PATH_SIZE];
    assay_dtype type;
    assay_shape shape;
    const char *labels[ASSAY_MAX_RANK]; /* string literals */
} assay_tensor_spec;

/* read: elements [first, first + count) of the tensor at `path` ("inputs/x", "weights/wi_0", "cotangents/y").
 * read_i32 is for the tensors of type int32. has: whether the source has that tensor. */
typedef struct assay_source {
    void *self;
    bool (*has)(void *self, const char *path);
    assay_status (*read)(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out);
    assay_status (*read_i32)(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out);
} assay_source;

/* wants: whether anybody will look at the tensor at `path` ("outputs/y", "gradients/weights/wo", "routing/margin",
 * "error_scale/bf16/outputs/y"): an operation skips the work of what nobody wants. write: the next `count` elements of
 * that tensor; slices of one tensor arrive in order, those of different tensors may interleave. */
typedef struct assay_sink {
    void *self;
    bool (*wants)(void *self, const char *path);
    assay_status (*write)(assay_context *ctx, void *self, const char *path, int64_t count, const double *values);
    assay_status (*write_i32)(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values);
} assay_sink;

#endif
