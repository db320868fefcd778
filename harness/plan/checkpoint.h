/* A checkpoint of weights: a safetensors file (or any container of fixtures), a model.safetensors.index.json with its
 * shards, or the folder of either. */
#pragma once

#include "fixtures/fixture.h"

typedef struct assay_checkpoint assay_checkpoint;

assay_status assay_checkpoint_open(assay_context *ctx, const char *path, assay_checkpoint **checkpoint);
void assay_checkpoint_close(assay_checkpoint *checkpoint); /* NULL is safe */

int assay_checkpoint_count(const assay_checkpoint *checkpoint);
const char *assay_checkpoint_name(const assay_checkpoint *checkpoint, int index); /* sorted */
int assay_checkpoint_find(const assay_checkpoint *checkpoint, const char *name);  /* -1: not there */

/* Opens its shard where that is not open yet. */
assay_status assay_checkpoint_spec(assay_context *ctx, assay_checkpoint *checkpoint, int index,
                                   const assay_tensor_spec **spec);
/* Elements [first, first + count), integers too. */
assay_status assay_checkpoint_read(assay_context *ctx, assay_checkpoint *checkpoint, int index, int64_t first,
                                   int64_t count, double *out);
