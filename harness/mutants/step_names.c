/* What people call the tensors of a graph. */
#include <stdio.h>
#include <string.h>

#include "harness/mutants/step_changes.h"
#include "oracle/graph/graph_kind.h"

static bool is_named(const graph_tensor *t)
{
    return t->step < 0 || t->role == GRAPH_CHECKPOINT || strncmp(t->row.name, "outputs/", 8) == 0;
}

static void without_folder(const char *name, char to[ASSAY_STEP_NAME])
{
    static const char *const folders[] = {"inputs/", "weights/", "outputs/"};
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (strncmp(name, folders[i], strlen(folders[i])) == 0) name += strlen(folders[i]);
    snprintf(to, ASSAY_STEP_NAME, "%s", name);
    for (char *at = to; *at != '\0'; at++)
        if (*at == ' ' || *at == '/') *at = *at == ' ' ? '_' : '.';
}

/* "silu" of a kind that has many functions; else what the tensor is called. */
static void own_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    const graph_step *step = &g->steps[g->tensors[tensor].step];
    without_folder(step->kind->functions != NULL ? graph_step_name(step) : g->tensors[tensor].row.name, name);
}

/* What the first step that reads it makes; 0: none does. */
static int first_result_of(const graph *g, int tensor)
{
    for (int i = 0; i < g->step_count; i++)
        for (int k = 0; k < GRAPH_IN; k++)
            if (g->steps[i].in[k] == tensor) return g->steps[i].out[0];
    return 0;
}

static void plain_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    char own[ASSAY_STEP_NAME], whole[ASSAY_STEP_NAME] = "";
    if (is_named(&g->tensors[tensor])) {
        without_folder(g->tensors[tensor].row.name, name);
        return;
    }
    own_name(g, tensor, own);
    int into = first_result_of(g, tensor);
    while (into != 0 && !is_named(&g->tensors[into])) into = first_result_of(g, into);
    if (into != 0) without_folder(g->tensors[into].row.name, whole);
    snprintf(name, ASSAY_STEP_NAME, "%.40s%s%.20s", whole, into != 0 ? "." : "", own);
}

void assay_step_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME])
{
    int number = 1;
    const bool named = is_named(&g->tensors[tensor]);
    char own[ASSAY_STEP_NAME], other[ASSAY_STEP_NAME];
    plain_name(g, tensor, name);
    if (!named) own_name(g, tensor, own);
    for (int t = 1; t < tensor; t++) {
        if (is_named(&g->tensors[t]) != named) continue;
        if (!named) own_name(g, t, other); /* first, as it is cheap */
        if (!named && strcmp(own, other) != 0) continue;
        plain_name(g, t, other);
        number += strcmp(name, other) == 0;
    }
    const size_t length = strlen(name);
    if (number > 1) snprintf(name + length, ASSAY_STEP_NAME - length, "%d", number);
}
