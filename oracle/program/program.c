#include "oracle/program/program.h"

#include <stdio.h>
#include <string.h>

static bool is_letter(char c)
{
    return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool assay_program_is_name(const char *text)
{
    if (!is_letter(text[0]) && text[0] != '_') return false;
    for (const char *c = text; *c != '\0'; c++)
        if (!is_letter(*c) && !(*c >= '0' && *c <= '9') && *c != '_') return false;
    return strlen(text) < ASSAY_PROGRAM_NAME;
}

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
