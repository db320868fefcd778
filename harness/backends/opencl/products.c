#include "call.h"

layout plain(int64_t k, int64_t n)
{
    return (layout){0, k * n, n, 1};
}

layout transposed(layout of_b)
{
    return (layout){of_b.first, of_b.group, of_b.column, of_b.row};
}

rows rows_of(call *c, cl_mem segments, int64_t segment_count, int64_t groups, int64_t row_count)
{
    rows r = {.count = row_count, .segments = segment_count, .groups = groups, .segment_table = segments};
    r.tiles = row_count / TILE + segment_count; /* at most: each segment has one that is not full */
    r.tile_table = room(&c->d, r.tiles * (int64_t)sizeof(cl_int4));
    LAUNCH(&c->d, STORED, "tiles_of_segments", ONE, 1, 1, 1, mem(r.tile_table), num(r.tiles), mem(segments),
           num(segment_count));
    return r;
}

rows rows_of_one(call *c, int64_t row_count)
{
    const cl_int4 segment = {{0, (cl_int)row_count, 0, 0}};
    return rows_of(c, copy(&c->d, &segment, sizeof segment), 1, 1, row_count);
}

void product(call *c, enum program which, cl_mem out, cl_mem a, cl_mem b, cl_mem bias, cl_mem more, const rows *r,
             int64_t k, int64_t n, layout of_b)
{
    LAUNCH(&c->d, which, "product_rows", SQUARE, n, r->tiles * TILE, 1, mem(out), mem(a), mem(b), mem(bias), mem(more),
           mem(r->tile_table), num(k), num(n), bytes(&of_b, sizeof of_b));
}

void product_weights(call *c, enum program which, cl_mem d, cl_mem a, cl_mem of_c, cl_mem more, const rows *r,
                     int64_t k, int64_t n, layout of_d)
{
    LAUNCH(&c->d, which, "product_weights", SQUARE, n, k, r->groups, mem(d), mem(a), mem(of_c), mem(more),
           mem(r->segment_table), num(r->segments), num(k), num(n), bytes(&of_d, sizeof of_d));
}
