/* dtypes: types of single tensors, by their paths or globs over them; the last that matches a tensor counts. */
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"

static assay_status place_dtype(assay_context *ctx, assay_case *c, const char *pattern, assay_case_dtype **place)
{
    int at = 0;
    while (at < c->dtype_count && strcmp(c->dtypes[at].pattern, pattern) != 0) at++;
    if (at == c->dtype_count) {
        assay_case_dtype *dtypes = realloc(c->dtypes, ((size_t)at + 1) * sizeof *dtypes);
        if (dtypes == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for %d dtypes", at + 1);
        c->dtypes = dtypes;
        c->dtype_count++;
    }
    /* the newest comes last, and counts */
    memmove(&c->dtypes[at], &c->dtypes[at + 1], (size_t)(c->dtype_count - 1 - at) * sizeof *c->dtypes);
    *place = &c->dtypes[c->dtype_count - 1];
    return ASSAY_OK;
}

assay_status assay_case_read_dtype_of(const assay_yaml *y, assay_case *c, const char *pattern,
                                      const yaml_node_t *key_node, const yaml_node_t *value)
{
    assay_case_dtype *place = NULL, read = {.type = c->dtype};
    if (pattern[0] == '\0' || pattern[0] == '/' || strlen(pattern) >= sizeof read.pattern) {
        return assay_yaml_refuse(y, key_node,
                                 "expected a tensor such as weights/gate/bias, or a glob, in dtypes, found %.60s",
                                 pattern[0] == '\0' ? "\"\"" : pattern);
    }
    memcpy(read.pattern, pattern, strlen(pattern) + 1);
    assay_status status = assay_case_read_dtype(y, value, "dtypes", &read.type);
    if (status == ASSAY_OK) status = place_dtype(y->ctx, c, pattern, &place);
    if (status == ASSAY_OK) *place = read;
    return status;
}

assay_status assay_case_read_dtypes(const assay_yaml *y, assay_case *c, const yaml_node_t *node)
{
    int pairs = 0;
    assay_status status = assay_yaml_mapping(y, node, "dtypes", &pairs);
    for (int i = 0; i < pairs && status == ASSAY_OK; i++) {
        const char *pattern;
        const yaml_node_t *key_node, *value;
        status = assay_yaml_pair(y, node, "dtypes", i, &pattern, &key_node, &value);
        if (status == ASSAY_OK) status = assay_case_read_dtype_of(y, c, pattern, key_node, value);
    }
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

const assay_case_dtype *assay_case_dtype_of(const assay_case *c, const char *path)
{
    for (int i = c->dtype_count - 1; i >= 0; i--) {
        if (assay_case_dtype_matches(&c->dtypes[i], path)) return &c->dtypes[i];
    }
    return NULL;
}
