#include "oracle/mesh/expert_traffic.h"

#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void assay_truncate_traffic(int32_t *truncated, const int32_t *all_shards_group_sizes, int64_t shards,
                            int64_t buffer_rows)
{
    for (int64_t to = 0; to < shards; to++) {
        int64_t sum = 0;
        for (int64_t from = 0; from < shards; from++) {
            const int64_t before = least(sum, buffer_rows);
            sum += all_shards_group_sizes[from * shards + to];
            truncated[from * shards + to] = (int32_t)(least(sum, buffer_rows) - before);
        }
    }
}

/* Rows that `from` sends to `to`; a combine sends back what a dispatch sent. */
static int32_t sent(const int32_t *sizes, const assay_traffic *traffic, int64_t from, int64_t to)
{
    const int64_t shards = traffic->expert_shards;
    return traffic->direction == ASSAY_DISPATCH ? sizes[from * shards + to] : sizes[to * shards + from];
}

static void params_of_split_batch(int32_t *input_offsets, int32_t *send_sizes, int32_t *output_offsets,
                                  int32_t *recv_sizes, int64_t shard, const assay_traffic *traffic, int32_t *truncated)
{
    const int64_t shards = traffic->expert_shards;
    const int32_t *whole = traffic->sizes, *cut = whole;
    if (traffic->buffer_rows >= 0) {
        assay_truncate_traffic(truncated, whole, shards, traffic->buffer_rows);
        cut = truncated;
    }
    const bool dispatch = traffic->direction == ASSAY_DISPATCH;
    const int32_t *read_from = dispatch ? whole : cut, *written_to = dispatch ? cut : whole;
    int32_t offset = 0;
    for (int64_t peer = 0; peer < shards; peer++) {
        input_offsets[peer] = offset;
        offset += sent(read_from, traffic, shard, peer);
        send_sizes[peer] = sent(cut, traffic, shard, peer);
        recv_sizes[peer] = sent(cut, traffic, peer, shard);
        output_offsets[peer] = 0;
        for (int64_t earlier = 0; earlier < shard; earlier++)
            output_offsets[peer] += sent(written_to, traffic, earlier, peer);
    }
}

void assay_all_to_all_params(int32_t *input_offsets, int32_t *send_sizes, int32_t *output_offsets, int32_t *recv_sizes,
                             int64_t shard, const assay_traffic *traffic, int32_t *truncated)
{
    int32_t first = 0;
    if (traffic->batch_sharded) {
        params_of_split_batch(input_offsets, send_sizes, output_offsets, recv_sizes, shard, traffic, truncated);
        return;
    }
    /* Every shard has worked on its part of the same tokens, and sends that part to all. */
    for (int64_t earlier = 0; earlier < shard; earlier++) first += traffic->sizes[earlier];
    for (int64_t peer = 0; peer < traffic->expert_shards; peer++) {
        input_offsets[peer] = 0;
        send_sizes[peer] = traffic->sizes[shard];
        output_offsets[peer] = first;
        recv_sizes[peer] = traffic->sizes[peer];
    }
}

/* The local expert of each row of the buffer, local_experts for rows of other shards. */
static void label_rows(int32_t *labels, const assay_local_permute_args *args)
{
    const int64_t local = args->local_experts;
    int64_t row = 0;
    if (args->sorted_experts != NULL) {
        for (; row < args->rows; row++) {
            const int32_t expert = args->sorted_experts[row];
            labels[row] = (int32_t)(expert / local == args->shard ? expert % local : local);
        }
        return;
    }
    for (int64_t sender = 0; sender < args->senders; sender++) {
        for (int64_t expert = 0; expert < local; expert++) {
            int32_t left = args->global_group_sizes[sender * args->num_experts + args->shard * local + expert];
            for (; left > 0 && row < args->rows; left--) labels[row++] = (int32_t)expert;
        }
    }
    for (; row < args->rows; row++) labels[row] = (int32_t)(local - 1);
}

/* What the senders have for each local expert; `truncate`: what of it lies within the buffer. */
static void count_rows(int32_t *sizes, const assay_local_permute_args *args)
{
    const int64_t local = args->local_experts;
    int64_t room = args->rows;
    memset(sizes, 0, (size_t)local * sizeof *sizes);
    for (int64_t sender = 0; sender < args->senders; sender++) {
        for (int64_t expert = 0; expert < local; expert++) {
            const int32_t size = args->global_group_sizes[sender * args->num_experts + args->shard * local + expert];
            const int32_t counted = args->truncate ? (int32_t)least(size, room) : size;
            sizes[expert] += counted;
            room -= counted;
        }
    }
}

assay_status assay_local_permute(assay_context *ctx, int32_t *local_sorted_indices, int32_t *local_group_sizes,
                                 int32_t *sorted_expert_ids, const assay_local_permute_args *args)
{
    const int64_t local = args->local_experts;
    OWNED int32_t *labels = NULL, *places = NULL;
    MUST(assay_alloc_i32(ctx, "experts of rows", args->rows, &labels));
    MUST(assay_alloc_i32(ctx, "places of rows", local + 2, &places));
    label_rows(labels, args);
    count_rows(local_group_sizes, args);
    memset(places, 0, (size_t)(local + 2) * sizeof *places);
    for (int64_t row = 0; row < args->rows; row++) places[labels[row] + 1]++;
    for (int64_t label = 0; label <= local; label++) places[label + 1] += places[label];
    for (int64_t row = 0; row < args->rows; row++) {
        const int32_t place = places[labels[row]]++;
        local_sorted_indices[place] = (int32_t)row;
        if (sorted_expert_ids != NULL) sorted_expert_ids[place] = labels[row];
    }
    return ASSAY_OK;
}
