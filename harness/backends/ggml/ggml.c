/* ggml (llama.cpp) as a backend, forward only: the shipped libraries' own operators on the processor. This file says in which order
 * they come, and lays weights out as ggml has them (a row for each output).
 *
 * ASSAY_GGML_TYPE says what weights, keys and values are: f32 (where nothing is said), f16 or bf16; activations are float32, as in llama.cpp. */
#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/support.h"

enum { MOST_TENSORS = 1024, MOST_FED = 64 };

typedef struct ggml_tensor ggml_tensor;
typedef struct ggml_context ggml_context;

typedef struct call {
    const assay_backend_request *request;
    memory memory;
    ggml_backend_t backend;
    ggml_context *ctx;
    struct ggml_cgraph *graph;
    ggml_backend_buffer_t buffer;
    struct {
        ggml_tensor *tensor;
        const void *data;
    } fed[MOST_FED];
    int fed_count, type, code;
    jmp_buf ended;
} call;

static void end(call *c, int code, const char *message)
{
    c->code = say(c->request, code, "%s", message);
    longjmp(c->ended, 1);
}

static void need(call *c, bool condition, const char *what)
{
    if (!condition) end(c, ASSAY_BACKEND_UNSUPPORTED, what);
}

/* ---- tensors ---- */

/* A tensor that holds these numbers (int32_t for GGML_TYPE_I32) once the graph runs. */
static ggml_tensor *feed(call *c, int type, int rank, const int64_t *ne, const void *values)
{
    const int64_t count = count_of(rank, ne);
    const void *data = values;
    if (c->fed_count == MOST_FED) end(c, ASSAY_BACKEND_ERROR, "too many tensors");
    if (type == GGML_TYPE_F16 || type == GGML_TYPE_BF16) {
        uint16_t *codes = take(&c->memory, count);
        for (int64_t i = 0; i < count; i++) {
            const float x = ((const float *)values)[i];
            codes[i] = type == GGML_TYPE_F16 ? to_f16(x) : to_bf16(x);
        }
        data = codes;
    }
    ggml_tensor *t = ggml_new_tensor(c->ctx, type, rank, ne);
    c->fed[c->fed_count].tensor = t, c->fed[c->fed_count++].data = data;
    return t;
}

static float *numbers(call *c, const assay_backend_tensor *t)
{
    const int64_t count = count_of(t->rank, t->dims);
    float *values = take(&c->memory, count);
    load(values, t, 0, count);
    return values;
}

/* A tensor of the request by another shape, in float32; NULL where it is not there. */
static ggml_tensor *given(call *c, const char *path, int64_t ne0, int64_t ne1)
{
    const assay_backend_tensor *t = tensor(c->request, path);
    return t == NULL ? NULL : feed(c, GGML_TYPE_F32, 2, (const int64_t[]){ne0, ne1}, numbers(c, t));
}

/* Kernels [batch, k, n] as [k, n, batch] of ggml: columns `first` to first + n of those that are `width` wide. */
static ggml_tensor *kernels(call *c, int type, const assay_backend_tensor *t, int64_t first, int64_t n)
{
    const int64_t k = t->dims[t->rank - 2], width = t->dims[t->rank - 1], batch = t->rank == 3 ? t->dims[0] : 1;
    const float *values = numbers(c, t);
    float *turned = take(&c->memory, batch * n * k);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < k; j++) turned[(b * n + i) * k + j] = values[(b * k + j) * width + first + i];
    return feed(c, type, 3, (const int64_t[]){k, n, batch}, turned);
}

/* Runs what leads to these tensors. */
static void compute(call *c, int count, ggml_tensor *const *wanted)
{
    c->graph = ggml_new_graph(c->ctx);
    for (int i = 0; i < count; i++) ggml_build_forward_expand(c->graph, wanted[i]);
    c->buffer = ggml_backend_alloc_ctx_tensors(c->ctx, c->backend);
    if (c->buffer == NULL) end(c, ASSAY_BACKEND_ERROR, "out of memory");
    for (int i = 0; i < c->fed_count; i++)
        ggml_backend_tensor_set(c->fed[i].tensor, c->fed[i].data, 0, ggml_nbytes(c->fed[i].tensor));
    if (ggml_backend_graph_compute(c->backend, c->graph) != 0)
        end(c, ASSAY_BACKEND_ERROR, "ggml_backend_graph_compute failed");
}

static void *values_of(call *c, const ggml_tensor *t)
{
    void *values = take(&c->memory, ggml_nelements(t));
    ggml_backend_tensor_get(t, values, 0, ggml_nbytes(t));
    return values;
}

static void store(call *c, const char *path, assay_backend_type type, const ggml_tensor *t)
{
    write_result(result(c->request, path), type, values_of(c, t), ggml_nelements(t));
}

/* ---- rms_norm ---- */

static void run_rms_norm(call *c)
{
    const assay_backend_tensor *x = tensor(c->request, "inputs/x");
    const int64_t D = x->dims[x->rank - 1], rows = count_of(x->rank, x->dims) / D;
    ggml_tensor *n =
        ggml_rms_norm(c->ctx, given(c, "inputs/x", D, rows), (float)number(c->request, "normalization_layer_epsilon"));
    ggml_tensor *y = ggml_mul(c->ctx, n, given(c, "weights/scale", D, 1));
    compute(c, 1, &y);
    store(c, "outputs/y", ASSAY_BACKEND_FLOAT32, y);
}

/* ---- gmm ---- */

/* The group of each row, -1 of none. */
static int32_t *groups_of(call *c, int64_t rows, int64_t groups)
{
    const assay_backend_request *r = c->request;
    int32_t *of = take(&c->memory, rows);
    const char *layout = setting(r, "gmm_layout");
    memset(of, 0xff, (size_t)rows * sizeof *of);
    if (strcmp(layout, "contiguous") == 0) {
        memcpy(of, tensor(r, "inputs/m_indices")->data, (size_t)rows * sizeof *of);
        return of;
    }
    const bool masked = strcmp(layout, "masked") == 0, psum = strcmp(layout, "psum") == 0;
    need(c, masked || psum || strcmp(layout, "ragged") == 0, "gmm_layout");
    const int32_t *sizes = tensor(r, masked ? "inputs/masked_m" : psum ? "inputs/psum_m" : "inputs/group_sizes")->data;
    const int64_t alignment = (int64_t)number(r, "mk_alignment_for_contiguous_layout");
    for (int64_t g = 0, first = 0; g < groups; g++) {
        const int64_t last = psum ? sizes[g] : first + sizes[g];
        for (int64_t i = first; i < last; i++) of[i] = (int32_t)g;
        first = masked ? (g + 1) * (rows / groups) : psum ? (last + alignment - 1) / alignment * alignment : last;
    }
    return of;
}

static void run_gmm(call *c)
{
    const assay_backend_tensor *lhs = tensor(c->request, "inputs/lhs"), *rhs = tensor(c->request, "weights/rhs");
    need(c, rhs != NULL, "gmm_layout");
    const int64_t k = rhs->dims[1], n = rhs->dims[2], rows = count_of(lhs->rank, lhs->dims) / k;
    const int32_t *of = groups_of(c, rows, rhs->dims[0]);
    const float *x = numbers(c, lhs);
    float *used = take(&c->memory, rows * k), *y = take(&c->memory, rows * n);
    int32_t *ids = take(&c->memory, rows);
    int64_t count = 0;
    for (int64_t i = 0; i < rows; i++) {
        if (of[i] < 0) continue;
        memcpy(used + count * k, x + i * k, (size_t)k * sizeof *x);
        ids[count++] = of[i];
    }
    ggml_tensor *b = feed(c, GGML_TYPE_F32, 3, (const int64_t[]){k, 1, count}, used);
    ggml_tensor *id = feed(c, GGML_TYPE_I32, 2, (const int64_t[]){1, count}, ids);
    ggml_tensor *product = ggml_mul_mat_id(c->ctx, kernels(c, c->type, rhs, 0, n), b, id);
    compute(c, 1, &product);
    const float *made = values_of(c, product);
    for (int64_t i = 0; i < rows; i++)
        if (of[i] >= 0) memcpy(y + i * n, made, (size_t)n * sizeof *y), made += n;
    write_result(result(c->request, "outputs/y"), ASSAY_BACKEND_FLOAT32, y, rows * n);
}

/* ---- gated MLP ---- */

static ggml_tensor *gated(call *c, ggml_tensor *gate, ggml_tensor *up)
{
    const char *names = setting(c->request, "mlp_activations");
    const float limit = (float)number(c->request, "mlp_activations_limit");
    static const struct {
        const char *names;
        ggml_tensor *(*glu)(ggml_context *, ggml_tensor *, ggml_tensor *);
    } KNOWN[] = {{"silu,linear", ggml_swiglu_split},
                 {"gelu,linear", ggml_geglu_split},
                 {"gelu_exact,linear", ggml_geglu_erf_split}};
    if (is(c->request, "decoder_block", "gpt_oss")) return ggml_swiglu_oai(c->ctx, gate, up, 1.702F, limit);
    need(c, limit == 0, "mlp_activations_limit");
    for (size_t i = 0; i < sizeof KNOWN / sizeof *KNOWN; i++)
        if (strcmp(names, KNOWN[i].names) == 0) return KNOWN[i].glu(c->ctx, gate, up);
    if (strcmp(names, "relu,linear") == 0) return ggml_mul(c->ctx, ggml_relu(c->ctx, gate), up);
    if (strcmp(names, "sigmoid,linear") == 0) return ggml_mul(c->ctx, ggml_sigmoid(c->ctx, gate), up);
    need(c, false, "mlp_activations");
    return NULL;
}

static ggml_tensor *plus(call *c, ggml_tensor *a, const char *prefix, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s%s/bias", prefix, name);
    const assay_backend_tensor *bias = tensor(c->request, path);
    return bias == NULL ? a : ggml_add(c->ctx, a, given(c, path, bias->dims[0], 1));
}

static const assay_backend_tensor *kernel_of(const call *c, const char *prefix, const char *name)
{
    char path[96];
    snprintf(path, sizeof path, "%s%s/kernel", prefix, name);
    return tensor(c->request, path);
}

static ggml_tensor *mlp(call *c, ggml_tensor *x, const char *prefix)
{
    static const char *const NAMES[] = {"wi_0", "wi_1"};
    const assay_backend_tensor *fused = kernel_of(c, prefix, "wi"), *wo = kernel_of(c, prefix, "wo");
    ggml_tensor *halves[2];
    for (int i = 0; i < 2; i++) {
        const int64_t F = wo->dims[0];
        const assay_backend_tensor *w = fused != NULL ? fused : kernel_of(c, prefix, NAMES[i]);
        halves[i] = ggml_mul_mat(c->ctx, kernels(c, c->type, w, fused != NULL ? i * F : 0, F), x);
        halves[i] = plus(c, halves[i], prefix, NAMES[i]);
    }
    return plus(c, ggml_mul_mat(c->ctx, kernels(c, c->type, wo, 0, wo->dims[1]), gated(c, halves[0], halves[1])),
                prefix, "wo");
}

static void run_mlp(call *c)
{
    const assay_backend_tensor *x = tensor(c->request, "inputs/x");
    const int64_t D = x->dims[2];
    ggml_tensor *y = mlp(c, given(c, "inputs/x", D, x->dims[0] * x->dims[1]), "weights/");
    compute(c, 1, &y);
    store(c, "outputs/y", ASSAY_BACKEND_FLOAT32, y);
}

/* ---- moe: as llama.cpp builds it ---- */

static void check_moe(call *c)
{
    static const char *const WANTED[][2] = {{"num_redundant_experts", "0"},
                                            {"local_num_experts", "0"},
                                            {"num_fused_shared_experts", "0"},
                                            {"w13_reorder_size", "1"},
                                            {"apply_router_weight_on_input", "false"},
                                            {"apply_routed_scaling_factor_on_output", "true"},
                                            {"use_random_routing", "false"},
                                            {"first_num_hash_layers", "0"},
                                            {"fused_moe_func", "false"},
                                            {"routing_method", ""}};
    static const char *const OFF[] = {"load_balance_loss_weight", "router_z_loss_weight", "routed_bias_update_rate"};
    static const char *const ABSENT[] = {"inputs/selected_experts", "inputs/expert_map", "weights/per_expert_scale",
                                         "weights/shared_expert_gate/kernel"};
    static const char *const BLOCKS[] = {"llama4", "gemma4", "deepseek4"};
    for (size_t i = 0; i < sizeof WANTED / sizeof *WANTED; i++)
        need(c, is(c->request, WANTED[i][0], WANTED[i][1]), WANTED[i][0]);
    for (size_t i = 0; i < sizeof OFF / sizeof *OFF; i++) need(c, number(c->request, OFF[i]) == 0, OFF[i]);
    for (size_t i = 0; i < sizeof ABSENT / sizeof *ABSENT; i++)
        need(c, tensor(c->request, ABSENT[i]) == NULL, ABSENT[i]);
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++)
        need(c, !is(c->request, "decoder_block", BLOCKS[i]), "decoder_block");
    need(c, number(c->request, "capacity_factor") <= 0, "capacity_factor");
    need(c, number(c->request, "n_routing_groups") <= 1, "n_routing_groups");
}

/* Of logits [E,T]: the K chosen in ids [K,T]; their weights [1,K,T]. */
static ggml_tensor *routing(call *c, ggml_tensor *logits, ggml_tensor **ids)
{
    const assay_backend_request *r = c->request;
    const int64_t E = (int64_t)number(r, "num_experts"), K = (int64_t)number(r, "num_experts_per_tok"),
                  T = ggml_nelements(logits) / E;
    const char *function = setting(r, "routed_score_func");
    const float factor = (float)number(r, "routed_scaling_factor");
    const bool sigmoid = strcmp(function, "sigmoid") == 0, softmax = strcmp(function, "softmax") == 0;
    const bool of_deepseek = strncmp(setting(r, "decoder_block"), "deepseek", 8) == 0 ||
                             is(r, "decoder_block", "glm4_moe") || is(r, "decoder_block", "kimi_k2");
    const bool deepseek2 = strncmp(setting(r, "model_name"), "deepseek2", 9) == 0; /* weighs with the bias */
    need(c, sigmoid ? !deepseek2 : softmax || (*function == '\0' && !of_deepseek), "routed_score_func");
    ggml_tensor *scores = sigmoid ? ggml_sigmoid(c->ctx, logits) : softmax ? ggml_soft_max(c->ctx, logits) : logits;
    ggml_tensor *bias = given(c, "weights/gate/bias", E, 1);
    ggml_tensor *biased = bias == NULL ? scores : ggml_add(c->ctx, scores, bias);
    const bool logits_biased = !sigmoid && !softmax;
    need(c, sigmoid || logits_biased || bias == NULL, "routed_bias");
    *ids = ggml_argsort_top_k(c->ctx, biased, (int)K);
    ggml_tensor *all = ggml_reshape_3d(c->ctx, logits_biased ? biased : scores, 1, E, T);
    ggml_tensor *chosen = ggml_reshape_2d(c->ctx, ggml_get_rows(c->ctx, all, *ids), K, T);
    if (logits_biased) chosen = ggml_soft_max(c->ctx, chosen);
    if (sigmoid) chosen = ggml_div(c->ctx, chosen, ggml_sum_rows(c->ctx, chosen));
    if (factor != 1) chosen = ggml_scale(c->ctx, chosen, factor);
    return ggml_reshape_3d(c->ctx, chosen, 1, K, T);
}

static ggml_tensor *plus_of(call *c, ggml_tensor *a, const char *path, ggml_tensor *ids)
{
    const assay_backend_tensor *bias = tensor(c->request, path);
    return bias == NULL ? a : ggml_add_id(c->ctx, a, given(c, path, bias->dims[1], bias->dims[0]), ids);
}

static void run_moe(call *c)
{
    static const char *const KERNELS[] = {"weights/wi_0", "weights/wi_1"}, *const BIASES[] = {"weights/wi_0_bias",
                                                                                              "weights/wi_1_bias"};
    const assay_backend_tensor *input = tensor(c->request, "inputs/x"), *fused = tensor(c->request, "weights/wi"),
                               *wo = tensor(c->request, "weights/wo");
    check_moe(c);
    const int64_t D = input->dims[2], T = input->dims[0] * input->dims[1], H = wo->dims[1];
    const int64_t K = (int64_t)number(c->request, "num_experts_per_tok");
    const assay_backend_tensor *gate = tensor(c->request, "weights/gate/kernel");
    ggml_tensor *x = given(c, "inputs/x", D, T), *ids = NULL, *halves[2];
    ggml_tensor *weights = routing(c, ggml_mul_mat(c->ctx, kernels(c, GGML_TYPE_F32, gate, 0, gate->dims[1]), x), &ids);
    ggml_tensor *copies = ggml_reshape_3d(c->ctx, x, D, 1, T);
    for (int i = 0; i < 2; i++) {
        ggml_tensor *w =
            kernels(c, c->type, fused != NULL ? fused : tensor(c->request, KERNELS[i]), fused != NULL ? i * H : 0, H);
        halves[i] = plus_of(c, ggml_mul_mat_id(c->ctx, w, copies, ids), BIASES[i], ids);
    }
    ggml_tensor *down = ggml_mul_mat_id(c->ctx, kernels(c, c->type, wo, 0, D), gated(c, halves[0], halves[1]), ids);
    ggml_tensor *rows = ggml_mul(c->ctx, plus_of(c, down, "weights/wo_bias", ids), weights), *y = NULL;
    for (int64_t k = 0; k < K; k++) {
        const size_t row = (size_t)D * sizeof(float);
        ggml_tensor *of_slot = ggml_view_2d(c->ctx, rows, D, T, (size_t)K * row, (size_t)k * row);
        y = y == NULL ? ggml_cont(c->ctx, of_slot) : ggml_add(c->ctx, y, of_slot);
    }
    if (tensor(c->request, "weights/shared_experts/wo/kernel") != NULL)
        y = ggml_add(c->ctx, y, mlp(c, x, "weights/shared_experts/"));
    ggml_tensor *choice = ggml_cont(c->ctx, ids);
    compute(c, 3, (ggml_tensor *const[]){y, choice, weights});
    store(c, "outputs/y", ASSAY_BACKEND_FLOAT32, y);
    store(c, "routing/selected_experts", ASSAY_BACKEND_INT32, choice);
    store(c, "routing/weights", ASSAY_BACKEND_FLOAT32, weights);
}

/* ---- yarn_rope ---- */

static void run_yarn_rope(call *c)
{
    const assay_backend_request *r = c->request;
    const assay_backend_tensor *input = tensor(r, "inputs/x"), *places = tensor(r, "inputs/positions");
    const int64_t T = input->dims[0] * input->dims[1], N = input->dims[2], width = input->dims[3], half = width / 2;
    const bool yarn = is(r, "rope_type", "yarn"), pairs = is(r, "rope_interleave", "true"),
               kept = is(r, "rope_pairwise", "true");
    const float factor = yarn ? (float)number(r, "rope_factor") : 1, own = 1 + 0.1F * logf(factor);
    need(c, !yarn || is(r, "rope_truncate", "true"), "rope_truncate: ggml always rounds the ramp's ends");
    /* ggml's YaRN multiplies by `own`, as rope_attention_scaling does: divide, where that is off */
    const float scale = yarn && !is(r, "rope_attention_scaling", "true") ? 1 / own : 1;
    ggml_tensor *x = feed(c, GGML_TYPE_F32, 3, (const int64_t[]){width, N, T}, numbers(c, input));
    ggml_tensor *positions = feed(c, GGML_TYPE_I32, 1, &T, places->data);
    ggml_tensor *y =
        ggml_rope_ext(c->ctx, x, positions, NULL, (int)width, pairs ? GGML_ROPE_TYPE_NORMAL : GGML_ROPE_TYPE_NEOX,
                      (int)number(r, "original_max_position_embeddings"), (float)number(r, "rope_max_timescale"),
                      1 / factor, yarn ? 1 : 0, scale, (float)number(r, "beta_fast"), (float)number(r, "beta_slow"));
    compute(c, 1, &y);
    const float *rotated = values_of(c, y);
    float *laid_out = take(&c->memory, T * N * width);
    for (int64_t i = 0; i < T * N * width; i++) { /* first components, then second ones */
        const int64_t at = i % width, from = pairs && !kept ? at % half * 2 + at / half : at;
        laid_out[i] = rotated[i - at + from];
    }
    write_result(result(r, "outputs/y"), ASSAY_BACKEND_FLOAT32, laid_out, T * N * width);
}

/* ---- attention ---- */

static bool blind(const call *c, const int32_t *ids, int64_t token)
{
    return ids != NULL && is(c->request, "mask_padding", "true") && ids[token] == 0;
}

/* [B,S,heads,width] as [width,S,heads,B] of ggml; what padding holds, NaN too, is not read. */
static ggml_tensor *heads_of(call *c, const char *path, int type, const int32_t *ids)
{
    const assay_backend_tensor *t = tensor(c->request, path);
    const int64_t row = t->dims[2] * t->dims[3];
    float *values = numbers(c, t);
    for (int64_t i = 0; i < t->dims[0] * t->dims[1]; i++)
        if (blind(c, ids, i)) memset(values + i * row, 0, (size_t)row * sizeof *values);
    ggml_tensor *whole = feed(c, type, 4, (const int64_t[]){t->dims[3], t->dims[2], t->dims[1], t->dims[0]}, values);
    return ggml_permute(c->ctx, whole, 0, 2, 1, 3);
}

/* [S,S,1,B]: 0 for what is seen, -infinity elsewhere. A row that sees nothing is left open: its results are the shell's. */
static ggml_tensor *mask_of(call *c, int64_t B, int64_t S, const int32_t *ids)
{
    const int64_t window =
        is(c->request, "attention_type", "global") ? 0 : (int64_t)number(c->request, "sliding_window_size");
    float *mask = take(&c->memory, B * S * S);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < S; i++)
            for (int64_t j = 0; j < S; j++) {
                const bool same = ids == NULL || ids[b * S + i] == ids[b * S + j];
                const bool seen = j <= i && same && (window == 0 || i - j < window);
                mask[(b * S + i) * S + j] = seen || blind(c, ids, b * S + i) ? 0 : -INFINITY;
            }
    return feed(c, GGML_TYPE_F16, 4, (const int64_t[]){S, S, 1, B}, mask);
}

static void run_attention(call *c)
{
    const assay_backend_request *r = c->request;
    const assay_backend_tensor *q = tensor(r, "inputs/query"), *v = tensor(r, "inputs/value"),
                               *segments = tensor(r, "inputs/segment_ids");
    const int32_t *ids = segments == NULL ? NULL : segments->data;
    const int64_t B = q->dims[0], S = q->dims[1], N = q->dims[2], Dv = v->dims[3];
    ggml_tensor *query = heads_of(c, "inputs/query", GGML_TYPE_F32, ids),
                *key = heads_of(c, "inputs/key", c->type, ids), *value = heads_of(c, "inputs/value", c->type, ids),
                *mask = mask_of(c, B, S, ids), *sinks = given(c, "weights/sinks", N, 1);
    ggml_tensor *out = ggml_flash_attn_ext(c->ctx, query, key, value, mask, 1, 0, 0);
    ggml_flash_attn_ext_set_prec(out, GGML_PREC_F32);
    if (sinks != NULL) ggml_flash_attn_ext_add_sinks(out, sinks);
    /* ggml gives no log-sum-exp: the best score less the logarithm of its probability, by ggml's product and softmax */
    ggml_tensor *scores = ggml_mul_mat(c->ctx, key, query), *p = ggml_soft_max_ext(c->ctx, scores, mask, 1, 0);
    compute(c, 3, (ggml_tensor *const[]){out, scores, p});
    float *y = values_of(c, out), *lse = take(&c->memory, B * N * S);
    const float *all = values_of(c, scores), *probabilities = values_of(c, p);
    for (int64_t i = 0; i < B * N * S; i++) {
        const float *row = probabilities + i * S;
        const int64_t b = i / (N * S), s = i % S;
        int64_t best = 0;
        for (int64_t j = 1; j < S; j++) best = row[j] > row[best] ? j : best;
        lse[i] = blind(c, ids, b * S + s) ? -INFINITY : all[i * S + best] - logf(row[best]);
    }
    for (int64_t t = 0; t < B * S; t++)
        if (blind(c, ids, t)) memset(y + t * N * Dv, 0, (size_t)(N * Dv) * sizeof *y);
    write_result(result(r, "outputs/attention_out"), ASSAY_BACKEND_FLOAT32, y, B * S * N * Dv);
    write_result(result(r, "outputs/lse"), ASSAY_BACKEND_FLOAT32, lse, B * N * S);
}

/* ---- the call ---- */

static const struct operation {
    const char *name;
    void (*run)(call *c);
} OPERATIONS[] = {
    {"rms_norm", run_rms_norm},  {"gmm", run_gmm}, {"mlp", run_mlp}, {"moe", run_moe}, {"yarn_rope", run_yarn_rope},
    {"attention", run_attention}};

static const struct {
    const char *name;
    int type;
} TYPES[] = {{"f32", GGML_TYPE_F32}, {"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}};

static void check_mesh(call *c)
{
    static const char *const AXES[] = {"mesh.data",   "mesh.fsdp",   "mesh.fsdp_transpose",
                                       "mesh.expert", "mesh.tensor", "mesh.mlp_tensor"};
    for (size_t i = 0; i < sizeof AXES / sizeof *AXES; i++) need(c, number(c->request, AXES[i]) <= 1, AXES[i]);
}

static int attempt(call *c, const struct operation *operation)
{
    if (setjmp(c->memory.out_of_memory) != 0) return say(c->request, ASSAY_BACKEND_ERROR, "out of memory");
    if (setjmp(c->ended) != 0) return c->code;
    c->backend = ggml_backend_cpu_init();
    if (c->backend == NULL) end(c, ASSAY_BACKEND_ERROR, "ggml_backend_cpu_init failed");
    ggml_backend_cpu_set_n_threads(c->backend, 1);
    c->ctx =
        ggml_init((struct ggml_init_params){MOST_TENSORS * ggml_tensor_overhead() + ggml_graph_overhead(), NULL, true});
    if (c->ctx == NULL) end(c, ASSAY_BACKEND_ERROR, "out of memory");
    check_mesh(c);
    operation->run(c);
    return ASSAY_BACKEND_DONE;
}

#pragma GCC visibility push(default)

int assay_backend_run(const assay_backend_request *request)
{
    const char *type = getenv("ASSAY_GGML_TYPE"), *op = setting(request, "op");
    call c = {.request = request, .type = -1};
    const struct operation *operation = NULL;
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "made for another version of the interface");
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type == NULL ? "f32" : type, TYPES[i].name) == 0) c.type = TYPES[i].type;
    if (c.type < 0 || strcmp(ggml_type_name(c.type), type == NULL ? "f32" : type) != 0)
        return say(request, ASSAY_BACKEND_ERROR, "ASSAY_GGML_TYPE: expected f32, f16 or bf16, found %s", type);
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++)
        if (strcmp(op, OPERATIONS[i].name) == 0) operation = &OPERATIONS[i];
    if (operation == NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "no %s", op);
    if (has_quantised_operands(request)) return say(request, ASSAY_BACKEND_UNSUPPORTED, "quant_formats");
    if (rare_setting(request) != NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "%s", rare_setting(request));
    for (int i = 0; i < request->result_count; i++) request->results[i].written = 0;
    const int code = attempt(&c, operation);
    if (c.buffer != NULL) ggml_backend_buffer_free(c.buffer);
    if (c.ctx != NULL) ggml_free(c.ctx);
    if (c.backend != NULL) ggml_backend_free(c.backend);
    give_back(&c.memory, 0);
    return code;
}
