/* Loops whose steps fill parts of arrays. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/ranks.h"

/* A number costs several copies and a message each way; a core does so many operations meanwhile, with some to spare. */
static const double LEAST_OF_NUMBER = 2048;

bool assay_ranks_pays(double least, int64_t steps, double operations, double numbers)
{
    return steps > 1 && numbers > 0 && operations >= least && (least == 0 || operations >= LEAST_OF_NUMBER * numbers);
}

static void move(const assay_ranks_part *part, double *buffer, bool in)
{
    const size_t bytes = (size_t)part->width * sizeof *buffer;
    for (int64_t row = 0; row < part->rows; row++) {
        double *values = part->values + row * part->ld, *packed = buffer + row * part->width;
        memcpy(in ? values : packed, in ? packed : values, bytes);
    }
}

static assay_status put_part(assay_context *ctx, const assay_piece *piece, int array, const assay_ranks_part *part)
{
    OWNED double *buffer = NULL;
    const int64_t count = part->rows * part->width;
    MUST(assay_alloc_f64(ctx, "results for the first rank", count, &buffer));
    move(part, buffer, false);
    return assay_piece_put(ctx, piece, array, buffer, count * (int64_t)sizeof *buffer);
}

static assay_status work_step(assay_context *ctx, void *self, const assay_piece *piece)
{
    const assay_ranks_fill *fill = self;
    assay_status status = fill->work(ctx, fill->self, piece->number);
    for (int i = 0; i < fill->arrays && status == ASSAY_OK; i++) {
        const assay_ranks_part part = fill->part(fill->self, piece->number, i);
        status = put_part(ctx, piece, i, &part);
    }
    return status;
}

static assay_status take_part(assay_context *ctx, void *self, int64_t step, int array, const void *data, int64_t bytes)
{
    const assay_ranks_fill *fill = self;
    const assay_ranks_part part = fill->part(fill->self, step, array);
    if (bytes != part.rows * part.width * (int64_t)sizeof *part.values)
        return assay_fail(ctx, ASSAY_INTERNAL, "a rank has computed another part than it was given");
    move(&part, (double *)data, true);
    return ASSAY_OK;
}

assay_status assay_ranks_fill_run(assay_context *ctx, const assay_ranks_fill *fill)
{
    const assay_pieces pieces = {.self = (void *)fill, .count = fill->count, .work = work_step, .take = take_part};
    MUST(assay_pieces_run(ctx, &pieces));
    for (int i = 0; i < fill->arrays; i++) {
        const assay_ranks_part *whole = &fill->whole[i];
        MUST(assay_ranks_broadcast(ctx, whole->values, whole->rows * whole->width * (int64_t)sizeof *whole->values));
    }
    return ASSAY_OK;
}

void assay_ranks_loop_add(assay_ranks_loop *loop, const assay_ranks_loop *other)
{
    loop->pieces += other->pieces;
    loop->times += other->times;
    loop->operations += other->operations;
    loop->drawn += other->drawn;
    loop->put += other->put;
    loop->broadcast += other->broadcast;
}

void assay_ranks_loop_fill(assay_ranks_loop *loop, double least, int64_t steps, double operations, double numbers)
{
    const double bytes = numbers * (double)sizeof(double);
    if (!assay_ranks_pays(least, steps, operations, numbers)) return;
    const assay_ranks_loop one = {
        .pieces = steps, .times = 1, .operations = operations, .put = bytes, .broadcast = bytes};
    assay_ranks_loop_add(loop, &one);
}
