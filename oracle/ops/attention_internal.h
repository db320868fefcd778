/* What forward and backward of attention share: the work of a tensor cut to heads, the tokens of a head to segments.
 *
 * The tokens of a segment are gathered in ascending order, so that within it only the causal triangle is masked, and
 * what other segments and padding hold is never touched. Rows of queries go in blocks: the keys before a block are a
 * rectangle, which is a product; the keys within it a triangle, which continues the same sums: two triangles of half
 * the size and the square below them, a product again, down to small ones that are done row by row. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/attention.h"

enum {
    ATTENTION_BLOCK = 128,  /* rows of queries */
    ATTENTION_SPLITS = 8,   /* of keys, at most, that an emulated row is merged from */
    ATTENTION_TRIANGLE = 8, /* the largest triangle that is done row by row */
};

/* A head among those of a tensor. */
typedef struct attention_head {
    int64_t index, heads;
} attention_head;

/* One segment of one head. */
typedef struct attention_rows {
    const assay_attention_config *config;
    int64_t batch;
    attention_head query, kv;
    const int32_t *tokens; /* [count] */
    int64_t count;
    bool first; /* of the heads that share a head of keys */
} attention_rows;

/* rows [count,dim] of a head from a tensor [B,S,heads,dim], and back. */
void attention_gather(const attention_rows *rows, attention_head head, double *to, const double *tensor, int64_t dim);
void attention_scatter(const attention_rows *rows, attention_head head, double *tensor, const double *from,
                       int64_t dim);

/* The first of the rows that row i sees, and the one after its last; and how many rows of queries go in a block: no more than a window has keys, so
 * that little of a block's own keys is masked. */
int64_t attention_first_key(const attention_rows *rows, int64_t i);
int64_t attention_keys_end(const attention_rows *rows, int64_t i);
int64_t attention_block(const assay_attention_config *config);

/* What a sink leaves of a row: exp(lse) / (exp(lse) + exp(sink)), from an lse that was stored; and what it takes. */
double attention_gate(const assay_context *ctx, double lse, double sink);
double attention_sink_share(const assay_context *ctx, double lse, double sink);

/* What a kernel does first with the exponentials of a row. A flash kernel divides what it has multiplied with the values,
 * by a sum that a sink is in; one that has the sink in its softmax rounds gated probabilities. What is rounded lies elsewhere
 * on the grid each time. In the emulated runs rows take turns, so that each row is seen in every way and no run differs from
 * the others as a whole. */
typedef enum attention_form { ATTENTION_DIVIDED_FIRST, ATTENTION_DIVIDED_LAST, ATTENTION_GATED_FIRST } attention_form;

/* How a row is made: fewer than 2 parts: nothing is merged; sink NULL: there is none. */
typedef struct attention_softmax {
    attention_form form;
    int64_t splits;
    const double *sink;
} attention_softmax;

attention_softmax attention_softmax_of(const assay_context *ctx, int64_t row, const double *sink);
/* Scores of a row become probabilities but for a division by `divisor`; returns its lse, without the sink. */
double attention_softmax_row(const assay_context *ctx, const attention_softmax *how, double *p, int64_t count,
                             double *divisor);
void attention_divide_row(double *out, int64_t wide, double divisor);
/* Of a kernel that gates what another one stored, or of one that does both. */
void attention_gate_row(const assay_context *ctx, const attention_softmax *how, double *out, int64_t wide, double lse);

/* `segment` for every segment of every head. Heads of keys are split over threads where there are enough of them; those of
 * queries that share one follow each other. */
typedef struct attention_loop {
    assay_status (*segment)(assay_context *ctx, void *job, const attention_rows *rows, double *scratch);
    void *job;
    int64_t scratch; /* numbers for each that works at a time */
} attention_loop;
assay_status attention_for_each(assay_context *ctx, const int32_t *segment_ids, const assay_attention_config *config,
                                const attention_loop *loop);

/* out [rows,columns] = a [rows,k] times the transpose of b [columns,k]. */
assay_status attention_scores(assay_context *ctx, double *out, int64_t ld, const double *a, int64_t rows,
                              const double *b, int64_t columns, int64_t k);

/* Scores, which may be stored, become capped ones; slopes: by what their gradients are to be multiplied; NULL: nobody asks.
 * Nothing happens without a cap. */
void attention_cap(const assay_context *ctx, double soft_cap, double *scores, double *slopes, int64_t count);

/* p_j = exp(s_j - lse), times `factor`, and ds_j = p_j (factor <dout, v_j> - shift) of a row, from s_j and <dout, v_j>. */
void attention_row_gradient(const assay_context *ctx, double *p, double *ds, const double *slope, double lse,
                            double factor, double shift, int64_t count);

/* y [size,width] += W x [size,width], where W is the lower triangle (with its diagonal) of w [size,size], whose rows
 * are `ld` apart, or the transpose of that. Every element of y continues one chain of ascending index. Operands are taken as they are. */
typedef struct attention_triangle {
    const double *w;
    int64_t ld;
    bool transpose;
    const double *x;
    double *y;
    int64_t size, width;
    int64_t beyond; /* rows of w that have one number more */
} attention_triangle;
assay_status attention_add_triangle(assay_context *ctx, const attention_triangle *triangle);
