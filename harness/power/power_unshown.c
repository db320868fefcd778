/* Which mutants of steps have no effect here, and would have one on other data. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutant_run.h"
#include "harness/plan/results.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"

/* So many other draws are tried: as the case has it, with small vectors (biases, of 0.1 at most), with large numbers, and of sizes that are drawn. */
enum { DRAWS = 6 };

/* A factor of the deviation that the case has. */
static double size_of(const assay_tensor_spec *spec, int draw, double deviation)
{
    static const double sizes[] = {0.1, 1, 10};
    if (draw == 0) return 1;
    if (draw == 1) return spec->shape.rank <= 1 ? 0.1 / fmax(deviation, 1) : 1;
    if (draw == 2) return 100;
    return sizes[assay_random_bits((uint64_t)draw, spec->path, 0) % 3];
}

/* Normals alone are of other sizes: what else is drawn may have to be in its range. What is listed stays. */
static assay_status draw_again(assay_context *ctx, const assay_plan *plan, int draw, const assay_tensor *tensor)
{
    const assay_tensor_entry *entry = assay_tensor_list_find(&plan->list, tensor->spec.path);
    const assay_case_input *rule = assay_case_input_of(plan->c, tensor->spec.path);
    assay_fill fill = rule != NULL ? rule->fill : entry->fill;
    const uint64_t seed = plan->c->seed + 1 + (uint64_t)draw;
    if (entry->derived || entry->format != NULL || fill.distribution == ASSAY_VALUES) return ASSAY_OK;
    if (fill.distribution == ASSAY_NORMAL) fill.scale *= size_of(&tensor->spec, draw, fill.scale);
    if (tensor->indices != NULL)
        return assay_random_fill_i32(ctx, &fill, seed, tensor->spec.path, &tensor->spec.shape, tensor->indices);
    return assay_random_fill(ctx, &fill, seed, tensor->spec.path, &tensor->spec.shape, tensor->spec.type, 0,
                             tensor->count, tensor->values);
}

/* The golden of other data; not *usable: it has numbers that are not finite, or is refused. */
static assay_status golden_again(assay_context *ctx, const assay_plan *plan, int draw, assay_tensor_set *set,
                                 bool *usable)
{
    for (int i = 0; i < set->count; i++) {
        if (assay_role_is_result(set->items[i].spec.role)) set->items[i].written = 0;
        if (assay_role_is_input(set->items[i].spec.role)) MUST(draw_again(ctx, plan, draw, &set->items[i]));
    }
    const assay_source numbers = assay_input_source(set);
    assay_rounded rounded = {{&numbers, NULL}, plan->c, NULL};
    const assay_source in = assay_rounded_source(&rounded);
    const assay_sink out = assay_results_sink(set);
    assay_context own = *ctx;
    *usable = assay_operation_run(&own, plan->operation, plan->c, &in, &out) == ASSAY_OK;
    for (int i = 0; i < set->count && *usable; i++)
        for (int64_t k = 0; assay_role_is_required(set->items[i].spec.role) && k < set->items[i].count; k++)
            *usable &= set->items[i].values == NULL || isfinite(set->items[i].values[k]);
    return ASSAY_OK;
}

static assay_status try_draw(assay_context *ctx, const assay_trial *t, int draw, assay_power_test *found)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set golden = {0};
    assay_trial other = *t;
    bool usable = false;
    MUST(assay_tensor_set_copy(ctx, t->golden, &golden));
    MUST(golden_again(ctx, t->plan, draw, &golden, &usable));
    other.golden = &golden;
    for (int i = 0; i < found->mutants.count && usable; i++) {
        assay_mutant_result *r = &found->items[i];
        OWNED_BY(assay_tensor_set_free) assay_tensor_set candidate = {0};
        bool applies = true;
        if (!r->equivalent) continue;
        MUST(assay_mutant_make(ctx, &other, r->mutant, &candidate, &applies));
        r->unshown = applies && !assay_power_is_same(&golden, &candidate);
        r->equivalent = !r->unshown;
    }
    return ASSAY_OK;
}

assay_status assay_power_find_unshown(assay_context *ctx, const assay_plan *plan, const assay_tensor_set *golden,
                                      assay_power_test *found)
{
    const assay_trial t = {.plan = plan, .golden = golden, .profile = found->profile};
    for (int draw = 0; draw < DRAWS && plan->list.sketched_count == 0; draw++) MUST(try_draw(ctx, &t, draw, found));
    return ASSAY_OK;
}

bool assay_power_hides(const assay_power_test *found, int mutant, const char **step, int *length)
{
    const char *name = found->mutants.items[mutant]->name;
    bool shown = false, first = true;
    if (!found->items[mutant].unshown) return false;
    const size_t size = (size_t)(strrchr(name, ':') - name) + 1;
    for (int i = 0; i < found->mutants.count; i++) {
        const assay_mutant *other = found->mutants.items[i]; /* "step:STEP:change" */
        if (!assay_mutant_is_of_step(other) || strncmp(other->name, name, size) != 0) continue;
        shown |= found->items[i].outcome != ASSAY_MUTANT_NOT_APPLICABLE;
        first &= i >= mutant || !found->items[i].unshown;
    }
    *step = name + strlen("step:");
    *length = (int)(size - strlen("step:") - 1);
    return first && !shown;
}
