/* Inputs, weights and cotangents of a case as a source: drawn from the seed, or taken from a user's file where that has
 * them. */
#pragma once

#include "fixtures/fixture.h"
#include "harness/operations/operation.h"
#include "harness/plan/model_weights.h"
#include "harness/plan/plan.h"

typedef struct assay_inputs {
    const assay_case *c;
    const assay_tensor_list *list;
    assay_fixture_reader *file; /* of --inputs, or NULL */
    const char *file_name;
    assay_model_weights *weights; /* of --weights, or NULL */
    const char *weights_name;
} assay_inputs;

/* `file` may be NULL. Refuses a file whose inputs/, weights/ or cotangents/ the case does not have, or has in another
 * shape. */
assay_status assay_inputs_open(assay_context *ctx, assay_inputs *inputs, const assay_case *c,
                               const assay_tensor_list *list, const char *file);
/* For a plan, with its weights of a checkpoint too (model_weights.h). Refuses weights that the file has as well. */
assay_status assay_inputs_open_plan(assay_context *ctx, assay_inputs *inputs, const assay_plan *plan, const char *file);
/* Refuses what they refuse, and no more. */
assay_status assay_inputs_check(assay_context *ctx, const assay_plan *plan, const char *file);
void assay_inputs_close(assay_inputs *inputs);

/* Elements that are read from a file must lie on the case's grid and be finite. Whole numbers must lie where the entry
 * of the tensor says, wherever they are from. */
assay_source assay_inputs_source(assay_inputs *inputs);
