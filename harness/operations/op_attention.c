#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_attention_config config;
    return assay_attention_config_of(ctx, c, &config);
}

static assay_status second_form(assay_context *ctx, const void *c, const spec_tensors *in, spec_tensors *out)
{
    assay_attention_config config;
    const assay_status status = assay_attention_config_of(ctx, c, &config);
    return status == ASSAY_OK ? spec_attention(ctx, &config, in, out) : status;
}

/* Padding at the end of a batch may hold anything. */
static assay_status describe_tensor(assay_context *ctx, const assay_case *c, assay_tensor_list *list, const char *path,
                                    double scale, assay_dims dims)
{
    const int at = list->count;
    assay_status status = assay_describe_variable(ctx, list, c, path, assay_fill_normal(scale, 0.0), dims);
    if (status == ASSAY_OK && assay_has_padding(c)) list->entries[at].unused_row_axes = 2;
    return status;
}

static assay_status describe(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    assay_status status;
    assay_attention_config config;
    assay_fill one = assay_fill_normal(1.0, 0.0);
    TRY(assay_attention_config_of(ctx, c, &config));
    const int64_t batch = config.batch, sequence = config.sequence, heads = config.heads;
    const assay_dims qk = {"BSNq", {batch, sequence, heads, config.qk_dim}};
    const assay_dims v = {"BSNv", {batch, sequence, heads, config.v_dim}};
    /* scores of order 1: what scales them in MLA */
    TRY(describe_tensor(ctx, c, list, "inputs/query", assay_fill_fan_in(config.qk_dim).scale, qk));
    TRY(describe_tensor(ctx, c, list, "inputs/key", 1.0, qk));
    TRY(describe_tensor(ctx, c, list, "inputs/value", 1.0, v));
    TRY(assay_describe_segments(ctx, list, c));
    TRY(assay_describe_output(ctx, list, c, "lse", &one, (assay_dims){"BNS", {batch, heads, sequence}}));
    TRY(assay_describe_output(ctx, list, c, "attention_out", &one, v));
    if (assay_has_padding(c)) list->entries[list->count - 1].unused_row_axes = 2;
cleanup:
    return status;
}

typedef struct tensors {
    double *query, *key, *value, *out, *lse, *dout, *dlse, *dquery, *dkey, *dvalue;
    int32_t *segment_ids;
} tensors;

static void free_tensors(tensors *t)
{
    free(t->query);
    free(t->key);
    free(t->value);
    free(t->out);
    free(t->lse);
    free(t->dout);
    free(t->dlse);
    free(t->dquery);
    free(t->dkey);
    free(t->dvalue);
    free(t->segment_ids);
}

/* Padding may hold anything, NaN too, and nothing else may. */
static assay_status check_finite(assay_context *ctx, const assay_case *c, const tensors *t,
                                 const assay_attention_config *config)
{
    assay_status status;
    const int64_t qk = config->heads * config->qk_dim, v = config->heads * config->v_dim;
    TRY(assay_require_finite_tokens(ctx, c, "inputs/query", t->query, qk, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "inputs/key", t->key, qk, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "inputs/value", t->value, v, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "cotangents/attention_out", t->dout, v, t->segment_ids));
cleanup:
    return status;
}

static assay_status backward(assay_context *ctx, tensors *t, const assay_source *in, const assay_sink *out,
                             const assay_attention_inputs *inputs, const assay_attention_config *config)
{
    assay_status status = ASSAY_OK;
    const int64_t rows = config->batch * config->sequence * config->heads;
    TRY(assay_read_whole(ctx, in, "cotangents/lse", rows, &t->dlse));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/query", rows * config->qk_dim, &t->dquery));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/key", rows * config->qk_dim, &t->dkey));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/value", rows * config->v_dim, &t->dvalue));
    const assay_attention_gradients gradients = {t->dquery, t->dkey, t->dvalue};
    TRY(assay_attention_backward(ctx, &gradients, t->dout, t->dlse, t->out, t->lse, inputs, config));
    TRY(assay_write_result(ctx, out, "gradients/inputs/query", rows * config->qk_dim, t->dquery));
    TRY(assay_write_result(ctx, out, "gradients/inputs/key", rows * config->qk_dim, t->dkey));
    TRY(assay_write_result(ctx, out, "gradients/inputs/value", rows * config->v_dim, t->dvalue));
cleanup:
    return status;
}

static assay_status run(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out,
                        const assay_precision *precisions, int precision_count)
{
    assay_status status;
    tensors t = {0};
    assay_attention_config config;
    (void)precisions;
    (void)precision_count;
    TRY(assay_attention_config_of(ctx, c, &config));
    const int64_t tokens = config.batch * config.sequence, rows = tokens * config.heads;
    TRY(assay_read_whole(ctx, in, "inputs/query", rows * config.qk_dim, &t.query));
    TRY(assay_read_whole(ctx, in, "inputs/key", rows * config.qk_dim, &t.key));
    TRY(assay_read_whole(ctx, in, "inputs/value", rows * config.v_dim, &t.value));
    TRY(assay_read_whole(ctx, in, "cotangents/attention_out", rows * config.v_dim, &t.dout));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &t.segment_ids));
    if (t.segment_ids != NULL) TRY(assay_attention_check_segments(ctx, t.segment_ids, tokens));
    TRY(check_finite(ctx, c, &t, &config));
    TRY(assay_alloc_f64(ctx, "outputs/attention_out", rows * config.v_dim, &t.out));
    TRY(assay_alloc_f64(ctx, "outputs/lse", rows, &t.lse));
    const assay_attention_inputs inputs = {t.query, t.key, t.value, t.segment_ids};
    TRY(assay_attention_forward(ctx, t.out, t.lse, &inputs, &config));
    TRY(assay_write_result(ctx, out, "outputs/attention_out", rows * config.v_dim, t.out));
    TRY(assay_write_result(ctx, out, "outputs/lse", rows, t.lse));
    if (assay_wants(out, "gradients/inputs/query") || assay_wants(out, "gradients/inputs/key") ||
        assay_wants(out, "gradients/inputs/value")) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, rows * config.v_dim, t.out); /* as backward reads it */
        TRY(backward(ctx, &t, in, out, &inputs, &config));
    }
cleanup:
    free_tensors(&t);
    return status;
}

static double flops(const assay_case *c, bool backward)
{
    assay_context ctx = {0};
    assay_attention_config config;
    if (assay_attention_config_of(&ctx, c, &config) != ASSAY_OK) return 0.0;
    return assay_attention_flops(&config, false) + (backward ? assay_attention_flops(&config, true) : 0.0);
}

/* The tensors and their gradients, and what one head of each of a few threads has. */
static int64_t memory(const assay_case *c)
{
    enum { THREADS = 16, BLOCK = 128 };
    const assay_model_config *m = &c->config;
    const double qk = (double)(m->qk_nope_head_dim + m->qk_rope_head_dim), v = (double)m->v_head_dim;
    const double length = (double)c->sequence, heads = (double)c->batch * (double)m->base_num_query_heads;
    const double workers = heads < THREADS ? heads : THREADS;
    const double bytes = 8 * length * (heads * (4 * qk + 4 * v + 2) + workers * (4 * qk + 3 * v + 2 + 2 * BLOCK));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

const assay_operation assay_op_attention = {.name = "attention",
                                            .parts = ASSAY_PART_ATTENTION,
                                            .summary = "causal attention with log-sum-exp and segments",
                                            .check = check,
                                            .describe = describe,
                                            .run = run,
                                            .ensemble = assay_every_case,
                                            .second_form = {.evaluate = second_form},
                                            .flops = flops,
                                            .memory = memory};
