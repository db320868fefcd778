/* What certification needs of a golden, in binary128: what was given, and the results as they are computed. */
#include <stdlib.h>
#include <string.h>

#include "compare/profile.h"
#include "harness/certify/certificate.h"
#include "harness/operations/operands.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"
#include "oracle/base/tensor_set.h"

void assay_certificate_inputs_free(assay_certificate_inputs *inputs)
{
    quad_tensors_free(&inputs->in);
    quad_tensors_free(&inputs->results);
    *inputs = (assay_certificate_inputs){0};
}

static assay_status copy(assay_context *ctx, const assay_tensor *from, quad_tensors *to)
{
    const char *path = from->spec.path;
    return from->indices != NULL ? quad_tensors_copy_i32(ctx, to, path, &from->spec.shape, from->indices)
                                 : quad_tensors_copy_f64(ctx, to, path, &from->spec.shape, from->values);
}

bool assay_certificate_streams(const assay_plan *plan, const assay_tensor_spec *spec)
{
    char gradient[ASSAY_PATH_SIZE];
    if (assay_case_quantises(plan->c, spec->path) || assay_shape_count(&spec->shape) < QUAD_LARGE) return false;
    assay_gradient_path(spec->path, gradient);
    return assay_operation_streams(plan->operation, plan->c, spec->path) && assay_plan_find(plan, gradient) < 0;
}

/* An input, a weight or a cotangent; of codes and scales the numbers. */
static assay_status read_given(assay_context *ctx, const assay_source *source, const assay_tensor_list *list,
                               const assay_tensor_spec *spec, quad_tensors *tensors)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set given = {0};
    const assay_tensor_entry *entry = assay_tensor_list_find(list, spec->path);
    assay_dequantised dequantised = {{source, NULL}, list};
    const assay_source numbers = assay_dequantised_source(&dequantised);
    assay_tensor_spec number = *spec;
    if (entry->part != ASSAY_OPERAND_CODES) return ASSAY_OK;
    if (entry->format != NULL) number.type = ASSAY_FLOAT64;
    MUST(assay_tensor_set_read(ctx, &given, &number, &numbers));
    return copy(ctx, &given.items[0], tensors);
}

/* Room for a result, and for its error scales. */
static assay_status add_result(assay_context *ctx, const assay_tensor_spec *spec, assay_tensor_set *results)
{
    assay_tensor_spec scale = *spec;
    MUST(assay_tensor_set_add(ctx, results, spec, NULL));
    if (!assay_has_error_scale(spec)) return ASSAY_OK;
    scale.role = ASSAY_ROLE_ERROR_SCALE;
    assay_path_at(scale.role, "f64", spec->path, scale.path);
    return assay_tensor_set_add(ctx, results, &scale, NULL);
}

/* The evaluation: with the error scales that `next` is to have, and those of f64. */
static assay_status evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                             assay_tensor_set *results, const assay_sink *next)
{
    assay_status status;
    const assay_precision *f64 = &assay_profile_by_name("f64")->precision;
    assay_tee both = {.first = assay_tensor_set_sink(results)};
    if (next != NULL) both.second = *next;
    const assay_sink sink = next != NULL ? assay_tee_sink(&both) : both.first;
    assay_plan with_f64 = *plan;
    bool there = false;
    TRY(assay_alloc(ctx, "precisions", plan->precision_count + 1, sizeof *f64, &with_f64.precisions));
    with_f64.precision_count = next == NULL ? 0 : plan->precision_count;
    for (int i = 0; i < with_f64.precision_count; i++) {
        with_f64.precisions[i] = plan->precisions[i];
        there |= strcmp(plan->precisions[i].name, f64->name) == 0;
    }
    if (!there) with_f64.precisions[with_f64.precision_count++] = *f64;
    TRY(assay_evaluate(ctx, &with_f64, source, &sink));
    TRY(assay_tensor_set_require_complete(ctx, results));
cleanup:
    free(with_f64.precisions);
    return status;
}

/* In binary128, in the place of float64; a choice is what the second form is given as well. */
static assay_status convert(assay_context *ctx, assay_tensor *result, assay_certificate_inputs *inputs)
{
    MUST(copy(ctx, result, &inputs->results));
    if (assay_path_is_choice(result->spec.path)) MUST(copy(ctx, result, &inputs->in));
    free(result->values);
    result->values = NULL;
    return ASSAY_OK;
}

assay_status assay_certificate_inputs_collect(assay_context *ctx, assay_certificate_inputs *inputs,
                                              const assay_plan *plan, const assay_source *source,
                                              const assay_sink *next)
{
    assay_status status = ASSAY_OK;
    assay_tensor_set results = {0};
    *inputs = (assay_certificate_inputs){.plan = plan, .source = *source};
    for (int i = 0; i < plan->spec_count; i++)
        if (assay_role_is_result(plan->specs[i].role)) TRY(add_result(ctx, &plan->specs[i], &results));
    TRY(evaluate(ctx, plan, source, &results, next));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (!assay_role_is_input(spec->role)) continue;
        if (assay_certificate_streams(plan, spec)) {
            TRY(quad_tensors_stream(ctx, &inputs->in, spec->path, &spec->shape, &inputs->source));
        } else {
            TRY(read_given(ctx, source, &plan->list, spec, &inputs->in));
        }
    }
    for (int i = 0; i < results.count; i++) TRY(convert(ctx, &results.items[i], inputs));
cleanup:
    assay_tensor_set_free(&results);
    if (status != ASSAY_OK) assay_certificate_inputs_free(inputs);
    return status;
}
