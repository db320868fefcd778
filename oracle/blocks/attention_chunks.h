/* Attention whose keys come in chunks, as chunked prefill and split KV have them: each chunk gives a state of its own, softmax
 * and log-sum-exp over the keys of the chunk that a query sees, and these are merged (oracle/ops/merge_states.h; vLLM's MLA
 * prefill, mla/common.py). */
#pragma once

#include "oracle/graph/graph.h"

/* y of the graph, whose attention has keys in chunks of `chunk` tokens; up to rounding what the graph gives. `r` runs it, with
 * all that is given lent. The graph has one step of attention. */
assay_status assay_attention_chunks_forward(assay_context *ctx, double *y, graph_run *r, int64_t chunk);
