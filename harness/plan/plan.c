#include "harness/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "harness/sketch/sketch.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

const assay_profile *assay_plan_profile(const assay_plan *plan, const char *name)
{
    for (int i = 0; i < plan->own_count; i++) {
        if (strcmp(plan->own[i].precision.name, name) == 0) return &plan->own[i];
    }
    return assay_profile_by_name(name);
}

/* The type, where numbers of that grid may be rounded to it. */
static assay_dtype coarser(assay_dtype grid, assay_dtype type)
{
    return assay_dtype_unit_roundoff(type) > assay_dtype_unit_roundoff(grid) ? type : ASSAY_FLOAT64;
}

/* Whether numbers of that grid may lie beyond the type's largest or below its smallest. */
static bool is_narrower(assay_dtype type, assay_dtype grid)
{
    return assay_dtype_max(type) < assay_dtype_max(grid) ||
           assay_dtype_least_subnormal(type) > assay_dtype_least_subnormal(grid);
}

/* Of two types the one with the finer grid. */
static assay_dtype finer(assay_dtype a, assay_dtype b)
{
    return assay_dtype_unit_roundoff(a) <= assay_dtype_unit_roundoff(b) ? a : b;
}

/* Whether a product reads a tensor of that type; of other operations than programs one may. */
static bool is_multiplied(const assay_case *c, const assay_case_dtype *dtype)
{
    const assay_program *p = c->program;
    bool is = p == NULL;
    for (int i = 1; p != NULL && i < p->node_count; i++) {
        const assay_program_node *node = &p->nodes[i];
        const bool product = node->step != NULL && strstr(node->step->name, "product") != NULL;
        for (int k = 0; product && k < 2; k++) {
            const int input = p->nodes[node->in[k]].input;
            is |= input >= 0 && assay_case_dtype_matches(dtype, p->tensors[input].path);
        }
    }
    return is;
}

static assay_dtype finest_named(const assay_case *c)
{
    assay_dtype finest = c->dtype;
    for (int i = 0; i < c->dtype_count; i++)
        if (is_multiplied(c, &c->dtypes[i])) finest = finer(finest, c->dtypes[i].type);
    return finest;
}

assay_dtype assay_case_multiply(const assay_case *c, const assay_profile *profile)
{
    const bool rounds = profile->precision.multiply > 0 || coarser(c->dtype, profile->storage) != ASSAY_FLOAT64;
    if (rounds) return profile->multiply;
    return assay_case_has_codes(c) ? ASSAY_FLOAT64 : finer(profile->multiply, finest_named(c));
}

assay_precision assay_case_precision(const assay_case *c, const assay_profile *profile)
{
    assay_precision precision = profile->precision;
    precision.inputs = coarser(c->dtype, profile->storage);
    precision.inputs_beyond = precision.inputs == ASSAY_FLOAT64 && is_narrower(profile->storage, c->dtype);
    if (precision.inputs_beyond) precision.inputs = profile->storage;
    precision.router_bias = coarser(finest_named(c), profile->router);
    return precision;
}

bool assay_is_drawn(const assay_case *c, const assay_tensor_spec *spec)
{
    return c->drawn_above > 0 && spec->role == ASSAY_ROLE_WEIGHT && spec->type != ASSAY_INT32 &&
           assay_shape_count(&spec->shape) > c->drawn_above && !assay_case_quantises(c, spec->path);
}

assay_status assay_plan_add_spec(assay_context *ctx, assay_plan *plan, const assay_tensor_spec *spec)
{
    const int64_t count = assay_shape_count(&spec->shape);
    const int64_t bytes = assay_is_drawn(plan->c, spec) ? 0 : count * (int64_t)assay_dtype_size(spec->type);
    plan->specs[plan->spec_count++] = *spec;
    if (__builtin_add_overflow(plan->elements, count, &plan->elements) ||
        __builtin_add_overflow(plan->file_bytes, bytes, &plan->file_bytes)) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: its size does not fit in 64 bits", plan->c->name);
    }
    return ASSAY_OK;
}

assay_status assay_plan_select(assay_context *ctx, const assay_plan *plan,
                               bool (*keeps)(const void *self, const assay_tensor_spec *spec), const void *self,
                               assay_plan *part)
{
    *part = *plan;
    part->spec_count = 0;
    part->elements = part->file_bytes = 0;
    MUST(assay_alloc_list(ctx, "the list of datasets", plan->spec_count + 1, sizeof *part->specs, &part->specs));
    for (int i = 0; i < plan->spec_count; i++) {
        if (keeps(self, &plan->specs[i])) MUST(assay_plan_add_spec(ctx, part, &plan->specs[i]));
    }
    return ASSAY_OK;
}

void assay_plan_drop(assay_plan *plan, assay_tensor_role role)
{
    int kept = 0;
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (spec->role == role) {
            const int64_t count = assay_shape_count(&spec->shape);
            plan->elements -= count;
            plan->file_bytes -= count * (int64_t)assay_dtype_size(spec->type);
        } else {
            plan->specs[kept++] = *spec;
        }
    }
    plan->spec_count = kept;
}

void assay_plan_free(assay_plan *plan)
{
    assay_tensor_list_free(&plan->list);
    free(plan->specs);
    free(plan->precisions);
    free(plan->own);
    *plan = (assay_plan){0};
}

/* Below this many operations a team of threads costs more than it saves; the bits are the same either way. */
#define WORTH_A_TEAM 3e8

int assay_plan_threads(const assay_context *ctx, const assay_plan *plan)
{
    return assay_operation_flops(plan->operation, plan->c, true) * (1 + plan->precision_count) < WORTH_A_TEAM
               ? 1
               : ctx->threads;
}

static assay_status lawful(assay_context *ctx, const void *self, const char *path, const int32_t *values, int64_t count,
                           const assay_source *candidate)
{
    const assay_plan *plan = self;
    return plan->operation->lawful(ctx, plan->c, path, values, count, candidate);
}

assay_order assay_plan_order(const assay_plan *plan)
{
    return (assay_order){.specs = plan->specs,
                         .count = plan->spec_count,
                         .lawful = plan->operation != NULL && plan->operation->lawful != NULL ? lawful : NULL,
                         .self = plan,
                         .with_stages = plan->with_stages,
                         .only = plan->only,
                         .only_count = plan->only_count};
}

int assay_plan_find(const assay_plan *plan, const char *path)
{
    for (int i = 0; i < plan->spec_count; i++) {
        if (strcmp(plan->specs[i].path, path) == 0) return i;
    }
    return -1;
}

const assay_tensor_spec *assay_plan_asked(const assay_plan *plan, int index)
{
    char whole[ASSAY_PATH_SIZE];
    assay_sketch_component part = ASSAY_SKETCH_BLOCKS;
    const assay_tensor_spec *spec = &plan->specs[index];
    if (!assay_role_is_compared(spec->role)) return NULL;
    assay_sketch_tensor_path(spec->path, whole, &part);
    for (int i = 0; i < plan->list.sketched_count; i++) {
        if (strcmp(plan->list.sketched[i].path, whole) != 0) continue;
        return part == ASSAY_SKETCH_BLOCKS ? &plan->list.sketched[i] : NULL;
    }
    return spec;
}

bool assay_plan_is_exact(const assay_plan *plan)
{
    bool scaled = false;
    for (int p = 0; p < plan->precision_count; p++) scaled |= plan->precisions[p].scaled.block > 0;
    return assay_case_is_exact(plan->c) && !scaled;
}

bool assay_plan_scale_is_zero(const assay_plan *plan, const assay_tensor_spec *spec)
{
    return spec->role == ASSAY_ROLE_ERROR_SCALE && assay_plan_is_exact(plan);
}
