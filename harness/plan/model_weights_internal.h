/* What finding the tensors of a checkpoint leaves for those who read them. Private to harness/plan/model_weights*.c. */
#pragma once

#include <string.h>

#include "harness/plan/checkpoint.h"
#include "harness/plan/model_weights.h"
#include "harness/plan/weight_names.h"

enum { SOURCES = 3, NAME_SIZE = 2 * ASSAY_PATH_SIZE, MX_BLOCK = 32, FILE_SIZE = 4096 };

/* What of their tensors is a part of ours. */
typedef struct weight_source {
    const char *ours; /* of a row of the table */
    int64_t outputs;
    const assay_weight_name *row;
    int *tensors, *scales, *tensor_scales; /* of each expert, or one; scales -1: none; the last of codes alone */
} weight_source;

/* A tensor of ours: [experts] [inputs] [outputs], whatever its axes are. Of a scale of codes they count blocks. */
typedef struct weight_target {
    const assay_tensor_entry *entry;
    int layer; /* of a stack; -1 */
    bool vector, stacked;
    int64_t experts, inputs, outputs;
    weight_source sources[SOURCES];
    int source_count;
} weight_target;

struct assay_model_weights {
    const assay_case *c;
    char file[FILE_SIZE], prefix[ASSAY_PATH_SIZE];
    assay_checkpoint *checkpoint;
    bool *used; /* of the tensors of the checkpoint */
    weight_target *targets;
    int target_count;
    const weight_target *held; /* what is in `slab`: an expert of it */
    int64_t held_expert;
    double *slab;
};

/* 2 where their tensor holds gate and up. */
static inline int64_t halves(const assay_weight_name *row)
{
    return row->outputs == ASSAY_OUTPUTS_WHOLE ? 1 : 2;
}

/* Whether experts are the first axis of their tensor. */
static inline bool has_expert_axis(const weight_target *t, const assay_weight_name *row)
{
    return t->stacked && strchr(row->theirs, '*') == NULL;
}

/* The shape of their tensor of a part. */
assay_shape assay_weights_shape(const weight_target *t, const weight_source *p, const assay_weight_name *row);
assay_status assay_weights_check_shape(assay_context *ctx, const assay_model_weights *w, int index,
                                       const assay_shape *expected);

/* Of a kernel that is codes: whether a tensor of theirs is such codes (`shape` is that of numbers), and the same target
 * counted in blocks. */
assay_status assay_weights_check_codes(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                       const assay_weight_name *row, int index, assay_shape shape);
weight_target assay_weights_in_blocks(const weight_target *t);

/* The scales beside a tensor of theirs: of codes they must be there, and of numbers in mxfp4. */
assay_status assay_weights_read_scales(assay_context *ctx, const assay_model_weights *w, const weight_target *t,
                                       const weight_source *p, const char *name, int64_t expert);
/* How an expert's numbers are stored: as codes with scales of this format; NULL: as they are. */
const assay_block_format *assay_weights_stored_as(const weight_target *t, const weight_source *p, int64_t expert);
