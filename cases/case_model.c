/* Models: MaxText's files, by name or by path, mappings written in place, and Hugging Face's configurations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"

static assay_status read_mapping(const assay_yaml *y, const yaml_node_t *node, assay_model_config *config)
{
    return assay_yaml_value(y, node, "model_type") != NULL ? assay_hugging_face_read(y, node, config)
                                                           : assay_model_read_mapping(y, node, config);
}

typedef struct model_file {
    assay_model_config config;
    int documents;
} model_file;

static assay_status visit_model(const assay_yaml *y, const yaml_node_t *root, void *arg)
{
    model_file *file = arg;
    if (file->documents++ > 0) return assay_yaml_refuse(y, root, "expected one model, found a second document");
    return read_mapping(y, root, &file->config);
}

/* MaxText's files do not say their own name, which decides the routing family: it is the file's. */
static void name_after_file(assay_model_config *config, const char *path)
{
    if (config->model_name.text[0] != '\0') return;
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    const char *extension = assay_yaml_extension(name);
    size_t length = extension != NULL ? (size_t)(extension - name) : strlen(name);
    snprintf(config->model_name.text, sizeof config->model_name.text, "%.*s", (int)length, name);
}

static assay_status read_model_text(assay_context *ctx, const char *origin, const char *text, size_t size,
                                    const char *name, assay_model_config *config)
{
    model_file file = {.config = assay_model_defaults};
    MUST(assay_yaml_documents(ctx, origin, true, text, size, visit_model, &file));
    if (file.documents == 0) return assay_refuse(ctx, "%s: expected a model, found nothing", origin);
    name_after_file(&file.config, name);
    *config = file.config;
    return ASSAY_OK;
}

/* A path is relative to the folder of the file that names it, on the command line to the working directory. */
static assay_status read_model_path(const assay_yaml *y, const yaml_node_t *node, const char *name,
                                    assay_model_config *config)
{
    char path[4096], *text = NULL;
    size_t size = 0;
    const char *slash = name[0] == '/' || !y->located ? NULL : strrchr(y->origin, '/');
    int folder = slash != NULL ? (int)(slash - y->origin) + 1 : 0;
    int length = snprintf(path, sizeof path, "%.*s%s", folder, y->origin, name);
    if (length < 0 || (size_t)length >= sizeof path) return assay_yaml_refuse(y, node, "model: the path is too long");
    assay_status status = assay_read_text_file(y->ctx, path, &text, &size);
    if (status == ASSAY_IO) {
        char why[ASSAY_MESSAGE_SIZE];
        memcpy(why, y->ctx->message, sizeof why);
        return assay_yaml_refuse(y, node, "model: %s", why);
    }
    if (status == ASSAY_OK) status = read_model_text(y->ctx, path, text, size, name, config);
    free(text);
    return status;
}

static assay_status read_model_name(const assay_yaml *y, const yaml_node_t *node, assay_model_config *config)
{
    char name[ASSAY_MESSAGE_SIZE], hint[ASSAY_MESSAGE_SIZE / 2];
    MUST(assay_yaml_text(y, node, "model", name, sizeof name));
    assay_nearest nearest = {.word = name, .most = 2};
    for (int i = 0; i < assay_embedded_model_count; i++) {
        const assay_embedded_file *file = &assay_embedded_models[i];
        assay_nearest_offer(&nearest, file->name);
        if (strcmp(name, file->name) != 0) continue;
        char origin[ASSAY_PATH_SIZE];
        snprintf(origin, sizeof origin, "models/%s.yml", file->name);
        return read_model_text(y->ctx, origin, (const char *)file->text, file->size, name, config);
    }
    const char *dot = strrchr(name, '.');
    const bool is_file = assay_yaml_extension(name) != NULL || (dot != NULL && strcmp(dot, ".json") == 0);
    if (strchr(name, '/') != NULL || is_file) return read_model_path(y, node, name, config);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(
        y, node, "model: no model is called %.100s%s (or give a path to a .yml file or a config.json)", name, hint);
}

assay_status assay_case_read_model(const assay_yaml *y, assay_case *c, const yaml_node_t *node)
{
    assay_model_config config = assay_model_defaults;
    assay_status status = ASSAY_OK;
    switch (node->type) {
    case YAML_SCALAR_NODE:
        status = read_model_name(y, node, &config);
        break;
    case YAML_MAPPING_NODE:
        status = read_mapping(y, node, &config);
        break;
    default:
        status = assay_yaml_refuse_value(y, node, "model", "a name, a path or a mapping");
    }
    if (status != ASSAY_OK) return status;
    c->config = config;
    memcpy(c->model, config.model_name.text, sizeof c->model);
    return ASSAY_OK;
}
