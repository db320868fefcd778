#include <stdio.h>
#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/base/memory.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_mla_config config;
    return assay_mla_config_of(ctx, c, &config);
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_mla_config config;
    const assay_status status = assay_mla_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_mla(ctx, &config, in, out) : status;
}

static assay_status second_checkpoints(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_mla_config config;
    const assay_status status = assay_mla_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_mla_checkpoints(ctx, &config, in, out) : status;
}

assay_status assay_describe_mla_weights(const assay_describer *d, const assay_mla_config *config)
{
    assay_status status;
    const int64_t dim = config->emb_dim, heads = config->heads, value = config->v_head_dim;
    const int64_t qk = config->qk_nope_head_dim + config->rope.dim, kv = config->qk_nope_head_dim + value;
    const int64_t q_rank = config->q_lora_rank, kv_rank = config->kv_lora_rank;
    const assay_fill scale = assay_fill_normal(0.1, 1.0);
    if (q_rank > 0) {
        TRY(assay_describe_weight(d, "wq_a/kernel", assay_fill_fan_in(dim), (assay_dims){"DL", {dim, q_rank}}));
        TRY(assay_describe_weight(d, "q_norm/scale", scale, (assay_dims){"L", {q_rank}}));
        TRY(assay_describe_weight(d, "wq_b/kernel", assay_fill_fan_in(q_rank),
                                  (assay_dims){"LNq", {q_rank, heads, qk}}));
    } else {
        TRY(assay_describe_weight(d, "query/kernel", assay_fill_fan_in(dim), (assay_dims){"DNq", {dim, heads, qk}}));
    }
    TRY(assay_describe_weight(d, "wkv_a/kernel", assay_fill_fan_in(dim),
                              (assay_dims){"Dw", {dim, kv_rank + config->rope.dim}}));
    TRY(assay_describe_weight(d, "kv_norm/scale", scale, (assay_dims){"l", {kv_rank}}));
    TRY(assay_describe_weight(d, "wkv_b/kernel", assay_fill_fan_in(kv_rank),
                              (assay_dims){"lNu", {kv_rank, heads, kv}}));
    TRY(assay_describe_weight(d, "out/kernel", assay_fill_fan_in(heads * value),
                              (assay_dims){"NvD", {heads, value, dim}}));
cleanup:
    return status;
}

assay_status assay_describe_mla_checkpoints(const assay_describer *d, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t batch = config->batch, sequence = config->sequence, heads = config->heads;
    const int64_t qk = config->qk_nope_head_dim + config->rope.dim, value = config->v_head_dim;
    const int64_t q_rank = config->q_lora_rank, kv_rank = config->kv_lora_rank;
    const assay_dims dims[ASSAY_MLA_TENSORS] = {
        [ASSAY_MLA_QUERY_WA_PROJ] = {"BSL", {batch, sequence, q_rank}},
        [ASSAY_MLA_MLA_Q] = {"BSL", {batch, sequence, q_rank}},
        [ASSAY_MLA_KV_WA_PROJ] = {"BSw", {batch, sequence, kv_rank + config->rope.dim}},
        [ASSAY_MLA_MLA_KV] = {"BSl", {batch, sequence, kv_rank}},
        [ASSAY_MLA_QUERY_PROJ] = {"BSNq", {batch, sequence, heads, qk}},
        [ASSAY_MLA_KEY_PROJ] = {"BSNq", {batch, sequence, heads, qk}},
        [ASSAY_MLA_VALUE_PROJ] = {"BSNv", {batch, sequence, heads, value}},
        [ASSAY_MLA_ATTENTION_OUT] = {"BSNv", {batch, sequence, heads, value}},
        [ASSAY_MLA_OUT_PROJ] = {"BSD", {batch, sequence, config->emb_dim}},
    };
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++) {
        if (assay_mla_tensor_count(config, (assay_mla_tensor)tensor) == 0) continue;
        TRY(assay_describe_result(d, "checkpoints", assay_mla_tensor_names[tensor], ASSAY_FLOAT64, dims[tensor]));
        if (tensor != ASSAY_MLA_ATTENTION_OUT) continue;
        TRY(assay_describe_result(d, "checkpoints", "lse", ASSAY_FLOAT64,
                                  (assay_dims){"BNS", {batch, heads, sequence}}));
    }
cleanup:
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    const assay_describer d = {.ctx = ctx, .c = c, .list = list, .layer = "", .block = ""};
    const assay_dims x = {"BSD", {c->batch, c->sequence, c->config.base_emb_dim}};
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_mla_config config;
    TRY(assay_mla_config_of(ctx, c, &config));
    TRY(assay_describe_variable(ctx, list, c, "inputs/x", one, x));
    TRY(assay_describe_positions(ctx, list, c));
    TRY(assay_describe_segments(ctx, list, c));
    TRY(assay_describe_mla_weights(&d, &config));
    TRY(assay_describe_output(ctx, list, c, "y", &one, x));
    TRY(assay_describe_mla_checkpoints(&d, &config));
cleanup:
    return status;
}

enum { X, WQ_A, Q_NORM, WQ_B, QUERY, WKV_A, KV_NORM, WKV_B, OUT, VARIABLES };

/* What is differentiated. */
typedef struct variable {
    const char *path;
    int64_t count;
    double *value, *gradient;
} variable;

static assay_status read_variables(assay_context *ctx, const assay_source *in, variable v[VARIABLES],
                                   const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = config->emb_dim, heads = config->heads, q_rank = config->q_lora_rank;
    const int64_t kv_rank = config->kv_lora_rank, qk = config->qk_nope_head_dim + config->rope.dim;
    const variable table[VARIABLES] = {
        [X] = {"inputs/x", config->batch * config->sequence * dim, NULL, NULL},
        [WQ_A] = {"weights/wq_a/kernel", dim * q_rank, NULL, NULL},
        [Q_NORM] = {"weights/q_norm/scale", q_rank, NULL, NULL},
        [WQ_B] = {"weights/wq_b/kernel", q_rank * heads * qk, NULL, NULL},
        [QUERY] = {"weights/query/kernel", dim * heads * qk, NULL, NULL},
        [WKV_A] = {"weights/wkv_a/kernel", dim * (kv_rank + config->rope.dim), NULL, NULL},
        [KV_NORM] = {"weights/kv_norm/scale", kv_rank, NULL, NULL},
        [WKV_B] = {"weights/wkv_b/kernel", kv_rank * heads * (config->qk_nope_head_dim + config->v_head_dim), NULL,
                   NULL},
        [OUT] = {"weights/out/kernel", heads * config->v_head_dim * dim, NULL, NULL},
    };
    for (int i = 0; i < VARIABLES; i++) v[i] = table[i];
    for (int i = 0; i < VARIABLES; i++) TRY(assay_read_whole(ctx, in, v[i].path, v[i].count, &v[i].value));
cleanup:
    return status;
}

static assay_mla_weights weights_of(const variable *v)
{
    return (assay_mla_weights){.wq_a = v[WQ_A].value,
                               .q_norm = v[Q_NORM].value,
                               .wq_b = v[WQ_B].value,
                               .query = v[QUERY].value,
                               .wkv_a = v[WKV_A].value,
                               .kv_norm = v[KV_NORM].value,
                               .wkv_b = v[WKV_B].value,
                               .out = v[OUT].value};
}

static assay_status forward(assay_context *ctx, const assay_sink *out, assay_mla_residuals *r,
                            const assay_mla_inputs *inputs, const assay_mla_weights *w, const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    char path[ASSAY_PATH_SIZE];
    for (int i = 0; i < ASSAY_MLA_TENSORS; i++) {
        const assay_mla_tensor tensor = (assay_mla_tensor)i;
        const int64_t count = assay_mla_tensor_count(config, tensor);
        TRY(assay_mla_compute(ctx, r, tensor, inputs, w, config));
        snprintf(path, sizeof path, "checkpoints/%s", assay_mla_tensor_names[i]);
        if (count > 0) TRY(assay_write_result(ctx, out, path, count, r->values[i]));
    }
    const int64_t rows = config->batch * config->sequence;
    TRY(assay_write_result(ctx, out, "checkpoints/lse", rows * config->heads, r->lse));
    TRY(assay_write_result(ctx, out, "outputs/y", rows * config->emb_dim, r->values[ASSAY_MLA_OUT_PROJ]));
cleanup:
    return status;
}

static assay_status backward(assay_context *ctx, const assay_source *in, const assay_sink *out, variable *v,
                             const assay_mla_residuals *r, const assay_mla_inputs *inputs,
                             const assay_mla_config *config)
{
    assay_status status = ASSAY_OK;
    const assay_mla_weights weights = weights_of(v);
    char path[ASSAY_PATH_SIZE];
    double *dy = NULL;
    bool any = false;
    for (int i = 0; i < VARIABLES; i++) {
        snprintf(path, sizeof path, "gradients/%s", v[i].path);
        if (v[i].value == NULL || !assay_wants(out, path)) continue;
        TRY(assay_alloc_f64(ctx, path, v[i].count, &v[i].gradient));
        any = true;
    }
    if (!any) goto cleanup;
    TRY(assay_read_whole(ctx, in, "cotangents/y", v[X].count, &dy));
    const assay_mla_gradients gradients = {.dx = v[X].gradient,
                                           .dwq_a = v[WQ_A].gradient,
                                           .dq_norm = v[Q_NORM].gradient,
                                           .dwq_b = v[WQ_B].gradient,
                                           .dquery = v[QUERY].gradient,
                                           .dwkv_a = v[WKV_A].gradient,
                                           .dkv_norm = v[KV_NORM].gradient,
                                           .dwkv_b = v[WKV_B].gradient,
                                           .dout = v[OUT].gradient};
    TRY(assay_mla_backward(ctx, &gradients, dy, r, inputs, &weights, config));
    for (int i = 0; i < VARIABLES; i++) {
        snprintf(path, sizeof path, "gradients/%s", v[i].path);
        if (v[i].gradient != NULL) TRY(assay_write_result(ctx, out, path, v[i].count, v[i].gradient));
    }
cleanup:
    free(dy);
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    const int64_t tokens = c->batch * c->sequence;
    variable v[VARIABLES] = {0};
    int32_t *positions = NULL, *segment_ids = NULL;
    assay_mla_residuals r = {0};
    assay_mla_config config;
    (void)precisions;
    (void)precision_count;
    TRY(assay_mla_config_of(ctx, c, &config));
    TRY(read_variables(ctx, in, v, &config));
    TRY(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &positions));
    TRY(assay_rope_check_positions(ctx, positions, tokens, &config.rope));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &segment_ids));
    if (segment_ids != NULL) TRY(assay_attention_check_segments(ctx, segment_ids, tokens));
    const assay_mla_inputs inputs = {v[X].value, positions, segment_ids};
    const assay_mla_weights weights = weights_of(v);
    TRY(forward(ctx, out, &r, &inputs, &weights, &config));
    TRY(backward(ctx, in, out, v, &r, &inputs, &config));
cleanup:
    for (int i = 0; i < VARIABLES; i++) {
        free(v[i].value);
        free(v[i].gradient);
    }
    free(positions);
    free(segment_ids);
    assay_mla_residuals_free(&r);
    return status;
}

assay_status assay_mla_run_absorbed(assay_context *ctx, const assay_case *c, const assay_source *in,
                                    const assay_sink *out)
{
    assay_status status;
    const int64_t tokens = c->batch * c->sequence;
    variable v[VARIABLES] = {0};
    int32_t *positions = NULL, *segment_ids = NULL;
    double *y = NULL;
    assay_mla_config config;
    TRY(assay_mla_config_of(ctx, c, &config));
    TRY(read_variables(ctx, in, v, &config));
    TRY(assay_read_whole_i32(ctx, in, "inputs/positions", tokens, &positions));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &segment_ids));
    TRY(assay_alloc_f64(ctx, "outputs/y", v[X].count, &y));
    const assay_mla_inputs inputs = {v[X].value, positions, segment_ids};
    const assay_mla_weights weights = weights_of(v);
    TRY(assay_mla_absorbed_forward(ctx, y, &inputs, &weights, &config));
    TRY(assay_write_result(ctx, out, "outputs/y", v[X].count, y));
cleanup:
    for (int i = 0; i < VARIABLES; i++) free(v[i].value);
    free(positions);
    free(segment_ids);
    free(y);
    return status;
}

static double flops(const assay_case *c, bool backward_too)
{
    assay_context ctx = {0};
    assay_mla_config config;
    double sum = 0;
    if (assay_mla_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        sum += assay_mla_tensor_flops(&config, (assay_mla_tensor)tensor);
    return sum + (backward_too ? assay_mla_backward_flops(&config) : 0.0);
}

/* Weights, intermediates, and the gradients of both. */
static int64_t memory(const assay_case *c)
{
    assay_context ctx = {0};
    assay_mla_config config;
    if (assay_mla_config_of(&ctx, c, &config) != ASSAY_OK) return 0;
    const double dim = (double)config.emb_dim, heads = (double)config.heads, q_rank = (double)config.q_lora_rank;
    const double kv_rank = (double)config.kv_lora_rank, rope = (double)config.rope.dim;
    const double qk = (double)config.qk_nope_head_dim + rope, v = (double)config.v_head_dim;
    double numbers = dim * q_rank + (q_rank > 0 ? q_rank : dim) * heads * qk + dim * (kv_rank + rope) +
                     kv_rank * heads * (qk + v) + heads * v * dim;
    numbers += 4 * (double)c->batch * (double)c->sequence * dim;
    for (int tensor = 0; tensor < ASSAY_MLA_TENSORS; tensor++)
        numbers += (double)assay_mla_tensor_count(&config, (assay_mla_tensor)tensor);
    const double scratch = 16 * (double)c->sequence * (4 * qk + 3 * v + 258), bytes = 8 * (2 * numbers + scratch);
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

const assay_operation assay_op_mla = {.name = "mla",
                                      .parts = ASSAY_PART_ATTENTION | ASSAY_PART_LATENT | ASSAY_PART_ROPE,
                                      .summary = "multi-head latent attention with YaRN",
                                      .check = check,
                                      .describe = describe,
                                      .run = run,
                                      .ensemble = assay_every_case,
                                      .second_form = {second_form, second_checkpoints},
                                      .flops = flops,
                                      .memory = memory};
