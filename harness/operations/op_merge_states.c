#include <math.h>

#include "harness/operations/op_work.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/ops/merge_states.h"

typedef struct merge_config {
    assay_merge_states_config merge; /* the first, since it is what the second form gets */
    bool sinks, grouped;             /* grouped: heads of head_dim numbers */
} merge_config;

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    const assay_model_config *m = &c->config;
    merge_config *config = to;
    config->sinks = m->attention_sink;
    config->grouped = assay_has_grouped_heads(m);
    config->merge = (assay_merge_states_config){.states = m->num_states,
                                                .batch = c->batch,
                                                .sequence = c->sequence,
                                                .heads = m->base_num_query_heads,
                                                .v_dim = config->grouped ? m->head_dim : m->v_head_dim,
                                                .base_2 = m->lse_base.text[0] == '2',
                                                .empty_row = m->empty_row.text[0] == '-' ? -INFINITY : INFINITY,
                                                .blind = m->attention_variant.blind};
    return assay_merge_states_check(ctx, &config->merge);
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_merge_states_config *m = &((const merge_config *)config)->merge;
    if (axis == 'P') return m->states;
    if (axis == 'B') return m->batch;
    if (axis == 'S') return m->sequence;
    return axis == 'N' ? m->heads : m->v_dim;
}

/* What a part without keys holds in partial_out is nothing to anybody. */
static void describe(assay_describer *d, const void *of)
{
    const merge_config *config = of;
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    assay_describe_variable(d, "inputs/partial_out", one, config->grouped ? "PBSNz" : "PBSNv");
    assay_described(d, 2)->unused_row_axes = 4;
    assay_describe_variable(d, "inputs/partial_lse", one, "PBNS");
    assay_described(d, 2)->infinite = true;
    if (config->sinks) assay_describe_variable(d, "weights/sinks", one, "N");
    assay_describe_output(d, "lse", &one, "BNS");
    assay_describe_output(d, "attention_out", &one, config->grouped ? "BSNz" : "BSNv");
}

static assay_status used_rows(assay_context *ctx, const assay_case *c, const assay_tensor_entry *of,
                              const assay_source *in, bool **used)
{
    const int64_t n = c->config.base_num_query_heads, tokens = c->config.num_states * c->batch * c->sequence;
    OWNED double *lse = NULL;
    (void)of;
    MUST(assay_alloc_f64(ctx, "inputs/partial_lse", tokens * n, &lse));
    MUST(in->read(ctx, in->self, "inputs/partial_lse", 0, tokens * n, lse));
    MUST(assay_alloc(ctx, "rows that are used", tokens * n, sizeof **used, used));
    for (int64_t i = 0; i < tokens * n; i++) {
        const int64_t token = i / n;
        (*used)[i] = !isinf(lse[(token / c->sequence * n + i % n) * c->sequence + token % c->sequence]);
    }
    return ASSAY_OK;
}

typedef struct merge_call {
    assay_merge_states_inputs in;
    assay_merge_states_call call;
} merge_call;

static void open_call(merge_call *m, const assay_work *w)
{
    m->in = (assay_merge_states_inputs){.partial_out = assay_f64(w, "inputs/partial_out"),
                                        .partial_lse = assay_f64(w, "inputs/partial_lse"),
                                        .sinks = assay_f64(w, "weights/sinks")};
    m->call = (assay_merge_states_call){.config = w->config,
                                        .in = &m->in,
                                        .attention_out = assay_f64(w, "outputs/attention_out"),
                                        .lse = assay_f64(w, "outputs/lse"),
                                        .dout = assay_f64(w, "cotangents/attention_out"),
                                        .dlse = assay_f64(w, "cotangents/lse")};
}

static assay_status forward(assay_context *ctx, const assay_work *w)
{
    merge_call m;
    open_call(&m, w);
    return assay_merge_states_forward(ctx, &m.call);
}

static assay_status backward(assay_context *ctx, const assay_work *w)
{
    const assay_merge_states_config *config = w->config;
    const assay_merge_states_gradients gradients = {.dpartial_out = assay_f64(w, "gradients/inputs/partial_out"),
                                                    .dpartial_lse = assay_f64(w, "gradients/inputs/partial_lse"),
                                                    .dsinks = assay_f64(w, "gradients/weights/sinks")};
    merge_call m;
    open_call(&m, w);
    assay_round(ctx, ASSAY_ROUND_STORAGE, config->batch * config->sequence * config->heads * config->v_dim,
                m.call.attention_out);
    return assay_merge_states_backward(ctx, &gradients, &m.call);
}

const assay_operation assay_op_merge_states = {.name = "merge_states",
                                               .components = ASSAY_USES_MERGE,
                                               .summary = "the merge of attention states by their log-sum-exp",
                                               .config_of = config_of,
                                               .axis_size = axis_size,
                                               .describe = describe,
                                               .forward = forward,
                                               .backward = backward,
                                               .used_rows = used_rows,
                                               .second_form = {.form = quad_merge_states},
                                               .count = {"PBSNv", 2, 6}};
