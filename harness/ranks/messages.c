/* What both sides of harness/ranks send, wait and work with. */
#include <string.h>
#include <time.h>

#include "harness/ranks/ranks_internal.h"

void rank_wait_pause(rank_wait *wait)
{
    enum { SOON = 200, SHORT = 20000, LONG = 1000000 }; /* looks; ns */
    const struct timespec pause = {0, wait->looks < SOON ? SHORT : LONG};
    nanosleep(&pause, NULL);
    if (wait->looks < SOON) wait->looks++;
}

assay_status rank_lost(assay_context *ctx)
{
    return assay_fail(ctx, ASSAY_IO, "a message to or from another rank was lost or damaged");
}

int64_t rank_part_of(int64_t bytes, int64_t first)
{
    return bytes - first < LONGEST_MESSAGE ? bytes - first : LONGEST_MESSAGE;
}

bool rank_is_sound(assay_rank_group *group, bool sound)
{
    if (!sound) group->lost = true;
    return sound;
}

bool rank_send(assay_rank_group *group, int to, int tag, const void *data, int64_t bytes)
{
    bool sent = true;
    for (int64_t first = 0; sent && first < bytes; first += LONGEST_MESSAGE) {
        const size_t part = (size_t)rank_part_of(bytes, first);
        sent = group->transport.send(group->transport.self, to, tag, (const char *)data + first, part);
    }
    return rank_is_sound(group, sent);
}

bool rank_receive(assay_rank_group *group, int from, int tag, void *data, int64_t bytes)
{
    bool came = true;
    for (int64_t first = 0; came && first < bytes; first += LONGEST_MESSAGE) {
        char *to = data == NULL ? group->spare : (char *)data + first;
        came = group->transport.receive(group->transport.self, from, tag, to, (size_t)rank_part_of(bytes, first));
    }
    return rank_is_sound(group, came);
}

int64_t assay_ranks_lowest_bit(int64_t rank, int64_t size)
{
    int64_t bit = 1;
    while (rank == 0 ? bit < size : (rank & bit) == 0) bit *= 2;
    return bit;
}

int64_t assay_ranks_child(int64_t rank, int64_t size, int index)
{
    for (int64_t bit = assay_ranks_lowest_bit(rank, size) / 2; bit > 0; bit /= 2) {
        if (rank + bit < size && index-- == 0) return rank + bit;
    }
    return -1;
}

static int child_of(const assay_rank_group *group, int index)
{
    return (int)assay_ranks_child(group->transport.rank, group->transport.size, index);
}

static bool pass_on_size(assay_rank_group *group, int64_t bytes)
{
    bool sent = true;
    group->broadcasts++;
    for (int i = 0; sent && child_of(group, i) >= 0; i++)
        sent = rank_send(group, child_of(group, i), TAG_DATA, &bytes, sizeof bytes);
    return sent;
}

static bool pass_on_body(assay_rank_group *group, const void *data, int64_t bytes)
{
    bool sent = true;
    for (int i = 0; sent && child_of(group, i) >= 0; i++) {
        sent = rank_send(group, child_of(group, i), TAG_DATA_BODY, data, bytes);
        group->ranks.counted.broadcast += bytes;
    }
    return sent;
}

bool rank_pass_on(assay_rank_group *group, const void *data, int64_t bytes)
{
    return pass_on_size(group, bytes) && pass_on_body(group, data, bytes);
}

bool rank_relay(assay_rank_group *group, int parent, int64_t bytes)
{
    bool well = pass_on_size(group, bytes);
    for (int64_t first = 0; well && first < bytes; first += LONGEST_MESSAGE) {
        const int64_t part = rank_part_of(bytes, first);
        well = rank_receive(group, parent, TAG_DATA_BODY, NULL, part) && pass_on_body(group, group->spare, part);
    }
    return well;
}

assay_status rank_work(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces, int64_t number,
                       assay_status *worked)
{
    const assay_rank_group *group = ranks->self;
    const assay_piece piece = {.of = pieces, .number = number, .ranks = ranks};
    char message[ASSAY_MESSAGE_SIZE];
    ranks->piece = &piece;
    ctx->ranks = NULL;
    *worked = pieces->work(ctx, pieces->self, &piece);
    memcpy(message, ctx->message, sizeof message);
    const put_header done = {.piece = number,
                             .bytes = *worked == ASSAY_OK ? 0 : (int64_t)sizeof message,
                             .kind = PUT_DONE,
                             .status = *worked};
    const assay_status given = group->give(ctx, ranks, &done, message);
    ctx->ranks = ranks;
    ranks->piece = NULL;
    ranks->counted.pieces++;
    return given;
}
