/* The diagnosis tried on mutants: explain_sweep [-v] [-p PROFILE] [-s KEY=VALUE] CASE...
 *
 * For each case and each mutant that its golden detects, the candidate of a backend that has this bug *and* computes in
 * low precision: the mutated case evaluated in the emulated arithmetic of the profile, as another draw than any that
 * made the error scales. The diagnosis must name the mutant, or say that it does not know. Prints what it does not
 * name; ends with 1 where it names others. */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "harness/discrimination_trial.h"
#include "harness/explain.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"

typedef struct tally {
    int named, unknown, wrong, passed;
} tally;

typedef struct subject {
    assay_context ctx;
    assay_case *c;
    assay_plan plan;
    char path[64];
    assay_fixture_reader *reader;
    assay_results golden, noisy; /* the golden's results; the same by a correct implementation in low precision */
    assay_trial trial;
    assay_emulation emulation;
} subject;

static void require(const subject *s, assay_status status)
{
    if (status == ASSAY_OK) return;
    fprintf(stderr, "explain_sweep: %s\n", s->ctx.message);
    exit(2);
}

static assay_context in_low_precision(const subject *s)
{
    assay_context ctx = s->ctx;
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &s->emulation;
    return ctx;
}

/* The golden's case in low precision, with the golden's choice of experts: the arithmetic of no mutant. */
static void make_noisy(subject *s)
{
    static const assay_mutant none = {.name = "none", .golden_choice = true};
    bool applies = false;
    assay_context ctx = in_low_precision(s);
    assay_results results = {0};
    require(s, assay_mutant_make(&ctx, &s->trial, &none, &results, &applies));
    s->noisy = results;
}

static void start(subject *s, const char *name, const assay_profile *profile, const char *set)
{
    int count = 0;
    char *pattern = (char *)name;
    *s = (subject){.ctx = assay_context_default(1)};
    require(s, assay_cases_find(&s->ctx, 1, &pattern, &s->c, &count));
    char profiles[64];
    snprintf(profiles, sizeof profiles, "profiles=[%s]", profile->precision.name);
    require(s, assay_case_set(&s->ctx, s->c, profiles));
    if (set != NULL) require(s, assay_case_set(&s->ctx, s->c, set));
    snprintf(s->path, sizeof s->path, "explain-sweep-%d.h5", (int)getpid());
    require(s, assay_plan_make(&s->ctx, &s->plan, s->c));
    require(s, assay_golden_write(&s->ctx, &s->plan, s->path, NULL, true));
    require(s, assay_fixture_open(&s->ctx, s->path, &s->reader));
    require(s, assay_results_load(&s->ctx, &s->golden, &s->plan, s->reader));
    s->trial = (assay_trial){.golden = &s->golden, .profile = profile, .false_alarm = 1e-6, .reader = s->reader};
    s->emulation = (assay_emulation){.precision = profile->precision,
                                     .storage = profile->storage,
                                     .multiply = profile->multiply,
                                     .seed = 20240607};
    make_noisy(s);
}

static void end(subject *s)
{
    assay_results_free(&s->noisy);
    assay_results_free(&s->golden);
    assay_fixture_close(s->reader);
    assay_plan_free(&s->plan);
    assay_cases_free(s->c, 1);
    unlink(s->path);
}

static void round_to_storage(const subject *s, assay_results *results)
{
    for (int i = 0; i < results->plan->spec_count; i++) {
        const assay_kept *kept = &results->items[i];
        if (kept->values == NULL || assay_path_is_given(kept->spec->path)) continue;
        assay_dtype_round_many(s->trial.profile->storage, kept->count, kept->values, kept->values);
    }
}

static void try_mutant(subject *s, const assay_mutant *mutant, bool verbose, tally *t)
{
    assay_context ctx = in_low_precision(s);
    assay_results results = {0};
    assay_report report = {0};
    assay_fixture_reader *candidate = NULL;
    bool applies = false, named = false;
    if (!assay_mutant_is_for(mutant, s->c->op)) return;
    assay_trial trial = s->trial;
    if (mutant->change_results != NULL) trial.golden = &s->noisy;
    require(s, assay_mutant_make(&ctx, &trial, mutant, &results, &applies));
    if (!applies) goto done;
    round_to_storage(s, &results);
    require(s, assay_trial_reader(&s->ctx, &results, "candidate", trial.profile, &candidate));
    require(s, assay_compare(&s->ctx, s->reader, candidate, trial.profile, 1e-6, &report));
    t->passed += report.verdict != ASSAY_FAIL;
    if (report.verdict != ASSAY_FAIL) goto done;
    require(s, assay_explain(&s->ctx, s->reader, candidate, trial.profile, true, &report));
    for (int i = 0; i < report.explained_count; i++) named |= strcmp(report.explained_by[i], mutant->name) == 0;
    t->named += named;
    t->unknown += report.explained_count == 0;
    t->wrong += !named && report.explained_count > 0;
    if (!named || verbose) {
        printf("%s %s %s: %s%s%s\n", !named && report.explained_count > 0 ? "WRONG  " : named ? "named  " : "unknown",
               s->c->name, mutant->name, report.explanation, report.diagnosis[0] != '\0' ? " | " : "",
               report.diagnosis);
    }
done:
    assay_report_free(&report);
    assay_fixture_close(candidate);
    assay_results_free(&results);
}

int main(int argc, char **argv)
{
    const char *profile = "bf16", *set = NULL;
    bool verbose = false;
    tally t = {0};
    for (int letter; (letter = getopt(argc, argv, "vp:s:")) != -1;) {
        if (letter == 'v') verbose = true;
        if (letter == 'p') profile = optarg;
        if (letter == 's') set = optarg;
        if (letter == '?' || assay_profile_by_name(profile) == NULL) return 2;
    }
    for (int i = optind; i < argc; i++) {
        subject s;
        start(&s, argv[i], assay_profile_by_name(profile), set);
        for (int k = 0; k < assay_mutant_count; k++) try_mutant(&s, &assay_mutants[k], verbose, &t);
        end(&s);
    }
    printf("%d candidates fail: %d named, %d not known, %d named wrongly; %d pass\n", t.named + t.unknown + t.wrong,
           t.named, t.unknown, t.wrong, t.passed);
    return t.wrong > 0;
}
