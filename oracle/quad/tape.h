/* The tape: matrices in binary128, what each was made of, and one sweep back that gives every element of every gradient.
 *
 * A form is straight-line code over the primitives below. Each computes its value at once and says how a gradient goes back through it; a node that several
 * read gets the sum. So an operation is its formula, and its gradient follows (reverse accumulation: Griewank and Walther 2008, chapter 3).
 *
 * A node is a matrix [rows,columns]; what has more axes has the rest of them in its rows or its columns, as they lie. Node 0 is none: what is given 0
 * gives 0, but where a primitive says that the operand may be left out. The first error stays in t->status, and from then on every node is 0. */
#pragma once

#include "oracle/quad/quad.h"

typedef int quad_node;
typedef struct quad_record quad_record;

enum { QUAD_OPERANDS = 4 };

struct quad_record {
    int64_t rows, columns;
    quad *values;
    quad *gradient;     /* of what it holds itself; NULL: nothing has come back */
    bool own;           /* whether values are the tape's */
    bool wanted;        /* something that it is made of has a gradient that somebody wants */
    bool reads_streams; /* of a primitive: operands may be streams */
    quad_node part_of;  /* of a view: the node that holds its numbers, from `offset` on */
    int64_t offset;
    const quad_tensor *stream; /* of weights that are read where they are needed: no values */
    quad_node from[QUAD_OPERANDS];
    void (*back)(quad_tape *t,
                 const quad_record *y); /* adds to the gradients of what it is made of; NULL: nothing goes back */
    void (*end)(const quad_record *y);  /* frees what `with` holds of its own; NULL: nothing */
    quad number;                        /* what else the primitive needs */
    int function;
    const void *with; /* the tape's */
};

typedef struct quad_shown quad_shown;

/* Rows of a linear layer that are quantised apart: `each` of every piece, and where each row is then. */
typedef struct quad_pieces {
    int64_t count, each;
    const int64_t *rows;  /* [count,each] */
    const int64_t *place; /* [count*each]: in `rows` */
} quad_pieces;

struct quad_tape {
    assay_context *ctx;
    assay_status status;
    const quad_tensors *in;
    quad_tensors *out;
    const quad_tensors *wanted; /* what somebody looks at; NULL: everything */
    bool back;                  /* whether gradients are among that */
    char prefix[32];            /* "layers/3/", which every path but those of weights has behind its folder */
    const char *block;          /* "self_attention/", which the paths of weights have behind that */
    const quad_pieces *pieces;  /* of the rows of what a recipe quantises; NULL: they are one */
    bool straight_through; /* somewhere the gradient is not the derivative: it passes what is quantised, or stops */
    quad_record *records;
    int count, room;
    quad_shown *shown;
    int shown_count;
    void **kept;
    int kept_count;
};

int64_t *quad_indices(quad_tape *t, int64_t count);
void quad_refuse(quad_tape *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* What was given: of so many rows and columns. Optional: 0 and NULL where there is none. Inputs that all layers share are without the prefix. */
assay_shape quad_shape_of(quad_tape *t, const char *path); /* it has to be there */
quad_node quad_input_rows(quad_tape *t, const char *path); /* all of it, in rows of its last axis */
quad_node quad_input(quad_tape *t, const char *path, int64_t rows, int64_t columns);
quad_node quad_input_optional(quad_tape *t, const char *path, int64_t rows, int64_t columns);
const int32_t *quad_input_indices(quad_tape *t, const char *path, int64_t count);
const int32_t *quad_input_indices_optional(quad_tape *t, const char *path, int64_t count);

/* Results: a node under its path, as it lies; the gradient that has come back to a node; and lists of integers, to be filled. Outputs have
 * cotangents by their paths. */
bool quad_wants(const quad_tape *t, const char *path);
void quad_put(quad_tape *t, const char *path, assay_shape shape, quad_node x);
void quad_put_gradient(quad_tape *t, const char *path, assay_shape shape, quad_node x);
/* The same in another order: piece i of so many columns is number index[i]; the tape's. */
void quad_put_gradient_of(quad_tape *t, const char *path, assay_shape shape, quad_node x, int64_t columns,
                          const int64_t *index);
int32_t *quad_put_indices(quad_tape *t, const char *path, assay_shape shape);

int64_t quad_rows(const quad_tape *t, quad_node x);
int64_t quad_columns(const quad_tape *t, quad_node x);
const quad *quad_values(const quad_tape *t, quad_node x);
/* What comes from elsewhere: a constant to be filled, [rows,columns]. */
quad_node quad_constant(quad_tape *t, int64_t rows, int64_t columns, quad **values);
/* `values` [rows,columns] in the place of x's, whose gradient goes back to x as it is. */
quad_node quad_replaced_by(quad_tape *t, quad_node x, const quad *values);

/* --- moves --- */
quad_node quad_view(quad_tape *t, quad_node x, int64_t columns); /* in rows of another length */
quad_node quad_span(quad_tape *t, quad_node x, int64_t offset, int64_t rows, int64_t columns); /* numbers from one on */
quad_node quad_rows_of(quad_tape *t, quad_node x, int64_t first, int64_t count);
quad_node quad_columns_of(quad_tape *t, quad_node x, int64_t first, int64_t count);
quad_node quad_beside(quad_tape *t, quad_node a, quad_node b); /* a's columns, then b's; one may be left out */
quad_node quad_concatenate(quad_tape *t, const quad_node *parts, int64_t count); /* rows of one after the other's */
/* index [rows] lives as long as the tape; -1: a row of zeros, and a row that goes nowhere. */
quad_node quad_gather(quad_tape *t, quad_node x, const int64_t *index, int64_t rows);  /* y[i] = x[index[i]] */
quad_node quad_scatter(quad_tape *t, quad_node x, const int64_t *index, int64_t rows); /* y[index[i]] += x[i] */
quad_node quad_repeat(quad_tape *t, quad_node x, int64_t times); /* each row so often, one after the other */

/* --- numbers --- */
/* The activations, and: the root of ln(1 + e^x); x, but at most `number`, or within it on either side; 1 / (x + number), 0 for 0; 1 over the root of
 * x + number; and what the names of others say. */
typedef enum quad_unary {
    QUAD_SIGMOID = ASSAY_SIGMOID,
    QUAD_SILU = ASSAY_SILU,
    QUAD_LAST_ACTIVATION = ASSAY_ACTIVATION_COUNT - 1,
#define OWN(NAME, value, slope) QUAD_##NAME,
#define MAP(NAME, step, value, slope) QUAD_##NAME,
#include "oracle/quad/maps.inc"
} quad_unary;
quad_node quad_map(quad_tape *t, quad_node x, quad_unary f);
quad_node quad_map_with(quad_tape *t, quad_node x, quad_unary f, quad number);
quad_node quad_add(quad_tape *t, quad_node a, quad_node b);       /* one may be left out */
quad_node quad_add_row(quad_tape *t, quad_node x, quad_node row); /* [1,columns] to every row; may be left out */
quad_node quad_multiply(quad_tape *t, quad_node a, quad_node b);
quad_node quad_weigh(quad_tape *t, quad_node x, quad_node w); /* every row by its w [rows,1] */
quad_node quad_times(quad_tape *t, quad_node x, quad factor);
quad_node quad_glu(quad_tape *t, quad_node a, quad_node b, const assay_gated_mlp_config *config);

/* --- rows --- */
quad_node quad_row_sums(quad_tape *t, quad_node x, quad factor); /* times factor: [rows,1] */
/* x over the root of so much of the sum of its squares, and epsilon. */
quad_node quad_over_root(quad_tape *t, quad_node x, quad share, double epsilon);
quad_node quad_normalise(quad_tape *t, quad_node x, quad_node scale, double epsilon); /* RMS norm, times scale */
quad_node quad_centred(quad_tape *t, quad_node x);                                    /* less the mean of its row */
/* Of each row; mask [rows,columns]: where it is below 0 the number is not there and gives 0. NULL: all are. */
quad_node quad_softmax(quad_tape *t, quad_node x, const int32_t *mask);
quad_node quad_log_sum_exp(quad_tape *t, quad_node x); /* [rows,1] */
quad_node quad_over_sum(quad_tape *t, quad_node x,
                        quad extra); /* over the row's sum plus `extra`; a row of zeros stays */

/* --- linear layers --- */
/* y [rows,n] = x [rows,k] times w [groups*k,n], of each row those of its group; rows of none, -1, are 0. group NULL: one of all rows. */
typedef struct quad_layer {
    quad_node x, w;
    int64_t groups; /* 0 is 1 */
    const int64_t *group;
    const assay_quant_recipe_config *recipe; /* NULL: none */
    const int64_t *set; /* by a recipe rows have no scale together with those of another set; NULL: all are of one */
    int64_t shards;     /* so many as have a part of the groups each, with scales of their own; 0 is 1 */
    bool counts_all;    /* by a recipe rows of no group count for scales, but for those of blocks */
} quad_layer;
quad_node quad_linear(quad_tape *t, quad_layer layer);
/* x, of which the gradient is quantised as a recipe does it for dx. */
quad_node quad_quantised_gradient(quad_tape *t, quad_node x, const assay_quant_recipe_config *recipe);
/* What h is once it is codes and scales, which may be asked for; the gradient passes as it is. */
quad_node quad_requantise(quad_tape *t, quad_node h, const assay_quantize_config *config, quad_node *codes,
                          quad_node *scale);

/* --- attention --- */
/* x [tokens,heads*Dr] rotated by what turns [tokens,Dr] says: for each pair cosine and sine of its angle times the attention factor. */
quad_node quad_rotate(quad_tape *t, quad_node x, const assay_rope_config *config, const quad *turns);
quad quad_frequency(const assay_rope_config *config, int64_t i); /* of pair i */
quad *quad_turns(quad_tape *t, const assay_rope_config *config, int64_t tokens, const int32_t *positions);
/* query [B*S,N*Dq], key [B*S,Nkv*Dq], value [B*S,Nkv*Dv], sinks [1,N] or 0, segment_ids [B,S] or NULL -> [B*S,N*Dv]; lse [B*N,S]. */
quad_node quad_attend(quad_tape *t, const assay_attention_config *config, quad_node query, quad_node key,
                      quad_node value, quad_node sinks, const int32_t *segment_ids, quad_node *lse);

/* --- for primitives --- */
/* A node whose values are to be filled; NULL: there is none, since an operand is none or memory is. */
quad *quad_new(quad_tape *t, int64_t rows, int64_t columns, quad_record record, quad_node *y);
/* Where the gradient of an operand is added up; NULL: nobody wants it. */
quad *quad_into(quad_tape *t, quad_node x);

/* A gradient that begins at another tensor than cotangents/ of an output's name. */
void quad_seed(quad_tape *t, quad_node x, const char *path);
