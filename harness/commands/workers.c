#define _GNU_SOURCE /* pipe2 */
#include "harness/commands/workers.h"

#include <errno.h>
#include <fcntl.h>
#include <omp.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "oracle/base/memory.h"

enum { MOST_PROCESSES = 256 };

/* In memory that all of them share. */
typedef struct board {
    atomic_int next; /* piece */
    atomic_bool stop;
    atomic_int at_work[MOST_PROCESSES]; /* the piece of each; -1: it has given what it had */
} board;

/* Before the bytes of a result. */
typedef struct answer {
    int piece;
    assay_status status;
    size_t size;
    char message[ASSAY_MESSAGE_SIZE];
} answer;

typedef struct worker {
    pid_t process;
    int line; /* from it; -1: it has ended */
} worker;

typedef struct crew {
    const assay_workers *workers;
    board *board;
    worker of[MOST_PROCESSES];
    int count;
    assay_status status;
} crew;

static bool write_all(int line, const void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t put = write(line, (const char *)bytes + done, size - done);
        if (put < 0 && errno != EINTR) return false;
        if (put > 0) done += (size_t)put;
    }
    return true;
}

static bool read_all(int line, void *bytes, size_t size)
{
    for (size_t done = 0; done < size;) {
        const ssize_t got = read(line, (char *)bytes + done, size - done);
        if (got == 0 || (got < 0 && errno != EINTR)) return false;
        if (got > 0) done += (size_t)got;
    }
    return true;
}

/* One piece, and what became of it. False: the other end is gone. */
static bool work_on(assay_context *ctx, const assay_workers *workers, int piece, int line, board *b)
{
    answer a = {.piece = piece};
    char *text = NULL;
    FILE *result = assay_text_open(&text, &a.size);
    ctx->message[0] = '\0';
    a.status = result == NULL ? ASSAY_NO_MEMORY : workers->work(ctx, workers->self, piece, result);
    const bool kept = result != NULL && assay_text_close(result, &text);
    if (!kept) a.size = 0;
    if (!kept && a.status == ASSAY_OK) a.status = ASSAY_NO_MEMORY;
    if (a.status == ASSAY_NO_MEMORY && ctx->message[0] == '\0') assay_fail(ctx, a.status, "no memory for a result");
    memcpy(a.message, ctx->message, sizeof a.message);
    if (a.status != ASSAY_OK) b->stop = true;
    const bool given = write_all(line, &a, sizeof a) && write_all(line, text, a.size);
    free(text);
    return given;
}

static void serve(const assay_context *ctx, const crew *c, int self, int line)
{
    assay_context own = *ctx;
    board *b = c->board;
    const int nowhere = open("/dev/null", O_WRONLY);
    prctl(PR_SET_PDEATHSIG, SIGTERM);               /* it removes what it would leave */
    if (nowhere >= 0) dup2(nowhere, STDERR_FILENO); /* progress of one among many */
    for (int i = 0; i < c->count; i++) close(c->of[i].line);
    own.threads = 1;
    omp_set_num_threads(1);
    while (!b->stop) {
        const int piece = b->next++;
        if (piece >= c->workers->count) break;
        b->at_work[self] = piece;
        if (!work_on(&own, c->workers, piece, line, b)) break;
        b->at_work[self] = -1;
    }
    _exit(0);
}

static assay_status start(assay_context *ctx, crew *c)
{
    int line[2];
    c->board->at_work[c->count] = -1;
    const bool piped = pipe2(line, O_CLOEXEC) == 0;
    const pid_t process = piped ? fork() : -1;
    if (process < 0) {
        const int reason = errno;
        if (piped) close(line[0]), close(line[1]);
        return assay_fail(ctx, ASSAY_IO, "a process cannot be started: %s", strerror(reason));
    }
    if (process == 0) {
        close(line[0]);
        serve(ctx, c, c->count, line[1]);
    }
    close(line[1]);
    c->of[c->count++] = (worker){process, line[0]};
    return ASSAY_OK;
}

static void take(assay_context *ctx, crew *c, int piece, assay_status status, const char *message, const char *result,
                 size_t size)
{
    if (c->status != ASSAY_OK) return;
    c->status = c->workers->take(ctx, c->workers->self, piece, status, message, result, size);
    if (c->status != ASSAY_OK) c->board->stop = true;
}

/* One that was told to stop, or that has died with a piece at hand. */
static void receive_end(assay_context *ctx, crew *c, int i)
{
    char message[128];
    int how = 0;
    close(c->of[i].line);
    c->of[i].line = -1;
    while (waitpid(c->of[i].process, &how, 0) < 0 && errno == EINTR) continue;
    const int piece = c->board->at_work[i];
    if (piece < 0) return;
    c->board->stop = true;
    if (WIFSIGNALED(how)) {
        snprintf(message, sizeof message, "its process was ended by signal %d (%s)", WTERMSIG(how),
                 strsignal(WTERMSIG(how)));
    } else {
        snprintf(message, sizeof message, "its process ended early");
    }
    take(ctx, c, piece, ASSAY_INTERNAL, message, NULL, 0);
}

static void receive_answer(assay_context *ctx, crew *c, int i)
{
    answer a;
    void *bytes = NULL;
    if (!read_all(c->of[i].line, &a, sizeof a)) {
        receive_end(ctx, c, i);
        return;
    }
    if (assay_alloc(ctx, "the result of a case", (int64_t)a.size + 1, 1, &bytes) != ASSAY_OK) {
        if (c->status == ASSAY_OK) c->status = ASSAY_NO_MEMORY;
        c->board->stop = true;
        receive_end(ctx, c, i); /* it finds nobody to write to */
    } else if (read_all(c->of[i].line, bytes, a.size)) {
        take(ctx, c, a.piece, a.status, a.message, bytes, a.size);
    } else {
        receive_end(ctx, c, i);
    }
    free(bytes);
}

static void listen_to(assay_context *ctx, crew *c)
{
    struct pollfd lines[MOST_PROCESSES];
    int open_lines = c->count;
    while (open_lines > 0) {
        open_lines = 0;
        for (int i = 0; i < c->count; i++) {
            lines[i] = (struct pollfd){.fd = c->of[i].line, .events = POLLIN};
            open_lines += c->of[i].line >= 0;
        }
        if (open_lines == 0 || poll(lines, (nfds_t)c->count, -1) < 0) continue;
        for (int i = 0; i < c->count; i++) {
            if (lines[i].revents != 0) receive_answer(ctx, c, i);
        }
    }
}

assay_status assay_workers_run(assay_context *ctx, const assay_workers *workers)
{
    crew c = {.workers = workers};
    const int processes = workers->processes < MOST_PROCESSES ? workers->processes : MOST_PROCESSES;
    c.board = mmap(NULL, sizeof *c.board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c.board == MAP_FAILED) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory to share out work");
    fflush(NULL); /* or each process would print it too */
    while (c.count < processes && c.count < workers->count && c.status == ASSAY_OK) c.status = start(ctx, &c);
    if (c.status != ASSAY_OK && c.count > 0) c.status = ASSAY_OK; /* fewer do it too */
    listen_to(ctx, &c);
    munmap(c.board, sizeof *c.board);
    return c.status;
}
