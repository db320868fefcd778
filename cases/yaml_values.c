/* Nodes of YAML as numbers, truth values, texts and lists of texts. */
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cases/case_internal.h"
#include "cases/yaml_reader.h"

enum { NUMBER_SIZE = 64 };

/* Digits, which single underscores may part, copied to `out` without these. */
static const char *parse_digits(const char *text, char *out, size_t *length)
{
    while (isdigit((unsigned char)*text) && *length < NUMBER_SIZE - 1) {
        out[(*length)++] = *text++;
        if (text[0] == '_' && isdigit((unsigned char)text[1])) text++;
    }
    return text;
}

/* A decimal number as people write it, ready for strtod: 12, -0.5, .5, 10_000, 1e-6, 1.0e+3. Not: 0x10, 010, inf, "1".
 */
static bool is_number(const yaml_node_t *node, char digits[NUMBER_SIZE], bool *whole)
{
    if (node->type != YAML_SCALAR_NODE || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE) return false;
    const char *p = (const char *)node->data.scalar.value;
    size_t length = 0, start;
    *whole = true;
    if (*p == '-' || *p == '+') digits[length++] = *p++;
    start = length;
    p = parse_digits(p, digits, &length);
    if (length > start + 1 && digits[start] == '0') return false;
    size_t places = length - start;
    if (*p == '.' && length < NUMBER_SIZE - 1) {
        *whole = false;
        digits[length++] = *p++;
        start = length;
        p = parse_digits(p, digits, &length);
        places += length - start;
    }
    if (places == 0) return false;
    if ((*p == 'e' || *p == 'E') && length < NUMBER_SIZE - 2) {
        *whole = false;
        digits[length++] = *p++;
        if (*p == '-' || *p == '+') digits[length++] = *p++;
        start = length;
        p = parse_digits(p, digits, &length);
        if (length == start) return false;
    }
    digits[length] = '\0';
    return *p == '\0';
}

assay_status assay_yaml_real_or_infinite(const assay_yaml *y, const yaml_node_t *node, const char *what, double *value)
{
    const char *text = node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
    const bool negative = strcmp(text, "-.inf") == 0;
    if (!negative && strcmp(text, ".inf") != 0) return assay_yaml_real(y, node, what, value);
    *value = negative ? -INFINITY : INFINITY;
    return ASSAY_OK;
}

assay_status assay_yaml_real(const assay_yaml *y, const yaml_node_t *node, const char *what, double *value)
{
    char digits[NUMBER_SIZE];
    bool whole;
    if (!is_number(node, digits, &whole)) return assay_yaml_refuse_value(y, node, what, "a finite number");
    errno = 0;
    double x = strtod(digits, NULL);
    if (!isfinite(x) || (errno == ERANGE && x == 0)) {
        return assay_yaml_refuse_value(y, node, what, "a number that float64 can hold");
    }
    *value = x;
    return ASSAY_OK;
}

static assay_status refuse_integer(const assay_yaml *y, const yaml_node_t *node, const char *what, int64_t least,
                                   int64_t most)
{
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a whole number from %" PRId64 " to %" PRId64, least, most);
    return assay_yaml_refuse_value(y, node, what, wanted);
}

assay_status assay_yaml_integer(const assay_yaml *y, const yaml_node_t *node, const char *what, int64_t least,
                                int64_t most, int64_t *value)
{
    char digits[NUMBER_SIZE];
    bool whole;
    if (!is_number(node, digits, &whole)) return refuse_integer(y, node, what, least, most);
    int64_t n = 0;
    if (whole) {
        n = strtoll(digits, NULL, 10); /* saturates, which is out of range too */
    } else {
        double x = strtod(digits, NULL); /* 1e3 */
        if (!(fabs(x) <= 0x1p53 && x == rint(x))) return refuse_integer(y, node, what, least, most);
        n = (int64_t)x;
    }
    if (n < least || n > most) return refuse_integer(y, node, what, least, most);
    *value = n;
    return ASSAY_OK;
}

assay_status assay_yaml_seed(const assay_yaml *y, const yaml_node_t *node, const char *what, uint64_t *value)
{
    char digits[NUMBER_SIZE];
    bool whole;
    errno = 0;
    if (is_number(node, digits, &whole) && whole && digits[0] != '-') {
        uint64_t seed = strtoull(digits, NULL, 10);
        if (errno == 0) {
            *value = seed;
            return ASSAY_OK;
        }
    }
    return assay_yaml_refuse_value(y, node, what, "a whole number from 0 to 18446744073709551615");
}

assay_status assay_yaml_bool(const assay_yaml *y, const yaml_node_t *node, const char *what, bool *value)
{
    static const char *const WORDS[2][3] = {{"false", "no", "off"}, {"true", "yes", "on"}};
    if (node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
        for (int i = 0; i < 6; i++) {
            if (strcasecmp((const char *)node->data.scalar.value, WORDS[i / 3][i % 3]) != 0) continue;
            *value = i / 3 == 1;
            return ASSAY_OK;
        }
    }
    return assay_yaml_refuse_value(y, node, what, "true or false");
}

assay_status assay_yaml_text(const assay_yaml *y, const yaml_node_t *node, const char *what, char *value, size_t size)
{
    if (node->type != YAML_SCALAR_NODE) return assay_yaml_refuse_value(y, node, what, "a text");
    const char *text = (const char *)node->data.scalar.value;
    size_t length = node->data.scalar.length;
    yaml_scalar_style_t style = node->data.scalar.style;
    if (length == 0 && style == YAML_PLAIN_SCALAR_STYLE) return assay_yaml_refuse_value(y, node, what, "a text");
    if (style == YAML_FOLDED_SCALAR_STYLE || style == YAML_LITERAL_SCALAR_STYLE)
        length -= length > 0 && text[length - 1] == '\n';
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] >= ' ' && text[i] != 0x7f) continue;
        return assay_yaml_refuse(y, node, "%s: expected one line of text, found a control character", what);
    }
    if (length >= size) {
        return assay_yaml_refuse(y, node, "%s: expected at most %zu bytes, found %zu", what, size - 1, length);
    }
    memcpy(value, text, length);
    value[length] = '\0';
    return ASSAY_OK;
}

/* Appends the items of "a, b". */
static assay_status append_items(const assay_yaml *y, const yaml_node_t *node, const char *what, assay_text_list *list)
{
    char text[ASSAY_MESSAGE_SIZE];
    MUST(assay_yaml_text(y, node, what, text, sizeof text));
    for (const char *item = text, *end; item != NULL; item = *end == ',' ? end + 1 : NULL) {
        item += strspn(item, " ");
        end = item + strcspn(item, ",");
        size_t length = (size_t)(end - item);
        while (length > 0 && item[length - 1] == ' ') length--;
        if (length == 0) return assay_yaml_refuse_value(y, node, what, "texts, none of them empty");
        MUST(assay_text_list_append(y->ctx, list, item, length));
    }
    return ASSAY_OK;
}

assay_status assay_yaml_list(const assay_yaml *y, const yaml_node_t *node, const char *what, assay_text_list *list)
{
    OWNED_BY(assay_text_list_free) assay_text_list read = {0};
    if (node->type == YAML_SEQUENCE_NODE) {
        for (const yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++) {
            MUST(append_items(y, yaml_document_get_node(y->document, *i), what, &read));
        }
    } else {
        MUST(append_items(y, node, what, &read));
    }
    assay_text_list_free(list);
    *list = read;
    read = (assay_text_list){0};
    return ASSAY_OK;
}
