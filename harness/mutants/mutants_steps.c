/* Mutants made from the steps of a case's graph. */
#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/mutants/mutants.h"
#include "harness/mutants/step_changes.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"

bool assay_mutant_is_of_step(const assay_mutant *mutant)
{
    return mutant->step.step > 0;
}

/* "silu", "softmax over D" */
static void describe(const graph_step *step, char text[ASSAY_STEP_NAME])
{
    char with[ASSAY_STEP_NAME];
    graph_parameters_text(step, with, sizeof with);
    snprintf(text, ASSAY_STEP_NAME, "%.20s%s%.40s", graph_step_name(step), with[0] == '\0' ? "" : " ", with);
}

typedef char step_name[ASSAY_STEP_NAME];

/* Of a step of a loop (docs/programs.md, "Loops"), or of lines that are numbered by hand, without the number: "w.sub" of "w_36.sub" and
 * "w36.sub"; "" of others. */
static void name_of_all(const char *name, char of_all[ASSAY_STEP_NAME])
{
    const size_t line = strcspn(name, ".");
    size_t end = line;
    while (end > 0 && isdigit((unsigned char)name[end - 1])) end--;
    const bool numbered = end > 0 && end < line;
    if (numbered && end > 1 && name[end - 1] == '_') end--;
    snprintf(of_all, ASSAY_STEP_NAME, "%.*s%s", numbered ? (int)end : 0, name, numbered ? name + line : "");
}

/* The same step in the round before (by -1) or behind (1); itself: there is none. */
static int round_beside(const graph *g, const step_name *names, int number, int by)
{
    for (int i = number + by; i >= 0 && i < g->step_count && names[number][0] != '\0'; i += by)
        if (strcmp(names[i], names[number]) == 0 && g->steps[i].kind == g->steps[number].kind) return i;
    return number;
}

/* "in h.silu (silu): another function" */
static void make(const graph *g, int number, int change, const char *name, const char *all, assay_step_mutant *made)
{
    const graph_step *step = &g->steps[number];
    char tensor[ASSAY_STEP_NAME], what[ASSAY_STEP_NAME];
    assay_step_name(g, step->out[0], tensor);
    describe(step, what);
    if (all != NULL) snprintf(tensor, sizeof tensor, "%s", all);
    snprintf(made->name, sizeof made->name, "step:%s:%.*s", tensor, (int)(sizeof made->name - 8 - strlen(tensor)),
             name);
    snprintf(made->models, sizeof made->models, "in %s (%s)%s: %s", tensor, what,
             all != NULL ? " and those like it" : "", assay_step_change_text(change));
    made->mutant = (assay_mutant){
        .name = made->name,
        .models = made->models,
        .bugs = "",
        .step = {.how = ASSAY_STEP_CHANGED, .step = number + 1, .make = assay_change_step, .change = change},
    };
}

/* A form of less accuracy, whose error no data but those that fail have, or a state that is lost once, belongs to explanations. */
static bool is_wanted(int change, int64_t token)
{
    const int kind = change % ASSAY_STEP_CHANGE_COUNT, once = assay_step_change_token(change);
    const bool explains = kind == ASSAY_STEP_CHANGE_BY_TANH || kind == ASSAY_STEP_CHANGE_STATE_COARSER ||
                          kind == ASSAY_STEP_CHANGE_STORED;
    return once > 0 ? once == token : !explains || token >= 0;
}

static bool is_first_of_several(const graph *g, int number)
{
    int several = 0;
    for (int i = 0; i < g->step_count; i++)
        if (g->steps[i].kind == g->steps[number].kind && (i < number || several++ > 0)) return i > number;
    return false;
}

/* made: NULL: counts them. */
static int make_all(const graph *g, const step_name *names, int64_t token, assay_step_mutant *made)
{
    int count = 0;
    for (int i = 0; i < g->step_count; i++) {
        const int before = round_beside(g, names, i, -1), next = round_beside(g, names, i, 1), apart = next - i;
        const bool all =
            before == i && next != i; /* of more than three rounds the first and the last are changed alone */
        const bool alone = before == i || next == i ||
                           (round_beside(g, names, before, -1) == before && round_beside(g, names, next, 1) == next);
        int more = 0;
        for (int at = i; all && round_beside(g, names, at, 1) == at + apart; at += apart) more++;
        for (int change = 0; change < ASSAY_STEP_CHANGES_MOST && alone; change++) {
            graph_step changed;
            char name[ASSAY_STEP_NAME];
            if (!is_wanted(change, token) || !assay_change_step(g, i, change, &changed, name)) continue;
            if (made != NULL) make(g, i, change, name, NULL, &made[count]);
            if (made != NULL && all) make(g, i, change, name, names[i], &made[count + 1]);
            if (made != NULL && all) made[count + 1].mutant.step.rounds = more;
            if (made != NULL && all) made[count + 1].mutant.step.apart = apart;
            count += 1 + all;
            const bool turns = change == ASSAY_STEP_CHANGE_OTHER_PAIRS || change == ASSAY_STEP_CHANGE_OTHER_THETA;
            if (!turns || !is_first_of_several(g, i)) continue;
            if (made != NULL) make(g, i, change, name, g->steps[i].kind->name, &made[count]);
            if (made != NULL) made[count].mutant.step.alike = true;
            count++;
        }
    }
    return count;
}

static assay_status open_list(assay_context *ctx, const assay_plan *plan, bool steps, int64_t token,
                              assay_mutant_list *list)
{
    OWNED graph *g = NULL;
    OWNED step_name *names = NULL;
    int count = 0;
    if (steps) {
        MUST(assay_alloc(ctx, "the graph of a case", 1, sizeof *g, &g));
        MUST(assay_operation_graph(ctx, plan->operation, plan->c, g));
        MUST(assay_alloc(ctx, "names of steps", g->step_count, sizeof *names, &names));
        for (int i = 0; i < g->step_count; i++) {
            char name[ASSAY_STEP_NAME];
            assay_step_name(g, g->steps[i].out[0], name);
            name_of_all(name, names[i]);
        }
        count = make_all(g, names, token, NULL);
        MUST(assay_alloc(ctx, "mutants of steps", count, sizeof *list->of_steps, &list->of_steps));
        make_all(g, names, token, list->of_steps);
    }
    MUST(assay_alloc(ctx, "mutants", assay_mutant_count + count, sizeof *list->items, &list->items));
    for (int i = 0; i < assay_mutant_count; i++) list->items[list->count++] = &assay_mutants[i];
    for (int i = 0; i < count; i++) list->items[list->count++] = &list->of_steps[i].mutant;
    return ASSAY_OK;
}

assay_status assay_mutants_of(assay_context *ctx, const assay_plan *plan, int64_t token, assay_mutant_list *list)
{
    return open_list(ctx, plan, plan->operation->graph != NULL && plan->operation->components == 0, token, list);
}

assay_status assay_mutants_like(assay_context *ctx, const assay_plan *plan, const char *pattern,
                                assay_mutant_list *list)
{
    int count = 0;
    MUST(open_list(ctx, plan, plan->operation->graph != NULL, 0, list));
    for (int i = 0; i < list->count; i++)
        if (fnmatch(pattern, list->items[i]->name, 0) == 0) list->items[count++] = list->items[i];
    list->count = count;
    return count > 0 ? ASSAY_OK : assay_fail(ctx, ASSAY_BAD_INPUT, "no mutant is called %s", pattern);
}

void assay_mutant_list_free(assay_mutant_list *list)
{
    free(list->items);
    free(list->of_steps);
    *list = (assay_mutant_list){0};
}

int assay_mutant_place(const assay_mutant_list *list, const char *name)
{
    for (int i = 0; i < list->count; i++)
        if (strcmp(list->items[i]->name, name) == 0) return i;
    return -1;
}
