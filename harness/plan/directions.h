/* Filters along known errors in a golden (compare/direction.h): which goldens have room for them, and where they lie. The
 * errors are mutants, which harness/filters tries. */
#pragma once

#include "harness/plan/plan.h"

/* Emulated runs that the filters of a profile are made of: fewer the dearer a run is. 0: the case is too large for
 * filters, or needs none. */
int assay_direction_members(const assay_plan *plan);
/* Elements of all tensors of the plan that a filter has. */
int64_t assay_direction_elements(const assay_plan *plan);
/* Whether filters have a part of the tensor. */
bool assay_direction_covers(const assay_tensor_spec *spec);

/* "null/bf16/directions/rope_type" */
void assay_direction_null_path(const char *name, const char *profile, char path[ASSAY_PATH_SIZE]);
/* The name, of a null distribution along a known error at the profile; NULL: it is another path. */
const char *assay_direction_name(const char *path, const char *profile);

/* Adds datasets of filters to the plan: one filter's, or all that a golden has. */
assay_status assay_plan_add_direction(assay_context *ctx, assay_plan *plan, const char *profile, const char *name);
assay_status assay_plan_add_directions(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden);
/* Whether it has any. */
bool assay_plan_has_directions(const assay_plan *plan);
/* Another list of datasets in the place of the plan's, without filters, which the caller frees. */
assay_status assay_plan_without_directions(assay_context *ctx, const assay_plan *plan, assay_plan *without);
