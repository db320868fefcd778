/* Numbers that a kernel computes and then quantises: errors move them, and one near a boundary gets another code. An emulated
 * run moves them by up to ASSAY_DEVIATION_REACH standard deviations, uniformly, before it quantises: what any correct kernel may
 * make of a number near a boundary then happens in some of the runs. */
#pragma once

#include "oracle/base/status.h"
#include "oracle/base/tensor.h"

#define ASSAY_DEVIATION_REACH 8

/* moved [count] is x, in an emulated run moved. spread: one standard deviation of x; NULL: x is exact. `moved` may be x. */
void assay_deviation_move(const assay_context *ctx, int64_t count, const double *x, const double *deviation,
                          double *moved);

/* Where a source has the spread of a checkpoint: "spread/PATH". */
void assay_deviation_path(const char *of, char path[ASSAY_PATH_SIZE]);
