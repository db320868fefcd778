/* Mutants of expert parallelism and of microbatches by rows of the batch, which lie shard after shard, by cotangents
 * and by results. */
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/paths.h"

static int64_t replicas(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp;
}

/* Row r of a shard is in microbatch r mod factor. 0: there are none. */
static int64_t microbatches(const assay_case *c)
{
    return c->config.use_batch_split_schedule && c->config.batch_split_factor > 1 ? c->config.batch_split_factor : 0;
}

static int64_t microbatch_of(const assay_case *c, int64_t row)
{
    return row % (c->batch / assay_case_shards(c)) % microbatches(c);
}

bool assay_mutant_first_microbatch_choice(const assay_mutation *m)
{
    bool changed = false;
    for (int i = 0; microbatches(m->c) > 0 && i < m->tensors->plan->spec_count; i++) {
        const assay_kept *tensor = &m->tensors->items[i];
        const char *path = tensor->spec->path;
        if (!assay_path_in(path, "routing") || !assay_path_ends(path, "selected_experts")) continue;
        const int64_t size = tensor->count / m->c->batch;
        for (int64_t row = 0; row < m->c->batch; row++) {
            int32_t *to = tensor->indices + row * size, *from = to - microbatch_of(m->c, row) * size;
            changed |= memcmp(to, from, (size_t)size * sizeof *to) != 0;
            memmove(to, from, (size_t)size * sizeof *to);
        }
    }
    return changed;
}

/* Cotangents are zero where `keeps` says no: what comes of them is the part of the rows that it keeps. Of a result that
 * has one index for each shard, row is the shard's first. */
typedef bool (*row_predicate)(const assay_mutation *m, int64_t row);

static bool keep_cotangents(const assay_mutation *m, row_predicate keeps)
{
    const int64_t shards = assay_case_shards(m->c);
    for (int i = 0; i < m->tensors->plan->spec_count; i++) {
        const assay_kept *tensor = &m->tensors->items[i];
        const int64_t first_axis = tensor->spec->shape.rank > 0 ? tensor->spec->shape.dims[0] : 0;
        if (!assay_path_in(tensor->spec->path, "cotangents")) continue;
        if (first_axis != m->c->batch && first_axis != shards) continue;
        const int64_t rows = m->c->batch / first_axis, size = tensor->count / first_axis;
        for (int64_t k = 0; k < tensor->count; k++) {
            if (!keeps(m, k / size * rows)) tensor->values[k] = 0.0;
        }
    }
    return true;
}

static bool is_of_shard(const assay_mutation *m, int64_t row)
{
    return row / assay_rows_of_shard(m->c) == m->shard;
}

static bool is_of_first_shard(const assay_mutation *m, int64_t row)
{
    return row < assay_rows_of_shard(m->c);
}

static bool is_of_first_replica(const assay_mutation *m, int64_t row)
{
    return row < assay_rows_of_shard(m->c) * m->c->mesh_expert;
}

static bool is_not_of_last_microbatch(const assay_mutation *m, int64_t row)
{
    return microbatch_of(m->c, row) != microbatches(m->c) - 1;
}

void assay_mutation_keep_shard(const assay_mutation *m)
{
    keep_cotangents(m, is_of_shard);
}

bool assay_mutant_router_of_first_shard(const assay_mutation *m)
{
    return assay_rows_of_shard(m->c) > 0 && keep_cotangents(m, is_of_first_shard);
}

bool assay_mutant_gradients_of_first_replica(const assay_mutation *m)
{
    return assay_rows_of_shard(m->c) > 0 && replicas(m->c) > 1 && keep_cotangents(m, is_of_first_replica);
}

bool assay_mutant_no_last_microbatch(const assay_mutation *m)
{
    return microbatches(m->c) > 0 && keep_cotangents(m, is_not_of_last_microbatch);
}

bool assay_mutant_is_weight_gradient(const char *path)
{
    return assay_path_in(path, "gradients/weights");
}

bool assay_mutant_is_router_gradient(const char *path)
{
    return assay_mutant_is_weight_gradient(path) && assay_path_ends(path, "gate/kernel");
}

/* Results whose rows are those of the batch. */
static bool has_batch_rows(const assay_mutation *m, const assay_kept *tensor)
{
    return assay_kept_axis(tensor, "B") == 0 && assay_rows_of_shard(m->c) > 0;
}

static bool roll_rows(const assay_mutation *m, assay_kept *tensor)
{
    if (!has_batch_rows(m, tensor)) return false;
    for (int64_t i = 0; i < assay_rows_of_shard(m->c); i++) assay_roll_axis(tensor, 0);
    return true;
}

bool assay_mutant_roll_shard_rows(const assay_mutation *m)
{
    const bool outputs = assay_change_floats(m, "outputs", roll_rows);
    return assay_change_floats(m, "gradients/inputs", roll_rows) || outputs;
}

bool assay_mutant_roll_shard_gradients(const assay_mutation *m)
{
    return assay_change_floats(m, "gradients/inputs", roll_rows);
}

static bool sum_rows(const assay_mutation *m, assay_kept *tensor)
{
    if (!has_batch_rows(m, tensor)) return false;
    const int64_t size = tensor->count / assay_case_shards(m->c);
    for (int64_t i = 0; i < size; i++) {
        double sum = 0.0;
        for (int64_t k = i; k < tensor->count; k += size) sum += tensor->values[k];
        for (int64_t k = i; k < tensor->count; k += size) tensor->values[k] = sum;
    }
    return true;
}

bool assay_mutant_sum_shard_rows(const assay_mutation *m)
{
    return assay_change_floats(m, "outputs", sum_rows);
}

static bool first_to_all(const assay_mutation *m, assay_kept *tensor)
{
    const int64_t shards = assay_case_shards(m->c), size = tensor->count / shards;
    if (assay_kept_axis(tensor, "shard") != 0 || shards < 2) return false;
    for (int64_t k = size; k < tensor->count; k++) tensor->values[k] = tensor->values[k % size];
    return true;
}

bool assay_mutant_first_shard_losses(const assay_mutation *m)
{
    return assay_change_floats(m, "outputs", first_to_all);
}

static bool times_replicas(const assay_mutation *m, assay_kept *tensor)
{
    return assay_scale_values(tensor, (double)replicas(m->c));
}

static bool by_replicas(const assay_mutation *m, assay_kept *tensor)
{
    return assay_scale_values(tensor, 1.0 / (double)replicas(m->c));
}

static bool times_expert_shards(const assay_mutation *m, assay_kept *tensor)
{
    return assay_path_names_expert_weight(tensor->spec->path) && assay_scale_values(tensor, (double)m->c->mesh_expert);
}

bool assay_mutant_sum_gradients_twice(const assay_mutation *m)
{
    return replicas(m->c) > 1 && assay_change_floats(m, "gradients/weights", times_replicas);
}

bool assay_mutant_average_gradients(const assay_mutation *m)
{
    return replicas(m->c) > 1 && assay_change_floats(m, "gradients/weights", by_replicas);
}

bool assay_mutant_undivided_experts(const assay_mutation *m)
{
    return assay_has_expert_shards(m->c) && assay_change_floats(m, "gradients/weights", times_expert_shards);
}
