/* A program as steps of a graph. */
#pragma once

#include "oracle/graph/graph.h"
#include "oracle/program/program.h"

/* Whether a graph has room for it. */
bool assay_program_fits(const assay_program *p);
/* The graph, whose names point into the program. */
void assay_program_graph(const assay_program *p, graph *g);
