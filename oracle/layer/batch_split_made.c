#include "oracle/layer/batch_split_made.h"

#include <stdio.h>

#include "oracle/base/memory.h"
#include "oracle/ops/quantised_spread.h"

assay_status bs_made_show(assay_context *ctx, const bs_made *made, const char *name, bool again, int64_t first,
                          int64_t count, const double *values, double **spread)
{
    char path[ASSAY_PATH_SIZE], of_spread[ASSAY_PATH_SIZE];
    if (made == NULL) return ASSAY_OK;
    snprintf(path, sizeof path, "checkpoints/%.100s", name);
    assay_spread_path(path, of_spread);
    if (!(again && made->after_forward) && assay_wants(made->out, path))
        MUST(made->out->write(ctx, made->out->self, path, count, values));
    if (!made->in->has(made->in->self, of_spread)) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, of_spread, count, spread));
    return made->in->read(ctx, made->in->self, of_spread, first, count, *spread);
}
