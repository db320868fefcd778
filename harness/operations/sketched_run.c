/* An operation of a case whose large gradients are held as sketches: they stream into these, and what is seen outside is
 * the sketches' tensors. */
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/operations/operands.h"
#include "harness/operations/operation.h"
#include "harness/sketch/sketch.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"

/* Of one gradient. */
typedef struct assay_sketched {
    assay_tensor_spec spec;
    assay_sketch values;
} assay_sketched;

/* A sink before another that wants sketches: large gradients stream into these, everything else passes. */
typedef struct assay_sketching {
    assay_wrapped wrapped;
    const assay_case *c;
    assay_sketched *tensors;
    int count;
} assay_sketching;

static bool wants_sketch(const assay_sketching *s, const assay_tensor_spec *of)
{
    bool wanted = false;
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS && !wanted; component++) {
        const assay_tensor_spec spec = assay_sketch_spec(of, s->c->sketch_above, (assay_sketch_component)component);
        wanted = spec.path[0] != '\0' && assay_wants(s->wrapped.out, spec.path);
    }
    return wanted;
}

/* NULL: another tensor. */
static assay_sketched *find(const assay_sketching *s, const char *path)
{
    assay_sketched *found = NULL;
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->tensors[i].spec.path, path) == 0) found = &s->tensors[i];
    return found;
}

static bool sketching_wants(void *self, const char *path)
{
    const assay_sketching *s = self;
    const assay_sketched *t = find(s, path);
    return t == NULL ? assay_wants(s->wrapped.out, path) : wants_sketch(s, &t->spec);
}

static assay_status write_values(assay_context *ctx, const assay_sketching *s, const assay_sketched *t)
{
    for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
        const assay_tensor_spec spec =
            assay_sketch_spec(&t->spec, s->c->sketch_above, (assay_sketch_component)component);
        if (t->values.components[component] == NULL) continue;
        MUST(assay_write_result(ctx, s->wrapped.out, spec.path, t->values.sizes[component],
                                t->values.components[component]));
    }
    return ASSAY_OK;
}

/* A run in the emulated arithmetic is a kernel, which stores its gradient: what is summed is what it stored. */
static assay_status add_values(assay_context *ctx, assay_sketched *t, int64_t count, const double *values)
{
    enum { PIECE = 4096 };
    double stored[PIECE];
    if (ctx->arithmetic->round == NULL) {
        assay_sketch_add(&t->values, count, values, values);
        return ASSAY_OK;
    }
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t n = count - first < PIECE ? count - first : PIECE;
        assay_dtype_round_many(ctx->emulation->storage, n, values + first, stored);
        assay_sketch_add(&t->values, n, stored, values + first);
    }
    return ASSAY_OK;
}

static assay_status sketching_write(assay_context *ctx, void *self, const char *path, int64_t count,
                                    const double *values)
{
    const assay_sketching *s = self;
    assay_sketched *t = find(s, path);
    if (t == NULL) return s->wrapped.out->write(ctx, s->wrapped.out->self, path, count, values);
    if (count > t->values.count - t->values.position) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    MUST(add_values(ctx, t, count, values));
    return t->values.position == t->values.count ? write_values(ctx, s, t) : ASSAY_OK;
}

/* Of a sketch as a number of zeros; of others as zeros, where nobody takes a number of them. */
static assay_status sketching_write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    OWNED double *zeros = NULL;
    const assay_sketching *s = self;
    assay_sketched *t = find(s, path);
    if (t == NULL && s->wrapped.out->write_zeros != NULL)
        return s->wrapped.out->write_zeros(ctx, s->wrapped.out->self, path, count);
    if (t != NULL && count < t->values.count - t->values.position) {
        assay_sketch_add_zeros(&t->values, count);
        return ASSAY_OK;
    }
    MUST(assay_alloc_zeros(ctx, path, count, &zeros));
    return sketching_write(ctx, self, path, count, zeros);
}

static assay_status start(assay_context *ctx, const assay_sketching *s, assay_sketched *t,
                          const assay_tensor_spec *spec)
{
    t->spec = *spec;
    if (!wants_sketch(s, spec)) return ASSAY_OK;
    return assay_sketch_start(ctx, spec, s->c->sketch_above, s->c->seed, &t->values);
}

static void close_sketching(assay_sketching *s)
{
    for (int i = 0; i < s->count; i++) assay_sketch_free(&s->tensors[i].values);
    free(s->tensors);
    *s = (assay_sketching){0};
}

/* Those of list->sketched of which `out` wants a part, for results of the case. All that is given must outlive it. */
static assay_status open_sketching(assay_context *ctx, assay_sketching *s, const assay_case *c,
                                   const assay_tensor_list *list, const assay_sink *out)
{
    *s = (assay_sketching){.wrapped = {.out = out}, .c = c};
    MUST(assay_alloc_list(ctx, "the list of sketches", list->sketched_count + 1, sizeof *s->tensors, &s->tensors));
    for (int i = 0; i < list->sketched_count; i++) {
        s->count++;
        MUST(start(ctx, s, &s->tensors[i], &list->sketched[i]));
    }
    return ASSAY_OK;
}

static assay_sink sink_of(assay_sketching *s)
{
    return (assay_sink){.self = s,
                        .wants = sketching_wants,
                        .write = sketching_write,
                        .write_i32 = assay_wrapped_write_i32,
                        .write_zeros = sketching_write_zeros};
}

assay_status assay_operation_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                 const assay_source *in, const assay_sink *out)
{
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    const assay_operation *same = NULL;
    OWNED_BY(close_sketching) assay_sketching sketching = {0};
    if (c->sketch_above == 0 && c->quant_format_count == 0) return assay_operation_evaluate(ctx, operation, c, in, out);
    MUST(assay_operation_prepare(ctx, c, &same, &list));
    assay_dequantised numbers = {{in, NULL}, &list};
    const assay_source dense = assay_dequantised_source(&numbers);
    MUST(open_sketching(ctx, &sketching, c, &list, out));
    const assay_sink sink = sink_of(&sketching);
    return assay_operation_evaluate(ctx, operation, c, c->quant_format_count > 0 ? &dense : in, &sink);
}
