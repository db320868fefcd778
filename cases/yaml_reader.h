/* Documents of YAML (libyaml) and their nodes as values, every refusal with its place.
 * Anchors and aliases work; merge keys (<<) are refused. */
#pragma once

#include <yaml.h>

#include "cases/case.h"

typedef struct assay_yaml {
    assay_context *ctx;
    const char *origin; /* begins every message */
    bool located;       /* whether line and column follow it: not for --set */
    bool stored;        /* a program wrote it, maybe an older one, which honoured less */
    yaml_document_t *document;
} assay_yaml;

/* Calls `visit` for each document; `root` is never NULL. */
typedef assay_status (*assay_yaml_visitor)(const assay_yaml *y, const yaml_node_t *root, void *arg);
assay_status assay_yaml_documents(assay_context *ctx, const char *origin, bool located, const char *text, size_t size,
                                  assay_yaml_visitor visit, void *arg);

/* ASSAY_BAD_INPUT with "origin:line:column: " before the message. */
assay_status assay_yaml_refuse(const assay_yaml *y, const yaml_node_t *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "WHAT: expected WANTED, found ...", the latter told from the node. */
assay_status assay_yaml_refuse_value(const assay_yaml *y, const yaml_node_t *at, const char *what, const char *wanted);

/* "WHAT: expected one of A, B, found ..."; NULL ends the choices. */
assay_status assay_yaml_refuse_choice(const assay_yaml *y, const yaml_node_t *at, const char *what,
                                      const char *const *choices);

/* A mapping, called `what` ("" for a whole case), pair by pair as long as all is well:
 *     for (assay_yaml_walk w = assay_yaml_pairs(y, node, what); assay_yaml_next(&w, &status);) status = ...w.key, w.value...
 * Refused: another kind of node, keys that are no texts, a key that was there before. */
typedef struct assay_yaml_walk {
    const assay_yaml *y;
    const yaml_node_t *node;
    const char *what;
    int next;
    const char *key;
    const yaml_node_t *key_node, *value;
} assay_yaml_walk;
/* What stands behind the key in the mapping; NULL: nothing, or no mapping. */
const yaml_node_t *assay_yaml_value(const assay_yaml *y, const yaml_node_t *mapping, const char *key);
assay_yaml_walk assay_yaml_pairs(const assay_yaml *y, const yaml_node_t *mapping, const char *what);
bool assay_yaml_next(assay_yaml_walk *w, assay_status *status);

/* Values. On a refusal nothing is written; `what` is the key. */
assay_status assay_yaml_integer(const assay_yaml *y, const yaml_node_t *node, const char *what, int64_t least,
                                int64_t most, int64_t *value);
assay_status assay_yaml_seed(const assay_yaml *y, const yaml_node_t *node, const char *what, uint64_t *value);
assay_status assay_yaml_real(const assay_yaml *y, const yaml_node_t *node, const char *what, double *value);
/* Or an infinity: .inf, -.inf. */
assay_status assay_yaml_real_or_infinite(const assay_yaml *y, const yaml_node_t *node, const char *what, double *value);
assay_status assay_yaml_bool(const assay_yaml *y, const yaml_node_t *node, const char *what, bool *value);
/* One line of text without control characters, shorter than `size`; may be empty where it is written as "". */
assay_status assay_yaml_text(const assay_yaml *y, const yaml_node_t *node, const char *what, char *value, size_t size);
/* [a, b], or one text: a, or a, b. The list before is released. */
assay_status assay_yaml_list(const assay_yaml *y, const yaml_node_t *node, const char *what, assay_text_list *list);

/* Where ".yml" or ".yaml" begins at the end of a path; NULL when it ends otherwise. */
const char *assay_yaml_extension(const char *path);

/* A whole file. ASSAY_IO when it cannot be read; *text is allocated. */
assay_status assay_read_text_file(assay_context *ctx, const char *path, char **text, size_t *size);
