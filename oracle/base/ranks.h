/* Work that several processes ("ranks") share. Every rank runs the same code on the same case. Where a loop is dear its
 * steps are pieces: each is done by one rank, and the first rank (0) takes what they give in the order of the pieces. So
 * sums are joined in the order of one process, and the bits do not depend on how many ranks there are, nor on which has
 * what. What moves messages is the business of harness/ranks; in one process the pieces are a loop, and a call. */
#pragma once

#include "oracle/base/tensor.h"

struct assay_pieces;
struct assay_ranks;

/* The piece at hand. */
typedef struct assay_piece {
    const struct assay_pieces *of;
    int64_t number;
    struct assay_ranks *ranks; /* NULL: whoever does it takes it */
} assay_piece;

typedef struct assay_pieces {
    void *self;
    int64_t count;
    bool everywhere; /* each rank does all of them: they leave something behind that is nowhere put */
    /* Does a piece. What it writes to a sink of assay_ranks_sink_open goes to that of the first rank. */
    assay_status (*work)(assay_context *ctx, void *self, const assay_piece *piece);
    /* On the first rank: what was put, in the order of pieces, and of a piece in the order of putting. NULL: nothing is. */
    assay_status (*take)(assay_context *ctx, void *self, int64_t piece, int what, const void *data, int64_t bytes);
} assay_pieces;

/* All pieces; on the first rank all were taken when it returns. A failure is that of the first piece that failed. */
assay_status assay_pieces_run(assay_context *ctx, const assay_pieces *pieces);
/* In work: gives `bytes` to the first rank's take(). */
assay_status assay_piece_put(assay_context *ctx, const assay_piece *piece, int what, const void *data, int64_t bytes);

/* `data` becomes that of the first rank on all of them. */
assay_status assay_ranks_broadcast(assay_context *ctx, void *data, int64_t bytes);
/* Whether this process is the first, or the only one. */
bool assay_ranks_is_first(const assay_context *ctx);
/* How many loops of pieces were shared so far, the same number on every rank: what came of those is with the first. */
int64_t assay_ranks_runs(const assay_context *ctx);

/* A part of an array: rows of `width` numbers, `ld` apart. */
typedef struct assay_ranks_part {
    double *values;
    int64_t rows, width, ld;
} assay_ranks_part;

enum { ASSAY_RANKS_ARRAYS = 3 };

/* A loop whose steps fill parts of arrays (heads, rows of a product), and need nothing of each other. Shared, every rank has
 * the whole arrays afterwards. */
typedef struct assay_ranks_fill {
    void *self;
    int64_t count;
    assay_status (*work)(assay_context *ctx, void *self, int64_t step);
    int arrays;
    assay_ranks_part whole[ASSAY_RANKS_ARRAYS]; /* without gaps */
    assay_ranks_part (*part)(void *self, int64_t step, int array);
} assay_ranks_fill;
assay_status assay_ranks_fill_run(assay_context *ctx, const assay_ranks_fill *fill);

/* Whether sharing such a loop pays: enough operations, of all of it and for each number that goes to the first rank and from
 * there to all. `least`: of ranks->least, 0: it does in any case. */
bool assay_ranks_pays(double least, int64_t steps, double operations, double numbers);
#define ASSAY_RANKS_LEAST 5e8

/* Loops of pieces on paper. Operations are those of products (a multiply and an add are 2), put are bytes for the first
 * rank, broadcast bytes that every rank gets afterwards. */
typedef struct assay_ranks_loop {
    int64_t pieces, times; /* of so many loops all pieces */
    double operations, drawn, put, broadcast;
} assay_ranks_loop;
void assay_ranks_loop_add(assay_ranks_loop *loop, const assay_ranks_loop *other);
/* What ranks share of a run of an operation. */
enum { ASSAY_SHARE_EXPERTS, ASSAY_SHARE_HEADS, ASSAY_SHARE_ROWS, ASSAY_SHARES };
typedef struct assay_run_shares {
    double operations;  /* of all of it; 0: nobody has counted more closely than the operation's flops */
    bool weights_twice; /* they are drawn again for backward */
    assay_ranks_loop loops[ASSAY_SHARES];
} assay_run_shares;

/* Adds assay_ranks_fill_run of so many steps. */
void assay_ranks_loop_fill(assay_ranks_loop *loop, double least, int64_t steps, double operations, double numbers);

/* What a rank has exchanged since the run began. */
typedef struct assay_ranks_count {
    int64_t pieces;    /* done here */
    int64_t put;       /* bytes of them for the first rank, which has its own already */
    int64_t broadcast; /* bytes that left, on their way from it */
} assay_ranks_count;

/* Who implements it (harness/ranks). While a piece is at hand ctx->ranks of work() is NULL: pieces have no pieces. */
typedef struct assay_ranks {
    void *self;
    int rank, size;
    const assay_piece *piece; /* at hand; NULL: none */
    const assay_sink *out;    /* of the innermost assay_ranks_sink_open; the first rank writes to it between pieces */
    assay_ranks_count counted;
    int64_t runs; /* calls of run(), the same number on every rank */
    double least; /* operations of a loop of assay_ranks_fill that they share */
    assay_status (*run)(assay_context *ctx, struct assay_ranks *ranks, const assay_pieces *pieces);
    /* path: NULL for put(), else of a write to the sink, of doubles or of integers */
    assay_status (*put)(assay_context *ctx, struct assay_ranks *ranks, const char *path, int what, const void *data,
                        int64_t bytes);
    assay_status (*broadcast)(assay_context *ctx, struct assay_ranks *ranks, void *data, int64_t bytes);
} assay_ranks;

/* `what` of a write to the sink; of zeros their number is sent. */
enum { ASSAY_PUT_DOUBLES, ASSAY_PUT_INTEGERS, ASSAY_PUT_ZEROS };

typedef struct assay_ranks_writer {
    struct assay_ranks *ranks;
    const assay_sink *out, *outer;
} assay_ranks_writer;

/* `out` as pieces write to it: on the first rank it gets the writes of all pieces in their order, and on every rank what
 * is written between pieces. It wants the same on every rank. `out` itself where there is one process. Another one may be
 * opened inside of it, whose `out` writes on to this one; the outer one is that of the pieces again where it is closed. */
assay_sink assay_ranks_sink_open(assay_context *ctx, assay_ranks_writer *writer, const assay_sink *out);
void assay_ranks_sink_close(const assay_ranks_writer *writer);
