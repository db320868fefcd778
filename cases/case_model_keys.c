/* The keys of a configuration: MaxText's and ours, in a model, in `config:` and one by one. */
#include <stdio.h>
#include <string.h>

#include "cases/case_internal.h"

static assay_status read_text(const assay_yaml *y, const assay_model_key *key, const yaml_node_t *node,
                              assay_text *value)
{
    assay_text read;
    MUST(assay_yaml_text(y, node, key->name, read.text, sizeof read.text));
    const char *const *choices = key->choices;
    bool allowed = choices == NULL;
    for (int i = 0; !allowed && choices[i] != NULL; i++) allowed = strcmp(choices[i], read.text) == 0;
    if (!allowed) return assay_yaml_refuse_choice(y, node, key->name, choices);
    *value = read;
    return ASSAY_OK;
}

/* One text or two; the second is linear when not given. */
static assay_status read_pair(const assay_yaml *y, const assay_model_key *key, const yaml_node_t *node,
                              assay_text_pair *value)
{
    assay_text_list list = {0};
    assay_status status = assay_yaml_list(y, node, key->name, &list);
    if (status != ASSAY_OK) return status;
    if (list.count < 1 || list.count > 2) {
        status = assay_yaml_refuse(y, node, "%s: expected one or two texts, found %d", key->name, list.count);
    }
    assay_text_pair read = {{"", "linear"}};
    for (int i = 0; i < list.count && status == ASSAY_OK; i++) {
        if (strlen(list.items[i]) < ASSAY_TEXT_SIZE) {
            snprintf(read.item[i], ASSAY_TEXT_SIZE, "%s", list.items[i]);
        } else {
            status =
                assay_yaml_refuse(y, node, "%s: expected at most %d bytes in a text", key->name, ASSAY_TEXT_SIZE - 1);
        }
    }
    if (status == ASSAY_OK) *value = read;
    assay_text_list_free(&list);
    return status;
}

/* MaxText's null of a number whose absence is 0. */
static bool is_off(const assay_model_key *key, const yaml_node_t *value)
{
    static const char *const words[] = {"null", "none", "~"};
    const double usual = *(const double *)((const char *)&assay_model_defaults + key->offset);
    bool off = false;
    for (size_t i = 0; value->type == YAML_SCALAR_NODE && i < sizeof words / sizeof *words; i++)
        off |= strcmp((const char *)value->data.scalar.value, words[i]) == 0;
    return off && usual == 0;
}

static assay_status read_any(const assay_yaml *y, assay_model_config *config, const assay_model_key *key,
                             const yaml_node_t *value)
{
    void *field = (char *)config + key->offset;
    if (key->type == ASSAY_KEY_D && is_off(key, value)) return ASSAY_OK;
    switch (key->type) {
    case ASSAY_KEY_I:
        return assay_yaml_integer(y, value, key->name, key->least, INT32_MAX, field);
    case ASSAY_KEY_D:
        return assay_yaml_real(y, value, key->name, field);
    case ASSAY_KEY_B:
        return assay_yaml_bool(y, value, key->name, field);
    case ASSAY_KEY_S:
        return read_text(y, key, value, field);
    case ASSAY_KEY_A:
        return read_pair(y, key, value, field);
    }
    return assay_fail(y->ctx, ASSAY_INTERNAL, "%s: a key of no known type", key->name);
}

bool assay_model_interleaves(const assay_model_config *config)
{
    return strcmp(config->rope_type.text, assay_model_defaults.rope_type.text) != 0;
}

static assay_status read_key(const assay_yaml *y, assay_model_config *config, const assay_model_key *key,
                             const yaml_node_t *value)
{
    MUST(read_any(y, config, key, value));
    config->is_set[key - assay_model_keys] = true;
    if (!config->is_set[ASSAY_KEY_AT_rope_interleave]) config->rope_interleave = assay_model_interleaves(config);
    return ASSAY_OK;
}

/* Kept as text; "" where the value changes nothing. */
static void keep_maxtext_key(assay_model_config *config, int index, const yaml_node_t *value)
{
    const assay_maxtext_key *key = &assay_maxtext_keys[index];
    const bool scalar = value->type == YAML_SCALAR_NODE;
    const bool empty =
        value->type == YAML_SEQUENCE_NODE && value->data.sequence.items.top == value->data.sequence.items.start;
    const char *text = scalar ? (const char *)value->data.scalar.value : empty ? "[]" : "[...]";
    const bool kept = !assay_maxtext_value_changes_nothing(key, text);
    snprintf(config->maxtext[index].text, sizeof config->maxtext[index].text, "%s", kept ? text : "");
}

bool assay_model_read_by_name(const assay_yaml *y, assay_model_config *config, const char *name,
                              const yaml_node_t *value, assay_status *status)
{
    const assay_model_key *key = assay_model_key_by_name(name);
    const int maxtext = assay_maxtext_key_by_name(name);
    *status = ASSAY_OK;
    if (key != NULL) *status = read_key(y, config, key, value);
    if (maxtext >= 0) keep_maxtext_key(config, maxtext, value);
    return key != NULL || maxtext >= 0;
}

void assay_model_offer_keys(assay_nearest *nearest)
{
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) assay_nearest_offer(nearest, assay_model_keys[i].name);
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) assay_nearest_offer(nearest, assay_maxtext_keys[i].name);
}

/* `where` is config or model. */
static assay_status refuse_key(const assay_yaml *y, const char *where, const char *key, const yaml_node_t *key_node)
{
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = key, .most = 1};
    assay_case_offer_fields(&nearest);
    if (nearest.count > 0 && strcmp(nearest.names[0], key) == 0) {
        return assay_yaml_refuse(y, key_node, "unknown key %s in %s: it belongs to the case itself", key, where);
    }
    nearest.count = 0;
    assay_model_offer_keys(&nearest);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(y, key_node, "unknown key %.100s in %s%s", key, where, hint);
}

assay_status assay_case_read_config(const assay_yaml *y, assay_case *c, const yaml_node_t *node)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, "config"); assay_yaml_next(&w, &status);) {
        if (!assay_model_read_by_name(y, &c->config, w.key, w.value, &status))
            return refuse_key(y, "config", w.key, w.key_node);
    }
    return status;
}

/* MaxText's model files hold keys that change no number of any operation here: these alone are passed over. A model
 * without any key of ours is something else. */
assay_status assay_model_read_mapping(const assay_yaml *y, const yaml_node_t *node, assay_model_config *config)
{
    int known = 0;
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, "model"); assay_yaml_next(&w, &status);) {
        known += assay_model_key_by_name(w.key) != NULL;
        if (!assay_model_read_by_name(y, config, w.key, w.value, &status) && !assay_maxtext_key_is_neutral(w.key))
            return refuse_key(y, "model", w.key, w.key_node);
    }
    if (status == ASSAY_OK && known == 0) {
        return assay_yaml_refuse(y, node,
                                 "model: expected MaxText's model keys (base_emb_dim, ...) or a Hugging Face "
                                 "configuration with its model_type, found none of them");
    }
    return status;
}
