/* What the functions that change tensors share. Private to harness/mutants_*.c and discrimination_evaluate.c. */
#ifndef ASSAY_HARNESS_MUTANTS_TENSORS_H
#define ASSAY_HARNESS_MUTANTS_TENSORS_H

#include "harness/mutants/mutants.h"

/* What changes one tensor; true where it did. */
typedef bool (*assay_tensor_change)(const assay_mutation *m, assay_kept *tensor);

int64_t assay_kept_width(const assay_kept *tensor); /* of a row: the last axis */
void assay_swap_values(double *a, double *b, int64_t count);

/* Of inputs and weights, those whose path ends in the name. True where one was changed. */
bool assay_change_given(const assay_mutation *m, const char *name, assay_tensor_change change);
bool assay_values_to_zero(const assay_mutation *m, assay_kept *tensor);
bool assay_values_to_one(const assay_mutation *m, assay_kept *tensor);

int assay_kept_axis(const assay_kept *tensor, const char *label);          /* -1: none has it */
int64_t assay_axes_product(const assay_shape *shape, int first, int last); /* of axes [first, last) */
/* Index 0 along the axis becomes what index 1 was. */
bool assay_roll_axis(assay_kept *tensor, int axis);

/* Of the results that are floats, those in the folder ("": all). True where one was changed. */
bool assay_change_floats(const assay_mutation *m, const char *folder, assay_tensor_change change);
bool assay_scale_values(assay_kept *tensor, double factor);
bool assay_fill_values(assay_kept *tensor, int64_t first, double value);

/* Of the mesh (docs/expert-parallelism.md). */
int64_t assay_case_shards(const assay_case *c);
int64_t assay_rows_of_shard(const assay_case *c); /* of the batch; 0: one shard, or all have the same rows */
bool assay_has_expert_shards(const assay_case *c);
bool assay_path_names_expert_weight(const char *path);

#endif
