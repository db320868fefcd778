/* From what a pass over a tensor found to its verdict, its finding and the line that says so. Private to compare/. */
#pragma once

#include "compare/tensor_compare.h"

/* Missing, misshapen or of a wrong type. True: there is nothing more to compare. `found` is NULL when the candidate has
 * no such tensor; `kind` is the candidate's, or NULL. */
bool assay_judge_structure(const assay_profile *profile, const assay_tensor_spec *found, const char *kind,
                           assay_tensor_result *result);

/* What the pass over its values says. `scales` names the profiles whose error scales the golden has, and is NULL when
 * it has the one that was asked for; `left_out` is why it cannot have that, or NULL. */
void assay_judge_values(const assay_profile *profile, const assay_facts *facts, const char *scales,
                        const char *left_out, assay_tensor_result *result);

/* The candidate's values could not be read; `why` is the reader's message. */
void assay_judge_unreadable(const char *why, assay_tensor_result *result);
/* By rules: NULL, or the one that is broken. */
void assay_judge_rules(const char *broken, assay_tensor_result *result);
