#include "oracle/mesh/sharded_mla.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/moe/moe_block.h"

static int64_t head_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) * assay_mesh_size(mesh, ASSAY_AXIS_MLP_TENSOR);
}

static int64_t batch_shards(const assay_mesh *mesh)
{
    return assay_mesh_size(mesh, ASSAY_AXIS_DATA) * assay_mesh_size(mesh, ASSAY_AXIS_FSDP);
}

bool assay_mla_is_sharded(const assay_mesh *mesh)
{
    return assay_mesh_shards(mesh) > 1;
}

int64_t assay_mla_head_part(const assay_mesh *mesh, int64_t shard)
{
    return assay_mesh_index(mesh, shard, ASSAY_AXIS_MLP_TENSOR) * assay_mesh_size(mesh, ASSAY_AXIS_EXPERT) +
           assay_mesh_index(mesh, shard, ASSAY_AXIS_EXPERT);
}

int64_t assay_mla_batch_part(const assay_mesh *mesh, int64_t shard)
{
    return shard / head_shards(mesh);
}

assay_mla_config assay_mla_shard_config(const assay_mla_config *config, const assay_mesh *mesh)
{
    assay_mla_config own = *config;
    own.heads /= head_shards(mesh);
    own.batch /= batch_shards(mesh);
    return own;
}

assay_status assay_sharded_mla_check(assay_context *ctx, const assay_mla_config *config, const assay_mesh *mesh)
{
    int64_t sizes[ASSAY_MESH_AXES], shards = 0;
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) sizes[axis] = assay_mesh_size(mesh, (assay_mesh_axis)axis);
    assay_status status = assay_mla_check(ctx, config);
    if (status == ASSAY_OK) status = assay_checked_count(ctx, "mesh", ASSAY_MESH_AXES, sizes, &shards);
    if (status != ASSAY_OK) return status;
    if (config->heads % head_shards(mesh) != 0) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "mla: heads (base_num_query_heads) is %" PRId64
                          ", expected a multiple of mesh.expert times mesh.mlp_tensor, which is %" PRId64,
                          config->heads, head_shards(mesh));
    }
    if (config->batch % batch_shards(mesh) == 0) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "mla: batch is %" PRId64 ", expected a multiple of mesh.data times mesh.fsdp, which is %" PRId64,
                      config->batch, batch_shards(mesh));
}

/* One shard at a time. Of weights without heads `weights` are the whole ones. */
typedef struct shard_run {
    const assay_sharded_mla *m;
    assay_mla_config own;
    assay_tensor_table table, own_table; /* of weights */
    int64_t shards, heads, tokens;       /* M, P N, and tokens of a shard */
    int64_t shard, head_part;
    assay_mla_inputs in;
    double *memory[ASSAY_MLA_WEIGHTS], *gradients[ASSAY_MLA_WEIGHTS], *part; /* part: the largest of `gradients` */
    double *dx;
    assay_mla_weights w;
    assay_mla_residuals r;
} shard_run;

bool assay_mla_has_heads(const assay_tensor_row *row)
{
    return strchr(row->axes, 'N') != NULL;
}

/* A whole tensor has `outer` times the heads of every part, `inner` numbers each. */
typedef struct head_pieces {
    int64_t outer, inner, parts;
} head_pieces;

static head_pieces pieces_of(const assay_tensor_row *row, int64_t parts)
{
    const int axis = (int)(strchr(row->axes, 'N') - row->axes);
    head_pieces p = {1, row->shape.dims[axis] / parts, parts};
    for (int i = 0; i < axis; i++) p.outer *= row->shape.dims[i];
    for (int i = axis + 1; i < row->shape.rank; i++) p.inner *= row->shape.dims[i];
    return p;
}

static void take_heads(head_pieces p, int64_t place, double *part, const double *whole)
{
    for (int64_t i = 0; i < p.outer; i++)
        memcpy(part + i * p.inner, whole + (i * p.parts + place) * p.inner, (size_t)p.inner * sizeof *part);
}

static void put_heads(head_pieces p, int64_t place, double *whole, const double *part)
{
    for (int64_t i = 0; i < p.outer; i++)
        memcpy(whole + (i * p.parts + place) * p.inner, part + i * p.inner, (size_t)p.inner * sizeof *part);
}

static assay_status open_run(assay_context *ctx, shard_run *run, const assay_sharded_mla *m)
{
    assay_status status = ASSAY_OK;
    int64_t largest = 0;
    *run = (shard_run){.m = m,
                       .own = assay_mla_shard_config(m->config, m->mesh),
                       .shards = assay_mesh_shards(m->mesh),
                       .heads = head_shards(m->mesh)};
    run->tokens = run->own.batch * run->own.sequence;
    run->table = assay_mla_weight_table(m->config);
    run->own_table = assay_mla_weight_table(&run->own);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        const int64_t count = assay_tensor_row_count(&run->own_table.rows[i]);
        if (m->w->w[i] == NULL) continue;
        run->w.w[i] = m->w->w[i];
        if (assay_mla_has_heads(&run->table.rows[i])) {
            TRY(assay_alloc_f64(ctx, "weights of a shard's heads", count, &run->memory[i]));
            run->w.w[i] = run->memory[i];
        }
        if (m->gradients == NULL || m->gradients->g[i] == NULL) continue;
        TRY(assay_alloc_f64(ctx, "a shard's gradients", count, &run->gradients[i]));
        if (count > largest) largest = count;
    }
    if (largest > 0) TRY(assay_alloc_f64(ctx, "a part of a gradient", largest, &run->part));
    if (m->gradients != NULL && m->gradients->dx != NULL)
        TRY(assay_alloc_f64(ctx, "a shard's dx", run->tokens * run->own.emb_dim, &run->dx));
cleanup:
    return status;
}

static void close_run(shard_run *run)
{
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        free(run->memory[i]);
        free(run->gradients[i]);
    }
    free(run->part);
    free(run->dx);
    assay_mla_residuals_free(&run->r);
}

static void take_shard(shard_run *run, int64_t shard)
{
    const assay_mla_inputs *in = run->m->in;
    const int64_t first = assay_mla_batch_part(run->m->mesh, shard) * run->tokens;
    run->shard = shard;
    run->head_part = assay_mla_head_part(run->m->mesh, shard);
    run->in = (assay_mla_inputs){in->x + first * run->own.emb_dim, in->positions + first,
                                 in->segment_ids == NULL ? NULL : in->segment_ids + first};
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        if (run->memory[i] == NULL) continue;
        take_heads(pieces_of(&run->table.rows[i], run->heads), run->head_part, run->memory[i], run->m->w->w[i]);
    }
}

/* Of the first of the shards that have the same: what it has is the sum so far. */
static void join(const assay_context *ctx, bool first, int64_t count, double *sum, double *term)
{
    if (first) {
        memcpy(sum, term, (size_t)count * sizeof *sum);
    } else {
        moe_join(ctx, count, sum, term);
    }
}

static assay_status write_checkpoint(assay_context *ctx, const shard_run *run, assay_mla_tensor tensor)
{
    const assay_sink *out = run->m->out;
    const assay_tensor_row row = assay_mla_tensor_row(&run->own, tensor);
    char path[ASSAY_PATH_SIZE];
    if (row.name == NULL || tensor == ASSAY_MLA_OUT_PROJ) return ASSAY_OK;           /* out_proj is a part of it */
    if (!assay_mla_has_heads(&row) && run->shard % run->heads != 0) return ASSAY_OK; /* they all have the same */
    assay_tensor_path("checkpoints/", "", &row, path);
    if (!out->wants(out->self, path)) return ASSAY_OK;
    return out->write(ctx, out->self, path, assay_tensor_row_count(&row),
                      tensor == ASSAY_MLA_LSE ? run->r.lse : run->r.values[tensor]);
}

static assay_status forward(assay_context *ctx, shard_run *run)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->tokens * run->own.emb_dim;
    for (int i = 0; i <= ASSAY_MLA_TENSORS; i++) {
        const assay_mla_tensor tensor = (assay_mla_tensor)i;
        if (tensor != ASSAY_MLA_LSE) TRY(assay_mla_compute(ctx, &run->r, tensor, &run->in, &run->w, &run->own));
        TRY(write_checkpoint(ctx, run, tensor));
    }
    join(ctx, run->shard % run->heads == 0, count, run->m->y + run->shard / run->heads * count,
         run->r.values[ASSAY_MLA_OUT_PROJ]);
cleanup:
    return status;
}

static void join_gradient(const assay_context *ctx, const shard_run *run, int weight)
{
    const assay_tensor_row *row = &run->table.rows[weight];
    const int64_t count = assay_tensor_row_count(&run->own_table.rows[weight]);
    double *whole = run->m->gradients->g[weight], *own = run->gradients[weight];
    if (!assay_mla_has_heads(row)) {
        join(ctx, run->shard == 0, count, whole, own);
        return;
    }
    const bool first = run->shard < run->heads;
    const head_pieces pieces = pieces_of(row, run->heads);
    if (!first) take_heads(pieces, run->head_part, run->part, whole);
    join(ctx, first, count, run->part, own);
    put_heads(pieces, run->head_part, whole, run->part);
}

static assay_status backward(assay_context *ctx, shard_run *run)
{
    assay_status status = ASSAY_OK;
    const int64_t count = run->tokens * run->own.emb_dim, first = run->shard / run->heads * count;
    const assay_mla_gradients g = assay_mla_gradients_of(run->dx, run->gradients);
    TRY(assay_mla_backward(ctx, &g, run->m->dy + first, &run->r, &run->in, &run->w, &run->own));
    if (run->dx != NULL) join(ctx, run->shard % run->heads == 0, count, run->m->gradients->dx + first, run->dx);
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) {
        if (run->gradients[i] != NULL) join_gradient(ctx, run, i);
    }
cleanup:
    return status;
}

assay_status assay_sharded_mla_run(assay_context *ctx, const assay_sharded_mla *m)
{
    assay_status status = assay_sharded_mla_check(ctx, m->config, m->mesh);
    shard_run run = {0};
    if (status != ASSAY_OK) return status;
    TRY(open_run(ctx, &run, m));
    for (int64_t shard = 0; shard < run.shards; shard++) {
        take_shard(&run, shard);
        TRY(forward(ctx, &run));
        if (m->gradients != NULL) TRY(backward(ctx, &run));
        assay_mla_residuals_free(&run.r);
    }
cleanup:
    close_run(&run);
    return status;
}
