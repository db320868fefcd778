/* A case in a test of the harness: its plan, what is drawn for it, its golden in memory or as a file, and a candidate that
 * is held against that. */
#pragma once

#include "harness/judge/judge.h"
#include "harness/mutants/mutant_run.h"
#include "harness/plan/inputs.h"
#include "harness/tests/harness_test.h"

typedef struct trial {
    assay_context ctx;
    assay_case *c;
    assay_plan plan;
    assay_inputs inputs;
    assay_source source;     /* of what is drawn */
    assay_tensor_set golden; /* all in memory */
    char file[TEST_PATH_SIZE + 16], candidate[TEST_PATH_SIZE + 16];
    assay_fixture_reader *reader; /* of the file */
} trial;

/* The case is freed with the trial, which has pointers into itself and must stay where it is. */
void trial_plan(trial *t, assay_case *c); /* and draws */
/* Also computes the golden, in memory; `own` is a profile that the case names and nobody else knows, or NULL. */
void trial_evaluate(trial *t, assay_case *c, const assay_profile *own);
/* Also writes it to the folder and opens it; the golden in memory is what the file has. */
void trial_write(trial *t, const test_folder *folder, assay_case *c);
void trial_close(trial *t);

/* At a profile, for mutants. */
assay_trial trial_at(const trial *t, const char *profile);

/* What a mutant gives there, which applies. */
assay_tensor_set trial_mutant(trial *t, const char *profile, const char *name);

/* What came out, on the grid of a type. */
void trial_round(const assay_tensor_set *results, assay_dtype type);
/* A candidate of those results that `is_wanted`, in the profile's type but for integers. */
void trial_write_candidate(trial *t, const assay_tensor_set *results, const assay_profile *profile,
                           bool (*is_wanted)(const assay_tensor_spec *spec));
static inline bool trial_is_result(const assay_tensor_spec *spec)
{
    return assay_role_is_result(spec->role);
}

/* What the operation gives by `in`, in the place of the golden's results. */
void trial_run(const trial *t, assay_context *ctx, const assay_source *in, assay_tensor_set *results);
/* The candidate's file against the golden's, which is opened anew, as all who judge do it; without explanations by
 * trial_judging. `fails`: the allocation of the judgement that fails; -1: none. */
assay_judging trial_judging(const assay_profile *profile);
assay_status trial_try_judge(trial *t, const assay_judging *how, int64_t fails, assay_report *report);
assay_report trial_judge(trial *t, const assay_judging *how);
/* The candidate's file against the golden's, without a look at other choices of experts. */
assay_report trial_compare(trial *t, const assay_profile *profile);
