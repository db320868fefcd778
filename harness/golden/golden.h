/* Golden fixtures and requests: a case evaluated into a file, and evaluated again against one. */
#pragma once

#include "harness/plan/plan.h"

/* Writes the golden of the plan's case to `path`; `inputs_file` may be NULL. */
assay_status assay_golden_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                bool quiet);

/* The same from any source; where that has routing/.../selected_experts, given this choice. */
assay_status assay_golden_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, bool quiet);

/* Writes what a backend may see: inputs, weights, cotangents, and the names of what it is to give. */
assay_status assay_request_write(assay_context *ctx, const assay_plan *plan, const char *path, const char *inputs_file,
                                 bool quiet);
/* The same from any source: assay_golden_inputs of a golden. */
assay_status assay_request_write_from(assay_context *ctx, const assay_plan *plan, const char *path,
                                      const assay_source *source, bool quiet);

/* Evaluates the case of an open golden again, from its own inputs, and holds every result against the stored one, bit
 * for bit. Refuses with the first that differs. */
assay_status assay_golden_recompute(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                    bool quiet);
