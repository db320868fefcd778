/* dtypes: types of single tensors, by their paths or globs over them; the last that matches a tensor counts.
 * quant_formats: formats of single tensors, by their paths. */
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"

/* The place of a pattern or a path in a list of entries that begin with one. The newest comes last, and counts. */
static assay_status place_of(assay_context *ctx, void **list, int *count, size_t size, const char *pattern,
                             void **place)
{
    int at = 0;
    while (at < *count && strcmp((char *)*list + (size_t)at * size, pattern) != 0) at++;
    if (at == *count) {
        MUST(assay_grow(ctx, "patterns", at + 1, size, list));
        ++*count;
    }
    char *from = (char *)*list + (size_t)at * size;
    memmove(from, from + size, (size_t)(*count - 1 - at) * size);
    *place = (char *)*list + (size_t)(*count - 1) * size;
    return ASSAY_OK;
}

static assay_status check_pattern(const assay_yaml *y, const yaml_node_t *key_node, const char *what,
                                  const char *pattern)
{
    if (pattern[0] != '\0' && pattern[0] != '/' && strlen(pattern) < ASSAY_PATH_SIZE) return ASSAY_OK;
    return assay_yaml_refuse(y, key_node, "expected a tensor such as %s, in %s, found %.60s",
                             strcmp(what, "dtypes") == 0 ? "weights/gate/bias, or a glob" : "weights/wi_0", what,
                             pattern[0] == '\0' ? "\"\"" : pattern);
}

assay_status assay_case_read_dtype_of(const assay_yaml *y, assay_case *c, const char *pattern,
                                      const yaml_node_t *key_node, const yaml_node_t *value)
{
    assay_case_dtype read = {.type = c->dtype};
    void *list = c->dtypes, *place = NULL;
    MUST(check_pattern(y, key_node, "dtypes", pattern));
    memcpy(read.pattern, pattern, strlen(pattern) + 1);
    MUST(assay_case_read_dtype(y, value, "dtypes", &read.type));
    MUST(place_of(y->ctx, &list, &c->dtype_count, sizeof read, pattern, &place));
    c->dtypes = list;
    memcpy(place, &read, sizeof read);
    return ASSAY_OK;
}

static assay_status read_format(const assay_yaml *y, const yaml_node_t *node, const assay_block_format **format)
{
    char name[ASSAY_TEXT_SIZE];
    MUST(assay_yaml_text(y, node, "quant_formats", name, sizeof name));
    *format = assay_block_format_by_name(name);
    if (*format != NULL) return ASSAY_OK;
    return assay_yaml_refuse_choice(y, node, "quant_formats", assay_block_format_names + 1); /* "" is none */
}

assay_status assay_case_read_quant_format_of(const assay_yaml *y, assay_case *c, const char *pattern,
                                             const yaml_node_t *key_node, const yaml_node_t *value)
{
    assay_case_quant_format read = {{0}, NULL};
    void *list = c->quant_formats, *place = NULL;
    MUST(check_pattern(y, key_node, "quant_formats", pattern));
    memcpy(read.path, pattern, strlen(pattern) + 1);
    MUST(read_format(y, value, &read.format));
    MUST(place_of(y->ctx, &list, &c->quant_format_count, sizeof read, pattern, &place));
    c->quant_formats = list;
    memcpy(place, &read, sizeof read);
    return ASSAY_OK;
}

assay_status assay_case_read_all(const assay_yaml *y, assay_case *c, const yaml_node_t *node, const char *what,
                                 assay_case_reader *read)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, what); assay_yaml_next(&w, &status);)
        status = read(y, c, w.key, w.key_node, w.value);
    return status;
}

bool assay_case_dtype_matches(const assay_case_dtype *dtype, const char *path)
{
    static const char COTANGENTS[] = "cotangents/";
    const char *slash = strchr(path, '/');
    if (fnmatch(dtype->pattern, path, 0) == 0) return true;
    return slash != NULL && strncmp(path, COTANGENTS, strlen(COTANGENTS)) != 0 &&
           fnmatch(dtype->pattern, slash + 1, 0) == 0;
}

bool assay_case_keeps(const assay_case *c, const assay_case_dtype *dtype, const assay_tensor_spec *spec)
{
    const bool output = c->program != NULL && spec->role == ASSAY_ROLE_OUTPUT && dtype->type != ASSAY_FLOAT64;
    return output &&
           (strcmp(dtype->pattern, spec->path) == 0 || strcmp(dtype->pattern, strchr(spec->path, '/') + 1) == 0);
}

const assay_case_dtype *assay_case_dtype_of(const assay_case *c, const char *path)
{
    for (int i = c->dtype_count - 1; i >= 0; i--) {
        if (assay_case_dtype_matches(&c->dtypes[i], path)) return &c->dtypes[i];
    }
    return NULL;
}

const assay_block_format *assay_case_quant_format_of(const assay_case *c, const char *path)
{
    for (int i = c->quant_format_count - 1; i >= 0; i--) {
        if (strcmp(c->quant_formats[i].path, path) == 0) return c->quant_formats[i].format;
    }
    return NULL;
}

bool assay_case_has_codes(const assay_case *c)
{
    return c->quant_format_count > 0 || c->config.quant_recipe.text[0] != '\0' ||
           c->config.quant_hidden_format.text[0] != '\0';
}

bool assay_case_quantises(const assay_case *c, const char *path)
{
    static const char *const ends[] = {"", "_scale", "_tensor_scale"};
    char of[ASSAY_PATH_SIZE];
    for (size_t i = 0; c->quant_format_count > 0 && i < sizeof ends / sizeof *ends; i++) {
        const size_t length = strlen(path), end = strlen(ends[i]);
        if (length < end || strcmp(path + length - end, ends[i]) != 0) continue;
        snprintf(of, sizeof of, "%.*s", (int)(length - end), path);
        if (assay_case_quant_format_of(c, of) != NULL) return true;
    }
    return false;
}
