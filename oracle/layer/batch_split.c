/* What a batch-split schedule can be of, its sizes, and the batch in microbatches. */
#include "oracle/layer/batch_split.h"

#include <inttypes.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/layer/batch_split_internal.h"

enum { SCAN_LAYERS = 4 }; /* the first two and the last two are outside the scan */

static int64_t layers_of(const assay_stack_config *config)
{
    return config->layers - config->dense_layers;
}

static assay_status check_batch(assay_context *ctx, const assay_stack_config *config)
{
    const assay_mesh *mesh = &config->sharding.mesh;
    const int64_t factor = config->batch_split_factor, least = config->single ? 1 : SCAN_LAYERS;
    int64_t parts = 0;
    if (factor < 1 || factor > ASSAY_MOST_MICROBATCHES) {
        return assay_refuse(ctx, "batch_split_factor is %" PRId64 ", expected 1 to %d", factor,
                            ASSAY_MOST_MICROBATCHES);
    }
    MUST(assay_checked_count(
        ctx, "mesh and batch_split_factor", 4,
        (int64_t[]){mesh->size[ASSAY_AXIS_DATA], mesh->size[ASSAY_AXIS_FSDP], mesh->size[ASSAY_AXIS_EXPERT], factor},
        &parts));
    if (config->mla.batch % parts != 0) {
        return assay_refuse(ctx,
                            "batch is %" PRId64 ", expected a multiple of %" PRId64 " shards (mesh) times %" PRId64
                            " (batch_split_factor)",
                            config->mla.batch, parts / factor, factor);
    }
    if (layers_of(config) < least) {
        return assay_refuse(ctx,
                            "use_batch_split_schedule needs %" PRId64 " MoE layers or more, found %" PRId64
                            " (base_num_decoder_layers - first_num_dense_layers)",
                            least, layers_of(config));
    }
    return ASSAY_OK;
}

static assay_status require_multiple(assay_context *ctx, const char *key, int64_t value, const char *axis, int64_t size)
{
    if (value % size == 0) return ASSAY_OK;
    return assay_refuse(ctx, "%s is %" PRId64 ", expected a multiple of mesh.%s = %" PRId64, key, value, axis, size);
}

static assay_status check_mesh(assay_context *ctx, const assay_stack_config *config)
{
    static const char *const axes[] = {"data", "fsdp", "expert"};
    const int64_t *size = config->sharding.mesh.size, fsdp = size[ASSAY_AXIS_FSDP];
    for (int axis = 0; axis <= ASSAY_AXIS_EXPERT; axis++) {
        if (size[axis] >= 1) continue;
        return assay_refuse(ctx, "mesh.%s is %" PRId64 ", expected at least 1", axes[axis], size[axis]);
    }
    MUST(require_multiple(ctx, "num_experts", config->moe.routing.num_experts, "expert", size[ASSAY_AXIS_EXPERT]));
    MUST(require_multiple(ctx, "base_emb_dim", config->mla.emb_dim, "fsdp", fsdp));
    MUST(require_multiple(ctx, "q_lora_rank", config->mla.q_lora_rank, "fsdp", fsdp));
    return require_multiple(ctx, "kv_lora_rank", config->mla.kv_lora_rank, "fsdp", fsdp);
}

/* What MaxText's file does not have. */
static const char *lacking(const assay_stack_config *config)
{
    const assay_moe_config *moe = &config->moe;
    const assay_routing_config *r = &moe->routing;
    const assay_sharding *sharding = &config->sharding;
    if (config->mla.q_lora_rank < 1) return "q_lora_rank above 0";
    if (!config->mla.rope.pairwise) return "rope_pairwise=true";
    if (config->mla.rope.attention_scaling) return "rope_attention_scaling=false";
    if (r->family != ASSAY_ROUTER_DEEPSEEK3 || r->score_func != ASSAY_SCORE_SIGMOID || r->hash_rows > 0)
        return "the routing of deepseek3 with routed_score_func=sigmoid";
    if (r->n_routing_groups > 0 && r->group_score != ASSAY_GROUP_TOP2_SUM) return "group_score=top2_sum";
    if (r->load_balance_loss_weight > 0) return "load_balance_loss_weight=0";
    if (r->z_loss_weight > 0) return "router_z_loss_weight=0";
    if (r->routed_bias_update_rate > 0) return "routed_bias_update_rate=0";
    if (moe->path != ASSAY_MOE_SPARSE) return "sparse_matmul=true";
    if (moe->fused_weights) return "experts that are not fused (prefuse_moe_weights, fused_moe_mlp)";
    if (moe->glu != ASSAY_GLU_PLAIN || moe->activation != ASSAY_SILU)
        return "mlp_activations=[silu, linear], not clamped";
    if (moe->weight_on_input) return "apply_router_weight_on_input=false";
    if (moe->late_factor != 0) return "apply_routed_scaling_factor_on_output=true";
    if (moe->shared_mlp_dim < 1) return "shared_experts above 0";
    if (sharding->ring_of_experts) return "use_ring_of_experts=false";
    if (sharding->ragged_buffer_factor > 0) return "no ragged_buffer_factor";
    if (sharding->emb_chunks > 0 || sharding->token_chunks > 1)
        return "no chunks (num_moe_emb_chunks, num_moe_token_chunks)";
    if (sharding->tensor_shards > 1) return "mesh.tensor=1";
    if (sharding->weights_on_shards) return "weights_on_shards=false";
    if (sharding->fsdp_transpose > 1) return "mesh.fsdp_transpose=1";
    if (assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR) > 1) return "mesh.mlp_tensor=1";
    return NULL;
}

assay_status assay_batch_split_check(assay_context *ctx, const assay_stack_config *config)
{
    const char *wanted = lacking(config);
    if (wanted != NULL) return assay_refuse(ctx, "use_batch_split_schedule needs %s", wanted);
    MUST(check_mesh(ctx, config));
    return check_batch(ctx, config);
}

assay_batch_split_sizes assay_batch_split_sizes_of(const assay_stack_config *config)
{
    const assay_routing_config *r = &config->moe.routing;
    const assay_mesh *mesh = &config->sharding.mesh;
    assay_batch_split_sizes s = {.shards = assay_mesh_shards(mesh), .expert_shards = mesh->size[ASSAY_AXIS_EXPERT]};
    s.rows = config->mla.batch / (s.shards * config->batch_split_factor);
    s.tokens = s.rows * config->mla.sequence;
    s.gathered = s.tokens * s.expert_shards;
    s.copies = s.gathered * r->num_experts_per_tok;
    s.capacity =
        (int64_t)((double)s.copies / (double)s.expert_shards * (config->kept_capacity > 0 ? config->kept_capacity : 2));
    if (s.capacity > s.copies) s.capacity = s.copies;
    s.local_experts = r->num_experts / s.expert_shards;
    return s;
}

void bs_move_rows(const bs_run *run, int64_t index, void *batch, void *microbatch, size_t size, bool to_batch)
{
    for (int64_t row = 0; row < run->sizes.shards * run->sizes.rows; row++) {
        char *outside = (char *)batch + (size_t)(row * run->factor + index) * size;
        char *inside = (char *)microbatch + (size_t)row * size;
        memcpy(to_batch ? outside : inside, to_batch ? inside : outside, size);
    }
}
