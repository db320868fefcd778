/* What a MoE block over a mesh gives beside or instead of one device's results: a leading shard axis, then one of token
 * chunks where there are any. */
#include <stdio.h>

#include "harness/operations/op_support.h"

void assay_describe_balance(assay_describer *d, const assay_routing_config *r, bool sharded)
{
    const assay_fill unit = {.distribution = ASSAY_CONSTANT, .scale = 1.0, .mean = 1.0};
    const char *loss = sharded && r->balance_scope != ASSAY_BALANCE_GLOBAL ? "m" : "";
    const bool chooses = r->hash_rows == 0;
    if (r->load_balance_loss_weight > 0.0 && chooses) assay_describe_output(d, "lb_loss", &unit, loss);
    if (r->z_loss_weight > 0.0) assay_describe_output(d, "z_loss", &unit, loss);
    if (r->routed_bias_update_rate > 0.0 && chooses)
        assay_describe_output(d, "bias_updates", NULL, sharded ? "mE" : "E");
}

/* What each shard has, and of chunks each. */
static void describe_integers(assay_describer *d, const assay_shard_sizes *s, const char *name, const char *axes)
{
    char all[ASSAY_MAX_RANK + 1];
    snprintf(all, sizeof all, "m%s%s", s->chunks > 1 ? "c" : "", axes);
    assay_describe_result(d, "routing", name, ASSAY_INT32, all);
}

void assay_describe_sharded_routing(assay_describer *d, const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    describe_integers(d, &s, "group_sizes", "E");
    assay_describe_balance(d, &config->routing, true);
    const bool replicas = config->physical_experts > 0;
    if (!replicas) describe_integers(d, &s, "sorted_selected_experts", "r");
    if (s.expert_shards > 1) assay_describe_result(d, "routing", "expert_shard_id", ASSAY_INT32, "m");
    /* what is sent depends on the choice of replicas, which is an engine's own */
    if (replicas) {
        assay_describe_result(d, "routing", "physical_experts", ASSAY_INT32, "BSK");
        return;
    }
    if (s.exchanges) describe_integers(d, &s, "reshaped_group_sizes", "P");
    if (s.exchanges && s.batch_sharded) describe_integers(d, &s, "all_shards_group_sizes", "PP");
    describe_integers(d, &s, "local_group_sizes", "e");
    if (s.exchanges) describe_integers(d, &s, "local_sorted_indices", "b");
}

assay_status assay_sharding_of(assay_context *ctx, const assay_case *c, assay_sharding *sharding)
{
    const assay_model_config *m = &c->config;
    *sharding = (assay_sharding){.mesh = assay_mesh_of(c),
                                 .tensor_shards = c->mesh_tensor,
                                 .ring_of_experts = m->use_ring_of_experts,
                                 .ragged_buffer_factor = m->ragged_buffer_factor,
                                 .emb_chunks = m->num_moe_emb_chunks,
                                 .token_chunks = m->num_moe_token_chunks,
                                 .weights_on_shards = m->weights_on_shards,
                                 .shard_exp_on_fsdp = m->shard_exp_on_fsdp,
                                 .fsdp_transpose = c->mesh_fsdp_transpose};
    if (m->weights_on_shards && (!m->sparse_matmul || m->fused_moe_func || m->w13_reorder_size > 1)) {
        return assay_refuse(ctx,
                            "weights_on_shards needs sparse_matmul=true, fused_moe_func=false and w13_reorder_size=1");
    }
    const bool chunks = m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1;
    if ((m->use_ring_of_experts || chunks) && !m->sparse_matmul) {
        return assay_refuse(ctx, "%s needs sparse_matmul=true, found sparse_matmul=false",
                            m->use_ring_of_experts      ? "use_ring_of_experts"
                            : m->num_moe_emb_chunks > 0 ? "num_moe_emb_chunks"
                                                        : "num_moe_token_chunks");
    }
    return ASSAY_OK;
}
