#include "oracle/propagate/scales.h"

#include <math.h>
#include <stdio.h>

static void path_of(char scale[ASSAY_PATH_SIZE], const assay_precision *precision, const char *path)
{
    snprintf(scale, ASSAY_PATH_SIZE, "error_scale/%s/%s", precision->name, path);
}

bool assay_wants_scale(const assay_sink *out, const assay_precision *precision, const char *path)
{
    char scale[ASSAY_PATH_SIZE];
    path_of(scale, precision, path);
    return out->wants(out->self, scale);
}

assay_status assay_write_scale(assay_context *ctx, const assay_sink *out, const assay_precision *precision,
                               const char *path, int64_t count, const double *variance)
{
    enum { CHUNK = 1024 };
    char scale[ASSAY_PATH_SIZE];
    double deviation[CHUNK];
    assay_status status = ASSAY_OK;
    path_of(scale, precision, path);
    if (!out->wants(out->self, scale)) return ASSAY_OK;
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t n = count - first < CHUNK ? count - first : CHUNK;
        for (int64_t i = 0; i < n; i++) deviation[i] = sqrt(variance[first + i]);
        TRY(out->write(ctx, out->self, scale, n, deviation));
    }
cleanup:
    return status;
}
