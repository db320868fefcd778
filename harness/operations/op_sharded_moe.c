/* What a MoE block over a mesh gives beside or instead of one device's results: a leading shard axis, then one of token
 * chunks where there are any. */
#include <string.h>

#include "harness/operations/op_support.h"

/* Labels and sizes of what every shard has: the shard axis, the chunk axis, then up to two of its own. */
typedef struct per_shard {
    char labels[ASSAY_MAX_RANK + 1];
    assay_dims dims;
} per_shard;

static void per_shard_of(per_shard *p, const assay_shard_sizes *s, const char *labels, int64_t first, int64_t second)
{
    int rank = 0;
    p->labels[rank] = 'm';
    p->dims.dims[rank++] = s->shards * s->hidden_shards;
    if (s->chunks > 1) {
        p->labels[rank] = 'c';
        p->dims.dims[rank++] = s->chunks;
    }
    const int64_t own[] = {first, second};
    for (int i = 0; labels[i] != '\0'; i++) {
        p->labels[rank] = labels[i];
        p->dims.dims[rank++] = own[i];
    }
    p->labels[rank] = '\0';
    p->dims.labels = p->labels;
}

static assay_status describe_integers(const assay_describer *d, const assay_shard_sizes *s, const char *name,
                                      const char *labels, int64_t first, int64_t second)
{
    per_shard p;
    per_shard_of(&p, s, labels, first, second);
    return assay_describe_result(d, "routing", name, ASSAY_INT32, p.dims);
}

assay_status assay_describe_balance(const assay_describer *d, const assay_moe_config *config,
                                    const assay_sharding *sharding)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *r = &config->routing;
    const assay_fill unit = {.distribution = ASSAY_CONSTANT, .scale = 1.0, .mean = 1.0};
    const bool sharded = assay_is_sharded(config, sharding);
    const int64_t shards = sharded ? assay_mesh_shards(&sharding->mesh) : 1;
    const bool each = sharded && r->balance_scope != ASSAY_BALANCE_GLOBAL;
    const assay_dims loss = {each ? "m" : "", {shards}};
    if (r->load_balance_loss_weight > 0.0 && r->hash_rows == 0) {
        TRY(assay_describe_layer_output(d, "lb_loss", &unit, loss));
    }
    if (r->z_loss_weight > 0.0) TRY(assay_describe_layer_output(d, "z_loss", &unit, loss));
    if (r->routed_bias_update_rate > 0.0 && r->hash_rows == 0) {
        const assay_dims dims =
            sharded ? (assay_dims){"mE", {shards, r->num_experts}} : (assay_dims){"E", {r->num_experts}};
        TRY(assay_describe_layer_output(d, "bias_updates", NULL, dims));
    }
cleanup:
    return status;
}

assay_status assay_describe_sharded_routing(const assay_describer *d, const assay_moe_config *config,
                                            const assay_sharding *sharding)
{
    assay_status status;
    const assay_routing_config *r = &config->routing;
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    const assay_dims chosen = {"BSK", {r->batch, r->sequence, r->num_experts_per_tok}};
    TRY(assay_describe_result(d, "routing", "selected_experts", ASSAY_INT32, chosen));
    TRY(assay_describe_result(d, "routing", "weights", ASSAY_FLOAT64, chosen));
    TRY(assay_describe_result(d, "routing", "margin", ASSAY_FLOAT64, (assay_dims){"BS", {r->batch, r->sequence}}));
    TRY(describe_integers(d, &s, "group_sizes", "E", r->num_experts, 0));
    TRY(assay_describe_balance(d, config, sharding));
    TRY(describe_integers(d, &s, "sorted_selected_experts", "r", s.copies, 0));
    if (s.expert_shards > 1) {
        TRY(assay_describe_result(d, "routing", "expert_shard_id", ASSAY_INT32,
                                  (assay_dims){"m", {assay_mesh_shards(&sharding->mesh)}}));
    }
    if (s.exchanges) TRY(describe_integers(d, &s, "reshaped_group_sizes", "P", s.expert_shards, 0));
    if (s.exchanges && s.batch_sharded) {
        TRY(describe_integers(d, &s, "all_shards_group_sizes", "PP", s.expert_shards, s.expert_shards));
    }
    TRY(describe_integers(d, &s, "local_group_sizes", "e", s.local_experts, 0));
    if (s.exchanges) TRY(describe_integers(d, &s, "local_sorted_indices", "b", s.buffer, 0));
cleanup:
    return status;
}

assay_dims assay_sharded_rows(const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_shard_sizes s = assay_shard_sizes_of(config, sharding);
    const int64_t shards = assay_mesh_shards(&sharding->mesh);
    return s.chunks > 1 ? (assay_dims){"mcb", {shards, s.chunks, s.buffer}} : (assay_dims){"mb", {shards, s.buffer}};
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
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "weights_on_shards needs sparse_matmul=true, fused_moe_func=false and w13_reorder_size=1");
    }
    const bool chunks = m->num_moe_emb_chunks > 0 || m->num_moe_token_chunks > 1;
    if ((m->use_ring_of_experts || chunks) && !m->sparse_matmul) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s needs sparse_matmul=true, found sparse_matmul=false",
                          m->use_ring_of_experts      ? "use_ring_of_experts"
                          : m->num_moe_emb_chunks > 0 ? "num_moe_emb_chunks"
                                                      : "num_moe_token_chunks");
    }
    return ASSAY_OK;
}
