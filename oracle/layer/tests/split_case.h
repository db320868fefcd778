/* A stack that may be under the batch-split schedule, and the same one layer after layer. */
#pragma once

#include "oracle/layer/tests/layer_case.h"

/* With sizes that fsdp 2 divides, and what the schedule asks for; on one device, routing weights on h. */
assay_stack_config split_case_form(assay_stack_config config);
/* One device, layer after layer. The tensors are there. */
layer_case split_case_plain(int64_t layers, int64_t dense, int64_t batch, int64_t sequence);
/* The same tensors, which `plain` frees, under the schedule. */
layer_case split_case_of(const layer_case *plain, assay_mesh mesh, int64_t factor);
/* One shard, of one row of one token in each microbatch. */
layer_case split_case_small(int64_t layers, int64_t dense, int64_t factor);
