/* The keys of op program: sizes, inputs and weights with axes, steps, outputs, and what a correct kernel rounds (docs/programs.md). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "cases/yaml_text.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

static assay_status program_of(const assay_yaml *y, assay_case *c, assay_program **p)
{
    if (c->program == NULL) MUST(assay_alloc_list(y->ctx, "the program", 1, sizeof **p, &c->program));
    *p = c->program;
    return ASSAY_OK;
}

static bool is_axis(const char *text)
{
    return assay_program_is_axis(text[0]) && text[1] == '\0';
}

assay_status assay_case_read_size(const assay_yaml *y, assay_case *c, const char *axis, const yaml_node_t *key_node,
                                  const yaml_node_t *value)
{
    assay_program *p;
    char what[64];
    if (!is_axis(axis))
        return assay_yaml_refuse(y, key_node, "expected an axis of one letter in sizes, found %.40s", axis);
    MUST(program_of(y, c, &p));
    snprintf(what, sizeof what, "sizes.%s", axis);
    return assay_yaml_integer(y, value, what, 1, INT32_MAX, &p->sizes[(unsigned char)axis[0]]);
}

static assay_status read_axes(const assay_yaml *y, const yaml_node_t *node, const char *name,
                              char axes[ASSAY_MAX_RANK + 1])
{
    OWNED_BY(assay_text_list_free) assay_text_list list = {0};
    const bool none =
        node->type == YAML_SEQUENCE_NODE && node->data.sequence.items.top == node->data.sequence.items.start;
    if (!none) MUST(assay_yaml_list(y, node, name, &list));
    if (list.count > ASSAY_MAX_RANK)
        MUST(assay_yaml_refuse(y, node, "%s has %d axes, expected at most %d", name, list.count, ASSAY_MAX_RANK));
    for (int i = 0; i < list.count; i++) {
        if (!is_axis(list.items[i]))
            MUST(assay_yaml_refuse(y, node, "%s has the axis %.40s, expected one letter", name, list.items[i]));
        axes[i] = list.items[i][0];
    }
    axes[list.count] = '\0';
    return ASSAY_OK;
}

/* [low, high] */
static assay_status read_range(const assay_yaml *y, const yaml_node_t *node, assay_program_tensor *tensor)
{
    int64_t *const ends[] = {&tensor->low, &tensor->high};
    const bool two =
        node->type == YAML_SEQUENCE_NODE && node->data.sequence.items.top - node->data.sequence.items.start == 2;
    if (!two) return assay_yaml_refuse_value(y, node, "integers", "the least and the largest: [0, 7]");
    tensor->integers = true;
    for (int i = 0; i < 2; i++) {
        const yaml_node_t *end = yaml_document_get_node(y->document, node->data.sequence.items.start[i]);
        MUST(assay_yaml_integer(y, end, "integers", INT32_MIN, INT32_MAX, ends[i]));
    }
    if (tensor->low > tensor->high) return assay_yaml_refuse_value(y, node, "integers", "the least one first");
    return ASSAY_OK;
}

static assay_status add_tensor(const assay_yaml *y, assay_case *c, const assay_program_tensor *tensor,
                               const yaml_node_t *at)
{
    assay_program *p;
    MUST(program_of(y, c, &p));
    if (assay_program_find(p, tensor->name) != NULL)
        return assay_yaml_refuse(y, at, "%s is there twice: inputs and weights have names of their own", tensor->name);
    return assay_program_add_tensor(y->ctx, p, tensor);
}

bool assay_case_declares(const assay_yaml *y, const yaml_node_t *value)
{
    if (value->type == YAML_SEQUENCE_NODE) return true;
    if (value->type != YAML_MAPPING_NODE) return false;
    for (const yaml_node_pair_t *i = value->data.mapping.pairs.start; i < value->data.mapping.pairs.top; i++) {
        const yaml_node_t *key = yaml_document_get_node(y->document, i->key);
        if (key->type == YAML_SCALAR_NODE && strcmp((const char *)key->data.scalar.value, "axes") == 0) return true;
    }
    return false;
}

assay_status assay_case_read_declared(const assay_yaml *y, assay_case *c, bool weight, const char *name,
                                      const yaml_node_t *key_node, const yaml_node_t *value)
{
    assay_program_tensor tensor = {.low = 0};
    assay_status status = ASSAY_OK;
    bool fill = false;
    if (!assay_program_is_name(name))
        return assay_yaml_refuse(y, key_node, "%.40s is no name, expected letters, digits and _, a letter first", name);
    assay_program_call(&tensor, name, weight);
    if (y->located) {
        tensor.line = (int)key_node->start_mark.line + 1;
        tensor.column = (int)key_node->start_mark.column + 1;
    }
    if (value->type == YAML_SEQUENCE_NODE) {
        MUST(read_axes(y, value, name, tensor.axes));
    } else {
        for (assay_yaml_walk w = assay_yaml_pairs(y, value, name); assay_yaml_next(&w, &status);) {
            if (strcmp(w.key, "axes") == 0) {
                status = read_axes(y, w.value, name, tensor.axes);
            } else if (strcmp(w.key, "integers") == 0) {
                status = read_range(y, w.value, &tensor);
            } else {
                fill = true;
            }
        }
        MUST(status);
    }
    if (weight && tensor.integers) return assay_yaml_refuse(y, key_node, "%s: a weight holds no whole numbers", name);
    MUST(add_tensor(y, c, &tensor, key_node));
    if (fill) MUST(assay_case_read_input(y, c, tensor.path, key_node, value));
    return ASSAY_OK;
}

/* --- loops: the lines of all rounds, each with a name of its own --- */

typedef struct loop {
    char axis; /* of a scan; else '\0' */
    int64_t round;
} loop;

/* How many lines have that name; *last is the last one's own, without one it is a tensor's. */
static int lines_of(const assay_program *p, const char *name, const char **last)
{
    int count = 0;
    *last = name;
    for (int i = 0; i < p->line_count; i++) {
        if (p->lines[i].output || strcmp(p->lines[i].of, name) != 0) continue;
        *last = p->lines[i].name;
        count++;
    }
    return count;
}

/* The text with what its names stand for now; at(x) is x at the round's index of a scan's axis. false: it is too long. */
static bool put_names(const assay_program *p, const loop *within, const char *from, char *to, size_t size)
{
    size_t used = 0;
    while (*from != '\0' && used < size) {
        const bool at = within != NULL && within->axis != '\0' && strncmp(from, "at(", 3) == 0;
        from += at ? 3 : 0;
        const size_t name = assay_program_name_length(from), number = strspn(from, "0123456789.eE+-");
        size_t length = name > 0 ? name : number > 0 ? number : 1;
        char word[ASSAY_PROGRAM_TEXT];
        if (*from == '"' || *from == '\'') length = strcspn(from + 1, (char[]){*from, '\0'}) + 2;
        snprintf(word, sizeof word, "%.*s", (int)length, from);
        from += strnlen(from, length);
        const char *now = word;
        if (name > 0 && *from != '(' && *from != '=') lines_of(p, word, &now);
        used += (size_t)(at ? snprintf(to + used, size - used, "slice(\"%c->\", %s, first=%" PRId64, within->axis, now,
                                       within->round)
                            : snprintf(to + used, size - used, "%s", now));
    }
    return used < size;
}

static assay_status read_line(const assay_yaml *y, assay_case *c, bool output, const loop *within,
                              const assay_yaml_walk *w)
{
    assay_program *p;
    assay_program_line line = {.output = output};
    char text[ASSAY_PROGRAM_TEXT];
    const char *last;
    if (!assay_program_is_name(w->key))
        return assay_yaml_refuse(
            y, w->key_node,
            "%.40s is no name, expected letters, digits and _, a letter first; a comma within {} ends "
            "a step, unless that stands in quotes: {y: \"add(x, o)\"}",
            w->key);
    MUST(assay_yaml_text(y, w->value, w->key, text, sizeof text));
    p = c->program;
    snprintf(line.of, sizeof line.of, "%s", w->key);
    memcpy(line.name, line.of, sizeof line.name);
    if (within != NULL) snprintf(line.name, sizeof line.name, "%.28s_%d", line.of, lines_of(p, line.of, &last));
    if (!put_names(p, within, text, line.text, sizeof line.text))
        return assay_yaml_refuse(y, w->value, "%s is longer than %d letters with the names of its round", line.name,
                                 ASSAY_PROGRAM_TEXT - 1);
    if (y->located) {
        line.line = (int)w->value->start_mark.line + 1;
        line.column = (int)w->value->start_mark.column + 1 + (w->value->data.scalar.style != YAML_PLAIN_SCALAR_STYLE);
    }
    return assay_program_add_line(y->ctx, p, &line);
}

/* An axis of a digit for parts of a stack. */
static assay_status part_axis(const assay_yaml *y, const yaml_node_t *at, assay_program *p, int64_t size, char *axis)
{
    for (*axis = '0'; *axis <= '9'; ++*axis) {
        int64_t *own = &p->sizes[(unsigned char)*axis];
        if (*own == 0) *own = size;
        if (*own == size) return ASSAY_OK;
    }
    return assay_yaml_refuse(y, at, "stack: all axes of digits have other sizes than %" PRId64, size);
}

/* A line `name` of the rounds [first, first + count) of a line, in parts where these are more than a step takes. */
static assay_status put_stack(const assay_yaml *y, const yaml_node_t *at, assay_program *p, const char *name,
                              const char *of, int64_t first, int64_t count, char axis)
{
    assay_program_line line = {.line = 0};
    char axes[2 * ASSAY_PROGRAM_PARTS + 1] = "", operands[ASSAY_PROGRAM_TEXT - 40] = "";
    int64_t piece = 1, each;
    while (piece * ASSAY_PROGRAM_PARTS < count) piece *= ASSAY_PROGRAM_PARTS;
    for (int64_t i = 0; i < count; i += each) {
        char part[ASSAY_PROGRAM_NAME + 20], of_part = '\0';
        each = piece < count - i ? piece : count - i;
        snprintf(part, sizeof part, "%.28s_%" PRId64, piece > 1 ? name : of, piece > 1 ? i / piece : first + i);
        if (piece > 1) MUST(part_axis(y, at, p, each, &of_part));
        if (piece > 1) MUST(put_stack(y, at, p, part, of, first + i, each, of_part));
        if (piece > 1) snprintf(axes + strlen(axes), 3, "%s%c", i == 0 ? "" : ",", of_part);
        snprintf(operands + strlen(operands), sizeof operands - strlen(operands), ", %s", part);
    }
    snprintf(line.name, sizeof line.name, "%s", name);
    memcpy(line.of, line.name, sizeof line.of);
    snprintf(line.text, sizeof line.text, "concatenate(\"%s->%c\"%s)", axes, axis, operands);
    return assay_program_add_line(y->ctx, p, &line);
}

static assay_status read_stack(const assay_yaml *y, assay_program *p, char axis, const assay_yaml_walk *w)
{
    char of[ASSAY_PROGRAM_NAME];
    const char *last;
    MUST(assay_yaml_text(y, w->value, w->key, of, sizeof of));
    const int64_t count = p->sizes[(unsigned char)axis], first = lines_of(p, of, &last) - count;
    if (axis == '\0' || first < 0 || strlen(of) > 28 || strlen(w->key) > 28 || !assay_program_is_name(w->key))
        return assay_yaml_refuse(y, w->value, "stack has %.40s, expected a line of the scan, of at most 28 letters",
                                 of);
    return put_stack(y, w->value, p, w->key, of, first, count, axis);
}

/* NAME: {repeat: 20, steps: {..}}, or {scan: T, steps: {..}, stack: {hs: h}}. */
static assay_status read_loop(const assay_yaml *y, assay_case *c, const assay_yaml_walk *of)
{
    const yaml_node_t *steps = NULL, *stack = NULL;
    loop within = {.round = 0};
    int64_t rounds = 0;
    char axis[ASSAY_TEXT_SIZE] = "";
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, of->value, of->key); assay_yaml_next(&w, &status);) {
        if (strcmp(w.key, "steps") == 0) steps = w.value;
        if (strcmp(w.key, "stack") == 0) stack = w.value;
        if (strcmp(w.key, "repeat") == 0) status = assay_yaml_integer(y, w.value, w.key, 1, INT32_MAX, &rounds);
        if (strcmp(w.key, "scan") == 0) status = assay_yaml_text(y, w.value, w.key, axis, sizeof axis);
    }
    MUST(status);
    if (is_axis(axis)) rounds = c->program->sizes[(unsigned char)(within.axis = axis[0])];
    if (rounds == 0 || steps == NULL ||
        of->value->data.mapping.pairs.top - of->value->data.mapping.pairs.start != 2 + (stack != NULL))
        return assay_yaml_refuse(y, of->key_node,
                                 "%s is expected to be {repeat: 20, steps: {..}} or, of an axis T, {scan: T, steps: "
                                 "{..}, stack: {..}}",
                                 of->key);
    for (; within.round < rounds; within.round++)
        for (assay_yaml_walk w = assay_yaml_pairs(y, steps, of->key); assay_yaml_next(&w, &status);)
            status = read_line(y, c, false, &within, &w);
    if (status != ASSAY_OK || stack == NULL) return status;
    for (assay_yaml_walk w = assay_yaml_pairs(y, stack, "stack"); assay_yaml_next(&w, &status);)
        status = read_stack(y, c->program, within.axis, &w);
    return status;
}

static assay_status read_lines(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node)
{
    const bool output = strcmp(key, "outputs") == 0;
    assay_program *p;
    assay_status status = program_of(y, c, &p);
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, key); assay_yaml_next(&w, &status);)
        status =
            !output && w.value->type == YAML_MAPPING_NODE ? read_loop(y, c, &w) : read_line(y, c, output, NULL, &w);
    return status;
}

/* The next line of that name, a step's, that of each round, or an output's; NULL: there is none from *i on. */
static assay_program_line *next_called(assay_case *c, const char *name, int *i)
{
    for (; c->program != NULL && *i < c->program->line_count; ++*i) {
        assay_program_line *line = &c->program->lines[*i];
        if (strcmp(line->name, name) == 0 || strcmp(line->of, name) == 0) return line;
    }
    return NULL;
}

static assay_status require_step(const assay_yaml *y, assay_case *c, const yaml_node_t *at, const char *key,
                                 const char *name)
{
    if (next_called(c, name, &(int){0}) != NULL) return ASSAY_OK;
    return assay_yaml_refuse(y, at, "%s has %.40s, which is no step", key, name);
}

/* These lines are stored, or fused. */
static assay_status mark_lines(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node, bool fused)
{
    OWNED_BY(assay_text_list_free) assay_text_list list = {0};
    MUST(assay_yaml_list(y, node, key, &list));
    for (int i = 0; i < list.count; i++) {
        assay_program_line *line;
        MUST(require_step(y, c, node, key, list.items[i]));
        for (int k = 0; (line = next_called(c, list.items[i], &k)) != NULL; k++) {
            if (line->stored && fused)
                MUST(assay_yaml_refuse(y, node, "fused has %.40s, which stored has too", list.items[i]));
            *(fused ? &line->fused : &line->stored) = true;
        }
    }
    return ASSAY_OK;
}

static assay_status read_stored(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node)
{
    return mark_lines(y, c, key, node, false);
}

/* All is every line that is not stored. */
static assay_status read_fused(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node)
{
    const bool all = node->type == YAML_SCALAR_NODE && strcmp((const char *)node->data.scalar.value, "all") == 0;
    if (!all) return mark_lines(y, c, key, node, true);
    for (int i = 0; c->program != NULL && i < c->program->line_count; i++)
        c->program->lines[i].fused = !c->program->lines[i].stored;
    return ASSAY_OK;
}

static assay_status read_accumulate(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node)
{
    assay_status status = ASSAY_OK;
    assay_program_line *line;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, key); assay_yaml_next(&w, &status);) {
        char name[ASSAY_TEXT_SIZE];
        assay_dtype type = ASSAY_DTYPE_COUNT; /* what the profile stores */
        MUST(require_step(y, c, w.key_node, key, w.key));
        MUST(assay_yaml_text(y, w.value, w.key, name, sizeof name));
        const bool known =
            strcmp(name, "stored") == 0 || (assay_dtype_from_name(name, &type) &&
                                            (type == ASSAY_FLOAT32 || type == ASSAY_BFLOAT16 || type == ASSAY_FLOAT16));
        if (!known) return assay_yaml_refuse_value(y, w.value, w.key, "float32, bfloat16, float16 or stored");
        for (int k = 0; (line = next_called(c, w.key, &k)) != NULL; k++) line->sums = type;
    }
    return status;
}

assay_status assay_case_compile(assay_context *ctx, const char *origin, assay_case *c)
{
    assay_program_place place;
    char reason[ASSAY_MESSAGE_SIZE];
    const assay_status status = assay_program_compile(ctx, c->program, &place);
    if (status == ASSAY_OK) return ASSAY_OK;
    snprintf(reason, sizeof reason, "%.900s", ctx->message);
    const assay_program_tensor *tensor = place.tensor >= 0 ? &c->program->tensors[place.tensor] : NULL;
    if (tensor != NULL && tensor->line > 0)
        return assay_fail(ctx, status, "%s:%d:%d: %s", origin, tensor->line, tensor->column, reason);
    if (place.line < 0) return assay_fail(ctx, status, "%s: %s", origin, reason);
    const assay_program_line *line = &c->program->lines[place.line];
    if (line->line == 0) return assay_fail(ctx, status, "%s: %s: %s", origin, line->name, reason);
    return assay_fail(ctx, status, "%s:%d:%d: %s: %s", origin, line->line, line->column + place.column, line->name,
                      reason);
}

assay_status assay_case_check_program(assay_context *ctx, const assay_case *c)
{
    OWNED_BY(assay_case_free) assay_case copy = {0};
    if (c->program->node_count > 0) return ASSAY_OK;
    MUST(assay_case_copy(ctx, c, &copy));
    return assay_case_compile(ctx, c->name, &copy);
}

static assay_status read_each(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, key); assay_yaml_next(&w, &status);)
        status = strcmp(key, "sizes") == 0 ? assay_case_read_size(y, c, w.key, w.key_node, w.value)
                                           : assay_case_read_declared(y, c, true, w.key, w.key_node, w.value);
    return status;
}

/* Keys that only a program has, in the order in which they can be read. */
static const struct {
    const char *key;
    assay_status (*read)(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *node);
} KEYS[] = {{"sizes", read_each},    {"weights", read_each}, {"steps", read_lines},          {"outputs", read_lines},
            {"stored", read_stored}, {"fused", read_fused},  {"accumulate", read_accumulate}};
enum { KEY_COUNT = sizeof KEYS / sizeof *KEYS };

bool assay_case_is_of_program(const char *key)
{
    for (int i = 0; i < KEY_COUNT; i++)
        if (strcmp(key, KEYS[i].key) == 0) return true;
    return false;
}

void assay_case_offer_of_program(assay_nearest *nearest)
{
    for (int i = 0; i < KEY_COUNT; i++) assay_nearest_offer(nearest, KEYS[i].key);
}

assay_status assay_case_read_program(const assay_yaml *y, assay_case *c, const yaml_node_t *root)
{
    const bool program = strcmp(c->op, "program") == 0;
    assay_status status = ASSAY_OK;
    for (int i = 0; i < KEY_COUNT; i++) {
        assay_yaml_walk w = assay_yaml_pairs(y, root, "a case");
        while (assay_yaml_next(&w, &status)) {
            if (strcmp(w.key, KEYS[i].key) != 0) continue;
            if (!program) return assay_yaml_refuse(y, w.key_node, "%s is for op program, this is op %s", w.key, c->op);
            status = KEYS[i].read(y, c, w.key, w.value);
        }
        MUST(status);
    }
    if (program == (c->program != NULL)) return program ? assay_case_compile(y->ctx, y->origin, c) : ASSAY_OK;
    if (!program) return assay_yaml_refuse(y, root, "axes of inputs are for op program, this is op %s", c->op);
    return assay_yaml_refuse(y, root, "%s lacks steps, inputs and outputs (docs/programs.md)", c->name);
}

/* --- writing --- */

static void write_declared(FILE *out, const assay_case *c, bool weights)
{
    for (int i = 0; i < c->program->tensor_count; i++) {
        const assay_program_tensor *t = &c->program->tensors[i];
        if (t->weight != weights) continue;
        fprintf(out, "  %s: {axes: [", t->name);
        for (const char *axis = t->axes; *axis != '\0'; axis++)
            fprintf(out, "%s%c", axis == t->axes ? "" : ", ", *axis);
        fprintf(out, "]");
        if (t->integers) fprintf(out, ", integers: [%" PRId64 ", %" PRId64 "]", t->low, t->high);
        for (int k = 0; k < c->input_count; k++) {
            if (strcmp(c->inputs[k].path, t->path) != 0) continue;
            fprintf(out, ", ");
            assay_case_write_fill(out, &c->inputs[k]);
        }
        fprintf(out, "}\n");
    }
}

static void write_lines(FILE *out, const assay_program *p, bool outputs)
{
    char text[4 * ASSAY_PROGRAM_TEXT + 3];
    for (int i = 0; i < p->line_count; i++) {
        if (p->lines[i].output != outputs) continue;
        assay_yaml_quoted_text(p->lines[i].text, text, sizeof text);
        fprintf(out, "  %s: %s\n", p->lines[i].name, text);
    }
}

bool assay_case_is_declared(const assay_case *c, const char *path)
{
    for (int i = 0; c->program != NULL && i < c->program->tensor_count; i++) {
        if (strcmp(c->program->tensors[i].path, path) == 0) return true;
    }
    return false;
}

void assay_case_write_inputs(FILE *out, const assay_case *c)
{
    if (c->program != NULL) write_declared(out, c, false);
}

static void write_names(FILE *out, const assay_program *p, const char *key, bool stored)
{
    const char *between = ": [";
    for (int i = 0; i < p->line_count; i++) {
        if (!(stored ? p->lines[i].stored : p->lines[i].fused)) continue;
        fprintf(out, "%s%s%s", between[0] == ':' ? key : "", between, p->lines[i].name);
        between = ", ";
    }
    if (between[0] == ',') fprintf(out, "]\n");
}

void assay_case_write_program(FILE *out, const assay_case *c)
{
    const assay_program *p = c->program;
    const char *between = "";
    bool weights = false;
    if (p == NULL) return;
    for (int i = 0; i < p->tensor_count; i++) weights |= p->tensors[i].weight;
    fprintf(out, "sizes: {");
    for (int i = 0; i < ASSAY_PROGRAM_LETTERS; i++) {
        if (p->sizes[i] == 0) continue;
        fprintf(out, "%s%c: %" PRId64, between, (char)i, p->sizes[i]);
        between = ", ";
    }
    fprintf(out, "}\nweights:%s\n", weights ? "" : " {}");
    write_declared(out, c, true);
    fprintf(out, "steps:%s\n", p->lines[0].output ? " {}" : "");
    write_lines(out, p, false);
    fprintf(out, "outputs:\n");
    write_lines(out, p, true);
    write_names(out, p, "fused", false);
    write_names(out, p, "stored", true);
    between = "accumulate: {";
    for (int i = 0; i < p->line_count; i++) {
        const assay_program_line *line = &p->lines[i];
        if (line->sums == ASSAY_FLOAT64) continue;
        fprintf(out, "%s%s: %s", between, line->name,
                line->sums == ASSAY_DTYPE_COUNT ? "stored" : assay_dtype_name(line->sums));
        between = ", ";
    }
    if (between[0] == ',') fprintf(out, "}\n");
}
