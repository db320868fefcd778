#define _GNU_SOURCE /* pipe2 */

#include "harness/backends/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "oracle/base/clock.h"

enum { SHORTEST_PAUSE = 125000, LONGEST_PAUSE = 2000000 }; /* ns between looks at a child */

/* In the child: only calls that are safe after a fork. */
static void detach(int input, int output, int error)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* its group is not the terminal's: interrupting us must end it too */
    if (input >= 0) dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(error, STDERR_FILENO);
    signal(SIGXFSZ, SIG_DFL);
}

static int open_nothing(int flags)
{
    return open("/dev/null", flags | O_CLOEXEC);
}

static void set_end(int wait_status, assay_process_result *result)
{
    result->end = WIFSIGNALED(wait_status) ? ASSAY_PROCESS_KILLED : ASSAY_PROCESS_EXITED;
    result->code = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

static const struct timespec pause_between = {0, LONGEST_PAUSE};

/* Until the child ends, or has been ended. */
static void wait_for(pid_t child, double started, double timeout, assay_process_result *result)
{
    struct timespec pause = {0, SHORTEST_PAUSE};
    int wait_status = 0;
    setpgid(child, child); /* here too: whichever of the two comes first */
    while (waitpid(child, &wait_status, WNOHANG) == 0) {
        if (assay_clock() - started > timeout) {
            kill(-child, SIGKILL);
            waitpid(child, &wait_status, 0);
            result->end = ASSAY_PROCESS_TIMED_OUT;
            result->seconds = assay_clock() - started;
            return;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE) pause.tv_nsec *= 2;
    }
    kill(-child, SIGKILL); /* whatever it left running */
    result->seconds = assay_clock() - started;
    set_end(wait_status, result);
}

assay_status assay_process_run(assay_context *ctx, const char *const *argv, const char *log, double timeout,
                               assay_process_result *result)
{
    const double started = assay_clock();
    *result = (assay_process_result){0};
    const int output = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output < 0) return assay_fail(ctx, ASSAY_IO, "%s: %s", log, strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        detach(open_nothing(O_RDONLY), output, output);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    const int reason = errno;
    close(output);
    if (child < 0) return assay_fail(ctx, ASSAY_IO, "%s cannot be started: %s", argv[0], strerror(reason));
    wait_for(child, started, timeout, result);
    return ASSAY_OK;
}

assay_status assay_process_call(assay_context *ctx, int (*work)(void *), void *data, double timeout,
                                assay_process_result *result)
{
    const double started = assay_clock();
    *result = (assay_process_result){0};
    const pid_t child = fork();
    if (child == 0) {
        const int nothing = open_nothing(O_RDWR);
        detach(nothing, nothing, nothing);
        _exit(work(data));
    }
    if (child < 0) return assay_fail(ctx, ASSAY_IO, "a process cannot be started: %s", strerror(errno));
    wait_for(child, started, timeout, result);
    return ASSAY_OK;
}

static void close_pair(const int *ends)
{
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) close(ends[i]);
    }
}

assay_status assay_process_start(assay_context *ctx, const char *const *argv, assay_process *process)
{
    int in[2] = {-1, -1}, out[2] = {-1, -1}, err[2] = {-1, -1};
    pid_t child = -1;
    *process = (assay_process){0};
    if (pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0 && pipe2(err, O_CLOEXEC) == 0) child = fork();
    if (child == 0) {
        detach(in[0], out[1], err[1]);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    if (child < 0) {
        const assay_status status = assay_fail(ctx, ASSAY_IO, "%s cannot be started: %s", argv[0], strerror(errno));
        close_pair(in);
        close_pair(out);
        close_pair(err);
        return status;
    }
    setpgid(child, child); /* here too: whichever of the two comes first */
    close(in[0]);
    close(out[1]);
    close(err[1]);
    *process = (assay_process){.pid = child, .input = in[1], .output = out[0], .error = err[0]};
    return ASSAY_OK;
}

void assay_process_stop(assay_process *process, double patience, assay_process_result *result)
{
    int wait_status = 0;
    const double started = assay_clock();
    *result = (assay_process_result){0};
    if (process->pid == 0) return;
    close(process->input);
    bool ended = false;
    for (;;) {
        ended = waitpid(process->pid, &wait_status, WNOHANG) != 0;
        if (ended || assay_clock() - started > patience) break;
        nanosleep(&pause_between, NULL);
    }
    kill(-process->pid, SIGKILL); /* whatever it left running, too */
    if (!ended) waitpid(process->pid, &wait_status, 0);
    set_end(wait_status, result);
    if (!ended) result->end = ASSAY_PROCESS_TIMED_OUT;
    close(process->output);
    close(process->error);
    *process = (assay_process){0};
}
