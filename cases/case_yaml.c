/* The reader of case files (docs/interface.md, "Case file"), and of --set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"

/* mesh and positions: mappings of whole numbers. */
static assay_status read_section(const assay_yaml *y, assay_case *c, const char *part, const yaml_node_t *node)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, part); assay_yaml_next(&w, &status);) {
        char full[ASSAY_TEXT_SIZE];
        bool known = false;
        snprintf(full, sizeof full, "%s.%.40s", part, w.key);
        status = assay_case_read_field(y, c, full, w.value, &known);
        if (!known) {
            const char *wanted = strcmp(part, "mesh") == 0 ? "data, fsdp, fsdp_transpose, expert, tensor or mlp_tensor"
                                                           : "start or step";
            return assay_yaml_refuse(y, w.key_node, "unknown key %.40s in %s, expected %s", w.key, part, wanted);
        }
    }
    return status;
}

static assay_status refuse_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node)
{
    static const char *const OTHERS[] = {"op",     "model",         "config", "inputs",
                                         "dtypes", "quant_formats", "mesh",   "positions"};
    char hint[ASSAY_MESSAGE_SIZE / 2];
    if (assay_model_key_by_name(key) != NULL) {
        return assay_yaml_refuse(y, key_node, "unknown key %s: keys of the model belong under config", key);
    }
    assay_nearest nearest = {.word = key, .most = 1};
    for (size_t i = 0; i < sizeof OTHERS / sizeof *OTHERS; i++) assay_nearest_offer(&nearest, OTHERS[i]);
    assay_case_offer_of_program(&nearest);
    assay_case_offer_fields(&nearest);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(y, key_node, "unknown key %.100s in a case%s", key, hint);
}

/* Tensors of a program, or how others are filled. */
static assay_status read_inputs(const assay_yaml *y, assay_case *c, const yaml_node_t *node)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, "inputs"); assay_yaml_next(&w, &status);)
        status = assay_case_declares(y, w.value) ? assay_case_read_declared(y, c, false, w.key, w.key_node, w.value)
                                                 : assay_case_read_input(y, c, w.key, w.key_node, w.value);
    return status;
}

static assay_status read_key(const assay_yaml *y, assay_case *c, const char *key, const yaml_node_t *key_node,
                             const yaml_node_t *value)
{
    bool known = false;
    if (strcmp(key, "op") == 0) return assay_yaml_text(y, value, key, c->op, sizeof c->op);
    if (strcmp(key, "model") == 0) return assay_case_read_model(y, c, value);
    if (strcmp(key, "inputs") == 0) return read_inputs(y, c, value);
    if (strcmp(key, "dtypes") == 0) return assay_case_read_all(y, c, value, key, assay_case_read_dtype_of);
    if (strcmp(key, "quant_formats") == 0)
        return assay_case_read_all(y, c, value, key, assay_case_read_quant_format_of);
    if (assay_case_is_of_program(key)) return ASSAY_OK; /* read at the end */
    if (strcmp(key, "mesh") == 0 || strcmp(key, "positions") == 0) return read_section(y, c, key, value);
    if (strchr(key, '.') != NULL) return refuse_key(y, key, key_node); /* mesh.expert is for --set */
    assay_status status = assay_case_read_field(y, c, key, value, &known);
    return known ? status : refuse_key(y, key, key_node);
}

static assay_status read_case(const assay_yaml *y, const yaml_node_t *root, assay_case *c)
{
    const yaml_node_t *config = NULL;
    assay_status status = ASSAY_OK;
    if (root->type != YAML_MAPPING_NODE) return assay_yaml_refuse_value(y, root, "", "a case (case: NAME, op: ...)");
    for (assay_yaml_walk w = assay_yaml_pairs(y, root, "a case"); assay_yaml_next(&w, &status);) {
        if (strcmp(w.key, "config") == 0) {
            config = w.value; /* goes over the model, wherever it stands */
        } else {
            status = read_key(y, c, w.key, w.key_node, w.value);
        }
    }
    if (status == ASSAY_OK && config != NULL) status = assay_case_read_config(y, c, config);
    if (status != ASSAY_OK) return status;
    if (c->name[0] == '\0') return assay_yaml_refuse(y, root, "the case has no name: expected the key case");
    if (c->op[0] == '\0') return assay_yaml_refuse(y, root, "%s has no operation: expected the key op", c->name);
    return assay_case_read_program(y, c, root);
}

static assay_status append_case(const assay_yaml *y, const yaml_node_t *root, void *arg)
{
    assay_case_list *list = arg;
    MUST(assay_grow(y->ctx, "the cases of a file", list->count + 1, sizeof *list->cases, &list->cases));
    MUST(assay_case_init(y->ctx, &list->cases[list->count]));
    list->count++;
    assay_yaml own = *y;
    own.stored = list->stored;
    return read_case(&own, root, &list->cases[list->count - 1]);
}

static assay_status parse(assay_context *ctx, const char *origin, const char *text, size_t size, bool stored,
                          assay_case **cases, int *count)
{
    assay_case_list list = {.stored = stored};
    *cases = NULL;
    *count = 0;
    assay_status status = assay_yaml_documents(ctx, origin, true, text, size, append_case, &list);
    if (status == ASSAY_OK && list.count == 0) {
        status = assay_refuse(ctx, "%s:1:1: expected a case (case: NAME, op: ...), found nothing", origin);
    }
    if (status != ASSAY_OK) {
        assay_cases_free(list.cases, list.count);
        return status;
    }
    *cases = list.cases;
    *count = list.count;
    return ASSAY_OK;
}

assay_status assay_cases_parse(assay_context *ctx, const char *origin, const char *text, size_t size,
                               assay_case **cases, int *count)
{
    return parse(ctx, origin, text, size, false, cases, count);
}

assay_status assay_cases_parse_stored(assay_context *ctx, const char *origin, const char *text, size_t size,
                                      assay_case **cases, int *count)
{
    assay_status status = parse(ctx, origin, text, size, true, cases, count);
    for (int i = 0; i < *count; i++) assay_model_forget_set_keys(&(*cases)[i].config);
    return status;
}
