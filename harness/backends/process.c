#define _GNU_SOURCE /* pipe2, close_range */

#include "harness/backends/process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixtures/leftovers.h"
#include "harness/backends/bounded_log.h"
#include "oracle/base/clock.h"

#define PATIENCE 3.0 /* seconds that a supervisor has to end what it started */

/* What is started. */
typedef struct job {
    const char *const *argv; /* or */
    int (*work)(void *);
    void *data;
    int input, output, error; /* its standard streams; -1: nothing */
    int log;                  /* in place of output and error; -1: none */
    int64_t memory;
} job;

/* What the supervisor says at its end. */
typedef struct end_report {
    int wait_status;
    int start_error, log_error; /* errno, or 0 */
} end_report;

/* ---- the command's process ---- */

/* Only calls that are safe after a fork. */
static void become(const job *j, int log, const sigset_t *mask)
{
    static const int handled[] = {SIGINT, SIGTERM, SIGHUP};
    const int streams[] = {j->input, log >= 0 ? log : j->output, log >= 0 ? log : j->error};
    const int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < 3; i++) dup2(streams[i] >= 0 ? streams[i] : nothing, i);
    signal(SIGXFSZ, SIG_DFL);
    for (int i = 0; i < 3; i++) { /* what is ignored stays so; our handlers are not for a copy */
        if (signal(handled[i], SIG_DFL) == SIG_IGN) signal(handled[i], SIG_IGN);
    }
    if (j->memory > 0) setrlimit(RLIMIT_DATA, &(struct rlimit){(rlim_t)j->memory, (rlim_t)j->memory});
    pthread_sigmask(SIG_SETMASK, mask, NULL);
    if (j->argv == NULL) _exit(j->work(j->data));
    execvp(j->argv[0], (char *const *)j->argv);
    _exit(127);
}

/* ---- its supervisor ---- */

typedef struct supervisor {
    int line;     /* to who asked: shut, it is to end everything */
    int children; /* says when a child has ended */
    int output;   /* of the command, for the log; -1: none */
    assay_bounded_log log;
    pid_t child;
    bool ended; /* the child, or it must */
    end_report report;
} supervisor;

static int parent_of(int process)
{
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", process);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    const char *name_end = strrchr(text, ')'); /* ") S PARENT ..." */
    return name_end == NULL || strlen(name_end) < 5 ? 0 : atoi(name_end + 4);
}

/* The child's whole group, and whatever left it: that is a child of ours when its parent has gone. */
static void kill_all(const supervisor *s)
{
    kill(-s->child, SIGKILL);
    DIR *processes = opendir("/proc");
    if (processes == NULL) return;
    for (struct dirent *entry = readdir(processes); entry != NULL; entry = readdir(processes)) {
        const int number = atoi(entry->d_name);
        if (number > 0 && parent_of(number) == getpid()) kill(number, SIGKILL);
    }
    closedir(processes);
}

/* False: there is none left. */
static bool reap(supervisor *s)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(-1, &status, WNOHANG)) > 0) {
        if (ended != s->child) continue;
        s->report.wait_status = status;
        s->ended = true;
    }
    return ended == 0;
}

/* What lies in the pipe, but no more than a piece: it may never be empty. True: there is more. */
static bool receive_output(supervisor *s)
{
    char piece[1 << 16];
    const ssize_t length = s->output < 0 ? 0 : read(s->output, piece, sizeof piece);
    if (length < 0) return errno == EINTR;
    if (length == 0) {
        if (s->output >= 0) close(s->output);
        s->output = -1;
        return false;
    }
    if (s->report.log_error == 0 && !assay_bounded_log_write(&s->log, piece, (size_t)length))
        s->report.log_error = errno;
    return true;
}

static void watch(supervisor *s)
{
    enum { AGAIN = 10 }; /* ms, after which killing is tried again: what forks may have forked meanwhile */
    while (reap(s)) {
        if (s->ended) kill_all(s);
        struct pollfd events[] = {{.fd = s->ended ? -1 : s->line, .events = POLLIN},
                                  {.fd = s->children, .events = POLLIN},
                                  {.fd = s->output, .events = POLLIN}};
        poll(events, 3, s->ended ? AGAIN : -1);
        if (events[0].revents != 0) s->ended = true;
        if (events[1].revents != 0) {
            struct signalfd_siginfo which;
            if (read(s->children, &which, sizeof which) < 0) continue; /* has been heard of */
        }
        if (events[2].revents != 0) receive_output(s);
    }
    while (receive_output(s)) continue; /* nobody writes any more */
}

/* Closes every descriptor but its own: an end of a pipe that is held here would never be seen closed. */
static void close_others(const supervisor *s)
{
    const int own[] = {s->line, s->children, s->output, s->log.file};
    for (int from = 0;;) {
        int next = -1;
        for (int i = 0; i < 4; i++) {
            if (own[i] >= from && (next < 0 || own[i] < next)) next = own[i];
        }
        if (next < 0) {
            close_range((unsigned)from, ~0U, 0);
            return;
        }
        if (next > from) close_range((unsigned)from, (unsigned)next - 1, 0);
        from = next + 1;
    }
}

__attribute__((noreturn)) static void supervise(const job *j, int line, const sigset_t *mask)
{
    supervisor s = {.line = line, .output = -1, .log.file = j->log};
    sigset_t ends;
    int pipe_ends[2] = {-1, -1};
    setpgid(0, 0); /* the terminal's signals are for who asked */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&ends);
    sigaddset(&ends, SIGCHLD);
    s.children = signalfd(-1, &ends, SFD_CLOEXEC | SFD_NONBLOCK);
    const bool ready = s.children >= 0 && (j->log < 0 || pipe2(pipe_ends, O_CLOEXEC) == 0);
    s.child = ready ? fork() : -1;
    if (s.child == 0) {
        close(line);
        become(j, pipe_ends[1], mask);
    }
    s.report.start_error = s.child < 0 ? errno : 0;
    s.output = pipe_ends[0];
    if (s.output >= 0) fcntl(s.output, F_SETFL, O_NONBLOCK);
    if (s.child > 0) {
        setpgid(s.child, s.child); /* here too: whichever of the two comes first */
        close_others(&s);
        watch(&s);
    }
    _exit(send(s.line, &s.report, sizeof s.report, MSG_NOSIGNAL) != sizeof s.report);
}

/* ---- who asks ---- */

static assay_status start(assay_context *ctx, const job *j, assay_process *process)
{
    int ends[2];
    sigset_t all, before;
    *process = (assay_process){.place = -1};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
        return assay_fail(ctx, ASSAY_IO, "a process cannot be started: %s", strerror(errno));
    }
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the supervisor heeds none */
    const pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        supervise(j, ends[1], &before);
    }
    const int reason = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return assay_fail(ctx, ASSAY_IO, "a process cannot be started: %s", strerror(reason));
    }
    process->pid = pid;
    process->line = ends[0];
    process->place = assay_leftover_line(ends[0]);
    return ASSAY_OK;
}

/* True: the supervisor has said so, or is gone. */
static bool has_said(const assay_process *process, double deadline)
{
    struct pollfd line = {.fd = process->line, .events = POLLIN};
    for (;;) {
        const double left = deadline - assay_clock(), most = 3600;
        const int found = poll(&line, 1, left > 0 ? (int)((left < most ? left : most) * 1e3) + 1 : 0);
        if (found > 0) return true;
        if (left <= 0 && (found == 0 || errno != EINTR)) return false;
    }
}

static void set_end(int wait_status, assay_process_result *result)
{
    result->end = WIFSIGNALED(wait_status) ? ASSAY_PROCESS_KILLED : ASSAY_PROCESS_EXITED;
    result->code = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

/* Waits for the command's end until the deadline, then has everything ended. A supervisor that a backend killed, or stopped,
 * says nothing: then that is how the backend ended. */
static void finish(assay_process *process, double deadline, assay_process_result *result, end_report *report)
{
    const bool in_time = has_said(process, deadline);
    int wait_status = 0;
    shutdown(process->line, SHUT_WR);
    if (!in_time && !has_said(process, assay_clock() + PATIENCE)) kill(process->pid, SIGKILL);
    *report = (end_report){0};
    const bool said = recv(process->line, report, sizeof *report, MSG_DONTWAIT) == sizeof *report;
    while (waitpid(process->pid, &wait_status, 0) < 0 && errno == EINTR) continue;
    set_end(said ? report->wait_status : wait_status, result);
    if (!in_time) result->end = ASSAY_PROCESS_TIMED_OUT;
    assay_leftover_done(process->place);
    close(process->line);
}

static assay_status run(assay_context *ctx, const job *j, const char *what, double timeout,
                        assay_process_result *result)
{
    assay_process process;
    end_report report;
    const double started = assay_clock();
    *result = (assay_process_result){0};
    MUST(start(ctx, j, &process));
    finish(&process, started + timeout, result, &report);
    result->seconds = assay_clock() - started;
    if (report.start_error != 0) {
        return assay_fail(ctx, ASSAY_IO, "%s cannot be started: %s", what, strerror(report.start_error));
    }
    if (report.log_error != 0) {
        return assay_fail(ctx, ASSAY_IO, "the backend's log cannot be written: %s", strerror(report.log_error));
    }
    return ASSAY_OK;
}

assay_status assay_process_run(assay_context *ctx, const char *const *argv, const char *log,
                               const assay_process_limits *limits, assay_process_result *result)
{
    const int file = open(log, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return assay_fail(ctx, ASSAY_IO, "%s: %s", log, strerror(errno));
    const job j = {.argv = argv, .input = -1, .output = -1, .error = -1, .log = file, .memory = limits->memory};
    const assay_status status = run(ctx, &j, argv[0], limits->timeout, result);
    close(file);
    return status;
}

assay_status assay_process_call(assay_context *ctx, int (*work)(void *), void *data, double timeout,
                                assay_process_result *result)
{
    const job j = {.work = work, .data = data, .input = -1, .output = -1, .error = -1, .log = -1};
    return run(ctx, &j, "a process", timeout, result);
}

static void close_pair(const int *ends)
{
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
    }
}

assay_status assay_process_start(assay_context *ctx, const char *const *argv, int64_t memory, assay_process *process)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    assay_status status = ASSAY_OK;
    *process = (assay_process){0};
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0) {
        status = assay_fail(ctx, ASSAY_IO, "%s cannot be started: %s", argv[0], strerror(errno));
    }
    const job j = {.argv = argv, .input = in[0], .output = out[1], .error = err[1], .log = -1, .memory = memory};
    if (status == ASSAY_OK) status = start(ctx, &j, process);
    if (status != ASSAY_OK) {
        close_pair(in);
        close_pair(out);
        close_pair(err);
        *process = (assay_process){0};
        return status;
    }
    close(in[0]);
    close(out[1]);
    close(err[1]);
    process->input = in[1];
    process->output = out[0];
    process->error = err[0];
    return ASSAY_OK;
}

void assay_process_stop(assay_process *process, double patience, assay_process_result *result)
{
    end_report report;
    *result = (assay_process_result){0};
    if (process->pid == 0) return;
    close(process->input);
    finish(process, assay_clock() + patience, result, &report);
    close(process->output);
    close(process->error);
    *process = (assay_process){0};
}
