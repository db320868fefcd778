/* A program as steps of a graph. */
#pragma once

#include "oracle/graph/graph.h"
#include "oracle/program/program.h"

/* Refuses one that a graph has no room for. */
assay_status assay_program_fits(assay_context *ctx, const assay_program *p);
/* The graph, whose names point into the program. */
void assay_program_graph(const assay_program *p, graph *g);
