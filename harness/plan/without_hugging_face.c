#include <string.h>

#include "harness/plan/model_weights.h"

int assay_model_weights_path(const char *text)
{
    return (int)strlen(text);
}

assay_status assay_model_weights_open(assay_context *ctx, const char *text, const assay_case *c,
                                      const assay_tensor_list *list, assay_model_weights **weights)
{
    (void)text, (void)c, (void)list, (void)weights;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--weights: this build was made without it (ASSAY_WITHOUT=hugging_face)");
}

void assay_model_weights_close(assay_model_weights *weights)
{
    (void)weights;
}

bool assay_model_weights_has(const assay_model_weights *weights, const char *path)
{
    return weights != NULL && path != NULL;
}

assay_status assay_model_weights_read(assay_context *ctx, assay_model_weights *weights, const char *path, int64_t first,
                                      int64_t count, double *out)
{
    (void)weights, (void)first, (void)count, (void)out;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s is in no checkpoint", path);
}
