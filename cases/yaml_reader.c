#include "cases/yaml_reader.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MOST_PAIRS = 4096, MOST_DEPTH = 5000, MOST_ANCHORS = 5000, SHOWN = 60 };

static assay_status refuse_at(const assay_yaml *y, yaml_mark_t mark, const char *message)
{
    if (!y->located) return assay_refuse(y->ctx, "%s: %s", y->origin, message);
    return assay_refuse(y->ctx, "%s:%zu:%zu: %s", y->origin, mark.line + 1, mark.column + 1, message);
}

assay_status assay_yaml_refuse(const assay_yaml *y, const yaml_node_t *at, const char *format, ...)
{
    char message[ASSAY_MESSAGE_SIZE];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return refuse_at(y, at->start_mark, message);
}

static bool is_null(const yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    return strcmp(text, "") == 0 || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

assay_status assay_yaml_refuse_value(const assay_yaml *y, const yaml_node_t *at, const char *what, const char *wanted)
{
    const char *colon = what[0] == '\0' ? "" : ": ";
    if (at->type == YAML_MAPPING_NODE) {
        return assay_yaml_refuse(y, at, "%s%sexpected %s, found a mapping", what, colon, wanted);
    }
    if (at->type == YAML_SEQUENCE_NODE) {
        return assay_yaml_refuse(y, at, "%s%sexpected %s, found a list", what, colon, wanted);
    }
    if (is_null(at)) return assay_yaml_refuse(y, at, "%s%sexpected %s, found nothing", what, colon, wanted);
    /* a whole document that is a text is hardly one of ours, and perhaps not for every eye */
    const bool foreign = at == yaml_document_get_root_node(y->document) && y->located;
    if (foreign) return assay_yaml_refuse(y, at, "%s%sexpected %s, found a text", what, colon, wanted);
    const char *text = (const char *)at->data.scalar.value;
    const char *quote = at->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? "" : "\"";
    const char *more = strlen(text) > SHOWN ? "..." : "";
    return assay_yaml_refuse(y, at, "%s%sexpected %s, found %s%.*s%s%s", what, colon, wanted, quote, SHOWN, text, more,
                             quote);
}

assay_status assay_yaml_refuse_choice(const assay_yaml *y, const yaml_node_t *at, const char *what,
                                      const char *const *choices)
{
    char wanted[ASSAY_MESSAGE_SIZE / 2] = "";
    size_t used = 0;
    for (int i = 0; choices[i] != NULL && used < sizeof wanted; i++) {
        used += (size_t)snprintf(wanted + used, sizeof wanted - used, "%s%s", i == 0 ? "one of " : ", ",
                                 choices[i][0] == '\0' ? "\"\"" : choices[i]);
    }
    return assay_yaml_refuse_value(y, at, what, wanted);
}

static void step_over(yaml_mark_t *mark, char letter)
{
    mark->column = letter == '\n' ? 0 : mark->column + 1;
    mark->line += letter == '\n';
}

/* Where libyaml's reader, which knows only the number of bytes read, stopped. */
static yaml_mark_t mark_of(const char *text, size_t size, size_t offset)
{
    yaml_mark_t mark = {0};
    for (size_t i = 0; i < size && i < offset; i++) step_over(&mark, text[i]);
    return mark;
}

static bool is_tab(const char *text, size_t size, yaml_mark_t at)
{
    yaml_mark_t mark = {0};
    for (size_t i = 0; i < size; i++) {
        if (mark.line == at.line && mark.column == at.column) return text[i] == '\t';
        step_over(&mark, text[i]);
    }
    return false;
}

static assay_status refuse_syntax(const assay_yaml *y, const yaml_parser_t *parser, const char *text, size_t size)
{
    const char *problem = parser->problem != NULL ? parser->problem : "not YAML";
    char message[256];
    /* where libyaml fails without an error, memory ran out and it forgot to say so */
    if (parser->error == YAML_MEMORY_ERROR || parser->error == YAML_NO_ERROR) {
        return assay_fail(y->ctx, ASSAY_NO_MEMORY, "%s: no memory to read it", y->origin);
    }
    if (parser->error == YAML_READER_ERROR) {
        snprintf(message, sizeof message, "expected YAML, found what is no text: %s", problem);
        return refuse_at(y, mark_of(text, size, parser->problem_offset), message);
    }
    if (is_tab(text, size, parser->problem_mark)) problem = "a tab: YAML wants spaces";
    const char *context = parser->context != NULL ? parser->context : "";
    snprintf(message, sizeof message, "expected YAML, found %s%s%s", problem, context[0] != '\0' ? ", " : "", context);
    return refuse_at(y, parser->problem_mark, message);
}

static bool is_anchor(const char *text, size_t size, size_t i)
{
    return (text[i] == '&' || text[i] == '*') && i + 1 < size &&
           (isalnum((unsigned char)text[i + 1]) || text[i + 1] == '_');
}

/* libyaml's time grows with the square of the depth of brackets, and with the product of anchors and aliases. Those in texts
 * and comments count too, so that the limits are far above what anybody writes. */
static assay_status check_size(const assay_yaml *y, const char *text, size_t size)
{
    int depth = 0, anchors = 0;
    for (size_t i = 0; i < size; i++) {
        anchors += is_anchor(text, size, i);
        if (anchors > MOST_ANCHORS)
            return refuse_at(y, mark_of(text, size, i), "more anchors and aliases than any case needs");
        depth += text[i] == '[' || text[i] == '{';
        if ((text[i] == ']' || text[i] == '}') && depth > 0) depth--;
        if (depth <= MOST_DEPTH) continue;
        return refuse_at(y, mark_of(text, size, i), "more brackets are open than any case needs");
    }
    return ASSAY_OK;
}

assay_status assay_yaml_documents(assay_context *ctx, const char *origin, bool located, const char *text, size_t size,
                                  assay_yaml_visitor visit, void *arg)
{
    yaml_parser_t parser;
    yaml_document_t document;
    const assay_yaml y = {.ctx = ctx, .origin = origin, .located = located, .document = &document};
    bool more = true;
    assay_status status = check_size(&y, text, size);
    if (status != ASSAY_OK) return status;
    if (!yaml_parser_initialize(&parser)) return assay_fail(ctx, ASSAY_NO_MEMORY, "%s: no memory to read it", origin);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    while (more && status == ASSAY_OK) {
        if (!yaml_parser_load(&parser, &document)) {
            status = refuse_syntax(&y, &parser, text, size);
            break;
        }
        const yaml_node_t *root = yaml_document_get_root_node(&document);
        more = root != NULL;
        if (more) status = visit(&y, root, arg);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return status;
}

assay_yaml_walk assay_yaml_pairs(const assay_yaml *y, const yaml_node_t *mapping, const char *what)
{
    return (assay_yaml_walk){.y = y, .node = mapping, .what = what};
}

static const yaml_node_t *key_of(const assay_yaml_walk *w, int i)
{
    return yaml_document_get_node(w->y->document, w->node->data.mapping.pairs.start[i].key);
}

static assay_status read_pair(assay_yaml_walk *w)
{
    w->key_node = key_of(w, w->next);
    w->value = yaml_document_get_node(w->y->document, w->node->data.mapping.pairs.start[w->next].value);
    if (w->key_node->type != YAML_SCALAR_NODE) return assay_yaml_refuse_value(w->y, w->key_node, w->what, "a key");
    w->key = (const char *)w->key_node->data.scalar.value;
    if (strcmp(w->key, "<<") == 0)
        return assay_yaml_refuse(w->y, w->key_node, "merge keys (<<) are not read: write the keys out");
    for (int i = 0; i < w->next; i++) {
        const yaml_node_t *before = key_of(w, i);
        if (strcmp(w->key, (const char *)before->data.scalar.value) != 0) continue;
        return assay_yaml_refuse(w->y, w->key_node, "%.*s is given twice, first on line %zu", SHOWN, w->key,
                                 before->start_mark.line + 1);
    }
    return ASSAY_OK;
}

bool assay_yaml_next(assay_yaml_walk *w, assay_status *status)
{
    if (*status != ASSAY_OK) return false;
    if (w->node->type != YAML_MAPPING_NODE) {
        *status = assay_yaml_refuse_value(w->y, w->node, w->what, "a mapping (key: value)");
        return false;
    }
    const ptrdiff_t count = w->node->data.mapping.pairs.top - w->node->data.mapping.pairs.start;
    if (w->next == 0 && count > MOST_PAIRS)
        *status = assay_yaml_refuse(w->y, w->node, "%s: more than %d keys", w->what, MOST_PAIRS);
    if (*status != ASSAY_OK || w->next == count) return false;
    *status = read_pair(w);
    w->next++;
    return *status == ASSAY_OK;
}

const yaml_node_t *assay_yaml_value(const assay_yaml *y, const yaml_node_t *mapping, const char *key)
{
    if (mapping == NULL || mapping->type != YAML_MAPPING_NODE) return NULL;
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start; p < mapping->data.mapping.pairs.top; p++) {
        const yaml_node_t *name = yaml_document_get_node(y->document, p->key);
        if (name->type != YAML_SCALAR_NODE || strcmp((const char *)name->data.scalar.value, key) != 0) continue;
        return yaml_document_get_node(y->document, p->value);
    }
    return NULL;
}
