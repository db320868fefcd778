#include "harness/operations/op_work.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/ops/ops_shares.h"

typedef struct attention_config {
    assay_attention_config attention; /* the first, since it is what the second form gets */
    bool sinks, padding;
    bool grouped; /* heads of one width, head_dim */
    bool shared;  /* key-value heads were said */
} attention_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    attention_config *config = to;
    config->sinks = c->config.attention_sink;
    config->padding = assay_has_padding(c);
    config->grouped = assay_has_grouped_heads(&c->config);
    config->shared = c->config.base_num_kv_heads > 0 && !assay_says_latent(&c->config);
    return assay_attention_config_of(ctx, c, &config->attention);
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_attention_config *a = &((const attention_config *)config)->attention;
    if (axis == 'B') return a->batch;
    if (axis == 'S') return a->sequence;
    if (axis == 'N') return a->heads;
    if (axis == 'g') return a->kv_heads;
    if (axis == 'v') return a->v_dim;
    return a->qk_dim;
}

/* Padding at the end of a batch may hold anything. */
static void describe_tensor(assay_describer *d, const char *path, double scale, const char *axes)
{
    assay_describe_variable(d, path, assay_fill_normal(scale, 0.0), axes);
    if (((const attention_config *)d->config)->padding) assay_described(d, 2)->unused_row_axes = 2;
}

static void describe(assay_describer *d, const void *of)
{
    const attention_config *config = of;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    const bool grouped = config->grouped, shared = config->shared;
    /* scores of order 1: what scales them in MLA */
    describe_tensor(d, "inputs/query", assay_fill_fan_in(config->attention.qk_dim).scale, grouped ? "BSNz" : "BSNq");
    describe_tensor(d, "inputs/key", 1.0, grouped ? "BSgz" : shared ? "BSgq" : "BSNq");
    describe_tensor(d, "inputs/value", 1.0, grouped ? "BSgz" : shared ? "BSgv" : "BSNv");
    assay_describe_segments(d);
    if (config->sinks) assay_describe_variable(d, "weights/sinks", one, "N");
    assay_describe_output(d, "lse", &one, "BNS");
    assay_describe_output(d, "attention_out", &one, grouped ? "BSNz" : "BSNv");
    if (config->padding) assay_described(d, 1)->unused_row_axes = 2;
}

static assay_attention_inputs inputs_of(const assay_work *w)
{
    return (assay_attention_inputs){.query = assay_f64(w, "inputs/query"),
                                    .key = assay_f64(w, "inputs/key"),
                                    .value = assay_f64(w, "inputs/value"),
                                    .segment_ids = assay_i32(w, "inputs/segment_ids"),
                                    .sinks = assay_f64(w, "weights/sinks")};
}

/* Padding may hold anything, NaN too, and nothing else may. */
static assay_status check_finite(assay_context *ctx, const assay_work *w, const int32_t *segment_ids)
{
    static const char *const paths[] = {"inputs/query", "inputs/key", "inputs/value", "cotangents/attention_out"};
    const assay_attention_config *a = w->config;
    const int64_t widths[] = {a->heads * a->qk_dim, a->kv_heads * a->qk_dim, a->kv_heads * a->v_dim,
                              a->heads * a->v_dim};
    for (int i = 0; i < 4; i++)
        MUST(assay_attention_check_tokens(ctx, paths[i], assay_f64(w, paths[i]), a->batch * a->sequence, a->sequence,
                                          widths[i], a->mask_padding ? segment_ids : NULL));
    return ASSAY_OK;
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    const assay_attention_config *config = w->config;
    const assay_attention_inputs in = inputs_of(w);
    if (in.segment_ids != NULL)
        MUST(assay_attention_check_segments(ctx, in.segment_ids, config->batch * config->sequence));
    MUST(check_finite(ctx, w, in.segment_ids));
    return assay_attention_forward(ctx, assay_f64(w, "outputs/attention_out"), assay_f64(w, "outputs/lse"), &in,
                                   config);
}

static assay_status backward(assay_context *ctx, const assay_work *w)
{
    const assay_attention_config *config = w->config;
    const assay_attention_inputs in = inputs_of(w);
    const assay_attention_gradients gradients = {
        assay_f64(w, "gradients/inputs/query"), assay_f64(w, "gradients/inputs/key"),
        assay_f64(w, "gradients/inputs/value"), assay_f64(w, "gradients/weights/sinks")};
    double *out = assay_f64(w, "outputs/attention_out");
    assay_round(ctx, ASSAY_ROUND_STORAGE, config->batch * config->sequence * config->heads * config->v_dim, out);
    return assay_attention_backward(ctx, &gradients, assay_f64(w, "cotangents/attention_out"),
                                    assay_f64(w, "cotangents/lse"), out, assay_f64(w, "outputs/lse"), &in, config);
}

static double flops(const void *config, bool backward)
{
    return assay_attention_flops(config, false) + (backward ? assay_attention_flops(config, true) : 0.0);
}

/* The tensors and their gradients, and what one head of each of a few threads has. */
static int64_t memory(const void *of)
{
    enum { THREADS = 16, BLOCK = 128 };
    const assay_attention_config *a = of;
    const double qk = (double)a->qk_dim, v = (double)a->v_dim, length = (double)a->sequence;
    const double heads = (double)a->batch * (double)a->heads, shared = (double)a->batch * (double)a->kv_heads;
    const double workers = shared < THREADS ? shared : THREADS;
    const double numbers = heads * (2 * qk + 2 * v + 2) + shared * (2 * qk + 2 * v);
    const double bytes = 8 * length * (numbers + workers * (4 * qk + 3 * v + 2 + 2 * BLOCK));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

static void shares_of(const void *config, double least, const assay_source *in, const assay_sink *out,
                      const assay_sink *scales, int count, assay_run_shares *shares)
{
    static const char *const gradients[] = {"gradients/inputs/query", "gradients/inputs/key", "gradients/inputs/value",
                                            "gradients/weights/sinks"};
    bool backward_too = false;
    (void)in, (void)scales, (void)count;
    for (int i = 0; i < 4; i++) backward_too |= assay_wants(out, gradients[i]);
    assay_attention_shares(shares, least, config, false);
    if (backward_too) assay_attention_shares(shares, least, config, true);
}

const assay_operation assay_op_attention = {.name = "attention",
                                            .parts = ASSAY_PART_ATTENTION | ASSAY_PART_SHARING,
                                            .summary = "causal attention with log-sum-exp and segments",
                                            .config_of = config_of,
                                            .axis_size = axis_size,
                                            .describe = describe,
                                            .forward = forward,
                                            .backward = backward,
                                            .ensemble = assay_every_case,
                                            .second_form = {.form = quad_attention},
                                            .operations = flops,
                                            .bytes = memory,
                                            .shares = shares_of};
