/* On a kink (graph_general.kink) several gradients are equally right: max over equal numbers, a clamp on its bound, abs and relu at 0. */
#pragma once

#include "harness/plan/golden_open.h"

/* Starts zeroed. */
typedef struct assay_kinks {
    int64_t count;              /* elements that a candidate has otherwise than the golden, and that are right */
    char path[ASSAY_PATH_SIZE]; /* of the first one's tensor, */
    int64_t element;            /* and its place there */
    assay_tensor_set adopted;   /* the candidate's gradients where it has such elements */
} assay_kinks;

/* Whether a step of the case has kinks: of programs alone. */
bool assay_has_kinks(const assay_plan *plan);

/* Backward is run twice from `in`, with the least and with the largest slope on all kinks. Elements of the candidate's gradients that lie
 * between what these and the golden have, within errors of a correct kernel, become the golden's. */
assay_status assay_kinks_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                               double false_alarm, const assay_source *in, assay_fixture_reader *golden,
                               assay_fixture_reader *candidate, assay_kinks *kinks);
/* They are the candidate's again. */
assay_status assay_kinks_put_back(assay_context *ctx, assay_fixture_reader *candidate, const assay_kinks *kinks);
void assay_kinks_note(const assay_kinks *kinks, assay_report *report);
void assay_kinks_free(assay_kinks *kinks);
