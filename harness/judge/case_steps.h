/* A case as steps, for `assay show --graph` and for reports: of an operation that is a graph, of layers, and of a block of
 * experts. */
#pragma once

#include "compare/steps.h"
#include "harness/operations/operation.h"

bool assay_has_steps(const assay_operation *operation);
/* Refuses a case that has none. whole: every layer; else those that are like one before are one step together. */
assay_status assay_case_steps(assay_context *ctx, const assay_case *c, bool whole, assay_steps **steps);
