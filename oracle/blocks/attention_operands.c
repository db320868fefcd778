#include "oracle/blocks/attention_operands.h"

assay_attention_operands assay_attention_inputs_of(graph *g)
{
    assay_attention_operands in;
    in.x = graph_input(g, "inputs/x", "BSD");
    in.positions = graph_indices(g, "inputs/positions", "BS");
    in.segment_ids = graph_indices(g, "inputs/segment_ids", "BS");
    return in;
}
