#include "cases/yaml_text.h"

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void assay_yaml_number_text(double x, char *text, size_t size)
{
    char digits[40];
    if (isinf(x)) {
        snprintf(text, size, "%s.inf", x < 0 ? "-" : "");
        return;
    }
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(digits, sizeof digits, "%.*g", precision, x);
        if (strtod(digits, NULL) == x) break;
    }
    /* YAML 1.1 takes 1e-06 for a text, and 10000 for a whole number. */
    size_t mantissa = strcspn(digits, "e");
    const char *point = memchr(digits, '.', mantissa) == NULL ? ".0" : "";
    snprintf(text, size, "%.*s%s%s", (int)mantissa, digits, point, digits + mantissa);
}

/* Whether no reader of YAML 1.1 or 1.2 takes it for anything but a text. */
static bool is_plainly_text(const char *value)
{
    static const char *const WORDS[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
    if (!isalpha((unsigned char)value[0])) return false;
    for (const char *p = value; *p != '\0'; p++) {
        if (!isalnum((unsigned char)*p) && strchr("_/.-", *p) == NULL) return false;
    }
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        if (strcasecmp(value, WORDS[i]) == 0) return false;
    }
    return true;
}

void assay_yaml_quoted_text(const char *value, char *text, size_t size)
{
    if (is_plainly_text(value)) {
        snprintf(text, size, "%s", value);
        return;
    }
    size_t used = (size_t)snprintf(text, size, "\"");
    for (const char *p = value; *p != '\0' && used < size; p++) {
        unsigned char c = (unsigned char)*p;
        if (c < ' ' || c == 0x7f) {
            used += (size_t)snprintf(text + used, size - used, "\\x%02x", c);
        } else {
            used += (size_t)snprintf(text + used, size - used, "%s%c", c == '"' || c == '\\' ? "\\" : "", c);
        }
    }
    if (used < size) snprintf(text + used, size - used, "\"");
}
