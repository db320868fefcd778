/* A case as steps, for people: what each is given and makes. Who knows the operations puts it down
 * (harness/judge/case_steps.h); here it is drawn, with a report's verdicts on the tensors. */
#pragma once

#include <stdio.h>

#include "compare/compare.h"

enum { ASSAY_STEP_IN = 28 };

typedef struct assay_step_tensor {
    char name[ASSAY_PATH_SIZE], shape[96];
    char path[ASSAY_PATH_SIZE]; /* whose verdict it shows: its own, or of what is given its gradient's; "": none */
    int step;                   /* that makes it; -1: it is given */
    bool checkpoint;            /* the contract has it, as a checkpoint or an output */
    bool fused;                 /* a correct kernel keeps it in registers */
    bool of_backward;           /* the step makes it on the way back */
} assay_step_tensor;

typedef struct assay_step {
    char kind[64]; /* "": it gives what it is given another name */
    char with[96]; /* "epsilon 1e-06"; "" */
    bool engine;   /* it stands for steps that nobody has written down */
    double operations;
    int in[ASSAY_STEP_IN], in_count; /* tensors */
} assay_step;

/* In the order of the data flow. */
typedef struct assay_steps {
    int step_count, tensor_count;
    assay_step *steps;
    assay_step_tensor *tensors;
} assay_steps;

void assay_steps_free(assay_steps *steps); /* NULL: nothing */
bool assay_steps_show(const assay_steps *steps, const char *path);
/* As SVG, a row of boxes for each depth of the data flow, downwards. report: verdicts give the colours, and lead to the
 * tensors of the page's report `number`; NULL: no colours. False: memory ran out. */
bool assay_steps_draw(FILE *out, const assay_steps *steps, const assay_report *report, int number);
