/* The inputs of attention over a cache as another form of the case has them: keys in pages of another size, order and layout, or
 * in none, or each token as a sequence of its own. */
#pragma once

#include "harness/operations/operation.h"
#include "oracle/base/tensor_set.h"

/* Whether the two cases have other caches, lengths or tables. */
bool assay_decode_lies_elsewhere(const assay_case *one, const assay_case *other);
/* Whether such a tensor is among these. */
bool assay_decode_is_moved(const char *path);
/* Those tensors of the other case, from the one's. What no sequence has is NaN. */
assay_status assay_decode_move(assay_context *ctx, const assay_case *one, const assay_tensor_set *from,
                               const assay_case *other, const assay_tensor_set *to);
