/* Arrays, and oneDNN's primitives on them: made, executed once and destroyed. */
#include "onednn.h"

#include <stdio.h>
#include <string.h>

enum { MAX_RANK = 4, MAX_ARGUMENTS = 8 };

void end(onednn *o, int code, const char *message)
{
    o->code = say(o->request, code, "%s", message);
    longjmp(o->ended, 1);
}

/* ---- arrays ---- */

static array described(void *data, dnnl_data_type_t type, int rank, const int64_t *dims, const int64_t *strides)
{
    array a = {.data = data};
    dnnl_dims_t all_dims = {0}, all_strides = {0}; /* as long as oneDNN declares them */
    memcpy(all_dims, dims, (size_t)rank * sizeof *dims);
    memcpy(all_strides, strides, (size_t)rank * sizeof *strides);
    dnnl_memory_desc_init_by_strides(&a.desc, rank, all_dims, type, all_strides);
    return a;
}

static const int64_t *strides_of(const array *a)
{
    return a->desc.format_desc.blocking.strides;
}

static int64_t count_in(const array *a)
{
    return count_of(a->desc.ndims, a->desc.dims);
}

array make(onednn *o, dnnl_data_type_t type, int rank, const int64_t *dims)
{
    int64_t strides[MAX_RANK], count = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = count;
        count *= dims[i];
    }
    return described(take(&o->memory, count), type, rank, dims, strides);
}

array like(onednn *o, const array *a, dnnl_data_type_t type)
{
    return make(o, type, a->desc.ndims, a->desc.dims);
}

array view(const array *a, int rank, const int64_t *dims, const int64_t *strides, int64_t first)
{
    const size_t size = a->desc.data_type == dnnl_f32 ? 4 : 2;
    return described((char *)a->data + (size_t)first * size, a->desc.data_type, rank, dims, strides);
}

array swapped(const array *a, int axis, int other)
{
    int64_t dims[MAX_RANK], strides[MAX_RANK];
    for (int i = 0; i < a->desc.ndims; i++) {
        const int from = i == axis ? other : i == other ? axis : i;
        dims[i] = a->desc.dims[from];
        strides[i] = strides_of(a)[from];
    }
    return view(a, a->desc.ndims, dims, strides, 0);
}

array rows_of(const array *a, int64_t first, int64_t count)
{
    int64_t dims[MAX_RANK];
    memcpy(dims, a->desc.dims, sizeof dims);
    dims[0] = count;
    return view(a, a->desc.ndims, dims, strides_of(a), first * strides_of(a)[0]);
}

void write_numbers(array *a, const float *values)
{
    const int64_t count = count_in(a);
    uint16_t *codes = a->data;
    if (a->desc.data_type == dnnl_f32) memcpy(a->data, values, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && a->desc.data_type == dnnl_bf16; i++) codes[i] = to_bf16(values[i]);
    for (int64_t i = 0; i < count && a->desc.data_type == dnnl_f16; i++) codes[i] = to_f16(values[i]);
}

void read_numbers(float *values, const array *a)
{
    const int64_t count = count_in(a);
    const uint16_t *codes = a->data;
    if (a->desc.data_type == dnnl_f32) memcpy(values, a->data, (size_t)count * sizeof *values);
    for (int64_t i = 0; i < count && a->desc.data_type == dnnl_bf16; i++) values[i] = from_bf16(codes[i]);
    for (int64_t i = 0; i < count && a->desc.data_type == dnnl_f16; i++) values[i] = from_f16(codes[i]);
}

array converted(onednn *o, const array *a, dnnl_data_type_t type)
{
    float *values = take(&o->memory, count_in(a));
    array made = like(o, a, type);
    read_numbers(values, a);
    write_numbers(&made, values);
    return made;
}

array given(onednn *o, const char *path, dnnl_data_type_t type)
{
    const assay_backend_tensor *t = tensor(o->request, path);
    if (t == NULL) return (array){0};
    const int64_t count = count_of(t->rank, t->dims);
    float *values = take(&o->memory, count);
    load(values, t, 0, count);
    array a = make(o, type, t->rank, t->dims);
    write_numbers(&a, values);
    return a;
}

void store(const onednn *o, const char *path, const array *a)
{
    assay_backend_result *r = result(o->request, path);
    const int64_t count = count_in(a);
    if (r == NULL || a->data == NULL) return;
    r->written = count_of(r->rank, r->dims) == count;
    if (!r->written) return;
    r->type = a->desc.data_type == dnnl_f32 ? ASSAY_BACKEND_FLOAT32 : o->stored;
    memcpy(r->data, a->data, (size_t)count * (r->type == ASSAY_BACKEND_FLOAT32 ? 4 : 2));
}

/* ---- primitives ---- */

typedef struct argument {
    int kind;
    const array *a;
} argument;

/* What oneDNN does not implement for a type or an instruction set is no failure. */
static void check(onednn *o, dnnl_status_t status, const char *what)
{
    char message[128];
    if (status == dnnl_success) return;
    if (status == dnnl_out_of_memory) longjmp(o->memory.out_of_memory, 1);
    snprintf(message, sizeof message, "oneDNN has no %s of this kind (status %d)", what, (int)status);
    end(o, status == dnnl_unimplemented ? ASSAY_BACKEND_UNSUPPORTED : ASSAY_BACKEND_ERROR, message);
}

static dnnl_primitive_desc_t describe(onednn *o, const_dnnl_op_desc_t op, const_dnnl_primitive_desc_t hint,
                                      const char *what)
{
    dnnl_primitive_desc_t made = NULL;
    check(o, dnnl_primitive_desc_create(&made, op, NULL, o->engine, hint), what);
    return made;
}

/* Destroys `description`. Arguments without data are passed over. */
static void execute(onednn *o, dnnl_primitive_desc_t description, const argument *arguments, int count,
                    const char *what)
{
    dnnl_primitive_t primitive = NULL;
    dnnl_exec_arg_t all[MAX_ARGUMENTS];
    int made = 0;
    dnnl_status_t status = dnnl_primitive_create(&primitive, description);
    dnnl_primitive_desc_destroy(description);
    for (int i = 0; i < count && status == dnnl_success; i++) {
        if (arguments[i].a == NULL || arguments[i].a->data == NULL) continue;
        all[made].arg = arguments[i].kind;
        status = dnnl_memory_create(&all[made].memory, &arguments[i].a->desc, o->engine, arguments[i].a->data);
        made += status == dnnl_success;
    }
    if (status == dnnl_success) status = dnnl_primitive_execute(primitive, o->stream, made, all);
    if (status == dnnl_success) status = dnnl_stream_wait(o->stream);
    for (int i = 0; i < made; i++) dnnl_memory_destroy(all[i].memory);
    dnnl_primitive_destroy(primitive);
    check(o, status, what);
}

#define EXECUTE(o, description, what, ...)                                                                             \
    execute(o, description, (const argument[]){__VA_ARGS__},                                                           \
            (int)(sizeof((const argument[]){__VA_ARGS__}) / sizeof(argument)), what)

void matmul(onednn *o, array *out, const array *a, const array *b, const array *bias)
{
    const char *what = "matrix product";
    dnnl_matmul_desc_t d;
    const bool biased = bias != NULL && bias->data != NULL;
    if (count_in(out) == 0 || count_in(a) == 0) return;
    check(o, dnnl_matmul_desc_init(&d, &a->desc, &b->desc, biased ? &bias->desc : NULL, &out->desc), what);
    EXECUTE(o, describe(o, &d, NULL, what), what, {DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_BIAS, bias},
            {DNNL_ARG_DST, out});
}

void eltwise(onednn *o, array *out, const array *x, dnnl_alg_kind_t kind, float alpha, float beta)
{
    const char *what = "elementwise function";
    dnnl_eltwise_desc_t d;
    check(o, dnnl_eltwise_forward_desc_init(&d, dnnl_forward_training, kind, &x->desc, alpha, beta), what);
    EXECUTE(o, describe(o, &d, NULL, what), what, {DNNL_ARG_SRC, x}, {DNNL_ARG_DST, out});
}

void eltwise_backward(onednn *o, array *dx, const array *dy, const array *x, dnnl_alg_kind_t kind, float alpha,
                      float beta)
{
    const char *what = "gradient of an elementwise function";
    dnnl_eltwise_desc_t d, forward;
    check(o, dnnl_eltwise_forward_desc_init(&forward, dnnl_forward_training, kind, &x->desc, alpha, beta), what);
    check(o, dnnl_eltwise_backward_desc_init(&d, kind, &dy->desc, &x->desc, alpha, beta), what);
    dnnl_primitive_desc_t hint = describe(o, &forward, NULL, what), backward = describe(o, &d, hint, what);
    dnnl_primitive_desc_destroy(hint);
    EXECUTE(o, backward, what, {DNNL_ARG_SRC, x}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx});
}

void binary(onednn *o, array *out, dnnl_alg_kind_t kind, const array *a, const array *b)
{
    const char *what = "binary function";
    dnnl_binary_desc_t d;
    check(o, dnnl_binary_desc_init(&d, kind, &a->desc, &b->desc, &out->desc), what);
    EXECUTE(o, describe(o, &d, NULL, what), what, {DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}, {DNNL_ARG_DST, out});
}

void reduce(onednn *o, array *out, dnnl_alg_kind_t kind, const array *x)
{
    const char *what = "reduction";
    dnnl_reduction_desc_t d;
    if (memcmp(x->desc.dims, out->desc.dims, (size_t)x->desc.ndims * sizeof *x->desc.dims) ==
        0) { /* oneDNN refuses it */
        float *values = take(&o->memory, count_in(x));
        read_numbers(values, x);
        write_numbers(out, values);
        return;
    }
    check(o, dnnl_reduction_desc_init(&d, kind, &x->desc, &out->desc, 0, 0), what);
    EXECUTE(o, describe(o, &d, NULL, what), what, {DNNL_ARG_SRC, x}, {DNNL_ARG_DST, out});
}

static dnnl_primitive_desc_t describe_softmax(onednn *o, const array *out, const array *x, bool logarithm,
                                              const char *what)
{
    dnnl_softmax_v2_desc_t d;
    const dnnl_alg_kind_t kind = logarithm ? dnnl_softmax_log : dnnl_softmax_accurate;
    check(o,
          dnnl_softmax_v2_forward_desc_init(&d, dnnl_forward_training, kind, &x->desc, &out->desc, x->desc.ndims - 1),
          what);
    return describe(o, &d, NULL, what);
}

void softmax(onednn *o, array *out, const array *x, bool logarithm)
{
    const char *what = "softmax";
    EXECUTE(o, describe_softmax(o, out, x, logarithm, what), what, {DNNL_ARG_SRC, x}, {DNNL_ARG_DST, out});
}

void softmax_backward(onednn *o, array *dx, const array *dy, const array *y)
{
    const char *what = "gradient of softmax";
    dnnl_softmax_v2_desc_t d;
    dnnl_primitive_desc_t hint = describe_softmax(o, y, y, false, what);
    check(o,
          dnnl_softmax_v2_backward_desc_init(&d, dnnl_softmax_accurate, &dx->desc, &dy->desc, &y->desc,
                                             y->desc.ndims - 1),
          what);
    dnnl_primitive_desc_t backward = describe(o, &d, hint, what);
    dnnl_primitive_desc_destroy(hint);
    EXECUTE(o, backward, what, {DNNL_ARG_DST, y}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx});
}

static const unsigned NORM_FLAGS = dnnl_use_global_stats | dnnl_use_scale;

static dnnl_primitive_desc_t describe_norm(onednn *o, const array *x, const norm *n, const char *what)
{
    dnnl_layer_normalization_desc_t d;
    check(o,
          dnnl_layer_normalization_forward_desc_init(&d, dnnl_forward_training, &x->desc, &n->mean.desc, n->epsilon,
                                                     NORM_FLAGS),
          what);
    return describe(o, &d, NULL, what);
}

void normalize(onednn *o, array *out, const array *x, const norm *n)
{
    const char *what = "layer norm";
    EXECUTE(o, describe_norm(o, x, n, what), what, {DNNL_ARG_SRC, x}, {DNNL_ARG_MEAN, &n->mean},
            {DNNL_ARG_VARIANCE, &n->variance}, {DNNL_ARG_SCALE, &n->scale}, {DNNL_ARG_DST, out});
}

void normalize_backward(onednn *o, array *dx, array *d_scale, const array *dy, const array *x, const norm *n)
{
    const char *what = "gradient of layer norm";
    dnnl_layer_normalization_desc_t d;
    dnnl_primitive_desc_t hint = describe_norm(o, x, n, what);
    check(o,
          dnnl_layer_normalization_backward_desc_init(&d, dnnl_backward, &dy->desc, &x->desc, &n->mean.desc, n->epsilon,
                                                      NORM_FLAGS),
          what);
    dnnl_primitive_desc_t backward = describe(o, &d, hint, what);
    dnnl_primitive_desc_destroy(hint);
    EXECUTE(o, backward, what, {DNNL_ARG_SRC, x}, {DNNL_ARG_MEAN, &n->mean}, {DNNL_ARG_VARIANCE, &n->variance},
            {DNNL_ARG_SCALE, &n->scale}, {DNNL_ARG_DIFF_DST, dy}, {DNNL_ARG_DIFF_SRC, dx},
            {DNNL_ARG_DIFF_SCALE, d_scale});
}
