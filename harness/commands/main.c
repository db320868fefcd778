/* assay: golden fixtures and verdicts for MoE and MLA kernels. */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/printable.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/examine_file.h"
#include "harness/commands/commands.h"
#include "harness/commands/ending.h"
#include "harness/plan/model_weights.h"
#include "harness/version/version.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static void print_overview(void)
{
    printf("assay %s: the reference that MoE and MLA kernels are tried against\n\nusage: assay COMMAND ...\n\n",
           ASSAY_VERSION);
    for (int i = 0; i < assay_command_count; i++) {
        if (assay_commands[i]->summary != NULL)
            printf("  %-10s %s\n", assay_commands[i]->name, assay_commands[i]->summary);
    }
    printf("\nassay COMMAND --help has the options. CASE is a name of the catalogue (assay list), a glob over the\n"
           "names ('moe/*'), or a path to a YAML file.\n"
           "exit status: 0 passed, 1 a comparison failed, 2 bad usage or input, 3 a verdict is vacuous\n");
}

static void print_help(const assay_command *command)
{
    printf("usage: assay %s [options] %s\n\n%s.\n%s", command->name, command->arguments, command->summary,
           command->details);
    assay_options_print_help(command->options);
}

/* Files that others wrote must not be able to end the command. */
static assay_status examine(assay_context *ctx, const assay_options *options)
{
    const char *weights = options->weights != NULL ? options->weights : "";
    OWNED char *file = strndup(weights, (size_t)assay_model_weights_path(weights)); /* a layer may stand behind it */
    if (file == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the options");
    const char *const more[] = {options->inputs != NULL ? options->inputs : "", file};
    MUST(assay_examine_structure(ctx, options->argument_count, (const char *const *)options->arguments));
    return assay_examine_structure(ctx, 2, more);
}

static assay_status run_command(assay_context *ctx, const assay_command *command, int argc, char **argv, int *exit_code)
{
    assay_status status;
    assay_options options = {0};
    if (command->run == NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "this build was made without it (ASSAY_WITHOUT=%s)", command->name);
    TRY(assay_options_parse(ctx, argc, argv, command->options, &options));
    if (options.help) {
        print_help(command);
        goto cleanup;
    }
    const int least = assay_chooses_without_arguments(&options) ? 0 : command->least;
    if (options.argument_count < least || (command->most >= 0 && options.argument_count > command->most)) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "usage: assay %s [options] %s; found %d arguments", argv[0],
                            command->arguments, options.argument_count);
        goto cleanup;
    }
    ctx->threads = options.threads;
    ctx->trusts = options.trust;
    if (command->summary != NULL) TRY(examine(ctx, &options)); /* the others are started by us, with files of ours */
    if ((command->options & (ASSAY_OPT_BACKEND | ASSAY_OPT_FUZZ)) != 0) assay_backend_folders_sweep();
    TRY(assay_isa_from_environment(ctx));
    ctx->arithmetic = assay_arithmetic_by_name(options.engine);
    if (ctx->arithmetic == NULL) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "--engine is \"%s\", expected reference or blas", options.engine);
        goto cleanup;
    }
    if (ctx->arithmetic->load != NULL) TRY(ctx->arithmetic->load(ctx));
    if (command->shares) TRY(assay_ranks_open(ctx, &options.ranks));
    if (assay_ranks_is_first(options.ranks)) TRY(assay_command_check_reports(ctx, &options));
    TRY(command->run(ctx, &options, exit_code));
cleanup:
    assay_ranks_close(options.ranks, status, ctx->message);
    assay_options_free(&options);
    return status;
}

/* One line, whatever the names in it hold. */
static void print_error(const char *command, const char *message)
{
    char line[ASSAY_MESSAGE_SIZE + 64], shown[ASSAY_PRINTABLE_SIZE];
    snprintf(line, sizeof line, "assay%s%.40s: %s", command[0] != '\0' ? " " : "", command, message);
    for (char *c = line; *c != '\0'; c++) {
        if ((unsigned char)*c < ' ') *c = ' ';
    }
    fprintf(stderr, "%s\n", assay_printable(line, shown));
}

/* Of a rank but the first: what it has to say of the cases goes through that one, and the rest is said there. */
static int other_rank(assay_context *ctx, int argc, char **argv)
{
    int exit_code = ASSAY_EXIT_PASS;
    FILE *nowhere = fopen("/dev/null", "w");
    if (nowhere != NULL) stdout = stderr = nowhere;
    for (int i = 0; argc > 1 && i < assay_command_count; i++) {
        if (strcmp(argv[1], assay_commands[i]->name) != 0 || !assay_commands[i]->shares) continue;
        run_command(ctx, assay_commands[i], argc - 1, argv + 1, &exit_code);
    }
    return ASSAY_EXIT_PASS; /* the first rank's status counts */
}

/* As behind "| head". */
static bool reader_has_left(void)
{
    struct pollfd out = {.fd = STDOUT_FILENO};
    return poll(&out, 1, 0) == 1 && (out.revents & POLLERR) != 0;
}

/* Of what went well, but what it printed may have gone nowhere. */
static int end_with(int exit_code, const char *command)
{
    if ((fflush(stdout) == 0 && !ferror(stdout)) || reader_has_left()) return exit_code;
    print_error(command, "standard output cannot be written");
    return ASSAY_EXIT_BAD_INPUT;
}

/* A standard stream that is closed stays of no use, but no file of ours takes its number. */
static void fill_closed_streams(void)
{
    for (int i = 0; i < 3; i++) {
        if (fcntl(i, F_GETFD) < 0) open("/dev/null", i == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
}

static int run(int argc, char **argv)
{
    assay_context ctx = assay_context_default(1);
    int exit_code = ASSAY_EXIT_PASS;
    fill_closed_streams();
    assay_keep_freed_memory();
    assay_end_cleanly();
    signal(SIGXFSZ, SIG_IGN); /* a file beyond the limit is an error of write(), with a message */
    signal(SIGCHLD, SIG_DFL); /* ignored, as some parents leave it, a backend's exit status would be lost */
    if (assay_launch_rank() != 0) return other_rank(&ctx, argc, argv);
    if (argc < 2) {
        print_error("", "a command is missing; see assay --help");
        return ASSAY_EXIT_BAD_INPUT;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_overview();
        return end_with(ASSAY_EXIT_PASS, "--help");
    }
    if (strcmp(argv[1], "--version") == 0) {
        if (assay_isa_from_environment(&ctx) != ASSAY_OK) {
            print_error("--version", ctx.message);
            return ASSAY_EXIT_BAD_INPUT;
        }
        printf("assay %s\n", assay_version_text(ctx.isa));
        return end_with(ASSAY_EXIT_PASS, "--version");
    }
    for (int i = 0; i < assay_command_count; i++) {
        if (strcmp(argv[1], assay_commands[i]->name) != 0) continue;
        if (assay_commands[i]->summary != NULL) assay_end_by_library(assay_commands[i]->name);
        if (run_command(&ctx, assay_commands[i], argc - 1, argv + 1, &exit_code) != ASSAY_OK) {
            print_error(argv[1], ctx.message);
            return ASSAY_EXIT_BAD_INPUT;
        }
        return end_with(exit_code, argv[1]);
    }
    const bool gone = strcmp(argv[1], "certify") == 0;
    assay_fail(&ctx, ASSAY_BAD_INPUT, "unknown command \"%.64s\"; %s", argv[1],
               gone ? "use assay power" : "see assay --help");
    print_error("", ctx.message);
    return ASSAY_EXIT_BAD_INPUT;
}

int main(int argc, char **argv)
{
    __builtin_cpu_init(); /* no constructor of a program runs on a glibc before 2.34, where it was linked on a newer one */
    const int exit_code = run(argc, argv);
    assay_end_is_meant();
    return exit_code;
}
