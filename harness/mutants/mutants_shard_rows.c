/* Mutants of expert parallelism and of microbatches by rows of the batch, which lie shard after shard, by cotangents
 * and by results. */
#include <string.h>

#include "harness/mutants/mutants_tensors.h"

static int64_t replicas(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose;
}

/* Row r of a shard is in microbatch r mod factor. 0: there are none. */
static int64_t microbatches(const assay_case *c)
{
    return c->config.use_batch_split_schedule && c->config.batch_split_factor > 1 ? c->config.batch_split_factor : 0;
}

bool assay_has_microbatches(const assay_case *c)
{
    return microbatches(c) > 0;
}

static int64_t microbatch_of(const assay_case *c, int64_t row)
{
    return row % (c->batch / assay_case_shards(c)) % microbatches(c);
}

bool assay_edit_first_microbatch(const assay_mutation *m, assay_tensor *chosen)
{
    const int64_t size = chosen->count / m->c->batch;
    bool changed = false;
    for (int64_t row = 0; row < m->c->batch; row++) {
        int32_t *to = chosen->indices + row * size, *from = to - microbatch_of(m->c, row) * size;
        changed |= memcmp(to, from, (size_t)size * sizeof *to) != 0;
        memmove(to, from, (size_t)size * sizeof *to);
    }
    return changed;
}

/* Cotangents of other rows of the batch are zero, and so what comes of them is these rows' part. Of a result that has
 * one index for each shard, a shard's first row decides. No microbatch is dropped where that is -1. */
static void keep_rows(const assay_mutation *m, int64_t first, int64_t end, int64_t dropped_microbatch)
{
    const int64_t shards = assay_case_shards(m->c);
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor *tensor = &m->tensors->items[i];
        const int64_t first_axis = tensor->spec.shape.rank > 0 ? tensor->spec.shape.dims[0] : 0;
        if (tensor->spec.role != ASSAY_ROLE_COTANGENT) continue;
        if (first_axis != m->c->batch && first_axis != shards * m->c->mesh_mlp_tensor) continue;
        const int64_t size = tensor->count / first_axis;
        for (int64_t k = 0; k < tensor->count; k++) {
            const int64_t row = k / size * m->c->batch / first_axis;
            const bool dropped = dropped_microbatch >= 0 && microbatch_of(m->c, row) == dropped_microbatch;
            if (row < first || row >= end || dropped) tensor->values[k] = 0.0;
        }
    }
}

void assay_mutation_keep_shard(const assay_mutation *m)
{
    const int64_t rows = assay_rows_of_shard(m->c);
    keep_rows(m, m->shard * rows, (m->shard + 1) * rows, -1);
}

bool assay_edit_keep_first_shard(const assay_mutation *m)
{
    keep_rows(m, 0, assay_rows_of_shard(m->c), -1);
    return assay_rows_of_shard(m->c) > 0;
}

bool assay_edit_keep_first_replica(const assay_mutation *m)
{
    keep_rows(m, 0, m->c->batch / replicas(m->c), -1);
    return assay_rows_of_shard(m->c) > 0 && replicas(m->c) > 1;
}

bool assay_edit_drop_last_microbatch(const assay_mutation *m)
{
    keep_rows(m, 0, m->c->batch, microbatches(m->c) - 1);
    return true;
}

bool assay_edit_roll_shard_rows(const assay_mutation *m, assay_tensor *tensor)
{
    if (assay_tensor_axis(tensor, "B") != 0 || assay_rows_of_shard(m->c) == 0) return false;
    for (int64_t i = 0; i < assay_rows_of_shard(m->c); i++) assay_roll_axis(tensor, 0);
    return true;
}

bool assay_edit_sum_shard_rows(const assay_mutation *m, assay_tensor *tensor)
{
    if (assay_tensor_axis(tensor, "B") != 0 || assay_rows_of_shard(m->c) == 0) return false;
    const int64_t size = tensor->count / assay_case_shards(m->c);
    for (int64_t i = 0; i < size; i++) {
        double sum = 0.0;
        for (int64_t k = i; k < tensor->count; k += size) sum += tensor->values[k];
        for (int64_t k = i; k < tensor->count; k += size) tensor->values[k] = sum;
    }
    return true;
}

bool assay_edit_first_shard_to_all(const assay_mutation *m, assay_tensor *tensor)
{
    if (assay_tensor_axis(tensor, "shard") != 0 || assay_case_shards(m->c) < 2) return false;
    const int64_t size = tensor->count / tensor->spec.shape.dims[0];
    for (int64_t k = size; k < tensor->count; k++) tensor->values[k] = tensor->values[k % size];
    return true;
}

bool assay_edit_times_replicas(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)replicas(m->c));
}

bool assay_edit_by_replicas(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, 1.0 / (double)replicas(m->c));
}

bool assay_edit_times_shards(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)assay_case_shards(m->c));
}

static bool scale_loss_cotangents(const assay_mutation *m, double factor)
{
    bool changed = false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const bool loss = assay_any_word("lb_loss z_loss", tensor->spec.path, assay_path_ends);
        if (tensor->spec.role == ASSAY_ROLE_COTANGENT && loss) changed |= assay_scale_values(tensor, factor);
    }
    return changed;
}

bool assay_edit_detach_losses(const assay_mutation *m)
{
    return scale_loss_cotangents(m, 0.0);
}

bool assay_edit_losses_times_shards(const assay_mutation *m)
{
    return scale_loss_cotangents(m, (double)assay_case_shards(m->c));
}

bool assay_edit_times_expert_shards(const assay_mutation *m, assay_tensor *tensor)
{
    return assay_scale_values(tensor, (double)m->c->mesh_expert);
}
