/* From lines of text to nodes. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/memory.h"
#include "oracle/base/nearest.h"
#include "oracle/program/program_internal.h"

enum { DEEPEST = 32 }; /* expressions within each other */

typedef struct compiler {
    assay_context *ctx;
    assay_program *p;
    const char *text, *at,
        *wrong; /* the line's text, where it is read, and where something is wrong; NULL: nowhere yet */
    int line, depth;
} compiler;

static assay_status refuse(compiler *c, const char *at, const char *format, ...) __attribute__((format(printf, 3, 4)));

static assay_status refuse(compiler *c, const char *at, const char *format, ...)
{
    char message[ASSAY_MESSAGE_SIZE / 2];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    c->wrong = at;
    return assay_refuse(c->ctx, "%s", message);
}

static void skip_spaces(compiler *c)
{
    while (*c->at == ' ' || *c->at == '\t') c->at++;
}

static bool takes(compiler *c, char letter)
{
    skip_spaces(c);
    if (*c->at != letter) return false;
    c->at++;
    return true;
}

size_t assay_program_name_length(const char *at)
{
    size_t length = 0;
    while (isalpha((unsigned char)at[length]) || at[length] == '_' ||
           (length > 0 && at[length] >= '0' && at[length] <= '9'))
        length++;
    return length;
}

bool assay_program_is_name(const char *text)
{
    const size_t length = assay_program_name_length(text);
    return length > 0 && text[length] == '\0' && length < ASSAY_PROGRAM_NAME;
}

static bool begins_number(const char *at)
{
    const char first = *at == '-' || *at == '+' ? at[1] : *at;
    return (first >= '0' && first <= '9') || first == '.';
}

/* A finite number; its end is where reading goes on. */
static assay_status read_number(compiler *c, double *number)
{
    const char *begin = c->at;
    char digits[40];
    const size_t length = strspn(begin, "0123456789+-.eE");
    char *end = digits;
    if (length > 0 && length < sizeof digits) {
        memcpy(digits, begin, length);
        digits[length] = '\0';
        *number = strtod(digits, &end);
    }
    if (end == digits || *end != '\0' || !isfinite(*number))
        return refuse(c, begin, "expected a finite number, found %.20s", begin);
    c->at += length;
    return ASSAY_OK;
}

static assay_status add_node(compiler *c, const assay_program_node *node, int *place)
{
    if (c->p->node_count == c->p->node_room) {
        MUST(assay_grow(c->ctx, "steps of a program", 2 * (int64_t)c->p->node_room + 16, sizeof *node, &c->p->nodes));
        c->p->node_room = 2 * c->p->node_room + 16;
    }
    *place = c->p->node_count++;
    c->p->nodes[*place] = *node;
    c->p->nodes[*place].line = c->line;
    return ASSAY_OK;
}

/* --- names --- */

static bool is_called(const char *name, const char *at, size_t length)
{
    return strlen(name) == length && memcmp(name, at, length) == 0;
}

/* What a name stands for: a tensor, or a line before this one. */
static assay_status read_name(compiler *c, const char *at, size_t length, int *place)
{
    const assay_program *p = c->p;
    for (int i = 0; i < p->tensor_count; i++)
        if (is_called(p->tensors[i].name, at, length)) *place = i + 1;
    for (int i = 0; i < p->line_count && *place == 0; i++) {
        if (p->lines[i].output || !is_called(p->lines[i].name, at, length)) continue;
        if (i >= c->line)
            return refuse(c, at, "%s is not there yet: steps stand in the order of the data flow", p->lines[i].name);
        *place = p->lines[i].node;
    }
    if (*place > 0) return ASSAY_OK;
    char word[ASSAY_PROGRAM_TEXT], hint[ASSAY_PROGRAM_TEXT];
    assay_nearest nearest = {.word = word, .most = 1};
    snprintf(word, sizeof word, "%.*s", (int)length, at);
    for (int i = 0; i < p->tensor_count; i++) assay_nearest_offer(&nearest, p->tensors[i].name);
    for (int i = 0; i < c->line; i++)
        if (!p->lines[i].output) assay_nearest_offer(&nearest, p->lines[i].name);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return refuse(c, at, "%.200s is no input, weight or step before this one%s", word, hint);
}

/* --- calls --- */

static assay_status read_expression(compiler *c, int *place);

static assay_status read_text(compiler *c, char *to, size_t size)
{
    const char quote = *c->at, *begin = ++c->at;
    while (*c->at != '\0' && *c->at != quote) c->at++;
    const size_t length = (size_t)(c->at - begin);
    if (*c->at == '\0') return refuse(c, begin - 1, "the text in quotes does not end");
    if (length >= size) return refuse(c, begin, "the text is longer than %zu letters", size - 1);
    memcpy(to, begin, length);
    to[length] = '\0';
    c->at++;
    return ASSAY_OK;
}

static assay_status read_value(compiler *c, const assay_program_parameter *parameter, assay_program_value *value)
{
    skip_spaces(c);
    const char *at = c->at;
    if (parameter->kind == 'a' || parameter->kind == 't') {
        if (*at == '"' || *at == '\'') return read_text(c, value->text, sizeof value->text);
        return refuse(c, at, "%s is expected to be %s in quotes", parameter->name,
                      parameter->kind == 'a' ? "axes" : "a word");
    }
    if (parameter->kind == 'f') {
        const size_t length = assay_program_name_length(at);
        value->number = is_called("true", at, length);
        if (value->number == 0 && !is_called("false", at, length))
            return refuse(c, at, "%s is expected to be true or false", parameter->name);
        c->at += length;
        return ASSAY_OK;
    }
    return read_number(c, &value->number);
}

/* The parameter of that name. */
static assay_status read_parameter(compiler *c, const char *at, size_t length, assay_program_node *node, bool *given)
{
    const assay_program_parameter *parameters = node->step->parameters;
    char names[160] = "";
    for (int i = 0; i < ASSAY_PROGRAM_PARAMETERS && parameters[i].name != NULL; i++) {
        if (is_called(parameters[i].name, at, length)) {
            if (given[i]) return refuse(c, at, "%s is given twice", parameters[i].name);
            given[i] = true;
            return read_value(c, &parameters[i], &node->values[i]);
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] == '\0' ? "" : ", ",
                 parameters[i].name);
    }
    return refuse(c, at, "%s has no parameter %.*s, expected %s", node->step->name, (int)length, at,
                  names[0] == '\0' ? "none" : names);
}

/* An operand, axes or a step's word in quotes, or parameter=value. */
static assay_status read_argument(compiler *c, assay_program_node *node, bool *given)
{
    skip_spaces(c);
    const char *at = c->at;
    const size_t length = assay_program_name_length(at);
    const char *behind = at + length;
    while (*behind == ' ') behind++;
    const char *quoted = node->step->parameters[0].kind == 't' ? node->step->parameters[0].name : "axes";
    if (*at == '"' || *at == '\'') return read_parameter(c, quoted, strlen(quoted), node, given);
    if (length > 0 && *behind == '=') {
        c->at = behind + 1;
        return read_parameter(c, at, length, node, given);
    }
    if (node->in_count == node->step->most)
        return refuse(c, at, "%s has more operands than it takes: %s(%s)", node->step->name, node->step->name,
                      node->step->operands);
    return read_expression(c, &node->in[node->in_count++]);
}

static assay_status check_call(compiler *c, const char *at, assay_program_node *node, const bool *given)
{
    const assay_program_step *step = node->step;
    if (node->in_count < step->least)
        return refuse(c, at, "%s has %d operands, expected %s(%s)", step->name, node->in_count, step->name,
                      step->operands);
    for (int i = 0; i < ASSAY_PROGRAM_PARAMETERS && step->parameters[i].name != NULL; i++) {
        if (given[i]) continue;
        node->values[i].number = step->parameters[i].otherwise;
        if (isnan(node->values[i].number)) return refuse(c, at, "%s lacks %s", step->name, step->parameters[i].name);
    }
    for (int i = 0; i < node->in_count; i++) {
        const bool wanted = (step->integers >> i & 1) != 0,
                   either = (step->integers >> (ASSAY_PROGRAM_EITHER + i) & 1) != 0;
        if (either || c->p->nodes[node->in[i]].integers == wanted) continue;
        return refuse(c, at, "operand %d of %s is expected to be %s: %s(%s)", i + 1, step->name,
                      wanted ? "whole numbers" : "no whole numbers, or float of them", step->name, step->operands);
    }
    const assay_program_check check = {c->ctx, c->p, node};
    const assay_status status = step->shape(&check);
    node->exact = assay_program_is_exact(c->p, node);
    if (status != ASSAY_OK) c->wrong = at;
    return status;
}

static assay_status refuse_step(compiler *c, const char *at, size_t length)
{
    char word[ASSAY_PROGRAM_TEXT], hint[ASSAY_PROGRAM_TEXT];
    assay_nearest nearest = {.word = word, .most = 1};
    snprintf(word, sizeof word, "%.*s", (int)length, at);
    for (int i = 0; i < assay_program_step_count; i++) assay_nearest_offer(&nearest, assay_program_steps[i].name);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return refuse(c, at, "there is no step %.200s%s; assay list --steps has all", word, hint);
}

static assay_status read_call(compiler *c, const char *at, size_t length, int *place)
{
    bool given[ASSAY_PROGRAM_PARAMETERS] = {false};
    assay_program_node node = {.step = assay_program_step_by_name(at, length), .input = -1};
    if (node.step == NULL) return refuse_step(c, at, length);
    bool more = !takes(c, ')');
    while (more) {
        MUST(read_argument(c, &node, given));
        more = takes(c, ',');
        if (!more && !takes(c, ')')) return refuse(c, c->at, "expected , or ) in %s(", node.step->name);
    }
    MUST(check_call(c, at, &node, given));
    if (node.chosen && c->depth > 1)
        return refuse(c, at, "%s chooses: it stands alone in a line, whose name the choice has", node.step->name);
    if (node.coded && c->depth > 1)
        return refuse(c, at, "%s makes codes: it stands alone in a line, whose name they have", node.step->name);
    for (int i = 0; i < node.in_count; i++) c->p->nodes[node.in[i]].readers++;
    return add_node(c, &node, place);
}

static assay_status read_expression(compiler *c, int *place)
{
    skip_spaces(c);
    const char *at = c->at;
    const size_t length = assay_program_name_length(at);
    *place = 0;
    if (++c->depth > DEEPEST) return refuse(c, at, "expressions are nested deeper than %d", DEEPEST);
    if (begins_number(at)) {
        assay_program_node number = {.input = -1};
        MUST(read_number(c, &number.number));
        snprintf(number.text, sizeof number.text, "%.10g", number.number);
        MUST(add_node(c, &number, place));
    } else if (length > 0) {
        c->at += length;
        MUST(takes(c, '(') ? read_call(c, at, length, place) : read_name(c, at, length, place));
    } else {
        MUST(refuse(c, at, *at == '\0' ? "expected a step or a name, found the end" : "expected a step or a name"));
    }
    c->depth--;
    return ASSAY_OK;
}

/* --- lines --- */

/* Codes of a step and of an output that are called alike would be the same tensors. */
static assay_status call_codes(compiler *c, assay_program_line *line)
{
    static const char *const names[] = {"x", "codes", "scale"};
    char name[ASSAY_PROGRAM_NAME];
    memcpy(name, line->name, sizeof name);
    for (int i = 0; i < ASSAY_CODED_COUNT; i++)
        snprintf(line->coded[i], sizeof line->coded[i], "%s/%s", name, names[i]);
    for (int i = 0; i < c->line; i++)
        if (strcmp(c->p->lines[i].coded[0], line->coded[0]) == 0)
            return refuse(c, c->text, "%s is the name of a step's codes already", name);
    return ASSAY_OK;
}

static assay_status read_line(compiler *c)
{
    assay_program_line *line = &c->p->lines[c->line];
    c->text = c->at = line->text;
    c->depth = 0;
    MUST(read_expression(c, &line->node));
    skip_spaces(c);
    if (*c->at != '\0') return refuse(c, c->at, "expected the end, found %.20s", c->at);
    const assay_program_node *node = &c->p->nodes[line->node];
    if (node->step == NULL) return refuse(c, c->text, "%s is nothing that is computed", line->name);
    if (!line->output && node->line != c->line) return refuse(c, c->text, "%s is another step's name", line->name);
    for (int i = 0; i < c->line && line->output && node->integers; i++)
        if (c->p->lines[i].output && c->p->lines[i].node == line->node)
            return refuse(c, c->text, "%s is %s, whole numbers that are an output already", line->name,
                          c->p->lines[i].name);
    if (line->output && node->chosen)
        return refuse(c, c->text, "%s is a choice, which its step gives by itself: routing/NAME/%s", line->name,
                      node->step->name);
    if (node->chosen) {
        char name[ASSAY_PROGRAM_NAME];
        memcpy(name, line->name, sizeof name);
        snprintf(line->path, sizeof line->path, "routing/%s/top_k", name);
    }
    if (node->coded && node->line == c->line) MUST(call_codes(c, line));
    if (line->output) c->p->nodes[line->node].readers++;
    return ASSAY_OK;
}

static assay_status check_names(assay_context *ctx, const assay_program *p, assay_program_place *place)
{
    for (int i = 0; i < p->line_count; i++) {
        const assay_program_line *line = &p->lines[i];
        bool taken = !line->output && assay_program_find(p, line->name) != NULL;
        for (int k = 0; k < i; k++)
            taken |= p->lines[k].output == line->output && strcmp(p->lines[k].name, line->name) == 0;
        *place = (assay_program_place){i, 0, -1};
        if (taken) return assay_refuse(ctx, "the name %s is taken", line->name);
    }
    *place = (assay_program_place){-1, 0, -1};
    return ASSAY_OK;
}

static assay_status put_tensor(compiler *c, int i)
{
    assay_program_tensor *t = &c->p->tensors[i];
    assay_program_node node = {.input = i, .integers = t->integers};
    int place;
    for (const char *axis = t->axes; *axis != '\0'; axis++) {
        const int64_t size = c->p->sizes[(unsigned char)*axis % ASSAY_PROGRAM_LETTERS];
        if (size == 0) return assay_refuse(c->ctx, "%s has the axis %c, which has no size in sizes", t->name, *axis);
        if (strchr(axis + 1, *axis) != NULL) return assay_refuse(c->ctx, "%s has the axis %c twice", t->name, *axis);
        node.shape.dims[node.shape.rank++] = size;
    }
    memcpy(node.axes, t->axes, sizeof node.axes);
    assay_program_call(t, t->name, t->weight);
    return add_node(c, &node, &place);
}

/* What nothing reads would be passed over. */
static assay_status check_readers(assay_context *ctx, const assay_program *p, assay_program_place *place)
{
    bool outputs = false;
    for (int i = 1; i < p->node_count; i++) {
        const assay_program_node *node = &p->nodes[i];
        if (node->readers > 0) continue;
        *place = (assay_program_place){-1, 0, node->input};
        if (node->input >= 0) return assay_refuse(ctx, "%s is read by no step", p->tensors[node->input].name);
        *place = (assay_program_place){node->line, 0, -1};
        return assay_refuse(ctx, "%s is read by no step, and is no output", p->lines[node->line].name);
    }
    for (int axis = 0; axis < ASSAY_PROGRAM_LETTERS; axis++) {
        bool used = p->sizes[axis] == 0;
        for (int i = 1; i < p->node_count && !used; i++) used = strchr(p->nodes[i].axes, axis) != NULL;
        if (!used) return assay_refuse(ctx, "sizes has %c, which no tensor has", (char)axis);
    }
    for (int i = 0; i < p->line_count; i++) outputs |= p->lines[i].output;
    return outputs ? ASSAY_OK : assay_refuse(ctx, "outputs is missing: the program gives nothing");
}

/* equal(float(ids), -100), in either order: what labels are that a loss passes over. */
static void find_passed_over(assay_program *p, const assay_program_node *equal)
{
    for (int i = 0; i < 2; i++) {
        const assay_program_node *of = &p->nodes[equal->in[i]], *number = &p->nodes[equal->in[1 - i]];
        if (of->step == NULL || strcmp(of->step->name, "float") != 0 || number->step != NULL || number->input >= 0)
            continue;
        const int given = p->nodes[of->in[0]].input;
        const double over = number->number;
        if (given < 0 || over != rint(over) || fabs(over) > INT32_MAX) continue;
        assay_program_tensor *t = &p->tensors[given];
        if (over >= 0 && over >= (double)t->low && over <= (double)t->high) continue;
        t->passes_over = true;
        t->over = (int64_t)over;
    }
}

static void pass_over(assay_program *p)
{
    for (int i = 0; i < p->tensor_count; i++) p->tensors[i].passes_over = false;
    for (int i = 1; i < p->node_count; i++) {
        const assay_program_node *node = &p->nodes[i];
        if (node->step != NULL && strcmp(node->step->name, "equal") == 0) find_passed_over(p, node);
    }
    for (int i = 1; i < p->node_count; i++) {
        const int given = p->nodes[i].in_count > 1 ? p->nodes[p->nodes[i].in[1]].input : -1;
        const bool passes = given >= 0 && p->tensors[given].passes_over;
        const assay_program_node *index = &p->nodes[p->nodes[i].in[1]];
        const bool chosen = p->nodes[i].in_count > 1 && index->chosen && isfinite(assay_program_number(index, "above"));
        p->nodes[i].over = passes ? (double)p->tensors[given].over : chosen ? -1 : NAN;
    }
}

assay_status assay_program_compile(assay_context *ctx, assay_program *p, assay_program_place *place)
{
    compiler c = {.ctx = ctx, .p = p};
    const assay_program_node none = {.input = -1, .readers = 1};
    int first;
    *place = (assay_program_place){-1, 0, -1};
    assay_program_drop_graph(p); /* of what it was before */
    p->node_count = 0;
    MUST(add_node(&c, &none, &first));
    for (int i = 0; i < p->line_count; i++) {
        assay_program_line *line = &p->lines[i];
        line->node = 0;
        memset(line->coded, 0, sizeof line->coded);
        snprintf(line->path, sizeof line->path, "%s/%s", line->output ? "outputs" : "checkpoints", line->name);
    }
    MUST(check_names(ctx, p, place));
    for (int i = 0; i < p->tensor_count; i++) {
        place->tensor = i;
        MUST(put_tensor(&c, i));
    }
    for (c.line = 0; c.line < p->line_count; c.line++) {
        *place = (assay_program_place){c.line, 0, -1};
        const assay_status status = read_line(&c);
        if (status != ASSAY_OK && c.wrong != NULL) place->column = (int)(c.wrong - c.text);
        MUST(status);
    }
    *place = (assay_program_place){-1, 0, -1};
    pass_over(p);
    MUST(check_readers(ctx, p, place));
    return assay_program_make_graph(ctx, p);
}

/* --- memory: lists grow as they are read --- */

void assay_program_free(assay_program *p)
{
    if (p == NULL) return;
    assay_program_drop_graph(p);
    free(p->tensors);
    free(p->lines);
    free(p->nodes);
    free(p);
}

static assay_status copy_list(assay_context *ctx, const void *from, int64_t count, size_t size, void *to)
{
    void *made;
    MUST(assay_alloc(ctx, "the program", count, size, &made));
    if (count > 0) memcpy(made, from, (size_t)count * size);
    memcpy(to, &made, sizeof made);
    return ASSAY_OK;
}

assay_status assay_program_copy(assay_context *ctx, const assay_program *p, assay_program **copy)
{
    assay_status status;
    assay_program *made = NULL;
    TRY(assay_alloc(ctx, "the program", 1, sizeof *made, &made));
    *made = *p;
    made->tensors = NULL;
    made->lines = NULL;
    made->nodes = NULL;
    made->graph = NULL;
    made->node_room = p->node_count;
    TRY(copy_list(ctx, p->tensors, p->tensor_count, sizeof *p->tensors, &made->tensors));
    TRY(copy_list(ctx, p->lines, p->line_count, sizeof *p->lines, &made->lines));
    TRY(copy_list(ctx, p->nodes, p->node_count, sizeof *p->nodes, &made->nodes));
    if (p->graph != NULL) TRY(assay_program_make_graph(ctx, made));
    *copy = made;
    return ASSAY_OK;
cleanup:
    assay_program_free(made);
    return status;
}

assay_status assay_program_add_tensor(assay_context *ctx, assay_program *p, const assay_program_tensor *tensor)
{
    MUST(assay_grow(ctx, "inputs of a program", p->tensor_count + 1, sizeof *tensor, &p->tensors));
    p->tensors[p->tensor_count++] = *tensor;
    return ASSAY_OK;
}

assay_status assay_program_add_line(assay_context *ctx, assay_program *p, const assay_program_line *line)
{
    MUST(assay_grow(ctx, "steps of a program", p->line_count + 1, sizeof *line, &p->lines));
    p->lines[p->line_count++] = *line;
    return ASSAY_OK;
}
