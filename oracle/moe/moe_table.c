/* Tensors of the block: sizes of their axes, and its checkpoints. */
#include "oracle/moe/sharded_moe.h"

int64_t assay_moe_axis_size(const assay_moe_config *config, const assay_sharding *sharding, char axis)
{
    const assay_routing_config *r = &config->routing;
    const int64_t tokens = r->batch * r->sequence;
    assay_shard_sizes s = {.local_experts = config->local_num_experts, .copies = tokens * r->num_experts_per_tok};
    if (assay_is_sharded(config, sharding)) s = assay_shard_sizes_of(config, sharding);
    if (axis == 'B') return r->batch;
    if (axis == 'S') return r->sequence;
    if (axis == 'D') return config->emb_dim;
    if (axis == 'E') return r->num_experts;
    if (axis == 'K') return r->num_experts_per_tok;
    if (axis == 'V') return r->hash_rows;
    if (axis == 'r') return s.copies;
    if (axis == 't') return assay_moe_slots(config);
    if (axis == 's') return tokens * assay_moe_slots(config);
    if (axis == 'O') return assay_moe_experts(config);
    if (axis == 'p') return config->physical_experts;
    if (axis == 'C') return assay_expert_capacity(r, config->capacity_factor);
    if (axis == 'm') return assay_mesh_shards(&sharding->mesh);
    if (axis == 'c') return s.chunks;
    if (axis == 'b') return s.buffer;
    if (axis == 'e') return s.local_experts;
    if (axis == 'P') return s.expert_shards;
    return 1;
}

/* Rows of routed intermediates: what a shard's experts get, every expert on every token, the places of the capacity buffer, or
 * sorted copies. */
static const char *routed_rows(const assay_moe_config *config, const assay_sharding *sharding)
{
    if (assay_is_sharded(config, sharding)) return sharding->token_chunks > 1 ? "mcb" : "mb";
    if (config->path == ASSAY_MOE_DENSE) return "BSE";
    if (config->path == ASSAY_MOE_DROPPING) return "EBC";
    return config->fused_shared_experts > 0 ? "s" : "r";
}

assay_tensor_row assay_moe_checkpoint_row(const assay_moe_config *config, const assay_sharding *sharding,
                                          assay_mlp_place place, int checkpoint)
{
    const bool routed = place == ASSAY_MLP_ROUTED;
    const char *axes = routed ? routed_rows(config, sharding) : "BS";
    assay_gated_mlp_config mlp = routed ? assay_moe_expert_config(config, 0) : assay_moe_shared_config(config, 0);
    int64_t dims[ASSAY_MAX_RANK];
    if (routed && assay_is_sharded(config, sharding)) { /* a shard's columns */
        mlp.mlp_dim /= assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR);
        mlp.emb_dim /= assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR);
    }
    for (int i = 0; axes[i] != '\0'; i++) dims[i] = assay_moe_axis_size(config, sharding, axes[i]);
    const assay_tensor_row row = assay_mlp_checkpoint_row(&mlp, place, checkpoint);
    return row.name == NULL ? row : assay_tensor_row_below(axes, dims, row);
}
