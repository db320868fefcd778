#include "harness/tests/thread_ranks.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/assay_test.h"

typedef struct message {
    struct message *next;
    int from, to, tag;
    size_t bytes;
    bool cut;
    char data[];
} message;

/* Storage of the test itself: no allocation of it may fail. */
enum { STORE = 96 << 20 };

typedef struct world {
    thread_ranks *ranks;
    pthread_mutex_t lock;
    message *first, *last;
    bool broken;
    size_t used;
    char *store;
} world;

typedef struct seat {
    world *world;
    int rank;
} seat;

static bool send_message(void *self, int to, int tag, const void *data, size_t bytes)
{
    const seat *s = self;
    world *w = s->world;
    pthread_mutex_lock(&w->lock);
    const bool faulty = w->ranks->messages++ == w->ranks->message;
    if (faulty && w->ranks->fault == THREAD_FAULT_NOT_SENT) w->broken = true;
    const bool sent = !w->broken;
    if (sent) {
        message *m = (message *)(w->store + w->used);
        w->used += (sizeof *m + bytes + 15) / 16 * 16;
        if (w->used > STORE) abort();
        *m = (message){.from = s->rank, .to = to, .tag = tag, .bytes = bytes};
        m->cut = faulty && w->ranks->fault == THREAD_FAULT_CUT_SHORT;
        memcpy(m->data, data, bytes);
        if (w->last != NULL) w->last->next = m;
        if (w->first == NULL) w->first = m;
        w->last = m;
    }
    pthread_mutex_unlock(&w->lock);
    return sent;
}

/* The place of the pointer to it, and what stands before it. */
static message **find(world *w, int to, int tag, int from, message **before)
{
    message **at = &w->first;
    for (*before = NULL; *at != NULL; *before = *at, at = &(*at)->next) {
        if ((*at)->to == to && (*at)->tag == tag && (from < 0 || (*at)->from == from)) break;
    }
    return at;
}

static bool probe(void *self, int tag, int *from, size_t *bytes)
{
    const seat *s = self;
    world *w = s->world;
    message *before;
    pthread_mutex_lock(&w->lock);
    const message *m = *find(w, s->rank, tag, *from, &before);
    if (m != NULL) *from = m->from, *bytes = m->bytes;
    if (w->broken && *from < 0) *from = 0;
    const bool there = m != NULL || w->broken;
    pthread_mutex_unlock(&w->lock);
    return there;
}

static bool receive(void *self, int from, int tag, void *data, size_t bytes)
{
    const seat *s = self;
    world *w = s->world;
    message *before;
    pthread_mutex_lock(&w->lock);
    while (!w->broken && *find(w, s->rank, tag, from, &before) == NULL) { /* a header is here, its body soon */
        pthread_mutex_unlock(&w->lock);
        pthread_mutex_lock(&w->lock);
    }
    message **at = find(w, s->rank, tag, from, &before), *m = *at;
    const bool whole = !w->broken && m->bytes == bytes && !m->cut;
    if (m != NULL) {
        memcpy(data, m->data, whole ? bytes : bytes / 2 < m->bytes ? bytes / 2 : m->bytes);
        *at = m->next;
        if (w->last == m) w->last = before;
    }
    w->broken |= !whole;
    pthread_mutex_unlock(&w->lock);
    return whole;
}

static void end(void *self)
{
    (void)self;
}

static void break_off(void *self, const char *reason)
{
    const seat *s = self;
    (void)reason;
    pthread_mutex_lock(&s->world->lock);
    s->world->broken = true;
    pthread_mutex_unlock(&s->world->lock);
}

/* As a command is run: the group, its sessions, and the end. */
static void *run_rank(void *data)
{
    seat *s = data;
    thread_ranks *ranks = s->world->ranks;
    assay_context ctx = assay_context_default(1);
    assay_rank_group *group = NULL;
    const assay_transport transport = {.self = s,
                                       .rank = s->rank,
                                       .size = ranks->size,
                                       .send = send_message,
                                       .probe = probe,
                                       .receive = receive,
                                       .close = end,
                                       .abort = break_off};
    if (ranks->arithmetic != NULL) ctx.arithmetic = ranks->arithmetic;
    assay_status status = assay_rank_group_open(&ctx, &transport, &group);
    if (status != ASSAY_OK) transport.abort(transport.self, ctx.message);
    ctx.ranks = assay_rank_group_ranks(group);
    if (status == ASSAY_OK) status = ranks->body(&ctx, ranks->self);
    if (ctx.ranks != NULL) ranks->counted[s->rank] = ctx.ranks->counted;
    assay_rank_group_close(group, status, ctx.message);
    ranks->status[s->rank] = status;
    memcpy(ranks->text[s->rank], ctx.message, sizeof ctx.message);
    return NULL;
}

void thread_ranks_run(thread_ranks *ranks)
{
    static char store[STORE];
    world w = {.ranks = ranks, .store = store};
    seat seats[THREAD_RANKS_MOST];
    pthread_t threads[THREAD_RANKS_MOST];
    ranks->messages = 0;
    pthread_mutex_init(&w.lock, NULL);
    for (int i = 0; i < ranks->size; i++) {
        seats[i] = (seat){&w, i};
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &seats[i]), 0);
    }
    for (int i = 0; i < ranks->size; i++) pthread_join(threads[i], NULL);
    pthread_mutex_destroy(&w.lock);
}
