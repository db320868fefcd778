#include <math.h>

#include "harness/operations/op_block.h"
#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"

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
    MUST(assay_require_positive(ctx, "num_states", m->num_states));
    MUST(assay_require_positive(ctx, "base_num_query_heads", m->base_num_query_heads));
    return assay_require_positive(ctx, "v_head_dim", config->merge.v_dim);
}

static int64_t axis_size(const void *config, char axis)
{
    const assay_merge_states_config *m = &((const merge_config *)config)->merge;
    if (axis == 'P') return m->states;
    if (axis == 'B') return m->batch;
    if (axis == 'S') return m->sequence;
    return axis == 'N' ? m->heads : m->v_dim;
}

static void graph_of(const void *of, graph *g)
{
    static const assay_tensor_form sinks = {"sinks", ASSAY_SINK, "N", 0};
    const merge_config *config = of;
    const char *axes = config->grouped ? "PBSNz" : "PBSNv";
    graph_begin(g, config, axis_size);
    const int partial_out = graph_input(g, "inputs/partial_out", axes);
    const int partial_lse = graph_input(g, "inputs/partial_lse", "PBNS");
    const int sink = config->sinks ? graph_weight(g, assay_tensor_row_of(&sinks, config, axis_size)) : 0;
    const int out =
        graph_with_lse(g, &graph_kind_merge_states, axes + 1, "BNS", (int[]){partial_out, partial_lse, sink}, 3,
                       &(graph_parameters){.merge = config->merge});
    graph_gives(g, "lse", graph_lse_of(g, out));
    graph_gives(g, "attention_out", out);
    graph_end(g, out, GRAPH_LEFT);
}

/* What a part without keys holds in partial_out is nothing to anybody. */
static void describe(assay_describer *d, const void *of)
{
    (void)of;
    assay_block_describe(d, &assay_op_merge_states);
    if (d->status != ASSAY_OK) return;
    d->list->entries[0].unused_row_axes = 4; /* partial_out, and behind its gradient partial_lse */
    d->list->entries[2].infinite = true;
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

const assay_operation assay_op_merge_states = {.name = "merge_states",
                                               .components = ASSAY_USES_MERGE,
                                               .summary = "the merge of attention states by their log-sum-exp",
                                               .config_of = config_of,
                                               .axis_size = axis_size,
                                               .describe = describe,
                                               .graph = graph_of,
                                               .used_rows = used_rows,
                                               .second_form = {.form = quad_merge_states},
                                               .count = {"PBSNv", 2, 6}};
