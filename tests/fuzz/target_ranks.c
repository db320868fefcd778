/* What the other ranks send to one rank: the input is their messages, in place of MPI. That rank does a session of its own,
 * with pieces, a sink and a broadcast, and then one of cases, as a command does. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "harness/commands/each_case.h"
#include "harness/ranks/ranks_internal.h"
#include "tests/fuzz/fuzz.h"

enum { MOST_LETTERS = 96, MOST_RANKS = 5, LOOKS = 48, MOST_COUNT = 4 };

typedef struct letter {
    int from, tag;
    size_t bytes;
    char *data; /* of its own, so that a sanitizer sees what is beside it */
} letter;

/* They come as a rank sends them, one after the other, and none while it waits for a reply. After many looks in vain the rest
 * is lost. */
typedef struct post {
    pthread_mutex_t lock;
    letter letters[MOST_LETTERS];
    int count, looks;
    int next[MOST_RANKS]; /* letter of each rank */
    bool waits[MOST_RANKS], broken;
    unsigned sum; /* of what was sent */
} post;

typedef struct job {
    post *post;
    bool is_first;
    int count; /* pieces of a run, and cases */
    int64_t taken, cases;
    bool wrong;
} job;

/* That of a rank which is there now; NULL: it has none. */
static letter *of_rank(post *p, int from)
{
    if (p->broken || p->waits[from]) return NULL;
    while (p->next[from] < p->count && p->letters[p->next[from]].from != from) p->next[from]++;
    return p->next[from] < p->count ? &p->letters[p->next[from]] : NULL;
}

static letter *find(post *p, int tag, int from)
{
    for (int rank = from < 0 ? 0 : from; rank <= (from < 0 ? MOST_RANKS - 1 : from); rank++) {
        letter *l = of_rank(p, rank);
        if (l != NULL && l->tag == tag) return l;
    }
    return NULL;
}

static bool probe_post(void *self, int tag, int *from, size_t *bytes)
{
    post *p = self;
    pthread_mutex_lock(&p->lock);
    const letter *l = find(p, tag, *from);
    p->looks = l == NULL ? p->looks + 1 : 0;
    p->broken |= p->looks > LOOKS;
    if (l != NULL) *from = l->from, *bytes = l->bytes;
    if (p->broken && *from < 0) *from = 0;
    const bool there = l != NULL || p->broken;
    pthread_mutex_unlock(&p->lock);
    return there;
}

static bool receive_post(void *self, int from, int tag, void *data, size_t bytes)
{
    post *p = self;
    pthread_mutex_lock(&p->lock);
    const letter *l = find(p, tag, from);
    p->broken |= l == NULL || l->bytes != bytes;
    if (!p->broken) {
        memcpy(data, l->data, bytes);
        p->waits[from] = tag == TAG_NEXT;
        p->next[from]++;
    }
    const bool came = !p->broken;
    pthread_mutex_unlock(&p->lock);
    return came;
}

/* All that is given is read. */
static unsigned read_bytes(const void *data, int64_t bytes)
{
    unsigned sum = 0;
    for (int64_t i = 0; i < bytes; i++) sum += ((const unsigned char *)data)[i];
    return sum;
}

static bool send_post(void *self, int to, int tag, const void *data, size_t bytes)
{
    post *p = self;
    pthread_mutex_lock(&p->lock);
    p->sum += read_bytes(data, (int64_t)bytes);
    if (tag == TAG_REPLY) p->waits[to] = false;
    const bool sent = !p->broken;
    pthread_mutex_unlock(&p->lock);
    return sent;
}

static void close_post(void *self)
{
    (void)self;
}

static void abort_post(void *self, const char *reason)
{
    post *p = self;
    pthread_mutex_lock(&p->lock);
    p->broken |= reason[0] != '\0';
    pthread_mutex_unlock(&p->lock);
}

static bool has_wish(post *p)
{
    pthread_mutex_lock(&p->lock);
    const bool has = find(p, TAG_NEXT, -1) != NULL;
    pthread_mutex_unlock(&p->lock);
    return has;
}

/* The first rank leaves pieces for those that ask. */
static void let_others_ask(const job *j)
{
    const struct timespec pause = {0, 20000};
    for (int i = 0; j->is_first && i < 20 && has_wish(j->post); i++) nanosleep(&pause, NULL);
}

typedef struct desk {
    job *job;
    const assay_sink *out;
} desk;

static bool wants_all(void *self, const char *path)
{
    (void)self, (void)path;
    return true;
}

static assay_status note(job *j, const char *path, const void *data, int64_t bytes)
{
    j->wrong |= strlen(path) >= ASSAY_PATH_SIZE || bytes < 0;
    j->taken += read_bytes(data, bytes) & 1;
    return ASSAY_OK;
}

static assay_status note_numbers(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    (void)ctx;
    return note(self, path, values, count * (int64_t)sizeof *values);
}

static assay_status note_integers(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    (void)ctx;
    return note(self, path, values, count * (int64_t)sizeof *values);
}

static assay_status note_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    (void)ctx, (void)count;
    return note(self, path, NULL, 0);
}

static assay_status work(assay_context *ctx, void *self, const assay_piece *piece)
{
    assay_status status;
    const desk *d = self;
    const double values[] = {1, (double)piece->number};
    let_others_ask(d->job);
    TRY(assay_piece_put(ctx, piece, 5, values, sizeof values));
    TRY(d->out->write(ctx, d->out->self, "out/values", 2, values));
cleanup:
    return status;
}

static assay_status take(assay_context *ctx, void *self, int64_t piece, int what, const void *data, int64_t bytes)
{
    const desk *d = self;
    (void)ctx, (void)what;
    d->job->wrong |= piece < 0 || piece >= d->job->count;
    return note(d->job, "", data, bytes);
}

static assay_status session(assay_context *ctx, job *j)
{
    assay_status status;
    double sum[3] = {1, 2, 3};
    const assay_sink notes = {
        .self = j, .wants = wants_all, .write = note_numbers, .write_i32 = note_integers, .write_zeros = note_zeros};
    assay_ranks_writer writer;
    const assay_sink out = assay_ranks_sink_open(ctx, &writer, &notes);
    desk d = {j, &out};
    const assay_pieces pieces = {.self = &d, .count = j->count, .work = work, .take = take};
    TRY(assay_pieces_run(ctx, &pieces));
    TRY(assay_ranks_broadcast(ctx, sum, sizeof sum));
cleanup:
    assay_ranks_sink_close(&writer);
    return status;
}

static assay_status do_case(assay_context *ctx, void *self, int i, FILE *result)
{
    (void)ctx;
    let_others_ask(self);
    printf("case %d\n", i);
    fputs("result", result);
    return ASSAY_OK;
}

static assay_status take_case(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    (void)ctx;
    job *j = self;
    j->wrong |= i != j->cases++;
    return note(j, "", result, (int64_t)size);
}

/* What is printed of cases goes nowhere. */
static assay_status do_cases(assay_context *ctx, job *j)
{
    static FILE *nowhere;
    FILE *const out = stdout, *const err = stderr;
    const assay_each each = {.self = j, .count = j->count, .work = do_case, .take = take_case};
    if (nowhere == NULL) nowhere = fopen("/dev/null", "we");
    fuzz_require(nowhere != NULL, "no /dev/null");
    stdout = stderr = nowhere;
    const assay_status status = assay_each_case(ctx, &each);
    stdout = out;
    stderr = err;
    fuzz_require(status != ASSAY_OK || !assay_ranks_is_first(ctx) || j->cases == j->count, "a case has no result");
    return status;
}

static assay_status do_all(assay_context *ctx, job *j)
{
    assay_status status = session(ctx, j);
    assay_ranks_end_session(ctx->ranks, status, ctx->message);
    if (status == ASSAY_OK) status = do_cases(ctx, j);
    return status;
}

static void add(post *p, int from, int tag, const void *data, size_t bytes)
{
    if (p->count == MOST_LETTERS) return;
    letter *l = &p->letters[p->count++];
    *l = (letter){from, tag, bytes, malloc(bytes)};
    fuzz_require(l->data != NULL || bytes == 0, "no memory");
    if (bytes > 0) memcpy(l->data, data, bytes);
}

/* A put of any size, mostly that of what follows. */
static void add_put(post *p, int from, fuzz_bytes *bytes)
{
    static char body[1 << 12];
    const int kind = fuzz_below(bytes, 4), form = fuzz_below(bytes, 32);
    put_header header = {.piece = fuzz_number(bytes), .kind = (put_kind)kind, .what = (int)fuzz_number(bytes)};
    size_t size = (size_t)fuzz_byte(bytes) % 64 * 4, given = 0;
    if (kind == PUT_DONE) {
        header.status = (assay_status)fuzz_below(bytes, 6);
        size = header.status == ASSAY_OK ? 0 : ASSAY_MESSAGE_SIZE;
    } else {
        fuzz_take_text(bytes, header.path, sizeof header.path);
    }
    const uint8_t *from_input = fuzz_take(bytes, size, &given);
    memset(body, 'x', sizeof body);
    if (given > 0) memcpy(body, from_input, given);
    header.bytes = form == 31 ? fuzz_number(bytes) : (int64_t)size;
    if (form == 30) memset(header.path, 'x', sizeof header.path);
    add(p, from, TAG_PUT, &header, sizeof header);
    if (form != 29 && size > 0) add(p, from, TAG_BODY, body, size);
}

static void add_letter(post *p, int from, fuzz_bytes *bytes)
{
    static const char data[64] = "data";
    const int tag = fuzz_below(bytes, 10);
    over_message over = {0};
    wish wanted;
    size_t given = 0;
    int64_t number;
    const uint8_t *raw;
    switch (tag) {
    case TAG_NEXT:
        wanted.session = fuzz_number(bytes);
        wanted.run = fuzz_number(bytes);
        add(p, from, tag, &wanted, sizeof wanted);
        return;
    case TAG_PUT:
        add_put(p, from, bytes);
        return;
    case TAG_OVER:
        over.session = fuzz_number(bytes);
        over.status = (assay_status)fuzz_below(bytes, 6);
        if (over.status != ASSAY_OK) memset(over.message, 'x', 1 + fuzz_byte(bytes) * 5 % sizeof over.message);
        add(p, from, tag, &over, sizeof over);
        return;
    case TAG_DATA:
        number = (int64_t)((uint64_t)fuzz_number(bytes) * 8);
        add(p, from, tag, &number, sizeof number);
        add(p, from, TAG_DATA_BODY, data, (size_t)fuzz_below(bytes, 9) * 8);
        return;
    case TAG_END: {
        const end_message end = {.broadcasts = fuzz_number(bytes), .last = fuzz_below(bytes, 2) != 0};
        add(p, from, tag, &end, sizeof end);
        return;
    }
    case TAG_REPLY:
    case TAG_THROUGH:
        number = fuzz_number(bytes);
        add(p, from, tag, &number, sizeof number);
        return;
    default:
        raw = fuzz_take(bytes, fuzz_byte(bytes), &given);
        add(p, from, fuzz_below(bytes, 10), raw, given);
    }
}

static void try_ranks(const uint8_t *data, size_t size)
{
    fuzz_bytes bytes = {data, data + size};
    post p = {.lock = PTHREAD_MUTEX_INITIALIZER};
    assay_context ctx = fuzz_context();
    assay_rank_group *group = NULL;
    const int ranks = 2 + fuzz_below(&bytes, MOST_RANKS - 1), rank = fuzz_below(&bytes, ranks);
    job j = {.post = &p, .is_first = rank == 0, .count = fuzz_below(&bytes, MOST_COUNT + 1)};
    while (bytes.at < bytes.end) {
        const int from = fuzz_below(&bytes, ranks);
        add_letter(&p, from, &bytes);
    }
    const assay_transport transport = {.self = &p,
                                       .rank = rank,
                                       .size = ranks,
                                       .send = send_post,
                                       .probe = probe_post,
                                       .receive = receive_post,
                                       .close = close_post,
                                       .abort = abort_post};
    fuzz_require(assay_rank_group_open(&ctx, &transport, &group) == ASSAY_OK, ctx.message);
    ctx.ranks = assay_rank_group_ranks(group);
    const assay_status status = do_all(&ctx, &j);
    fuzz_require(status == ASSAY_OK || ctx.message[0] != '\0', "a refusal says nothing");
    fuzz_require(!j.wrong, "what a piece or a case gave is taken for that of another");
    assay_rank_group_close(group, status, ctx.message);
    for (int i = 0; i < p.count; i++) free(p.letters[i].data);
}

/* What other ranks say: numbers are rank, tag and what add_letter reads. */
static void ranks_seeds(fuzz_corpus *corpus)
{
#define SEED(text) fuzz_seed(corpus, text, sizeof text - 1)
    SEED("\0\0\3" /* two ranks, to the first, three pieces: the other has piece 1 of both sessions */
         "\1\1\1\1"
         "\1\2\0\0\1\5\4\0abcdefghijklmnop"
         "\1\2\1\0\1\0\2\3o/vabcdefgh"
         "\1\2\1\0\1\1\1\1iabcd"
         "\1\2\1\0\1\2\2\1z\1\0\0\0\0\0\0\0"
         "\1\2\2\0\1\0\0\0"
         "\1\1\1\1"
         "\1\4\1\0"
         "\1\11\1"
         "\1\1\2\1"
         "\1\2\0\0\1\1\0\0"
         "\1\2\0\0\1\0\2\0case 1.\n"
         "\1\2\0\0\1\2\2\0results."
         "\1\2\2\0\1\0\0\0"
         "\1\1\2\1"
         "\1\4\2\0"
         "\1\11\2"
         "\1\11\3");
    SEED("\0\0\3"
         "\1\1\1\1"
         "\1\2\2\0\1\0\0\3"); /* its piece fails */
    SEED("\1\1\3"             /* three ranks, to the second: a piece, and a broadcast */
         "\0\5\1"
         "\0\5\314"
         "\0\6\3\3"
         "\0\10\1\0"
         "\0\5\0"
         "\0\5\314"
         "\0\10\0\0"
         "\0\10\0\1");
    SEED("\2\2\2" /* four ranks, to the third, which passes on to the fourth, also when it has ended */
         "\0\5\314"
         "\0\6\3\3"
         "\0\6\4\4"
         "\0\10\2\0"
         "\0\10\0\1");
#undef SEED
}

const fuzz_target fuzz_ranks = {"ranks", try_ranks, ranks_seeds, false};
