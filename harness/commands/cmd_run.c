#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "harness/backend.h"
#include "harness/command.h"

/* One case: files, what the backend did, what the comparer says. */
typedef struct case_run {
    char folder[2048], golden[2304], request[2304], candidate[2304];
    assay_backend_end end;
    assay_report report;
} case_run;

typedef struct tally {
    int passed, failed, vacuous, unsupported;
} tally;

/* File names in one folder: the case's slashes become dashes. */
static void name_files(case_run *r, const char *folder, const char *name)
{
    char flat[ASSAY_PATH_SIZE];
    snprintf(flat, sizeof flat, "%s", name);
    for (char *c = flat; *c != '\0'; c++) {
        if (*c == '/') *c = '-';
    }
    snprintf(r->folder, sizeof r->folder, "%s", folder);
    snprintf(r->golden, sizeof r->golden, "%s/%s.golden.h5", r->folder, flat);
    snprintf(r->request, sizeof r->request, "%s/%s.request.h5", r->folder, flat);
    snprintf(r->candidate, sizeof r->candidate, "%s/%s.candidate.h5", r->folder, flat);
}

static void remove_files(const case_run *r)
{
    unlink(r->golden);
    unlink(r->request);
    unlink(r->candidate);
}

/* With what a backend that was stopped may have left. */
static void remove_folder(char *folder)
{
    FTS *tree = fts_open((char *const[]){folder, NULL}, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (tree == NULL) return;
    for (FTSENT *entry = fts_read(tree); entry != NULL; entry = fts_read(tree)) {
        if (entry->fts_info != FTS_D) remove(entry->fts_accpath); /* a folder comes again after what is in it */
    }
    fts_close(tree);
}

/* Every case is planned and has a profile before the first one runs, so that a bad one costs nothing. */
static assay_status check_cases(assay_context *ctx, const assay_options *options, const assay_case *cases, int count)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < count; i++) {
        assay_plan plan = {0};
        const assay_profile *profile = NULL;
        TRY(assay_command_profile(ctx, options, assay_dtype_name(cases[i].dtype), &profile));
        TRY(assay_plan_make(ctx, &plan, &cases[i]));
        assay_plan_free(&plan);
    }
cleanup:
    return status;
}

static assay_status compare_files(assay_context *ctx, const assay_options *options, const assay_case *c, case_run *r)
{
    assay_status status;
    assay_fixture_reader *golden = NULL, *candidate = NULL;
    const assay_profile *profile = NULL;
    TRY(assay_command_profile(ctx, options, assay_dtype_name(c->dtype), &profile));
    TRY(assay_fixture_open(ctx, r->golden, &golden));
    if (assay_fixture_open(ctx, r->candidate, &candidate) != ASSAY_OK) {
        /* what a backend wrote is its result, a damaged file too */
        r->end.outcome = ASSAY_OUTCOME_FAILED;
        snprintf(r->end.message, sizeof r->end.message, "%.500s", ctx->message);
        goto cleanup;
    }
    TRY(assay_compare(ctx, golden, candidate, profile, options->false_alarm, &r->report));
    snprintf(r->report.golden_path, sizeof r->report.golden_path, "%.500s", r->golden);
    snprintf(r->report.candidate_path, sizeof r->report.candidate_path, "%.500s", r->candidate);
cleanup:
    assay_fixture_close(golden);
    assay_fixture_close(candidate);
    return status;
}

static assay_status run_case(assay_context *ctx, const assay_options *options, const assay_case *c, case_run *r)
{
    assay_status status;
    assay_plan plan = {0};
    TRY(assay_plan_make(ctx, &plan, c));
    TRY(assay_request_write(ctx, &plan, r->request, NULL, options->quiet));
    TRY(assay_backend_execute(ctx, options->backend, r->request, r->candidate, r->folder, options->timeout, &r->end));
    if (r->end.outcome == ASSAY_OUTCOME_DONE) {
        TRY(assay_golden_write(ctx, &plan, r->golden, NULL, options->quiet));
        TRY(compare_files(ctx, options, c, r));
    }
    snprintf(r->report.case_name, sizeof r->report.case_name, "%s", c->name);
    snprintf(r->report.op, sizeof r->report.op, "%s", c->op);
    if (r->end.outcome != ASSAY_OUTCOME_DONE) {
        r->report.verdict = r->end.outcome == ASSAY_OUTCOME_FAILED ? ASSAY_FAIL : ASSAY_NOT_COMPARABLE;
        snprintf(r->report.message, sizeof r->report.message, "%.250s", r->end.message);
    } else if (!r->end.repeats) {
        r->report.verdict = ASSAY_FAIL;
        snprintf(r->report.message, sizeof r->report.message, "%.250s", r->end.message);
    }
cleanup:
    assay_plan_free(&plan);
    return status;
}

static const char *const colors[] = {[ASSAY_PASS] = "\033[32m",
                                     [ASSAY_FAIL] = "\033[31m",
                                     [ASSAY_VACUOUS] = "\033[33m",
                                     [ASSAY_NOT_COMPARABLE] = "\033[33m"};

/* The largest excess over a threshold, over all tensors. */
static double worst_of(const assay_report *report)
{
    double worst = 0.0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *t = &report->tensors[i];
        if (t->compared && !(t->worst_element <= worst)) worst = t->worst_element;
        if (t->compared && !(t->worst_row <= worst)) worst = t->worst_row;
    }
    return worst;
}

/* An option and its value, quoted for the shell. */
static void print_word(const char *option, const char *value)
{
    printf("%s '", option);
    for (; *value != '\0'; value++) {
        if (*value == '\'') fputs("'\\'", stdout);
        putchar(*value);
    }
    putchar('\'');
}

static void print_case(const assay_options *options, const assay_case *c, const case_run *r, tally *t)
{
    bool unsupported = r->end.outcome == ASSAY_OUTCOME_UNSUPPORTED;
    assay_verdict verdict = r->report.verdict;
    const char *word = unsupported ? "UNSUPPORTED" : assay_verdict_name(verdict);
    t->unsupported += unsupported;
    t->passed += !unsupported && verdict == ASSAY_PASS;
    t->vacuous += !unsupported && verdict == ASSAY_VACUOUS;
    t->failed += !unsupported && (verdict == ASSAY_FAIL || verdict == ASSAY_NOT_COMPARABLE);
    printf("%s%-14s%s %-36s ", options->color ? colors[verdict] : "", word, options->color ? "\033[0m" : "", c->name);
    if (!unsupported && verdict == ASSAY_PASS) {
        printf("%s  worst %.2f of its threshold  %.2f s\n", r->report.profile, worst_of(&r->report), r->end.seconds);
    } else {
        printf("%s\n", r->report.message);
    }
    if (!unsupported && verdict != ASSAY_PASS) {
        printf("    reproduce: assay run");
        print_word("", c->name);
        print_word(" --backend", options->backend);
        if (options->precision != NULL) print_word(" --precision", options->precision);
        for (int i = 0; i < options->set_count; i++) print_word(" --set", options->sets[i]);
        printf(" --keep DIR -v\n");
    }
    fflush(stdout);
}

static assay_status print_detail(assay_context *ctx, const assay_options *options, const assay_report *report)
{
    char *text = NULL;
    if (!options->verbose || report->count == 0) return ASSAY_OK;
    assay_report_style style = {.color = options->color, .verbosity = 1, .command = NULL};
    assay_status status = assay_report_text(ctx, report, &style, &text);
    if (status == ASSAY_OK) printf("%s\n", text);
    free(text);
    return status;
}

static assay_status make_folder(assay_context *ctx, const assay_options *options, char *folder, size_t size)
{
    if (options->keep != NULL) {
        snprintf(folder, size, "%s/", options->keep);
        assay_status status = assay_make_parents(ctx, folder);
        snprintf(folder, size, "%s", options->keep);
        return status;
    }
    const char *temporary = getenv("TMPDIR");
    snprintf(folder, size, "%s/assay-XXXXXX", temporary != NULL && temporary[0] != '\0' ? temporary : "/tmp");
    if (mkdtemp(folder) == NULL) return assay_fail(ctx, ASSAY_IO, "%s: %s", folder, strerror(errno));
    return ASSAY_OK;
}

static assay_status check_backend(assay_context *ctx, const char *spec)
{
    if (spec == NULL || spec[0] == '\0') {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend SPEC is missing: a shared object, or a command with {request} and {candidate}");
    }
    if (assay_backend_is_shared_object(spec)) {
        if (access(spec, R_OK) != 0) return assay_fail(ctx, ASSAY_BAD_INPUT, "--backend %s: %s", spec, strerror(errno));
    } else if (strstr(spec, "{request}") == NULL || strstr(spec, "{candidate}") == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT,
                          "--backend \"%s\" is neither a shared object (.so) nor a command with {request} and "
                          "{candidate}",
                          spec);
    }
    return ASSAY_OK;
}

static int exit_code_of(const tally *t)
{
    if (t->failed > 0) return ASSAY_EXIT_FAIL;
    if (t->vacuous > 0 || t->passed == 0) return ASSAY_EXIT_VACUOUS; /* nothing was shown */
    return ASSAY_EXIT_PASS;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_report *reports = NULL;
    char folder[2048] = "";
    int count = 0, done = 0;
    tally t = {0};
    TRY(check_backend(ctx, options->backend));
    TRY(assay_command_cases(ctx, options, &cases, &count));
    TRY(check_cases(ctx, options, cases, count));
    TRY(make_folder(ctx, options, folder, sizeof folder));
    reports = calloc((size_t)count, sizeof *reports);
    if (reports == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the reports");
        goto cleanup;
    }
    for (; done < count; done++) {
        case_run r = {0};
        name_files(&r, folder, cases[done].name);
        status = run_case(ctx, options, &cases[done], &r);
        reports[done] = r.report;
        if (options->keep == NULL) remove_files(&r);
        if (status != ASSAY_OK) {
            done++;
            goto cleanup;
        }
        print_case(options, &cases[done], &r, &t);
        TRY(print_detail(ctx, options, &reports[done]));
    }
    TRY(assay_command_write_reports(ctx, options, count, reports));
    printf("%d cases: %d passed, %d failed, %d vacuous, %d unsupported\n", count, t.passed, t.failed, t.vacuous,
           t.unsupported);
    *exit_code = exit_code_of(&t);
cleanup:
    if (folder[0] != '\0' && options->keep == NULL) remove_folder(folder);
    for (int i = 0; i < done; i++) assay_report_free(&reports[i]);
    free(reports);
    assay_cases_free(cases, count);
    return status;
}

const assay_command assay_command_run = {
    .name = "run",
    .arguments = "CASE... --backend SPEC",
    .summary = "request, backend and verdict for each case",
    .details =
        "A shared object exports assay_backend_run of <assay/backend.h>. A command gets the paths of the request\n"
        "and of the candidate in place of {request} and {candidate}; exit status 77 says that it does not have\n"
        "the case. Either runs twice, in a process of its own.\n",
    .options = ASSAY_OPT_BACKEND | ASSAY_OPT_SET | ASSAY_OPT_PRECISION | ASSAY_OPT_REPORTS,
    .least = 1,
    .most = -1,
    .run = run,
};
