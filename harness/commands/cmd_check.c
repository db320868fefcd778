#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/printable.h"
#include "harness/backends/backend_files.h"
#include "harness/backends/server.h"
#include "harness/commands/command.h"
#include "harness/equivalences/company.h"
#include "harness/plan/progress.h"

typedef struct tally {
    int held, failed, vacuous, unsupported, passed_over;
    int same; /* of a backend: held with the same bits, where two kernels would not have them */
} tally;

/* One call of the command. */
typedef struct check_run {
    const assay_options *options;
    assay_chosen chosen;
    const assay_equivalence *from, *end; /* those that are asked for */
    unsigned companies;                  /* bits, of assay_companies; 0: none of them, but equivalences */
    assay_backend_folder folder;         /* of the backend's files */
    assay_backend_server *server;        /* NULL: none */
    assay_progress progress;
    tally tally;
} check_run;

static void show(check_run *r, const assay_case *c, const char *what)
{
    char detail[2 * ASSAY_PATH_SIZE];
    snprintf(detail, sizeof detail, "%s %s", c->name, what);
    assay_progress_add(&r->progress, 0, detail);
}

static void print_reproduce(const check_run *r, const assay_case *c, const char *equivalence)
{
    char text[4096];
    assay_command_reproduce(r->options, "check", c->name, equivalence, text, sizeof text);
    printf("    reproduce: %s\n", text);
}

static void print_result(const check_run *r, const assay_case *c, const assay_equivalence *e,
                         const assay_equivalence_result *found)
{
    const bool bits = found->holding == ASSAY_HOLDS_BITS;
    printf("%s  %-36s %-22s %d tensors, ", found->holds ? "PASS" : "FAIL", c->name, e->name, found->tensors);
    if (found->worst == 0) {
        printf("%s\n", bits ? "same bits" : "no difference");
    } else {
        printf("largest difference %.3g %s: %s[%" PRId64 "] is %.17g and %.17g\n", found->worst,
               bits ? "units of 2^-53, of 0" : "gauges, of 10", found->path, found->index, found->one, found->other);
    }
    if (!found->holds) print_reproduce(r, c, e->name);
    fflush(stdout);
}

/* A backend that failed at it, or gave other bits the second time. */
static void judge_end(const assay_backend_end *end, assay_report *report)
{
    if (end->outcome == ASSAY_OUTCOME_DONE && end->repeats) return;
    report->verdict = end->outcome == ASSAY_OUTCOME_UNSUPPORTED ? ASSAY_UNSUPPORTED : ASSAY_FAIL;
    snprintf(report->message, sizeof report->message, "%.511s", end->message);
}

static bool has_no_difference(const assay_report *report)
{
    bool none = report->verdict == ASSAY_PASS;
    for (int i = 0; i < report->count; i++) none &= !report->tensors[i].compared || report->tensors[i].max_error == 0;
    return none;
}

/* `form`: the equivalence, or what else went wrong with the case. `same`: the two have the same bits and need not. */
static assay_status print_verdict(assay_context *ctx, check_run *r, const assay_case *c, const char *form, bool same,
                                  const assay_report *report)
{
    assay_status status = ASSAY_OK;
    char message[ASSAY_PRINTABLE_SIZE], *text = NULL;
    const assay_options *o = r->options;
    const bool unsupported = report->verdict == ASSAY_UNSUPPORTED, passed = report->verdict == ASSAY_PASS;
    const assay_report_style style = {.color = o->color, .verbosity = o->verbose ? 1 : 0};
    r->tally.unsupported += unsupported;
    r->tally.held += passed && !same;
    r->tally.same += same;
    r->tally.vacuous += report->verdict == ASSAY_VACUOUS;
    r->tally.failed += report->verdict == ASSAY_FAIL || report->verdict == ASSAY_NOT_COMPARABLE;
    assay_progress_end(&r->progress);
    printf("%s%-14s%s %-36s %-22s ", o->color ? assay_verdict_color(report->verdict) : "",
           assay_verdict_name(report->verdict), o->color ? "\033[0m" : "", c->name, form);
    if (same) {
        printf("%s  the same bits: one code path?\n", report->profile);
    } else if (passed) {
        printf("%s  worst %.2f of its threshold\n", report->profile, assay_report_worst(report));
    } else {
        printf("%s\n", assay_printable(report->message, message));
    }
    if (!unsupported && !passed) print_reproduce(r, c, form);
    if (report->count > 0 && (!passed || o->verbose)) {
        TRY(assay_report_text(ctx, report, &style, &text));
        printf("%s\n", text);
    }
cleanup:
    free(text);
    fflush(stdout);
    return status;
}

/* Other forms of quantised operands are on their numbers, which is another case. */
static bool has_backend_form(const assay_case *c, const assay_equivalence *e, assay_other_form *other)
{
    return c->quant_format_count == 0 && assay_other_form_of(c, e, other);
}

static assay_status check_other_form(assay_context *ctx, check_run *r, const assay_backend_check_options *options,
                                     const assay_form *one, const assay_equivalence *e)
{
    assay_other_form other;
    assay_backend_end end = {0};
    OWNED_BY(assay_report_free) assay_report report = {0};
    if (!has_backend_form(&one->c, e, &other)) return ASSAY_OK;
    show(r, &one->c, e->name);
    MUST(assay_backend_other_form(ctx, options, one, e, &other, &end, &report));
    judge_end(&end, &report);
    const bool same = other.holding != ASSAY_HOLDS_BITS && other.reversed[0] == '\0' && !assay_case_is_exact(&one->c) &&
                      has_no_difference(&report);
    return print_verdict(ctx, r, &one->c, e->name, same, &report);
}

static void print_company(check_run *r, const assay_case *c, const assay_company *company,
                          const assay_company_result *found)
{
    static const char *const grades[] = {"the same bits", "within rounding", "beyond rounding"};
    const bool held = found->grade == ASSAY_COMPANY_SAME, over = found->why[0] != '\0';
    r->tally.passed_over += over;
    r->tally.held += held && !over;
    r->tally.failed += !held;
    if (over && r->options->verbose == 0) return;
    assay_progress_end(&r->progress);
    printf("%s  %-36s %-8s ", over ? "-   " : held ? "PASS" : "FAIL", c->name, company->name);
    if (over) {
        printf("passed over: %s\n", found->why);
    } else if (held && company->how == ASSAY_COMPANY_OTHERS) {
        printf("the same bits, among up to %" PRId64 " others\n", found->others);
    } else if (held) {
        printf("the same bits\n");
    } else {
        printf("%s: %" PRId64 " of %" PRId64 " rows differ (the first is %" PRId64 "), by up to %.3g last places, %s, ",
               found->path, found->wrong, found->rows, found->first, found->last_places, grades[found->grade]);
        printf(company->text, (long long)found->others);
        if (company->how == ASSAY_COMPANY_OTHERS && found->fewer >= 0)
            printf(", and do not among %" PRId64, found->fewer);
        printf("\n");
        print_reproduce(r, c, company->name);
    }
    fflush(stdout);
}

/* The same rows in other company, of a backend or of the oracle. */
static assay_status check_companies(assay_context *ctx, check_run *r, const assay_backend_check_options *options,
                                    const assay_form *one)
{
    for (int i = 0; assay_companies[i].name != NULL; i++) {
        assay_backend_end end = {0};
        assay_company_result found;
        OWNED_BY(assay_report_free) assay_report report = {0};
        if ((r->companies >> i & 1) == 0) continue;
        show(r, &one->c, assay_companies[i].name);
        MUST(assay_company_check(ctx, options, one, &assay_companies[i], &end, &found));
        if (end.outcome != ASSAY_OUTCOME_DONE || (found.why[0] == '\0' && !end.repeats)) {
            judge_end(&end, &report);
            MUST(print_verdict(ctx, r, &one->c, assay_companies[i].name, false, &report));
        } else {
            print_company(r, &one->c, &assay_companies[i], &found);
        }
    }
    return ASSAY_OK;
}

/* The backend's two forms. What it makes of the case as it is serves all equivalences. */
static assay_status check_backend_case(assay_context *ctx, check_run *r, const assay_case *c)
{
    const assay_options *o = r->options;
    assay_profile profile;
    assay_backend_check_options options = {.backend = o->backend,
                                           .server = r->server,
                                           .profile = &profile,
                                           .folder = o->keep != NULL ? o->keep : r->folder.path,
                                           .false_alarm = o->false_alarm,
                                           .limits = {o->timeout, o->memory},
                                           .quiet = true};
    OWNED_BY(assay_form_free) assay_form one = {0};
    assay_other_form other;
    assay_backend_end end = {0};
    assay_report report = {0};
    bool applies = false;
    for (const assay_equivalence *e = r->from; e != r->end; e++) applies |= has_backend_form(c, e, &other);
    if (!applies && r->companies == 0) return ASSAY_OK;
    show(r, c, "");
    MUST(assay_command_profile(ctx, o, NULL, assay_dtype_name(c->dtype), &profile));
    MUST(assay_backend_first_form(ctx, &options, c, &one, &end));
    judge_end(&end, &report);
    if (report.verdict != ASSAY_PASS) {
        const char *name = r->options->equivalence;
        return print_verdict(ctx, r, c, name == NULL ? "all" : name, false, &report);
    }
    if (r->companies != 0) return check_companies(ctx, r, &options, &one);
    for (const assay_equivalence *e = r->from; e != r->end; e++) MUST(check_other_form(ctx, r, &options, &one, e));
    return ASSAY_OK;
}

/* Evaluated once; with error scales if one of its equivalences needs them. */
static assay_status check_case(assay_context *ctx, check_run *r, const assay_case *c)
{
    OWNED_BY(assay_form_free) assay_form one = {0};
    assay_other_form form;
    bool applies = r->companies != 0, scales = false;
    for (const assay_equivalence *e = r->from; e != r->end; e++) {
        if (!assay_other_form_of(c, e, &form)) continue;
        applies = true;
        scales |= form.holding == ASSAY_HOLDS_SCALES;
    }
    if (!applies) return ASSAY_OK;
    show(r, c, "");
    if (r->companies != 0) {
        const assay_profile *f64 = assay_profile_by_name("f64");
        MUST(assay_form_evaluate(ctx, c, f64, &one));
        return check_companies(
            ctx, r, &(assay_backend_check_options){.profile = f64, .false_alarm = r->options->false_alarm}, &one);
    }
    MUST(assay_form_evaluate(ctx, c, scales ? assay_profile_by_name("f64") : NULL, &one));
    for (const assay_equivalence *e = r->from; e != r->end; e++) {
        assay_equivalence_result found;
        show(r, c, e->name);
        MUST(assay_equivalence_check(ctx, &one, e, &found));
        if (!found.applies) continue;
        assay_progress_end(&r->progress);
        print_result(r, c, e, &found);
        r->tally.held += found.holds;
        r->tally.failed += !found.holds;
    }
    return ASSAY_OK;
}

/* "repeat,batch": false where one of them is none. */
static bool take_companies(const char *names, unsigned *companies)
{
    for (size_t length = 0;; names += length + 1) {
        int i = 0;
        length = strcspn(names, ",");
        for (const char *name; (name = assay_companies[i].name) != NULL; i++)
            if (strlen(name) == length && strncmp(name, names, length) == 0) break;
        if (assay_companies[i].name == NULL) return false;
        *companies |= 1u << i;
        if (names[length] == '\0') return true;
    }
}

static assay_status choose(assay_context *ctx, check_run *r)
{
    char names[ASSAY_MESSAGE_SIZE - 128] = "";
    const char *name = r->options->equivalence;
    for (r->from = r->end = assay_equivalences; r->end->name != NULL; r->end++) continue;
    if (name == NULL || strcmp(name, "all") == 0) return ASSAY_OK;
    if (take_companies(name, &r->companies)) return ASSAY_OK;
    r->companies = 0;
    if (strcmp(name, "split") == 0) name = "splits-whole";
    r->from = assay_equivalence_by_name(name);
    if (r->from == NULL) {
        for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s, ", e->name);
        }
        return assay_fail(
            ctx, ASSAY_BAD_INPUT,
            "--equivalence is \"%s\", expected one of %sall, or a list of repeat, batch, order, pad, chunk", name,
            names);
    }
    r->end = r->from + 1;
    return ASSAY_OK;
}

static assay_status check_options(assay_context *ctx, const assay_options *o)
{
    const char *alone = o->precision != NULL ? "precision" : o->keep != NULL ? "keep" : "serve";
    if (o->backend != NULL) return assay_command_backend_check(ctx, o);
    if (o->precision == NULL && o->keep == NULL && !o->serve) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s goes with --backend", alone);
}

static assay_status conclude(assay_context *ctx, const check_run *r, int count, int *exit_code)
{
    const tally *t = &r->tally;
    const bool backend = r->options->backend != NULL;
    const bool none = t->held + t->same + t->failed + t->vacuous + t->unsupported == 0;
    if (none)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "none of the %d cases has %s%s", count,
                          r->companies != 0 ? "rows in other company here; -v says why (Python's "
                                              "case.check_invariance takes more)"
                                            : "another form by ",
                          r->companies != 0       ? ""
                          : r->end != r->from + 1 ? "any equivalence"
                                                  : r->from->name);
    printf("%d cases: %d equivalences held, %d failed", count, t->held, t->failed);
    if (t->passed_over > 0) printf(", %d passed over (-v says why)", t->passed_over);
    if (backend) printf(", %d vacuous, %d unsupported, %d the same bits", t->vacuous, t->unsupported, t->same);
    printf("\n");
    *exit_code = ASSAY_EXIT_PASS;
    if (t->vacuous > 0 || t->held + t->same == 0) *exit_code = ASSAY_EXIT_VACUOUS; /* nothing was shown */
    if (t->failed > 0) *exit_code = ASSAY_EXIT_FAIL;
    return ASSAY_OK;
}

static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    check_run *r = self;
    const tally before = r->tally;
    const assay_case *c = &r->chosen.cases[i];
    r->tally = (tally){0};
    r->progress.done = i;
    const assay_status status = r->options->backend != NULL ? check_backend_case(ctx, r, c) : check_case(ctx, r, c);
    fwrite(&r->tally, sizeof r->tally, 1, result);
    r->tally = before;
    return status;
}

static assay_status take(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    (void)i;
    check_run *r = self;
    tally t;
    if (size != sizeof t) return assay_fail(ctx, ASSAY_INTERNAL, "a tally is cut short");
    memcpy(&t, result, sizeof t);
    r->tally.held += t.held;
    r->tally.failed += t.failed;
    r->tally.vacuous += t.vacuous;
    r->tally.unsupported += t.unsupported;
    r->tally.passed_over += t.passed_over;
    r->tally.same += t.same;
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    check_run r = {.options = options};
    TRY(choose(ctx, &r));
    TRY(check_options(ctx, options));
    if (options->serve) TRY(assay_backend_server_make(ctx, options->backend, options->memory, &r.server));
    TRY(assay_choose(ctx, options, 0, &r.chosen));
    if (options->backend != NULL && (options->keep == NULL || assay_ranks_is_first(options->ranks)))
        TRY(assay_backend_folder_make(ctx, options->keep, &r.folder));
    assay_progress_start(&r.progress, options->quiet, "check", r.chosen.count);
    TRY(assay_each_case(
        ctx, &(assay_each){.self = &r, .count = r.chosen.count, .ranks = options->ranks, .work = work, .take = take}));
    assay_progress_end(&r.progress);
    if (assay_ranks_is_first(options->ranks)) TRY(conclude(ctx, &r, r.chosen.count, exit_code));
cleanup:
    assay_backend_server_free(r.server);
    assay_backend_folder_end(&r.folder);
    assay_chosen_free(&r.chosen);
    return status;
}

const assay_command assay_command_check = {
    .name = "check",
    .arguments = "CASE...",
    .summary = "two ways of computing the same thing, against each other",
    .details =
        "With --backend: its own two forms of each, by the rule of the profile. docs/further-checks.md has the forms\n"
        "and what must hold. A case that has no other form is passed over.\n",
    .options = ASSAY_OPT_CHOOSE | ASSAY_OPT_SET | ASSAY_OPT_EQUIVALENCE | ASSAY_OPT_BACKEND | ASSAY_OPT_PRECISION,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run,
};
