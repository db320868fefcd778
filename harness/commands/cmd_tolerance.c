#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/json.h"
#include "harness/commands/given_golden.h"
#include "harness/mutants/correct_run.h"
#include "harness/power/power_test.h"
#include "harness/tolerances/tolerance.h"
#include "oracle/base/memory.h"

enum { RUNS = 16 };

/* A required result, and the rule for it. */
typedef struct ruled {
    const assay_tensor *golden;
    assay_tolerance tolerance;
    int rejected; /* correct runs */
    assay_audit_statement statements[ASSAY_AUDIT_STATEMENTS];
} ruled;

typedef struct tolerances {
    const assay_options *options;
    assay_given_golden *given;
    ruled *tensors;
    int count;
    int64_t runs, accepted;
    int effective, missed, missed_by_verdict; /* mutants */
    cJSON *missed_names;
} tolerances;

static bool accepts_one(const ruled *r, const assay_tensor_set *candidate)
{
    return assay_tolerance_accepts_tensor(&r->tolerance, r->golden,
                                          assay_tensor_set_find(candidate, r->golden->spec.path));
}

static bool accepts(const tolerances *t, const assay_tensor_set *candidate)
{
    for (int i = 0; i < t->count; i++)
        if (!accepts_one(&t->tensors[i], candidate)) return false;
    return true;
}

/* A tolerance that all results share, or one of its own for each. */
static assay_status rule(assay_context *ctx, tolerances *t, const assay_tolerance *audited)
{
    const assay_given_golden *g = t->given;
    OWNED double *thresholds = NULL;
    MUST(assay_alloc_list(ctx, "tolerances", g->tensors.count, sizeof *t->tensors, &t->tensors));
    for (int i = 0; i < g->tensors.count; i++) {
        const assay_tensor *golden = &g->tensors.items[i];
        if (!assay_role_is_required(golden->spec.role)) continue;
        ruled *r = &t->tensors[t->count++];
        *r = (ruled){.golden = golden};
        if (audited != NULL) r->tolerance = *audited;
        if (golden->values == NULL) continue;
        free(thresholds);
        thresholds = NULL;
        MUST(assay_alloc_f64(ctx, "thresholds", golden->count, &thresholds));
        if (audited != NULL) {
            assay_tolerance_audit(audited, golden, thresholds, r->statements);
            continue;
        }
        MUST(assay_compare_thresholds(ctx, g->golden.reader, &g->profile, t->options->false_alarm,
                                      assay_plan_order(&g->golden.plan), golden->spec.path, thresholds));
        r->tolerance = assay_tolerance_fit(golden->count, golden->values, thresholds);
    }
    return ASSAY_OK;
}

static assay_status try_correct_runs(assay_context *ctx, tolerances *t)
{
    const assay_given_golden *g = t->given;
    for (int64_t run = 0; run < t->runs; run++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
        MUST(assay_correct_run(ctx, &g->golden.plan, &g->tensors, &g->profile, (int)run, &candidate));
        for (int i = 0; i < t->count; i++) t->tensors[i].rejected += !accepts_one(&t->tensors[i], &candidate);
        t->accepted += accepts(t, &candidate);
    }
    return ASSAY_OK;
}

static void see_mutant(void *self, const assay_tensor_set *candidate, const assay_mutant_result *result)
{
    tolerances *t = self;
    t->effective++;
    t->missed_by_verdict += result->outcome == ASSAY_MUTANT_PASSES;
    if (!accepts(t, candidate)) return;
    t->missed++;
    json_text(t->missed_names, NULL, result->mutant->name);
}

static assay_status try_mutants(assay_context *ctx, tolerances *t)
{
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    const assay_mutant_watch watch = {t, see_mutant};
    const assay_given_golden *g = t->given;
    assay_plan plan = g->golden.plan; /* a view */
    plan.watch = &watch;
    return assay_power_test_run(ctx, &plan, &g->tensors, &g->profile, t->options->false_alarm, NULL, &found);
}

/* ---- what is printed ---- */

static void print_rule(const tolerances *t, const ruled *r)
{
    const char *before = " ";
    printf("  %-44s", r->golden->spec.path);
    if (r->golden->values == NULL) {
        printf(" integers, which must be equal");
    } else if (t->options->audit == NULL) {
        printf(" %-10.2g %-10.2g", r->tolerance.atol, r->tolerance.rtol);
    }
    for (int i = 0; i < ASSAY_AUDIT_STATEMENTS; i++) { /* none of them passes where nothing is audited */
        const assay_audit_statement *s = &r->statements[i];
        if (!s->passes) continue;
        printf("%s%s", before, s->text);
        if (s->number > 0) printf(" %.3g", s->number);
        before = "; ";
    }
    printf(r->rejected > 0 ? "  rejects %d correct runs\n" : "\n", r->rejected);
}

static void print_text(const tolerances *t)
{
    const assay_given_golden *g = t->given;
    const cJSON *name = NULL;
    printf("%s  op %s, profile %s, ", g->golden.c->name, g->golden.c->op, g->profile.precision.name);
    if (t->options->audit != NULL) {
        printf("audit of %s\n", t->options->audit);
    } else {
        printf("false alarm %g\n  %-44s %-10s %-10s\n", t->options->false_alarm, "tensor", "atol", "rtol");
    }
    for (int i = 0; i < t->count; i++) print_rule(t, &t->tensors[i]);
    printf("correct runs accepted: %d of %d\n", (int)t->accepted, (int)t->runs);
    printf("mutants missed: %d of %d; by the verdict %d\n", t->missed, t->effective, t->missed_by_verdict);
    if (!t->options->verbose) return;
    cJSON_ArrayForEach(name, t->missed_names) printf("  %s\n", name->valuestring);
}

static void print_snippet(const tolerances *t)
{
    printf("# %s at %s, false alarm %g: assay %s\nTOLERANCES = {\n", t->given->golden.c->name,
           t->given->profile.precision.name, t->options->false_alarm, ASSAY_VERSION);
    for (int i = 0; i < t->count; i++) {
        const ruled *r = &t->tensors[i];
        printf("    \"%s\": dict(atol=%.2g, rtol=%.2g),\n", r->golden->spec.path, r->tolerance.atol, r->tolerance.rtol);
    }
    printf("}\n\n\ndef check(results, golden):  # golden: float64, as assay.case(...).golden(path)\n"
           "    for path, tolerance in TOLERANCES.items():\n"
           "        numpy.testing.assert_allclose(results[path], golden[path], **tolerance)\n");
}

static bool put_rule(cJSON *list, const tolerances *t, const ruled *r)
{
    cJSON *item = json_object(list, NULL);
    bool ok = json_text(item, "path", r->golden->spec.path) && json_bool(item, "integers", r->golden->values == NULL) &&
              json_number(item, "rejected", r->rejected) && json_number(item, "atol", r->tolerance.atol) &&
              json_number(item, "rtol", r->tolerance.rtol);
    if (t->options->audit == NULL || r->golden->values == NULL) return ok;
    cJSON *lets_through = ok ? json_object(item, "lets_through") : NULL;
    ok = lets_through != NULL;
    for (int i = 0; ok && i < ASSAY_AUDIT_STATEMENTS; i++) {
        const assay_audit_statement *s = &r->statements[i];
        if (!s->applies) continue;
        ok =
            s->number > 0 ? json_number(lets_through, s->name, s->number) : json_bool(lets_through, s->name, s->passes);
    }
    return ok;
}

static bool put_case(cJSON *list, const tolerances *t)
{
    const assay_given_golden *g = t->given;
    cJSON *item = json_object(list, NULL);
    bool ok = json_text(item, "case", g->golden.c->name) && json_text(item, "op", g->golden.c->op) &&
              json_text(item, "profile", g->profile.precision.name) &&
              json_number(item, "false_alarm", t->options->false_alarm) && json_number(item, "runs", (double)t->runs) &&
              json_number(item, "accepted", (double)t->accepted) && json_number(item, "mutants", t->effective) &&
              json_number(item, "missed", t->missed) && json_number(item, "missed_by_verdict", t->missed_by_verdict) &&
              (t->options->audit == NULL || json_text(item, "audit", t->options->audit));
    ok = ok && json_put(item, "missed_names", cJSON_Duplicate(t->missed_names, true));
    cJSON *tensors = ok ? json_list(item, "tensors") : NULL;
    ok = tensors != NULL;
    for (int i = 0; ok && i < t->count; i++) ok = put_rule(tensors, t, &t->tensors[i]);
    return ok;
}

/* Whether an audited rule lets zeros through, or rejects what is correct. */
static bool is_unfit(const tolerances *t)
{
    bool unfit = t->accepted < t->runs;
    for (int i = 0; t->options->audit != NULL && i < t->count; i++) unfit |= t->tensors[i].statements[0].passes;
    return unfit;
}

static assay_status work(assay_context *ctx, tolerances *t, const assay_tolerance *audited, assay_case *c,
                         const char *stored, cJSON *list, bool *unfit)
{
    assay_context own = *ctx;
    assay_given_golden given = {0};
    assay_status status;
    t->given = &given;
    t->missed_names = cJSON_CreateArray();
    TRY(assay_given_golden_open(&own, t->options, c, stored, NULL, &given));
    if (given.golden.plan.list.sketched_count > 0)
        TRY(assay_fail(&own, ASSAY_BAD_INPUT, "%s holds sketches of gradients: --set sketch_above=0", c->name));
    own.threads = given.threads;
    TRY(rule(&own, t, audited));
    TRY(try_correct_runs(&own, t));
    TRY(try_mutants(&own, t));
    if (t->options->snippet) {
        print_snippet(t);
    } else {
        print_text(t);
    }
    fflush(stdout);
    *unfit |= is_unfit(t);
    if (!put_case(list, t)) status = assay_fail(&own, ASSAY_NO_MEMORY, "no memory for the report");
cleanup:
    memcpy(ctx->message, own.message, sizeof ctx->message);
    free(t->tensors);
    cJSON_Delete(t->missed_names);
    assay_given_golden_close(&given);
    return status;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status = ASSAY_OK;
    OWNED_BY(assay_chosen_free) assay_chosen chosen = {0};
    assay_tolerance audited;
    bool unfit = false;
    if (options->audit != NULL && options->snippet)
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--snippet writes tolerances that are found, and --audit gives one");
    if (options->audit != NULL) MUST(assay_tolerance_parse(ctx, options->audit, &audited));
    MUST(assay_choose(ctx, options, ASSAY_CHOOSE_GOLDENS, &chosen));
    cJSON *root = json_document("assay-tolerances"), *list = json_list(root, "fixtures");
    if (list == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report"));
    for (int i = 0; i < chosen.count; i++) {
        tolerances t = {.options = options, .runs = options->runs > 0 ? options->runs : RUNS};
        TRY(work(ctx, &t, options->audit != NULL ? &audited : NULL, &chosen.cases[i], chosen.goldens[i], list, &unfit));
    }
    if (options->json_file != NULL) TRY(assay_command_write_json(ctx, options->json_file, root));
    *exit_code = unfit ? ASSAY_EXIT_FAIL : ASSAY_EXIT_PASS;
cleanup:
    cJSON_Delete(root);
    return status;
}

const assay_command assay_command_tolerance = {
    .name = "tolerance",
    .arguments = "CASE|GOLDEN...",
    .summary = "the smallest atol and rtol that accept correct kernels, or what given ones let through",
    .details =
        "For each result the pair that allows every element its threshold and least on average (docs/power.md),\n"
        "and how many of the known bugs the pairs miss. --audit says what one pair lets through: status 1 where\n"
        "zeros pass, or a correct run is rejected.\n",
    .options =
        ASSAY_OPT_CHOOSE | ASSAY_OPT_SET | ASSAY_OPT_PRECISION | ASSAY_OPT_JSON | ASSAY_OPT_TRUST | ASSAY_OPT_TOLERANCE,
    .least = 1,
    .most = -1,
    .run = run,
};
