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

typedef char step_name[ASSAY_STEP_NAME];

/* Of a step of a loop (docs/programs.md, "Loops"), or of lines that are numbered by hand, without the number: "w.sub" of "w_36.sub" and
 * "w36.sub"; "" of others. */
static void name_of_all(const graph *g, int number, char of_all[ASSAY_STEP_NAME])
{
    char name[ASSAY_STEP_NAME];
    assay_step_name(g, g->steps[number].out[0], name);
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

/* One more mutant of the step: "in h.silu (silu): another function"; all: what those are called that `like` changes together; NULL: one. */
static assay_status add(assay_context *ctx, const graph *g, int number, int change, const char *name, const char *all,
                        assay_step_change like, assay_mutant_list *list)
{
    const graph_step *step = &g->steps[number];
    char tensor[ASSAY_STEP_NAME], with[ASSAY_STEP_NAME];
    MUST(assay_grow(ctx, "mutants of steps", list->count + 1, sizeof *list->of_steps, &list->of_steps));
    assay_step_mutant *made = &list->of_steps[list->count++];
    assay_step_name(g, step->out[0], tensor);
    graph_parameters_text(step, with, sizeof with);
    if (all != NULL) snprintf(tensor, sizeof tensor, "%s", all);
    snprintf(made->name, sizeof made->name, "step:%s:%.*s", tensor, (int)(sizeof made->name - 8 - strlen(tensor)),
             name);
    snprintf(made->models, sizeof made->models, "in %s (%.20s%s%.40s)%s: %s", tensor, graph_step_name(step),
             with[0] == '\0' ? "" : " ", with, all != NULL ? " and those like it" : "", assay_step_change_text(change));
    like.how = ASSAY_STEP_CHANGED;
    like.step = number + 1;
    like.make = assay_change_step;
    like.change = change;
    made->mutant = (assay_mutant){.bugs = "", .step = like};
    return ASSAY_OK;
}

/* A form of less accuracy, whose error no data but those that fail have, or a state that is lost once, belongs to explanations. */
static bool is_wanted(int change, int64_t token)
{
    const int kind = change % ASSAY_STEP_CHANGE_COUNT, once = assay_step_change_token(change);
    const bool explains = kind == ASSAY_STEP_CHANGE_BY_TANH || kind == ASSAY_STEP_CHANGE_STATE_COARSER ||
                          kind == ASSAY_STEP_CHANGE_STORED;
    return once > 0 ? once == token : !explains || token >= 0;
}

static bool is_first_of_several(const graph *g, int number, int change)
{
    int several = 0;
    graph_step changed;
    for (int i = 0; i < g->step_count; i++)
        if (assay_change_step(g, i, change, &changed, NULL) && (i < number || several++ > 0)) return i > number;
    return false;
}

static assay_status add_all(assay_context *ctx, const graph *g, const step_name *names, int64_t token,
                            assay_mutant_list *list)
{
    for (int i = 0; i < g->step_count; i++) {
        const int before = round_beside(g, names, i, -1), next = round_beside(g, names, i, 1), apart = next - i;
        const bool all =
            before == i && next != i; /* of more than three rounds the first and the last are changed alone */
        const bool alone = before == i || next == i ||
                           (round_beside(g, names, before, -1) == before && round_beside(g, names, next, 1) == next);
        assay_step_change none = {0}, rounds = {.apart = apart}, alike = {.alike = true};
        for (int at = i; all && round_beside(g, names, at, 1) == at + apart; at += apart) rounds.rounds++;
        for (int change = 0; change < ASSAY_STEP_CHANGES_MOST && alone; change++) {
            graph_step changed;
            char name[ASSAY_STEP_NAME];
            if (!is_wanted(change, token) || !assay_change_step(g, i, change, &changed, name)) continue;
            MUST(add(ctx, g, i, change, name, NULL, none, list));
            if (all) MUST(add(ctx, g, i, change, name, names[i], rounds, list));
            if (change >= ASSAY_STEP_CHANGE_OTHER_THETA && change <= ASSAY_STEP_CHANGE_NONE_AS_FIRST &&
                is_first_of_several(g, i, change))
                MUST(add(ctx, g, i, change, name, g->steps[i].kind->name, alike, list));
        }
    }
    return ASSAY_OK;
}

static assay_status open_list(assay_context *ctx, const assay_plan *plan, bool steps, int64_t token,
                              assay_mutant_list *list)
{
    OWNED graph *g = NULL;
    OWNED step_name *names = NULL;
    if (steps) {
        MUST(assay_alloc(ctx, "the graph of a case", 1, sizeof *g, &g));
        MUST(assay_operation_graph(ctx, plan->operation, plan->c, g));
        MUST(assay_alloc(ctx, "names of steps", g->step_count, sizeof *names, &names));
        for (int i = 0; i < g->step_count; i++) name_of_all(g, i, names[i]);
        MUST(add_all(ctx, g, names, token, list));
    }
    const int count = list->count;
    MUST(assay_alloc(ctx, "mutants", assay_mutant_count + count, sizeof *list->items, &list->items));
    for (int i = 0; i < assay_mutant_count; i++) list->items[i] = &assay_mutants[i];
    for (int i = 0; i < count; i++) {
        assay_step_mutant *made = &list->of_steps[i];
        made->mutant.name = made->name;
        made->mutant.models = made->models;
        list->items[assay_mutant_count + i] = &made->mutant;
    }
    list->count = assay_mutant_count + count;
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
