/* Changes of single steps: what a kernel computes that has one of them wrong. Every kind of step has some, which follow from what
 * it reads, what it is told and what it makes; the graph stays as it is. Mutants are made so (oracle/base/step_change.h). */
#pragma once

#include "oracle/base/step_change.h"
#include "oracle/graph/graph.h"

typedef enum assay_step_change_kind {
#define ROW(code, name, text, makes) ASSAY_STEP_CHANGE_##code,
#include "harness/mutants/rows/steps.inc"
    ASSAY_STEP_CHANGE_COUNT
} assay_step_change_kind;

enum { ASSAY_STEP_NAME = 64 };

/* What people call a tensor: what is given by its own name, what is made by that of the checkpoint or output that it is, or that it
 * goes into first: "h.silu", "h.silu2" of two. */
void assay_step_name(const graph *g, int tensor, char name[ASSAY_STEP_NAME]);

/* A change of some kinds is one of several, of inputs, axes or chunks: kind + ASSAY_STEP_CHANGE_COUNT * which, below ASSAY_STEP_CHANGES_MOST. */
enum { ASSAY_STEP_CHANGES_MOST = ASSAY_STEP_CHANGE_COUNT * GRAPH_IN * ASSAY_MAX_RANK * 2 };

/* Step `number` with such a change, as assay_step_change.make has it; false: it has none of the kind. name [ASSAY_STEP_NAME], of the
 * change: "left_out", "as_gelu", "first_reads_up"; NULL: nobody asks. */
bool assay_change_step(const graph *g, int number, int change, graph_step *changed, char *name);
assay_step_maker assay_step_held_back;       /* a token has what should come of the one before */
assay_step_maker assay_step_branch_detached; /* nothing flows back to x through branch `input` */
assay_step_maker
    assay_step_other_alpha; /* GPT-OSS's gate has `by` for 1.702; explanations try the number that the candidate has */
const char *assay_step_change_text(int change);
/* Of a state that is handed over wrongly once: behind how many tokens; 0: the change is none such. */
int assay_step_change_token(int change);
