/* The first rank: it hands out pieces, keeps what others put until its turn comes, and takes it in order. */
#include <stdlib.h>
#include <string.h>

#include "harness/ranks/ranks_internal.h"

enum { MOST_QUEUED = 1 << 29 }; /* bytes that wait; beyond, ranks wait with them */

static void reply(assay_rank_group *group, int rank, int64_t piece)
{
    rank_send(group, rank, TAG_REPLY, &piece, sizeof piece);
}

/* Whoever waits for a piece of a run that is not begun yet goes on waiting. */
static void answer(assay_rank_group *group)
{
    first_rank *f = &group->first;
    for (int rank = 1; rank < group->transport.size; rank++) {
        int64_t piece = NO_PIECE;
        pthread_mutex_lock(&f->lock);
        wish *wanted = &f->wishes[rank];
        const bool over = f->ended || f->dropping;
        const bool now = wanted->session == f->session && wanted->run > 0 && (over || wanted->run <= f->run);
        if (now && !over && wanted->run == f->run && f->next < f->count) {
            piece = f->next++;
            f->owners[piece] = rank;
        }
        if (now) *wanted = (wish){0};
        pthread_mutex_unlock(&f->lock);
        if (now) reply(group, rank, piece);
    }
}

/* The next word of a rank, of that tag; false: there is none, or it was lost. */
static bool hear_word(assay_rank_group *group, int tag, void *word, int64_t size, int *from)
{
    size_t bytes = 0;
    *from = -1;
    return group->transport.probe(group->transport.self, tag, from, &bytes) &&
           rank_receive(group, *from, tag, word, size);
}

/* Wishes, and who is through. */
static bool hear_words(assay_rank_group *group)
{
    first_rank *f = &group->first;
    int from = -1;
    wish wanted = {0};
    over_message over = {0};
    int64_t through = 0;
    bool any = false;
    for (; hear_word(group, TAG_NEXT, &wanted, sizeof wanted, &from); any = true) {
        pthread_mutex_lock(&f->lock);
        f->wishes[from] = wanted;
        pthread_mutex_unlock(&f->lock);
    }
    for (; hear_word(group, TAG_OVER, &over, sizeof over, &from); any = true) {
        over.message[sizeof over.message - 1] = '\0';
        pthread_mutex_lock(&f->lock);
        f->over[from] = over;
        pthread_cond_signal(&f->arrived);
        pthread_mutex_unlock(&f->lock);
    }
    for (; hear_word(group, TAG_THROUGH, &through, sizeof through, &from); any = true) {
        pthread_mutex_lock(&f->lock);
        f->through[from] = through;
        pthread_cond_signal(&f->arrived);
        pthread_mutex_unlock(&f->lock);
    }
    return any;
}

static void enqueue(first_rank *f, int rank, queued_put *put)
{
    put_queue *queue = &f->queues[rank];
    put->next = NULL;
    if (queue->last != NULL) queue->last->next = put;
    if (queue->first == NULL) queue->first = put;
    queue->last = put;
    f->queued += put->header.bytes;
}

/* Whether there is room for what a rank puts: always for the piece whose turn it is, or nothing would move. */
static bool has_room(const first_rank *f, int rank)
{
    if (f->dropping || f->ended || f->queued <= MOST_QUEUED) return true;
    return f->taken < f->next && f->owners[f->taken] == rank && f->queues[rank].first == NULL;
}

/* Whether a put is one that a rank sends. */
static bool is_put(const put_header *header)
{
    const int64_t element = header->what == ASSAY_PUT_INTEGERS ? (int64_t)sizeof(int32_t) : (int64_t)sizeof(double);
    if (header->bytes < 0 || memchr(header->path, '\0', sizeof header->path) == NULL) return false;
    switch (header->kind) {
    case PUT_DATA:
        return true;
    case PUT_SINK:
        return header->bytes % element == 0 && (header->what != ASSAY_PUT_ZEROS || header->bytes == element);
    case PUT_DONE:
        return header->bytes == (header->status == ASSAY_OK ? 0 : ASSAY_MESSAGE_SIZE);
    }
    return false;
}

/* Whether so many bytes are on their way, before memory is asked for: their first message has its size. */
static bool body_comes(assay_rank_group *group, int rank, int64_t bytes)
{
    size_t there = 0;
    rank_wait wait = {0};
    if (bytes == 0) return true;
    while (!group->transport.probe(group->transport.self, TAG_BODY, &rank, &there)) rank_wait_pause(&wait);
    return there == (size_t)rank_part_of(bytes, 0);
}

/* The next put of a rank; false: it has none, or it must wait. */
static bool hear_put(assay_rank_group *group, int rank)
{
    first_rank *f = &group->first;
    size_t bytes = 0;
    put_header header = {0};
    pthread_mutex_lock(&f->lock);
    const bool room = has_room(f, rank);
    pthread_mutex_unlock(&f->lock);
    if (!room || !group->transport.probe(group->transport.self, TAG_PUT, &rank, &bytes)) return false;
    if (!rank_receive(group, rank, TAG_PUT, &header, sizeof header)) return false;
    if (!rank_is_sound(group, is_put(&header) && body_comes(group, rank, header.bytes))) return false;
    queued_put *put = malloc(sizeof *put + (size_t)header.bytes);
    if (put != NULL) put->header = header;
    const bool came = rank_receive(group, rank, TAG_BODY, put == NULL ? NULL : put->data, header.bytes);
    pthread_mutex_lock(&f->lock);
    if (put == NULL) {
        f->dropping = true; /* nor is anything taken that comes after it */
        f->over[0] = (over_message){f->session, ASSAY_NO_MEMORY, "no memory for what another rank has computed"};
    }
    if (!came || f->dropping || f->ended) {
        free(put);
    } else if (put != NULL) {
        enqueue(f, rank, put);
    }
    pthread_cond_signal(&f->arrived);
    pthread_mutex_unlock(&f->lock);
    return came;
}

static void *serve(void *data)
{
    assay_rank_group *group = data;
    first_rank *f = &group->first;
    rank_wait wait = {0};
    for (;;) {
        bool any = false;
        pthread_mutex_lock(&f->lock);
        const bool stop = f->stopping;
        pthread_mutex_unlock(&f->lock);
        if (stop) return NULL;
        any |= hear_words(group);
        answer(group);
        for (int rank = 1; rank < group->transport.size && !group->lost; rank++) any |= hear_put(group, rank);
        if (group->lost) {
            pthread_mutex_lock(&f->lock);
            pthread_cond_signal(&f->arrived); /* to whom waits for what cannot come */
            pthread_mutex_unlock(&f->lock);
            return NULL;
        }
        if (any) wait.looks = 0;
        if (!any) rank_wait_pause(&wait);
    }
}

assay_status first_rank_start(assay_context *ctx, assay_rank_group *group)
{
    first_rank *f = &group->first;
    const size_t size = (size_t)group->transport.size;
    f->session = group->session;
    f->wishes = calloc(size, sizeof *f->wishes);
    f->over = calloc(size, sizeof *f->over);
    f->through = calloc(size, sizeof *f->through);
    f->queues = calloc(size, sizeof *f->queues);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->arrived, NULL);
    f->started = f->wishes != NULL && f->over != NULL && f->through != NULL && f->queues != NULL &&
                 pthread_create(&f->thread, NULL, serve, group) == 0;
    if (f->started) return ASSAY_OK;
    first_rank_stop(group);
    return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory, or no thread, for %zu ranks", size);
}

static void drop_queues(assay_rank_group *group)
{
    first_rank *f = &group->first;
    for (int rank = 0; rank < group->transport.size; rank++) {
        queued_put *next = NULL;
        for (queued_put *put = f->queues[rank].first; put != NULL; put = next) {
            next = put->next;
            free(put);
        }
        f->queues[rank] = (put_queue){0};
    }
    f->queued = 0;
}

void first_rank_stop(assay_rank_group *group)
{
    first_rank *f = &group->first;
    pthread_mutex_lock(&f->lock);
    f->stopping = true;
    pthread_mutex_unlock(&f->lock);
    if (f->started) pthread_join(f->thread, NULL);
    if (f->queues != NULL) drop_queues(group);
    pthread_mutex_destroy(&f->lock);
    pthread_cond_destroy(&f->arrived);
    free(f->wishes);
    free(f->over);
    free(f->through);
    free(f->queues);
    free(f->owners);
}

static bool all_are_through(const assay_rank_group *group)
{
    const int64_t session = group->session;
    bool all = true;
    for (int rank = 1; rank < group->transport.size && !group->lost; rank++)
        all &= group->first.through[rank] >= session;
    return all;
}

void first_rank_end_session(assay_rank_group *group, bool last)
{
    first_rank *f = &group->first;
    const end_message end = {.broadcasts = group->broadcasts, .last = last};
    pthread_mutex_lock(&f->lock);
    f->ended = true;
    pthread_mutex_unlock(&f->lock);
    for (int rank = 1; rank < group->transport.size; rank++) rank_send(group, rank, TAG_END, &end, sizeof end);
    pthread_mutex_lock(&f->lock);
    while (!all_are_through(group)) pthread_cond_wait(&f->arrived, &f->lock);
    drop_queues(group);
    free(f->owners);
    f->owners = NULL;
    f->run = f->count = f->next = f->taken = 0;
    f->ended = f->dropping = false;
    f->session++;
    pthread_mutex_unlock(&f->lock);
}

static assay_status write_out(assay_context *ctx, const assay_sink *out, const put_header *header, const void *data)
{
    int64_t zeros = 0;
    switch (header->what) {
    case ASSAY_PUT_INTEGERS:
        return out->write_i32(ctx, out->self, header->path, header->bytes / (int64_t)sizeof(int32_t), data);
    case ASSAY_PUT_ZEROS:
        memcpy(&zeros, data, sizeof zeros);
        return out->write_zeros(ctx, out->self, header->path, zeros);
    default:
        return out->write(ctx, out->self, header->path, header->bytes / (int64_t)sizeof(double), data);
    }
}

static bool is_open(const assay_sink *out, int what)
{
    return out != NULL && (what != ASSAY_PUT_ZEROS || out->write_zeros != NULL);
}

/* A put whose turn it is, as between pieces. */
static assay_status take(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces, const put_header *header,
                         const void *data)
{
    const assay_piece *const at_hand = ranks->piece;
    assay_status status = ASSAY_OK;
    ranks->piece = NULL;
    switch (header->kind) {
    case PUT_DATA:
        status = pieces->take(ctx, pieces->self, header->piece, header->what, data, header->bytes);
        break;
    case PUT_SINK:
        status = rank_is_sound(ranks->self, is_open(ranks->out, header->what))
                     ? write_out(ctx, ranks->out, header, data)
                     : rank_lost(ctx);
        break;
    case PUT_DONE:
        if (header->status == ASSAY_OK) break;
        status = rank_is_sound(ranks->self, *(const char *)data != '\0')
                     ? assay_fail(ctx, header->status, "%.*s", (int)header->bytes, (const char *)data)
                     : rank_lost(ctx);
        break;
    }
    ranks->piece = at_hand;
    return status;
}

/* The next put of the piece whose turn it is; NULL: it is not there yet. */
static queued_put *dequeue(assay_rank_group *group)
{
    first_rank *f = &group->first;
    queued_put *put = NULL;
    pthread_mutex_lock(&f->lock);
    if (f->taken < f->next) {
        put_queue *queue = &f->queues[f->owners[f->taken]];
        put = queue->first;
        if (put != NULL && !rank_is_sound(group, put->header.piece == f->taken)) put = NULL; /* another one's */
        if (put != NULL) queue->first = put->next;
        if (put != NULL && queue->first == NULL) queue->last = NULL;
        if (put != NULL) f->queued -= put->header.bytes;
        if (put != NULL && put->header.kind == PUT_DONE) f->taken++;
    }
    pthread_mutex_unlock(&f->lock);
    return put;
}

static assay_status take_what_is_there(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces)
{
    assay_rank_group *group = ranks->self;
    assay_status status = ASSAY_OK;
    for (;;) {
        queued_put *put = dequeue(group);
        if (put == NULL) return ASSAY_OK;
        status = take(ctx, ranks, pieces, &put->header, put->data);
        free(put);
        if (status != ASSAY_OK) return status;
    }
}

static bool is_own_turn(const assay_rank_group *group, int64_t piece)
{
    return group->first.taken == piece && group->first.queues[0].first == NULL;
}

/* Of the first rank's own pieces: at once where it is their turn. */
assay_status first_rank_give(assay_context *ctx, assay_ranks *ranks, const put_header *header, const void *data)
{
    assay_rank_group *group = ranks->self;
    first_rank *f = &group->first;
    if (is_own_turn(group, header->piece)) {
        if (header->kind == PUT_DONE) {
            pthread_mutex_lock(&f->lock);
            f->taken++;
            pthread_mutex_unlock(&f->lock);
        }
        return take(ctx, ranks, ranks->piece->of, header, data);
    }
    queued_put *put = malloc(sizeof *put + (size_t)header->bytes);
    if (put == NULL)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %lld bytes that wait for their turn",
                          (long long)header->bytes);
    put->header = *header;
    memcpy(put->data, data, (size_t)header->bytes);
    pthread_mutex_lock(&f->lock);
    enqueue(f, 0, put);
    pthread_mutex_unlock(&f->lock);
    return ASSAY_OK;
}

/* A piece that nobody has; NO_PIECE: there is none, or too much waits already. */
static int64_t next_own(first_rank *f)
{
    int64_t piece = NO_PIECE;
    pthread_mutex_lock(&f->lock);
    if (f->next < f->count && f->queued <= MOST_QUEUED) {
        piece = f->next++;
        f->owners[piece] = 0;
    }
    pthread_mutex_unlock(&f->lock);
    return piece;
}

/* What failed on a rank outside of all pieces. */
static assay_status other_failure(assay_context *ctx, const assay_rank_group *group)
{
    const first_rank *f = &group->first;
    if (group->lost) return rank_lost(ctx);
    for (int rank = 0; rank < group->transport.size; rank++) {
        const over_message *over = &f->over[rank];
        if (over->session >= f->session && over->status != ASSAY_OK)
            return assay_fail(ctx, over->status, "rank %d: %s", rank, over->message);
    }
    return ASSAY_OK;
}

/* Until something of the piece whose turn it is has come, or cannot come any more. */
static assay_status await(assay_context *ctx, assay_rank_group *group)
{
    first_rank *f = &group->first;
    assay_status status;
    pthread_mutex_lock(&f->lock);
    for (;;) {
        status = other_failure(ctx, group);
        if (status != ASSAY_OK || f->queues[f->owners[f->taken]].first != NULL) break;
        pthread_cond_wait(&f->arrived, &f->lock);
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static assay_status begin(assay_context *ctx, assay_rank_group *group, int64_t count)
{
    first_rank *f = &group->first;
    int *owners = calloc((size_t)count + 1, sizeof *owners);
    if (owners == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of pieces");
    pthread_mutex_lock(&f->lock);
    free(f->owners);
    f->owners = owners;
    f->count = count;
    f->next = f->taken = 0;
    f->run++;
    pthread_mutex_unlock(&f->lock);
    return ASSAY_OK;
}

assay_status first_rank_run(assay_context *ctx, assay_ranks *ranks, const assay_pieces *pieces)
{
    assay_status status;
    assay_rank_group *group = ranks->self;
    first_rank *f = &group->first;
    ranks->runs++;
    TRY(begin(ctx, group, pieces->count));
    for (assay_status worked;;) {
        TRY(take_what_is_there(ctx, ranks, pieces));
        if (f->taken == pieces->count) break;
        const int64_t piece = next_own(f);
        TRY(piece == NO_PIECE ? await(ctx, group) : rank_work(ctx, ranks, pieces, piece, &worked));
    }
cleanup:
    if (status != ASSAY_OK) {
        pthread_mutex_lock(&f->lock);
        f->dropping = true;
        drop_queues(group);
        pthread_mutex_unlock(&f->lock);
    }
    return status;
}
