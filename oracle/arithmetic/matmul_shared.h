/* Products of linear layers whose rows or columns several ranks share. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"

/* The product in the context's arithmetic, whole where sharing it does not pay. */
assay_status assay_matmul_shared(assay_context *ctx, const assay_matmul_args *args);
