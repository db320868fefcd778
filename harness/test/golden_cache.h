/* Goldens that are kept between runs: a folder of files, each named by the digest of all that it follows from. */
#pragma once

#include "harness/plan/golden_open.h"
#include "harness/plan/inputs.h"

/* The user's folder of goldens, allocated; *folder is NULL where there is none. `wanted`: the caller's; NULL: $ASSAY_CACHE, else
 * assay/ in $XDG_CACHE_HOME, else .cache/assay/ in $HOME. An empty text is none. */
assay_status assay_cache_folder(assay_context *ctx, const char *wanted, char **folder);
/* `wanted`, or where that is 0 $ASSAY_CACHE_BYTES, or 2 GiB. */
assay_status assay_cache_bytes(assay_context *ctx, int64_t wanted, int64_t *bytes);

/* The golden of the plan's case with its one profile and these inputs, opened: from the folder if a whole one lies there, else evaluated,
 * and kept there if that can be. The files that were used least lately go where all are more than `bytes` together. */
assay_status assay_cache_golden(assay_context *ctx, const assay_plan *plan, assay_inputs *inputs,
                                const assay_profile *profile, const char *folder, int64_t bytes, assay_golden *golden);
