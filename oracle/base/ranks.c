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

static bool sink_wants(void *self, const char *path)
{
    const assay_ranks *ranks = self;
    return ranks->out->wants(ranks->out->self, path);
}

static assay_status sink_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_ranks *ranks = self;
    if (ranks->piece == NULL) return ranks->out->write(ctx, ranks->out->self, path, count, values);
    return ranks->put(ctx, ranks, path, ASSAY_PUT_DOUBLES, values, count * (int64_t)sizeof *values);
}

static assay_status sink_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const int32_t *values)
{
    assay_ranks *ranks = self;
    if (ranks->piece == NULL) return ranks->out->write_i32(ctx, ranks->out->self, path, count, values);
    return ranks->put(ctx, ranks, path, ASSAY_PUT_INTEGERS, values, count * (int64_t)sizeof *values);
}

assay_sink assay_ranks_sink(assay_context *ctx, const assay_sink *out)
{
    if (ctx->ranks == NULL) return *out;
    ctx->ranks->out = out;
    return (assay_sink){.self = ctx->ranks, .wants = sink_wants, .write = sink_write, .write_i32 = sink_write_i32};
}
