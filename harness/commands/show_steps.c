#include "harness/commands/show_steps.h"

#include <stdlib.h>
#include <string.h>

#include "fixtures/atomic_file.h"
#include "harness/judge/case_steps.h"
#include "oracle/base/memory.h"

static const char *mark_of(const assay_step_tensor *t)
{
    if (assay_role_of(t->path) == ASSAY_ROLE_OUTPUT) return "output";
    return t->checkpoint ? "checkpoint" : t->fused ? "fused" : "stored";
}

/* Of an engine the result alone is printed. */
static bool is_printed(const assay_steps *s, const assay_step_tensor *t)
{
    return t->step >= 0 && !t->of_backward && !(s->steps[t->step].engine && t->checkpoint);
}

/* "checkpoint  query_proj [2,7,3,12]" */
static void print_made(const assay_steps *s, int number, int width)
{
    int letters = 0;
    for (int t = 0; t < s->tensor_count; t++) {
        const assay_step_tensor *made = &s->tensors[t];
        if (made->step != number || !is_printed(s, made)) continue;
        if (letters == 0) printf("%-12s", mark_of(made));
        letters += printf("%s%s %s", letters > 0 ? ", " : "", made->name, made->shape);
    }
    printf("%*s", letters < width ? width - letters : 0, "");
}

/* " = scale(turned)"; what is given with its shape. */
static void print_given(const assay_steps *s, const assay_step *step)
{
    const bool named = step->kind[0] == '\0';
    int given = 0, printed = 0;
    printf(" = %s%s", step->kind, named ? "" : "(");
    for (int i = 0; i < step->in_count; i++) {
        const assay_step_tensor *in = &s->tensors[step->in[i]];
        given += in->step < 0;
        if (in->step < 0 && step->engine) continue;
        printf("%s%s", printed++ > 0 ? ", " : "", in->name);
        if (in->step < 0) printf(" %s", in->shape);
    }
    if (step->engine) printf("%s%d given", printed > 0 ? ", " : "", given);
    if (!named) printf(")");
}

static void print_step(const assay_steps *s, int number, int width)
{
    const assay_step *step = &s->steps[number];
    int results = -1; /* besides the first */
    print_made(s, number, width);
    print_given(s, step);
    if (step->with[0] != '\0') printf(", %s", step->with);
    for (int t = 0; t < s->tensor_count; t++) {
        results += s->tensors[t].step == number;
        if (s->tensors[t].step == number && s->tensors[t].of_backward) printf(", backward %s", s->tensors[t].name);
    }
    if (step->engine) printf(", %d checkpoints and outputs", results);
    if (step->operations > 0) printf(", %.10g flops", step->operations);
    printf("\n");
}

static void print_steps(const assay_plan *plan, const assay_steps *s)
{
    size_t width = 0;
    for (int t = 0; t < s->tensor_count; t++) {
        const size_t length = strlen(s->tensors[t].name) + strlen(s->tensors[t].shape) + 1;
        if (is_printed(s, &s->tensors[t]) && length > width) width = length;
    }
    printf("%s: op %s, %d steps, %.10g flops forward\n", plan->c->name, plan->c->op, s->step_count,
           assay_operation_flops(plan->operation, plan->c, false));
    for (int i = 0; i < s->step_count; i++) print_step(s, i, (int)width);
}

static assay_status write_picture(assay_context *ctx, const char *path, const assay_steps *steps)
{
    size_t size = 0;
    char *text = NULL;
    FILE *out = assay_text_open(&text, &size);
    const bool drawn = out != NULL && assay_steps_draw(out, steps, NULL, 0);
    const bool whole = out != NULL && assay_text_close(out, &text) && drawn;
    const assay_status status = whole ? assay_write_file_atomically(ctx, path, text)
                                      : assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the picture of the steps");
    free(text);
    return status;
}

assay_status assay_show_steps(assay_context *ctx, const assay_options *options, const assay_plan *plan)
{
    assay_status status;
    assay_steps *steps = NULL;
    if (!options->graph && options->svg_file == NULL) return ASSAY_OK;
    TRY(assay_case_steps(ctx, plan->c, false, &steps));
    if (options->svg_file != NULL) TRY(write_picture(ctx, options->svg_file, steps));
    if (options->graph) print_steps(plan, steps);
cleanup:
    assay_steps_free(steps);
    return status;
}
