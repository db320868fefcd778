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

/* A step of a loop, which each round has (docs/programs.md, "Loops"): "w.sub" is what "w_36.sub" is in round 36. */
typedef struct loop_step {
    char name[ASSAY_STEP_NAME]; /* "": of none */
    int first;                  /* the step of the first round */
    int before;                 /* rounds */
    int rounds, apart;          /* of the first one: how many there are, and how many steps apart */
} loop_step;

enum { FEW_ROUNDS = 4 }; /* of more of them the first and the last are changed alone, and all together */

/* Without the number of its round. */
static void name_of_all(const char *name, char of_all[ASSAY_STEP_NAME])
{
    const size_t line = strcspn(name, ".");
    size_t digits = line;
    while (digits > 0 && isdigit((unsigned char)name[digits - 1])) digits--;
    of_all[0] = '\0';
    if (digits < 2 || digits == line || name[digits - 1] != '_') return;
    snprintf(of_all, ASSAY_STEP_NAME, "%.*s%s", (int)digits - 1, name, name + line);
}

static void find_loops(const graph *g, loop_step *steps)
{
    for (int i = 0; i < g->step_count; i++) {
        char name[ASSAY_STEP_NAME];
        int last = i - 1;
        assay_step_name(g, g->steps[i].out[0], name);
        name_of_all(name, steps[i].name);
        steps[i].first = i;
        steps[i].rounds = 1;
        while (last >= 0 && (strcmp(steps[last].name, steps[i].name) != 0 || g->steps[last].kind != g->steps[i].kind))
            last--;
        if (last < 0) continue;
        loop_step *first = &steps[steps[last].first];
        if (first->rounds > 1 && first->apart != i - last) steps[i].name[0] = '\0'; /* of another loop */
        if (steps[i].name[0] == '\0') continue;
        steps[i].first = steps[last].first;
        steps[i].before = first->rounds++;
        first->apart = i - last;
    }
}

/* "in h.silu (silu): another function" */
static void make(const graph *g, int number, int change, const char *name, const loop_step *all,
                 assay_step_mutant *made)
{
    const graph_step *step = &g->steps[number];
    char tensor[ASSAY_STEP_NAME], what[ASSAY_STEP_NAME];
    assay_step_name(g, step->out[0], tensor);
    if (all != NULL) memcpy(tensor, all->name, sizeof tensor);
    describe(step, what);
    snprintf(made->name, sizeof made->name, "step:%s:%.*s", tensor, (int)(sizeof made->name - 8 - strlen(tensor)),
             name);
    snprintf(made->models, sizeof made->models, "in %s (%s)%s: %s", tensor, what, all != NULL ? " of all rounds" : "",
             assay_step_change_text(change));
    made->mutant = (assay_mutant){
        .name = made->name,
        .models = made->models,
        .bugs = "",
        .step = {.how = ASSAY_STEP_CHANGED, .step = number + 1, .make = assay_change_step, .change = change},
    };
    made->mutant.step.rounds = all != NULL ? all->rounds - 1 : 0;
    made->mutant.step.apart = all != NULL ? all->apart : 0;
}

/* A form of less accuracy, whose error no data but those that fail have, or a state that is lost once, belongs to explanations. */
static bool is_wanted(int change, int64_t token)
{
    const int kind = change % ASSAY_STEP_CHANGE_COUNT, once = assay_step_change_token(change);
    const bool explains = kind == ASSAY_STEP_CHANGE_BY_TANH || kind == ASSAY_STEP_CHANGE_STATE_COARSER ||
                          kind == ASSAY_STEP_CHANGE_STORED;
    return once > 0 ? once == token : !explains || token >= 0;
}

/* made: NULL: counts them. */
static int make_all(const graph *g, const loop_step *steps, int64_t token, assay_step_mutant *made)
{
    int count = 0;
    for (int i = 0; i < g->step_count; i++) {
        const int before = steps[i].before, rounds = steps[steps[i].first].rounds;
        const bool alone = rounds <= FEW_ROUNDS || before == 0 || before == rounds - 1, all = before == 0 && rounds > 1;
        for (int change = 0; change < ASSAY_STEP_CHANGES_MOST && alone; change++) {
            graph_step changed;
            char name[ASSAY_STEP_NAME];
            if (!is_wanted(change, token) || !assay_change_step(g, i, change, &changed, name)) continue;
            if (made != NULL) make(g, i, change, name, NULL, &made[count]);
            if (made != NULL && all) make(g, i, change, name, &steps[i], &made[count + 1]);
            count += 1 + all;
        }
    }
    return count;
}

static assay_status open_list(assay_context *ctx, const assay_plan *plan, bool steps, int64_t token,
                              assay_mutant_list *list)
{
    OWNED graph *g = NULL;
    OWNED loop_step *loops = NULL;
    int count = 0;
    if (steps) {
        MUST(assay_alloc(ctx, "the graph of a case", 1, sizeof *g, &g));
        MUST(assay_operation_graph(ctx, plan->operation, plan->c, g));
        MUST(assay_alloc(ctx, "steps of loops", g->step_count, sizeof *loops, &loops));
        find_loops(g, loops);
        count = make_all(g, loops, token, NULL);
        MUST(assay_alloc(ctx, "mutants of steps", count, sizeof *list->of_steps, &list->of_steps));
        make_all(g, loops, token, list->of_steps);
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
