/* The shapes of a checkpoint's tensors. */
#include "harness/plan/model_weights_internal.h"

assay_shape assay_weights_shape(const weight_target *t, const weight_part *p, const assay_weight_name *row)
{
    assay_shape shape = {0};
    const int64_t outputs = halves(row) * p->outputs;
    if (has_expert_axis(t, row)) shape.dims[shape.rank++] = t->experts;
    if (row->layout == ASSAY_WEIGHT_PLAIN) shape.dims[shape.rank++] = t->inputs;
    shape.dims[shape.rank++] = outputs;
    if (row->layout == ASSAY_WEIGHT_LINEAR) shape.dims[shape.rank++] = t->inputs;
    if (row->layout == ASSAY_WEIGHT_MXFP4) {
        shape.dims[shape.rank++] = t->inputs / MX_BLOCK;
        shape.dims[shape.rank++] = MX_BLOCK / 2;
    }
    return shape;
}

assay_status assay_weights_check_shape(assay_context *ctx, const assay_model_weights *w, int index,
                                       const assay_shape *expected)
{
    char wanted[128], found[128];
    const assay_tensor_spec *spec = NULL;
    const assay_status status = assay_checkpoint_spec(ctx, w->checkpoint, index, &spec);
    RETURN_IF(status != ASSAY_OK, status);
    if (assay_shape_equal(&spec->shape, expected)) return ASSAY_OK;
    assay_shape_text(expected, wanted, sizeof wanted);
    assay_shape_text(&spec->shape, found, sizeof found);
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: %s has shape %s, expected %s", w->file, spec->path, found, wanted);
}
