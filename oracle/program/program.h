/* Programs: operations that users write, as steps over tensors with named axes (docs/programs.md).
 *
 * A program is sizes of axes, tensors that are given, and lines: a name and an expression over steps, e.g.
 *     q: product("TD,DNR->TNR", rms_norm(x, scale, epsilon=1e-6), w)
 * in the order of the data flow. Compiling it makes a list of nodes: each a tensor that is given, a number, or a step of nodes before it,
 * and the graph of these (oracle/graph). The steps stand in one table (program_steps.inc). */
#pragma once

#include "oracle/base/tensor.h"
#include "oracle/ops/attention.h"
#include "oracle/ops/quantize.h"
#include "oracle/ops/yarn_rope.h"

enum {
    ASSAY_PROGRAM_OPERANDS = 8, /* of a step; of concatenate: */
    ASSAY_PROGRAM_PARTS = 6,
    ASSAY_PROGRAM_NAME = 40, /* with its end */
    ASSAY_PROGRAM_TEXT = 400,
    ASSAY_PROGRAM_PARAMETERS = 10,
    ASSAY_PROGRAM_LETTERS = 128,
    ASSAY_PROGRAM_EITHER = 8
};

typedef struct assay_program_tensor {
    char name[ASSAY_PROGRAM_NAME], path[ASSAY_PROGRAM_NAME + 12]; /* "w", "weights/w" */
    char axes[ASSAY_MAX_RANK + 1];
    bool weight;
    bool integers; /* from low to high where nothing else is said */
    int64_t low, high;
    bool passes_over; /* lines compare it with `over`, which is none of these: as an index it is no row */
    int64_t over;
    int line, column; /* of its name, in the case file; 0: from elsewhere */
} assay_program_tensor;

/* Checkpoints of a line that quantises: what it quantises, and what it makes of that. */
typedef enum assay_program_coded {
    ASSAY_CODED_X,
    ASSAY_CODED_CODES,
    ASSAY_CODED_SCALE,
    ASSAY_CODED_COUNT
} assay_program_coded;

typedef struct assay_program_line {
    char name[ASSAY_PROGRAM_NAME],
        path[ASSAY_PROGRAM_NAME + 16];                     /* "n", "checkpoints/n"; of a choice "routing/n/top_k" */
    char coded[ASSAY_CODED_COUNT][ASSAY_PROGRAM_NAME + 8]; /* "q/x", "q/codes", "q/scale"; "": it quantises nothing */
    char of[ASSAY_PROGRAM_NAME]; /* the name as it was written, which the lines of a loop share */
    char text[ASSAY_PROGRAM_TEXT];
    bool output;
    bool fused, stored; /* a correct kernel keeps its intermediates in registers; stores them */
    assay_dtype sums; /* that a correct kernel keeps its sums in; float64: the profile's, of no type: what it stores */
    int line, column; /* of the text, in the case file; 0: from elsewhere */
    int node;         /* what it gives */
} assay_program_line;

typedef struct assay_program_value {
    double number;
    char text[3 * (ASSAY_MAX_RANK + 2)];
} assay_program_value;

/* How a step's tensors go together; program_steps.inc has the table. */
typedef struct assay_program_step assay_program_step;

typedef struct assay_program_node {
    const assay_program_step *step; /* NULL: given, or a number */
    int input;                      /* place among the tensors; -1: it is none */
    double number;                  /* of what is neither, and as it was written */
    char text[24];
    int in[ASSAY_PROGRAM_OPERANDS], in_count;
    assay_program_value values[ASSAY_PROGRAM_PARAMETERS]; /* of the step's parameters, in their order */
    char axes[ASSAY_MAX_RANK + 1];
    assay_shape shape;
    bool integers;
    bool exact;  /* follows from whole numbers without a rounding: it has no gradient, and may be a mask */
    bool jumped; /* what jumps reads it (floor, round, above) */
    bool chosen; /* whole numbers that the step chooses: a choice, which stands alone in its line */
    bool coded;  /* numbers of codes and scales, which have the name of its line: so does this */
    double over; /* of a step that reads indices: which is no row; NAN: there is none */
    int line;    /* that it was made for */
    int readers; /* steps, and lines of outputs */
} assay_program_node;

typedef struct assay_program {
    int64_t sizes[ASSAY_PROGRAM_LETTERS]; /* of the axis of a letter; 0: there is none */
    int tensor_count, line_count, node_count;
    assay_program_tensor *tensors;
    assay_program_line *lines; /* steps, then outputs */
    assay_program_node *nodes; /* from 1; those given first */
    int node_room;
    struct graph *graph; /* its names point into the lists; NULL: it is not compiled */
} assay_program;

void assay_program_free(assay_program *p); /* with p itself; NULL: nothing */
/* Compiled as p is. */
assay_status assay_program_copy(assay_context *ctx, const assay_program *p, assay_program **copy);
/* Behind those that are there. */
assay_status assay_program_add_tensor(assay_context *ctx, assay_program *p, const assay_program_tensor *tensor);
assay_status assay_program_add_line(assay_context *ctx, assay_program *p, const assay_program_line *line);

/* Where a program is refused. */
typedef struct assay_program_place {
    int line;   /* place among the lines; -1: it is no line */
    int column; /* in its text, from 0 */
    int tensor; /* where it is no line: place among the tensors; -1: it is none */
} assay_program_place;

/* Whether a text may be a name: a letter, then letters, digits and _. */
bool assay_program_is_name(const char *text);
/* A letter or a digit. */
bool assay_program_is_axis(char letter);
/* 0: it begins with none. */
size_t assay_program_name_length(const char *text);
/* The tensor of that name; NULL: there is none. */
const assay_program_tensor *assay_program_find(const assay_program *p, const char *name);

/* A tensor's name and path. */
void assay_program_call(assay_program_tensor *tensor, const char *name, bool weight);
/* Makes the nodes, and the paths. Refuses with the place: an axis without a size, a step or a name that is not there, operands and parameters that the step does
 * not take, tensors and steps that nothing reads, sizes that overflow. */
assay_status assay_program_compile(assay_context *ctx, assay_program *p, assay_program_place *place);

/* How many terms a sum of a product has. */
int64_t assay_program_terms(const assay_program *p, const assay_program_node *product);

/* --- the table of steps --- */

#define ASSAY_PROGRAM_OWN (-1.0)

typedef struct assay_program_parameter {
    const char *name; /* NULL ends the list */
    char kind;        /* 'n': a number, 'f': true or false, 'a': axes in quotes, 't': a word in quotes */
    double otherwise; /* NAN: it has to be given; ASSAY_PROGRAM_OWN: the step knows, and lists do not show it */
} assay_program_parameter;

typedef struct assay_program_check {
    assay_context *ctx;
    const assay_program *p;
    assay_program_node *node;
} assay_program_check;

/* Of whole numbers. */
typedef enum assay_program_exact {
    ASSAY_PROGRAM_NOT_EXACT, /* rounding may change what it gives */
    ASSAY_PROGRAM_KEEPS_EXACT,
    ASSAY_PROGRAM_MAKES_EXACT
} assay_program_exact;

struct assay_program_step {
    const char *name;
    int least, most;      /* operands */
    const char *operands; /* for people: "x, scale" */
    assay_program_parameter parameters[ASSAY_PROGRAM_PARAMETERS];
    const char *formula;
    /* Axes of the result, from those of the operands and the parameters. */
    assay_status (*shape)(const assay_program_check *check);
    unsigned integers; /* bit i: operand i is whole numbers; bit ASSAY_PROGRAM_EITHER + i: it may be */
    assay_program_exact exact;
};

/* "AB,BC->AC"; false: it is no pattern. */
typedef struct assay_program_pattern_of {
    char in[ASSAY_PROGRAM_OPERANDS][ASSAY_MAX_RANK + 1], out[ASSAY_MAX_RANK + 1];
    int count;
} assay_program_pattern_of;
bool assay_program_pattern(const char *text, assay_program_pattern_of *p);

extern const assay_program_step assay_program_steps[];
extern const int assay_program_step_count;
const assay_program_step *assay_program_step_by_name(const char *name, size_t length); /* NULL: there is none */
/* A parameter of a node by its place in the row; NAN and "" where it was not given and has nothing else. */
double assay_program_number(const assay_program_node *node, const char *parameter);
const char *assay_program_axes(const assay_program_node *node, const char *parameter); /* or a word */
/* How a node of rope turns; positions have no bound. */
assay_rope_config assay_program_rope(const assay_program_node *node);
assay_attention_config assay_program_attention(const assay_shape *query, const assay_shape *value,
                                               const assay_program_node *node);
/* What a node of attention has behind the value. */
typedef enum assay_program_beside {
    ASSAY_BESIDE_SEGMENTS, /* whole numbers: of queries, or of both */
    ASSAY_BESIDE_KEY_SEGMENTS,
    ASSAY_BESIDE_MASK, /* it follows from whole numbers: what is not 0 is seen */
    ASSAY_BESIDE_SINKS,
    ASSAY_BESIDE_BIAS
} assay_program_beside;
int assay_program_find_beside(const assay_program *p, const assay_program_node *node,
                              assay_program_beside what); /* which operand; 0: none */
/* Whether keys have an axis of their own, which masks go by; else it is causal, in a window and within segments. */
bool assay_program_is_masked(const assay_program *p, const assay_program_node *node);
/* How a node of quantise does, of its own shape. */
assay_quantize_config assay_program_quantize(const assay_program_node *node);
/* The line whose codes, or scales, have that path; NULL: there is none. */
const assay_program_line *assay_program_coded_line(const assay_program *p, const char *path);
