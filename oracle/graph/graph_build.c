/* Puts tensors and steps down; graph.h is the contract. Blocks are written to fit: nothing here can fail. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/graph/graph_kind.h"
#include "oracle/graph/graph_map.h"

void graph_begin(graph *g, const void *config, int64_t (*axis_size)(const void *config, char axis))
{
    memset(g, 0, offsetof(graph, own_tensors)); /* the rest is written as it is put down: graphs are built often */
    g->tensors = g->own_tensors;
    g->steps = g->own_steps;
    g->outputs = g->own_outputs;
    graph_within(g, config, axis_size);
    g->tensor_count = 1;
    g->tensors[0] = (graph_tensor){.step = -1};
}

assay_status graph_open_room(assay_context *ctx, graph *g, int64_t tensors, int64_t steps, int64_t outputs)
{
    MUST(assay_alloc(ctx, "steps of a program", steps + 1, sizeof *g->steps, &g->steps));
    MUST(assay_alloc(ctx, "tensors of a program", tensors + 1, sizeof *g->tensors, &g->tensors));
    MUST(assay_alloc(ctx, "outputs of a program", outputs + 1, sizeof *g->outputs, &g->outputs));
    g->tensors[0] = g->own_tensors[0];
    return ASSAY_OK;
}

void graph_close_room(graph *g)
{
    if (g->tensors != g->own_tensors) free(g->tensors);
    if (g->steps != g->own_steps) free(g->steps);
    if (g->outputs != g->own_outputs) free(g->outputs);
}

void graph_within(graph *g, const void *config, int64_t (*axis_size)(const void *config, char axis))
{
    g->config = config;
    g->axis_size = axis_size;
}

static int add_tensor(graph *g, assay_tensor_row row, graph_role role)
{
    g->tensors[g->tensor_count] = (graph_tensor){.row = row, .role = role, .step = -1, .last = -1};
    return g->tensor_count++;
}

static assay_tensor_row row_of(const graph *g, const char *name, const char *axes)
{
    const assay_tensor_form form = {name, ASSAY_CHECKPOINT, axes, 0};
    return assay_tensor_row_of(&form, g->config, g->axis_size);
}

int graph_input(graph *g, const char *name, const char *axes)
{
    return add_tensor(g, row_of(g, name, axes), GRAPH_INPUT);
}

int graph_number(graph *g, const char *text, double number)
{
    const int tensor = add_tensor(g, row_of(g, text, ""), GRAPH_NUMBER);
    g->tensors[tensor].number = number;
    return tensor;
}

int graph_indices(graph *g, const char *name, const char *axes)
{
    return add_tensor(g, row_of(g, name, axes), GRAPH_INDICES);
}

int graph_weight(graph *g, assay_tensor_row row)
{
    const int weight = row.name == NULL ? 0 : add_tensor(g, row, GRAPH_WEIGHT);
    g->weights[g->weight_count++] = weight;
    return weight;
}

int graph_called(graph *g, const char *name, int tensor)
{
    g->tensors[tensor].row.name = name;
    return tensor;
}

int graph_named(graph *g, const char *name, int tensor)
{
    g->tensors[tensor].role = GRAPH_CHECKPOINT;
    return graph_called(g, name, tensor);
}

void graph_quantised(graph *g, const char *name, const char *axes, int tensor)
{
    const int step = g->tensors[tensor].step;
    if (g->steps[step].with.product.recipe.recipe == NULL || name == NULL) return;
    g->tensors[tensor].gradient = row_of(g, name, axes);
    g->gradients[g->gradient_count++] = tensor;
}

int graph_fused(graph *g, int tensor)
{
    g->tensors[tensor].kept = GRAPH_REGISTERS;
    return tensor;
}

void graph_gives(graph *g, const char *name, int tensor)
{
    g->outputs[g->output_count++] = (graph_output){name, tensor};
}

/* From outputs on: what is read through a detach alone is not reached. */
static void mark_flows(graph *g)
{
    for (int i = 0; i < g->output_count; i++) g->tensors[g->outputs[i].tensor].flows = true;
    for (int i = g->step_count - 1; i >= 0; i--) {
        const graph_step *step = &g->steps[i];
        bool any = false;
        for (int k = 0; k < GRAPH_OUT; k++) any |= step->out[k] != 0 && g->tensors[step->out[k]].flows;
        for (int k = 0; k < GRAPH_IN; k++) g->tensors[step->in[k]].flows |= any && step->kind->backward != NULL;
    }
}

void graph_end(graph *g, int result, graph_keeping kept)
{
    g->result = result;
    g->tensors[result].kept = kept;
    g->config = NULL;
    for (int i = 0; i < g->step_count; i++)
        for (int k = 0; k < GRAPH_IN; k++) g->tensors[g->steps[i].in[k]].last = i;
    for (int i = 0; i < g->output_count; i++)
        g->tensors[g->outputs[i].tensor].last = g->step_count; /* read at the end */
    if (kept == GRAPH_STORED) g->tensors[result].last = g->step_count;
    if (g->output_count == 0 && result != 0) graph_gives(g, "y", result);
    mark_flows(g);
}

/* A step without outputs. */
static graph_step *add_step(graph *g, const graph_kind *kind, int a, int b, int c)
{
    g->steps[g->step_count] = (graph_step){.kind = kind, .in = {a, b, c}};
    return &g->steps[g->step_count++];
}

static int add_output(graph *g, graph_step *step, int place, assay_tensor_row row)
{
    const int tensor = add_tensor(g, row, GRAPH_WITHIN);
    g->tensors[tensor].step = (int)(step - g->steps);
    g->tensors[tensor].kept = GRAPH_STORED;
    return step->out[place] = tensor;
}

/* Laid out as an input. */
static int add_output_like(graph *g, graph_step *step, const char *name, int x)
{
    assay_tensor_row row = g->tensors[x].row;
    row.name = name;
    return add_output(g, step, 0, row);
}

/* A recipe quantises what the step is given. */
static void take_recipe(graph *g, graph_step *step, const assay_quant_recipe_config *recipe)
{
    graph_tensor *x = &g->tensors[step->in[0]];
    if (recipe == NULL || recipe->recipe == NULL) return;
    step->with.product.recipe = *recipe;
    x->quantised |= x->step >= 0;
}

graph_step *graph_maker(graph *g, int tensor)
{
    return &g->steps[g->tensors[tensor].step];
}

static int linear(graph *g, const char *axes, const int in[5], int branches, const assay_quant_recipe_config *recipe)
{
    graph_step *step = add_step(g, &graph_kind_linear, 0, 0, 0);
    for (int i = 0; i < 5; i++) step->in[i] = in[i];
    take_recipe(g, step, recipe);
    step->with.product.branches = branches;
    return add_output(g, step, 0, row_of(g, "product", axes));
}

int graph_linear(graph *g, const char *axes, int x, int w, int bias, const assay_quant_recipe_config *recipe)
{
    return linear(g, axes, (int[5]){x, w, bias}, 1, recipe);
}

int graph_linear_pair(graph *g, const char *axes, int x, int w, const int bias[2],
                      const assay_quant_recipe_config *recipe)
{
    return linear(g, axes, (int[5]){x, w, bias[0], bias[1]}, 2, recipe);
}

void graph_linear_two(graph *g, const char *axes, int x, const int w[2], const int bias[2],
                      const assay_quant_recipe_config *recipe, int out[2])
{
    out[0] = linear(g, axes, (int[5]){x, w[0], bias[0], bias[1], w[1]}, 1, recipe);
    out[1] = add_output(g, graph_maker(g, out[0]), 1, row_of(g, "product", axes));
}

int graph_linear_grouped(graph *g, const char *axes, int x, int w, int group_sizes)
{
    const int y = graph_linear(g, axes, x, w, 0, NULL);
    graph_maker(g, y)->in[GRAPH_GROUP_SIZES] = group_sizes;
    return y;
}

void graph_partition_product(graph *g, int tensor, const graph_partition *partition)
{
    graph_maker(g, tensor)->with.product.partition = *partition;
}

int graph_weigh(graph *g, int x, int weights)
{
    return add_output_like(g, add_step(g, &graph_kind_weigh_rows, x, weights, 0), "weighed", x);
}

int graph_stored(graph *g, int x)
{
    graph_step *step = add_step(g, &graph_kind_order, graph_fused(g, x), 0, 0);
    step->with.general.function = 1;
    return add_output_like(g, step, "rounded", x);
}

int graph_add(graph *g, int x, int y)
{
    graph_step *step = add_step(g, &graph_kind_binary, x, y, 0);
    step->with.general.function = GRAPH_BINARY_add;
    return add_output_like(g, step, "sum", x);
}

int graph_glu(graph *g, const char *axes, int gate, int up, const assay_gated_mlp_config *config)
{
    graph_step *step = add_step(g, &graph_kind_glu, gate, up, 0);
    step->with.mlp = *config;
    return add_output(g, step, 0, row_of(g, "h", axes));
}

int graph_block(graph *g, const graph_kind *kind, int x, const void *config)
{
    graph_step *step = add_step(g, kind, x, 0, 0);
    step->with.block = config;
    return add_output_like(g, step, kind->name, x);
}

void graph_aside(graph *g, int y, assay_tensor_row row)
{
    g->tensors[add_tensor(g, row, GRAPH_ASIDE)].step = g->tensors[y].step;
}

int graph_quantise_hidden(graph *g, const char *codes, const char *scale, int h, const assay_quantize_config *config)
{
    graph_step *quantise = add_step(g, &graph_kind_quantise_hidden, h, 0, 0), *numbers;
    assay_tensor_row row = g->tensors[h].row, of_blocks = row;
    of_blocks.shape = assay_quantize_scales_of(config, &row.shape);
    if (config->format->rows > 1) of_blocks.axes[0] = '2';
    of_blocks.axes[of_blocks.shape.rank - 1] = '3';
    of_blocks.axes[of_blocks.shape.rank] = '\0';
    quantise->with.quantise = *config;
    g->tensors[h].quantised = true;
    const int made[2] = {graph_named(g, codes, add_output(g, quantise, 0, row)),
                         graph_named(g, scale, add_output(g, quantise, 1, of_blocks))};
    numbers = add_step(g, &graph_kind_hidden_numbers, 0, 0, 0);
    numbers->with.quantise = *config;
    for (int i = 0; i < 2; i++) {
        numbers->in[i] = graph_fused(g, made[i]);
        g->tensors[made[i]].codes = true;
    }
    g->tensors[made[1]].constant = true;
    row.name = "numbers of codes";
    return graph_fused(g, add_output(g, numbers, 0, row));
}

static int norm(graph *g, const graph_kind *kind, int x, int scale, int bias, double epsilon)
{
    graph_step *step = add_step(g, kind, x, scale, bias);
    step->with.number = epsilon;
    return add_output_like(g, step, "norm", x);
}

int graph_rms_norm(graph *g, int x, int scale, double epsilon)
{
    return norm(g, &graph_kind_rms_norm, x, scale, 0, epsilon);
}

int graph_layer_norm(graph *g, int x, int scale, int bias, double epsilon)
{
    return norm(g, &graph_kind_layer_norm, x, scale, bias, epsilon);
}

int graph_over_root(graph *g, int x, bool of_sum, bool stored, double epsilon)
{
    const graph_general square = {.function = GRAPH_MAP_square}, root = {.function = GRAPH_MAP_rsqrt},
                        add = {.function = GRAPH_BINARY_add}, mul = {.function = GRAPH_BINARY_mul};
    const char *axes = g->tensors[x].row.axes, *last = axes + strlen(axes) - 1;
    const graph_general total = {.function = of_sum ? GRAPH_REDUCTION_sum : GRAPH_REDUCTION_mean, .over = {*last}};
    char rows[ASSAY_MAX_RANK + 1];
    snprintf(rows, sizeof rows, "%.*s", (int)(last - axes), axes);
    const int squares = graph_step_of(g, &graph_kind_map, axes, &x, 1, &square);
    const int sum[] = {graph_step_of(g, &graph_kind_reduce, rows, &squares, 1, &total),
                       graph_number(g, "epsilon", epsilon)};
    const int more = graph_step_of(g, &graph_kind_binary, rows, sum, 2, &add);
    const int factors[] = {x, graph_step_of(g, &graph_kind_map, rows, &more, 1, &root)};
    for (int t = squares; t <= factors[1]; t++)
        if (!stored && g->tensors[t].step >= 0) graph_fused(g, t);
    return graph_step_of(g, &graph_kind_binary, axes, factors, 2, &mul);
}

int graph_scale(graph *g, int x, double factor)
{
    graph_step *step = add_step(g, &graph_kind_binary, x, 0, 0);
    *step = graph_times(x, factor);
    return add_output_like(g, step, "scaled", x);
}

int graph_slice(graph *g, const char *axes, int x, char axis, int64_t first)
{
    g->tensors[x].read_in_slices = true;
    return graph_step_of(g, &graph_kind_slice, axes, &x, 1, &(graph_general){.over = {axis}, .first = first});
}

static int add_constant(graph *g, graph_step *step, int place, const char *name, int64_t half, int like)
{
    assay_tensor_row row = g->tensors[like].row;
    row.name = name;
    if (half > 0) {
        row.axes[row.shape.rank] = 'h';
        row.shape.dims[row.shape.rank++] = half;
        row.axes[row.shape.rank] = '\0';
    }
    const int tensor = graph_fused(g, add_output(g, step, place, row));
    g->tensors[tensor].constant = true;
    return tensor;
}

graph_turns graph_rotations(graph *g, int positions, const assay_rope_config *config)
{
    graph_step *angles = add_step(g, &graph_kind_angles, positions, 0, 0);
    angles->with.rope.config = *config;
    const int angle = add_constant(g, angles, 0, "rotation angles", config->dim / 2, positions);
    graph_step *rotations = add_step(g, &graph_kind_rotations, angle, 0, 0);
    rotations->with.rope.config = *config;
    return (graph_turns){.cosine = add_constant(g, rotations, 0, "cosines", 0, angle),
                         .sine = add_constant(g, rotations, 1, "sines", 0, angle),
                         .config = config};
}

int graph_rope(graph *g, int x, int64_t first, const graph_turns *turns)
{
    graph_step *step = add_step(g, &graph_kind_rope, x, turns->cosine, turns->sine);
    step->with.rope = (graph_rotation){first, *turns->config};
    return add_output_like(g, step, "turned", x);
}

graph_key_value graph_expand(graph *g, int latent, int w, int key_rope, const assay_quant_recipe_config *recipe)
{
    graph_step *step = add_step(g, &graph_kind_expand, latent, w, key_rope);
    take_recipe(g, step, recipe);
    const int key = add_output(g, step, 0, row_of(g, "key", "BSNq"));
    return (graph_key_value){key, add_output(g, step, 1, row_of(g, "value", "BSNv"))};
}

int graph_with_lse(graph *g, const graph_kind *kind, const char *axes, const char *lse, const int *in, int in_count,
                   const graph_parameters *with)
{
    graph_step *step = add_step(g, kind, 0, 0, 0);
    memcpy(step->in, in, (size_t)in_count * sizeof *in);
    step->with = *with;
    graph_fused(g, add_output(g, step, 1, row_of(g, "lse", lse)));
    return add_output(g, step, 0, row_of(g, "attention_out", axes));
}

int graph_lse_of(const graph *g, int tensor)
{
    return g->steps[g->tensors[tensor].step].out[1];
}

int graph_attention(graph *g, const char *axes, int query, int key, int value, int segment_ids, int sinks,
                    const assay_attention_config *config)
{
    const int out = graph_attend(g, axes, "BNS", query, key, value, segment_ids, sinks, config);
    graph_named(g, "lse", graph_lse_of(g, out));
    return graph_named(g, "attention_out", out);
}

int graph_attend(graph *g, const char *axes, const char *lse, int query, int key, int value, int segment_ids, int sinks,
                 const assay_attention_config *config)
{
    const int in[] = {query, key, value, segment_ids, sinks};
    return graph_with_lse(g, &graph_kind_attention, axes, lse, in, 5, &(graph_parameters){.attention = *config});
}

int graph_step_of(graph *g, const graph_kind *kind, const char *axes, const int *in, int in_count,
                  const graph_general *with)
{
    graph_step *step = add_step(g, kind, 0, 0, 0);
    for (int i = 0; i < in_count; i++) step->in[i] = in[i];
    step->with.general = *with;
    return add_output(g, step, 0, row_of(g, kind->name, axes));
}

int graph_delta_rule(graph *g, const char *axes, const char *state_axes, const int *in, int in_count, bool state)
{
    const graph_general with = {.function = 0};
    int before = 0;
    while (before < g->step_count && (g->steps[before].kind != &graph_kind_gated_delta_rule ||
                                      memcmp(g->steps[before].in, in, (size_t)in_count * sizeof *in) != 0 ||
                                      (in_count < GRAPH_IN && g->steps[before].in[in_count] != 0)))
        before++;
    if (before == g->step_count) graph_step_of(g, &graph_kind_gated_delta_rule, axes, in, in_count, &with);
    graph_step *step = &g->steps[before];
    if (state && step->out[1] == 0) add_output(g, step, 1, row_of(g, "state", state_axes));
    return step->out[state];
}

int graph_integers(graph *g, const graph_kind *kind, const char *axes, int x)
{
    const int tensor = graph_fused(g, graph_step_of(g, kind, axes, &x, 1, &(graph_general){0}));
    g->tensors[tensor].integers = g->tensors[tensor].constant = true;
    g->tensors[tensor].chosen = kind == &graph_kind_top_k;
    return tensor;
}
