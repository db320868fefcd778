/* One hypothesis after the other. Private to harness/explain. */
#pragma once

#include "compare/compare.h"
#include "harness/mutants/mutant_run.h"

/* What a candidate gives, in memory. NaN is written as infinity, on both sides: to the comparer a NaN that is expected
 * is no number to compare, here it is one to be found. */
typedef struct assay_candidate_results {
    assay_memory_tensor *tensors;
    int count;
    int written; /* so many are the candidate's; the others are gradients that it lacks, where it has some, as zeros */
} assay_candidate_results;

assay_status assay_candidate_results_load(assay_context *ctx, const assay_tensor_set *golden,
                                          assay_fixture_reader *candidate, assay_candidate_results *of_candidate);
void assay_nan_to_infinity(int64_t count, double *values);
void assay_candidate_results_free(assay_candidate_results *of_candidate); /* safe on a zeroed struct */

/* Whether the candidate is the mutant's: `results` are its, and become what the comparer takes for a golden, with their
 * own error scales where the trial has such, else those of the golden carried over. `plain`: the report of the
 * comparison with the golden. *residual: the RMS of error / deviation over all tensors. */
assay_status assay_hypothesis_hold(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                   const assay_candidate_results *of_candidate, const assay_report *plain,
                                   assay_tensor_set *results, bool *holds, double *residual);

/* Whether a hypothesis that leaves no more than a correct candidate does explains more than the golden itself, which is one
 * too: `expected` are the mutant's results as they were compared, `report` what came of it. */
assay_status assay_beats_golden(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                const assay_candidate_results *of_candidate, const assay_report *plain,
                                const assay_tensor_set *expected, const assay_report *report, bool *beats);

/* Whether no element, row or integer fails, and none is missing: statistics do. */
bool assay_only_statistics_fail(const assay_report *plain);

/* Whether no more is left of a tensor than of a correct candidate's. */
bool assay_tensor_is_explained(const assay_tensor_result *r);

/* Of a mutant that may be in some tensors alone: this tensor, which did not fail, is the golden's. */
bool assay_tensor_stays(const assay_mutant *mutant, const assay_tensor_result *before,
                        const assay_tensor_result *after);

/* Of a mutant of any alpha: it gets the one with which it is nearest to the candidate. */
assay_status assay_mutant_fit(assay_context *ctx, const assay_trial *t, const assay_candidate_results *of_candidate,
                              assay_mutant *mutant);

/* The mutant's results become what is expected of a backend with this bug, and the golden's error scales in `results`
 * the deviations from that. */
assay_status assay_mutant_expect(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                 assay_tensor_set *results);

/* Expected results whose errors are not of the kind that the golden's null distributions were drawn of have none. */
void assay_drop_null(assay_tensor_set *results);

/* Of a mutant by a worse arithmetic, whose errors are drawn anew by every backend: whether those of the candidate are
 * as large as the mutant's in every tensor. *ratio: the RMS of the one over that of the other. */
assay_status assay_noise_hold(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                              const assay_candidate_results *of_candidate, bool *holds, double *ratio);

/* The comparer's report on the candidate, of its optional results on those that the expected results have too. */
assay_status assay_expected_compare(assay_context *ctx, const assay_trial *t, const assay_tensor_set *expected,
                                    const assay_candidate_results *of_candidate, assay_report *report);

/* No scale of a row is below this part of the RMS of `of` in that row. */
void assay_raise_to_usual(const assay_tensor *of, double relative, double *scales);

/* 0 of none. */
double assay_rms(const double *values, int64_t count); /* of those that are finite */

/* "; passes at the profile bf16_sums: does the kernel have sums in bfloat16?", or "": of profiles that store the same type and
 * are coarser elsewhere. */
assay_status assay_coarser_profiles(assay_context *ctx, const assay_trial *t, assay_fixture_reader *candidate,
                                    char *text, size_t size);

/* "; that factor is 1/routed_scaling_factor" behind the diagnosis, where it is a constant of the case. */
void assay_name_factor(const assay_plan *plan, assay_report *report);

/* Gradients by the inputs as the operation read them become those by the inputs that were given, where the mutant
 * changes inputs. *changed: whether it makes a difference. */
assay_status assay_mutant_pull_back(assay_context *ctx, const assay_trial *t, const assay_mutant *mutant,
                                    assay_tensor_set *results, bool *changed);
