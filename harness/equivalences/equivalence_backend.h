/* The two forms of a case as a backend computes them: what it makes of the second, held against what it makes of the
 * first. The comparer judges (docs/comparing.md): the golden values are the first form's results, tensor by tensor, and
 * the error scale of each is that of the difference of two correct implementations,
 *
 *   sqrt(2 scale^2 + rounding^2 / 3)
 *
 * with the oracle's scale of the first form; `rounding` is that of the first form's result to the profile's storage
 * type, which the comparer allows for once, while here both sides were rounded. Where the scale is 0 it stays so. */
#pragma once

#include "compare/compare.h"
#include "harness/backends/backend.h"
#include "harness/equivalences/equivalence.h"

typedef struct assay_backend_check_options {
    const char *backend, *folder; /* whose files are in the folder */
    assay_backend_server *server; /* NULL: none */
    const assay_profile *profile;
    double false_alarm;
    assay_process_limits limits;
    bool quiet;
} assay_backend_check_options;

/* What the backend makes of the case as it is. Where it is done with it (end->outcome), `one` holds what was given, its
 * results, and their error scales as above. */
assay_status assay_backend_first_form(assay_context *ctx, const assay_backend_check_options *options,
                                      const assay_case *c, assay_form *one, assay_backend_end *end);

/* What it makes of the other form of the equivalence, and the verdict, where it is done with that. */
assay_status assay_backend_other_form(assay_context *ctx, const assay_backend_check_options *options,
                                      const assay_form *one, const assay_equivalence *equivalence,
                                      const assay_other_form *other, assay_backend_end *end, assay_report *report);

/* What the backend, or without one the oracle, makes of a form whose inputs are there: its results in the form, the oracle's where none is
 * given. `what` names its files. */
assay_status assay_backend_form_results(assay_context *ctx, const assay_backend_check_options *options,
                                        assay_form *form, const char *what, assay_backend_end *end);
