#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/json.h"
#include "harness/commands/command.h"
#include "harness/fixes/fixes.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/golden_read.h"
#include "harness/power/power_test.h"

static const char *outcome_name(assay_mutant_outcome outcome)
{
    static const char *const names[] = {
#define X(code, name) name,
        ASSAY_MUTANT_OUTCOME_TABLE(X)
#undef X
    };
    return names[outcome];
}

static int count_of(const assay_power_test *found, assay_mutant_outcome outcome)
{
    int count = 0;
    for (int i = 0; i < found->mutants.count; i++) count += found->items[i].outcome == outcome;
    return count;
}

static bool is_vacuous(const assay_power_test *found)
{
    return found->power.vacuous[0] != '\0';
}

static const char *word_of(const assay_mutant_result *r)
{
    return r->equivalent ? "equivalent" : r->unshown ? "not here" : outcome_name(r->outcome);
}

static bool is_printed(const assay_mutant_result *r, bool verbose)
{
    return r->outcome != ASSAY_MUTANT_NOT_APPLICABLE || r->unshown || verbose;
}

/* Of the column of names. */
static int name_width(const assay_power_test *found, bool verbose)
{
    size_t width = 24;
    for (int i = 0; i < found->mutants.count; i++) {
        const size_t length = strlen(found->items[i].mutant->name);
        if (is_printed(&found->items[i], verbose) && length > width) width = length;
    }
    return (int)width;
}

/* One line for each mutant that applies; all of them when verbose. */
static void print_table(const assay_power_test *found, bool verbose)
{
    const bool by_stage = found->power.stated_by_stage;
    const int width = name_width(found, verbose);
    printf("\n  %-*s %-13s %-14s %-8s %-9s %s%8s %9s  %s\n", width, "mutant", "changed", "bugs", "required", "outcome",
           by_stage ? "by stage   " : "", "tensors", "excess", verbose ? "where" : "");
    for (int i = 0; i < found->mutants.count; i++) {
        const assay_mutant_result *r = &found->items[i];
        char tensors[32] = "";
        if (!is_printed(r, verbose)) continue;
        if (r->changed > 0) snprintf(tensors, sizeof tensors, "%d/%d", r->found, r->changed);
        printf("  %-*s %-13s %-14s %-8s %-9s ", width, r->mutant->name, assay_mutant_way(r->mutant), r->mutant->bugs,
               r->required ? "yes" : "", word_of(r));
        if (by_stage) printf("%-10s ", r->outcome == ASSAY_MUTANT_PASSES ? outcome_name(r->by_stage) : "");
        printf("%8s", tensors);
        if (r->changed > 0) printf(" %9.3g  %s", r->excess, verbose ? r->where : "");
        printf("\n");
    }
    printf("  tensors: that fail by themselves, of those with an effect; excess: the error over its threshold, above 1 "
           "fails\n");
    if (by_stage) printf("  by stage: of those that pass, where candidates give checkpoints (compare --staged)\n");
}

/* What other data would show; and the steps of which this shows nothing. */
static void print_unshown(const assay_power_test *found, int count)
{
    bool any = false;
    printf("without effect here, though on other inputs they have one: %d (\"not here\" above)", count);
    for (int i = 0; i < found->mutants.count; i++) {
        const char *step;
        int length;
        if (!assay_power_hides(found, i, &step, &length)) continue;
        printf("%s%.*s", any ? ", " : "; this data does not show the steps ", length, step);
        any = true;
    }
    printf("\n");
}

static void print_verdict(const char *path, const assay_power_test *found)
{
    char line[ASSAY_POWER_LINE_SIZE], equivalent[40] = "";
    int same = 0, unshown = 0;
    for (int i = 0; i < found->mutants.count; i++) {
        same += found->items[i].equivalent;
        unshown += found->items[i].unshown;
    }
    if (same > 0) snprintf(equivalent, sizeof equivalent, " %d equivalent,", same);
    assay_power_line(&found->power, line);
    if (is_vacuous(found)) {
        printf("\nVACUOUS  %s: mutant %s would pass at profile %s: a backend with this bug is not told from a correct "
               "one\n",
               path, found->power.vacuous, found->profile->precision.name);
    } else {
        printf("\nPASS  %s: every required mutant with an effect is detected at profile %s\n", path,
               found->profile->precision.name);
    }
    printf("power: %s; %d without effect,%s %d do not apply\n", line, count_of(found, ASSAY_MUTANT_NO_EFFECT),
           equivalent, count_of(found, ASSAY_MUTANT_NOT_APPLICABLE) - same - unshown);
    if (unshown > 0) print_unshown(found, unshown);
    fflush(stdout);
}

static bool put_mutant(cJSON *list, const assay_mutant_result *r)
{
    cJSON *item = json_object(list, NULL);
    return json_text(item, "name", r->mutant->name) && json_text(item, "models", r->mutant->models) &&
           json_text(item, "bugs", r->mutant->bugs) && json_text(item, "changed", assay_mutant_way(r->mutant)) &&
           json_bool(item, "required", r->required) && json_text(item, "outcome", outcome_name(r->outcome)) &&
           (!r->equivalent || json_bool(item, "equivalent", true)) &&
           (!r->unshown || json_bool(item, "without_effect_here", true)) &&
           json_text(item, "by_stage", outcome_name(r->by_stage)) && json_number(item, "tensors", r->changed) &&
           json_number(item, "tensors_failed", r->found) && json_bool(item, "fails", r->fails) &&
           json_number(item, "excess", r->excess) && json_text(item, "where", r->where);
}

static bool put_fixture(cJSON *list, const char *path, const assay_case *c, const assay_power_test *found)
{
    cJSON *fixture = json_object(list, NULL);
    bool ok = json_text(fixture, "golden", path) && json_text(fixture, "case", c->name) &&
              json_text(fixture, "op", c->op) && json_text(fixture, "profile", found->profile->precision.name) &&
              json_text(fixture, "verdict", is_vacuous(found) ? "VACUOUS" : "PASS") &&
              json_number(fixture, "effective", found->power.effective) &&
              json_number(fixture, "detected", found->power.detected);
    if (ok && found->power.stated_by_stage)
        ok = json_number(fixture, "detected_by_stage", found->power.detected_by_stage);
    cJSON *mutants = ok ? json_list(fixture, "mutants") : NULL;
    ok = mutants != NULL;
    for (int i = 0; ok && i < found->mutants.count; i++) ok = put_mutant(mutants, &found->items[i]);
    return ok;
}

/* Whatever is refused of a fixture names it. */
static assay_status name_file(assay_context *ctx, const char *path, assay_status status)
{
    char reason[ASSAY_MESSAGE_SIZE];
    if (status == ASSAY_OK || strncmp(ctx->message, path, strlen(path)) == 0) return status;
    snprintf(reason, sizeof reason, "%s", ctx->message);
    return assay_fail(ctx, status, "%.400s: %.500s", path, reason);
}

static assay_status certify(assay_context *ctx, const assay_options *options, const char *path, cJSON *fixtures,
                            bool *vacuous)
{
    assay_status status;
    assay_golden golden = {0};
    const int threads = ctx->threads;
    assay_tensor_set results = {0};
    assay_power_test found = {0};
    assay_profile profile;
    TRY(assay_golden_open(ctx, path, &golden));
    TRY(assay_command_profile(ctx, options, golden.reader, assay_dtype_name(golden.c->dtype), &profile));
    TRY(assay_golden_plan(ctx, &golden, NULL));
    golden.plan.by_stage = &assay_stages_judge;
    golden.plan.mutants_like = options->mutants_like;
    TRY(assay_plan_require_memory(ctx, &golden.plan));
    ctx->threads = assay_plan_threads(ctx, &golden.plan);
    TRY(assay_golden_load(ctx, &results, &golden.plan, golden.reader));
    TRY(assay_power_test_run(ctx, &golden.plan, &results, &profile, options->false_alarm, options->folder, &found));
    TRY(assay_power_find_unshown(ctx, &golden.plan, &results, &found));
    printf("%s  op %s, profile %s, false alarm %g\n", golden.c->name, golden.c->op, profile.precision.name,
           options->false_alarm);
    print_table(&found, options->verbose);
    print_verdict(path, &found);
    *vacuous |= is_vacuous(&found);
    if (!put_fixture(fixtures, path, golden.c, &found)) {
        status = assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
    }
cleanup:
    ctx->threads = threads;
    assay_power_test_free(&found);
    assay_tensor_set_free(&results);
    assay_golden_close(&golden);
    return name_file(ctx, path, status);
}

typedef struct powers {
    const assay_options *options;
    cJSON *fixtures;
    bool vacuous;
} powers;

/* The result: '!' where it is vacuous, else '.'; then the fixture as JSON. */
static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    assay_status status;
    const powers *p = self;
    bool vacuous = false;
    char *text = NULL;
    cJSON *list = cJSON_CreateArray();
    TRY(certify(ctx, p->options, p->options->arguments[i], list, &vacuous));
    text = cJSON_PrintUnformatted(cJSON_GetArrayItem(list, 0));
    if (text == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report"));
    fprintf(result, "%c%s", vacuous ? '!' : '.', text);
cleanup:
    free(text);
    cJSON_Delete(list);
    return status;
}

static assay_status take(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    (void)i;
    powers *p = self;
    cJSON *fixture = size < 1 ? NULL : cJSON_ParseWithLength(result + 1, size - 1);
    if (fixture == NULL || !cJSON_AddItemToArray(p->fixtures, fixture)) {
        cJSON_Delete(fixture);
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report");
    }
    p->vacuous |= result[0] == '!';
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status = ASSAY_OK;
    if (options->folder != NULL && options->argument_count > 1) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--write takes the mutants of one golden, found %d",
                          options->argument_count);
    }
    cJSON *root = json_document("assay-discrimination");
    powers p = {.options = options, .fixtures = json_list(root, "fixtures")};
    if (p.fixtures == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the report"));
    TRY(assay_each_case(
        ctx, &(assay_each){
                 .self = &p, .count = options->argument_count, .ranks = options->ranks, .work = work, .take = take}));
    if (options->json_file != NULL && assay_ranks_is_first(options->ranks))
        TRY(assay_command_write_json(ctx, options->json_file, root));
    *exit_code = p.vacuous ? ASSAY_EXIT_VACUOUS : ASSAY_EXIT_PASS;
cleanup:
    cJSON_Delete(root);
    return status;
}

const assay_command assay_command_power = {
    .name = "power",
    .arguments = "FIXTURE...",
    .summary = "which wrong backends a golden tells from correct ones: the power of its verdict",
    .details =
        "Makes the candidate that a backend with each of the known bugs would give (docs/power.md) and has the\n"
        "comparer judge it. A golden that a required one would pass is VACUOUS: status 3. -v: also the mutants that "
        "do\n"
        "not apply, and the tensor that shows it. --write FOLDER: the candidates that were judged, as files.\n",
    .options = ASSAY_OPT_PRECISION | ASSAY_OPT_JSON | ASSAY_OPT_WRITE | ASSAY_OPT_TRUST,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run,
};
