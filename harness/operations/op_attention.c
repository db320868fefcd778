#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/ops_shares.h"

static assay_status check(assay_context *ctx, const assay_case *c)
{
    assay_attention_config config;
    return assay_attention_config_of(ctx, c, &config);
}

static void second_form(quad_tape *t, const void *c)
{
    assay_attention_config config;
    if (quad_try(t, assay_attention_config_of(quad_context(t), c, &config))) quad_attention(t, &config);
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
    const int64_t batch = config.batch, sequence = config.sequence, heads = config.heads, shared = config.kv_heads;
    const bool grouped = assay_has_grouped_heads(&c->config);
    const bool said = c->config.base_num_kv_heads > 0 && !assay_says_latent(&c->config);
    const assay_dims q = {grouped ? "BSNz" : "BSNq", {batch, sequence, heads, config.qk_dim}};
    const assay_dims k = {grouped ? "BSgz" : said ? "BSgq" : "BSNq", {batch, sequence, shared, config.qk_dim}};
    const assay_dims v = {grouped ? "BSgz" : said ? "BSgv" : "BSNv", {batch, sequence, shared, config.v_dim}};
    const assay_dims out = {grouped ? "BSNz" : "BSNv", {batch, sequence, heads, config.v_dim}};
    /* scores of order 1: what scales them in MLA */
    TRY(describe_tensor(ctx, c, list, "inputs/query", assay_fill_fan_in(config.qk_dim).scale, q));
    TRY(describe_tensor(ctx, c, list, "inputs/key", 1.0, k));
    TRY(describe_tensor(ctx, c, list, "inputs/value", 1.0, v));
    TRY(assay_describe_segments(ctx, list, c));
    if (c->config.attention_sink)
        TRY(assay_describe_variable(ctx, list, c, "weights/sinks", one, (assay_dims){"N", {heads}}));
    TRY(assay_describe_output(ctx, list, c, "lse", &one, (assay_dims){"BNS", {batch, heads, sequence}}));
    TRY(assay_describe_output(ctx, list, c, "attention_out", &one, out));
    if (assay_has_padding(c)) list->entries[list->count - 1].unused_row_axes = 2;
cleanup:
    return status;
}

typedef struct tensors {
    double *query, *key, *value, *sinks, *out, *lse, *dout, *dlse, *dquery, *dkey, *dvalue, *dsinks;
    int32_t *segment_ids;
} tensors;

static void free_tensors(tensors *t)
{
    free(t->query);
    free(t->key);
    free(t->value);
    free(t->sinks);
    free(t->out);
    free(t->lse);
    free(t->dout);
    free(t->dlse);
    free(t->dquery);
    free(t->dkey);
    free(t->dvalue);
    free(t->dsinks);
    free(t->segment_ids);
}

/* How many numbers each has. */
typedef struct counts {
    int64_t rows, query, key, value, out;
} counts;

static counts counts_of(const assay_attention_config *config)
{
    const int64_t tokens = config->batch * config->sequence, rows = tokens * config->heads;
    const int64_t shared = tokens * config->kv_heads;
    return (counts){rows, rows * config->qk_dim, shared * config->qk_dim, shared * config->v_dim, rows * config->v_dim};
}

/* Padding may hold anything, NaN too, and nothing else may. */
static assay_status check_finite(assay_context *ctx, const assay_case *c, const tensors *t,
                                 const assay_attention_config *config)
{
    assay_status status;
    const int64_t q = config->heads * config->qk_dim, out = config->heads * config->v_dim;
    const int64_t k = config->kv_heads * config->qk_dim, v = config->kv_heads * config->v_dim;
    TRY(assay_require_finite_tokens(ctx, c, "inputs/query", t->query, q, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "inputs/key", t->key, k, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "inputs/value", t->value, v, t->segment_ids));
    TRY(assay_require_finite_tokens(ctx, c, "cotangents/attention_out", t->dout, out, t->segment_ids));
cleanup:
    return status;
}

static assay_status backward(assay_context *ctx, tensors *t, const assay_source *in, const assay_sink *out,
                             const assay_attention_inputs *inputs, const assay_attention_config *config)
{
    assay_status status = ASSAY_OK;
    const counts n = counts_of(config);
    TRY(assay_read_whole(ctx, in, "cotangents/lse", n.rows, &t->dlse));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/query", n.query, &t->dquery));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/key", n.key, &t->dkey));
    TRY(assay_alloc_f64(ctx, "gradients/inputs/value", n.value, &t->dvalue));
    if (t->sinks != NULL) TRY(assay_alloc_f64(ctx, "gradients/weights/sinks", config->heads, &t->dsinks));
    const assay_attention_gradients gradients = {t->dquery, t->dkey, t->dvalue, t->dsinks};
    TRY(assay_attention_backward(ctx, &gradients, t->dout, t->dlse, t->out, t->lse, inputs, config));
    TRY(assay_write_result(ctx, out, "gradients/inputs/query", n.query, t->dquery));
    TRY(assay_write_result(ctx, out, "gradients/inputs/key", n.key, t->dkey));
    TRY(assay_write_result(ctx, out, "gradients/inputs/value", n.value, t->dvalue));
    if (t->sinks != NULL) TRY(assay_write_result(ctx, out, "gradients/weights/sinks", config->heads, t->dsinks));
cleanup:
    return status;
}

static bool wants_backward(const assay_sink *out)
{
    return assay_wants(out, "gradients/inputs/query") || assay_wants(out, "gradients/inputs/key") ||
           assay_wants(out, "gradients/inputs/value") || assay_wants(out, "gradients/weights/sinks");
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
    const counts n = counts_of(&config);
    const int64_t tokens = config.batch * config.sequence;
    TRY(assay_read_whole(ctx, in, "inputs/query", n.query, &t.query));
    TRY(assay_read_whole(ctx, in, "inputs/key", n.key, &t.key));
    TRY(assay_read_whole(ctx, in, "inputs/value", n.value, &t.value));
    TRY(assay_read_whole(ctx, in, "weights/sinks", config.heads, &t.sinks));
    TRY(assay_read_whole(ctx, in, "cotangents/attention_out", n.out, &t.dout));
    TRY(assay_read_whole_i32(ctx, in, "inputs/segment_ids", tokens, &t.segment_ids));
    if (t.segment_ids != NULL) TRY(assay_attention_check_segments(ctx, t.segment_ids, tokens));
    TRY(check_finite(ctx, c, &t, &config));
    TRY(assay_alloc_f64(ctx, "outputs/attention_out", n.out, &t.out));
    TRY(assay_alloc_f64(ctx, "outputs/lse", n.rows, &t.lse));
    const assay_attention_inputs inputs = {t.query, t.key, t.value, t.segment_ids, t.sinks};
    TRY(assay_attention_forward(ctx, t.out, t.lse, &inputs, &config));
    TRY(assay_write_result(ctx, out, "outputs/attention_out", n.out, t.out));
    TRY(assay_write_result(ctx, out, "outputs/lse", n.rows, t.lse));
    if (wants_backward(out)) {
        assay_round(ctx, ASSAY_ROUND_STORAGE, n.out, t.out); /* as backward reads it */
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
    assay_context ctx = {0};
    assay_attention_config config;
    if (assay_attention_config_of(&ctx, c, &config) != ASSAY_OK) return 0;
    const double qk = (double)config.qk_dim, v = (double)config.v_dim, length = (double)c->sequence;
    const double heads = (double)c->batch * (double)config.heads, shared = (double)c->batch * (double)config.kv_heads;
    const double workers = shared < THREADS ? shared : THREADS;
    const double numbers = heads * (2 * qk + 2 * v + 2) + shared * (2 * qk + 2 * v);
    const double bytes = 8 * length * (numbers + workers * (4 * qk + 3 * v + 2 + 2 * BLOCK));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

static void shares_of(const assay_case *c, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    assay_context ctx = {0};
    assay_attention_config config;
    (void)in, (void)scales, (void)count;
    if (assay_attention_config_of(&ctx, c, &config) != ASSAY_OK) return;
    assay_attention_shares(shares, least, &config, false);
    if (wants_backward(out)) assay_attention_shares(shares, least, &config, true);
}

const assay_operation assay_op_attention = {.name = "attention",
                                            .parts = ASSAY_PART_ATTENTION | ASSAY_PART_SHARING,
                                            .summary = "causal attention with log-sum-exp and segments",
                                            .check = check,
                                            .describe = describe,
                                            .run = run,
                                            .ensemble = assay_every_case,
                                            .second_form = {.form = second_form},
                                            .flops = flops,
                                            .memory = memory,
                                            .shares = shares_of};
