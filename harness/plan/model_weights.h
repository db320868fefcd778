/* --weights: the weights of a case from a checkpoint with the names and layouts of Hugging Face's models
 * (weight_names.h, docs/hugging-face.md). */
#pragma once

#include "harness/operations/operation.h"

typedef struct assay_model_weights assay_model_weights;

/* How many bytes of `text`, below, name the file or folder. */
int assay_model_weights_path(const char *text);

/* `text` is a file or folder (checkpoint.h), with :PREFIX behind it where it has more than one layer
 * (model.layers.3, or model.layers.3.mlp). Every weight of the case that holds floats must be there, in the shape that its
 * layout gives it, and nothing else may be of the part of a layer that the case computes. Numbers with a scale for each
 * block of 128 x 128 (NAME_scale_inv) are multiplied with it in float32 and rounded to the tensor's type; but kernels that
 * quant_formats names are codes and scales, and are read as they are. */
assay_status assay_model_weights_open(assay_context *ctx, const char *text, const assay_case *c,
                                      const assay_tensor_list *list, assay_model_weights **weights);
void assay_model_weights_close(assay_model_weights *weights); /* NULL is safe */

bool assay_model_weights_has(const assay_model_weights *weights, const char *path);
assay_status assay_model_weights_read(assay_context *ctx, assay_model_weights *weights, const char *path, int64_t first,
                                      int64_t count, double *out);
