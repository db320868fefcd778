/* Mutants of expert parallelism and of microbatches by rows of the batch, which lie shard after shard, by cotangents
 * and by results. */
#include "harness/mutants/mutants_tensors.h"

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
            const bool dropped = dropped_microbatch >= 0 && assay_microbatch_of(m->c, row) == dropped_microbatch;
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
    keep_rows(m, 0, m->c->batch / assay_case_replicas(m->c), -1);
    return assay_rows_of_shard(m->c) > 0 && assay_case_replicas(m->c) > 1;
}

bool assay_edit_drop_last_microbatch(const assay_mutation *m)
{
    keep_rows(m, 0, m->c->batch, assay_last_microbatch(m->c));
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
