/* A golden's case once more. */
#pragma once

#include "harness/plan/golden_open.h"

enum { ASSAY_MOST_IN_MEMORY = 1 << 27 }; /* elements: a gigabyte */

/* Evaluates what again->plan holds from `in`, which is over what the golden's case is given, and opens again->reader: in
 * memory where the plan has so few elements, else as a file that nobody else sees. The same numbers either way. */
assay_status assay_evaluate_again(assay_context *ctx, assay_fixture_reader *golden, assay_golden *again,
                                  const assay_source *in, int64_t most_elements, bool quiet);
