/* Tensors of one form of a case in the other's, whose kernels may be fused where the first's are not: `wi` is `wi_0`
 * and `wi_1` side by side on the last axis. Those of the first may lie on shards where the other has them whole. */
#ifndef ASSAY_HARNESS_EQUIVALENCES_COUNTERPART_H
#define ASSAY_HARNESS_EQUIVALENCES_COUNTERPART_H

#include "harness/operations/op_support.h"
#include "oracle/base/tensor_set.h"

/* Where the elements of a tensor of one form lie in the other's tensors. */
typedef struct assay_counterpart {
    const assay_tensor *part[2]; /* [1]: the second half of a fused kernel; else NULL */
    int64_t width;               /* of a row of the tensor */
    int64_t piece;               /* what a part has of it */
    int64_t pitch, offset;       /* of a row of the part, and where in it the piece begins */
    bool on_shards;              /* part[0] is this weight on the shards of this block */
    spec_moe_config block;
    int weight;
} assay_counterpart;

/* Among the tensors of the case `one`. False where there is no such tensor, or one of another shape or with other labels. */
bool assay_find_counterpart(const assay_case *one, const assay_tensor_set *tensors, const assay_tensor_spec *spec,
                            assay_counterpart *found);
/* In which part element `index` lies, and where in it. */
int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at);
/* The elements of `to` from its counterpart. */
assay_status assay_counterpart_read(assay_context *ctx, const assay_case *one, const assay_tensor_set *tensors,
                                    assay_tensor *to);

/* Whether a component of the path is wi, wi_0 or wi_1. */
bool assay_path_names_half(const char *path);

#endif
