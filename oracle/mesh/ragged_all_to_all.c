/* Rows from every shard of an axis to every other, as many as each pair says; and the way back. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/collectives.h"
#include "oracle/ops/vector_sums.h"

assay_status assay_ragged_params_alloc(assay_context *ctx, assay_ragged_params *params, const assay_mesh *mesh,
                                       assay_mesh_axis axis)
{
    assay_status status = ASSAY_OK;
    const int64_t count = assay_mesh_shards(mesh) * assay_mesh_size(mesh, axis);
    *params = (assay_ragged_params){0};
    TRY(assay_alloc_i32(ctx, "input_offsets", count, &params->input_offsets));
    TRY(assay_alloc_i32(ctx, "send_sizes", count, &params->send_sizes));
    TRY(assay_alloc_i32(ctx, "output_offsets", count, &params->output_offsets));
    TRY(assay_alloc_i32(ctx, "recv_sizes", count, &params->recv_sizes));
cleanup:
    if (status != ASSAY_OK) assay_ragged_params_free(params);
    return status;
}

void assay_ragged_params_free(assay_ragged_params *params)
{
    free(params->input_offsets);
    free(params->send_sizes);
    free(params->output_offsets);
    free(params->recv_sizes);
    *params = (assay_ragged_params){0};
}

/* What one shard sends to another. */
typedef struct slice {
    int64_t from_shard, from_row, to_shard, to_row, rows;
} slice;

static slice slice_of(const assay_ragged_params *params, const assay_mesh *mesh, assay_mesh_axis axis, int64_t shard,
                      int64_t part)
{
    const int64_t at = shard * assay_mesh_size(mesh, axis) + part;
    return (slice){.from_shard = shard,
                   .from_row = params->input_offsets[at],
                   .to_shard = assay_mesh_peer(mesh, shard, axis, part),
                   .to_row = params->output_offsets[at],
                   .rows = params->send_sizes[at]};
}

static bool outside(int64_t first, int64_t count, int64_t rows)
{
    return first < 0 || count < 0 || first > rows - count;
}

static assay_status check(assay_context *ctx, const assay_ragged_params *params, const assay_ragged_dims *dims,
                          const assay_mesh *mesh, assay_mesh_axis axis)
{
    const int64_t shards = assay_mesh_shards(mesh), parts = assay_mesh_size(mesh, axis);
    for (int64_t shard = 0; shard < shards; shard++) {
        for (int64_t part = 0; part < parts; part++) {
            const slice s = slice_of(params, mesh, axis, shard, part);
            const int64_t back = s.to_shard * parts + assay_mesh_index(mesh, shard, axis);
            if (s.rows > 0 && outside(s.from_row, s.rows, dims->in_rows)) {
                return assay_fail(ctx, ASSAY_BAD_INPUT,
                                  "ragged_all_to_all: shard %" PRId64 " sends rows %" PRId64 " to %" PRId64
                                  ", expected within its %" PRId64,
                                  shard, s.from_row, s.from_row + s.rows - 1, dims->in_rows);
            }
            if (s.rows < 0 || (s.rows > 0 && outside(s.to_row, s.rows, dims->out_rows))) {
                return assay_fail(ctx, ASSAY_BAD_INPUT,
                                  "ragged_all_to_all: shard %" PRId64 " sends %" PRId64 " rows to row %" PRId64
                                  " of shard %" PRId64 ", expected within its %" PRId64,
                                  shard, s.rows, s.to_row, s.to_shard, dims->out_rows);
            }
            if (params->recv_sizes[back] != s.rows) {
                return assay_fail(ctx, ASSAY_BAD_INPUT,
                                  "ragged_all_to_all: shard %" PRId64 " expects %" PRId32 " rows from shard %" PRId64
                                  ", which sends %" PRId64,
                                  s.to_shard, params->recv_sizes[back], shard, s.rows);
            }
        }
    }
    return ASSAY_OK;
}

assay_status assay_ragged_all_to_all(assay_context *ctx, double *out, const double *in,
                                     const assay_ragged_params *params, const assay_ragged_dims *dims,
                                     const assay_mesh *mesh, assay_mesh_axis axis)
{
    const int64_t shards = assay_mesh_shards(mesh), columns = dims->columns;
    MUST(check(ctx, params, dims, mesh, axis));
    for (int64_t shard = 0; shard < shards; shard++) {
        for (int64_t part = 0; part < assay_mesh_size(mesh, axis); part++) {
            const slice s = slice_of(params, mesh, axis, shard, part);
            if (s.rows == 0) continue;
            memcpy(out + (s.to_shard * dims->out_rows + s.to_row) * columns,
                   in + (s.from_shard * dims->in_rows + s.from_row) * columns,
                   (size_t)(s.rows * columns) * sizeof *out);
        }
    }
    return ASSAY_OK;
}

assay_status assay_ragged_all_to_all_transpose(assay_context *ctx, double *d_in, double *d_out_operand,
                                               const double *d_out, const assay_ragged_params *params,
                                               const assay_ragged_dims *dims, const assay_mesh *mesh,
                                               assay_mesh_axis axis)
{
    const int64_t shards = assay_mesh_shards(mesh), columns = dims->columns;
    const size_t whole = (size_t)(shards * dims->out_rows * columns) * sizeof *d_out;
    MUST(check(ctx, params, dims, mesh, axis));
    memset(d_in, 0, (size_t)(shards * dims->in_rows * columns) * sizeof *d_in);
    if (d_out_operand != NULL) memcpy(d_out_operand, d_out, whole);
    for (int64_t shard = 0; shard < shards; shard++) {
        for (int64_t part = 0; part < assay_mesh_size(mesh, axis); part++) {
            const slice s = slice_of(params, mesh, axis, shard, part);
            const int64_t to = (s.to_shard * dims->out_rows + s.to_row) * columns;
            double *sum = d_in + (s.from_shard * dims->in_rows + s.from_row) * columns;
            assay_add(ctx, s.rows * columns, d_out + to, sum);
            if (d_out_operand != NULL && s.rows > 0)
                memset(d_out_operand + to, 0, (size_t)(s.rows * columns) * sizeof *d_out_operand);
        }
    }
    return ASSAY_OK;
}
