#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases/yaml_reader.h"
#include "compare/printable.h"
#include "fixtures/leftovers.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/expected_failures.h"
#include "harness/backends/server.h"
#include "harness/commands/command.h"
#include "harness/commands/ending.h"
#include "harness/commands/hostile.h"
#include "harness/commands/report_parcel.h"
#include "harness/commands/run_case.h"
#include "harness/plan/progress.h"
#include "oracle/base/memory.h"

/* A signal can say so in no other way. */
static volatile sig_atomic_t interrupted;

/* What runs is ended, and what is done is reported. A second later it is the end. */
static void interrupt(int number)
{
    static const char line[] =
        "\nassay run: interrupted; what is done is reported. Once more, a second later, ends it at once\n";
    if (assay_end_is_asked_again()) assay_end_by_signal(number);
    if (interrupted != 0) return;
    interrupted = number;
    if (write(STDERR_FILENO, line, sizeof line - 1) < 0) return;
    assay_leftovers_remove();
}

static void heed_interrupts(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before;
    for (int i = 0; i < 3; i++) {
        if (sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) signal(numbers[i], interrupt);
    }
}

typedef struct tally {
    int passed, failed, vacuous, unsupported, known;
    int judged; /* had a candidate */
} tally;

/* One call of the command. */
typedef struct runs {
    const assay_options *options;
    const assay_chosen *chosen;
    const assay_expected_failures *expected;
    assay_backend_server *server; /* NULL: none */
    assay_backend_first *firsts;  /* [chosen->count] of a server's cases; NULL: both runs of a case come together */
    assay_progress progress;
    tally t;
    assay_report *reports; /* [chosen->count] */
    int done;              /* that are there */
} runs;

/* An expected failure is noted as known; where the case passes, that is a failure of the list. What shows nothing of a kernel
 * is none that could be expected: a backend that cannot be started, or gives no candidate that can be read. */
static void apply_expected_failures(const assay_expected_failures *expected, const char *path, const assay_case *c,
                                    assay_case_run *r)
{
    assay_report *report = &r->report, *stages = report->stages;
    const assay_expected_failure *entry = assay_expected_failures_find(expected, c->name);
    if (entry == NULL || report->verdict == ASSAY_UNSUPPORTED || report->verdict == ASSAY_VACUOUS) return;
    if (report->verdict == ASSAY_PASS) {
        report->verdict = ASSAY_FAIL;
        snprintf(report->message, sizeof report->message, "passes, but is a known failure by %.80s:%d: %.320s", path,
                 entry->line, entry->reason);
    } else if (r->end.is_unfit) {
        char message[sizeof report->message];
        snprintf(message, sizeof message, "%s", report->message);
        snprintf(report->message, sizeof report->message, "%.400s; no kernel's failure, which %.60s:%d could excuse",
                 message, path, entry->line);
    } else {
        snprintf(report->expected_failure, sizeof report->expected_failure, "%s", entry->reason);
        if (stages != NULL) snprintf(stages->expected_failure, sizeof stages->expected_failure, "%s", entry->reason);
    }
}

static void print_case(const assay_options *options, const assay_case *c, const assay_case_run *r, tally *t)
{
    const assay_verdict verdict = r->report.verdict;
    const bool unsupported = verdict == ASSAY_UNSUPPORTED;
    const bool known = r->report.expected_failure[0] != '\0';
    char message[ASSAY_PRINTABLE_SIZE];
    const char *word = known ? "KNOWN" : assay_verdict_name(verdict);
    t->unsupported += unsupported;
    t->known += known;
    t->judged += r->end.outcome == ASSAY_OUTCOME_DONE;
    t->passed += verdict == ASSAY_PASS;
    t->vacuous += !known && verdict == ASSAY_VACUOUS;
    t->failed += !known && (verdict == ASSAY_FAIL || verdict == ASSAY_NOT_COMPARABLE);
    printf("%s%-14s%s %-36s ", options->color ? assay_verdict_color(verdict) : "", word,
           options->color ? "\033[0m" : "", c->name);
    if (verdict == ASSAY_PASS) {
        printf("%s  worst %.2f of its threshold  ", r->report.profile, assay_report_worst(&r->report));
        if (options->hostile)
            printf("in %d trials\n", r->trials);
        else
            printf("%.2f s\n", r->end.seconds);
    } else if (known) {
        printf("%s (%s)\n", r->report.expected_failure, assay_printable(r->report.message, message));
    } else {
        printf("%s\n", assay_printable(r->report.message, message));
    }
    if (r->report.diagnosis[0] != '\0') printf("    looks like this: %s\n", r->report.diagnosis);
    if (r->report.explanation[0] != '\0') printf("    known bugs: %s\n", r->report.explanation);
    if (r->report.reproduce[0] != '\0' && !known) printf("    reproduce: %s\n", r->report.reproduce);
}

static void print_output(const char *output)
{
    printf("    the backend's last lines:\n");
    while (*output != '\0') {
        const int length = (int)strcspn(output, "\n");
        char line[ASSAY_PRINTABLE_SIZE], shown[ASSAY_PRINTABLE_SIZE];
        snprintf(line, sizeof line, "%.*s", length, output);
        printf("      %s\n", assay_printable(line, shown));
        output += length + (output[length] != '\0');
    }
}

/* With -v: what the backend printed last, and every tensor. */
static assay_status print_detail(assay_context *ctx, const assay_options *options, const assay_case_run *r)
{
    char *text = NULL;
    const assay_report *report = &r->report;
    if (!options->verbose) return ASSAY_OK;
    if (r->end.output[0] != '\0') print_output(r->end.output);
    if (report->count == 0) return ASSAY_OK;
    assay_report_style style = {.color = options->color, .verbosity = 1};
    assay_status status = assay_report_text(ctx, report, &style, &text);
    if (status == ASSAY_OK) printf("%s\n", text);
    free(text);
    return status;
}

static int exit_code_of(const tally *t)
{
    if (t->failed > 0) return ASSAY_EXIT_FAIL;
    if (t->vacuous > 0 || t->judged == 0) return ASSAY_EXIT_VACUOUS; /* nothing was shown */
    return ASSAY_EXIT_PASS;
}

/* Reports of the cases that ran, whether or not all did; what stopped them comes first. */
static assay_status write_reports(assay_context *ctx, const assay_options *options, int done,
                                  const assay_report *reports, assay_status stopped)
{
    const assay_context before = *ctx;
    if (stopped != ASSAY_OK && done == 0 && interrupted == 0) return stopped;
    const assay_status status = assay_command_write_reports(ctx, options, done, reports);
    if (stopped == ASSAY_OK) return status;
    *ctx = before;
    return stopped;
}

static double cost(void *self, int i)
{
    const runs *r = self;
    return assay_case_cost(&r->chosen->cases[i]);
}

/* The result: its tally, and its report. */
static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    runs *all = self;
    const assay_options *options = all->options;
    tally t = {0};
    assay_case_run r = {.c = &all->chosen->cases[i], .stored = all->chosen->goldens[i], .server = all->server};
    if (all->firsts != NULL) r.first = &all->firsts[i];
    char where[ASSAY_PATH_SIZE + 64];
    snprintf(where, sizeof where, "case %d of %d: %s", i + 1, all->chosen->count, r.c->name);
    all->progress.done = i; /* shown with the next line */
    assay_progress_add(&all->progress, 0, where);
    assay_status status = (options->hostile ? assay_run_hostile : assay_run_case)(ctx, options, &r);
    assay_progress_end(&all->progress);
    if (interrupted != 0) status = assay_fail(ctx, ASSAY_IO, "interrupted"); /* whatever became of the case */
    if (status == ASSAY_OK) {
        apply_expected_failures(all->expected, options->known_file, r.c, &r);
        print_case(options, r.c, &r, &t);
        status = print_detail(ctx, options, &r);
        fflush(stdout);
        fwrite(&t, sizeof t, 1, result);
        assay_report_pack(&r.report, result);
    }
    assay_report_free(&r.report);
    return status;
}
static assay_status take(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    (void)i;
    runs *all = self;
    tally t;
    const char *at = result + sizeof t;
    if (size < sizeof t) return assay_fail(ctx, ASSAY_INTERNAL, "a report is cut short");
    memcpy(&t, result, sizeof t);
    const assay_status status = assay_report_unpack(ctx, &at, result + size, &all->reports[all->done++]);
    all->t.passed += t.passed;
    all->t.failed += t.failed;
    all->t.vacuous += t.vacuous;
    all->t.unsupported += t.unsupported;
    all->t.known += t.known;
    all->t.judged += t.judged;
    return status;
}

/* A server keeps what it has in memory. So that this shows, the first runs come in another order of the cases, the last one
 * first: each run finds what another case left. */
static assay_status run_firsts(assay_context *ctx, runs *all)
{
    assay_status status = ASSAY_OK;
    const int count = all->chosen->count;
    MUST(assay_alloc_list(ctx, "the first runs", count, sizeof *all->firsts, &all->firsts));
    assay_progress_start(&all->progress, all->options->quiet, "first runs", count);
    for (int i = count - 1; i >= 0 && status == ASSAY_OK && interrupted == 0; i--) {
        assay_case_run r = {.c = &all->chosen->cases[i], .stored = all->chosen->goldens[i], .server = all->server};
        status = assay_run_case_first(ctx, all->options, &r, &all->firsts[i]);
        assay_progress_add(&all->progress, 1, r.c->name);
    }
    assay_progress_end(&all->progress);
    return status;
}

static assay_status run_cases(assay_context *ctx, runs *all)
{
    assay_status status = ASSAY_OK;
    const int count = all->chosen->count;
    const assay_each each = {
        .self = all, .count = count, .ranks = all->options->ranks, .cost = cost, .work = work, .take = take};
    if (all->options->serve) {
        MUST(assay_backend_server_make(ctx, all->options->backend, all->options->memory, &all->server));
    }
    if (all->options->serve && !all->options->hostile && count > 1 && all->options->ranks == NULL)
        status = run_firsts(ctx, all);
    assay_progress_start(&all->progress, all->options->quiet, "run", count);
    if (status == ASSAY_OK) status = assay_each_case(ctx, &each);
    assay_progress_end(&all->progress);
    assay_backend_server_free(all->server);
    for (int i = 0; all->firsts != NULL && i < count; i++) assay_backend_first_free(&all->firsts[i]);
    free(all->firsts);
    return status;
}

/* A list may be shared by runs of other cases of the catalogue, and by those that a filter or a shard leaves out here. */
static assay_status check_known_names(assay_context *ctx, const assay_options *options, const runs *all)
{
    assay_status status;
    assay_named_cases lists[] = {{all->chosen->cases, all->chosen->count}, {0}, {0}};
    assay_case *catalogue = NULL, *named = NULL;
    char **files = calloc((size_t)options->argument_count + 1, sizeof *files);
    int count = 0;
    if (files == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of cases");
    for (int i = 0; i < options->argument_count; i++) {
        if (assay_yaml_extension(options->arguments[i]) != NULL) files[count++] = options->arguments[i];
    }
    TRY(assay_catalogue(ctx, &catalogue, &lists[1].count));
    if (count > 0) TRY(assay_cases_find(ctx, count, files, &named, &lists[2].count));
    lists[1].cases = catalogue;
    lists[2].cases = named;
    status = assay_expected_failures_check(ctx, options->known_file, all->expected, lists, 3);
cleanup:
    assay_cases_free(catalogue, lists[1].count);
    assay_cases_free(named, lists[2].count);
    free(files);
    return status;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    assay_chosen chosen = {0};
    assay_expected_failures expected = {0};
    assay_backend_folder kept = {0};
    runs all = {.options = options, .chosen = &chosen, .expected = &expected};
    if (options->known_file != NULL) TRY(assay_expected_failures_read(ctx, options->known_file, &expected));
    TRY(assay_command_backend_check(ctx, options));
    TRY(assay_choose(ctx, options, ASSAY_CHOOSE_GOLDENS, &chosen));
    if (options->known_file != NULL) TRY(check_known_names(ctx, options, &all));
    TRY(assay_run_check(ctx, options, &chosen));
    if (options->keep != NULL && assay_ranks_is_first(options->ranks))
        TRY(assay_backend_folder_make(ctx, options->keep, &kept));
    TRY(assay_alloc_list(ctx, "the reports", chosen.count, sizeof *all.reports, &all.reports));
    if (options->ranks == NULL) heed_interrupts();
    status = run_cases(ctx, &all);
    if (!assay_ranks_is_first(options->ranks)) goto cleanup;
    status = write_reports(ctx, options, all.done, all.reports, status);
    if (interrupted == 0) TRY(status);
    printf("%d cases: %d passed, %d failed, %d vacuous, %d unsupported", chosen.count, all.t.passed, all.t.failed,
           all.t.vacuous, all.t.unsupported);
    if (options->known_file != NULL) printf(", %d known failures", all.t.known);
    if (interrupted != 0) printf(", %d not run: interrupted", chosen.count - all.done);
    printf("\n");
    if (all.t.known > 0 && all.t.judged == 0)
        printf("known failures alone, none of which gave results: does the backend start?\n");
    bool explained = false;
    for (int i = 0; i < all.done; i++) explained |= all.reports[i].explained_count > 0;
    if (explained) printf("known bugs, " ASSAY_LEFT_TEXT "\n");
    if (options->serve)
        printf("both runs of a case were one process, which keeps its memory (docs/your-kernel.md, \"A server\")\n");
    *exit_code = exit_code_of(&all.t);
cleanup:
    for (int i = 0; i < all.done; i++) assay_report_free(&all.reports[i]);
    free(all.reports);
    assay_backend_folder_end(&kept);
    assay_chosen_free(&chosen);
    assay_expected_failures_free(&expected);
    if (interrupted != 0) {
        fflush(stdout);
        assay_end_by_signal(interrupted); /* whoever waits sees how it ended */
    }
    return status;
}

const assay_command assay_command_run = {
    .name = "run",
    .arguments = "CASE|GOLDEN... --backend SPEC",
    .summary = "request, backend and verdict for each case",
    .details =
        "A shared object exports assay_backend_run of <assay/backend.h>. A command gets the paths of the request\n"
        "and of the candidate in place of {request} and {candidate}; exit status 77 says that it does not have\n"
        "the case. Either runs twice, in two processes and two folders. With --serve a command is started once, and\n"
        "reads a line REQUEST, tab, CANDIDATE for each run. A golden (or a folder of them) is judged by as it is\n"
        "stored. With --tag, --op, --exclude, --no-mesh or --shard and no CASE: of the whole catalogue.\n",
    .options = ASSAY_OPT_RECIPE | ASSAY_OPT_CHOOSE | ASSAY_OPT_BACKEND | ASSAY_OPT_CONTAINER | ASSAY_OPT_WEIGHTS |
               ASSAY_OPT_SET | ASSAY_OPT_PRECISION | ASSAY_OPT_REPORTS | ASSAY_OPT_KNOWN | ASSAY_OPT_STAGED |
               ASSAY_OPT_TRUST | ASSAY_OPT_HOSTILE,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run,
};
