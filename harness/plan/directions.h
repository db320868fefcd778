/* Known errors along which a golden judges candidates (compare/direction.h): other configurations, whose results are
 * subtle beside the rounding of a correct implementation. They are mutants too (harness/mutants/mutants.c), of the same
 * names. */
#ifndef ASSAY_HARNESS_PLAN_DIRECTIONS_H
#define ASSAY_HARNESS_PLAN_DIRECTIONS_H

#include "harness/plan/plan.h"

/* Emulated runs that a filter is made of. */
enum { ASSAY_DIRECTION_MEMBERS = 384 };

typedef struct assay_direction {
    const char *name;
    bool (*change)(assay_case *c); /* whether it did */
} assay_direction;

extern const assay_direction assay_directions[];
extern const int assay_direction_count;

bool assay_change_rope_type(assay_case *c); /* plain frequencies instead of YaRN's, or the reverse */

/* The case with the error. */
bool assay_direction_apply(const assay_direction *direction, const assay_case *c, assay_case *changed);

/* "null/bf16/directions/rope_type" */
void assay_direction_null_path(const assay_direction *direction, const char *profile, char path[ASSAY_PATH_SIZE]);

/* Adds filters and their null distributions to a plan whose other datasets are there: for attention with a rope, at
 * profiles that store bfloat16, in cases so small that the runs are cheap. A golden that exists has none other than it
 * has. */
assay_status assay_plan_add_directions(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden);

#endif
