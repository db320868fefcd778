#include "harness/plan/directions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operations of all runs of a profile, numbers that these leave, and runs: of fewer than LEAST no covariance is known. */
#define MOST_WORK 4e8
#define MOST_NUMBERS 1.2e7
enum { MOST = 256, LEAST = 96 };

bool assay_direction_covers(const assay_tensor_spec *spec)
{
    return assay_role_is_required(spec->role) && assay_has_error_scale(spec);
}

int64_t assay_direction_elements(const assay_plan *plan)
{
    int64_t elements = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        elements += assay_direction_covers(&plan->specs[i]) ? assay_shape_count(&plan->specs[i].shape) : 0;
    }
    return elements;
}

/* Codes that a kernel makes itself jump, and runs with other ones are no sample of a covariance. */
static bool has_own_codes(const assay_plan *plan)
{
    bool found = plan->c->config.quant_recipe.text[0] != '\0';
    for (int i = 0; i < plan->list.count; i++) found |= assay_path_is_hidden(plan->list.entries[i].spec.path);
    return found;
}

static bool has_null(const assay_plan *plan)
{
    bool found = false;
    for (int i = 0; !found && i < plan->spec_count; i++) found = plan->specs[i].role == ASSAY_ROLE_NULL;
    return found;
}

int assay_direction_members(const assay_plan *plan)
{
    const double elements = (double)assay_direction_elements(plan);
    if (!has_null(plan) || assay_plan_is_exact(plan) || plan->staged || elements == 0 ||
        plan->list.sketched_count > 0 || has_own_codes(plan))
        return 0;
    for (int i = 0; i < plan->spec_count; i++) {
        if (assay_is_drawn(plan->c, &plan->specs[i])) return 0;
    }
    const double by_work = MOST_WORK / assay_operation_flops(plan->operation, plan->c, true),
                 by_numbers = MOST_NUMBERS / elements;
    const double members = by_work < by_numbers ? by_work : by_numbers;
    return members >= MOST ? MOST : members >= LEAST ? (int)members : 0;
}

void assay_direction_null_path(const char *name, const char *profile, char path[ASSAY_PATH_SIZE])
{
    char folder[ASSAY_PATH_SIZE];
    snprintf(folder, sizeof folder, "%s/%s", assay_role_folders[ASSAY_ROLE_DIRECTION], name);
    assay_path_at(ASSAY_ROLE_NULL, profile, folder, path);
}

const char *assay_direction_name(const char *path, const char *profile)
{
    char prefix[ASSAY_PATH_SIZE];
    assay_direction_null_path("", profile, prefix);
    return strncmp(path, prefix, strlen(prefix)) == 0 ? path + strlen(prefix) : NULL;
}

static assay_status make_room(assay_context *ctx, assay_plan *plan, int more)
{
    assay_tensor_spec *specs = realloc(plan->specs, ((size_t)plan->spec_count + (size_t)more + 1) * sizeof *specs);
    if (specs == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of datasets");
    plan->specs = specs;
    return ASSAY_OK;
}

/* On the grid of bfloat16: of a filter no more need be known. */
assay_status assay_plan_add_direction(assay_context *ctx, assay_plan *plan, const char *profile, const char *name)
{
    const int count = plan->spec_count;
    assay_tensor_spec null = {.role = ASSAY_ROLE_NULL,
                              .type = ASSAY_FLOAT32,
                              .shape = assay_shape_of(1, (int64_t)ASSAY_NULL_COLUMNS),
                              .labels = {"column"}};
    assay_direction_null_path(name, profile, null.path);
    MUST(make_room(ctx, plan, count + 1));
    MUST(assay_plan_add_spec(ctx, plan, &null));
    for (int i = 0; i < count; i++) {
        assay_tensor_spec spec = plan->specs[i];
        if (!assay_direction_covers(&spec)) continue;
        assay_filter_path(profile, name, plan->specs[i].path, spec.path);
        if (!assay_path_ends(spec.path, plan->specs[i].path))
            return assay_fail(ctx, ASSAY_INTERNAL, "%s: path too long", plan->specs[i].path);
        spec.role = ASSAY_ROLE_DIRECTION;
        spec.type = ASSAY_BFLOAT16;
        MUST(assay_plan_add_spec(ctx, plan, &spec));
    }
    return ASSAY_OK;
}

assay_status assay_plan_add_directions(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *golden)
{
    const int count = golden == NULL || plan->staged ? 0 : assay_fixture_count(golden);
    for (int p = 0; p < plan->precision_count; p++) {
        for (int i = 0; i < count; i++) {
            const char *profile = plan->precisions[p].name;
            const char *name = assay_direction_name(assay_fixture_spec(golden, i)->path, profile);
            if (name != NULL) MUST(assay_plan_add_direction(ctx, plan, profile, name));
        }
    }
    return ASSAY_OK;
}

bool assay_plan_has_directions(const assay_plan *plan)
{
    bool any = false;
    for (int i = 0; i < plan->spec_count; i++) any |= plan->specs[i].role == ASSAY_ROLE_DIRECTION;
    return any;
}

static bool is_of_no_filter(const void *self, const assay_tensor_spec *spec)
{
    const assay_plan *plan = self;
    bool found = spec->role == ASSAY_ROLE_DIRECTION;
    for (int p = 0; p < plan->precision_count; p++)
        found |= assay_direction_name(spec->path, plan->precisions[p].name) != NULL;
    return !found;
}

assay_status assay_plan_without_directions(assay_context *ctx, const assay_plan *plan, assay_plan *without)
{
    return assay_plan_part(ctx, plan, is_of_no_filter, plan, without);
}
