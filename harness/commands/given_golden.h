/* The golden that an argument means: a stored one, or a case's, which is evaluated in memory. */
#pragma once

#include "harness/commands/command.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/inputs.h"

/* Starts zeroed. */
typedef struct assay_given_golden {
    assay_plan plan; /* of a case */
    assay_inputs inputs;
    assay_golden golden;      /* with its plan */
    assay_tensor_set tensors; /* all that it holds */
    assay_profile profile;    /* that --precision names, or the usual one */
    int threads;              /* that the case is worth */
} assay_given_golden;

/* stored: the golden's path; NULL: `c` is no golden's. A case is evaluated at the profile alone, and at `beside`, a built-in
 * one, unless that is NULL. */
assay_status assay_given_golden_open(assay_context *ctx, const assay_options *options, assay_case *c,
                                     const char *stored, const char *beside, assay_given_golden *given);
void assay_given_golden_close(assay_given_golden *given); /* safe on a zeroed struct */
