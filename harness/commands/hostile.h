/* A case of `assay run --hostile`: trials with numbers and sizes that no backend can know beforehand. In each the backend sees a
 * request of other numbers under the same names before its first run, and between that and its second one. */
#pragma once

#include "harness/commands/run_case.h"

/* As assay_run_case; the report is that of the first trial that does not pass, else of the one that came nearest to it. */
assay_status assay_run_hostile(assay_context *ctx, const assay_options *options, assay_case_run *r);
