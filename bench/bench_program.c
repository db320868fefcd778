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

typedef struct call {
    const char *arguments[8]; /* the program's; ends with NULL */
} call;

static assay_status run_program(assay_context *ctx, void *self)
{
    const call *c = self;
    char *argv[10] = {(char *)ASSAY_PROGRAM};
    int status = 0;
    pid_t process;
    posix_spawn_file_actions_t actions;
    for (int i = 0; c->arguments[i] != NULL; i++) argv[i + 1] = (char *)c->arguments[i];
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

static assay_status wait_5_ms(assay_context *ctx, void *self)
{
    (void)ctx, (void)self;
    const struct timespec pause = {0, 5000000};
    nanosleep(&pause, NULL);
    return ASSAY_OK;
}

static assay_status bench_start(assay_context *ctx, bench_report *report)
{
    static const struct {
        const char *name;
        call call;
    } lines[] = {{"assay --version", {{"--version"}}}, {"assay show moe/mixtral", {{"show", "moe/mixtral"}}}};
    assay_status status = ASSAY_OK;
    bench_heading("Start of the program, against 5 ms", "program", "5 ms", "1/s");
    for (int i = 0; i < 2; i++) {
        call c = lines[i].call;
        bench_result result;
        TRY(bench_side_by_side(ctx, (bench_work){run_program, &c}, (bench_work){wait_5_ms, NULL}, &result));
        bench_line(report, lines[i].name, 1, 1, &result, 1.0);
    }
cleanup:
    return status;
}

assay_status bench_program(assay_context *ctx, bench_report *report)
{
    assay_status status;
    char folder[256], command[300];
    bench_result result;
    TRY(bench_folder(ctx, folder, sizeof folder));
    call two = {{"generate", "mlp/*", "-o", folder, "--threads", "2"}},
         one = {{"generate", "mlp/*", "-o", folder, "--threads", "1"}};
    TRY(bench_start(ctx, report));
    bench_heading("Many small goldens, by processes and by one", "two", "one", "1/s");
    TRY(bench_side_by_side(ctx, (bench_work){run_program, &two}, (bench_work){run_program, &one}, &result));
    bench_line(report, "assay generate 'mlp/*'", 2, 1, &result, 1.6);
cleanup:
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    if (system(command) != 0 && status == ASSAY_OK) status = assay_fail(ctx, ASSAY_IO, "%s cannot be removed", folder);
    return status;
}
