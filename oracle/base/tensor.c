#include "oracle/base/tensor.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

assay_shape assay_shape_of(int rank, ...)
{
    assay_shape shape = {.rank = rank};
    va_list dims;
    va_start(dims, rank);
    for (int axis = 0; axis < rank; axis++) shape.dims[axis] = va_arg(dims, int64_t);
    va_end(dims);
    return shape;
}

int64_t assay_shape_count(const assay_shape *shape)
{
    int64_t count = 1;
    for (int axis = 0; axis < shape->rank; axis++) count *= shape->dims[axis];
    return count;
}

bool assay_shape_equal(const assay_shape *a, const assay_shape *b)
{
    bool equal = a->rank == b->rank;
    for (int axis = 0; equal && axis < a->rank; axis++) equal = a->dims[axis] == b->dims[axis];
    return equal;
}

void assay_shape_text(const assay_shape *shape, char *text, size_t size)
{
    size_t used = (size_t)snprintf(text, size, "[");
    for (int axis = 0; axis < shape->rank && used < size; axis++) {
        used += (size_t)snprintf(text + used, size - used, axis > 0 ? ",%" PRId64 : "%" PRId64, shape->dims[axis]);
    }
    if (used < size) snprintf(text + used, size - used, "]");
}
