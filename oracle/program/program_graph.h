/* A program as steps of a graph. */
#pragma once

#include "oracle/graph/graph.h"
#include "oracle/program/program.h"

/* The graph of a compiled program, whose it stays. */
void assay_program_graph(const assay_program *p, graph *g);
