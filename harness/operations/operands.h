/* Operands of products that a case says are quantised (`quant_formats:`): codes at the tensor's own path and in its shape,
 * and beside it PATH_scale and, where the format has one, PATH_tensor_scale. They are numbers, exactly: code * scale
 * (* tensor_scale), which the operation computes on in float64 and which nobody rounds again.
 *
 * The columns of a block (oracle/base/block_format.h) lie along the axis that the product sums over, its rows along the
 * other: 1 x 32 is 32 terms of a sum. Scales are row-major: [.., ceil(rows / block), ceil(columns / block)]; axes that a block has
 * one index of stay as they are. A scale of the tensor is one for each matrix of a weight [E]; of any other tensor [1]. */
#pragma once

#include "harness/operations/operation.h"
#include "oracle/base/tensor_set.h"

/* The tensors that `quant_formats:` names become codes, and their scales stand behind them. Refuses what is no operand, and
 * rules of quantising that a format does not have. */
assay_status assay_quantise_list(assay_context *ctx, const assay_case *c, const assay_operation *operation,
                                 assay_tensor_list *list);

/* The tensor that a scale belongs to: the entry itself, or one before it. */
const assay_tensor_entry *assay_operand_of(const assay_tensor_list *list, const assay_tensor_entry *entry);

/* Elements [first, first + count) of codes or of a scale, of what `dense` gives as that tensor's numbers. */
assay_status assay_operand_quantise(assay_context *ctx, const assay_case *c, const assay_tensor_list *list,
                                    const assay_tensor_entry *entry, const assay_source *dense, int64_t first,
                                    int64_t count, double *out);

/* A source whose quantised operands are numbers; it has no scales. What the source below has without scales are numbers
 * already. */
typedef struct assay_dequantised {
    assay_wrapped wrapped;
    const assay_tensor_list *list;
} assay_dequantised;
assay_source assay_dequantised_source(assay_dequantised *dequantised);

/* The tensors of a set with numbers of float64 in the place of codes, and without scales. `dense` starts zeroed, and is freed
 * if it fails. */
assay_status assay_operands_as_numbers(assay_context *ctx, const assay_tensor_list *list, const assay_tensor_set *set,
                                       assay_tensor_set *dense);
