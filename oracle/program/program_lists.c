/* A program's memory: its lists grow as they are read. */
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/program/program_internal.h"

void assay_program_free(assay_program *p)
{
    if (p == NULL) return;
    assay_program_drop_graph(p);
    free(p->tensors);
    free(p->lines);
    free(p->nodes);
    free(p);
}

static assay_status copy_list(assay_context *ctx, const void *from, int64_t count, size_t size, void *to)
{
    void *made;
    MUST(assay_alloc(ctx, "the program", count, size, &made));
    if (count > 0) memcpy(made, from, (size_t)count * size);
    memcpy(to, &made, sizeof made);
    return ASSAY_OK;
}

assay_status assay_program_copy(assay_context *ctx, const assay_program *p, assay_program **copy)
{
    assay_status status;
    assay_program *made = NULL;
    TRY(assay_alloc(ctx, "the program", 1, sizeof *made, &made));
    *made = *p;
    made->tensors = NULL;
    made->lines = NULL;
    made->nodes = NULL;
    made->graph = NULL;
    made->node_room = p->node_count;
    TRY(copy_list(ctx, p->tensors, p->tensor_count, sizeof *p->tensors, &made->tensors));
    TRY(copy_list(ctx, p->lines, p->line_count, sizeof *p->lines, &made->lines));
    TRY(copy_list(ctx, p->nodes, p->node_count, sizeof *p->nodes, &made->nodes));
    if (p->graph != NULL) TRY(assay_program_make_graph(ctx, made));
    *copy = made;
    return ASSAY_OK;
cleanup:
    assay_program_free(made);
    return status;
}

assay_status assay_program_add_tensor(assay_context *ctx, assay_program *p, const assay_program_tensor *tensor)
{
    MUST(assay_grow(ctx, "inputs of a program", p->tensor_count + 1, sizeof *tensor, &p->tensors));
    p->tensors[p->tensor_count++] = *tensor;
    return ASSAY_OK;
}

assay_status assay_program_add_line(assay_context *ctx, assay_program *p, const assay_program_line *line)
{
    MUST(assay_grow(ctx, "steps of a program", p->line_count + 1, sizeof *line, &p->lines));
    p->lines[p->line_count++] = *line;
    return ASSAY_OK;
}
