#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/json.h"
#include "harness/commands/command.h"
#include "harness/mutants/mutants.h"
#include "harness/plan/plan_make.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

/* The shape of the first input, or without one of the first result: what a person tells cases apart by. */
static assay_status main_shape(assay_context *ctx, const assay_case *c, char *text, size_t size)
{
    const assay_operation *operation;
    assay_tensor_list list;
    MUST(assay_operation_prepare(ctx, c, &operation, &list));
    snprintf(text, size, "?");
    if (list.count > 0) assay_shape_text(&list.entries[0].spec.shape, text, size);
    for (int i = 0; i < list.count; i++) {
        if (list.entries[i].spec.role == ASSAY_ROLE_INPUT) {
            char shape[96];
            assay_shape_text(&list.entries[i].spec.shape, shape, sizeof shape);
            snprintf(text, size, "%s %s", list.entries[i].spec.path + strlen("inputs/"), shape);
            break;
        }
    }
    assay_tensor_list_free(&list);
    return ASSAY_OK;
}

static bool add_json(cJSON *array, const assay_case *c, const char *shape)
{
    cJSON *entry = json_object(array, NULL);
    bool ok = json_text(entry, "case", c->name) && json_text(entry, "op", c->op) && json_text(entry, "shape", shape) &&
              json_text(entry, "dtype", assay_dtype_name(c->dtype)) && json_text(entry, "description", c->description);
    cJSON *tags = ok ? json_list(entry, "tags") : NULL;
    ok = tags != NULL;
    for (int i = 0; ok && i < c->tags.count; i++) ok = json_text(tags, NULL, c->tags.items[i]);
    return ok;
}

static assay_status print_json(assay_context *ctx, const assay_case *cases, int count)
{
    assay_status status = ASSAY_OK;
    cJSON *array = cJSON_CreateArray();
    char *text = NULL;
    bool ok = array != NULL;
    for (int i = 0; ok && i < count; i++) {
        char shape[128];
        TRY(main_shape(ctx, &cases[i], shape, sizeof shape));
        ok = add_json(array, &cases[i], shape);
    }
    text = ok ? cJSON_Print(array) : NULL;
    if (text == NULL) TRY(assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list as JSON"));
    puts(text);
cleanup:
    cJSON_free(text);
    cJSON_Delete(array);
    return status;
}

/* The operations that the mutant is for in any of their cases; those that must detect it have a star. */
static void print_operations_of(const assay_mutant *mutant, const assay_plan *plans, int count)
{
    for (int k = 0; assay_operations[k] != NULL; k++) {
        bool is_for = false, required = false;
        for (int i = 0; i < count; i++) {
            if (plans[i].operation != assay_operations[k] || !assay_mutant_is_for(mutant, &plans[i])) continue;
            is_for = true;
            required = required || assay_mutant_is_required(mutant, &plans[i]);
        }
        if (is_for) printf(" %s%s", assay_operations[k]->name, required ? "*" : "");
    }
}

static assay_status print_mutants(assay_context *ctx, const assay_case *cases, int count)
{
    assay_status status;
    assay_plan *plans = NULL;
    int prepared = 0;
    TRY(assay_alloc(ctx, "cases", count, sizeof *plans, &plans));
    for (; prepared < count; prepared++) {
        assay_plan *plan = &plans[prepared];
        *plan = (assay_plan){.c = &cases[prepared]};
        TRY(assay_operation_prepare(ctx, plan->c, &plan->operation, &plan->list));
    }
    for (int i = 0; i < assay_mutant_count; i++) {
        const assay_mutant *mutant = &assay_mutants[i];
        printf("%-29s %-13s %-10s %s\n%54s", mutant->name, assay_mutant_way(mutant), mutant->bugs, mutant->models, "");
        print_operations_of(mutant, plans, count);
        printf("\n");
    }
    printf("%d mutants; * must detect it\n", assay_mutant_count);
cleanup:
    for (int i = 0; i < prepared; i++) assay_tensor_list_free(&plans[i].list);
    free(plans);
    return status;
}

/* What each of a case's mutants is: of the table those for its operation, and those of its steps. */
static assay_status print_mutants_of(assay_context *ctx, const assay_case *c)
{
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
    int count = 0;
    MUST(assay_plan_make(ctx, &plan, c));
    MUST(assay_mutants_like(ctx, &plan, "*", &list));
    for (int i = 0; i < list.count; i++) {
        const assay_mutant *mutant = list.items[i];
        if (!assay_mutant_is_for(mutant, &plan)) continue;
        printf("%-40s %-13s %-10s %s\n", mutant->name, assay_mutant_way(mutant), mutant->bugs, mutant->models);
        count++;
    }
    printf("%s: %d mutants\n", c->name, count);
    return ASSAY_OK;
}

/* "rope(x, positions, theta=10000, interleave=false)" and its formula. */
static void print_step(const assay_program_step *step)
{
    char call[160];
    const bool axes_first = step->parameters[0].name != NULL && strcmp(step->parameters[0].name, "axes") == 0;
    int used = snprintf(call, sizeof call, axes_first ? "%s(\"..\"%s%s" : "%s(%s%s", step->name,
                        axes_first && step->most > 0 ? ", " : "", step->operands);
    for (const assay_program_parameter *p = step->parameters; p->name != NULL && used < (int)sizeof call; p++) {
        const bool axes = p->kind == 'a';
        if ((axes_first && p == step->parameters) || p->otherwise == ASSAY_PROGRAM_OWN) continue;
        if (p->kind == 't') {
            used += snprintf(call + used, sizeof call - (size_t)used, ", \"..\"");
            continue;
        }
        used += snprintf(call + used, sizeof call - (size_t)used, axes ? ", %s=\"..\"" : ", %s=", p->name);
        if (axes || used >= (int)sizeof call) continue;
        used += p->kind == 'f'
                    ? snprintf(call + used, sizeof call - (size_t)used, "%s", p->otherwise != 0 ? "true" : "false")
                    : snprintf(call + used, sizeof call - (size_t)used, "%g", p->otherwise);
    }
    printf("%-66s %s\n", strncat(call, ")", sizeof call - strlen(call) - 1), step->formula);
}

static void print_steps(void)
{
    for (int i = 0; i < assay_program_step_count; i++) print_step(&assay_program_steps[i]);
    printf("%d steps; docs/programs.md says how they go together\n", assay_program_step_count);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    OWNED_BY(assay_chosen_free) assay_chosen chosen = {0};
    *exit_code = ASSAY_EXIT_PASS;
    const bool of_cases = options->argument_count > 0 || assay_chooses_without_arguments(options);
    if ((options->steps && (options->mutants || of_cases)) || (options->json && (options->steps || options->mutants))) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "--%s goes alone", options->steps ? "steps" : "mutants");
    }
    if (options->steps) {
        print_steps();
        return ASSAY_OK;
    }
    MUST(assay_choose(ctx, options, ASSAY_CHOOSE_ALL, &chosen));
    if (options->mutants && !of_cases) return print_mutants(ctx, chosen.cases, chosen.count);
    for (int i = 0; i < chosen.count && options->mutants; i++) MUST(print_mutants_of(ctx, &chosen.cases[i]));
    if (options->mutants) return ASSAY_OK;
    if (options->json) {
        MUST(print_json(ctx, chosen.cases, chosen.count));
        return ASSAY_OK;
    }
    for (int i = 0; i < chosen.count; i++) {
        const assay_case *c = &chosen.cases[i];
        char shape[128];
        MUST(main_shape(ctx, c, shape, sizeof shape));
        printf("%-40s %-10s %-26s %s\n", c->name, c->op, shape, c->description);
    }
    printf("%d cases\n", chosen.count);
    return ASSAY_OK;
}

const assay_command assay_command_list = {
    .name = "list",
    .arguments = "[CASE...]",
    .summary = "the case catalogue",
    .details =
        "Each line: name, operation, first input and its shape, what it is for. With --mutants: what each of them\n"
        "changes, the bugs of docs/bugs.csv, what it models, the operations that it is for; with CASE as well: those "
        "of "
        "the\n"
        "case, and of its steps. With --steps: what programs are made of.\n",
    .options = ASSAY_OPT_LIST | ASSAY_OPT_CHOOSE,
    .least = 0,
    .most = -1,
    .run = run,
};
