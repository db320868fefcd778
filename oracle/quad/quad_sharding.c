/* Which copies of tokens each shard of a virtual mesh sorts, and which its experts compute. Found by
 * listing them one by one. */
#include <math.h>

#include "oracle/quad/quad_blocks.h"
#include "oracle/quad/quad_internal.h"

static void set_sizes(quad_tape *t, quad_sharding *s, const quad_moe_config *config, int64_t microbatches)
{
    const assay_sharding *sharding = &config->sharding;
    const assay_routing_config *routing = &config->moe.routing;
    const int64_t *axes = sharding->mesh.size;
    const int64_t mesh[] = {quad_one_at_least(axes[ASSAY_AXIS_DATA]), quad_one_at_least(axes[ASSAY_AXIS_FSDP]),
                            quad_one_at_least(axes[ASSAY_AXIS_EXPERT]), quad_one_at_least(axes[ASSAY_AXIS_MLP_TENSOR])};
    t->status = assay_checked_count(t->ctx, "mesh", 4, mesh, &s->shards);
    if (t->status != ASSAY_OK) return;
    const int64_t token_shards = s->shards / mesh[3];
    s->expert_shards = mesh[2];
    s->hidden_shards = quad_one_at_least(axes[ASSAY_AXIS_MLP_TENSOR]);
    s->microbatches = quad_one_at_least(microbatches);
    s->chunks = quad_one_at_least(sharding->token_chunks);
    s->parts = s->chunks * s->microbatches;
    s->shard_axis = microbatches > 0 || s->chunks > 1;
    s->exchange = config->moe.path == ASSAY_MOE_FUSED                             ? QUAD_STAY
                  : microbatches > 0 || sharding->ring_of_experts                 ? QUAD_GATHER
                  : routing->batch == 1 && token_shards == mesh[2] && mesh[2] > 1 ? QUAD_SAME
                                                                                  : QUAD_SEND;
    const int64_t owners = s->exchange == QUAD_SAME   ? 1
                           : s->exchange == QUAD_STAY ? mesh[0] * mesh[1]
                                                      : token_shards * s->microbatches;
    const assay_moe_config *moe = &config->moe;
    s->experts = moe->local_num_experts > 0  ? moe->local_num_experts
                 : moe->physical_experts > 0 ? moe->physical_experts
                                             : routing->num_experts;
    if (routing->batch % owners != 0 || routing->sequence % s->chunks != 0 || s->experts % s->expert_shards != 0) {
        quad_refuse(t,
                    "%lld batch rows, %lld tokens in each and %lld experts are not to be divided by %lld, %lld "
                    "and %lld",
                    (long long)routing->batch, (long long)routing->sequence, (long long)s->experts, (long long)owners,
                    (long long)s->chunks, (long long)s->expert_shards);
        return;
    }
    s->local_experts = s->experts / s->expert_shards;
    s->per_token = routing->num_experts_per_tok;
    s->own_rows = routing->batch / owners;
    s->rows = s->exchange == QUAD_GATHER ? s->own_rows * s->expert_shards : s->own_rows;
    s->sequence = routing->sequence / s->chunks;
    s->copies = s->rows * s->sequence * s->per_token;
    s->buffer = s->copies;
    if (s->exchange == QUAD_SEND) {
        /* In float64, as Python does it. */
        const double most = fmin((double)s->expert_shards, (double)s->experts / (double)s->per_token);
        const double factor = sharding->ragged_buffer_factor > 0 ? sharding->ragged_buffer_factor : most;
        s->buffer = (int64_t)((double)s->copies * factor);
    }
}

/* The place among those shards that differ in more than their part of the hidden dimension; and on the expert axis. */
static int64_t token_shard(const quad_sharding *s, int64_t shard)
{
    return shard / s->hidden_shards;
}

static int64_t expert_index(const quad_sharding *s, int64_t shard)
{
    return token_shard(s, shard) % s->expert_shards;
}

int64_t quad_sharding_peer(const quad_sharding *s, int64_t shard, int64_t index)
{
    return shard + (index - expert_index(s, shard)) * s->hidden_shards;
}

int64_t quad_sharding_token(const quad_sharding *s, int64_t shard, int64_t part, int64_t place)
{
    const int64_t row = place / s->sequence, position = place % s->sequence;
    const int64_t gathered = quad_sharding_peer(s, shard, row / s->own_rows);
    const int64_t owner = s->exchange == QUAD_GATHER ? token_shard(s, gathered)
                          : s->exchange == QUAD_SAME ? 0
                          : s->exchange == QUAD_STAY ? token_shard(s, shard) / s->expert_shards
                                                     : token_shard(s, shard);
    const int64_t batch_row = (owner * s->own_rows + row % s->own_rows) * s->microbatches + part % s->microbatches;
    return batch_row * s->sequence * s->chunks + part / s->microbatches * s->sequence + position;
}

/* The choice that a copy in a shard's list is; of no copy, -1, none. */
static int64_t choice_of(const quad_sharding *s, int64_t shard, int64_t part, int64_t copy)
{
    if (copy < 0) return -1;
    return quad_sharding_token(s, shard, part, copy / s->per_token) * s->per_token + copy % s->per_token;
}

int64_t quad_sharding_choice(const quad_sharding *s, int64_t shard, int64_t part, int64_t place)
{
    return choice_of(s, shard, part, s->sorted[(shard * s->parts + part) * s->copies + place]);
}

static void sort_copies(quad_sharding *s, const int32_t *selected, int64_t shard, int64_t part, int32_t *keys)
{
    const int64_t at = shard * s->parts + part;
    const int64_t own_first = expert_index(s, shard) * s->local_experts;
    for (int64_t copy = 0; copy < s->copies; copy++) {
        const int64_t expert = selected[choice_of(s, shard, part, copy)];
        const int64_t rolled = (expert - own_first + s->experts) % s->experts;
        keys[copy] = (int32_t)(s->exchange == QUAD_GATHER && expert >= 0 ? rolled : expert);
    }
    quad_sort_by_expert(s->copies, keys, s->experts, s->sorted + at * s->copies, s->sizes + at * s->experts);
}

static bool is_own(const quad_sharding *s, const int32_t *selected, int64_t shard, int64_t choice)
{
    return choice >= 0 && selected[choice] / s->local_experts == expert_index(s, shard);
}

/* came [buffer]: the choice in each row as a shard gets them, -1 where there is none of its experts: those that its
 * expert axis sends, sender by sender, until the buffer is full; or its own of what it has sorted itself. */
static void receive(const quad_sharding *s, const int32_t *selected, int64_t shard, int64_t part, int32_t *came)
{
    int64_t row = 0;
    for (int64_t i = 0; i < s->buffer; i++) came[i] = -1;
    for (int64_t i = 0; s->exchange != QUAD_SEND && i < s->copies; i++) {
        const int64_t choice = choice_of(s, shard, part, s->sorted[(shard * s->parts + part) * s->copies + i]);
        if (is_own(s, selected, shard, choice)) came[i] = (int32_t)choice;
    }
    for (int64_t index = 0; s->exchange == QUAD_SEND && index < s->expert_shards; index++) {
        const int64_t sender = quad_sharding_peer(s, shard, index);
        for (int64_t i = 0; i < s->copies; i++) {
            const int64_t choice = choice_of(s, sender, part, s->sorted[(sender * s->parts + part) * s->copies + i]);
            if (is_own(s, selected, shard, choice) && row < s->buffer) came[row++] = (int32_t)choice;
        }
    }
}

/* Rows by the shard's experts, what belongs to none of them last. keys [buffer] and sizes [local_experts+1] are
 * scratch. */
static void sort_received(quad_sharding *s, const int32_t *selected, int64_t at, const int32_t *came, int32_t *keys,
                          int32_t *sizes)
{
    const int64_t local = s->local_experts;
    int32_t *order = s->local_order + at * s->buffer, *choices = s->choices + at * s->buffer;
    for (int64_t i = 0; i < s->buffer; i++) keys[i] = (int32_t)(came[i] < 0 ? local : selected[came[i]] % local);
    quad_sort_by_expert(s->buffer, keys, local + 1, order, sizes);
    for (int64_t e = 0; e < local; e++) s->local_sizes[at * local + e] = sizes[e];
    for (int64_t row = 0; row < s->buffer; row++) choices[row] = came[s->exchange == QUAD_STAY ? row : order[row]];
}

static void alloc_lists(quad_tape *t, quad_sharding *s)
{
    const struct {
        int32_t **list;
        int64_t width;
    } lists[] = {{&s->sorted, s->copies},
                 {&s->sizes, s->experts},
                 {&s->local_order, s->buffer},
                 {&s->local_sizes, s->local_experts},
                 {&s->choices, s->buffer}};
    for (size_t i = 0; t->status == ASSAY_OK && i < sizeof lists / sizeof *lists; i++) {
        const int64_t sizes[] = {s->shards, s->parts, lists[i].width};
        int64_t count = 0;
        t->status = assay_checked_count(t->ctx, "lists of shards", 3, sizes, &count);
        *lists[i].list = quad_keep(t, count, sizeof(int32_t));
    }
}

const quad_sharding *quad_sharding_make(quad_tape *t, const quad_moe_config *config, int64_t microbatches,
                                        const int32_t *selected)
{
    quad_sharding *s = quad_keep(t, 1, sizeof *s);
    if (s == NULL) return NULL;
    *s = (quad_sharding){0};
    set_sizes(t, s, config, microbatches);
    if (t->status == ASSAY_OK) alloc_lists(t, s);
    int32_t *came = quad_keep(t, s->buffer, sizeof *came), *sizes = quad_keep(t, s->local_experts + 1, sizeof *sizes);
    int32_t *keys = quad_keep(t, s->copies > s->buffer ? s->copies : s->buffer, sizeof *keys);
    if (t->status != ASSAY_OK) return NULL;
    for (int64_t i = 0; i < s->shards * s->parts; i++) sort_copies(s, selected, i / s->parts, i % s->parts, keys);
    for (int64_t i = 0; i < s->shards * s->parts; i++) {
        receive(s, selected, i / s->parts, i % s->parts, came);
        sort_received(s, selected, i, came, keys, sizes);
    }
    return s;
}

assay_shape quad_sharding_shape(const quad_sharding *s, int64_t last)
{
    return s->shard_axis ? assay_shape_of(3, s->shards, s->parts, last) : assay_shape_of(2, s->shards, last);
}
