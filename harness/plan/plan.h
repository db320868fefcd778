/* What a golden of a case will hold and need. */
#pragma once

#include "compare/compare.h"
#include "fixtures/fixture.h"
#include "harness/operations/operation.h"

enum { ASSAY_LEFT_OUT_SIZE = 320, ASSAY_MOST_LEFT_OUT = 8 };

/* A profile whose error scales the case cannot have, and why. */
typedef struct assay_lost_profile {
    char name[ASSAY_PRECISION_NAME_SIZE];
    char reason[ASSAY_LEFT_OUT_SIZE - ASSAY_PRECISION_NAME_SIZE - 2];
} assay_lost_profile;

/* What a golden of a case will hold and need, all of it checked before anything is written. */
typedef struct assay_plan {
    const assay_case *c;
    const assay_operation *operation;
    assay_tensor_list list;   /* everything that the operation could give */
    assay_tensor_spec *specs; /* what the file holds, error scales included; in the order of the list */
    int spec_count;
    int64_t elements;           /* of all specs */
    int64_t file_bytes, memory; /* on disk; at the peak */
    assay_precision *precisions;
    int precision_count;
    assay_profile *own; /* profiles of the case that are not built in */
    int own_count;
    char profiles_left_out[ASSAY_MOST_LEFT_OUT][ASSAY_LEFT_OUT_SIZE]; /* of those that the case lists: "f16: why" */
    int left_out_count;
    char asked[ASSAY_PRECISION_NAME_SIZE]; /* the profile that is never left out; "": each may be */
    assay_lost_profile *lost; /* where an evaluation that fails says which profile it is for; NULL: nowhere */
    bool certify;             /* the golden is to hold its certificate (harness/certify/certificate.h) */
    int64_t budget;           /* of that: coordinates of each gradient */
    const char *weights;      /* of --weights (harness/plan/model_weights.h), or NULL */
    bool recipe;              /* what its source knows how to draw is stored as a recipe */
    bool negated;             /* a request of other numbers (assay_dtype_is_negated) */
    bool mutants;             /* the golden is to hold the power of its verdict (harness/power/power_test.h) */
    const struct assay_stage_judge *by_stage; /* of that: who judges stages; NULL: nobody */
    const char *mutants_like; /* of the power: those alone that this pattern matches; NULL: all that are the case's */
    const struct assay_mutant_watch *watch; /* of the power: who sees what each mutant gives; NULL: nobody */
    /* Error scales and null distributions are of the difference of two correct kernels: the profile's, less one of this profile, whose
     * results are stored. NULL: of one kernel. */
    const assay_profile *less;
    bool staged; /* a run stage by stage: every error scale is of the emulated runs, and routing weights have some */
    bool
        with_stages; /* candidates give checkpoints to be judged as stages: those that it does not hold are not unknown */
    const char *const *only; /* globs of the results that a candidate must give, the caller's; only_count is 0: all */
    int only_count;
} assay_plan;

/* Whether a golden of the case leaves the weight to the seed. */
bool assay_is_drawn(const assay_case *c, const assay_tensor_spec *spec);

/* The profile of a precision of the plan. */
const assay_profile *assay_plan_profile(const assay_plan *plan, const char *name);
/* The profile's precision for a case: where its dtype has a finer grid, or reaches further, what is given is rounded, but
 * for tensors whose type `dtypes:` names. */
assay_precision assay_case_precision(const assay_case *c, const assay_profile *profile);
/* The type of a product's operands in the emulated arithmetic: the profile's; or the finest that `dtypes:` names, where
 * the profile multiplies operands as they are stored. */
assay_dtype assay_case_multiply(const assay_case *c, const assay_profile *profile);
/* The golden is to hold no datasets of the role: old goldens have no null distributions. */
void assay_plan_drop(assay_plan *plan, assay_tensor_role role);
/* Adds a dataset to the plan, whose list has room for it. */
assay_status assay_plan_add_spec(assay_context *ctx, assay_plan *plan, const assay_tensor_spec *spec);
/* The same plan with some of the datasets, and room for one more. `specs` are its own, and to be freed. */
assay_status assay_plan_select(assay_context *ctx, const assay_plan *plan,
                               bool (*keeps)(const void *self, const assay_tensor_spec *spec), const void *self,
                               assay_plan *part);
void assay_plan_free(assay_plan *plan); /* safe on a zeroed struct */

/* For assay_compare: a plan's datasets lie in the order of the data flow. */
assay_order assay_plan_order(const assay_plan *plan);

/* The place of a dataset in specs; -1: it has none of that path. */
int assay_plan_find(const assay_plan *plan, const char *path);
/* What a backend is asked for in the place of specs[index]: itself, the whole gradient for one tensor of its sketch, NULL for the others and for what no backend gives. */
const assay_tensor_spec *assay_plan_asked(const assay_plan *plan, int index);
/* Whether every correct implementation has the golden's numbers before they are stored: the case is an exact one, and none of its
 * profiles scales operands by blocks, which does not keep whole numbers. */
bool assay_plan_is_exact(const assay_plan *plan);
/* Whether it is an error scale of an exact case. */
bool assay_plan_scale_is_zero(const assay_plan *plan, const assay_tensor_spec *spec);

/* How many of the context's threads the plan's case is worth. */
int assay_plan_threads(const assay_context *ctx, const assay_plan *plan);
