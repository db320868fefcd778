#include "oracle/spec/tests/spec_sharded_case.h"

#include <stdio.h>

#include "oracle/spec/tests/spec_stream.h"

assay_sharding mesh_of(int64_t data, int64_t fsdp, int64_t expert)
{
    return (assay_sharding){.mesh = {{data, fsdp, expert}}, .tensor_shards = 1, .token_chunks = 1};
}

assay_shape sharded_shape(const assay_shard_sizes *sizes, int64_t last)
{
    return sizes->chunks > 1 ? DIMS(sizes->shards, sizes->chunks, last) : DIMS(sizes->shards, last);
}

case_path case_path_of(const char *folder, const char *prefix, const char *name)
{
    case_path path;
    assert_true(snprintf(path.text, sizeof path.text, "%s%s%s", folder, prefix, name) < ASSAY_PATH_SIZE);
    return path;
}

#define LIST(name, shape) case_want_indices(c, case_path_of("routing/", prefix, name).text, shape)

void want_routing_lists(spec_case *c, const char *prefix, const assay_moe_config *config,
                        const assay_sharding *sharding)
{
    const assay_routing_config *r = &config->routing;
    if (!assay_is_sharded(config, sharding)) {
        LIST("group_sizes", DIMS(r->num_experts));
        LIST("sorted_selected_experts", DIMS(r->batch * r->sequence * r->num_experts_per_tok));
        return;
    }
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    LIST("group_sizes", sharded_shape(&s, r->num_experts));
    LIST("sorted_selected_experts", sharded_shape(&s, s.copies));
    LIST("local_group_sizes", sharded_shape(&s, s.local_experts));
    if (s.expert_shards == 1) return;
    LIST("expert_shard_id", DIMS(s.shards));
    if (sharding->ring_of_experts) return;
    LIST("local_sorted_indices", sharded_shape(&s, s.buffer));
    LIST("reshaped_group_sizes", sharded_shape(&s, s.expert_shards));
    if (s.batch_sharded) LIST("all_shards_group_sizes", DIMS(s.shards, s.expert_shards, s.expert_shards));
}

void want_balance(spec_case *c, const char *prefix, const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_routing_config *r = &config->routing;
    const bool sharded = assay_is_sharded(config, sharding);
    const int64_t shards = sharded ? assay_mesh_shards(&sharding->mesh) : 1;
    const assay_shape loss = sharded ? DIMS(shards) : dims(0, NULL);
    if (r->hash_rows > 0 || r->family == ASSAY_ROUTER_FUSED) return;
    if (r->load_balance_loss_weight > 0) {
        case_want(c, case_path_of("outputs/", prefix, "lb_loss").text, loss);
        case_random(c, case_path_of("cotangents/", prefix, "lb_loss").text, 1, loss);
    }
    if (r->routed_bias_update_rate > 0) {
        case_want(c, case_path_of("outputs/", prefix, "bias_updates").text,
                  sharded ? DIMS(shards, r->num_experts) : DIMS(r->num_experts));
    }
}
