#include "harness/plan/golden_open.h"

#include <string.h>

#include "harness/plan/inputs.h"

static bool is_same(const assay_random_recipe *a, const assay_random_recipe *b)
{
    const assay_fill *x = &a->fill, *y = &b->fill;
    bool same = a->seed == b->seed && x->distribution == y->distribution && x->scale == y->scale &&
                x->mean == y->mean && x->low == y->low && x->high == y->high && x->value_count == y->value_count;
    for (int64_t i = 0; same && i < x->value_count; i++) same = x->values[i] == y->values[i];
    return same;
}

/* Whether the case draws this dataset, and draws it so. */
static bool is_of_case(const assay_inputs *inputs, const assay_tensor_spec *spec, const assay_random_recipe *stored)
{
    assay_random_recipe recipe;
    const assay_tensor_entry *entry = assay_tensor_list_find(inputs->list, spec->path);
    const assay_source drawn = assay_inputs_source((assay_inputs *)(uintptr_t)inputs);
    return entry != NULL && entry->spec.type == spec->type && assay_shape_equal(&entry->spec.shape, &spec->shape) &&
           drawn.recipe(drawn.self, spec->path, &recipe) && is_same(&recipe, stored);
}

/* The root's digest covers the case, but of recipes their digests alone. So those that say what the case says are right, and
 * minutes of drawing are saved; others (of another version's case) are drawn. */
static assay_status check_recipes(assay_context *ctx, assay_golden *golden)
{
    const assay_operation *operation = NULL;
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    for (int i = 0; i < assay_fixture_count(golden->reader); i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(golden->reader, i);
        const assay_random_recipe *recipe = assay_fixture_recipe(golden->reader, spec->path);
        if (recipe == NULL) continue;
        if (operation == NULL) {
            MUST(assay_operation_prepare(ctx, golden->c, &operation, &list));
            MUST(assay_inputs_open(ctx, &inputs, golden->c, &list, NULL));
        }
        if (!is_of_case(&inputs, spec, recipe)) MUST(assay_fixture_check_recipe(ctx, golden->reader, spec->path));
    }
    return ASSAY_OK;
}

assay_status assay_golden_open(assay_context *ctx, const char *path, assay_golden *golden)
{
    assay_fixture_reader *reader = NULL;
    MUST(assay_fixture_open_golden(ctx, path, &reader));
    MUST(assay_golden_read(ctx, reader, path, golden));
    if (!ctx->trusts) MUST(check_recipes(ctx, golden));
    return ASSAY_OK;
}

void assay_golden_keep(assay_fixture_reader *reader, const assay_case *c)
{
    for (int d = 0; d < c->dtype_count; d++)
        for (int i = 0; i < assay_fixture_count(reader); i++)
            if (assay_case_keeps(c, &c->dtypes[d], assay_fixture_spec(reader, i)))
                assay_fixture_keep(reader, i, c->dtypes[d].type);
}

assay_status assay_golden_read(assay_context *ctx, assay_fixture_reader *reader, const char *path, assay_golden *golden)
{
    const char *yaml = assay_fixture_text(reader, "case_yaml");
    *golden = (assay_golden){.reader = reader};
    if (yaml == NULL) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the attribute case_yaml is missing", path);
    MUST(assay_cases_parse_stored(ctx, path, yaml, strlen(yaml), &golden->c, &golden->case_count));
    assay_golden_keep(reader, golden->c);
    return ASSAY_OK;
}

/* Weights that the golden leaves to the seed. */
static assay_status add_drawn(assay_context *ctx, assay_golden *golden)
{
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    assay_random_recipe recipe;
    const assay_plan *plan = &golden->plan;
    MUST(assay_inputs_open(ctx, &inputs, plan->c, &plan->list, NULL));
    const assay_source drawn = assay_inputs_source(&inputs);
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (!assay_is_drawn(plan->c, spec) || assay_fixture_find(golden->reader, spec->path) != NULL) continue;
        if (drawn.recipe(drawn.self, spec->path, &recipe)) {
            MUST(assay_fixture_add_recipe(ctx, golden->reader, spec, &recipe));
        }
    }
    return ASSAY_OK;
}

assay_status assay_golden_plan(assay_context *ctx, assay_golden *golden, const assay_profile *own)
{
    if (golden->plan.c != NULL) return ASSAY_OK;
    MUST(assay_plan_describe(ctx, &golden->plan, golden->c, golden->reader, own));
    return add_drawn(ctx, golden);
}

const assay_arithmetic *assay_golden_engine(const assay_golden *golden)
{
    const char *engine = assay_fixture_text(golden->reader, "engine");
    return engine == NULL ? NULL : assay_arithmetic_by_name(engine);
}

void assay_golden_close(assay_golden *golden)
{
    assay_plan_free(&golden->plan);
    assay_cases_free(golden->c, golden->case_count);
    assay_fixture_close(golden->reader);
    assay_tensor_set_free(&golden->tensors);
    *golden = (assay_golden){0};
}
