/* A MoE block over a virtual mesh (SPEC 9): one device's formula without the choices that no shard has room for, and
 * what each shard finds out on the way. */
#include <string.h>

#include "oracle/quad/quad_internal.h"

bool quad_is_sharded(const quad_moe_config *config)
{
    const assay_sharding *s = &config->sharding;
    bool sharded = s->ring_of_experts || s->emb_chunks > 0 || s->token_chunks > 1 || s->tensor_shards > 1 ||
                   s->weight_before_wo || s->weights_on_shards;
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) sharded |= s->mesh.size[axis] > 1;
    return sharded && (config->moe.path == ASSAY_MOE_SPARSE || config->moe.path == ASSAY_MOE_FUSED);
}

/* One shard's routing of one part, at a choice that is made. */
typedef struct shard_routing {
    const quad_moe_config *config;
    const quad_spread *spread;
    const quad_tensors *in;
    const int32_t *selected; /* [T,K] */
    quad *x;            /* of the part's tokens; selected likewise */
    int32_t *part_selected;
} shard_routing;

static assay_status route_part(assay_context *ctx, const shard_routing *r, int64_t shard, int64_t part,
                               quad_tensors *out)
{
    static const char *const gate[] = {"weights/gate/kernel", "weights/gate/bias"};
    const quad_spread *spread = r->spread;
    const int64_t dim = r->config->moe.emb_dim, k = spread->per_token, tokens = spread->rows * spread->sequence;
    const quad *x = quad_tensors_find(r->in, "inputs/x")->values;
    assay_routing_config config = r->config->moe.routing;
    config.batch = spread->rows;
    config.sequence = spread->sequence;
    for (int64_t i = 0; i < tokens; i++) {
        const int64_t token = quad_spread_token(spread, shard, part, i);
        memcpy(r->x + i * dim, x + token * dim, (size_t)dim * sizeof *x);
        memcpy(r->part_selected + i * k, r->selected + token * k, (size_t)k * sizeof *r->selected);
    }
    quad_tensor items[4] = {
        {.path = "inputs/x", .shape = assay_shape_of(2, tokens, dim), .values = r->x},
        {.path = "routing/selected_experts", .shape = assay_shape_of(2, tokens, k), .indices = r->part_selected}};
    quad_tensors in = {.items = items, .count = 2};
    for (int i = 0; i < 2; i++) {
        const quad_tensor *weight = quad_tensors_find(r->in, gate[i]);
        if (weight != NULL) items[in.count++] = *weight;
    }
    return quad_route(ctx, &config, &in, out);
}

/* Each shard's own, of the tokens that it sorts; over parts the mean. */
static assay_status add_loss(assay_context *ctx, const shard_routing *r, const char *path, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const int64_t shards = r->spread->shards, parts = r->spread->parts;
    const assay_shape one_each = assay_shape_of(1, shards);
    quad_tensors part = {0};
    quad *loss = NULL;
    TRY(quad_tensors_add(ctx, out, path, &one_each, &loss));
    for (int64_t i = 0; i < shards; i++) loss[i] = 0;
    for (int64_t i = 0; i < shards * parts; i++) {
        TRY(route_part(ctx, r, i / parts, i % parts, &part));
        loss[i / parts] += quad_tensors_find(&part, path)->values[0] / parts;
        quad_tensors_free(&part);
    }
cleanup:
    quad_tensors_free(&part);
    return status;
}

/* whole: what one device has. */
static assay_status add_losses(assay_context *ctx, const shard_routing *r, quad_tensors *whole, quad_tensors *out)
{
    static const char *const paths[] = {"outputs/lb_loss", "outputs/z_loss"};
    assay_status status = ASSAY_OK;
    const bool global = r->config->moe.routing.balance_scope == ASSAY_BALANCE_GLOBAL;
    for (int i = 0; i < 2; i++) {
        if (quad_tensors_find(whole, paths[i]) == NULL) continue;
        TRY(global ? quad_tensors_move(ctx, whole, paths[i], out) : add_loss(ctx, r, paths[i], out));
    }
cleanup:
    return status;
}

static assay_status add_updates(assay_context *ctx, const shard_routing *r, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const assay_routing_config *routing = &r->config->moe.routing;
    const int64_t shards = r->spread->shards, parts = r->spread->parts, experts = routing->num_experts;
    const assay_shape list_each = assay_shape_of(2, shards, experts);
    quad *updates = NULL;
    quad_tensors part = {0};
    if (routing->hash_rows > 0 || !(routing->routed_bias_update_rate > 0)) return ASSAY_OK;
    TRY(quad_tensors_add(ctx, out, "outputs/bias_updates", &list_each, &updates));
    for (int64_t i = 0; i < shards * experts; i++) updates[i] = 0;
    for (int64_t i = 0; i < shards * parts; i++) {
        const int64_t shard = i / parts;
        TRY(route_part(ctx, r, shard, i % parts, &part));
        for (int64_t e = 0; e < experts; e++) {
            updates[shard * experts + e] += quad_tensors_find(&part, "outputs/bias_updates")->values[e] / parts;
        }
        quad_tensors_free(&part);
    }
cleanup:
    quad_tensors_free(&part);
    return status;
}

/* reshaped_group_sizes: copies that a shard sorts by the shard of their expert; all_shards_group_sizes: those of all
 * shards of its expert axis. */
static assay_status add_traffic(assay_context *ctx, const quad_spread *spread, quad_tensors *out)
{
    assay_status status;
    const int64_t p = spread->expert_shards, shards = spread->shards;
    const assay_shape own = assay_shape_of(2, shards, p), all = assay_shape_of(3, shards, p, p);
    int32_t *sent = NULL, *traffic = NULL;
    TRY(quad_tensors_add_indices(ctx, out, "routing/reshaped_group_sizes", &own, &sent));
    for (int64_t i = 0; i < shards * p; i++) {
        sent[i] = 0;
        for (int64_t e = 0; e < spread->local_experts; e++) sent[i] += spread->sizes[i * spread->local_experts + e];
    }
    if (spread->exchange == QUAD_SAME) return ASSAY_OK;
    TRY(quad_tensors_add_indices(ctx, out, "routing/all_shards_group_sizes", &all, &traffic));
    for (int64_t i = 0; i < shards * p; i++)
        memcpy(traffic + i * p, sent + quad_spread_peer(spread, i / p, i % p) * p, (size_t)p * sizeof *sent);
cleanup:
    return status;
}

static assay_status add_lists(assay_context *ctx, const quad_spread *spread, quad_tensors *out)
{
    assay_status status;
    const assay_shape copies = quad_spread_shape(spread, spread->copies);
    const assay_shape rows = quad_spread_shape(spread, spread->buffer), each = assay_shape_of(1, spread->shards);
    const assay_shape experts = quad_spread_shape(spread, spread->experts);
    const assay_shape local = quad_spread_shape(spread, spread->local_experts);
    int32_t *id = NULL;
    TRY(quad_tensors_copy_i32(ctx, out, "routing/group_sizes", &experts, spread->sizes));
    TRY(quad_tensors_copy_i32(ctx, out, "routing/sorted_selected_experts", &copies, spread->sorted));
    TRY(quad_tensors_copy_i32(ctx, out, "routing/local_group_sizes", &local, spread->local_sizes));
    if (spread->expert_shards == 1) return ASSAY_OK;
    TRY(quad_tensors_add_indices(ctx, out, "routing/expert_shard_id", &each, &id));
    for (int64_t shard = 0; shard < spread->shards; shard++)
        id[shard] = (int32_t)(shard / spread->hidden_shards % spread->expert_shards);
    if (spread->exchange == QUAD_GATHER || spread->exchange == QUAD_STAY) return ASSAY_OK;
    TRY(quad_tensors_copy_i32(ctx, out, "routing/local_sorted_indices", &rows, spread->local_order));
    TRY(add_traffic(ctx, spread, out));
cleanup:
    return status;
}

static assay_status add_y(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                          const bool *dropped, quad_tensors *out)
{
    assay_status status;
    quad_block block = {.dropped = dropped, .weight_before_wo = config->sharding.weight_before_wo};
    TRY(quad_block_read(ctx, &config->moe, in, &block));
    block.experts.w13_shards = config->w13_shards;
    TRY(quad_block_gather(ctx, &config->sharding, &block));
    TRY(quad_tensors_add(ctx, out, "outputs/y", &block.x->shape, &block.y));
    block.weights = quad_tensors_find(out, "routing/weights")->values;
    block.selected = quad_tensors_find(out, "routing/selected_experts")->indices;
    TRY(quad_block_combine(ctx, 1, &block));
cleanup:
    quad_block_free(&block);
    return status;
}

assay_status quad_sharded_moe(assay_context *ctx, const quad_moe_config *config, const quad_tensors *in,
                              quad_tensors *out)
{
    assay_status status;
    quad_tensors whole = {0};
    quad_spread spread = {0};
    shard_routing r = {.config = config, .spread = &spread, .in = in};
    TRY(quad_route(ctx, &config->moe.routing, in, &whole));
    TRY(quad_tensors_move(ctx, &whole, "routing/selected_experts", out));
    TRY(quad_tensors_move(ctx, &whole, "routing/weights", out));
    TRY(quad_tensors_move(ctx, &whole, "routing/margin", out));
    r.selected = quad_tensors_find(out, "routing/selected_experts")->indices;
    TRY(quad_spread_make(ctx, &spread, config, 0, r.selected));
    TRY(add_y(ctx, config, in, spread.dropped, out));
    TRY(quad_alloc(ctx, spread.rows * spread.sequence * config->moe.emb_dim, &r.x));
    TRY(assay_alloc_i32(ctx, "choices of a shard", spread.copies, &r.part_selected));
    TRY(add_losses(ctx, &r, &whole, out));
    TRY(add_updates(ctx, &r, out));
    TRY(add_lists(ctx, &spread, out));
cleanup:
    free(r.x);
    free(r.part_selected);
    quad_spread_free(&spread);
    quad_tensors_free(&whole);
    return status;
}
