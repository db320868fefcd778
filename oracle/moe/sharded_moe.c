#include "oracle/moe/sharded_moe.h"

#include <inttypes.h>
#include <math.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/ragged_buffer.h"

const assay_sharding assay_one_device = {.mesh = {{1, 1, 1, 1}}, .tensor_shards = 1, .token_chunks = 1};

bool assay_is_sharded(const assay_moe_config *config, const assay_sharding *sharding)
{
    if (config->path == ASSAY_MOE_DENSE || config->path == ASSAY_MOE_DROPPING) return false;
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++)
        if (sharding->mesh.size[axis] > 1) return true;
    return sharding->tensor_shards > 1 || sharding->ring_of_experts || sharding->ragged_buffer_factor > 0 ||
           sharding->emb_chunks > 0 || sharding->token_chunks > 1 || sharding->weight_before_wo ||
           sharding->weights_on_shards;
}

/* That copies are sorted by: physical experts, or experts. */
static int64_t groups_of(const assay_moe_config *config)
{
    return config->physical_experts > 0 ? config->physical_experts : assay_moe_experts(config);
}

static assay_status check_numbers(assay_context *ctx, const assay_sharding *s)
{
    const struct {
        const char *key;
        int64_t value, least;
    } numbers[] = {
        {"mesh.data", s->mesh.size[ASSAY_AXIS_DATA], 1},
        {"mesh.fsdp", s->mesh.size[ASSAY_AXIS_FSDP], 1},
        {"mesh.expert", s->mesh.size[ASSAY_AXIS_EXPERT], 1},
        {"mesh.tensor", s->tensor_shards, 1},
        {"mesh.mlp_tensor", s->mesh.size[ASSAY_AXIS_MLP_TENSOR], 0},
        {"num_moe_emb_chunks", s->emb_chunks, 0},
        {"num_moe_token_chunks", s->token_chunks, 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value >= numbers[i].least) continue;
        return assay_refuse(ctx, "moe: %s is %" PRId64 ", expected at least %" PRId64, numbers[i].key, numbers[i].value,
                            numbers[i].least);
    }
    if (isfinite(s->ragged_buffer_factor)) return ASSAY_OK;
    return assay_refuse(ctx, "moe: ragged_buffer_factor is %g, expected a finite number", s->ragged_buffer_factor);
}

/* tpu-inference puts either experts or their hidden dimension on its axes, and has nothing else of all this. */
static assay_status check_fused(assay_context *ctx, const assay_sharding *s)
{
    const struct {
        const char *key;
        bool found;
    } keys[] = {{"mesh.tensor", s->tensor_shards > 1},
                {"use_ring_of_experts", s->ring_of_experts},
                {"ragged_buffer_factor", s->ragged_buffer_factor > 0},
                {"num_moe_emb_chunks", s->emb_chunks > 0},
                {"num_moe_token_chunks", s->token_chunks > 1},
                {"weight_before_wo", s->weight_before_wo}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        if (!keys[i].found) continue;
        return assay_refuse(ctx, "moe: fused_moe_func=true goes without %s, found it", keys[i].key);
    }
    const int64_t experts = s->mesh.size[ASSAY_AXIS_EXPERT], hidden = assay_mesh_size(&s->mesh, ASSAY_AXIS_MLP_TENSOR);
    if (experts == 1 || hidden == 1) return ASSAY_OK;
    return assay_refuse(ctx,
                        "moe: fused_moe_func=true is parallel over mesh.expert or over mesh.mlp_tensor, found %" PRId64
                        " and %" PRId64,
                        experts, hidden);
}

/* A rank's own experts are all on each of its shards. */
static assay_status check_placed(assay_context *ctx, const assay_moe_config *config, const assay_sharding *s)
{
    if (config->local_num_experts > 0 && s->mesh.size[ASSAY_AXIS_EXPERT] > 1) {
        return assay_refuse(ctx,
                            "moe: mesh.expert is %" PRId64
                            ", expected 1 with local_num_experts, which are those of one "
                            "place of that axis",
                            s->mesh.size[ASSAY_AXIS_EXPERT]);
    }
    if (config->physical_experts > 0 && s->ragged_buffer_factor > 0) {
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "moe: ragged_buffer_factor is %g, expected none with num_redundant_experts: which rows are lost "
            "depends on the choice of replicas, which is an engine's own",
            s->ragged_buffer_factor);
    }
    if (!s->weights_on_shards || (config->local_num_experts == 0 && config->physical_experts == 0)) return ASSAY_OK;
    return assay_refuse(ctx, "moe: weights_on_shards has every expert once, expected num_redundant_experts=0 and "
                             "local_num_experts=0");
}

static assay_status check_features(assay_context *ctx, const assay_moe_config *config, const assay_sharding *s)
{
    MUST(check_placed(ctx, config, s));
    if (config->path == ASSAY_MOE_FUSED) return check_fused(ctx, s);
    if (config->fused_shared_experts > 0)
        return assay_refuse(ctx,
                            "moe: num_fused_shared_experts computes on one device, found a mesh, chunks or "
                            "use_ring_of_experts: every shard's tokens need these experts, which are no shard's own");
    if (s->weight_before_wo && config->weight_on_input)
        return assay_refuse(ctx, "moe: apply_router_weight_on_input has its weight on x, found it on h");
    if (s->weight_before_wo && config->routing.family == ASSAY_ROUTER_LLAMA4)
        return assay_refuse(ctx, "moe: decoder_block=llama4 has its weight on x, found it on h (weight_before_wo)");
    if (!s->ring_of_experts && (s->emb_chunks > 0 || s->token_chunks > 1)) {
        return assay_refuse(ctx, "moe: %s is %" PRId64 ", which needs use_ring_of_experts=true, found false",
                            s->emb_chunks > 0 ? "num_moe_emb_chunks" : "num_moe_token_chunks",
                            s->emb_chunks > 0 ? s->emb_chunks : s->token_chunks);
    }
    if (s->ragged_buffer_factor > 0 && (s->ring_of_experts || s->mesh.size[ASSAY_AXIS_EXPERT] == 1)) {
        return assay_refuse(ctx,
                            "moe: ragged_buffer_factor is %g, which needs mesh.expert of 2 or more without "
                            "use_ring_of_experts, found mesh.expert=%" PRId64 " and use_ring_of_experts=%s",
                            s->ragged_buffer_factor, s->mesh.size[ASSAY_AXIS_EXPERT],
                            s->ring_of_experts ? "true" : "false");
    }
    return ASSAY_OK;
}

static bool is_divided(int64_t whole, int64_t parts)
{
    return parts <= whole && whole % parts == 0;
}

static assay_status check_divisions(assay_context *ctx, const assay_moe_config *config, const assay_sharding *s)
{
    const assay_routing_config *routing = &config->routing;
    const int64_t dim = config->emb_dim, chunks = s->emb_chunks > 0 ? s->emb_chunks : 1;
    int64_t shards = 0;
    MUST(assay_checked_count(ctx, "mesh", ASSAY_AXIS_EXPERT + 1, s->mesh.size, &shards));
    const int64_t parts = assay_mesh_size(&s->mesh, ASSAY_AXIS_MLP_TENSOR);
    const bool fused = config->path == ASSAY_MOE_FUSED;
    const bool one_for_all = routing->batch == 1 && shards == s->mesh.size[ASSAY_AXIS_EXPERT] && !s->ring_of_experts;
    const int64_t owners = shards / s->mesh.size[ASSAY_AXIS_EXPERT];
    if (fused && !is_divided(routing->batch, owners)) {
        return assay_refuse(ctx,
                            "moe: batch is %" PRId64 ", expected a multiple of the %" PRId64
                            " shards of data and fsdp, over which fused_moe_func=true splits it",
                            routing->batch, owners);
    }
    if (!fused && !one_for_all && !is_divided(routing->batch, shards)) {
        return assay_refuse(ctx,
                            "moe: batch is %" PRId64 ", expected a multiple of the mesh's %" PRId64
                            " shards (or 1 on mesh.expert alone without use_ring_of_experts)",
                            routing->batch, shards);
    }
    if (!is_divided(groups_of(config), s->mesh.size[ASSAY_AXIS_EXPERT])) {
        return assay_refuse(ctx,
                            "moe: num_experts%s is %" PRId64 ", expected a multiple of mesh.expert, which is %" PRId64,
                            config->physical_experts > 0 ? " plus num_redundant_experts" : "", groups_of(config),
                            s->mesh.size[ASSAY_AXIS_EXPERT]);
    }
    if (!is_divided(dim, s->tensor_shards)) {
        return assay_refuse(ctx, "moe: emb_dim is %" PRId64 ", expected a multiple of mesh.tensor, which is %" PRId64,
                            dim, s->tensor_shards);
    }
    if (!is_divided(dim / s->tensor_shards, chunks)) {
        return assay_refuse(ctx,
                            "moe: emb_dim is %" PRId64 " (mesh.tensor %" PRId64
                            "), expected each part to be a multiple of num_moe_emb_chunks, which is %" PRId64,
                            dim, s->tensor_shards, chunks);
    }
    const struct {
        const char *name;
        int64_t size;
    } widths[] = {{"moe_mlp_dim", config->moe_mlp_dim},
                  {"emb_dim (psum_scatter)", fused ? 0 : dim},
                  {"width of the shared expert", config->shared_mlp_dim}};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        if (widths[i].size % parts == 0) continue;
        return assay_refuse(ctx, "moe: %s is %" PRId64 ", expected a multiple of mesh.mlp_tensor, which is %" PRId64,
                            widths[i].name, widths[i].size, parts);
    }
    if (!is_divided(routing->sequence, s->token_chunks)) {
        return assay_refuse(
            ctx, "moe: sequence is %" PRId64 ", expected a multiple of num_moe_token_chunks, which is %" PRId64,
            routing->sequence, s->token_chunks);
    }
    return ASSAY_OK;
}

/* Of kernels as they lie on the shards. */
static assay_status check_kernels(assay_context *ctx, const assay_moe_config *config, const assay_sharding *s)
{
    if (!s->weights_on_shards) return ASSAY_OK;
    const assay_mesh *mesh = &s->mesh;
    const int64_t transpose = s->fsdp_transpose > 1 ? s->fsdp_transpose : 1;
    const int64_t fsdp = mesh->size[ASSAY_AXIS_FSDP] / transpose;
    const int64_t tensor = assay_mesh_size(mesh, ASSAY_AXIS_MLP_TENSOR);
    const struct {
        const char *name, *axes;
        int64_t size, parts;
    } splits[] = {
        {"num_experts", "mesh.expert times mesh.fsdp (shard_exp_on_fsdp)", config->routing.num_experts,
         s->shard_exp_on_fsdp ? mesh->size[ASSAY_AXIS_EXPERT] * fsdp : 1},
        {"emb_dim", "mesh.fsdp", config->emb_dim, s->shard_exp_on_fsdp ? 1 : fsdp},
        {"moe_mlp_dim", "mesh.fsdp_transpose times mesh.mlp_tensor", config->moe_mlp_dim, transpose * tensor},
    };
    if (assay_mesh_shards(mesh) == mesh->size[ASSAY_AXIS_DATA]) {
        return assay_refuse(ctx,
                            "moe: weights_on_shards needs fsdp, fsdp_transpose, expert or mlp_tensor of 2 or more in "
                            "the mesh, found 1");
    }
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        if (splits[i].size % splits[i].parts == 0) continue;
        return assay_refuse(
            ctx, "moe: %s is %" PRId64 ", expected a multiple of %s, which is %" PRId64 " (weights_on_shards)",
            splits[i].name, splits[i].size, splits[i].axes, splits[i].parts);
    }
    return ASSAY_OK;
}

/* Without `buffer`. */
static assay_shard_sizes sizes_before_buffer(const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_routing_config *routing = &config->routing;
    const int64_t hidden_shards = assay_mesh_size(&sharding->mesh, ASSAY_AXIS_MLP_TENSOR);
    assay_shard_sizes s = {.shards = assay_mesh_shards(&sharding->mesh) / hidden_shards,
                           .expert_shards = sharding->mesh.size[ASSAY_AXIS_EXPERT],
                           .hidden_shards = hidden_shards,
                           .chunks = sharding->token_chunks};
    const bool fused = config->path == ASSAY_MOE_FUSED; /* all shards of the expert axis have the same tokens */
    s.batch_sharded = (routing->batch > 1 && !fused) || s.expert_shards == 1;
    s.exchanges = s.expert_shards > 1 && !sharding->ring_of_experts && !fused;
    s.owners = s.batch_sharded ? s.shards : fused ? s.shards / s.expert_shards : 1;
    s.own_batch = routing->batch / s.owners;
    s.batch = sharding->ring_of_experts ? s.own_batch * s.expert_shards : s.own_batch;
    s.sequence = routing->sequence / s.chunks;
    s.copies = s.batch * s.sequence * assay_moe_slots(config);
    s.local_experts = config->local_num_experts > 0 ? config->local_num_experts : groups_of(config) / s.expert_shards;
    return s;
}

/* Copies of tokens have int32 positions: assay_routing_check has seen to those of the whole batch. */
static assay_status check_buffers(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding)
{
    int64_t count = 0;
    assay_shard_sizes s = sizes_before_buffer(config, sharding);
    const double factor = sharding->ragged_buffer_factor, rows = factor * (double)s.copies;
    if (factor > 0 && s.batch_sharded && !(rows >= 1 && rows <= INT32_MAX)) {
        return assay_refuse(ctx,
                            "moe: ragged_buffer_factor is %g, which makes a buffer of %.10g rows for %" PRId64
                            " copies of a shard's tokens, expected 1 to %" PRId32,
                            factor, floor(rows), s.copies, INT32_MAX);
    }
    s = assay_shard_sizes_of(config, sharding);
    const int64_t most = s.buffer > s.copies ? s.buffer : s.copies, experts = groups_of(config);
    const int64_t wide = 2 * config->moe_mlp_dim > config->emb_dim ? 2 * config->moe_mlp_dim : config->emb_dim;
    MUST(assay_checked_count(ctx, "moe: rows of all shards", 4, (int64_t[]){s.shards, s.chunks, most, wide}, &count));
    MUST(assay_checked_count(ctx, "moe: logits of all shards", 5,
                             (int64_t[]){s.shards, s.chunks, s.batch, s.sequence, experts}, &count));
    return assay_checked_count(ctx, "moe: sizes of groups of all shards", 3,
                               (int64_t[]){s.shards, s.expert_shards, experts}, &count);
}

assay_status assay_sharded_moe_check(assay_context *ctx, const assay_moe_config *config, const assay_sharding *sharding)
{
    MUST(assay_moe_check(ctx, config));
    if (!assay_is_sharded(config, sharding)) return ASSAY_OK;
    MUST(check_numbers(ctx, sharding));
    MUST(check_features(ctx, config, sharding));
    MUST(check_divisions(ctx, config, sharding));
    MUST(check_kernels(ctx, config, sharding));
    return check_buffers(ctx, config, sharding);
}

assay_shard_sizes assay_shard_sizes_of(const assay_moe_config *config, const assay_sharding *sharding)
{
    const assay_routing_config *routing = &config->routing;
    assay_shard_sizes s = sizes_before_buffer(config, sharding);
    s.buffer = s.copies;
    if (s.exchanges && s.batch_sharded) {
        s.buffer = assay_ragged_buffer_rows(s.copies, s.expert_shards, groups_of(config), routing->num_experts_per_tok,
                                            sharding->ragged_buffer_factor);
    }
    return s;
}
