/* Blocks as graphs, for tests: numbers for all that a graph is given, room for all that it gives; and what holds of every block,
 * whatever it computes. */
#pragma once

#include "oracle/graph/graph.h"
#include "oracle/ops/tests/ops_test.h"

typedef struct block_problem {
    const graph *graph;
    int64_t tokens, dim; /* of x [tokens,dim], and y */
    int32_t *positions, *segment_ids;
    double *values[GRAPH_TENSORS];    /* x and weights; checkpoints, as the last run gave them */
    double *gradients[GRAPH_TENSORS]; /* of x and weights */
    double *dy;
    const assay_source *in; /* of the runs; NULL: none */
    const assay_sink *out;
    graph_run run;
} block_problem;

/* The graph must stay. segmented: segments that are not adjacent, with padding between and around them. */
void block_open(block_problem *p, const graph *g, bool segmented);
void block_close(block_problem *p);
/* A new run, of which nothing has been computed; checkpoints are NaN. */
void block_begin(block_problem *p);
/* Gradients are NaN before. */
assay_status block_backward(assay_context *ctx, block_problem *p);
/* Forward and backward from the start. */
void block_run(assay_context *ctx, block_problem *p);

bool block_is_given(const graph *g, int tensor); /* x or a weight */
double *block_value(const block_problem *p, const char *name);
double *block_gradient(const block_problem *p, const char *name);
int64_t block_size(const block_problem *p, const char *name);

double block_largest(const double *values, int64_t count);
/* Within `relative` of the largest. */
void block_assert_near(const double *actual, const double *expected, int64_t count, double relative);

/* Correct implementations that store in bfloat16. */
extern const assay_emulation block_bfloat16;

/* Any checkpoints can be dropped and are had again with the same bits, plain and emulated. */
void block_check_recomputing(const graph *g, bool segmented);
/* Of a block with one attention, whose kernels are counted where they are. */
void block_check_operations(const graph *g);
/* What padding holds changes nothing for the others. */
void block_check_padding(const graph *g);
/* What is kept between steps is as it would be stored; y is the caller's to round. */
void block_check_grid(const graph *g);
