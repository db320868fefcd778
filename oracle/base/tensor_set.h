/* Tensors in memory, found by their paths; and views by which a set is a source or a sink, alone or beside others. */
#pragma once

#include "oracle/base/tensor.h"

typedef struct assay_tensor {
    assay_tensor_spec spec;
    double *values;         /* of every other type, or */
    int32_t *indices;       /* of int32 */
    int64_t count, written; /* elements; how many of them are there */
} assay_tensor;

/* Owns its tensors. Starts zeroed. */
typedef struct assay_tensor_set {
    assay_tensor *items; /* in the order in which they came; they move when one is added, their elements do not */
    int *by_path;        /* places in items, sorted by path */
    int count, room;
} assay_tensor_set;

/* A tensor without elements so far; `added` may be NULL. Refuses a path that is there already. */
assay_status assay_tensor_set_add(assay_context *ctx, assay_tensor_set *set, const assay_tensor_spec *spec,
                                  assay_tensor **added);
/* A tensor with all its elements from a source. */
assay_status assay_tensor_set_read(assay_context *ctx, assay_tensor_set *set, const assay_tensor_spec *spec,
                                   const assay_source *in);
/* `copy` starts zeroed, and is freed if it fails. */
assay_status assay_tensor_set_copy(assay_context *ctx, const assay_tensor_set *set, assay_tensor_set *copy);
assay_tensor *assay_tensor_set_find(const assay_tensor_set *set, const char *path); /* NULL when there is none */
void assay_tensor_set_free(assay_tensor_set *set);                                  /* leaves it zeroed */

bool assay_tensor_is_complete(const assay_tensor *tensor);
/* Refuses a set with a tensor of which elements are missing. */
assay_status assay_tensor_set_require_complete(assay_context *ctx, const assay_tensor_set *set);
/* No tensor has elements any more. */
void assay_tensor_set_rewind(assay_tensor_set *set);

/* Gives the tensors that are complete; to read one that is not there is bad input. */
assay_source assay_tensor_set_source(const assay_tensor_set *set);
/* Wants every tensor of the set; refuses more elements than its shape has. */
assay_sink assay_tensor_set_sink(assay_tensor_set *set);

/* What `over` has comes from it, everything else from `under`. */
typedef struct assay_overlay {
    assay_source over, under;
} assay_overlay;
assay_source assay_overlay_source(assay_overlay *overlay);

/* To each of the two what it wants, `first` before `second`. */
typedef struct assay_tee {
    assay_sink first, second;
} assay_tee;
assay_sink assay_tee_sink(assay_tee *tee);
