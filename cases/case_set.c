/* --set key=value: the value in YAML, read as a case file's would be. */
#include <stdio.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/program/program.h"

typedef struct assignment {
    assay_case *c;
    const char *key;
    bool done;
} assignment;

/* Whether all of the text is YAML, before any of it counts. */
static assay_status look(const assay_yaml *y, const yaml_node_t *value, void *arg)
{
    (void)y, (void)value, (void)arg;
    return ASSAY_OK;
}

/* Several sizes may have to change before they fit: whether they do is said where the case is used. */
static assay_status set_size(const assay_yaml *y, assay_case *c, const char *axis, const yaml_node_t *value)
{
    assay_context quiet = {0};
    if (c->program == NULL) return assay_yaml_refuse(y, value, "op %s has no sizes: they are for op program", c->op);
    const assay_status status = assay_case_read_size(y, c, axis, value, value);
    if (status == ASSAY_OK && assay_case_compile(&quiet, "", c) != ASSAY_OK) c->program->node_count = 0;
    return status;
}

/* inputs.x.scale=100 would be one key of a fill, whose others nobody has said. */
static assay_status set_input(const assay_yaml *y, assay_case *c, const char *path, const yaml_node_t *value)
{
    const char *dot = strrchr(path, '.');
    if (dot != NULL && value->type == YAML_SCALAR_NODE) {
        return assay_yaml_refuse(y, value, "a fill is said whole: inputs.%.*s={distribution: normal, %s: %.60s}",
                                 (int)(dot - path), path, dot + 1, (const char *)value->data.scalar.value);
    }
    return assay_case_read_input(y, c, path, value, value);
}

static assay_status assign(const assay_yaml *y, const yaml_node_t *value, void *arg)
{
    static const char INPUTS[] = "inputs.", DTYPES[] = "dtypes.", FORMATS[] = "quant_formats.", SIZES[] = "sizes.";
    assignment *a = arg;
    char hint[ASSAY_MESSAGE_SIZE / 2];
    bool known = false;
    a->done = true;
    assay_status status = ASSAY_OK;
    if (assay_model_read_by_name(y, &a->c->config, a->key, value, &status)) return status;
    if (strncmp(a->key, INPUTS, strlen(INPUTS)) == 0) {
        return set_input(y, a->c, a->key + strlen(INPUTS), value);
    }
    if (strncmp(a->key, SIZES, strlen(SIZES)) == 0) return set_size(y, a->c, a->key + strlen(SIZES), value);
    if (strcmp(a->key, "model") == 0) return assay_case_read_model(y, a->c, value);
    if (strncmp(a->key, DTYPES, strlen(DTYPES)) == 0) {
        return assay_case_read_dtype_of(y, a->c, a->key + strlen(DTYPES), value, value);
    }
    if (strncmp(a->key, FORMATS, strlen(FORMATS)) == 0) {
        return assay_case_read_quant_format_of(y, a->c, a->key + strlen(FORMATS), value, value);
    }
    status = assay_case_read_field(y, a->c, a->key, value, &known);
    if (known) return status;
    assay_nearest nearest = {.word = a->key, .most = 1};
    assay_case_offer_fields(&nearest);
    assay_model_offer_keys(&nearest);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(y, value, "unknown key%s", hint);
}

assay_status assay_case_set(assay_context *ctx, assay_case *c, const char *text)
{
    if (strpbrk(text, "\r\n") != NULL) { /* so that there is one document at most */
        return assay_refuse(ctx, "--set: expected key=value on one line");
    }
    char origin[320], key[ASSAY_PATH_SIZE + ASSAY_TEXT_SIZE];
    snprintf(origin, sizeof origin, "--set %.300s", text);
    size_t length = strcspn(text, "=");
    if (text[length] == '\0' || length == 0 || length >= sizeof key) {
        return assay_refuse(ctx, "%s: expected key=value", origin);
    }
    memcpy(key, text, length);
    key[length] = '\0';
    for (const char *at = key; *at != '\0'; at++) {
        if (*at > ' ' && *at < 0x7f) continue; /* as YAML it could not be read again */
        return assay_refuse(ctx, "%s: no key has such a character as its %d.", origin, (int)(at - key) + 1);
    }
    const char *value = text + length + 1;
    if (value[0] == '\0') value = "\"\"";
    assignment a = {.c = c, .key = key};
    MUST(assay_yaml_documents(ctx, origin, false, value, strlen(value), look, NULL));
    assay_status status = assay_yaml_documents(ctx, origin, false, value, strlen(value), assign, &a);
    if (status == ASSAY_OK && !a.done) {
        return assay_refuse(ctx, "%s: expected a value after =, found none", origin);
    }
    return status;
}
