#define _GNU_SOURCE /* sigabbrev_np */
#include "harness/commands/ending.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fixtures/leftovers.h"

/* Handlers are given nothing. */
static const char *running; /* NULL: the end is meant */
static pid_t process;

/* Memory may have run out, and the heap may be damaged. */
static void say(const char *how, const char *what)
{
    const char *const parts[] = {"assay ", running, ": ", how, what, ": memory ran out, or it has an error\n"};
    char line[256] = "";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) strncat(line, parts[i], sizeof line - strlen(line) - 1);
    if (write(STDERR_FILENO, line, strlen(line)) < 0) return;
}

static void fail(int number)
{
    if (running == NULL || getpid() != process) { /* a copy's end is for who made it */
        signal(number, SIG_DFL);
        return; /* to the same instruction */
    }
    assay_leftovers_remove();
    say("this program, or a library below it, was ended by SIG", sigabbrev_np(number));
    _exit(2);
}

static void leave(void)
{
    if (running == NULL || getpid() != process) return;
    assay_leftovers_remove();
    say("a library below this program ended it", "");
    _exit(2);
}

void assay_end_by_library(const char *command)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE};
    struct sigaction action = {.sa_handler = fail, .sa_flags = SA_ONSTACK}, before;
    for (int i = 0; i < 5; i++) {
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_DFL)
            sigaction(numbers[i], &action, NULL);
    }
    /* a stack that overflows has no room for a handler: so does one of HDF5 that begins to start while it starts */
    static char stack[1 << 16];
    sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = sizeof stack}, NULL);
    process = getpid();
    running = atexit(leave) == 0 ? command : NULL;
}

void assay_end_is_meant(void)
{
    running = NULL;
}

bool assay_end_is_asked_again(void)
{
    static int64_t first; /* in nanoseconds; another thread may be here too */
    struct timespec now;
    int64_t before = 0;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const int64_t at = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    const bool is_first = __atomic_compare_exchange_n(&first, &before, at, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return !is_first && at - before > 1000000000;
}

void assay_end_by_signal(int number)
{
    sigset_t one;
    assay_leftovers_remove();
    signal(number, SIG_DFL);
    sigemptyset(&one);
    sigaddset(&one, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
}

void assay_end_cleanly(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction action = {.sa_handler = assay_end_by_signal}, before;
    for (int i = 0; i < 3; i++) sigaddset(&action.sa_mask, numbers[i]); /* one of them is enough */
    for (int i = 0; i < 3; i++) {
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(numbers[i], &action, NULL);
    }
}
