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

enum { SHORTEST_PAUSE = 125000, LONGEST_PAUSE = 2000000 }; /* ns between looks at a child */

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* In the child: only calls that are safe after a fork. */
static void detach(int output)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* its group is not the terminal's: interrupting us must end it too */
    int input = open("/dev/null", O_RDONLY);
    if (input >= 0) dup2(input, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    signal(SIGXFSZ, SIG_DFL);
}

/* Until the child ends, or has been ended. */
static void wait_for(pid_t child, double started, double timeout, assay_process_result *result)
{
    struct timespec pause = {0, SHORTEST_PAUSE};
    int wait_status = 0;
    setpgid(child, child); /* here too: whichever of the two comes first */
    while (waitpid(child, &wait_status, WNOHANG) == 0) {
        if (now() - started > timeout) {
            kill(-child, SIGKILL);
            waitpid(child, &wait_status, 0);
            result->end = ASSAY_PROCESS_TIMED_OUT;
            result->seconds = now() - started;
            return;
        }
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < LONGEST_PAUSE) pause.tv_nsec *= 2;
    }
    kill(-child, SIGKILL); /* whatever it left running */
    result->seconds = now() - started;
    result->end = WIFSIGNALED(wait_status) ? ASSAY_PROCESS_KILLED : ASSAY_PROCESS_EXITED;
    result->code = WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

assay_status assay_process_run(assay_context *ctx, const char *const *argv, const char *log, double timeout,
                               assay_process_result *result)
{
    const double started = now();
    *result = (assay_process_result){0};
    const int output = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output < 0) return assay_fail(ctx, ASSAY_IO, "%s: %s", log, strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        detach(output);
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
    const double started = now();
    *result = (assay_process_result){0};
    const pid_t child = fork();
    if (child == 0) {
        detach(open("/dev/null", O_WRONLY));
        _exit(work(data));
    }
    if (child < 0) return assay_fail(ctx, ASSAY_IO, "a process cannot be started: %s", strerror(errno));
    wait_for(child, started, timeout, result);
    return ASSAY_OK;
}
