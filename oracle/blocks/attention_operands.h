/* What every attention is given, as tensors of a graph. */
#pragma once

#include "oracle/graph/graph.h"

typedef struct assay_attention_operands {
    int x;           /* [B,S,D] */
    int positions;   /* [B,S] */
    int segment_ids; /* [B,S], which may be missing */
} assay_attention_operands;

/* Inputs of a graph that begins: inputs/x, inputs/positions, inputs/segment_ids. */
assay_attention_operands assay_attention_inputs_of(graph *g);
