/* An operation of a case whose large gradients are held as sketches: they stream into these, and what is seen outside is
 * the sketches' tensors and their error scales. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "harness/operations/operands.h"
#include "harness/operations/operation.h"
#include "harness/sketch/sketch.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/emulated.h"
#include "oracle/base/memory.h"

/* Of one gradient. The errors of its elements are taken to be independent: random signs make them so. */
typedef struct assay_sketched {
    assay_tensor_spec spec;
    assay_sketch values;
    assay_sketch energy;  /* squares of the values: what rounding them to storage adds to the errors of sums */
    assay_sketch *scales; /* squares of the error scales, for each precision */
} assay_sketched;

/* A sink before another that wants sketches: large gradients, and their error scales, stream into these, everything else
 * passes. */
typedef struct assay_sketching {
    const assay_case *c;
    const assay_sink *out;
    const assay_precision *precisions; /* whose error scales come */
    int precision_count;
    assay_sketched *tensors;
    int count;
} assay_sketching;

static bool wants_part(const assay_sketching *s, const assay_tensor_spec *of, const char *profile)
{
    bool wanted = false;
    char path[ASSAY_PATH_SIZE];
    for (int part = 0; part < ASSAY_SKETCH_PARTS && !wanted; part++) {
        const assay_tensor_spec spec = assay_sketch_spec(of, s->c->sketch_above, (assay_sketch_part)part);
        if (spec.path[0] == '\0') continue;
        if (profile != NULL) assay_path_at(ASSAY_ROLE_ERROR_SCALE, profile, spec.path, path);
        wanted = assay_wants(s->out, profile != NULL ? path : spec.path);
    }
    return wanted;
}

/* Error scales of sums take the values too. */
static bool wants_values(const assay_sketching *s, const assay_tensor_spec *of)
{
    bool wanted = wants_part(s, of, NULL);
    for (int p = 0; p < s->precision_count && !wanted; p++) wanted = wants_part(s, of, s->precisions[p].name);
    return wanted;
}

/* The sketched tensor that a path is of; *precision is -1 for its values. NULL: another tensor. */
static assay_sketched *find(const assay_sketching *s, const char *path, int *precision)
{
    char scale[ASSAY_PATH_SIZE];
    for (int i = 0; i < s->count; i++) {
        assay_sketched *t = &s->tensors[i];
        *precision = -1;
        if (strcmp(t->spec.path, path) == 0) return t;
        for (int p = 0; p < s->precision_count; p++) {
            *precision = p;
            assay_path_at(ASSAY_ROLE_ERROR_SCALE, s->precisions[p].name, t->spec.path, scale);
            if (strcmp(scale, path) == 0) return t;
        }
    }
    return NULL;
}

static bool sketching_wants(void *self, const char *path)
{
    int precision;
    const assay_sketching *s = self;
    const assay_sketched *t = find(s, path, &precision);
    if (t == NULL) return assay_wants(s->out, path);
    return precision < 0 ? wants_values(s, &t->spec) : wants_part(s, &t->spec, s->precisions[precision].name);
}

static assay_status write_values(assay_context *ctx, const assay_sketching *s, const assay_sketched *t)
{
    for (int part = 0; part < ASSAY_SKETCH_PARTS; part++) {
        const assay_tensor_spec spec = assay_sketch_spec(&t->spec, s->c->sketch_above, (assay_sketch_part)part);
        if (t->values.parts[part] == NULL) continue;
        MUST(assay_write_result(ctx, s->out, spec.path, t->values.sizes[part], t->values.parts[part]));
    }
    return ASSAY_OK;
}

/* A sum's error is that of its elements and of their storage; a judge allows for the storage of what is kept in full. */
static assay_status write_scales(assay_context *ctx, const assay_sketching *s, const assay_sketched *t, int p)
{
    char path[ASSAY_PATH_SIZE];
    const double storage = s->precisions[p].storage;
    for (int part = 0; part < ASSAY_SKETCH_PARTS; part++) {
        const assay_tensor_spec spec = assay_sketch_spec(&t->spec, s->c->sketch_above, (assay_sketch_part)part);
        double *squares = t->scales[p].parts[part];
        if (squares == NULL) continue;
        for (int64_t i = 0; i < t->scales[p].sizes[part]; i++) {
            const double stored = part < ASSAY_SKETCH_SLICE_ROWS ? storage * storage * t->energy.parts[part][i] : 0;
            squares[i] = sqrt(squares[i] + stored);
        }
        assay_path_at(ASSAY_ROLE_ERROR_SCALE, s->precisions[p].name, spec.path, path);
        MUST(assay_write_result(ctx, s->out, path, t->scales[p].sizes[part], squares));
    }
    return ASSAY_OK;
}

static bool is_complete(const assay_sketch *sketch)
{
    return sketch->position == sketch->count;
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
    int precision;
    const assay_sketching *s = self;
    assay_sketched *t = find(s, path, &precision);
    if (t == NULL) return s->out->write(ctx, s->out->self, path, count, values);
    assay_sketch *sketch = precision < 0 ? &t->values : &t->scales[precision];
    if (count > sketch->count - sketch->position) {
        return assay_fail(ctx, ASSAY_INTERNAL, "%s has more elements than its shape", path);
    }
    if (precision >= 0) {
        assay_sketch_add(sketch, count, values, values);
    } else {
        MUST(add_values(ctx, t, count, values));
        if (s->precision_count > 0) assay_sketch_add(&t->energy, count, values, values);
        if (is_complete(sketch)) MUST(write_values(ctx, s, t));
    }
    for (int p = 0; p < s->precision_count && is_complete(&t->values); p++) {
        if ((precision < 0 || p == precision) && is_complete(&t->scales[p])) MUST(write_scales(ctx, s, t, p));
    }
    return ASSAY_OK;
}

/* Of the values as a number of zeros; of others as zeros, where nobody takes a number of them. */
static assay_status sketching_write_zeros(assay_context *ctx, void *self, const char *path, int64_t count)
{
    int precision;
    OWNED double *zeros = NULL;
    const assay_sketching *s = self;
    assay_sketched *t = find(s, path, &precision);
    if (t == NULL && s->out->write_zeros != NULL) return s->out->write_zeros(ctx, s->out->self, path, count);
    if (t != NULL && precision < 0 && count < t->values.count - t->values.position) {
        assay_sketch_add_zeros(&t->values, count);
        if (s->precision_count > 0) assay_sketch_add_zeros(&t->energy, count);
        return ASSAY_OK;
    }
    MUST(assay_alloc_zeros(ctx, path, count, &zeros));
    return sketching_write(ctx, self, path, count, zeros);
}

static assay_status sketching_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                        const int32_t *values)
{
    const assay_sketching *s = self;
    return s->out->write_i32(ctx, s->out->self, path, count, values);
}

static assay_status start(assay_context *ctx, const assay_sketching *s, assay_sketched *t,
                          const assay_tensor_spec *spec)
{
    const int64_t above = s->c->sketch_above;
    t->spec = *spec;
    if (!wants_values(s, spec)) return ASSAY_OK;
    MUST(assay_sketch_start(ctx, spec, above, s->c->seed, false, &t->values));
    if (s->precision_count == 0) return ASSAY_OK;
    MUST(assay_alloc(ctx, "sketches of error scales", s->precision_count, sizeof *t->scales, &t->scales));
    memset(t->scales, 0, (size_t)s->precision_count * sizeof *t->scales);
    MUST(assay_sketch_start(ctx, spec, above, s->c->seed, true, &t->energy));
    for (int p = 0; p < s->precision_count; p++) {
        MUST(assay_sketch_start(ctx, spec, above, s->c->seed, true, &t->scales[p]));
    }
    return ASSAY_OK;
}

static void close_sketching(assay_sketching *s)
{
    for (int i = 0; i < s->count; i++) {
        assay_sketched *t = &s->tensors[i];
        assay_sketch_free(&t->values);
        assay_sketch_free(&t->energy);
        for (int p = 0; t->scales != NULL && p < s->precision_count; p++) assay_sketch_free(&t->scales[p]);
        free(t->scales);
    }
    free(s->tensors);
    *s = (assay_sketching){0};
}

/* Those of list->sketched of which `out` wants a part, for results of the case. All that is given must outlive it. */
static assay_status open_sketching(assay_context *ctx, assay_sketching *s, const assay_case *c,
                                   const assay_tensor_list *list, const assay_sink *out,
                                   const assay_precision *precisions, int precision_count)
{
    *s = (assay_sketching){.c = c, .out = out, .precisions = precisions, .precision_count = precision_count};
    s->tensors = calloc((size_t)list->sketched_count + 1, sizeof *s->tensors);
    if (s->tensors == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of sketches");
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
                        .write_i32 = sketching_write_i32,
                        .write_zeros = sketching_write_zeros};
}

assay_status assay_operation_run(assay_context *ctx, const assay_operation *operation, const assay_case *c,
                                 const assay_source *in, const assay_sink *out, const assay_precision *precisions,
                                 int precision_count)
{
    assay_status status;
    assay_tensor_list list = {0};
    const assay_operation *same = NULL;
    assay_sketching sketching = {0};
    if (c->sketch_above == 0 && c->quant_format_count == 0)
        return assay_operation_evaluate(ctx, operation, c, in, out, precisions, precision_count);
    TRY(assay_operation_prepare(ctx, c, &same, &list));
    assay_dequantised numbers = {in, &list};
    const assay_source dense = assay_dequantised_source(&numbers);
    TRY(open_sketching(ctx, &sketching, c, &list, out, precisions, precision_count));
    const assay_sink sink = sink_of(&sketching);
    status = assay_operation_evaluate(ctx, operation, c, c->quant_format_count > 0 ? &dense : in, &sink, precisions,
                                      precision_count);
cleanup:
    close_sketching(&sketching);
    assay_tensor_list_free(&list);
    return status;
}
