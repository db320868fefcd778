/* Where everything lies, as lists of whole numbers: which tokens each site routes, which copy each row of the experts is of, and
 * which row each copy gets. What is sent, gathered or scattered follows from these. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/mesh/collectives.h"
#include "oracle/mesh/expert_traffic.h"
#include "oracle/moe/moe_block.h"
#include "oracle/ops/vector_sums.h"

static const assay_mesh_axis EXPERT = ASSAY_AXIS_EXPERT;

static int64_t expert_index(const moe_block *block, int64_t site)
{
    return assay_mesh_index(&block->mesh, site % block->sizes.shards, EXPERT);
}

/* --- tokens --- */

/* With the ring a shard routes the tokens of its whole expert axis, else its own; a batch that is not split belongs to every
 * shard. */
static int64_t batch_row(const moe_block *block, int64_t shard, int64_t row)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t owner = block->sharding->ring_of_experts
                              ? assay_mesh_peer(&block->mesh, shard, EXPERT, row / s->own_batch)
                              : shard / (s->shards / s->owners);
    return owner * s->own_batch + row % s->own_batch;
}

assay_status moe_list_tokens(assay_context *ctx, moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t of_site = s->batch * s->sequence, count = block->sites * of_site;
    block->routers = count / block->tokens;
    MUST(assay_alloc_i32(ctx, "tokens of sites", count, &block->token_of));
    MUST(assay_alloc_i32(ctx, "sites of tokens", count, &block->places));
    for (int64_t i = 0; i < count; i++) block->places[i] = -1;
    for (int64_t i = 0; i < count; i++) {
        const int64_t site = i / of_site, chunk = site / s->shards;
        const int64_t row = batch_row(block, site % s->shards, i % of_site / s->sequence);
        const int64_t token = (row * s->chunks + chunk) * s->sequence + i % s->sequence;
        int32_t *place = block->places + token * block->routers;
        while (*place >= 0) place++;
        *place = (int32_t)i;
        block->token_of[i] = (int32_t)token;
    }
    return ASSAY_OK;
}

assay_status moe_give_sites(assay_context *ctx, const moe_block *block, const char *what, size_t bytes,
                            const void *whole, void **own, const void **of_sites)
{
    const int64_t count = block->sites * block->permute.tokens;
    *of_sites = whole;
    if (whole == NULL || block->sites == 1) return ASSAY_OK;
    MUST(assay_alloc(ctx, what, count, bytes, own));
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)*own + (size_t)i * bytes, (const char *)whole + (size_t)block->token_of[i] * bytes, bytes);
    *of_sites = *own;
    return ASSAY_OK;
}

void moe_collect(const assay_context *ctx, const moe_block *block, int64_t width, assay_rounding rounding,
                 double *whole, double *of_sites)
{
    const int64_t routers = block->routers;
    if (of_sites == whole) return;
    if (routers > 1) assay_round(ctx, rounding, block->sites * block->permute.tokens * width, of_sites);
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t token = 0; token < block->tokens; token++) {
        const int32_t *place = block->places + token * routers;
        double *sum = whole + token * width;
        memcpy(sum, of_sites + place[0] * width, (size_t)width * sizeof *sum);
        for (int64_t i = 1; i < routers; i++) assay_add_scaled(ctx, width, 1, of_sites + place[i] * width, sum);
    }
}

/* --- groups --- */

int64_t moe_first_group(const moe_block *block, int64_t site)
{
    const bool own_first = block->sizes.exchanges || block->sharding->ring_of_experts;
    return own_first ? 0 : expert_index(block, site) * block->sizes.local_experts;
}

/* Replicas lie by their ids over a mesh, and on one device replica after replica of each expert. */
int64_t moe_group_of(const moe_block *block, int64_t expert, int64_t replica)
{
    const assay_replicas *r = &block->replicas;
    if (r->first == NULL) return expert * block->joined;
    const int32_t place = r->first[expert] + (int32_t)replica;
    if (place >= r->first[expert + 1]) return -1;
    return block->sharded ? r->ids[place] : place;
}

int32_t moe_group_of_copy(const moe_block *block, int64_t copy)
{
    const int64_t copies = block->sizes.copies;
    if (block->placed != NULL) return block->placed[copy];
    if (block->slot_ids != NULL) return block->slot_ids[copy];
    return block->site[copy / copies].routing.selected_experts[copy % copies];
}

/* --- rows that are sent --- */

/* Rows that each shard sends to each other one. */
static assay_status count_sent(assay_context *ctx, moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t peers = s->expert_shards, local = s->local_experts;
    const assay_shape row = assay_shape_of(2, (int64_t)1, peers);
    MUST(assay_alloc_i32(ctx, "reshaped_group_sizes", s->shards * peers, &block->reshaped_group_sizes));
    MUST(assay_alloc_i32(ctx, "all_shards_group_sizes", s->shards * peers * peers, &block->all_shards_group_sizes));
    for (int64_t i = 0; i < s->shards * peers; i++) {
        int32_t sum = 0;
        for (int64_t e = 0; e < local; e++) sum += block->group_sizes[i * local + e];
        block->reshaped_group_sizes[i] = sum;
    }
    assay_all_gather(block->all_shards_group_sizes, block->reshaped_group_sizes, sizeof(int32_t), &row, 0, &block->mesh,
                     EXPERT);
    return ASSAY_OK;
}

/* What each shard receives, sorted as it sorts it. */
static assay_status list_sent(assay_context *ctx, moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t peers = s->expert_shards, experts = block->permute.experts;
    const assay_shape row = assay_shape_of(2, (int64_t)1, experts);
    OWNED int32_t *all_sizes = NULL;
    int32_t(*received)[2] = NULL;
    OWNED void *memory = NULL;
    MUST(count_sent(ctx, block));
    MUST(assay_alloc_i32(ctx, "local_sorted_indices", s->shards * s->buffer, &block->local_sorted_indices));
    MUST(assay_alloc_i32(ctx, "group sizes of all senders", s->shards * peers * experts, &all_sizes));
    MUST(assay_alloc(ctx, "received rows", s->buffer, sizeof *received, &memory));
    received = memory;
    assay_all_gather(all_sizes, block->group_sizes, sizeof *all_sizes, &row, 0, &block->mesh, EXPERT);
    for (int64_t shard = 0; shard < s->shards; shard++) {
        int32_t *indices = block->local_sorted_indices + shard * s->buffer;
        const assay_local_permute_args args = {
            .group_sizes =
                s->batch_sharded ? all_sizes + shard * peers * experts : block->group_sizes + shard * experts,
            .senders = s->batch_sharded ? peers : 1,
            .num_experts = experts,
            .local_experts = s->local_experts,
            .shard = expert_index(block, shard),
            .rows = s->buffer,
            .batch_sharded = s->batch_sharded,
            .truncate = block->sharding->ragged_buffer_factor > 0,
        };
        MUST(assay_local_permute(ctx, indices, block->local_group_sizes + shard * s->local_experts, received, &args));
        for (int64_t i = 0; i < s->buffer; i++) {
            const int32_t *from = received[indices[i]];
            if (from[0] < 0) continue;
            const int64_t sender = s->batch_sharded ? assay_mesh_peer(&block->mesh, shard, EXPERT, from[0]) : shard;
            block->copy_of[shard * s->buffer + i] =
                (int32_t)(sender * s->copies) + block->order[sender * s->copies + from[1]];
        }
    }
    return ASSAY_OK;
}

/* --- rows that stay --- */

/* A shard's own groups, where they lie among what it has sorted. */
static void list_own(moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t groups = block->permute.experts, local = s->local_experts;
    for (int64_t site = 0; site < block->sites; site++) {
        const int64_t first_group = moe_first_group(block, site);
        const int32_t *sizes = block->group_sizes + site * groups;
        int64_t first = site * s->copies, end;
        for (int64_t e = 0; e < first_group; e++) first += sizes[e];
        end = first;
        for (int64_t e = first_group; e < first_group + local; e++) end += sizes[e];
        memcpy(block->local_group_sizes + site * local, sizes + first_group, (size_t)local * sizeof *sizes);
        for (int64_t i = first; i < end; i++) block->copy_of[i] = (int32_t)(site * s->copies) + block->order[i];
    }
}

/* --- dropping: an expert takes the first C choices of each batch row --- */

static assay_status write_masks(assay_context *ctx, const moe_block *block, const double *mask, int64_t count)
{
    const assay_sink *out = block->results.out;
    OWNED int32_t *dispatch = NULL;
    MUST(assay_write_result(ctx, out, "routing/combine_mask", count, mask));
    if (!assay_wants(out, "routing/dispatch_mask")) return ASSAY_OK;
    MUST(assay_alloc_i32(ctx, "dispatch mask", count, &dispatch));
    for (int64_t i = 0; i < count; i++) dispatch[i] = mask[i] != 0;
    return out->write_i32(ctx, out->self, "routing/dispatch_mask", count, dispatch);
}

static assay_status list_kept(assay_context *ctx, moe_block *block)
{
    const assay_routing_config *config = &block->config->routing;
    const assay_sink *out = block->results.out;
    const int64_t copies = block->sizes.copies;
    int64_t cells = 0, next = 0;
    OWNED bool *kept = NULL;
    OWNED int32_t *position = NULL;
    OWNED double *mask = NULL;
    const bool masks = assay_wants(out, "routing/combine_mask") || assay_wants(out, "routing/dispatch_mask");
    block->capacity = assay_expert_capacity(config, block->config->capacity_factor);
    MUST(assay_alloc(ctx, "kept choices", copies, sizeof(bool), &kept));
    MUST(assay_alloc_i32(ctx, "positions", copies, &position));
    if (masks) {
        MUST(assay_checked_count(ctx, "routing/combine_mask", 3,
                                 (int64_t[]){block->tokens, block->experts, block->capacity}, &cells));
        MUST(assay_alloc_f64(ctx, "combine mask", cells, &mask));
    }
    assay_capacity_masks(kept, position, mask, &block->site->routing, block->capacity, config);
    if (masks) MUST(write_masks(ctx, block, mask, cells));
    memset(block->local_group_sizes, 0, (size_t)block->experts * sizeof *block->local_group_sizes);
    for (int64_t i = 0; i < copies && block->order[i] != ASSAY_NO_EXPERT; i++) {
        const int32_t choice = block->order[i];
        if (!kept[choice]) continue;
        block->copy_of[next++] = choice;
        block->local_group_sizes[block->site->routing.selected_experts[choice]]++;
    }
    if (moe_wants_any(&block->results, MOE_ROUTED, ASSAY_MLP_CHECKPOINTS) || moe_routed_given(block)) {
        MUST(assay_checked_count(ctx, "dispatched rows", 3, (int64_t[]){config->batch, block->capacity, block->emb_dim},
                                 &cells));
        block->slots.count = config->batch * block->capacity;
        MUST(assay_alloc_i32(ctx, "slots", block->slots.count, &block->slots.row));
    }
    return ASSAY_OK;
}

/* --- all --- */

assay_status moe_list_rows(assay_context *ctx, moe_block *block)
{
    const assay_shard_sizes *s = &block->sizes;
    const int64_t copies = block->sites * s->copies, rows = block->sites * s->buffer;
    MUST(assay_alloc_i32(ctx, "copies of rows", rows, &block->copy_of));
    MUST(assay_alloc_i32(ctx, "rows of copies", copies, &block->row_of));
    MUST(assay_alloc_i32(ctx, "local group sizes", block->sites * s->local_experts, &block->local_group_sizes));
    for (int64_t i = 0; i < rows; i++) block->copy_of[i] = -1;
    for (int64_t i = 0; i < copies; i++) block->row_of[i] = -1;
    if (s->exchanges) MUST(list_sent(ctx, block));
    if (block->config->path == ASSAY_MOE_DROPPING) MUST(list_kept(ctx, block));
    if (!s->exchanges && block->config->path != ASSAY_MOE_DROPPING) list_own(block);
    for (int64_t i = 0; i < rows; i++)
        if (block->copy_of[i] >= 0) block->row_of[block->copy_of[i]] = (int32_t)i;
    return ASSAY_OK;
}

static bool shares_batch(const moe_block *block)
{
    return block->sizes.exchanges && !block->sizes.batch_sharded;
}

int64_t moe_copy_of_y(const moe_block *block, int64_t copy)
{
    return shares_batch(block) ? copy % block->sizes.copies : copy;
}

int64_t moe_row_of_y(const moe_block *block, int64_t copy)
{
    const int64_t copies = block->sizes.copies;
    int64_t row = block->row_of[copy];
    if (!shares_batch(block)) return row;
    for (int64_t i = copy; row < 0 && copy < copies && i < block->sites * copies; i += copies) row = block->row_of[i];
    return copy < copies ? row : -1;
}
