#include "harness/operations/op_work.h"

#include "harness/operations/op_block.h"

/* Reads what there is of all that the operation is given, and has room for its results. */
static assay_status open_work(assay_context *ctx, assay_work *w, const assay_operation *operation)
{
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    MUST(assay_operation_describe(ctx, operation, w->c, w->config, &list));
    for (int i = 0; i < list.count; i++) {
        const assay_tensor_spec *spec = &list.entries[i].spec;
        MUST(assay_role_is_input(spec->role) ? assay_tensor_set_read(ctx, &w->tensors, spec, w->in)
                                             : assay_tensor_set_add(ctx, &w->tensors, spec, NULL));
    }
    return ASSAY_OK;
}

static void close_work(assay_work *w)
{
    assay_tensor_set_free(&w->tensors);
}

double *assay_f64(const assay_work *w, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(&w->tensors, path);
    return tensor == NULL ? NULL : tensor->values;
}

int32_t *assay_i32(const assay_work *w, const char *path)
{
    const assay_tensor *tensor = assay_tensor_set_find(&w->tensors, path);
    return tensor == NULL ? NULL : tensor->indices;
}

static assay_status write_results(assay_context *ctx, const assay_work *w)
{
    for (int i = 0; i < w->tensors.count; i++) {
        const assay_tensor *t = &w->tensors.items[i];
        if (assay_role_is_input(t->spec.role)) continue;
        MUST(t->indices != NULL ? assay_write_result_i32(ctx, w->out, t->spec.path, t->count, t->indices)
                                : assay_write_result(ctx, w->out, t->spec.path, t->count, t->values));
    }
    return ASSAY_OK;
}

assay_status assay_work_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                            const void *config, const assay_source *in, const assay_sink *out)
{
    OWNED_BY(close_work) assay_work w = {.c = c, .config = config, .in = in, .out = out};
    MUST(open_work(ctx, &w, operation));
    MUST(operation->compute(ctx, &w));
    return write_results(ctx, &w);
}

/* All tensors twice, they and what functions keep; by a recipe codes, scales and numbers of operands besides. More than any machine
 * has where there is no memory for the list itself. */
int64_t assay_work_memory(const assay_operation *operation, const assay_case *c, const void *config)
{
    assay_context ctx = {0};
    assay_tensor_list list = {0};
    const double copies = c->config.quant_recipe.text[0] != '\0' ? 6 : 2;
    double numbers = assay_operation_describe(&ctx, operation, c, config, &list) == ASSAY_OK ? 0 : 0x1p57;
    for (int i = 0; i < list.count; i++) numbers += (double)assay_shape_count(&list.entries[i].spec.shape);
    assay_tensor_list_free(&list);
    return numbers < 0x1p57 ? (int64_t)(8 * copies * numbers) : INT64_C(1) << 61;
}
