/* The program as a whole: how long it takes to start, against 5 ms; and many small goldens by two processes, which it starts
 * itself, against one. */
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench/bench.h"

extern char **environ;

/* The program's arguments, which end with NULL. */
static assay_status run_program(assay_context *ctx, const char *const *arguments)
{
    char *argv[10] = {(char *)ASSAY_PROGRAM};
    int status = 0;
    pid_t process;
    posix_spawn_file_actions_t actions;
    for (int i = 0; arguments[i] != NULL; i++) argv[i + 1] = (char *)arguments[i];
    if (posix_spawn_file_actions_init(&actions) != 0)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a process");
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
    const int failed = posix_spawn(&process, ASSAY_PROGRAM, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failed != 0 || waitpid(process, &status, 0) != process || status != 0) {
        return assay_fail(ctx, ASSAY_IO, "%s %s did not work", ASSAY_PROGRAM, argv[1]);
    }
    return ASSAY_OK;
}

static assay_status say_version(assay_context *ctx, void *self)
{
    (void)self;
    return run_program(ctx, (const char *const[]){"--version", NULL});
}

static assay_status show_case(assay_context *ctx, void *self)
{
    (void)self;
    return run_program(ctx, (const char *const[]){"show", "moe/mixtral", NULL});
}

static assay_status wait_5_ms(assay_context *ctx, void *self)
{
    (void)ctx, (void)self;
    const struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    return ASSAY_OK;
}

/* self: a folder */
static assay_status generate(assay_context *ctx, const void *self, const char *threads)
{
    return run_program(ctx, (const char *const[]){"generate", "mlp/*", "-o", self, "--threads", threads, NULL});
}

static assay_status by_two(assay_context *ctx, void *self)
{
    return generate(ctx, self, "2");
}

static assay_status by_one(assay_context *ctx, void *self)
{
    return generate(ctx, self, "1");
}

assay_status bench_program(assay_context *ctx, bench_report *report)
{
    static const bench_pair version = {"assay --version", say_version, wait_5_ms, 1, 1.0},
                            show = {"assay show moe/mixtral", show_case, wait_5_ms, 1, 1.0},
                            processes = {"assay generate 'mlp/*'", by_two, by_one, 1, 1.6};
    assay_status status;
    char folder[256], command[300];
    TRY(bench_folder(ctx, folder, sizeof folder));
    ctx->threads = 1;
    bench_heading("Start of the program, against 5 ms", "program", "5 ms", "1/s");
    TRY(bench_line(ctx, report, &version, NULL));
    TRY(bench_line(ctx, report, &show, NULL));
    ctx->threads = 2;
    bench_heading("Many small goldens, by processes and by one", "two", "one", "1/s");
    TRY(bench_line(ctx, report, &processes, folder));
cleanup:
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0 && status == ASSAY_OK) status = assay_fail(ctx, ASSAY_IO, "%s cannot be removed", folder);
    return status;
}
