#include "harness/plan/directions.h"

#include <stdio.h>
#include <string.h>

/* Operations of a run, and elements of outputs and gradients, up to which the runs of a filter are cheap. */
#define MOST_WORK 2e6
#define MOST_ELEMENTS 1e4

/* Another base of the frequencies lies along it too, on the other side. */
const assay_direction assay_directions[] = {{"rope_type", assay_change_rope_type}};
const int assay_direction_count = sizeof assay_directions / sizeof *assay_directions;
_Static_assert(sizeof assay_directions / sizeof *assay_directions <= ASSAY_MOST_DIRECTIONS,
               "a report has room for them");

/* The layout of the pairs goes by the type, but is no part of this error. */
bool assay_change_rope_type(assay_case *c)
{
    assay_text *type = &c->config.rope_type;
    c->config.given[ASSAY_KEY_AT_rope_interleave] = true;
    snprintf(type->text, sizeof type->text, "%s", strcmp(type->text, "yarn") == 0 ? "default" : "yarn");
    return true;
}

bool assay_direction_apply(const assay_direction *direction, const assay_case *c, assay_case *changed)
{
    *changed = *c;
    assay_model_forget_given(&changed->config); /* an error does not ask what the family honours */
    return direction->change(changed);
}

void assay_direction_null_path(const assay_direction *direction, const char *profile, char path[ASSAY_PATH_SIZE])
{
    char name[ASSAY_PATH_SIZE];
    snprintf(name, sizeof name, "%s/%s", assay_role_folders[ASSAY_ROLE_DIRECTION], direction->name);
    assay_path_at(ASSAY_ROLE_NULL, profile, name, path);
}

/* Whether the operation has the case with the error. */
static bool can_be_made(const assay_context *ctx, const assay_plan *plan, const assay_direction *direction)
{
    assay_case changed;
    assay_context own = *ctx; /* a refusal is no error here */
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    const bool made = assay_direction_apply(direction, plan->c, &changed) &&
                      assay_operation_prepare(&own, &changed, &operation, &list) == ASSAY_OK;
    assay_tensor_list_free(&list);
    return made;
}

static bool has_filter(const assay_tensor_spec *spec)
{
    return assay_role_is_required(spec->role) && assay_has_error_scale(spec);
}

static bool is_cheap(const assay_plan *plan)
{
    double elements = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        elements += has_filter(&plan->specs[i]) ? (double)assay_shape_count(&plan->specs[i].shape) : 0;
    }
    return plan->operation->flops(plan->c, true) <= MOST_WORK && elements <= MOST_ELEMENTS;
}

/* Of a rope alone other statistics find the error. In a layer it is lost among the roundings of experts and norms. */
static bool is_for(const assay_context *ctx, const assay_plan *plan, const assay_direction *direction)
{
    const unsigned needed = ASSAY_PART_ROPE | ASSAY_PART_ATTENTION, parts = plan->operation->parts;
    const bool compared = plan->null_left_out[0] == '\0' && !assay_plan_is_exact(plan) && !plan->staged;
    return compared && (parts & needed) == needed && (parts & ASSAY_PART_LAYER) == 0 &&
           plan->list.sketched_count == 0 && is_cheap(plan) && can_be_made(ctx, plan, direction);
}

/* At finer types the error is found without, and blocks of fp8 round too much. */
static bool stores_bfloat16(const assay_plan *plan, const assay_precision *precision)
{
    return assay_plan_profile(plan, precision->name)->storage == ASSAY_BFLOAT16 && precision->scaled.block == 0;
}

/* On the grid of bfloat16: of a filter no more need be known. */
static assay_status add_filter(assay_context *ctx, assay_plan *plan, const char *profile,
                               const assay_direction *direction)
{
    assay_status status = ASSAY_OK;
    assay_tensor_spec null = {.role = ASSAY_ROLE_NULL,
                              .type = ASSAY_FLOAT32,
                              .shape = assay_shape_of(1, (int64_t)ASSAY_NULL_COLUMNS),
                              .labels = {"column"}};
    assay_direction_null_path(direction, profile, null.path);
    TRY(assay_plan_add_spec(ctx, plan, &null));
    for (int i = 0; i < plan->spec_count; i++) {
        const char *of = plan->specs[i].path;
        assay_tensor_spec spec = plan->specs[i];
        if (!has_filter(&spec)) continue;
        assay_filter_path(profile, direction->name, of, spec.path);
        if (!assay_path_ends(spec.path, of)) return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", of);
        spec.role = ASSAY_ROLE_DIRECTION;
        spec.type = ASSAY_BFLOAT16;
        TRY(assay_plan_add_spec(ctx, plan, &spec));
    }
cleanup:
    return status;
}

assay_status assay_plan_add_directions(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden)
{
    assay_status status = ASSAY_OK;
    if (golden != NULL && !assay_fixture_has(golden, ASSAY_ROLE_DIRECTION)) return ASSAY_OK;
    for (int i = 0; i < assay_direction_count; i++) {
        if (!is_for(ctx, plan, &assay_directions[i])) continue;
        for (int p = 0; p < plan->precision_count; p++) {
            if (!stores_bfloat16(plan, &plan->precisions[p])) continue;
            TRY(add_filter(ctx, plan, plan->precisions[p].name, &assay_directions[i]));
        }
    }
cleanup:
    return status;
}
