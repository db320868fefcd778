/* What no profile with sums in float32 can be held to: numbers that float32 has only below its normal ones. */
#pragma once

#include "compare/compare.h"

/* FAIL becomes NOT COMPARABLE where what is wrong first may be so by such numbers, there or before it in the data flow. Many a
 * right kernel has 0 for them (1 / (1 + exp(93)), hardware that flushes), and no error scale allows for it. What is off by 1e-19
 * or more, or not finite, or not a matter of numbers, fails as ever. */
assay_status assay_judge_vanishing(assay_context *ctx, assay_fixture_reader *golden, const assay_profile *profile,
                                   assay_report *report);
