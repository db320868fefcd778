/* A stack a layer at a time: one layer forward from its input, or backward from its input and the gradient of its output, with
 * the bits of the stack that is evaluated whole (oracle/layer/decoder_stack.h). Private to harness/golden. */
#pragma once

#include "harness/plan/plan.h"

/* Refuses, for `what` (an option), cases that are not evaluated so: other operations, the batch-split schedule, a policy
 * that keeps more than the inputs of layers, one layer alone. *layers: how many there are. */
assay_status assay_layers_check(assay_context *ctx, const assay_plan *plan, const char *what, int64_t *layers);

/* Bytes that the largest of them takes. */
int64_t assay_layers_memory(const assay_plan *plan, int64_t layers);

/* The layer that a path belongs to; -1: none. */
int64_t assay_layer_of(const char *path);
/* Whether a dataset of the plan is a result of that layer, of that direction. */
bool assay_is_of_layer(const assay_tensor_spec *spec, int64_t layer, bool backward);

/* Where the input of a layer stands, and where the gradient of it. */
void assay_boundary_path(int64_t layer, bool gradient, char path[ASSAY_PATH_SIZE]);

/* `in` has inputs/x of that layer and, backward, cotangents/y; the other tensors are the stack's. Results of both go to
 * `out` where it wants them, outputs/y and gradients/inputs/x of that layer too. */
assay_status assay_layer_run(assay_context *ctx, const assay_plan *plan, int64_t layer, bool backward,
                             const assay_source *in, const assay_sink *out);
