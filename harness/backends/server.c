#include "harness/backends/server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness/backends/backend_end.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/bounded_log.h"
#include "harness/backends/process.h"
#include "oracle/base/clock.h"
#include "oracle/base/memory.h"

#define PATIENCE 5.0 /* seconds that a server has to end when its input ends */
static const char PREFIX[] = "assay:";
enum { LINE = 1 << 16 };

/* A pipe that it writes to, in lines: two pipes go into one log. */
typedef struct stream {
    size_t used; /* of line: what it wrote since the last line break */
    bool inside; /* the beginning of that line has been logged */
    char line[LINE];
} stream;

struct assay_backend_server {
    const char *command;
    int64_t memory;
    assay_process process;
    stream output, error;
};

/* One request. */
typedef struct exchange {
    assay_context *ctx;
    assay_backend_server *server;
    assay_bounded_log log;
    bool answered;             /* an answer came */
    bool closed, error_closed; /* it closed its standard output, standard error */
    char answer[600];          /* behind the prefix */
    const char *breach;        /* of the protocol; NULL: none so far */
} exchange;

static assay_status write_log(exchange *e, const char *text, size_t length)
{
    if (assay_bounded_log_write(&e->log, text, length)) return ASSAY_OK;
    return assay_fail(e->ctx, ASSAY_IO, "the backend's log cannot be written: %s", strerror(errno));
}

/* A line, with its line break. An answer is one on standard output, and none in the middle of a line. */
static assay_status receive_line(exchange *e, stream *from, size_t start, size_t length)
{
    const char *text = from->line + start;
    const bool whole = !from->inside;
    const size_t prefix = sizeof PREFIX - 1;
    from->inside = text[length - 1] != '\n';
    if (from == &e->server->error || !whole || length < prefix || strncmp(text, PREFIX, prefix) != 0) {
        return write_log(e, text, length);
    }
    if (e->answered) e->breach = "the backend answered twice";
    if (e->answered) return ASSAY_OK;
    e->answered = true;
    text += prefix;
    length -= prefix;
    while (length > 0 && strchr(" \t", *text) != NULL) text++, length--;
    while (length > 0 && strchr("\r\n \t", text[length - 1]) != NULL) length--;
    snprintf(e->answer, sizeof e->answer, "%.*s", (int)(length < 500 ? length : 500), text);
    for (char *c = e->answer; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
    return ASSAY_OK;
}

static assay_status receive_lines(exchange *e, stream *from)
{
    size_t start = 0;
    for (size_t i = 0; i < from->used; i++) {
        if (from->line[i] != '\n') continue;
        MUST(receive_line(e, from, start, i + 1 - start));
        start = i + 1;
    }
    from->used -= start;
    memmove(from->line, from->line + start, from->used);
    if (from->used == sizeof from->line) {
        MUST(receive_line(e, from, 0, from->used));
        from->used = 0;
    }
    return ASSAY_OK;
}

/* What lies in a pipe, without waiting, but no more than a part of what an endless one gives; *closed: and nothing will
 * come. */
static assay_status drain_one(exchange *e, int pipe, stream *into, bool *closed)
{
    enum { MOST_READS = 64 };
    ssize_t length = -1;
    for (int i = 0; i < MOST_READS; i++) {
        length = read(pipe, into->line + into->used, sizeof into->line - into->used);
        if (length <= 0) break;
        into->used += (size_t)length;
        MUST(receive_lines(e, into));
    }
    *closed = length == 0;
    return ASSAY_OK;
}

static assay_status drain(exchange *e)
{
    assay_backend_server *s = e->server;
    MUST(drain_one(e, s->process.error, &s->error, &e->error_closed));
    return drain_one(e, s->process.output, &s->output, &e->closed);
}

/* Lines that will have no end. */
static assay_status log_rest(exchange *e)
{
    stream *const both[] = {&e->server->output, &e->server->error};
    for (int i = 0; i < 2; i++) {
        MUST(write_log(e, both[i]->line, both[i]->used));
        both[i]->used = 0;
    }
    return ASSAY_OK;
}

static assay_status start(assay_context *ctx, assay_backend_server *server)
{
    const char *const argv[] = {"/bin/sh", "-c", server->command, NULL};
    server->output.used = server->error.used = 0;
    server->output.inside = server->error.inside = false;
    MUST(assay_process_start(ctx, argv, server->memory, &server->process));
    fcntl(server->process.output, F_SETFL, O_NONBLOCK);
    fcntl(server->process.error, F_SETFL, O_NONBLOCK);
    return ASSAY_OK;
}

/* The pipe is empty and has room for the line. One that has no reader any more says so by its end. */
static void send_request(const assay_backend_server *server, const char *request, const char *candidate)
{
    char line[6000];
    const int length = snprintf(line, sizeof line, "%s\t%s\n", request, candidate);
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    const ssize_t written = write(server->process.input, line, (size_t)length);
    (void)written;
    signal(SIGPIPE, before);
}

static bool has_ended(const assay_backend_server *server)
{
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)server->process.pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
}

/* Until it has answered, has ended, or the time is over. */
static assay_status wait_for_answer(exchange *e, double deadline, bool *late)
{
    const assay_backend_server *s = e->server;
    for (;;) {
        const bool ended = has_ended(s); /* before the pipes are read: what it wrote is in them then */
        MUST(drain(e));
        if (e->answered || ended || e->closed) return ASSAY_OK;
        *late = assay_clock() > deadline;
        if (*late) return ASSAY_OK;
        struct pollfd pipes[] = {{.fd = s->process.output, .events = POLLIN},
                                 {.fd = e->error_closed ? -1 : s->process.error, .events = POLLIN}};
        poll(pipes, 2, 20); /* the end of the process alone wakes nobody */
    }
}

static void receive_answer(exchange *e, assay_backend_end *end)
{
    static const struct {
        const char *word;
        assay_backend_outcome outcome;
    } answers[] = {
        {"done", ASSAY_OUTCOME_DONE}, {"unsupported", ASSAY_OUTCOME_UNSUPPORTED}, {"failed", ASSAY_OUTCOME_FAILED}};
    for (int i = 0; i < 3; i++) {
        const size_t length = strlen(answers[i].word);
        if (strncmp(e->answer, answers[i].word, length) != 0 || strchr(" ", e->answer[length]) == NULL) continue;
        const char *reason = e->answer + length + strspn(e->answer + length, " ");
        if (answers[i].outcome == ASSAY_OUTCOME_DONE && reason[0] != '\0') break;
        end->outcome = answers[i].outcome;
        snprintf(end->message, sizeof end->message, "%.500s",
                 reason[0] != '\0' ? reason : "the backend gave no reason");
        return;
    }
    e->breach = "the backend's answer is none";
}

/* What the protocol does not have. */
static void judge_breach(const exchange *e, assay_backend_end *end)
{
    char message[600];
    snprintf(
        message, sizeof message,
        "%s: \"assay: %.300s\"; expected one line for each request, \"assay: done\", \"assay: unsupported WHY\" or "
        "\"assay: failed WHY\"",
        e->breach, e->answer);
    assay_backend_fail(end, message);
}

/* It gave no answer. */
static void judge_silence(exchange *e, bool late, const char *log, double timeout, assay_backend_end *end)
{
    assay_process_result result;
    const double seconds = end->seconds;
    const bool lives = !has_ended(e->server);
    assay_process_stop(&e->server->process, lives && !late ? PATIENCE : 0.0, &result);
    result.seconds = seconds;
    if (late) result.end = ASSAY_PROCESS_TIMED_OUT;
    assay_backend_judge(&result, log, timeout, end);
    if (late || end->outcome == ASSAY_OUTCOME_FAILED) {
        if (!late && result.end == ASSAY_PROCESS_TIMED_OUT) {
            assay_backend_fail(end, "the backend closed its standard output");
        }
        return;
    }
    if (end->outcome == ASSAY_OUTCOME_DONE) {
        assay_backend_fail(end, "the backend ended with status 0 and gave no answer");
    }
}

assay_status assay_backend_server_ask(assay_context *ctx, assay_backend_server *server, const char *request,
                                      const char *candidate, const char *log, double timeout, assay_backend_end *end)
{
    assay_status status = ASSAY_OK;
    const double started = assay_clock();
    bool late = false;
    int unread = 0;
    exchange e = {.ctx = ctx, .server = server};
    e.log.file = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (e.log.file < 0) return assay_fail(ctx, ASSAY_IO, "%s: %s", log, strerror(errno));
    if (server->process.pid == 0) TRY(start(ctx, server));
    TRY(drain(&e)); /* what it wrote since the last answer */
    if (e.answered) {
        e.breach = "the backend answered before it was asked";
    } else {
        send_request(server, request, candidate);
        TRY(wait_for_answer(&e, started + timeout, &late));
    }
    end->seconds = assay_clock() - started;
    if (!e.answered) {
        TRY(log_rest(&e));
        judge_silence(&e, late, log, timeout, end);
        goto cleanup;
    }
    if (ioctl(server->process.input, FIONREAD, &unread) == 0 && unread > 0) {
        e.breach = "the backend answered before it read the request";
    }
    if (e.breach == NULL) receive_answer(&e, end);
    if (e.breach != NULL) {
        assay_process_result result;
        judge_breach(&e, end);
        assay_process_stop(&server->process, 0.0, &result);
    }
    assay_backend_last_lines(log, ASSAY_BACKEND_LINES, end->output, sizeof end->output);
cleanup:
    close(e.log.file);
    return status;
}

assay_status assay_backend_server_make(assay_context *ctx, const char *command, int64_t memory,
                                       assay_backend_server **server)
{
    MUST(assay_alloc_list(ctx, "the server", 1, sizeof **server, server));
    (*server)->command = command;
    (*server)->memory = memory;
    return ASSAY_OK;
}

void assay_backend_server_free(assay_backend_server *server)
{
    assay_process_result result;
    if (server != NULL) assay_process_stop(&server->process, PATIENCE, &result);
    free(server);
}
