#include "harness/ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/ranks/ranks_internal.h"

static void next_session(assay_rank_group *group)
{
    group->session++;
    group->run = group->broadcasts = group->expected = 0;
    group->ended = group->reported = false;
}

/* Of ranks but the first. */

static bool is_there(assay_rank_group *group, int tag, int from)
{
    size_t bytes = 0;
    return group->transport.probe(group->transport.self, tag, &from, &bytes);
}

/* The first rank has ended the session, if it has said so. */
static bool see_end(assay_rank_group *group)
{
    end_message end = {0};
    if (!group->ended && is_there(group, TAG_END, 0)) {
        rank_receive(group, 0, TAG_END, &end, sizeof end);
        group->expected = end.broadcasts;
        group->last = end.last;
        group->ended = true;
    }
    if (group->lost) {
        group->expected = 0;
        group->last = group->ended = true;
    }
    return group->ended || group->last;
}

/* And no broadcast of it is under way. */
static bool is_finished(assay_rank_group *group)
{
    return see_end(group) && group->broadcasts >= group->expected;
}

static assay_status stopped(assay_context *ctx, const assay_rank_group *group)
{
    return group->lost ? rank_lost(ctx) : assay_fail(ctx, ASSAY_INTERNAL, "the first rank has ended the work");
}

/* The next broadcast, into `data` of so many bytes; NULL: it is passed on alone. False: there is none yet. */
static bool take_data(assay_rank_group *group, void *data, int64_t bytes, bool *well)
{
    const int rank = group->transport.rank;
    const int parent = rank - (int)assay_ranks_lowest_bit(rank, group->transport.size);
    int64_t found = 0;
    if (!is_there(group, TAG_DATA, parent)) return false;
    *well = rank_receive(group, parent, TAG_DATA, &found, sizeof found);
    if (data == NULL) {
        *well = *well && rank_is_sound(group, found >= 0) && rank_relay(group, parent, found);
    } else {
        *well = *well && rank_is_sound(group, found == bytes) &&
                rank_receive(group, parent, TAG_DATA_BODY, data, found) && rank_pass_on(group, data, found);
    }
    return true;
}

static assay_status other_broadcast(assay_context *ctx, assay_ranks *ranks, void *data, int64_t bytes)
{
    assay_rank_group *group = ranks->self;
    rank_wait wait = {0};
    bool well = true;
    while (!take_data(group, data, bytes, &well)) {
        if (is_finished(group)) return stopped(ctx, group);
        rank_wait_pause(&wait);
    }
    return well ? ASSAY_OK : rank_lost(ctx);
}

/* The next of `count` pieces of the run at hand; NO_PIECE: there is none. The answer comes, whatever else happens. */
static int64_t ask(assay_rank_group *group, int64_t count)
{
    int64_t piece = NO_PIECE;
    const wish next = {group->session, group->run};
    rank_wait wait = {0};
    if (see_end(group) || !rank_send(group, 0, TAG_NEXT, &next, sizeof next)) return NO_PIECE;
    while (!is_there(group, TAG_REPLY, 0)) rank_wait_pause(&wait);
    if (!rank_receive(group, 0, TAG_REPLY, &piece, sizeof piece)) return NO_PIECE;
    return rank_is_sound(group, piece >= NO_PIECE && piece < count) ? piece : NO_PIECE;
}

static assay_status other_give(assay_context *ctx, assay_ranks *ranks, const put_header *header, const void *data)
{
    assay_rank_group *group = ranks->self;
    const bool sent =
        rank_send(group, 0, TAG_PUT, header, sizeof *header) && rank_send(group, 0, TAG_BODY, data, header->bytes);
    return sent ? ASSAY_OK : rank_lost(ctx);
}

static assay_status other_run(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces)
{
    assay_rank_group *group = ranks->self;
    group->run++;
    ranks->runs++;
    for (;;) {
        assay_status worked;
        const int64_t number = ask(group, pieces->count);
        if (number == NO_PIECE) break;
        const assay_status given = rank_work(ctx, ranks, pieces, number, &worked);
        group->reported = worked != ASSAY_OK;
        if (worked != ASSAY_OK) return worked;
        if (given != ASSAY_OK) return given;
    }
    return see_end(group) ? stopped(ctx, group) : ASSAY_OK;
}

/* What is on its way is passed on until the first rank says that there is no more. */
static void pass_on_all(assay_rank_group *group)
{
    rank_wait wait = {0};
    bool well = true;
    while (well && !is_finished(group)) {
        if (!take_data(group, NULL, 0, &well)) rank_wait_pause(&wait);
    }
}

static void other_over(assay_rank_group *group, int64_t session, assay_status status, const char *message)
{
    over_message over = {.session = session, .status = group->reported ? ASSAY_OK : status};
    snprintf(over.message, sizeof over.message, "%s", message);
    rank_send(group, 0, TAG_OVER, &over, sizeof over);
}

/* All of the session is passed on. */
static void leave_session(assay_rank_group *group)
{
    pass_on_all(group);
    rank_send(group, 0, TAG_THROUGH, &group->session, sizeof group->session);
    group->gone = group->last;
    next_session(group);
}

/* Of every rank. */

static assay_status put(assay_context *ctx, assay_ranks *ranks, const char *path, int what, const void *data,
                        int64_t bytes)
{
    assay_rank_group *group = ranks->self;
    put_header header = {.piece = ranks->piece->number,
                         .bytes = bytes,
                         .kind = path != NULL ? PUT_SINK : PUT_DATA,
                         .what = what,
                         .status = ASSAY_OK};
    if (ranks->rank != 0 && see_end(group)) return stopped(ctx, group);
    if (path != NULL) snprintf(header.path, sizeof header.path, "%s", path);
    ranks->counted.put += bytes;
    return group->give(ctx, ranks, &header, data);
}

static assay_status first_broadcast(assay_context *ctx, assay_ranks *ranks, void *data, int64_t bytes)
{
    return rank_pass_on(ranks->self, data, bytes) ? ASSAY_OK : rank_lost(ctx);
}

assay_status assay_rank_group_open(assay_context *ctx, const assay_transport *transport, assay_rank_group **out)
{
    assay_rank_group *group = calloc(1, sizeof *group);
    assay_status status = ASSAY_OK;
    const bool first = transport->rank == 0;
    *out = NULL;
    if (group == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the ranks");
    group->transport = *transport;
    group->session = 1;
    group->give = first ? first_rank_give : other_give;
    group->ranks = (assay_ranks){.self = group,
                                 .rank = transport->rank,
                                 .size = transport->size,
                                 .least = ASSAY_RANKS_LEAST,
                                 .run = first ? first_rank_run : other_run,
                                 .put = put,
                                 .broadcast = first ? first_broadcast : other_broadcast};
    group->spare = malloc(LONGEST_MESSAGE);
    if (group->spare == NULL) status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the messages of ranks");
    if (status == ASSAY_OK && first) status = first_rank_start(ctx, group);
    if (status != ASSAY_OK) {
        free(group->spare);
        free(group);
        return status;
    }
    *out = group;
    return ASSAY_OK;
}

void assay_rank_group_close(assay_rank_group *group, assay_status status, const char *message)
{
    if (group == NULL) return;
    if (group->transport.rank == 0) {
        first_rank_end_session(group, true);
        first_rank_stop(group);
    }
    if (group->transport.rank != 0 && !group->gone) other_over(group, LAST_SESSION, status, message);
    while (group->transport.rank != 0 && !group->gone) leave_session(group); /* the first may have more in mind */
    if (group->lost) group->transport.abort(group->transport.self, message); /* or the others would wait for it */
    group->transport.close(group->transport.self);
    free(group->spare);
    free(group);
}

assay_ranks *assay_rank_group_ranks(assay_rank_group *group)
{
    return group == NULL ? NULL : &group->ranks;
}

void assay_ranks_end_session(assay_ranks *ranks, assay_status status, const char *message)
{
    if (ranks == NULL) return;
    assay_rank_group *group = ranks->self;
    if (group->transport.rank == 0) {
        first_rank_end_session(group, false);
        next_session(group);
    } else if (!group->gone) {
        other_over(group, group->session, status, message);
        leave_session(group);
    }
}
