#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/backend.h"
#include "harness/backends/backend_files.h"
#include "harness/commands/command.h"
#include "harness/commands/expected_failures.h"
#include "harness/explain/explain.h"
#include "harness/plan/plan_make.h"
#include "harness/routing_choice/given_choice.h"

/* One case: files, what the backend did, what the comparer says. */
typedef struct case_run {
    char folder[2048], golden[2304], request[2304], candidate[2304], log[2304];
    assay_backend_end end;
    assay_report report;
} case_run;

typedef struct tally {
    int passed, failed, vacuous, unsupported, known;
} tally;

/* Without --keep each case has a folder of its own: no case finds what another left. */
static assay_status name_files(assay_context *ctx, const assay_options *options, const char *name, case_run *r)
{
    const assay_status status = assay_backend_make_folder(ctx, options->keep, r->folder, sizeof r->folder);
    RETURN_IF(status != ASSAY_OK, status);
    const struct {
        const char *what;
        char *path;
    } files[] = {{"golden", r->golden}, {"request", r->request}, {"candidate", r->candidate}};
    for (int i = 0; i < 3; i++) {
        char what[32];
        snprintf(what, sizeof what, "%s.%s", files[i].what, options->container);
        assay_backend_file(files[i].path, sizeof r->golden, r->folder, name, what);
    }
    assay_backend_file(r->log, sizeof r->log, r->folder, name, "log");
    return ASSAY_OK;
}

/* The case's profile and its plan. No case names a user's own profile: that is added here. */
static assay_status plan_case(assay_context *ctx, const assay_options *options, assay_case *c, assay_profile *profile,
                              assay_plan *plan)
{
    assay_status status;
    TRY(assay_command_profile(ctx, options, NULL, assay_dtype_name(c->dtype), profile));
    const char *name = profile->precision.name;
    if (assay_profile_by_name(name) == NULL) TRY(assay_case_add_profile(ctx, c, name));
    TRY(assay_plan_make_with(ctx, plan, c, NULL, profile));
cleanup:
    return status;
}

/* Every case is planned and has a profile before the first one runs, so that a bad one costs nothing. */
static assay_status check_cases(assay_context *ctx, const assay_options *options, assay_case *cases, int count)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < count; i++) {
        assay_plan plan = {0};
        assay_profile profile;
        TRY(plan_case(ctx, options, &cases[i], &profile, &plan));
        assay_plan_free(&plan);
    }
cleanup:
    return status;
}

static assay_status compare_files(assay_context *ctx, const assay_options *options, const assay_profile *profile,
                                  case_run *r)
{
    assay_status status;
    assay_golden golden = {0}, against = {0}, *held;
    assay_fixture_reader *candidate = NULL;
    TRY(assay_golden_open(ctx, r->golden, &golden));
    TRY(assay_fixture_open(ctx, r->candidate, &candidate));
    TRY(assay_compare_given_choice(ctx, &golden, candidate, profile, options->false_alarm, options->quiet, &r->report,
                                   &against));
    held = against.reader != NULL ? &against : &golden;
    TRY(assay_explain(ctx, held, candidate, profile, options->quiet, &r->report));
    /* of many cases only those that somebody will look at */
    if (options->html_file != NULL && r->report.verdict != ASSAY_PASS) {
        TRY(assay_pictures_draw(ctx, held->reader, candidate, profile, &r->report));
    }
    snprintf(r->report.golden_path, sizeof r->report.golden_path, "%.500s", r->golden);
    snprintf(r->report.candidate_path, sizeof r->report.candidate_path, "%.500s", r->candidate);
cleanup:
    assay_golden_close(&against);
    assay_golden_close(&golden);
    assay_fixture_close(candidate);
    return status;
}

/* The status is what is not the backend's doing. */
static assay_status run_case(assay_context *ctx, const assay_options *options, assay_case *c, case_run *r)
{
    assay_status status;
    assay_plan plan = {0};
    assay_profile profile;
    TRY(name_files(ctx, options, c->name, r));
    TRY(plan_case(ctx, options, c, &profile, &plan));
    TRY(assay_request_write(ctx, &plan, r->request, NULL, options->quiet));
    const assay_backend_call call = {.spec = options->backend,
                                     .request = r->request,
                                     .candidate = r->candidate,
                                     .golden = r->golden,
                                     .log = options->keep != NULL ? r->log : NULL,
                                     .folder = r->folder,
                                     .timeout = options->timeout};
    TRY(assay_backend_execute(ctx, &call, &r->end));
    if (r->end.outcome == ASSAY_OUTCOME_DONE) {
        TRY(assay_golden_write(ctx, &plan, r->golden, NULL, options->quiet));
        status = compare_files(ctx, options, &profile, r);
        if (status == ASSAY_BAD_INPUT) { /* of the two files the candidate is the one that others wrote */
            assay_report_free(&r->report);
            r->report = (assay_report){0};
            r->end.outcome = ASSAY_OUTCOME_FAILED;
            snprintf(r->end.message, sizeof r->end.message, "%.590s", ctx->message);
            status = ASSAY_OK;
        }
        TRY(status);
    }
    snprintf(r->report.case_name, sizeof r->report.case_name, "%s", c->name);
    snprintf(r->report.op, sizeof r->report.op, "%s", c->op);
    if (r->end.outcome != ASSAY_OUTCOME_DONE) {
        r->report.verdict = r->end.outcome == ASSAY_OUTCOME_FAILED ? ASSAY_FAIL : ASSAY_UNSUPPORTED;
        snprintf(r->report.message, sizeof r->report.message, "%.250s", r->end.message);
    } else if (!r->end.repeats) {
        r->report.verdict = ASSAY_FAIL;
        snprintf(r->report.message, sizeof r->report.message, "%.250s", r->end.message);
    }
cleanup:
    assay_plan_free(&plan);
    if (options->keep == NULL && r->folder[0] != '\0') assay_backend_remove_folder(r->folder);
    return status;
}

/* An expected failure is noted as known; where the case passes, that is a failure of the list. */
static void apply_expected_failures(const assay_expected_failures *expected, const char *path, const assay_case *c,
                                    case_run *r)
{
    const assay_expected_failure *entry = assay_expected_failures_find(expected, c->name);
    if (entry == NULL || r->report.verdict == ASSAY_UNSUPPORTED) return;
    if (r->report.verdict != ASSAY_PASS) {
        snprintf(r->report.expected_failure, sizeof r->report.expected_failure, "%s", entry->reason);
        return;
    }
    r->report.verdict = ASSAY_FAIL;
    snprintf(r->report.message, sizeof r->report.message, "passes, but is a known failure by %.80s:%d: %.120s", path,
             entry->line, entry->reason);
}

static void print_case(const assay_options *options, const assay_case *c, const case_run *r, tally *t)
{
    const assay_verdict verdict = r->report.verdict;
    const bool unsupported = verdict == ASSAY_UNSUPPORTED;
    const bool known = r->report.expected_failure[0] != '\0';
    const char *word = known ? "KNOWN" : assay_verdict_name(verdict);
    t->unsupported += unsupported;
    t->known += known;
    t->passed += verdict == ASSAY_PASS;
    t->vacuous += !known && verdict == ASSAY_VACUOUS;
    t->failed += !known && (verdict == ASSAY_FAIL || verdict == ASSAY_NOT_COMPARABLE);
    printf("%s%-14s%s %-36s ", options->color ? assay_verdict_color(verdict) : "", word,
           options->color ? "\033[0m" : "", c->name);
    if (verdict == ASSAY_PASS) {
        printf("%s  worst %.2f of its threshold  %.2f s\n", r->report.profile, assay_report_worst(&r->report),
               r->end.seconds);
    } else if (known) {
        printf("%s (%s)\n", r->report.expected_failure, r->report.message);
    } else {
        printf("%s\n", r->report.message);
    }
    if (r->report.diagnosis[0] != '\0') printf("    looks like this: %s\n", r->report.diagnosis);
    if (r->report.explanation[0] != '\0') printf("    known bugs: %s\n", r->report.explanation);
    if (!unsupported && !known && verdict != ASSAY_PASS) {
        printf("    reproduce: assay run");
        assay_print_word("", c->name);
        assay_print_word(" --backend", options->backend);
        if (options->precision != NULL) assay_print_word(" --precision", options->precision);
        for (int i = 0; i < options->set_count; i++) assay_print_word(" --set", options->sets[i]);
        printf(" --keep DIR -v\n");
    }
}

static void print_output(const char *output)
{
    printf("    the backend's last lines:\n");
    while (*output != '\0') {
        const int length = (int)strcspn(output, "\n");
        printf("      %.*s\n", length, output);
        output += length + (output[length] != '\0');
    }
}

/* With -v: every tensor, or what a backend that gave none printed. */
static assay_status print_detail(assay_context *ctx, const assay_options *options, const case_run *r)
{
    char *text = NULL;
    const assay_report *report = &r->report;
    if (!options->verbose) return ASSAY_OK;
    if (r->end.outcome == ASSAY_OUTCOME_FAILED && r->end.output[0] != '\0') print_output(r->end.output);
    if (report->count == 0) return ASSAY_OK;
    assay_report_style style = {.color = options->color, .verbosity = 1, .command = NULL};
    assay_status status = assay_report_text(ctx, report, &style, &text);
    if (status == ASSAY_OK) printf("%s\n", text);
    free(text);
    return status;
}

static int exit_code_of(const tally *t)
{
    if (t->failed > 0) return ASSAY_EXIT_FAIL;
    if (t->vacuous > 0 || t->passed + t->known == 0) return ASSAY_EXIT_VACUOUS; /* nothing was shown */
    return ASSAY_EXIT_PASS;
}

/* Reports of the cases that ran, whether or not all did; what stopped them comes first. */
static assay_status write_reports(assay_context *ctx, const assay_options *options, int done,
                                  const assay_report *reports, assay_status stopped)
{
    const assay_context before = *ctx;
    if (stopped != ASSAY_OK && done == 0) return stopped;
    const assay_status status = assay_command_write_reports(ctx, options, done, reports);
    if (stopped == ASSAY_OK) return status;
    *ctx = before;
    return stopped;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    assay_case *cases = NULL;
    assay_report *reports = NULL;
    int count = 0, done = 0;
    tally t = {0};
    assay_expected_failures expected = {0};
    if (options->known_file != NULL) TRY(assay_expected_failures_read(ctx, options->known_file, &expected));
    TRY(assay_backend_check(ctx, options->backend));
    TRY(assay_command_cases(ctx, options, &cases, &count));
    TRY(check_cases(ctx, options, cases, count));
    reports = calloc((size_t)count, sizeof *reports);
    if (reports == NULL) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the reports");
        goto cleanup;
    }
    while (status == ASSAY_OK && done < count) {
        case_run r = {0};
        status = run_case(ctx, options, &cases[done], &r);
        if (status != ASSAY_OK) {
            assay_report_free(&r.report);
            break;
        }
        apply_expected_failures(&expected, options->known_file, &cases[done], &r);
        reports[done] = r.report;
        print_case(options, &cases[done++], &r, &t);
        status = print_detail(ctx, options, &r);
        fflush(stdout);
    }
    TRY(write_reports(ctx, options, done, reports, status));
    printf("%d cases: %d passed, %d failed, %d vacuous, %d unsupported", count, t.passed, t.failed, t.vacuous,
           t.unsupported);
    if (options->known_file != NULL) printf(", %d known failures", t.known);
    printf("\n");
    *exit_code = exit_code_of(&t);
cleanup:
    for (int i = 0; i < done; i++) assay_report_free(&reports[i]);
    free(reports);
    assay_cases_free(cases, count);
    assay_expected_failures_free(&expected);
    return status;
}

const assay_command assay_command_run = {
    .name = "run",
    .arguments = "CASE... --backend SPEC",
    .summary = "request, backend and verdict for each case",
    .details =
        "A shared object exports assay_backend_run of <assay/backend.h>. A command gets the paths of the request\n"
        "and of the candidate in place of {request} and {candidate}; exit status 77 says that it does not have\n"
        "the case. Either runs twice, in two processes and two folders.\n",
    .options = ASSAY_OPT_BACKEND | ASSAY_OPT_CONTAINER | ASSAY_OPT_SET | ASSAY_OPT_PRECISION | ASSAY_OPT_REPORTS |
               ASSAY_OPT_KNOWN,
    .least = 1,
    .most = -1,
    .run = run,
};
