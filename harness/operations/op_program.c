/* Programs that users write (oracle/program). */
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/program/program_graph.h"

typedef struct program_config {
    const assay_program *program; /* the case's; first, since it is what the second form gets */
} program_config;

static bool is_product(const assay_program_node *node)
{
    return node->step != NULL &&
           (strcmp(node->step->name, "product") == 0 || strcmp(node->step->name, "grouped_product") == 0);
}

static const assay_program *program_of(const void *config)
{
    return ((const program_config *)config)->program;
}

/* Where operands are codes, no member of an ensemble rounds an operand: of what a kernel keeps in registers it would have to. */
static assay_status refuse_fused_operands(assay_context *ctx, const assay_case *c)
{
    const assay_program *p = c->program;
    for (int i = 1; i < p->node_count && c->quant_format_count > 0; i++) {
        const assay_program_node *node = &p->nodes[i];
        for (int k = 0; is_product(node) && k < 2; k++) {
            const assay_program_node *operand = &p->nodes[node->in[k]];
            const assay_program_line *line = &p->lines[operand->line];
            if (operand->step == NULL || !line->fused || (line->output && line->node == node->in[k])) continue;
            return assay_refuse(ctx, "fused has %s, expected what no product reads: quant_formats makes operands exact",
                                line->name);
        }
    }
    return ASSAY_OK;
}

static assay_status config_of(assay_context *ctx, const assay_case *c, void *to)
{
    if (c->program == NULL) return assay_refuse(ctx, "op program lacks steps (docs/programs.md)");
    MUST(assay_case_check_program(ctx, c));
    if (c->batch != 1 || c->sequence != 1)
        return assay_refuse(ctx, "batch is %lld and sequence %lld, expected neither: a program has sizes",
                            (long long)c->batch, (long long)c->sequence);
    MUST(refuse_fused_operands(ctx, c));
    ((program_config *)to)->program = c->program;
    return ASSAY_OK;
}

static int64_t axis_size(const void *config, char axis)
{
    return program_of(config)->sizes[(unsigned char)axis % ASSAY_PROGRAM_LETTERS];
}

/* --- describing --- */

/* The letters of axes are their labels. */
static void label(assay_describer *d, int back, const char *axes)
{
    static const char letters[] = "A\0B\0C\0D\0E\0F\0G\0H\0I\0J\0K\0L\0M\0N\0O\0P\0Q\0R\0S\0T\0U\0V\0W\0X\0Y\0Z\0"
                                  "a\0b\0c\0d\0e\0f\0g\0h\0i\0j\0k\0l\0m\0n\0o\0p\0q\0r\0s\0t\0u\0v\0w\0x\0y\0z\0"
                                  "0\0001\0002\0003\0004\0005\0006\0007\0008\0009";
    for (int i = 0; axes[i] != '\0'; i++) {
        const int place = axes[i] >= 'a' ? 26 + axes[i] - 'a' : axes[i] >= 'A' ? axes[i] - 'A' : 52 + axes[i] - '0';
        assay_described(d, back)->spec.labels[i] = letters + 2 * place;
    }
}

static assay_dims dims_of(const assay_program_node *node)
{
    return assay_dims_of(node->axes, &node->shape);
}

/* How many terms a product has that reads rows which a gather has taken; 0: there is none. */
static int64_t gathered_terms(const assay_program *p, int gather)
{
    if (strcmp(p->nodes[gather].step->name, "gather") != 0) return 0;
    for (int i = gather + 1; i < p->node_count; i++)
        for (int k = 0; k < p->nodes[i].in_count; k++)
            if (p->nodes[i].in[k] == gather && is_product(&p->nodes[i])) return assay_program_terms(p, &p->nodes[i]);
    return 0;
}

/* What rotations alone read, as their frequencies: it has no gradient. */
static bool is_frequencies(const assay_program *p, int place)
{
    int readers = 0;
    for (const assay_program_node *node = p->nodes + 1; node < p->nodes + p->node_count; node++)
        readers += node->in_count == 3 && node->in[2] == place && strcmp(node->step->name, "rope") == 0;
    return readers > 0 && readers == p->nodes[place].readers;
}

/* Numbers of order 1 stay so: a kernel by what its sum has of terms, the scale of a norm near 1. */
static assay_fill fill_of(const assay_program *p, int place)
{
    const assay_program_node *node = &p->nodes[place];
    const assay_program_tensor *tensor = &p->tensors[node->input];
    if (tensor->integers) {
        assay_fill whole = assay_fill_range(ASSAY_INTEGERS, (double)tensor->low, (double)tensor->high);
        whole.passes_over = tensor->passes_over;
        whole.over = (double)tensor->over;
        return whole;
    }
    if (is_frequencies(p, place)) return assay_fill_range(ASSAY_UNIFORM, 0, 1);
    for (int i = 1; i < p->node_count && tensor->weight; i++) {
        const assay_program_node *reader = &p->nodes[i];
        for (int k = 1; k < reader->in_count; k++) {
            const char *step = reader->step->name;
            const bool norm = strcmp(step, "rms_norm") == 0 || strcmp(step, "layer_norm") == 0;
            if (reader->in[k] != place) continue;
            if (norm) return assay_fill_normal(0.1, k == 1 ? 1.0 : 0.0);
            if (is_product(reader)) return assay_fill_fan_in(assay_program_terms(p, reader));
        }
        const int64_t terms = reader->in_count > 0 && reader->in[0] == place ? gathered_terms(p, i) : 0;
        if (terms > 0) return assay_fill_fan_in(terms);
    }
    return assay_fill_normal(1.0, 0.0);
}

/* How many letters stand first that are, or are not, in `others`. */
static int first_letters(const char *letters, const char *others, bool in)
{
    int count = 0;
    while (letters[count] != '\0' && (strchr(others, letters[count]) != NULL) == in) count++;
    return count;
}

/* As a product takes operand i: matrices, of which it sums over rows or over columns; rows 0: it is neither. */
static assay_operand_axes in_product(const assay_program_node *product, int i)
{
    assay_program_pattern_of p;
    assay_operand_axes axes = {0};
    assay_program_pattern(assay_program_axes(product, "axes"), &p);
    const char *own = p.in[i], *other = p.in[1 - i];
    const bool groups = strcmp(product->step->name, "grouped_product") == 0 && i == 1;
    while (own[axes.batch] != '\0' && strchr(p.out, own[axes.batch]) != NULL && strchr(other, own[axes.batch]) != NULL)
        axes.batch++;
    if (groups) axes.batch = 1;
    own += axes.batch;
    axes.sums_rows = own[0] != '\0' && strchr(p.out, own[0]) == NULL;
    axes.rows = first_letters(own, p.out, !axes.sums_rows);
    const int columns = first_letters(own + axes.rows, p.out, axes.sums_rows);
    if (columns == 0 || own[axes.rows + columns] != '\0') axes.rows = 0;
    return axes;
}

/* Blocks of what is given as codes lie along the axis that products sum over, of what none reads along the last one. */
static assay_operand_axes operand_of(const assay_program *p, int place)
{
    assay_operand_axes axes = {0, p->nodes[place].shape.rank - 1, false};
    bool before = false;
    for (int i = 1; i < p->node_count; i++) {
        const assay_program_node *reader = &p->nodes[i];
        for (int k = 0; is_product(reader) && k < 2; k++) {
            if (reader->in[k] != place) continue;
            const assay_operand_axes found = in_product(reader, k);
            const bool same = found.batch == axes.batch && found.rows == axes.rows && found.sums_rows == axes.sums_rows;
            if (before && !same) return (assay_operand_axes){0};
            axes = found;
            before = true;
        }
    }
    return axes;
}

static void describe_given(assay_describer *d, const assay_program *p, int place)
{
    const assay_program_node *node = &p->nodes[place];
    const assay_fill fill = fill_of(p, place);
    const char *path = p->tensors[node->input].path;
    if (node->integers || is_frequencies(p, place)) {
        assay_describe_sized(d, path, node->integers ? ASSAY_INT32 : d->c->dtype, &fill, dims_of(node));
    } else {
        assay_describe_sized_variable(d, path, fill, dims_of(node));
        label(d, 2, node->axes);
        assay_described(d, 2)->operand = operand_of(p, place);
    }
    label(d, 1, node->axes);
}

/* What is quantised, and what is made of it. */
static void describe_codes(assay_describer *d, const assay_program_node *node, const assay_program_line *line)
{
    const assay_quantize_config rules = assay_program_quantize(node);
    const assay_shape blocks = assay_quantize_scales_of(&rules, &node->shape);
    for (int i = 0; i < ASSAY_CODED_COUNT; i++) {
        const assay_shape *shape = i == ASSAY_CODED_SCALE ? &blocks : &node->shape;
        const char *axes = i == ASSAY_CODED_SCALE && rules.format->rows > 1 ? "RC" : node->axes;
        assay_describe_sized_result(d, "checkpoints", line->coded[i], ASSAY_FLOAT64, assay_dims_of(axes, shape));
        label(d, 1, axes);
        for (int axis = 0; i == ASSAY_CODED_SCALE && axis < shape->rank; axis++)
            if (axis == shape->rank - 1 || rules.format->rows > 1) assay_described(d, 1)->spec.labels[axis] = "blocks";
    }
}

static void describe_line(assay_describer *d, const assay_program *p, const assay_program_line *line)
{
    const assay_program_node *node = &p->nodes[line->node];
    const assay_fill one = assay_fill_normal(1.0, 0.0);
    if (line->coded[0][0] != '\0') describe_codes(d, node, line);
    if (node->coded && !line->output) return;
    if (node->integers && !node->chosen && !line->output) return;
    if (node->integers) {
        assay_describe_sized_result(d, node->chosen ? "routing" : "outputs", strchr(line->path, '/') + 1, ASSAY_INT32,
                                    dims_of(node));
    } else if (line->output) {
        assay_describe_sized_output(d, line->name, &one, dims_of(node));
        label(d, 2, node->axes);
    } else {
        assay_describe_sized_result(d, "checkpoints", line->name, ASSAY_FLOAT64, dims_of(node));
        assay_described(d, 1)->requantised = node->jumped;
    }
    label(d, 1, node->axes);
}

static void describe(assay_describer *d, const void *config)
{
    const assay_program *p = program_of(config);
    for (int i = 1; i < p->node_count; i++)
        if (p->nodes[i].step == NULL && p->nodes[i].input >= 0) describe_given(d, p, i);
    for (int i = 0; i < p->line_count; i++) describe_line(d, p, &p->lines[i]);
}

/* --- counts --- */

static void graph_of(const void *config, graph *g)
{
    assay_program_graph(program_of(config), g);
}

/* Products count, as for other operations; steps without any count one operation a number. */
static double operations(const void *config, bool backward)
{
    const assay_program *p = program_of(config);
    graph g;
    double numbers = 0;
    graph_of(config, &g);
    for (int i = 1; i < p->node_count; i++)
        if (p->nodes[i].step != NULL) numbers += (double)assay_shape_count(&p->nodes[i].shape);
    return graph_forward_operations(&g) + numbers + (backward ? graph_backward_operations(&g) + 2 * numbers : 0);
}

/* Values and gradients of all tensors, of weights in groups that are read as they are needed those of one group, and what a step
 * works with. */
static int64_t memory(const void *config)
{
    graph g;
    double numbers = 0;
    graph_of(config, &g);
    for (int t = 1; t < g.tensor_count; t++) {
        const int64_t groups = graph_can_stream(&g, t) ? g.tensors[t].row.shape.dims[0] : 1;
        numbers += (double)(graph_size(&g, t) / groups);
    }
    const double bytes = 8 * (4 * numbers + graph_scratch(&g));
    return bytes < 0x1p62 ? (int64_t)bytes : INT64_C(1) << 62;
}

const assay_operation assay_op_program = {.name = "program",
                                          .summary = "steps that a case file writes down (docs/programs.md)",
                                          .config_of = config_of,
                                          .axis_size = axis_size,
                                          .describe = describe,
                                          .graph = graph_of,
                                          .second_form = {.form = quad_program},
                                          .quantised = true,
                                          .operations = operations,
                                          .bytes = memory};
