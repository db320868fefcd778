#include "oracle/propagate/scales.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "oracle/base/memory.h"

static void path_of(char scale[ASSAY_PATH_SIZE], const assay_precision *precision, const char *path)
{
    snprintf(scale, ASSAY_PATH_SIZE, "error_scale/%s/%s", precision->name, path);
}

bool assay_wants_scale(const assay_sink *out, const assay_precision *precision, const char *path)
{
    char scale[ASSAY_PATH_SIZE];
    path_of(scale, precision, path);
    return assay_wants(out, scale);
}

assay_status assay_write_scale(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                               const char *path, int64_t count, const double *variance)
{
    char scale[ASSAY_PATH_SIZE];
    OWNED double *deviation = NULL;
    path_of(scale, precision, path);
    if (!assay_wants(out, scale)) return ASSAY_OK;
    /* In one piece, as the result itself is written: some sinks take whole rows. */
    MUST(assay_alloc_f64(ctx, "error scale", count, &deviation));
    for (int64_t i = 0; i < count; i++) deviation[i] = sqrt(variance[i]);
    return out->write(ctx, out->self, scale, count, deviation);
}
