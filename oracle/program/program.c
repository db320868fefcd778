#include <stdio.h>
#include <string.h>

#include "oracle/program/program.h"

const assay_program_tensor *assay_program_find(const assay_program *p, const char *name)
{
    for (int i = 0; i < p->tensor_count; i++)
        if (strcmp(p->tensors[i].name, name) == 0) return &p->tensors[i];
    return NULL;
}

void assay_program_call(assay_program_tensor *tensor, const char *name, bool weight)
{
    char copy[ASSAY_PROGRAM_NAME];
    snprintf(copy, sizeof copy, "%s", name);
    memcpy(tensor->name, copy, sizeof copy);
    tensor->weight = weight;
    snprintf(tensor->path, sizeof tensor->path, "%s/%s", weight ? "weights" : "inputs", copy);
}

static int parameter_place(const assay_program_step *step, const char *name)
{
    int i = 0;
    while (step->parameters[i].name != NULL && strcmp(step->parameters[i].name, name) != 0) i++;
    return i;
}

double assay_program_number(const assay_program_node *node, const char *parameter)
{
    return node->values[parameter_place(node->step, parameter)].number;
}

const char *assay_program_axes(const assay_program_node *node, const char *parameter)
{
    return node->values[parameter_place(node->step, parameter)].text;
}
