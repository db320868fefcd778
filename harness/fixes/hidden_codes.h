/* Codes of h that the candidate's kernel quantised itself (quant_hidden_format): where it gives them, each is judged by what
 * errors allow, and what follows is evaluated given them, as with a choice of experts (docs/comparing.md). */
#pragma once

#include "compare/compare.h"
#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* Starts zeroed. */
typedef struct assay_hidden_codes {
    assay_tensor_set staged; /* the candidate's codes and scales as numbers, at "staged/PATH" */
    int64_t codes, scales, exact, admissible, wrong;
    char wrong_path[ASSAY_PATH_SIZE]; /* of the first wrong one; "" */
    char message[256];                /* on it */
} assay_hidden_codes;

/* The candidate's codes and scales, which become numbers in `candidate` as well: they may be such, bits, or two codes of e2m1
 * a byte. What cannot be read so is left for the comparer's words. Codes without scales, or scales without codes, are
 * wrong. */
assay_status assay_hidden_codes_adopt(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *candidate,
                                      assay_hidden_codes *codes);

/* Each block's scale must be one that the recipe gives for some h within what errors allow at the plan's one precision, and
 * each code one that the recipe gives for some h by the candidate's own scale. `in`: the case's inputs, with the choice of
 * experts, without the codes. */
assay_status assay_hidden_codes_judge(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                                      double false_alarm, assay_hidden_codes *codes);

/* The report says what came of it, and fails for a wrong one. */
void assay_hidden_codes_note(const assay_hidden_codes *codes, assay_report *report);
void assay_hidden_codes_free(assay_hidden_codes *codes);
