/* oneDNN as a backend: matrix products, softmax, layer norm, elementwise functions and their gradients, composed to a grouped
 * product, an RMS norm, a gated MLP and an attention. What those take is oneDNN's; this file only says in which order.
 *
 *     cc -O3 -shared -fPIC -I include harness/backends/onednn/onednn*.c harness/backends/support/support.c \
 *         -o libassay_onednn.so -ldnnl -lm
 *     ASSAY_ONEDNN_TYPE=bf16 assay run mlp/silu --precision bf16 --backend ./libassay_onednn.so
 *
 * ASSAY_ONEDNN_TYPE says in which type tensors are: bf16 (where nothing is said), f16 or f32. ONEDNN_MAX_CPU_ISA is oneDNN's own. */
#include "onednn.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* [.., columns] as [rows, columns]. */
static array flat(const array *a)
{
    const int64_t columns = a->desc.dims[a->desc.ndims - 1], count = count_of(a->desc.ndims, a->desc.dims);
    return view(a, 2, (const int64_t[]){count / columns, columns}, (const int64_t[]){columns, 1}, 0);
}

static array given_flat(onednn *o, const char *path, dnnl_data_type_t type)
{
    array a = given(o, path, type);
    return a.data == NULL ? a : flat(&a);
}

static void store_flat(const onednn *o, const char *path, const array *a, int rank, const int64_t *dims)
{
    int64_t strides[4] = {1, 1, 1, 1};
    for (int i = rank - 2; i >= 0; i--) strides[i] = strides[i + 1] * dims[i + 1];
    const array whole = view(a, rank, dims, strides, 0);
    store(o, path, &whole);
}

static array made(onednn *o, dnnl_data_type_t type, int64_t rows, int64_t columns)
{
    return make(o, type, 2, (const int64_t[]){rows, columns});
}

/* ---- rms_norm: layer norm with a mean of zero and the mean square for a variance ---- */

static void run_rms_norm(onednn *o)
{
    const assay_backend_tensor *input = tensor(o->request, "inputs/x");
    const array x = given_flat(o, "inputs/x", o->type), wide = given_flat(o, "inputs/x", dnnl_f32);
    const int64_t rows = x.desc.dims[0], columns = x.desc.dims[1];
    const int64_t *stride = (const int64_t[]){1};
    array squares = like(o, &wide, dnnl_f32), mean_square = made(o, dnnl_f32, rows, 1), y = like(o, &x, o->type);
    eltwise(o, &squares, &wide, dnnl_eltwise_square, 0, 0);
    reduce(o, &mean_square, dnnl_reduction_mean, &squares);
    norm n = {.epsilon = (float)number(o->request, "normalization_layer_epsilon"),
              .scale = given(o, "weights/scale", dnnl_f32)};
    n.mean = make(o, dnnl_f32, 1, &rows), n.variance = view(&mean_square, 1, &rows, stride, 0);
    normalize(o, &y, &x, &n);
    store_flat(o, "outputs/y", &y, input->rank, input->dims);
    if (tensor(o->request, "cotangents/y") == NULL) return;

    /* dx = u - n mean(u n), u what layer norm gives for a fixed variance, n the norm without its scale */
    const array dy = given_flat(o, "cotangents/y", o->type);
    array u = like(o, &x, o->type), d_scale = make(o, dnnl_f32, 1, &columns), plain = like(o, &wide, dnnl_f32);
    normalize_backward(o, &u, &d_scale, &dy, &x, &n);
    norm without = n;
    without.scale = make(o, dnnl_f32, 1, &columns);
    for (int64_t i = 0; i < columns; i++) ((float *)without.scale.data)[i] = 1;
    normalize(o, &plain, &wide, &without);
    array products = converted(o, &u, dnnl_f32), mean = made(o, dnnl_f32, rows, 1), dx = converted(o, &u, dnnl_f32);
    binary(o, &products, dnnl_binary_mul, &products, &plain);
    reduce(o, &mean, dnnl_reduction_mean, &products);
    binary(o, &products, dnnl_binary_mul, &plain, &mean);
    binary(o, &dx, dnnl_binary_sub, &dx, &products);
    const array rounded = converted(o, &dx, o->type);
    store(o, "gradients/weights/scale", &d_scale);
    store_flat(o, "gradients/inputs/x", &rounded, input->rank, input->dims);
}

/* ---- gmm: a product for each group ---- */

static void run_gmm(onednn *o)
{
    const bool masked = is(o->request, "gmm_layout", "masked"), psum = is(o->request, "gmm_layout", "psum");
    if (!masked && !psum && !is(o->request, "gmm_layout", "ragged")) end(o, ASSAY_BACKEND_UNSUPPORTED, "gmm_layout");
    const assay_backend_tensor *lhs = tensor(o->request, "inputs/lhs");
    const int32_t *sizes = tensor(o->request, masked ? "inputs/masked_m"
                                              : psum ? "inputs/psum_m"
                                                     : "inputs/group_sizes")
                               ->data;
    const array a = given_flat(o, "inputs/lhs", o->type), b = given(o, "weights/rhs", o->type);
    const array d = given_flat(o, "cotangents/y", o->type);
    const int64_t groups = b.desc.dims[0], k = b.desc.dims[1], columns = b.desc.dims[2], rows = a.desc.dims[0];
    const int64_t alignment = (int64_t)number(o->request, "mk_alignment_for_contiguous_layout");
    array y = made(o, o->type, rows, columns), da = made(o, o->type, rows, k), db = make(o, dnnl_f32, 3, b.desc.dims);
    for (int64_t g = 0, first = 0; g < groups; g++) {
        if (masked) first = g * lhs->dims[1];
        const int64_t count = psum ? sizes[g] - first : sizes[g];
        const int64_t dims[] = {k, columns}, strides[] = {columns, 1};
        const array weights = view(&b, 2, dims, strides, g * k * columns), turned = swapped(&weights, 0, 1);
        const array x = rows_of(&a, first, count), x_turned = swapped(&x, 0, 1);
        array part = rows_of(&y, first, count), d_x = rows_of(&da, first, count),
              d_weights = view(&db, 2, dims, strides, g * k * columns);
        matmul(o, &part, &x, &weights, NULL);
        if (d.data != NULL) {
            const array of_rows = rows_of(&d, first, count);
            matmul(o, &d_x, &of_rows, &turned, NULL);
            matmul(o, &d_weights, &x_turned, &of_rows, NULL);
        }
        first += psum ? (count + alignment - 1) / alignment * alignment : count;
    }
    const int64_t dims[] = {lhs->dims[0], lhs->rank == 3 ? lhs->dims[1] : columns, columns};
    store_flat(o, "outputs/y", &y, lhs->rank, dims);
    store_flat(o, "gradients/inputs/lhs", &da, lhs->rank, lhs->dims);
    store(o, "gradients/weights/rhs", &db);
}

/* ---- mlp ---- */

typedef struct function {
    dnnl_alg_kind_t kind;
    float alpha, beta;
} function;

/* The activation that comes `place`-th in mlp_activations. */
static function activation(onednn *o, int place)
{
    static const struct {
        const char *name;
        function f;
    } known[] = {{"silu", {dnnl_eltwise_swish, 1, 0}},          {"gelu", {dnnl_eltwise_gelu_tanh, 0, 0}},
                 {"gelu_exact", {dnnl_eltwise_gelu_erf, 0, 0}}, {"relu", {dnnl_eltwise_relu, 0, 0}},
                 {"sigmoid", {dnnl_eltwise_logistic, 0, 0}},    {"linear", {dnnl_eltwise_linear, 1, 0}}};
    const char *names = setting(o->request, "mlp_activations"), *comma = strchr(names, ',');
    const char *name = place == 0 || comma == NULL ? names : comma + 1;
    const size_t length = strcspn(name, ",");
    if (is(o->request, "decoder_block", "gpt_oss"))
        return place == 0 ? (function){dnnl_eltwise_swish, 1.702F, 0} : (function){dnnl_eltwise_linear, 1, 1};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strlen(known[i].name) == length && strncmp(known[i].name, name, length) == 0) return known[i].f;
    end(o, ASSAY_BACKEND_UNSUPPORTED, "an activation that oneDNN does not have");
}

/* One of the two projections: v = f(clip(x w + bias)), and the way back. */
typedef struct branch {
    function f, clip;
    bool clips;
    array w, bias, a, clipped, v, d_w, d_bias;
} branch;

static void branch_forward(onednn *o, branch *b, const array *x)
{
    b->a = made(o, o->type, x->desc.dims[0], b->w.desc.dims[1]);
    b->v = like(o, &b->a, o->type), b->clipped = b->a;
    matmul(o, &b->a, x, &b->w, &b->bias);
    if (b->clips) {
        b->clipped = like(o, &b->a, o->type);
        eltwise(o, &b->clipped, &b->a, b->clip.kind, b->clip.alpha, b->clip.beta);
    }
    eltwise(o, &b->v, &b->clipped, b->f.kind, b->f.alpha, b->f.beta);
}

/* dx = d w^T, and the gradients of w and bias, from the gradient of v. */
static void branch_backward(onednn *o, branch *b, array *dx, const array *d_v, const array *x)
{
    array d = like(o, d_v, o->type);
    const array w_turned = swapped(&b->w, 0, 1), x_turned = swapped(x, 0, 1);
    eltwise_backward(o, &d, d_v, &b->clipped, b->f.kind, b->f.alpha, b->f.beta);
    if (b->clips) eltwise_backward(o, &d, &d, &b->a, b->clip.kind, b->clip.alpha, b->clip.beta);
    matmul(o, dx, &d, &w_turned, NULL);
    matmul(o, &b->d_w, &x_turned, &d, NULL);
    if (b->bias.data != NULL) reduce(o, &b->d_bias, dnnl_reduction_sum, &d);
}

static array columns_of(const array *whole, int64_t first, int64_t count)
{
    const int64_t width = whole->desc.dims[1];
    return view(whole, 2, (const int64_t[]){whole->desc.dims[0], count}, (const int64_t[]){width, 1}, first);
}

/* Kernel and bias of both branches, and room for their gradients; the kernels may be halves of one, whose gradient is `whole`. */
static void take_branches(onednn *o, branch *two, array *whole)
{
    static const char *const KERNELS[] = {"weights/wi_0/kernel", "weights/wi_1/kernel"};
    static const char *const BIASES[] = {"weights/wi_0/bias", "weights/wi_1/bias"};
    const float limit = (float)number(o->request, "mlp_activations_limit");
    const array fused = given(o, "weights/wi/kernel", o->type);
    if (fused.data != NULL) *whole = like(o, &fused, dnnl_f32);
    for (int i = 0; i < 2; i++) {
        two[i].f = activation(o, i);
        two[i].clips = limit > 0;
        two[i].clip = (function){dnnl_eltwise_clip, i == 0 ? -FLT_MAX : -limit, limit};
        two[i].bias = given_flat(o, BIASES[i], o->type);
        if (two[i].bias.data != NULL) two[i].d_bias = like(o, &two[i].bias, dnnl_f32);
        if (fused.data == NULL) {
            two[i].w = given(o, KERNELS[i], o->type);
            two[i].d_w = like(o, &two[i].w, dnnl_f32);
        } else {
            const int64_t half = fused.desc.dims[1] / 2;
            two[i].w = columns_of(&fused, i * half, half), two[i].d_w = columns_of(whole, i * half, half);
        }
    }
}

/* The gradient of a bias has one axis. */
static void store_bias(const onednn *o, const char *path, const array *d_bias)
{
    if (d_bias->data != NULL) store_flat(o, path, d_bias, 1, &d_bias->desc.dims[1]);
}

static void run_mlp(onednn *o)
{
    const assay_backend_tensor *input = tensor(o->request, "inputs/x");
    const array x = given_flat(o, "inputs/x", o->type), wo = given(o, "weights/wo/kernel", o->type);
    const array bias = given_flat(o, "weights/wo/bias", o->type), dy = given_flat(o, "cotangents/y", o->type);
    array whole = {0};
    branch two[2] = {0};
    take_branches(o, two, &whole);
    for (int i = 0; i < 2; i++) branch_forward(o, &two[i], &x);
    array h = like(o, &two[0].v, o->type), y = like(o, &x, o->type);
    binary(o, &h, dnnl_binary_mul, &two[0].v, &two[1].v);
    matmul(o, &y, &h, &wo, &bias);
    store_flat(o, "outputs/y", &y, input->rank, input->dims);
    if (dy.data == NULL) return;

    const array wo_turned = swapped(&wo, 0, 1), h_turned = swapped(&h, 0, 1);
    array dh = like(o, &h, o->type), d_v = like(o, &h, o->type), d_wo = like(o, &wo, dnnl_f32);
    array dx[2] = {like(o, &x, o->type), like(o, &x, o->type)};
    matmul(o, &dh, &dy, &wo_turned, NULL);
    matmul(o, &d_wo, &h_turned, &dy, NULL);
    for (int i = 0; i < 2; i++) {
        binary(o, &d_v, dnnl_binary_mul, &dh, &two[1 - i].v);
        branch_backward(o, &two[i], &dx[i], &d_v, &x);
    }
    binary(o, &dx[0], dnnl_binary_add, &dx[0], &dx[1]);
    store_flat(o, "gradients/inputs/x", &dx[0], input->rank, input->dims);
    store(o, "gradients/weights/wo/kernel", &d_wo);
    store(o, "gradients/weights/wi/kernel", &whole);
    if (bias.data != NULL) {
        array d_bias = like(o, &bias, dnnl_f32);
        reduce(o, &d_bias, dnnl_reduction_sum, &dy);
        store_bias(o, "gradients/weights/wo/bias", &d_bias);
    }
    store_bias(o, "gradients/weights/wi_0/bias", &two[0].d_bias),
        store_bias(o, "gradients/weights/wi_1/bias", &two[1].d_bias);
    if (whole.data != NULL) return;
    store(o, "gradients/weights/wi_0/kernel", &two[0].d_w), store(o, "gradients/weights/wi_1/kernel", &two[1].d_w);
}

/* ---- attention: two products and a softmax ---- */

typedef struct attention {
    int64_t batch, sequence, heads;
    const int32_t *ids; /* of segments, or NULL */
    bool padding;       /* segment 0 sees nothing */
    int64_t window;     /* 0: all */
} attention;

static bool blind(const attention *t, int64_t token)
{
    return t->padding && t->ids != NULL && t->ids[token] == 0;
}

/* [B,S,N,.] as [B,N,S,.]. What a padding token holds, NaN too, is not read. */
static array heads_of(onednn *o, const attention *t, const char *path)
{
    const array a = given(o, path, o->type);
    if (a.data == NULL) return a;
    const size_t row = (size_t)(a.desc.dims[2] * a.desc.dims[3]) * (o->type == dnnl_f32 ? 4 : 2);
    for (int64_t i = 0; i < t->batch * t->sequence; i++)
        if (blind(t, i)) memset((char *)a.data + (size_t)i * row, 0, row);
    return swapped(&a, 1, 2);
}

/* [B,1,S,S]: 0 for what is seen, -infinity elsewhere. A row that sees nothing is left open: softmax would make NaN of it. */
static array mask_of(onednn *o, const attention *t, dnnl_data_type_t type)
{
    const int64_t S = t->sequence, dims[] = {t->batch, 1, S, S};
    float *values = take(&o->memory, t->batch * S * S);
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t i = 0; i < S; i++)
            for (int64_t j = 0; j < S; j++) {
                const bool same = t->ids == NULL || t->ids[b * S + i] == t->ids[b * S + j];
                const bool seen = j <= i && same && (t->window == 0 || i - j < t->window);
                values[(b * S + i) * S + j] = seen || blind(t, b * S + i) ? 0 : -INFINITY;
            }
    array mask = make(o, type, 4, dims);
    write_numbers(&mask, values);
    return mask;
}

/* 1, and 0 for rows that see nothing; or the gradient of the log-sum-exp. */
static array column_of(onednn *o, const attention *t, const float *values)
{
    const int64_t S = t->sequence, dims[] = {t->batch, values == NULL ? 1 : t->heads, S, 1};
    float *all = take(&o->memory, t->batch * dims[1] * S);
    for (int64_t i = 0; i < t->batch * dims[1] * S; i++) {
        const int64_t token = i / (dims[1] * S) * S + i % S;
        all[i] = blind(t, token) ? 0 : values == NULL ? 1 : values[i];
    }
    array column = make(o, o->type, 4, dims);
    write_numbers(&column, all);
    return column;
}

/* The largest score of a row less the logarithm of its probability, which is near 0. */
static void store_lse(onednn *o, const attention *t, const array *query, const array *keys_turned)
{
    const int64_t S = t->sequence, dims[] = {t->batch, t->heads, S, S};
    array scores = make(o, dnnl_f32, 4, dims), log_p = make(o, dnnl_f32, 4, dims);
    const array mask = mask_of(o, t, dnnl_f32);
    float *lse = take(&o->memory, t->batch * t->heads * S);
    matmul(o, &scores, query, keys_turned, NULL);
    binary(o, &scores, dnnl_binary_add, &scores, &mask);
    softmax(o, &log_p, &scores, true);
    for (int64_t i = 0; i < t->batch * t->heads * S; i++) {
        const float *s = (const float *)scores.data + i * S;
        int64_t best = 0;
        for (int64_t j = 1; j < S; j++) best = s[j] > s[best] ? j : best;
        const int64_t token = i / (t->heads * S) * S + i % S;
        lse[i] = blind(t, token) ? -INFINITY : s[best] - ((const float *)log_p.data)[i * S + best];
    }
    write_result(result(o->request, "outputs/lse"), ASSAY_BACKEND_FLOAT32, lse, t->batch * t->heads * S);
}

static void run_attention(onednn *o)
{
    const assay_backend_request *r = o->request;
    const assay_backend_tensor *q = tensor(r, "inputs/query"), *v = tensor(r, "inputs/value"),
                               *ids = tensor(r, "inputs/segment_ids");
    if (tensor(r, "weights/sinks") != NULL) end(o, ASSAY_BACKEND_UNSUPPORTED, "attention_sink");
    if (v->dims[2] != q->dims[2]) end(o, ASSAY_BACKEND_UNSUPPORTED, "base_num_kv_heads");
    attention t = {
        .batch = q->dims[0], .sequence = q->dims[1], .heads = q->dims[2], .ids = ids != NULL ? ids->data : NULL};
    t.padding = is(r, "mask_padding", "true");
    t.window = is(r, "attention_type", "global") ? 0 : (int64_t)number(r, "sliding_window_size");
    const int64_t dims[] = {t.batch, t.heads, t.sequence, t.sequence};
    const array query = heads_of(o, &t, "inputs/query"), key = heads_of(o, &t, "inputs/key"),
                value = heads_of(o, &t, "inputs/value");
    const array d_out = heads_of(o, &t, "cotangents/attention_out"), mask = mask_of(o, &t, o->type),
                keep = column_of(o, &t, NULL);
    const array keys_turned = swapped(&key, 2, 3), values_turned = swapped(&value, 2, 3);
    array scores = make(o, o->type, 4, dims), p = make(o, o->type, 4, dims), out = make(o, o->type, 4, v->dims);
    array out_heads = swapped(&out, 1, 2);
    matmul(o, &scores, &query, &keys_turned, NULL);
    binary(o, &scores, dnnl_binary_add, &scores, &mask);
    softmax(o, &p, &scores, false);
    array shown = like(o, &p, o->type);
    binary(o, &shown, dnnl_binary_mul, &p, &keep);
    matmul(o, &out_heads, &shown, &value, NULL);
    store(o, "outputs/attention_out", &out);
    store_lse(o, &t, &query, &keys_turned);
    if (d_out.data == NULL) return;

    const assay_backend_tensor *of_lse = tensor(r, "cotangents/lse");
    array dp = make(o, o->type, 4, dims), ds = make(o, o->type, 4, dims);
    matmul(o, &dp, &d_out, &values_turned, NULL);
    softmax_backward(o, &ds, &dp, &p);
    if (of_lse != NULL) {
        const int64_t count = count_of(of_lse->rank, of_lse->dims);
        float *values = take(&o->memory, count);
        load(values, of_lse, 0, count);
        const array d_lse = column_of(o, &t, values);
        binary(o, &dp, dnnl_binary_mul, &shown, &d_lse);
        binary(o, &ds, dnnl_binary_add, &ds, &dp);
    }
    array d_query = make(o, o->type, 4, q->dims), d_key = make(o, o->type, 4, q->dims),
          d_value = make(o, o->type, 4, v->dims);
    array of_query = swapped(&d_query, 1, 2), of_key = swapped(&d_key, 1, 2), of_value = swapped(&d_value, 1, 2);
    const array ds_turned = swapped(&ds, 2, 3), p_turned = swapped(&shown, 2, 3);
    matmul(o, &of_query, &ds, &key, NULL);
    matmul(o, &of_key, &ds_turned, &query, NULL);
    matmul(o, &of_value, &p_turned, &d_out, NULL);
    store(o, "gradients/inputs/query", &d_query);
    store(o, "gradients/inputs/key", &d_key);
    store(o, "gradients/inputs/value", &d_value);
}

/* ---- the call ---- */

static const struct operation {
    const char *name;
    void (*run)(onednn *o);
} OPERATIONS[] = {{"rms_norm", run_rms_norm}, {"gmm", run_gmm}, {"mlp", run_mlp}, {"attention", run_attention}};

static const struct type {
    const char *name;
    dnnl_data_type_t type;
    assay_backend_type stored;
} TYPES[] = {{"bf16", dnnl_bf16, ASSAY_BACKEND_BFLOAT16},
             {"f16", dnnl_f16, ASSAY_BACKEND_FLOAT16},
             {"f32", dnnl_f32, ASSAY_BACKEND_FLOAT32}};

static int attempt(onednn *o, const struct operation *operation)
{
    if (setjmp(o->memory.out_of_memory) != 0) return say(o->request, ASSAY_BACKEND_ERROR, "out of memory");
    if (setjmp(o->ended) != 0) return o->code;
    operation->run(o);
    return ASSAY_BACKEND_DONE;
}

static int run_with_engine(onednn *o, const struct operation *operation)
{
    int code = say(o->request, ASSAY_BACKEND_ERROR, "oneDNN gives no engine for the processor");
    if (dnnl_engine_create(&o->engine, dnnl_cpu, 0) != dnnl_success) return code;
    if (dnnl_stream_create(&o->stream, o->engine, dnnl_stream_default_flags) == dnnl_success) {
        code = attempt(o, operation);
        give_back(&o->memory, 0);
        dnnl_stream_destroy(o->stream);
    }
    dnnl_engine_destroy(o->engine);
    return code;
}

#pragma GCC visibility push(default)

int assay_backend_run(const assay_backend_request *request)
{
    onednn o = {.request = request, .type = dnnl_data_type_undef};
    const char *type = getenv("ASSAY_ONEDNN_TYPE");
    const struct operation *operation = NULL;
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "made for another version of the interface");
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, type == NULL ? "bf16" : type) == 0)
            o.type = TYPES[i].type, o.stored = TYPES[i].stored;
    if (o.type == dnnl_data_type_undef)
        return say(request, ASSAY_BACKEND_ERROR, "ASSAY_ONEDNN_TYPE: expected bf16, f16 or f32, found %s", type);
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (is(request, "op", OPERATIONS[i].name)) operation = &OPERATIONS[i];
    if (operation == NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "no %s", setting(request, "op"));
    if (has_quantised_operands(request)) return say(request, ASSAY_BACKEND_UNSUPPORTED, "quant_formats");
    if (rare_setting(request) != NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "%s", rare_setting(request));
    for (int i = 0; i < request->result_count; i++) request->results[i].written = 0;
    return run_with_engine(&o, operation);
}
