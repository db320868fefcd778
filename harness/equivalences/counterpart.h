/* Tensors of one form of a case in the other's, whose kernels may be fused where the first's are not: `wi` is `wi_0`
 * and `wi_1` side by side on the last axis, or those of each tensor shard (oracle/moe/prefused.h). A shared expert of the
 * one form may be the last of all experts in the other's. Kernels of the first may lie on shards where the other has them
 * whole. */
#pragma once

#include "harness/operations/op_support.h"
#include "oracle/base/tensor_set.h"

/* Tensor shards whose gate and up are side by side in fused weights (w13_reorder_size): of the form that a tensor is of,
 * and of the other. */
typedef struct assay_layouts {
    int64_t own, theirs;
    int64_t parts;         /* shards of H, each of which has its columns of a checkpoint, in both forms */
    const assay_case *one; /* the other form, whose kernels may lie on shards (weights_on_shards) */
    const char *reversed;  /* letters of axes of which one of the two has the last index first; NULL: none */
} assay_layouts;

/* Where the elements of a tensor of one form lie in the other's tensors. */
typedef struct assay_counterpart {
    const assay_tensor *origin[2]; /* [1]: the second half of a fused kernel; else NULL */
    int64_t width;                 /* of a row of the tensor */
    int64_t hidden;                /* of gate and of up, of which the tensor is one or both; 0: the same elements */
    int64_t half;                  /* 1: the tensor is up alone */
    int64_t first;                 /* where the part begins that is meant */
    int64_t tokens;                /* of a sequence here, which is one there; 0: sequences are the same */
    assay_layouts layouts;         /* own 0: it is one of them alone; theirs 0: the parts are */
    bool on_shards;                /* part[0] is this weight on the shards of this block */
    quad_moe_config block;
    int weight;
} assay_counterpart;

/* False where there is no such tensor, or one of another shape or with other labels. */
bool assay_find_counterpart(const assay_tensor_set *tensors, const assay_tensor_spec *spec, assay_layouts layouts,
                            assay_counterpart *found);
/* In which part element `index` lies, and where in it. */
int assay_counterpart_at(const assay_counterpart *c, int64_t index, int64_t *at);
/* The elements of `to` from its counterpart. */
assay_status assay_counterpart_read(assay_context *ctx, const assay_tensor_set *tensors, assay_layouts layouts,
                                    assay_tensor *to);

/* Whether a component of the path is wi, wi_0 or wi_1. */
bool assay_path_names_half(const char *path);
