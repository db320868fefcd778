#include "oracle/moe/prefused.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

enum { BLOCK = 1 << 16 }; /* numbers that a sink lays out at a time, or one row */

int64_t assay_prefused_place(int64_t column, int64_t mlp_dim, int64_t shards)
{
    const int64_t part = mlp_dim / shards, within = column % mlp_dim;
    return (within / part * 2 + column / mlp_dim) * part + within % part;
}

int64_t assay_prefused_column(int64_t place, int64_t mlp_dim, int64_t shards)
{
    const int64_t part = mlp_dim / shards, piece = place / part;
    return piece % 2 * mlp_dim + piece / 2 * part + place % part;
}

/* One shard's gate or up is one piece in both. */
void assay_prefuse(double *out, const double *in, int64_t rows, int64_t mlp_dim, int64_t shards, bool to_shards)
{
    const int64_t part = mlp_dim / shards, width = 2 * mlp_dim;
    for (int64_t row = 0; row < rows * width; row += width) {
        for (int64_t place = 0; place < width; place += part) {
            const int64_t column = assay_prefused_column(place, mlp_dim, shards);
            memcpy(out + row + (to_shards ? place : column), in + row + (to_shards ? column : place),
                   (size_t)part * sizeof *out);
        }
    }
}

bool assay_path_is_prefused(const char *path)
{
    return assay_path_ends(path, "wi") || assay_path_ends(path, "moe_mlpwi");
}

/* What a row of the tensor has of gate, or of up, and of how many shards. */
typedef struct row_layout {
    int64_t hidden, shards;
} row_layout;

static assay_status find_layout(assay_context *ctx, const assay_prefused *p, const char *path, int64_t first,
                                int64_t count, row_layout *row)
{
    const int64_t parts = assay_path_ends(path, "wi") ? 1 : p->parts;
    *row = (row_layout){p->mlp_dim / parts, p->shards / parts};
    if (first % (2 * row->hidden) == 0 && count % (2 * row->hidden) == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_INTERNAL, "%s is laid out in rows of %" PRId64 ", found %" PRId64 " from %" PRId64,
                      path, 2 * row->hidden, count, first);
}

static assay_status read_f64(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             double *out)
{
    const assay_prefused *p = self;
    const assay_source *in = p->wrapped.in;
    row_layout row;
    OWNED double *laid_out = NULL;
    MUST(in->read(ctx, in->self, path, first, count, out));
    if (!assay_path_is_prefused(path)) return ASSAY_OK;
    MUST(find_layout(ctx, p, path, first, count, &row));
    MUST(assay_alloc_f64(ctx, "a row of gate and up", 2 * row.hidden, &laid_out));
    for (int64_t i = 0; i < count; i += 2 * row.hidden) {
        memcpy(laid_out, out + i, (size_t)(2 * row.hidden) * sizeof *out);
        assay_prefuse(out + i, laid_out, 1, row.hidden, row.shards, false);
    }
    return ASSAY_OK;
}

assay_source assay_prefused_source(assay_prefused *p)
{
    return (assay_source){.self = p, .has = assay_wrapped_has, .read = read_f64, .read_i32 = assay_wrapped_read_i32};
}

static assay_status write_f64(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_prefused *p = self;
    const assay_sink *out = p->wrapped.out;
    row_layout row;
    OWNED double *laid_out = NULL;
    if (!assay_path_is_prefused(path)) return out->write(ctx, out->self, path, count, values);
    MUST(find_layout(ctx, p, path, 0, count, &row));
    const int64_t width = 2 * row.hidden, block = width < BLOCK ? BLOCK / width * width : width;
    MUST(assay_alloc_f64(ctx, "rows of gate and up", count < block ? count : block, &laid_out));
    for (int64_t i = 0; i < count; i += block) {
        const int64_t numbers = count - i < block ? count - i : block;
        assay_prefuse(laid_out, values + i, numbers / width, row.hidden, row.shards, true);
        MUST(out->write(ctx, out->self, path, numbers, laid_out));
    }
    return ASSAY_OK;
}

assay_sink assay_prefused_sink(assay_prefused *p)
{
    return (assay_sink){
        .self = p, .wants = assay_wrapped_wants, .write = write_f64, .write_i32 = assay_wrapped_write_i32};
}
