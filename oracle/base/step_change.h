/* A change of steps: what a kernel computes that leaves one out, or does it in another way. It stands in the context
 * (assay_context.change) and applies to every such step that is run with it, in a graph (oracle/graph) or outside of one: in blocks,
 * layers, shards and experts alike. Mutants are made so, and what else is right on a kink. */
#pragma once

#include "oracle/base/dtype.h"

typedef enum assay_step_how {
    ASSAY_STEP_AS_IT_IS,
    ASSAY_STEP_TIMES,   /* nothing but `by` times its input `input` comes of it: 1: it is left out; 0: it gives zeros */
    ASSAY_STEP_CHANGED, /* as `make` makes it; of steps of graphs alone */
    ASSAY_STEP_KINKS /* every step of a graph: on a kink it has the least slope (by 0) or the largest (by 1) of those there */
} assay_step_how;

/* The step of a graph with one of its changes (harness/mutants/step_changes.h); false: it has none such. */
struct graph;
struct graph_step;
typedef bool assay_step_maker(const struct graph *g, int number, int change, struct graph_step *changed, char *name);

/* What attention over a cache is to read (oracle/ops/decode_attention.h) becomes something else; false: it stays. */
struct assay_decode_config;
struct assay_decode_inputs;
struct assay_decode_plan;
typedef bool assay_reading_change(int change, const struct assay_decode_config *config,
                                  const struct assay_decode_inputs *in, struct assay_decode_plan *plan);

typedef struct assay_step_change {
    assay_step_how how;
    const char
        *kind; /* of step; NULL: any. What is no step of a graph, or is told a parameter, has a word of its own */
    const char *tensors; /* words with spaces between: it reads or makes a tensor whose name ends in one; NULL: any */
    bool of_results;     /* of what steps make alone */
    int step; /* of a graph, its number from 1: this one, whatever it is called; 0: it goes by kind and tensors */
    int rounds, apart; /* and the same one in so many more rounds of a loop, so many steps apart */
    bool alike;        /* and all others that have such a change */
    int input;
    double by;
    assay_step_maker *make; /* of ASSAY_STEP_CHANGED */
    int change;
    assay_reading_change *reading; /* NULL: all is read as it should */
    assay_dtype type;              /* of what is rounded to a coarser one */
    bool *found;                   /* there was such a step; NULL: nobody asks */
} assay_step_change;

/* Whether the step that reads or makes the tensor is changed: then it counts as found. */
bool assay_step_is_changed(const assay_context *ctx, const char *kind, const char *tensor);
