/* What both sides of harness/ranks send and wait with. */
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
    return assay_fail(ctx, ASSAY_IO, "a message to or from another rank was lost");
}

bool rank_send(assay_rank_group *group, int to, int tag, const void *data, int64_t bytes)
{
    bool sent = true;
    for (int64_t first = 0; sent && first < bytes; first += LONGEST_MESSAGE) {
        const int64_t part = bytes - first < LONGEST_MESSAGE ? bytes - first : LONGEST_MESSAGE;
        sent = group->transport.send(group->transport.self, to, tag, (const char *)data + first, (size_t)part);
    }
    return sent;
}

bool rank_receive(assay_rank_group *group, int from, int tag, void *data, int64_t bytes)
{
    bool came = true;
    for (int64_t first = 0; came && first < bytes; first += LONGEST_MESSAGE) {
        const int64_t part = bytes - first < LONGEST_MESSAGE ? bytes - first : LONGEST_MESSAGE;
        came = group->transport.receive(group->transport.self, from, tag, (char *)data + first, (size_t)part);
    }
    return came;
}

int rank_lowest_bit(const assay_rank_group *group)
{
    const int rank = group->transport.rank, size = group->transport.size;
    int bit = 1;
    while (rank == 0 ? bit < size : (rank & bit) == 0) bit *= 2;
    return bit;
}

bool rank_pass_on(assay_rank_group *group, const void *data, int64_t bytes)
{
    bool sent = true;
    group->broadcasts++;
    for (int bit = rank_lowest_bit(group) / 2; sent && bit > 0; bit /= 2) {
        const int to = group->transport.rank + bit;
        if (to >= group->transport.size) continue;
        sent = rank_send(group, to, TAG_DATA, &bytes, sizeof bytes) && rank_send(group, to, TAG_DATA_BODY, data, bytes);
        group->ranks.counted.broadcast += bytes;
    }
    return sent;
}
