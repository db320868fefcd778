#include "harness/ensemble.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/ensemble_internal.h"
#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"

/* Operations of one run. Below the first there are more members; what propagates its error scales and is above the last
 * is not run again, and has no null distributions. */
#define SMALL_WORK 1e8
#define LARGE_WORK 1e10

static assay_status beyond_the_end(assay_context *ctx, const char *path)
{
    return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
}

/* An error scale that null distributions need: on the grid of files. */
static assay_status keep_scale(assay_context *ctx, assay_tracked *t, int precision, int64_t count, const double *values)
{
    int64_t *written = &t->scales_written[precision];
    float *to = t->scales[precision] + *written;
    if (count > t->count - *written) return beyond_the_end(ctx, t->spec->path);
    for (int64_t i = 0; i < count; i++) to[i] = (float)values[i];
    *written += count;
    return ASSAY_OK;
}

/* `path` is that of some precision's error scale of a tensor with a null distribution. */
static assay_status keep_scale_at(assay_context *ctx, const assay_ensemble *e, const char *path, int64_t count,
                                  const double *values)
{
    for (int p = 0; p < e->plan->precision_count; p++) {
        char folder[64];
        snprintf(folder, sizeof folder, "error_scale/%s", e->plan->precisions[p].name);
        if (!assay_path_in(path, folder)) continue;
        assay_tracked *t = assay_ensemble_tensor(e, path + strlen(folder) + 1);
        return t != NULL && t->scales != NULL ? keep_scale(ctx, t, p, count, values) : ASSAY_OK;
    }
    return ASSAY_OK;
}

/* The golden run: to the caller's sink, and into memory. */
static bool golden_wants(void *self, const char *path)
{
    const assay_ensemble *e = self;
    return assay_ensemble_tensor(e, path) != NULL || assay_ensemble_choice(e, path) != NULL ||
           assay_wants(e->out, path);
}

static assay_status golden_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    const assay_ensemble *e = self;
    assay_tracked *t = assay_ensemble_tensor(e, path);
    if (t != NULL) {
        if (count > t->count - t->written) return beyond_the_end(ctx, path);
        memcpy(t->golden + t->written, values, (size_t)count * sizeof *values);
        t->written += count;
    }
    assay_status status = keep_scale_at(ctx, e, path, count, values);
    RETURN_IF(status != ASSAY_OK, status);
    return assay_write_result(ctx, e->out, path, count, values);
}

static assay_status golden_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                     const int32_t *values)
{
    const assay_ensemble *e = self;
    assay_kept_choice *c = assay_ensemble_choice(e, path);
    if (c != NULL) {
        if (count > c->count - c->written) return beyond_the_end(ctx, path);
        memcpy(c->experts + c->written, values, (size_t)count * sizeof *values);
        c->written += count;
    }
    return assay_write_result_i32(ctx, e->out, path, count, values);
}

/* A member: its inputs are the golden run's and the golden run's choices; of its results only the errors are kept. */
static bool member_has(void *self, const char *path)
{
    const assay_ensemble *e = self;
    return assay_ensemble_choice(e, path) != NULL || e->in->has(e->in->self, path);
}

static assay_status member_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                double *out)
{
    const assay_ensemble *e = self;
    const assay_kept_given *given = assay_ensemble_given(e, path);
    if (given == NULL) return e->in->read(ctx, e->in->self, path, first, count, out);
    memcpy(out, given->values + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static assay_status member_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out)
{
    const assay_ensemble *e = self;
    const assay_kept_choice *c = assay_ensemble_choice(e, path);
    if (c == NULL) return e->in->read_i32(ctx, e->in->self, path, first, count, out);
    memcpy(out, c->experts + first, (size_t)count * sizeof *out);
    return ASSAY_OK;
}

static bool member_wants(void *self, const char *path)
{
    const assay_ensemble *e = self;
    const assay_tracked *t = assay_ensemble_tensor(e, path);
    return t != NULL && (e->null_profile == NULL || t->null != NULL);
}

static assay_status member_write(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    assay_tracked *t = assay_ensemble_tensor(self, path);
    const assay_ensemble *e = self;
    if (count > t->count - t->written) return beyond_the_end(ctx, path);
    if (e->null_profile != NULL) return assay_null_write(ctx, e, t, count, values);
    const double *golden = t->golden + t->written;
    double *squares = t->squares + t->written;
    for (int64_t i = 0; i < count; i++) squares[i] += (values[i] - golden[i]) * (values[i] - golden[i]);
    t->written += count;
    return ASSAY_OK;
}

static assay_status member_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                     const int32_t *values)
{
    (void)ctx, (void)self, (void)path, (void)count, (void)values;
    return ASSAY_OK; /* not reached: no integers are wanted */
}

/* After each run, so that no sum of squares lacks a member. */
static assay_status check_complete(assay_context *ctx, const assay_ensemble *e)
{
    for (int i = 0; i < e->tensor_count; i++) {
        const assay_tracked *t = &e->tensors[i];
        if (t->written != t->count && (e->null_profile == NULL || t->null != NULL)) {
            return assay_fail(ctx, ASSAY_INTERNAL, "%s was not written in full", t->spec->path);
        }
    }
    return ASSAY_OK;
}

assay_emulation assay_ensemble_member(const assay_plan *plan, const assay_precision *precision, const char *name,
                                      int number)
{
    char stream[64];
    const assay_profile *profile = assay_plan_profile(plan, precision->name);
    snprintf(stream, sizeof stream, "%s/%s", name, precision->name);
    return (assay_emulation){.precision = *precision,
                             .storage = profile->storage,
                             .multiply = profile->multiply,
                             .seed = assay_random_bits(plan->c->seed, stream, (uint64_t)number),
                             .second_form = number % 2 == 1};
}

assay_status assay_ensemble_run(assay_context *ctx, assay_ensemble *e, const assay_member *member)
{
    const assay_plan *plan = e->plan;
    const assay_source in = {.self = e, .has = member_has, .read = member_read, .read_i32 = member_read_i32};
    const assay_sink out = {.self = e, .wants = member_wants, .write = member_write, .write_i32 = member_write_i32};
    assay_emulation emulation = assay_ensemble_member(plan, member->precision, member->stream, member->number);
    assay_context emulated = *ctx;
    emulation.nearest = member->nearest;
    emulated.arithmetic = &assay_arithmetic_emulated;
    emulated.emulation = &emulation;
    for (int i = 0; i < e->tensor_count; i++) e->tensors[i].written = 0;
    assay_status status = plan->operation->run(&emulated, plan->c, &in, &out, NULL, 0);
    memcpy(ctx->message, emulated.message, sizeof ctx->message);
    return status == ASSAY_OK ? check_complete(ctx, e) : status;
}

static assay_status write_scales(assay_context *ctx, assay_ensemble *e, int p, int members)
{
    assay_status status = ASSAY_OK;
    char scale[ASSAY_PATH_SIZE];
    for (int i = 0; i < e->tensor_count; i++) {
        assay_tracked *t = &e->tensors[i];
        if (members > 0) TRY(assay_ensemble_smooth(ctx, &t->spec->shape, members, t->squares));
        for (int64_t k = 0; k < t->count; k++) t->squares[k] = isfinite(t->golden[k]) ? t->squares[k] : 0;
        assay_ensemble_scale_path(&e->plan->precisions[p], t->spec->path, scale);
        if (t->scales != NULL) TRY(keep_scale(ctx, t, p, t->count, t->squares));
        TRY(assay_write_result(ctx, e->out, scale, t->count, t->squares));
    }
cleanup:
    return status;
}

static assay_status clear_squares(assay_context *ctx, assay_ensemble *e)
{
    assay_status status = ASSAY_OK;
    for (int i = 0; i < e->tensor_count; i++) {
        assay_tracked *t = &e->tensors[i];
        if (t->squares == NULL) TRY(assay_alloc_f64(ctx, "error scale", t->count, &t->squares));
        memset(t->squares, 0, (size_t)t->count * sizeof *t->squares);
    }
cleanup:
    return status;
}

int assay_ensemble_members(const assay_plan *plan)
{
    if (assay_case_is_exact(plan->c)) return 0;
    return plan->operation->flops(plan->c, true) < SMALL_WORK ? ASSAY_MEMBERS_OF_SMALL_WORK : ASSAY_MEMBERS;
}

static bool needs_ensemble(const assay_plan *plan)
{
    return plan->operation->ensemble != NULL && plan->operation->ensemble(plan->c);
}

/* Whether the operation gives error scales of that precision itself. Propagation takes errors of different places for
 * independent, which those of truncation are not from one product to the next; and it is of first order, which errors
 * of fp8 are not. */
static bool is_propagated(const assay_plan *plan, const assay_precision *p)
{
    const bool first_order = p->scaled.block == 0 && (!p->accumulator.truncate || plan->operation->one_product);
    return first_order && !needs_ensemble(plan);
}

static bool all_are_propagated(const assay_plan *plan)
{
    bool all = !needs_ensemble(plan);
    for (int p = 0; p < plan->precision_count; p++) all &= is_propagated(plan, &plan->precisions[p]);
    return all;
}

/* The golden run, with the error scales that the operation gives itself. */
static assay_status run_golden(assay_context *ctx, assay_ensemble *e)
{
    assay_status status;
    void *memory = NULL;
    int count = 0;
    const assay_plan *plan = e->plan;
    const assay_sink golden = {.self = e, .wants = golden_wants, .write = golden_write, .write_i32 = golden_write_i32};
    TRY(assay_alloc(ctx, "precisions", plan->precision_count, sizeof *plan->precisions, &memory));
    assay_precision *propagated = memory;
    for (int p = 0; p < plan->precision_count; p++) {
        if (is_propagated(plan, &plan->precisions[p])) propagated[count++] = plan->precisions[p];
    }
    TRY(plan->operation->run(ctx, plan->c, e->in, &golden, propagated, count));
cleanup:
    free(memory);
    return status;
}

int assay_null_members(const assay_plan *plan)
{
    return needs_ensemble(plan) || plan->operation->flops(plan->c, true) <= LARGE_WORK ? assay_ensemble_members(plan)
                                                                                       : 0;
}

static bool wants_null(const assay_ensemble *e)
{
    bool wanted = false;
    const assay_tensor_list *list = &e->plan->list;
    for (int i = 0; !wanted && i < list->count; i++) {
        wanted = assay_has_error_scale(&list->entries[i].spec) && assay_null_is_wanted(e, list->entries[i].spec.path);
    }
    return wanted && assay_null_members(e->plan) > 0;
}

static assay_status evaluate_scales(assay_context *ctx, assay_ensemble *e)
{
    assay_status status = ASSAY_OK;
    const assay_plan *plan = e->plan;
    const int members = assay_ensemble_members(plan);
    for (int p = 0; e->tensor_count > 0 && p < plan->precision_count; p++) {
        if (is_propagated(plan, &plan->precisions[p])) continue;
        TRY(clear_squares(ctx, e));
        for (int number = 0; number < members; number++) {
            const assay_member member = {.precision = &plan->precisions[p], .stream = "ensemble", .number = number};
            TRY(assay_ensemble_run(ctx, e, &member));
        }
        TRY(write_scales(ctx, e, p, members));
    }
    for (int i = 0; i < e->tensor_count; i++) { /* null distributions do not need them */
        free(e->tensors[i].squares);
        e->tensors[i].squares = NULL;
    }
cleanup:
    return status;
}

static assay_status evaluate(assay_context *ctx, assay_ensemble *e)
{
    assay_status status;
    TRY(assay_ensemble_collect(ctx, e));
    TRY(run_golden(ctx, e));
    TRY(check_complete(ctx, e));
    if (e->tensor_count > 0) TRY(assay_ensemble_keep_given(ctx, e));
    TRY(evaluate_scales(ctx, e));
    if (wants_null(e)) TRY(assay_null_evaluate(ctx, e));
cleanup:
    return status;
}

assay_status assay_evaluate(assay_context *ctx, const assay_plan *plan, const assay_source *in, const assay_sink *out)
{
    assay_ensemble e = {.plan = plan, .in = in, .out = out};
    if (all_are_propagated(plan) && !wants_null(&e)) {
        return plan->operation->run(ctx, plan->c, in, out, plan->precisions, plan->precision_count);
    }
    assay_status status = evaluate(ctx, &e);
    assay_ensemble_release(&e);
    return status;
}

int64_t assay_ensemble_memory(const assay_plan *plan)
{
    double bytes = 0;
    bool null = false;
    for (int i = 0; !null && i < plan->spec_count; i++) null = assay_path_in(plan->specs[i].path, "null");
    const size_t scales = null ? (size_t)plan->precision_count * sizeof(float) : 0;
    if (all_are_propagated(plan) && !null) return 0;
    for (int i = 0; plan->precision_count > 0 && i < plan->spec_count; i++) {
        char folder[64];
        if (assay_path_is_given(plan->specs[i].path)) {
            bytes += (double)sizeof(double) * (double)assay_shape_count(&plan->specs[i].shape);
        }
        snprintf(folder, sizeof folder, "error_scale/%s", plan->precisions[0].name);
        if (!assay_path_in(plan->specs[i].path, folder)) continue;
        bytes += (double)(2 * sizeof(double) + scales) * (double)assay_shape_count(&plan->specs[i].shape);
    }
    return bytes < 0x1p61 ? (int64_t)bytes : INT64_C(1) << 61; /* whose sum with the operation's own has 64 bits */
}
