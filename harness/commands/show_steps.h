/* The steps of a case, of `assay show`. */
#pragma once

#include "harness/commands/command.h"

/* What --graph prints and --svg writes; nothing without these. */
assay_status assay_show_steps(assay_context *ctx, const assay_options *options, const assay_plan *plan);
