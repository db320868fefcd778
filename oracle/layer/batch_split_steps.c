#include "oracle/layer/batch_split_steps.h"

#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"
#include "oracle/blocks/mlp.h"

/* --- the graphs --- */

static int64_t axis_size(const void *run, char axis)
{
    return bs_axis_size(run, axis);
}

static graph *begin(bs_steps *s, const bs_run *run, int first)
{
    *s = (bs_steps){.first = first};
    graph_begin(&s->graph, run, axis_size);
    s->graph.adds_up = s->graph.unrounded = true;
    return &s->graph;
}

/* The next one, as a shard has it. */
static int weight_of(bs_steps *s, const bs_run *run)
{
    const int weight = s->first + s->graph.weight_count;
    assay_tensor_row row = bs_weight_row(run, weight);
    row.shape = bs_weight_shape(run, weight, true);
    return graph_weight(&s->graph, row);
}

/* A layer of experts, of one shard's microbatch, without the norm behind it. Its weights are the first ones of bs_weights. */
void bs_attention_graph(graph *g, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    assay_stack_config config = *run->stack->config;
    config.mla = run->mla;
    if (recipe != NULL) config.mla.recipe = *recipe;
    assay_layer_graph(g, &config, config.dense_layers);
    g->step_count--;
    g->result = graph_find(g, LAYER_H);
}

static void attention_steps(bs_steps *s, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    static const struct {
        bs_tensor tensor;
        const char *name;
    } names[] = {{MB_ANGLES, "rotation angles"}, {MB_LAYER_INPUTS, "inputs/x"},  {MB_LOW_RANK, "mla_kv"},
                 {MB_KEY_ROPE, "rotated_key"},   {MB_QUERY, "query_proj"},       {MB_KEY, "key_proj"},
                 {MB_VALUE, "value_proj"},       {MB_ATTN_OUT, "attention_out"}, {MB_LSE, "lse"},
                 {MB_OUT_PROJ, "out_proj"},      {MB_MLA_OUT, LAYER_H}};
    graph *g = begin(s, run, BS_PRE_NORM);
    bs_attention_graph(g, run, recipe);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) s->of[names[i].tensor] = graph_find(g, names[i].name);
    s->of[MB_MLA_INPUTS] = g->steps[0].out[0];
    for (int i = 0; i < 3; i++) s->needed[i] = s->of[MB_QUERY + i];
}

/* A recipe that quantises backward alone leaves the router as it is (arXiv 2412.19437, 3.3). */
static void gate_steps(bs_steps *s, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    static const assay_quant_recipe_config none = {0};
    const bool quantises = recipe->recipe != NULL && recipe->recipe->x.scales != ASSAY_SCALES_NONE;
    graph *g = begin(s, run, BS_GATE);
    const int x = s->of[MB_X_NORM] = graph_input(g, "x_norm", "TD"), w = weight_of(s, run);
    const int y = s->of[MB_LOGITS] = graph_linear(g, "TE", x, w, 0, quantises ? recipe : &none);
    graph_quantised(g, "logits_gradient", "TE", y);
    graph_end(g, y, GRAPH_LEFT);
}

static void norm_steps(bs_steps *s, const bs_run *run)
{
    graph *g = begin(s, run, BS_POST_NORM);
    const int x = s->of[MB_MLA_OUT] = graph_input(g, "mla_out", "aSD"), w = weight_of(s, run);
    s->of[MB_X_NORM] = graph_rms_norm(g, x, w, run->stack->config->epsilon);
    graph_end(g, s->of[MB_X_NORM], GRAPH_STORED);
}

void bs_sum_steps(bs_steps *s, const bs_run *run)
{
    graph *g = begin(s, run, BS_WEIGHTS);
    const int h = s->of[MB_MOE_INPUTS] = graph_input(g, "moe_inputs", "aSD");
    const int y = s->of[MB_EXPERTS_OUT] = graph_input(g, "experts_out", "aSD");
    s->of[MB_OUTPUTS] = graph_called(g, LAYER_SUM, graph_add(g, h, y));
    graph_end(g, s->of[MB_OUTPUTS], GRAPH_STORED);
}

/* h is called as the module calls it. */
static void shared_steps(bs_steps *s, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    static const char *const gradients[] = {"shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"};
    graph *g = &s->graph;
    assay_mlp_graph_config config = {.mlp = assay_moe_shared_config(&run->stack->config->moe, run->sizes.tokens),
                                     .place = ASSAY_MLP_SHARED};
    config.mlp.recipe = *recipe;
    begin(s, run, BS_SHARED);
    if (config.mlp.mlp_dim == 0) return;
    assay_mlp_graph(g, &config);
    s->shown = s->needed[0] = graph_called(g, "shared_intermediate", graph_find(g, "mlp_intermediate"));
    for (int i = 0; i < g->gradient_count; i++) g->tensors[g->gradients[i]].gradient.name = gradients[i];
    s->of[MB_X_NORM] = graph_find(g, "inputs/x");
    s->of[MB_SHARED_OUT] = g->result;
}

static int grouped(graph *g, const bs_run *run, const char *axes, int x, int w, const assay_quant_recipe_config *recipe)
{
    const graph_partition partition = {.groups = run->sizes.local_experts};
    const int y = graph_linear(g, axes, x, w, 0, recipe);
    graph_partition_product(g, y, &partition);
    return y;
}

static void gmm_steps(bs_steps *s, const bs_run *run, const assay_quant_recipe_config *recipe)
{
    graph *g = begin(s, run, BS_ROUTED + ASSAY_MLP_WI_0);
    const int x = s->of[MB_ROWS] = graph_input(g, "sorted rows", "rD"), w = weight_of(s, run);
    s->of[MB_GATE] = grouped(g, run, "rH", x, w, recipe);
    graph_end(g, s->of[MB_GATE], GRAPH_LEFT);
}

/* merge_gating_gmm: dx is one product with both kernels. */
static void gating_steps(bs_steps *s, const bs_run *run, int x, const int w[2], const assay_quant_recipe_config *recipe,
                         int gating[2])
{
    static const char *const gradients[] = {"layer_w0_gradient", "layer_w1_gradient"};
    const graph_partition partition = {.groups = run->sizes.local_experts};
    graph *g = &s->graph;
    if (run->stack->config->merge_gating_gmm) {
        graph_linear_two(g, "rH", x, w, (int[]){0, 0}, recipe, gating);
        graph_partition_product(g, gating[0], &partition);
        graph_maker(g, gating[0])->with.product.joined = true;
    } else {
        for (int i = 0; i < 2; i++) gating[i] = grouped(g, run, "rH", x, w[i], recipe);
    }
    for (int i = 0; i < 2; i++) graph_quantised(g, gradients[i], "rH", gating[i]);
    s->of[MB_GATE] = gating[0];
    s->of[MB_UP] = gating[1];
}

/* Beside products of codes, which are exact, errors of the activation show as in a run stage by stage. */
static void routed_steps(bs_steps *s, const bs_run *run, const assay_quant_recipe_config *recipe, bool weighs_outputs)
{
    const assay_moe_config *moe = &run->stack->config->moe;
    const assay_gated_mlp_config mlp = {.mlp_dim = moe->moe_mlp_dim, .activation = {moe->activation, ASSAY_LINEAR}};
    const bool quantises = recipe->recipe != NULL;
    graph *g = begin(s, run, BS_ROUTED);
    int w[ASSAY_MLP_WEIGHTS], gating[2];
    const int x = s->of[MB_ROWS] = graph_input(g, "sorted rows", "rD");
    const int weights = s->of[MB_ROW_WEIGHTS] = graph_input(g, ASSAY_MLP_ROW_WEIGHTS, "r");
    for (int i = 0; i < ASSAY_MLP_WEIGHTS; i++) w[i] = weight_of(s, run);
    gating_steps(s, run, x, &w[ASSAY_MLP_WI_0], recipe, gating);
    int y = graph_glu(g, "rH", gating[0], gating[1], &mlp);
    if (quantises) graph_maker(g, y)->staged = true;
    if (!weighs_outputs) y = graph_weigh(g, y, weights);
    if (quantises) s->shown = graph_named(g, "intermediate_layer", y);
    if (!weighs_outputs && !quantises) graph_fused(g, y);
    y = grouped(g, run, "rD", y, w[ASSAY_MLP_WO], recipe);
    if (weighs_outputs) y = graph_weigh(g, y, weights);
    s->of[MB_ROUTED_OUT] = y;
    graph_end(g, y, GRAPH_LEFT);
}

void bs_steps_open(bs_steps *steps, const assay_context *ctx, const bs_run *run,
                   const assay_quant_recipe_config *recipe, bool alone)
{
    attention_steps(&steps[BS_STEPS_ATTENTION], run, alone ? recipe : NULL);
    gate_steps(&steps[BS_STEPS_GATE], run, recipe);
    norm_steps(&steps[BS_STEPS_NORM], run);
    bs_sum_steps(&steps[BS_STEPS_SUM], run);
    shared_steps(&steps[BS_STEPS_SHARED], run, recipe);
    routed_steps(&steps[BS_STEPS_ROUTED], run, recipe, assay_uses_second_form(ctx) && recipe->recipe == NULL);
    if (alone) gmm_steps(&steps[BS_STEPS_GMM], run, recipe);
}

/* --- runs --- */

static bool is_listed(const bs_tensor *list, bs_tensor tensor)
{
    for (; *list != MB_NONE; list++)
        if (*list == tensor) return true;
    return false;
}

static double *part_of(const bs_run *run, const bs_microbatch *b, bs_tensor tensor, int64_t shard)
{
    return b->values[tensor] + shard * (bs_count(run, tensor) / run->sizes.shards);
}

static double *own_weight(const bs_steps *s, const bs_weights *w, int place, int64_t shard)
{
    double *values = w->values[s->first + place];
    return values == NULL ? NULL : values + shard * graph_size(&s->graph, s->graph.weights[place]);
}

/* A shard's, to which all is lent that there is of the microbatch but what `made` lists, which has room there. */
static assay_status open_run(assay_context *ctx, graph_run *r, const bs_layer *at, const bs_steps *s,
                             const bs_microbatch *b, int64_t shard, const bs_tensor *made)
{
    const bs_run *run = at->run;
    const int32_t *sizes = b->indices[MB_OWN_COUNTS];
    MUST(graph_open(ctx, r, &s->graph));
    r->group_sizes = sizes == NULL ? NULL : sizes + shard * run->sizes.local_experts;
    for (int i = 0; i < s->graph.weight_count; i++) graph_lend(r, s->graph.weights[i], own_weight(s, at->w, i, shard));
    for (int t = 0; t < MB_TENSORS; t++) {
        if (s->of[t] == 0 || b->values[t] == NULL) continue;
        double *part = part_of(run, b, (bs_tensor)t, shard);
        if (is_listed(made, (bs_tensor)t)) r->room[s->of[t]] = part;
        if (!is_listed(made, (bs_tensor)t)) graph_lend(r, s->of[t], part);
    }
    r->shown[s->of[MB_ATTN_OUT]] = r->shown[s->of[MB_LSE]] = true; /* shown of all at once */
    return bs_show_run(ctx, r, at, b, shard);
}

assay_status bs_steps_forward_shard(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                                    int64_t shard, const bs_tensor *made)
{
    const bs_steps *s = &at->steps[kind];
    OWNED_BY(graph_close) graph_run r = {0};
    for (int i = 0; made[i] != MB_NONE; i++) MUST(bs_make(ctx, at->run, b, made[i]));
    MUST(open_run(ctx, &r, at, s, b, shard, made));
    r.release = graph_let_go;
    for (int i = 0; made[i] != MB_NONE; i++)
        if (s->of[made[i]] == s->graph.result) return graph_forward(ctx, &r);
    for (int i = 0; made[i] != MB_NONE; i++) MUST(graph_show(ctx, &r, s->of[made[i]]));
    return ASSAY_OK;
}

assay_status bs_steps_forward(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                              const bs_tensor *made)
{
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++)
        MUST(bs_steps_forward_shard(ctx, at, kind, b, shard, made));
    return ASSAY_OK;
}

static const bs_tensor nothing[] = {MB_NONE};

assay_status bs_steps_remat(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b)
{
    const bs_steps *s = &at->steps[kind];
    const int64_t shards = at->run->sizes.shards;
    MUST(assay_alloc(ctx, "runs of the shards", shards, sizeof *b->runs[kind], &b->runs[kind]));
    memset(b->runs[kind], 0, (size_t)shards * sizeof *b->runs[kind]);
    for (int64_t shard = 0; shard < shards; shard++) {
        graph_run *r = &b->runs[kind][shard];
        MUST(open_run(ctx, r, at, s, b, shard, nothing));
        for (int i = 0; i < 3; i++) MUST(graph_require(ctx, r, s->needed[i]));
        graph_drop_within(r);
    }
    return ASSAY_OK;
}

static void sum_scales(const assay_context *ctx, const bs_layer *at, const bs_steps *s)
{
    for (int i = 0; i < s->graph.weight_count; i++) {
        const int weight = s->first + i, tensor = s->graph.weights[i];
        if (tensor == 0 || s->graph.tensors[tensor].row.kind != ASSAY_NORM_SCALE) continue;
        bs_sum_over_shards(ctx, at->run, at->g->values[weight], graph_size(&s->graph, tensor));
    }
}

/* What forward has not shown, the gradient's own call shows. */
static assay_status back(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, graph_run *r, bs_microbatch *d,
                         int64_t shard, const bs_tensor *made)
{
    const bs_steps *s = &at->steps[kind];
    const graph *g = &s->graph;
    for (int t = 0; t < MB_TENSORS; t++) {
        if (s->of[t] == 0 || d->values[t] == NULL) continue;
        double *part = part_of(at->run, d, (bs_tensor)t, shard);
        if (is_listed(made, (bs_tensor)t)) graph_want_gradient(r, s->of[t], part);
        if (!is_listed(made, (bs_tensor)t)) graph_lend_gradient(r, s->of[t], part);
    }
    for (int i = 0; i < g->weight_count; i++) graph_want_gradient(r, g->weights[i], own_weight(s, at->g, i, shard));
    if (at->made != NULL && !at->made->after_forward && r->gradient[g->result] != NULL)
        MUST(graph_show(ctx, r, s->shown));
    return graph_backward(ctx, r);
}

assay_status bs_steps_backward(assay_context *ctx, const bs_layer *at, bs_steps_kind kind, bs_microbatch *b,
                               bs_microbatch *d, const bs_tensor *made)
{
    for (int i = 0; made[i] != MB_NONE; i++) MUST(bs_make(ctx, at->run, d, made[i]));
    for (int64_t shard = 0; shard < at->run->sizes.shards; shard++) {
        OWNED_BY(graph_close) graph_run own = {0};
        graph_run *r = b->runs[kind] != NULL ? &b->runs[kind][shard] : &own;
        if (r == &own) MUST(open_run(ctx, r, at, &at->steps[kind], b, shard, nothing));
        MUST(back(ctx, at, kind, r, d, shard, made));
        graph_close(r);
    }
    sum_scales(ctx, at, &at->steps[kind]);
    return ASSAY_OK;
}
