#include "oracle/base/step_change.h"

#include <string.h>

#include "oracle/base/tensor.h"

bool assay_step_is_changed(const assay_context *ctx, const char *kind, const char *tensor)
{
    const assay_step_change *change = ctx->change;
    if (change == NULL || change->step > 0) return false;
    if (change->kind != NULL && strcmp(change->kind, kind) != 0) return false;
    if (change->tensors != NULL && (tensor == NULL || !assay_any_word(change->tensors, tensor, assay_path_ends)))
        return false;
    if (change->found == NULL) return true;
#pragma omp atomic write
    *change->found = true;
    return true;
}
