#include "oracle/base/ranks.h"

#include <stddef.h>

assay_status assay_pieces_run(assay_context *ctx, const assay_pieces *pieces)
{
    assay_status status = ASSAY_OK;
    if (ctx->ranks != NULL && !pieces->everywhere) return ctx->ranks->run(ctx, ctx->ranks, pieces);
    for (int64_t i = 0; i < pieces->count && status == ASSAY_OK; i++) {
        const assay_piece piece = {.of = pieces, .number = i};
        status = pieces->work(ctx, pieces->self, &piece);
    }
    return status;
}

assay_status assay_piece_put(assay_context *ctx, const assay_piece *piece, int what, const void *data, int64_t bytes)
{
    const assay_pieces *of = piece->of;
    if (piece->ranks == NULL) return of->take(ctx, of->self, piece->number, what, data, bytes);
    return piece->ranks->put(ctx, piece->ranks, NULL, what, data, bytes);
}

assay_status assay_ranks_broadcast(assay_context *ctx, void *data, int64_t bytes)
{
    return ctx->ranks == NULL ? ASSAY_OK : ctx->ranks->broadcast(ctx, ctx->ranks, data, bytes);
}

bool assay_ranks_is_first(const assay_context *ctx)
{
    return ctx->ranks == NULL || ctx->ranks->rank == 0;
}

int64_t assay_ranks_runs(const assay_context *ctx)
{
    return ctx->ranks == NULL ? 0 : ctx->ranks->runs;
}

static bool sink_wants(void *self, const char *path)
{
    const assay_ranks_writer *writer = self;
    return assay_wants(writer->out, path);
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_ranks_writer *writer = self;
    assay_ranks *ranks = writer->ranks;
    if (ranks->piece == NULL) return writer->out->write(ctx, writer->out->self, path, count, values);
    return ranks->put(ctx, ranks, path, ASSAY_PUT_DOUBLES, values, count * (int64_t)sizeof *values);
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    const assay_ranks_writer *writer = self;
    assay_ranks *ranks = writer->ranks;
    if (ranks->piece == NULL) return writer->out->write_i32(ctx, writer->out->self, path, count, values);
    return ranks->put(ctx, ranks, path, ASSAY_PUT_INTEGERS, values, count * (int64_t)sizeof *values);
}

static assay_status sink_write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    const assay_ranks_writer *writer = self;
    assay_ranks *ranks = writer->ranks;
    if (ranks->piece == NULL) return writer->out->write_zeros(ctx, writer->out->self, path, count);
    return ranks->put(ctx, ranks, path, ASSAY_PUT_ZEROS, &count, sizeof count);
}

assay_sink assay_ranks_sink_open(assay_context *ctx, assay_ranks_writer *writer, const assay_sink *out)
{
    *writer = (assay_ranks_writer){.ranks = ctx->ranks, .out = out};
    if (ctx->ranks == NULL) return *out;
    writer->outer = ctx->ranks->out;
    ctx->ranks->out = out;
    return (assay_sink){.self = writer,
                        .wants = sink_wants,
                        .write = sink_write,
                        .write_i32 = sink_write_i32,
                        .write_zeros = out->write_zeros != NULL ? sink_write_zeros : NULL};
}

void assay_ranks_sink_close(const assay_ranks_writer *writer)
{
    if (writer->ranks != NULL) writer->ranks->out = writer->outer;
}
