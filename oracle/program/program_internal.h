/* Within oracle/program. */
#pragma once

#include "oracle/program/program.h"

/* [..,N,K,V] of query [..,T,N,K] and value [..,T,N,V]. */
void assay_program_state_axes(const char *query, const char *value, char state[ASSAY_MAX_RANK + 1]);
/* A node of quantise that has its shape. */
assay_status assay_program_check_quantise(assay_context *ctx, const assay_program_node *node);
/* A node of attention by a mask, or its log-sum-exp. */
int assay_program_put_masked(struct graph *g, const assay_program_node *node, const int *in, bool lse);
/* The graph of the nodes. */
assay_status assay_program_make_graph(assay_context *ctx, assay_program *p);
void assay_program_drop_graph(assay_program *p);
/* Whether a node makes whole numbers of whole numbers. */
bool assay_program_is_exact(const assay_program *p, const assay_program_node *node);
