/* What certification needs of a golden, in binary128: what was given, and the results as they are computed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compare/profile.h"
#include "harness/certify/certificate.h"
#include "harness/scales/ensemble.h"
#include "oracle/base/memory.h"

enum { CHUNK = 1 << 16 }; /* elements that are converted at a time */

void assay_evidence_free(assay_evidence *evidence)
{
    spec_tensors_free(&evidence->in);
    spec_tensors_free(&evidence->results);
    free(evidence->written);
    *evidence = (assay_evidence){0};
}

/* An input, a weight or a cotangent. */
static assay_status read_given(assay_context *ctx, const assay_source *source, const assay_tensor_spec *spec,
                               spec_tensors *tensors)
{
    assay_status status;
    double *chunk = NULL;
    spec_quad *values = NULL;
    int32_t *indices = NULL;
    const int64_t total = assay_shape_count(&spec->shape);
    if (spec->type == ASSAY_INT32) {
        TRY(spec_tensors_add_indices(ctx, tensors, spec->path, &spec->shape, &indices));
        TRY(source->read_i32(ctx, source->self, spec->path, 0, total, indices));
        goto cleanup;
    }
    TRY(assay_alloc_f64(ctx, spec->path, total < CHUNK ? total : CHUNK, &chunk));
    TRY(spec_tensors_add(ctx, tensors, spec->path, &spec->shape, &values));
    for (int64_t first = 0; first < total; first += CHUNK) {
        const int64_t count = total - first < CHUNK ? total - first : CHUNK;
        TRY(source->read(ctx, source->self, spec->path, first, count, chunk));
        for (int64_t i = 0; i < count; i++) values[first + i] = chunk[i];
    }
cleanup:
    free(chunk);
    return status;
}

/* Room for a result, and for its error scales. */
static assay_status add_result(assay_context *ctx, const assay_tensor_spec *spec, spec_tensors *tensors)
{
    assay_status status;
    spec_quad *values = NULL;
    int32_t *indices = NULL;
    char path[ASSAY_PATH_SIZE];
    if (spec->type == ASSAY_INT32) return spec_tensors_add_indices(ctx, tensors, spec->path, &spec->shape, &indices);
    TRY(spec_tensors_add(ctx, tensors, spec->path, &spec->shape, &values));
    if (assay_has_error_scale(spec)) {
        assay_path_at(ASSAY_ROLE_ERROR_SCALE, "f64", spec->path, path);
        TRY(spec_tensors_add(ctx, tensors, path, &spec->shape, &values));
    }
cleanup:
    return status;
}

static bool next_wants(const assay_evidence *evidence, const char *path)
{
    return evidence->next != NULL && evidence->next->wants(evidence->next->self, path);
}

static bool evidence_wants(void *self, const char *path)
{
    const assay_evidence *evidence = self;
    return spec_tensors_find(&evidence->results, path) != NULL || next_wants(evidence, path);
}

/* Where the next `count` elements of a result go; NULL: it is not kept. */
static assay_status next_place(assay_context *ctx, assay_evidence *evidence, const char *path, int64_t count,
                               const spec_tensor **tensor, int64_t *first)
{
    *tensor = spec_tensors_find(&evidence->results, path);
    if (*tensor == NULL) return ASSAY_OK;
    int64_t *written = &evidence->written[*tensor - evidence->results.items];
    *first = *written;
    if (count > assay_shape_count(&(*tensor)->shape) - *written) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    *written += count;
    return ASSAY_OK;
}

static assay_status evidence_write(assay_context *ctx, void *self, const char *path, int64_t count,
                                   const double *values)
{
    assay_status status;
    assay_evidence *evidence = self;
    const spec_tensor *tensor = NULL;
    int64_t first = 0;
    TRY(next_place(ctx, evidence, path, count, &tensor, &first));
    for (int64_t i = 0; tensor != NULL && i < count; i++) tensor->values[first + i] = values[i];
    if (next_wants(evidence, path)) TRY(evidence->next->write(ctx, evidence->next->self, path, count, values));
cleanup:
    return status;
}

static assay_status evidence_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                       const int32_t *values)
{
    assay_status status;
    assay_evidence *evidence = self;
    const spec_tensor *tensor = NULL;
    int64_t first = 0;
    TRY(next_place(ctx, evidence, path, count, &tensor, &first));
    for (int64_t i = 0; tensor != NULL && i < count; i++) tensor->indices[first + i] = values[i];
    if (next_wants(evidence, path)) TRY(evidence->next->write_i32(ctx, evidence->next->self, path, count, values));
cleanup:
    return status;
}

/* The evaluation: with the error scales that `next` is to have, and those of f64. */
static assay_status evaluate(assay_context *ctx, assay_evidence *evidence, const assay_source *source)
{
    assay_status status;
    const assay_plan *plan = evidence->plan;
    const assay_sink sink = {
        .self = evidence, .wants = evidence_wants, .write = evidence_write, .write_i32 = evidence_write_i32};
    const assay_precision *f64 = &assay_profile_by_name("f64")->precision;
    assay_plan with_f64 = *plan;
    void *precisions = NULL;
    bool there = false;
    TRY(assay_alloc(ctx, "precisions", plan->precision_count + 1, sizeof *f64, &precisions));
    with_f64.precisions = precisions;
    with_f64.precision_count = evidence->next == NULL ? 0 : plan->precision_count;
    for (int i = 0; i < with_f64.precision_count; i++) {
        with_f64.precisions[i] = plan->precisions[i];
        there |= strcmp(plan->precisions[i].name, f64->name) == 0;
    }
    if (!there) with_f64.precisions[with_f64.precision_count++] = *f64;
    TRY(assay_evaluate(ctx, &with_f64, source, &sink));
cleanup:
    free(precisions);
    return status;
}

static assay_status check_complete(assay_context *ctx, const assay_evidence *evidence)
{
    for (int i = 0; i < evidence->results.count; i++) {
        const spec_tensor *tensor = &evidence->results.items[i];
        if (evidence->written[i] != assay_shape_count(&tensor->shape)) {
            return assay_fail(ctx, ASSAY_INTERNAL, "%s was not written in full", tensor->path);
        }
    }
    return ASSAY_OK;
}

static assay_status copy_choices(assay_context *ctx, assay_evidence *evidence)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < evidence->results.count; i++) {
        const spec_tensor *tensor = &evidence->results.items[i];
        if (!assay_path_is_choice(tensor->path)) continue;
        TRY(spec_tensors_copy_i32(ctx, &evidence->in, tensor->path, &tensor->shape, tensor->indices));
    }
cleanup:
    return status;
}

assay_status assay_evidence_collect(assay_context *ctx, assay_evidence *evidence, const assay_plan *plan,
                                    const assay_source *source, const assay_sink *next)
{
    assay_status status = ASSAY_OK;
    void *written = NULL;
    *evidence = (assay_evidence){.plan = plan, .next = next};
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        if (assay_role_is_given(spec->role)) TRY(read_given(ctx, source, spec, &evidence->in));
        if (assay_role_is_result(spec->role)) TRY(add_result(ctx, spec, &evidence->results));
    }
    TRY(assay_alloc(ctx, "list of results", evidence->results.count, sizeof *evidence->written, &written));
    evidence->written = written;
    memset(written, 0, (size_t)evidence->results.count * sizeof *evidence->written);
    TRY(evaluate(ctx, evidence, source));
    TRY(check_complete(ctx, evidence));
    TRY(copy_choices(ctx, evidence));
cleanup:
    if (status != ASSAY_OK) assay_evidence_free(evidence);
    return status;
}
