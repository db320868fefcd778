/* A MoE block over a virtual mesh (docs/expert-parallelism.md, "The sparse MoE block on a mesh"): one device's formula without the choices that no shard has room for, and
 * what each shard finds out on the way. */
#include <string.h>

#include "oracle/quad/quad_blocks.h"

bool quad_is_sharded(const quad_moe_config *config)
{
    const assay_sharding *s = &config->sharding;
    bool sharded = s->ring_of_experts || s->emb_chunks > 0 || s->token_chunks > 1 || s->tensor_shards > 1 ||
                   s->weight_before_wo || s->weights_on_shards;
    for (int axis = 0; axis < ASSAY_MESH_AXES; axis++) sharded |= s->mesh.size[axis] > 1;
    return sharded && (config->moe.path == ASSAY_MOE_SPARSE || config->moe.path == ASSAY_MOE_FUSED);
}

/* --- losses: each shard's own, of the tokens that it sorts; over parts the mean --- */

static quad_losses losses_of_part(quad_tape *t, const quad_moe_config *config, const quad_router *r,
                                  const quad_sharding *sharding, int64_t shard, int64_t part)
{
    const int64_t k = sharding->per_token, count = sharding->rows * sharding->sequence;
    int64_t *tokens = quad_indices(t, count);
    int32_t *selected = quad_keep(t, count * k, sizeof *selected);
    assay_routing_config own = config->moe.routing;
    own.batch = sharding->rows;
    own.sequence = sharding->sequence;
    if (tokens == NULL || selected == NULL) return (quad_losses){0};
    for (int64_t i = 0; i < count; i++) {
        tokens[i] = quad_sharding_token(sharding, shard, part, i);
        memcpy(selected + i * k, r->selected + tokens[i] * k, (size_t)k * sizeof *selected);
    }
    return quad_losses_of(t, &own,
                          &(quad_router){.of_z_loss = quad_gather(t, r->of_z_loss, tokens, count),
                                         .probabilities = quad_gather(t, r->probabilities, tokens, count)},
                          selected);
}

static quad_losses losses_of_shard(quad_tape *t, const quad_moe_config *config, const quad_router *r,
                                   const quad_sharding *sharding, int64_t shard)
{
    quad_losses sum = {0};
    for (int64_t part = 0; part < sharding->parts; part++) {
        const quad_losses own = losses_of_part(t, config, r, sharding, shard, part);
        const quad share = 1 / (quad)sharding->parts;
        sum.lb_loss = quad_add(t, sum.lb_loss, quad_times(t, own.lb_loss, share));
        sum.z_loss = quad_add(t, sum.z_loss, quad_times(t, own.z_loss, share));
        sum.bias_updates = quad_add(t, sum.bias_updates, quad_times(t, own.bias_updates, share));
    }
    return sum;
}

static void put_losses(quad_tape *t, const quad_moe_config *config, const quad_router *r, const quad_sharding *sharding)
{
    const int64_t shards = sharding->shards, experts = config->moe.routing.num_experts;
    quad_node *const lists = quad_keep(t, 3 * shards, sizeof *lists);
    const bool global = config->moe.routing.balance_scope == ASSAY_BALANCE_GLOBAL;
    for (int64_t shard = 0; lists != NULL && shard < shards; shard++) {
        const quad_losses own = losses_of_shard(t, config, r, sharding, shard);
        lists[shard] = own.lb_loss;
        lists[shards + shard] = own.z_loss;
        lists[2 * shards + shard] = own.bias_updates;
    }
    if (t->status != ASSAY_OK) return;
    const quad_losses whole = quad_losses_of(t, &config->moe.routing, r, r->selected);
    const assay_shape of_loss = global ? assay_shape_of(0) : assay_shape_of(1, shards);
    quad_put(t, "outputs/lb_loss", of_loss, global ? whole.lb_loss : quad_concatenate(t, lists, shards));
    quad_put(t, "outputs/z_loss", of_loss, global ? whole.z_loss : quad_concatenate(t, lists + shards, shards));
    quad_put(t, "outputs/bias_updates", assay_shape_of(2, shards, experts),
             quad_concatenate(t, lists + 2 * shards, shards));
}

/* --- lists --- */

static void put_list(quad_tape *t, const char *path, assay_shape shape, const int32_t *values)
{
    int32_t *to = quad_put_indices(t, path, shape);
    if (to != NULL) memcpy(to, values, (size_t)assay_shape_count(&shape) * sizeof *to);
}

/* reshaped_group_sizes: copies that a shard sorts by the shard of their expert; all_shards_group_sizes: those of all
 * shards of its expert axis. */
static void put_traffic(quad_tape *t, const quad_sharding *s)
{
    const int64_t p = s->expert_shards, shards = s->shards;
    int32_t *sent = quad_put_indices(t, "routing/reshaped_group_sizes", assay_shape_of(2, shards, p)), *traffic;
    for (int64_t i = 0; sent != NULL && i < shards * p; i++) {
        sent[i] = 0;
        for (int64_t e = 0; e < s->local_experts; e++) sent[i] += s->sizes[i * s->local_experts + e];
    }
    if (s->exchange == QUAD_SAME) return;
    traffic = quad_put_indices(t, "routing/all_shards_group_sizes", assay_shape_of(3, shards, p, p));
    for (int64_t i = 0; traffic != NULL && i < shards * p; i++)
        memcpy(traffic + i * p, sent + quad_sharding_peer(s, i / p, i % p) * p, (size_t)p * sizeof *sent);
}

/* How many choices of each expert a shard sorts, where it sorts them by something else. */
static void put_choices(quad_tape *t, const quad_moe_config *config, const quad_router *r, const quad_sharding *s)
{
    const int64_t experts = config->moe.routing.num_experts, parts = s->parts;
    int32_t *sizes = quad_put_indices(t, "routing/group_sizes", quad_sharding_shape(s, experts));
    for (int64_t i = 0; sizes != NULL && i < s->shards * parts; i++) {
        for (int64_t e = 0; e < experts; e++) sizes[i * experts + e] = 0;
        for (int64_t copy = 0; copy < s->copies; copy++) {
            const int64_t token = quad_sharding_token(s, i / parts, i % parts, copy / s->per_token);
            const int32_t expert = r->selected[token * s->per_token + copy % s->per_token];
            if (expert >= 0) sizes[i * experts + expert]++;
        }
    }
}

static void put_lists(quad_tape *t, const quad_moe_config *config, const quad_router *r, const quad_sharding *sharding)
{
    if (config->moe.physical_experts + config->moe.local_num_experts > 0) {
        put_choices(t, config, r, sharding);
    } else {
        put_list(t, "routing/group_sizes", quad_sharding_shape(sharding, sharding->experts), sharding->sizes);
    }
    put_list(t, "routing/sorted_selected_experts", quad_sharding_shape(sharding, sharding->copies), sharding->sorted);
    put_list(t, "routing/local_group_sizes", quad_sharding_shape(sharding, sharding->local_experts),
             sharding->local_sizes);
    if (sharding->expert_shards == 1) return;
    int32_t *id = quad_put_indices(t, "routing/expert_shard_id", assay_shape_of(1, sharding->shards));
    for (int64_t shard = 0; id != NULL && shard < sharding->shards; shard++)
        id[shard] = (int32_t)(shard / sharding->hidden_shards % sharding->expert_shards);
    if (sharding->exchange == QUAD_GATHER || sharding->exchange == QUAD_STAY) return;
    put_list(t, "routing/local_sorted_indices", quad_sharding_shape(sharding, sharding->buffer), sharding->local_order);
    put_traffic(t, sharding);
}

/* --- experts --- */

/* A shard has its part of the columns: of a and b before the second product, of y once what the shards have added up to is
 * scattered. */
static void put_rows(quad_tape *t, const quad_mlp *m, const quad_sharding *sharding)
{
    const int64_t rows = sharding->parts * sharding->buffer, parts = sharding->hidden_shards;
    quad_mlp_layout layout = {
        .rows = quad_sharding_shape(sharding, sharding->buffer), .parts = parts, .count = sharding->shards * rows};
    int64_t *index = parts > 1 ? quad_indices(t, layout.count) : NULL;
    for (int64_t i = 0; index != NULL && i < layout.count; i++)
        index[i] = (i / rows / parts * rows + i % rows) * parts + i / rows % parts;
    layout.index = index;
    if (t->status == ASSAY_OK) quad_put_mlp(t, m, ASSAY_MLP_ROUTED, &layout);
}

/* In the rows of the shards, of which those that have parts of H are one; each quantises by itself what it has. */
quad_node quad_sharding_experts(quad_tape *t, const quad_moe_config *config, quad_node x, const quad_router *r,
                                const int32_t *experts, const quad_sharding *sharding)
{
    const assay_sharding *s = &config->sharding;
    const int64_t k = config->moe.routing.num_experts_per_tok, own = sharding->parts * sharding->buffer;
    const int64_t count = sharding->shards / sharding->hidden_shards * own;
    int64_t *set = quad_indices(t, count);
    quad_expert_rows rows = {0};
    quad_mlp m;
    quad_experts_of(t, config, &m);
    if (quad_rows_alloc(t, count, &rows) != ASSAY_OK) return 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t choice = sharding->choices[i / own * sharding->hidden_shards * own + i % own];
        set[i] = i / sharding->buffer;
        if (choice < 0) continue;
        rows.choice[i] = choice;
        rows.token[i] = rows.to[i] = choice / k;
        rows.expert[i] = experts[choice];
    }
    m.set = set;
    m.shards = sharding->expert_shards;
    m.hidden = sharding->hidden_shards;
    m.slices = quad_one_at_least(s->tensor_shards) * quad_one_at_least(s->emb_chunks);
    const quad_node y = quad_expert_sum(t, config, x, r, &rows, &m);
    put_rows(t, &m, sharding);
    return y;
}

quad_node quad_sharded_experts(quad_tape *t, const quad_moe_config *config, quad_node x)
{
    const assay_moe_config *c = &config->moe;
    const quad_router r = quad_route(t, &c->routing, x);
    const int32_t *placed = NULL, *experts = r.selected;
    if (t->status == ASSAY_OK && c->physical_experts > 0) placed = quad_put_replicas(t, c, r.selected);
    if (t->status == ASSAY_OK && c->local_num_experts > 0) placed = experts = quad_local_experts(t, c, r.selected);
    const quad_sharding *sharding = quad_sharding_make(t, config, 0, placed == NULL ? r.selected : placed);
    if (sharding == NULL) return 0;
    put_losses(t, config, &r, sharding);
    put_lists(t, config, &r, sharding);
    return quad_sharding_experts(t, config, x, &r, experts, sharding);
}
