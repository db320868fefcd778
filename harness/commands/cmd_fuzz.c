#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "compare/printable.h"
#include "fixtures/atomic_file.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/server.h"
#include "harness/commands/command.h"
#include "harness/commands/ending.h"
#include "harness/fuzz/fuzz.h"
#include "oracle/base/memory.h"

#define USUAL_SECONDS 60.0
#define SHARED_BYTES (INT64_C(256) << 20)

/* A signal can say so in no other way. */
static volatile sig_atomic_t interrupted;

/* One a second later ends it at once. */
static void interrupt(int number)
{
    if (assay_end_is_asked_again()) assay_end_by_signal(number);
    interrupted = 1;
}

/* ---- one failure ---- */

/* NAME.yml, NAME.golden.h5 and NAME.txt, the command. */
static assay_status write_files(assay_context *ctx, const assay_options *options, const assay_found *found,
                                const assay_attempt *a, const char *yaml, const char *file)
{
    char path[2304];
    OWNED char *command = NULL;
    size_t size = 0;
    MUST(assay_write_file_atomically(ctx, file, yaml));
    if (a->golden.reader != NULL) {
        assay_backend_file(path, sizeof path, options->output, found->c.name, "golden.h5");
        MUST(assay_golden_write(ctx, &a->plan, path, NULL, true));
    }
    FILE *out = assay_text_open(&command, &size);
    if (out == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the command");
    assay_command_print(out, options, "run", file, NULL);
    fprintf(out, " -v\n");
    if (!assay_text_close(out, &command)) MUST(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the command"));
    assay_backend_file(path, sizeof path, options->output, found->c.name, "reproduce.txt");
    return assay_write_file_atomically(ctx, path, command);
}

static void print_shapes(const assay_plan *plan)
{
    int printed = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        char shape[128];
        if (!assay_role_is_input(plan->specs[i].role) || plan->specs[i].role == ASSAY_ROLE_COTANGENT) continue;
        assay_shape_text(&plan->specs[i].shape, shape, sizeof shape);
        printf("%s%s %s",
               printed == 0       ? "    given: "
               : printed % 4 == 0 ? ",\n           "
                                  : ", ",
               plan->specs[i].path, shape);
        printed++;
    }
    printf("\n");
}

static void print_indented(const char *text)
{
    while (*text != '\0') {
        const int length = (int)strcspn(text, "\n");
        printf("      %.*s\n", length, text);
        text += length + (text[length] != '\0');
    }
}

/* Where it was wrong in the larger case says more of tiles than the smallest does. */
static void print_as_drawn(const assay_found *found)
{
    char message[ASSAY_PRINTABLE_SIZE];
    printf("    as it was drawn: %s\n", assay_printable(found->message, message));
    if (found->diagnosis[0] != '\0') printf("      looked like this: %s\n", found->diagnosis);
    if (found->explanation[0] != '\0') printf("      known bugs: %s\n", found->explanation);
}

static assay_status tell(assay_context *ctx, void *self, const assay_found *found, const assay_attempt *a)
{
    const assay_options *options = self;
    char file[2304] = "CASE.yml", line[ASSAY_REASON_LINE], message[ASSAY_PRINTABLE_SIZE];
    OWNED char *yaml = NULL;
    const char *color = options->color ? assay_verdict_color(ASSAY_FAIL) : "", *off = options->color ? "\033[0m" : "";
    MUST(assay_case_brief_yaml(ctx, &found->c, &yaml));
    if (options->output != NULL) {
        assay_backend_file(file, sizeof file, options->output, found->c.name, "yml");
        MUST(write_files(ctx, options, found, a, yaml, file));
    }
    printf("%sFAIL%s  %s  %s\n", color, off, found->c.name, assay_printable(a->message, message));
    if (found->is_unsteady)
        printf("    the case that it shrank to does not fail each time: a race, or memory that was not written?\n");
    if (a->report.diagnosis[0] != '\0') printf("    looks like this: %s\n", a->report.diagnosis);
    if (a->report.explanation[0] != '\0') printf("    known bugs: %s\n", a->report.explanation);
    printf("    its line in a list of known failures: %s", assay_reason_line(found->c.op, &found->reason, line));
    if (a->reason.excess > 0) printf("<%.0f", floor(a->reason.excess) + 1);
    printf("\n");
    printf("    %s; shrunk in %d steps of %d tries%s\n", found->drawn, found->steps, found->tries,
           found->ran_out ? ", when time was over" : "");
    if (found->steps > 0) print_as_drawn(found);
    if (found->edges[0] != '\0') printf("    sizes around it, one at a time:\n");
    print_indented(found->edges);
    print_shapes(&a->plan);
    printf("    the case:\n");
    print_indented(yaml);
    printf("    repeat: ");
    assay_command_print(stdout, options, "run", file, NULL);
    printf(" -v\n");
    if (options->output == NULL) printf("    (CASE.yml is the text above; -o DIR writes it)\n");
    printf("\n");
    fflush(stdout);
    return ASSAY_OK;
}

/* ---- the end ---- */

static void print_edges(const assay_draws *draws)
{
    static const char *const names[ASSAY_EDGE_SIZES] = {"tokens", "emb_dim", "mlp_dim", "moe_mlp_dim", "experts"};
    int edges = 0;
    while (assay_draw_edges[edges] != 0) edges++;
    printf("edges of tiles that ran (k-1, k, k+1 of 8 to 256):");
    for (int i = 0; i < ASSAY_EDGE_SIZES; i++) {
        int ran = 0;
        for (int k = 0; k < 3 * edges; k++) ran += draws->edges[i][k];
        printf("%s %s %d of %d", i == 0 ? "" : ",", names[i], ran, 3 * edges);
    }
    printf("\n");
}

static void print_summary(const assay_fuzzing *f, const assay_options *options)
{
    int ran = 0, all = 0;
    const assay_draws *draws = &f->draws;
    assay_fuzz_coverage(f, &ran, &all);
    for (int i = 0; i < f->found_count; i++) {
        const assay_found *found = &f->found[i];
        printf("%4d times  %-28s %s: %s%s%s\n", found->alike, found->c.name, found->reason.where, found->reason.what,
               found->reason.bug[0] != '\0' ? ", known bug " : "", found->reason.bug);
    }
    for (int i = 0; f->tried->known != NULL && i < f->tried->known->count; i++) {
        const assay_expected_failure *known = &f->tried->known->entries[i];
        if (known->seen > 0) printf("%4" PRId64 " times  known: %s: %s\n", known->seen, known->pattern, known->reason);
    }
    if (options->verbose) {
        for (int i = 0; i < draws->operations; i++) {
            const assay_draw_count *count = &draws->of_operations[i];
            if (count->ran + count->unsupported == 0) continue;
            printf("%-16s %6d cases ran, %d unsupported\n", assay_operations[i]->name, count->ran, count->unsupported);
        }
    }
    printf("covered: %d of %d values of keys, by operation, of what the backend has; ", ran, all);
    print_edges(draws);
    printf("%" PRId64 " cases in %.0f s (%.0f a second), seed %" PRIu64 ": %" PRId64 " passed, %" PRId64
           " failed for %d reasons, %" PRId64 " unsupported, %" PRId64 " refused",
           f->drawn, f->taken, (double)f->drawn / (f->taken > 0 ? f->taken : 1), f->seed, f->passed, f->failed,
           f->found_count, f->unsupported, f->refused);
    if (f->tried->known != NULL) printf(", %" PRId64 " known failures", f->known);
    printf("\n");
}

static int exit_code_of(const assay_fuzzing *f)
{
    if (f->found_count > 0) return ASSAY_EXIT_FAIL;
    return f->passed > 0 ? ASSAY_EXIT_PASS : ASSAY_EXIT_VACUOUS;
}

static assay_status make_output(assay_context *ctx, const char *folder)
{
    struct stat found;
    if (folder == NULL || mkdir(folder, 0777) == 0) return ASSAY_OK;
    if (errno != EEXIST) return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s: %s", folder, strerror(errno));
    if (stat(folder, &found) == 0 && S_ISDIR(found.st_mode)) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "-o %s: expected a folder", folder);
}

/* What each case gets anyway. */
static assay_status check_sets(assay_context *ctx, const assay_options *options)
{
    static const struct {
        const char *key, *instead;
    } own[] = {{"profiles=", "--precision says by which profile cases are judged"},
               {"op=", "--op chooses the operation"},
               {"case=", "each case gets a name of its own"}};
    for (int i = 0; i < options->set_count; i++) {
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
            if (strncmp(options->sets[i], own[k].key, strlen(own[k].key)) != 0) continue;
            return assay_fail(ctx, ASSAY_BAD_INPUT, "--set %.200s: %s", options->sets[i], own[k].instead);
        }
    }
    return ASSAY_OK;
}

/* NAME.yml of a draw, which counts as if a backend had it, with the profile that it would be judged by. */
static assay_status write_draw(assay_context *ctx, const assay_options *options, assay_draws *draws, int64_t number)
{
    OWNED_BY(assay_case_free) assay_case c = {0};
    assay_drawn drawn;
    assay_profile profile;
    char file[2304], set[64 + ASSAY_PRECISION_NAME_SIZE];
    OWNED char *yaml = NULL;
    MUST(assay_draw(ctx, draws, number, &c, &drawn));
    assay_draws_learn(draws, &drawn, &c, true);
    MUST(assay_command_profile(ctx, options, NULL, assay_dtype_name(c.dtype), &profile));
    snprintf(set, sizeof set, "profiles=[%s]", profile.precision.name);
    MUST(assay_case_set(ctx, &c, set));
    MUST(assay_case_brief_yaml(ctx, &c, &yaml));
    assay_backend_file(file, sizeof file, options->output, c.name, "yml");
    return assay_write_file_atomically(ctx, file, yaml);
}

static assay_status draw_only(assay_context *ctx, const assay_options *options, int *exit_code)
{
    OWNED_BY(assay_draws_free) assay_draws draws = {0};
    const assay_draw_sets sets = {(const char *const *)options->sets, options->set_count};
    *exit_code = ASSAY_EXIT_PASS;
    if (options->output == NULL || options->fuzz_cases == 0 || options->backend != NULL)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--draw-only: expected --cases N and -o DIR, and no --backend");
    MUST(check_sets(ctx, options));
    MUST(assay_draws_start(ctx, &draws, (uint64_t)options->fuzz_seed, options->fuzz_op, &sets));
    MUST(make_output(ctx, options->output));
    for (int64_t i = 0; i < options->fuzz_cases; i++) MUST(write_draw(ctx, options, &draws, i));
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    if (options->draw_only) return draw_only(ctx, options, exit_code);
    assay_status status;
    assay_profile profile;
    assay_expected_failures known = {0};
    assay_backend_folder folder = {0};
    assay_tried tried = {.spec = options->backend,
                         .false_alarm = options->false_alarm,
                         .timeout = options->timeout,
                         .memory = options->memory,
                         .container = options->container};
    assay_fuzzing f = {.tried = &tried,
                       .seed = (uint64_t)options->fuzz_seed,
                       .op = options->fuzz_op,
                       .sets = {(const char *const *)options->sets, options->set_count},
                       .cases = options->fuzz_cases,
                       .seconds = options->fuzz_seconds,
                       .stop_after = (int)options->fuzz_failures,
                       .quiet = options->quiet,
                       .stop = &interrupted,
                       .tell = tell,
                       .self = (void *)(uintptr_t)options};
    if (f.cases == 0 && f.seconds == 0) f.seconds = USUAL_SECONDS;
    if (options->known_file != NULL) {
        TRY(assay_known_read(ctx, options->known_file, &known));
        tried.known = &known;
    }
    TRY(assay_command_backend_check(ctx, options));
    TRY(check_sets(ctx, options));
    if (options->precision != NULL) {
        TRY(assay_command_profile(ctx, options, NULL, "bfloat16", &profile));
        tried.profile = &profile;
    }
    TRY(make_output(ctx, options->output));
    if (options->serve) TRY(assay_backend_server_make(ctx, options->backend, options->memory, &tried.server));
    if (assay_backend_is_shared_object(options->backend)) {
        TRY(assay_forks_start(ctx, &tried.forks, options->backend, SHARED_BYTES));
    } else {
        TRY(assay_backend_folder_make(ctx, NULL, &folder));
        tried.folder = folder.path;
    }
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
    TRY(assay_fuzz(ctx, &f));
    print_summary(&f, options);
    *exit_code = exit_code_of(&f);
cleanup:
    assay_fuzz_free(&f);
    assay_forks_stop(&tried.forks);
    assay_backend_server_free(tried.server);
    assay_expected_failures_free(&known);
    assay_backend_folder_end(&folder);
    return status;
}

const assay_command assay_command_fuzz = {
    .name = "fuzz",
    .arguments = "--backend SPEC",
    .summary = "draw cases, run a backend on them, shrink what fails",
    .details =
        "Cases of the catalogue are drawn and changed, towards what known bugs need and the edges of tiles. A failure\n"
        "is shrunk to the smallest case that fails for the same reason, and reported once. Exit status 1: something\n"
        "failed; 3: the backend supported no case.\n",
    .options = ASSAY_OPT_FUZZ,
    .least = 0,
    .most = 0,
    .run = run,
};
