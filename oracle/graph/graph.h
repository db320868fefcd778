/* A block as steps over tensors, in the order of the data flow. The function of a block (oracle/blocks) puts the steps down once,
 * straight through, as a paper does; walkers do the rest: run, drop and compute again, run back, read and write, describe, count.
 *
 * A graph is built for one configuration: its sizes are numbers, and what a configuration lacks is not in it. Tensors go by their
 * places, 1 and up; 0 is none. What is named is a checkpoint of the contract; the rest has a name for messages alone.
 *
 * Rounding: an output that a correct implementation may store is rounded once, by the walker. Gradients of inputs are rounded
 * by the step that makes them, and sums of several readers as they grow, in the order in which steps run back: the sum of a
 * block's own input is its caller's to round. Within products each kind rounds as its arithmetic does. */
#pragma once

#include "oracle/base/tensor_table.h"
#include "oracle/ops/cache_format.h"
#include "oracle/ops/decode_attention.h"
#include "oracle/ops/gated_mlp.h"
#include "oracle/ops/quant_recipe.h"
#include "oracle/ops/yarn_rope.h"

/* What a graph has room for by itself; that of a program asks for memory where it needs more (graph_open_room). */
enum { GRAPH_TENSORS = 160, GRAPH_STEPS = 96, GRAPH_OUTPUTS = 16, GRAPH_IN = 7, GRAPH_OUT = 2 };

typedef enum graph_role {
    GRAPH_WITHIN, /* computed again where backward reads it */
    GRAPH_INPUT,
    GRAPH_NUMBER, /* of a program: every run has it */
    GRAPH_INDICES,
    GRAPH_WEIGHT,
    GRAPH_CHECKPOINT,
    GRAPH_ASIDE /* a checkpoint that a block makes as it runs, and writes itself (graph_aside) */
} graph_role;

/* Where a correct implementation has a tensor. */
typedef enum graph_keeping {
    GRAPH_LEFT,      /* it is exact, or its caller's to round */
    GRAPH_REGISTERS, /* in the type of sums, in which some kinds round it */
    GRAPH_STORED     /* it may store it: it is rounded */
} graph_keeping;

typedef struct graph_tensor {
    assay_tensor_row row;
    graph_role role;
    graph_keeping kept;        /* what is given: STORED: its gradient is rounded where that is a sum */
    bool constant;             /* it follows from indices: it has no gradient */
    bool flows;                /* an output's gradient may reach it; else it has none, whatever others do */
    int step;                  /* that makes it; -1: it is given */
    int last;                  /* the last step that reads it; -1: none does */
    bool read_in_slices;       /* those who read it take parts of it, which are disjoint */
    bool quantised;            /* a step quantises it, and the block computed it itself */
    bool integers;             /* that a step makes, which others read as indices */
    bool chosen;               /* and a choice: a result, in whose place the run goes on from what the source has */
    bool codes;                /* that are staged are the result, in the place of those that were computed */
    assay_tensor_row gradient; /* which a recipe quantises on the way back, a checkpoint; without a name: nothing */
    double number;             /* GRAPH_NUMBER */
} graph_tensor;

typedef struct graph_rotation {
    int64_t first; /* column of each head that is turned; the others pass */
    assay_rope_config config;
} graph_rotation;

/* What a product comes in. 0 stands for 1. */
typedef struct graph_partition {
    int64_t
        groups; /* of rows, one after the other, each with a w of its own: these have an axis in front; 0: no such axis */
    int64_t slices; /* of the sum over x's columns, which are stored and added up, ascending */
    int64_t chunks; /* of each of these, which continue one sum */
    int64_t shards; /* of the columns of each branch: the gradient of x is the sum of theirs, ascending */
    bool apart;     /* by a recipe each of them is a layer of its own, with scales of what it has */
} graph_partition;

typedef struct graph_product {
    assay_quant_recipe_config recipe;
    int branches;      /* of the columns of w: the gradient of x is the sum of theirs */
    unsigned detached; /* bit i: nothing flows back to x through branch i, or through w i of two */
    bool joined;       /* of two w the gradient of x is one product, with both beside each other */
    graph_partition partition;
} graph_product;

/* Of the kinds that programs are made of (kind_map.c, kind_reduce.c, kind_moves.c, kind_product.c). */
typedef struct graph_general {
    int function; /* graph_map, graph_binary, graph_reduction */
    double a, b;  /* the function's numbers; b: of two, what the second is where it is no tensor */
    double kink;  /* the slope where there are several (kink_range); of the largest over axes: each one's share */
    char over[ASSAY_MAX_RANK + 1]; /* axes that a sum, a softmax, a cut or a join goes along */
    int64_t first;                 /* index along the axis */
    bool unfused;                  /* a function or softmax is made of operators that may store their results each */
    assay_dtype type;              /* of cast */
    double passed_over;            /* of steps that read indices: the one that is no row; NAN: there is none */
} graph_general;

typedef union graph_parameters {
    graph_general general;
    graph_product product;          /* linear, expand */
    double number;                  /* the epsilon of a norm */
    assay_gated_mlp_config mlp;     /* glu */
    assay_quantize_config quantise; /* quantise_hidden, hidden_numbers */
    graph_rotation rope;            /* and of angles, rotation */
    assay_attention_config attention;
    assay_decode_config decode;
    assay_merge_states_config merge;
    assay_cache_config cache; /* cache_numbers */
    const void *block;        /* of a kind that is another block (graph_block) */
} graph_parameters;

/* What is done around a step of which a change (oracle/base/step_change.h) has made another one, by functions of its own. */
struct graph;
struct graph_step;
struct graph_call;
typedef void graph_values(const struct graph *g, const struct graph_step *step, double *values, bool gradient);
typedef void graph_states(int64_t rows, int64_t columns, int64_t all, double *states, bool gradient);
typedef struct graph_hooks {
    /* The call reads something else, in *room, which is freed behind it; and gradients become others. */
    assay_status (*before)(assay_context *ctx, struct graph_call *call, bool backward, double **room);
    void (*behind)(const struct graph_call *call);                       /* backward */
    void (*result)(const struct graph_call *call, int i, bool gradient); /* of out[i], before it is rounded */
    graph_states *states; /* [rows,columns] at each boundary of a chunk */
    int64_t chunk;
    bool once; /* at the first boundary alone */
    struct {
        graph_values *values;
        void (*redo)(const struct graph_call *call, bool back);
        int input, other;
        double by;
        int64_t count;
        assay_dtype type;
        char axis;
        bool back_alone;
        unsigned detached;
    } with; /* what these functions go by */
} graph_hooks;

typedef struct graph_step {
    const struct graph_kind *kind;
    int in[GRAPH_IN], out[GRAPH_OUT];
    graph_parameters with;
    graph_hooks hooks;
    bool
        in_parts; /* a correct kernel may make its function of several that store their results, and keeps its numbers so */
    bool staged;      /* its functions err as in a run stage by stage (assay_is_staged) */
    assay_dtype sums; /* of a correct kernel; float64: the profile's, ASSAY_DTYPE_COUNT: what it stores */
} graph_step;

/* What a block by itself gives: outputs/NAME, with cotangents/NAME. */
typedef struct graph_output {
    const char *name;
    int tensor;
} graph_output;

/* It is not copied: its lists may stand in it. */
typedef struct graph {
    const void *config; /* while it is built */
    int64_t (*axis_size)(const void *config, char axis);
    int tensor_count, step_count; /* tensors[0] is none */
    int weight_count;
    int weights[ASSAY_MOST_ROWS]; /* in the order of the block's table; 0: it has none */
    int gradient_count;
    int gradients[GRAPH_STEPS]; /* tensors with one, in the order of their checkpoints */
    int result;
    int output_count;
    int64_t owners; /* of its rows, as many each: the gradients of weights are the sums of theirs, ascending; 0 is 1 */
    /* What ends is its caller's to round: a gradient of one term that is wanted, and an output that only its own step reads,
     * when that runs back. */
    bool unrounded;
    bool reuses;  /* room of what is dropped is used again: a program may have many steps and little work in each */
    bool adds_up; /* sums of gradients are rounded like any other sum besides (vector_sums.h) */
    graph_tensor *tensors;
    graph_step *steps;
    graph_output *outputs;
    graph_tensor own_tensors[GRAPH_TENSORS];
    graph_step own_steps[GRAPH_STEPS];
    graph_output own_outputs[GRAPH_OUTPUTS];
} graph;

/* --- building (graph_build.c) --- */

/* axis_size: of the letters that tensors' axes have. */
void graph_begin(graph *g, const void *config, int64_t (*axis_size)(const void *config, char axis));
/* After graph_begin: room for so many, until graph_close_room. */
assay_status graph_open_room(assay_context *ctx, graph *g, int64_t tensors, int64_t steps, int64_t outputs);
void graph_close_room(graph *g); /* safe on a zeroed struct */
/* Other sizes from here on, of a block within. */
void graph_within(graph *g, const void *config, int64_t (*axis_size)(const void *config, char axis));
int graph_input(graph *g, const char *name, const char *axes);
int graph_number(graph *g, const char *text, double number);
int graph_indices(graph *g, const char *name, const char *axes);
/* The next weight of the block's table; a row without a name: there is none. */
int graph_weight(graph *g, assay_tensor_row row);
/* Within the graph, for those who look for it and for messages. */
int graph_called(graph *g, const char *name, int tensor);
/* A checkpoint from now on. */
int graph_named(graph *g, const char *name, int tensor);
/* Its gradient, which its step quantises by a recipe, is a checkpoint. */
void graph_quantised(graph *g, const char *name, const char *axes, int tensor);
/* A correct kernel keeps it in registers. */
int graph_fused(graph *g, int tensor);
/* One more output, before building ends; a block that says none has its result, y. */
void graph_gives(graph *g, const char *name, int tensor);
/* Ends building: the tensor is what the block gives, its caller's to round (GRAPH_LEFT), or what others go on from as it may be stored. */
void graph_end(graph *g, int result, graph_keeping kept);

/* Each step gives its output, which has these axes. bias 0: none. */
int graph_linear(graph *g, const char *axes, int x, int w, int bias, const assay_quant_recipe_config *recipe);
/* w has the columns of two beside each other, whose gradients of x are added up; each has a bias, or none. */
int graph_linear_pair(graph *g, const char *axes, int x, int w, const int bias[2],
                      const assay_quant_recipe_config *recipe);
/* Two layers that are one step: each of two w has a bias, or none, and an output. */
void graph_linear_two(graph *g, const char *axes, int x, const int w[2], const int bias[2],
                      const assay_quant_recipe_config *recipe, int out[2]);
/* x [rows,k] in groups of rows, each with a w of its own, as many as the whole numbers say; rows behind them give 0. */
int graph_linear_grouped(graph *g, const char *axes, int x, int w, int group_sizes);
/* The linear layer that makes the tensor comes in parts. */
void graph_partition_product(graph *g, int tensor, const graph_partition *partition);
/* The step that makes the tensor. Its GRAPH_ROW_WEIGHTS [rows] multiply x [rows,k] before, and are a weight on y and on its bias. */
graph_step *graph_maker(graph *g, int tensor);
/* x [rows,...] times weights [rows], as a step of its own. */
int graph_weigh(graph *g, int x, int weights);
/* A copy, which may be stored; x itself is its caller's to round. */
int graph_stored(graph *g, int x);
int graph_add(graph *g, int x, int y);
int graph_rms_norm(graph *g, int x, int scale, double epsilon); /* over the scale's axis, the last one */
int graph_layer_norm(graph *g, int x, int scale, int bias, double epsilon);
/* x over the root of the mean of its squares along the last axis, or of their sum, and epsilon. */
int graph_over_root(graph *g, int x, bool of_sum, bool stored, double epsilon);
int graph_scale(graph *g, int x, double factor);
/* What x has along an axis from `first` on; nothing but such parts reads x, and no two have the same. */
int graph_slice(graph *g, const char *axes, int x, char axis, int64_t first);
/* The angles of positions [B,S,dim/2], and their cosines and sines. */
typedef struct graph_turns {
    int cosine, sine;
    const assay_rope_config *config;
} graph_turns;
graph_turns graph_rotations(graph *g, int positions, const assay_rope_config *config);
/* x [B,S,width] or [B,S,N,width]: as many of its columns as turns has, from `first`, are turned, and the others pass. */
int graph_rope(graph *g, int x, int64_t first, const graph_turns *turns);
/* key [B,S,N,q] and value [B,S,N,v] from latent [B,S,l], w [l,N,u] and what every head gets behind its own part of the key.
 * Each can be had without the other. */
typedef struct graph_key_value {
    int key, value;
} graph_key_value;
graph_key_value graph_expand(graph *g, int latent, int w, int key_rope, const assay_quant_recipe_config *recipe);
/* attention_out, named, and lse, named; segment_ids and sinks may be 0. */
int graph_attention(graph *g, const char *axes, int query, int key, int value, int segment_ids, int sinks,
                    const assay_attention_config *config);

/* The same without names, of any letters. */
int graph_attend(graph *g, const char *axes, const char *lse, int query, int key, int value, int segment_ids, int sinks,
                 const assay_attention_config *config);
/* A step of attention, whose second output is lse, which a kernel has in the type of sums. */
int graph_with_lse(graph *g, const struct graph_kind *kind, const char *axes, const char *lse, const int *in,
                   int in_count, const graph_parameters *with);
int graph_lse_of(const graph *g, int tensor);
/* A step of a kind whose parameters are graph_general. */
int graph_step_of(graph *g, const struct graph_kind *kind, const char *axes, const int *in, int in_count,
                  const graph_general *with);
/* y of the gated delta rule, or its last state: one step gives both. */
int graph_delta_rule(graph *g, const char *axes, const char *state_axes, const int *in, int in_count, bool state);
/* What graph_indices gives, but made by a step of whole numbers; of top_k, called by its path, it is a choice. */
int graph_integers(graph *g, const struct graph_kind *kind, const char *axes, int x);

/* h of gate and up, or of both in one tensor (up 0). */
int graph_glu(graph *g, const char *axes, int gate, int up, const assay_gated_mlp_config *config);
/* x through a block that is one step, of a kind of its own; its configuration lives as long as the graph. */
int graph_block(graph *g, const struct graph_kind *kind, int x, const void *config);
/* What the block makes besides. It has room where it is kept for backward, and is released like any checkpoint. */
void graph_aside(graph *g, int y, assay_tensor_row row);
/* What those who read h take of it where a kernel quantises it: numbers of codes and scales, one of these for each block of a row
 * of `config->columns`; both are named. */
int graph_quantise_hidden(graph *g, const char *codes, const char *scale, int h, const assay_quantize_config *config);

/* --- looking (graph_count.c) --- */

int graph_find(const graph *g, const char *name); /* 0: it has none */
/* Whether a recipe quantises what the block computed: its codes are no tensor. */
bool graph_is_requantised(const graph *g, int tensor);
int64_t graph_size(const graph *g, int tensor); /* in numbers */
/* Whether a weight is read by one linear layer in groups of rows alone: one group of it is needed at a time (kind_linear.c). */
bool graph_can_stream(const graph *g, int tensor);
int64_t graph_last_axis(const graph *g, int tensor);
int64_t graph_axis(const graph *g, char axis); /* its size, of the first tensor that has it; 0: none has */
/* Its function where its kind has many of them, else its kind. */
const char *graph_step_name(const graph_step *step);
/* "epsilon 1e-06": what matters of the step's parameters besides (graph_text.c); "" where it has none. */
void graph_parameters_text(const graph_step *step, char *text, size_t size);
assay_tensor_table graph_weight_table(const graph *g);
/* Operations of the products that computing a tensor takes, from checkpoints before it; a multiply and an add are 2. */
double graph_operations(const graph *g, int tensor);
double graph_forward_operations(const graph *g);
/* With what is computed again that has no name. */
double graph_backward_operations(const graph *g);
/* Numbers of weights, and of named tensors. */
double graph_numbers(const graph *g);
double graph_scratch(const graph *g); /* numbers that steps work with besides */

/* --- running (graph_walk.c) --- */

/* Room that is not needed any more, which a tensor of the same size takes. */
enum { GRAPH_SPARES = 4 };
typedef struct graph_room {
    double *numbers;
    int64_t size;
} graph_room;

/* Starts by graph_open. What is lent stays its owner's; the rest is the run's. */
typedef struct graph_run {
    const graph *graph;
    int tensor_count;       /* the graph's, which may go before the run is closed */
    const assay_source *in; /* staged tensors and spreads; NULL: there are none */
    const assay_sink *out;  /* checkpoints; NULL: nobody wants any */
    const char *prefix;     /* of their paths: "layers/3/" or "" */
    int64_t number;         /* of runs whose tensors lie one after the other in the source's: this one's */
    /* Of each tensor, in memory of the run: */
    void *memory;
    bool *shown; /* a checkpoint that is not written, or not again when it is computed again */
    /* Forward is done with a checkpoint: it may take it over. NULL: it stays, for backward. */
    assay_status (*release)(assay_context *ctx, void *self, int tensor, double **values);
    void *self;
    double **value, **gradient;
    double **room, **gradient_room; /* lent: where a value or a gradient goes */
    bool *lent, *lent_gradient;
    const int32_t **indices;
    int32_t **chosen;           /* those of them that steps made */
    const int32_t *group_sizes; /* of products that come in groups; rows beyond these give 0 */
    /* Weights of groups (graph_can_stream) that are read from `weights` when their turn comes, and gradients that are written to
     * `gradients` as they are made. */
    bool *streams, *gradient_streams;
    const assay_source *weights;
    const assay_sink *gradients;
    double **deviation, **gradient_deviation; /* quantised_deviation.h; NULL: exact */
    /* Of y that a softmax makes, in an emulated run: the sum over its axis of y times its gradient, as it follows from a product; and
     * terms of the gradient of x that cancel in another form of what reads y. */
    double **row_sums, **cancelled;
    graph_room spare[GRAPH_SPARES];
    int oldest_spare;
    bool *live;           /* of each step: it runs back */
    bool *leads;          /* of a gradient: something comes of it that is wanted */
    int *terms, *pending; /* likewise: those that are in it, and those to come */
} graph_run;

/* A release that keeps nothing. */
assay_status graph_let_go(assay_context *ctx, void *self, int tensor, double **values);

assay_status graph_open(assay_context *ctx, graph_run *r, const graph *g);
void graph_close(graph_run *r);                                  /* safe on a zeroed struct */
void graph_lend(graph_run *r, int tensor, const double *values); /* NULL: it is not there */
void graph_lend_weights(graph_run *r, double *const *weights);   /* in the order of their table; NULL: not there */
/* A gradient that backward starts from: what steps give to it besides is added there; a step that shows it may change it. */
void graph_lend_gradient(graph_run *r, int tensor, const double *values);
/* Where the gradient of an input goes; NULL: nobody wants it. */
void graph_want_gradient(graph_run *r, int tensor, double *values);
void graph_want_weight_gradients(graph_run *r, double *const *gradients);
/* The value, which is the caller's now; the run has none any more. */
double *graph_release_value(graph_run *r, int tensor);
/* What no checkpoint is. */
void graph_drop_within(graph_run *r);

/* Reads the spreads of what recipes quantise, where the source has them. */
assay_status graph_read_deviations(assay_context *ctx, graph_run *r);
/* Checkpoints that the source has: they are not computed, and not written. */
assay_status graph_read_inputs(assay_context *ctx, graph_run *r);
/* All steps: checkpoints are written, and the run goes on from those that are staged. */
assay_status graph_forward(assay_context *ctx, graph_run *r);
/* The tensor, and what it needs: what is there is not computed. Nothing is written. */
assay_status graph_require(assay_context *ctx, graph_run *r, int tensor);
/* The same; checkpoints on the way are written. */
assay_status graph_show(assay_context *ctx, graph_run *r, int tensor);
/* From the gradients that are there to those that are wanted. What it needs of forward is there, or is computed again. */
assay_status graph_backward(assay_context *ctx, graph_run *r);
/* Whether the sink wants a gradient of the graph that is a checkpoint. */
bool graph_wants_gradients(const graph_run *r);
