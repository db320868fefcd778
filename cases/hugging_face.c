/* A Hugging Face config.json in place of a model: which of its keys are MaxText's, which change nothing, which are
 * refused; hugging_face/families.yml says which. Read like YAML, of which JSON is a part. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/case_internal.h"
#include "cases/decoder_block.h"

enum { MOST_SETS = 8, WORD_SIZE = 64 };

typedef struct hf_reader {
    const assay_yaml *y, *table;               /* of the configuration, of families.yml */
    const yaml_node_t *root, *family, *router; /* of the configuration; of the table */
    const yaml_node_t *keys[MOST_SETS];        /* mappings of keys to rules: the first one that has a key counts */
    int sets;
    const char *model_type;
    int64_t shared_width; /* of shared experts together, or of one of them; -1: not said */
    assay_model_config *config;
} hf_reader;

/* families.yml, "A rule of a key". */
typedef struct key_rule {
    bool required, may_be_null, has_only;
    char to[2][WORD_SIZE], only[WORD_SIZE];
} key_rule;

static const char *text_of(const yaml_node_t *node)
{
    return node != NULL && node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : "";
}

static bool is_null(const yaml_node_t *node)
{
    return node == NULL || (node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                            strcmp(text_of(node), "null") == 0);
}

static const yaml_node_t *sets_of(const assay_yaml *table)
{
    return assay_yaml_value(table, yaml_document_get_root_node(table->document), "sets");
}

static key_rule rule_of(const char *text)
{
    key_rule rule = {0};
    char word[WORD_SIZE];
    for (int targets = 0, used; sscanf(text, "%63s%n", word, &used) == 1 && strcmp(word, "--") != 0; text += used) {
        if (strcmp(word, "must") == 0) {
            rule.required = true;
        } else if (strcmp(word, "stands") == 0) {
            rule.required = rule.may_be_null = true;
        } else if (word[0] == '=') {
            rule.has_only = true;
            snprintf(rule.only, sizeof rule.only, "%s", word + 1);
        } else if (targets < 2) {
            memcpy(rule.to[targets++], word, WORD_SIZE);
        }
    }
    return rule;
}

static bool find_rule(const hf_reader *r, const char *name, key_rule *rule)
{
    for (int i = 0; i < r->sets; i++) {
        const yaml_node_t *found = assay_yaml_value(r->table, r->keys[i], name);
        if (found == NULL) continue;
        *rule = rule_of(text_of(found));
        return true;
    }
    return false;
}

/* Nothing but the router and the experts is known of it. */
static bool is_alone(const hf_reader *r)
{
    return assay_block_has(r->config->decoder_block.text, ASSAY_BLOCK_MOE);
}

static assay_status refuse_unknown(const hf_reader *r, const char *name, const yaml_node_t *at)
{
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = name, .most = 1};
    assay_status status = ASSAY_OK;
    for (int i = 0; i < r->sets; i++) {
        for (assay_yaml_walk w = assay_yaml_pairs(r->table, r->keys[i], "keys"); assay_yaml_next(&w, &status);)
            assay_nearest_offer(&nearest, w.key);
    }
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(r->y, at, "unknown key %.100s in a configuration of %s: it may change numbers%s", name,
                             r->model_type, hint);
}

static bool is_one_of(const char *values, const yaml_node_t *node)
{
    const assay_maxtext_key listed = {.unchanging = values};
    const bool empty =
        node->type == YAML_SEQUENCE_NODE && node->data.sequence.items.top == node->data.sequence.items.start;
    return assay_maxtext_value_changes_nothing(&listed, empty ? "[]" : text_of(node));
}

static const char *item_of(const assay_yaml *y, const yaml_node_t *list, int64_t i)
{
    return list == NULL || list->type != YAML_SEQUENCE_NODE ||
                   i >= list->data.sequence.items.top - list->data.sequence.items.start
               ? ""
               : text_of(yaml_document_get_node(y->document, list->data.sequence.items.start[i]));
}

/* [dense, dense, sparse ...] */
static assay_status read_dense_layers(const hf_reader *r, const char *name, const yaml_node_t *list)
{
    const int64_t count =
        list->type == YAML_SEQUENCE_NODE ? list->data.sequence.items.top - list->data.sequence.items.start : 0;
    int64_t dense = 0, all = 0;
    for (; strcmp(item_of(r->y, list, dense), "dense") == 0; dense++) {
    }
    for (all = dense; strcmp(item_of(r->y, list, all), "sparse") == 0; all++) {
    }
    if (count == 0 || all < count)
        return assay_yaml_refuse_value(r->y, list, name, "layers that are dense, and behind them sparse ones");
    r->config->first_num_dense_layers = dense;
    r->config->is_set[ASSAY_KEY_AT_first_num_dense_layers] = true;
    return ASSAY_OK;
}

static assay_status read_pair(hf_reader *r, const char *name, const yaml_node_t *key_node, const yaml_node_t *value)
{
    key_rule rule;
    assay_status status = ASSAY_OK;
    const bool neutral = assay_key_is_neutral("hugging_face", name) ||
                         (is_alone(r) && assay_key_is_neutral("hugging_face_layers", name));
    if (!find_rule(r, name, &rule)) return neutral ? ASSAY_OK : refuse_unknown(r, name, key_node);
    if (rule.has_only && !is_one_of(rule.only, value)) {
        char wanted[ASSAY_MESSAGE_SIZE / 2];
        snprintf(wanted, sizeof wanted, "%s (no operation here has another)", rule.only);
        return assay_yaml_refuse_value(r->y, value, name, wanted);
    }
    if (strcmp(rule.to[0], "dense_layers") == 0) return read_dense_layers(r, name, value);
    if (strcmp(rule.to[0], "shared_width") == 0)
        return assay_yaml_integer(r->y, value, name, 0, INT32_MAX, &r->shared_width);
    for (int i = 0; i < 2 && rule.to[i][0] != '\0' && !is_null(value) && status == ASSAY_OK; i++) {
        assay_model_read_by_name(r->y, r->config, rule.to[i], value, &status);
    }
    return status;
}

static assay_status read_pairs(hf_reader *r, const yaml_node_t *mapping, const char *what)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(r->y, mapping, what); assay_yaml_next(&w, &status);)
        status = read_pair(r, w.key, w.key_node, w.value);
    return status;
}

/* Cosine and sine are multiplied by m(mscale) / m(mscale_all_dim), with m(s) = 0.1 s ln(factor) + 1, or by m(1) where one
 * of them is missing; scores of latent attention by the square of m(mscale_all_dim). */
static assay_status settle_mscale(const hf_reader *r, const yaml_node_t *rope)
{
    const yaml_node_t *mscale = assay_yaml_value(r->y, rope, "mscale"),
                      *all = assay_yaml_value(r->y, rope, "mscale_all_dim");
    double one = 0, other = 0;
    assay_status status = ASSAY_OK;
    if (!is_null(mscale)) status = assay_yaml_real(r->y, mscale, "mscale", &one);
    if (status == ASSAY_OK && !is_null(all)) status = assay_yaml_real(r->y, all, "mscale_all_dim", &other);
    if (status != ASSAY_OK) return status;
    if (one != other) {
        return assay_yaml_refuse(
            r->y, rope, "mscale is %g and mscale_all_dim %g, expected them alike: no operation here has others", one,
            other);
    }
    r->config->rope_attention_scaling = one == 0;
    r->config->is_set[ASSAY_KEY_AT_rope_attention_scaling] = true;
    return ASSAY_OK;
}

/* The factor of scores goes by mscale_all_dim alone. MaxText has it where max_position_embeddings is above the original. */
static void settle_scores(const hf_reader *r)
{
    assay_model_config *config = r->config;
    if (config->rope_factor <= 1) config->mscale = 0;
    if (config->mscale != 0 && config->max_position_embeddings <= config->original_max_position_embeddings)
        config->max_position_embeddings = config->original_max_position_embeddings + 1;
}

static assay_status read_rope(const hf_reader *r, const yaml_node_t *rope, const char *what)
{
    static const char *const NEEDED[] = {"factor", "original_max_position_embeddings"};
    if (is_null(rope)) return ASSAY_OK;
    hf_reader rope_reader = *r;
    rope_reader.keys[0] = assay_yaml_value(r->table, sets_of(r->table), "rope");
    rope_reader.sets = 1;
    MUST(read_pairs(&rope_reader, rope, what));
    if (strcmp(r->config->rope_type.text, "yarn") != 0) {
        if (is_null(assay_yaml_value(r->y, rope, "mscale_all_dim"))) return ASSAY_OK;
        return assay_yaml_refuse(r->y, rope, "%s has mscale_all_dim, expected none where the type is not yarn", what);
    }
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++) {
        if (!is_null(assay_yaml_value(r->y, rope, NEEDED[i]))) continue;
        return assay_yaml_refuse(r->y, rope, "%s has no %s", what, NEEDED[i]);
    }
    return settle_mscale(r, rope);
}

/* The first of two layers sees a window in GPT-OSS, and none in the others. */
static assay_status check_layer_types(const hf_reader *r, const yaml_node_t *types)
{
    static const char *const NAMES[] = {"sliding_attention", "full_attention"};
    const bool alternates = assay_block_has(r->config->decoder_block.text, ASSAY_BLOCK_ALTERNATES);
    if (is_null(types)) return ASSAY_OK;
    if (types->type != YAML_SEQUENCE_NODE) return assay_yaml_refuse_value(r->y, types, "layer_types", "a list");
    const int64_t count = types->data.sequence.items.top - types->data.sequence.items.start;
    for (int64_t i = 0; i < count; i++) {
        const yaml_node_t *item = yaml_document_get_node(r->y->document, types->data.sequence.items.start[i]);
        const char *wanted = NAMES[alternates ? i % 2 : 1];
        if (strcmp(text_of(item), wanted) != 0) return assay_yaml_refuse_value(r->y, item, "layer_types", wanted);
    }
    return ASSAY_OK;
}

/* One group is none, and DeepSeek-V2 has them by its method. */
static void settle_groups(const hf_reader *r)
{
    assay_model_config *config = r->config;
    const bool greedy = strcmp(text_of(assay_yaml_value(r->y, r->root, "topk_method")), "greedy") == 0;
    if (config->n_routing_groups > 1 && !greedy) return;
    config->n_routing_groups = config->topk_routing_group = -1;
    config->is_set[ASSAY_KEY_AT_n_routing_groups] = config->is_set[ASSAY_KEY_AT_topk_routing_group] = false;
}

/* Mixtral multiplies queries by the root of their width, which MaxText has in their kernel. */
static void settle_heads(const hf_reader *r)
{
    assay_model_config *config = r->config;
    if (!config->is_set[ASSAY_KEY_AT_head_dim] && config->base_num_query_heads > 0) {
        config->head_dim = config->base_emb_dim / config->base_num_query_heads;
        config->is_set[ASSAY_KEY_AT_head_dim] = true;
    }
    const bool scales = assay_block_has(config->decoder_block.text, ASSAY_BLOCK_SCALES_QUERY);
    if (scales || !assay_block_has(config->decoder_block.text, ASSAY_BLOCK_GROUPED) || config->head_dim == 0) return;
    config->query_pre_attn_scalar = 1 / sqrt((double)config->head_dim);
    config->is_set[ASSAY_KEY_AT_query_pre_attn_scalar] = true;
}

/* Without division most weigh by the softmax over all experts, MaxText's block by one over the chosen. */
static void settle_division(const hf_reader *r)
{
    assay_model_config *config = r->config;
    const yaml_node_t *names = assay_yaml_value(r->table, yaml_document_get_root_node(r->table->document), "undivided");
    const char *method = text_of(assay_yaml_value(r->table, names, text_of(r->router)));
    const bool said = config->is_set[ASSAY_KEY_AT_norm_topk_prob];
    if (!said || config->norm_topk_prob || method[0] == '\0') return;
    snprintf(config->routing_method.text, sizeof config->routing_method.text, "%s", method);
    config->is_set[ASSAY_KEY_AT_routing_method] = true;
}

/* How many routed experts are as wide as the shared ones together. */
static assay_status settle_shared(const hf_reader *r)
{
    assay_model_config *config = r->config;
    const int64_t width = config->base_moe_mlp_dim;
    const bool counted = config->is_set[ASSAY_KEY_AT_shared_experts]; /* then it is the width of each */
    if (r->shared_width < 0) return ASSAY_OK;
    if (counted ? r->shared_width != width : r->shared_width % width != 0) {
        return assay_yaml_refuse(r->y, r->root,
                                 "shared experts are %" PRId64 " wide, expected %s%" PRId64
                                 " as routed ones are: no operation here has others",
                                 r->shared_width, counted ? "" : "a multiple of ", width);
    }
    if (!counted) config->shared_experts = r->shared_width / width;
    config->is_set[ASSAY_KEY_AT_shared_experts] = true;
    return ASSAY_OK;
}

static assay_status require_key(const hf_reader *r, const char *name, bool may_be_null)
{
    const yaml_node_t *value = assay_yaml_value(r->y, r->root, name);
    if (value == NULL) {
        return assay_yaml_refuse(r->y, r->root, "the key %s is missing, which a configuration of %s has", name,
                                 r->model_type);
    }
    if (may_be_null || !is_null(value)) return ASSAY_OK;
    return assay_yaml_refuse(r->y, value, "%s is null, expected a value", name);
}

/* Of one thing: what transformers wrote, and what it writes since version 5. */
static assay_status require_either(const hf_reader *r)
{
    const yaml_node_t *either = assay_yaml_value(r->table, r->family, "either");
    const char *before = item_of(r->table, either, 0), *since = item_of(r->table, either, 1);
    const yaml_node_t *later = assay_yaml_value(r->y, r->root, since);
    if (either == NULL) return ASSAY_OK;
    if (later == NULL) return require_key(r, before, false);
    if (assay_yaml_value(r->y, r->root, before) == NULL) return require_key(r, since, false);
    return assay_yaml_refuse(r->y, later, "%s: %s stands there too, expected one of the two", since, before);
}

static assay_status require_keys(const hf_reader *r)
{
    const yaml_node_t *parameters = assay_yaml_value(r->y, r->root, "rope_parameters");
    key_rule rule = {0};
    assay_status status = ASSAY_OK;
    for (int i = 0; i < r->sets; i++) {
        for (assay_yaml_walk w = assay_yaml_pairs(r->table, r->keys[i], "keys"); assay_yaml_next(&w, &status);) {
            if (find_rule(r, w.key, &rule) && rule.required) status = require_key(r, w.key, rule.may_be_null);
        }
    }
    if (status == ASSAY_OK) status = require_either(r);
    if (status != ASSAY_OK || is_alone(r)) return status;
    if (is_null(assay_yaml_value(r->y, parameters, "rope_theta"))) MUST(require_key(r, "rope_theta", false));
    /* transformers fills in yarn by 32 */
    const bool gpt_oss = assay_block_has(r->config->decoder_block.text, ASSAY_BLOCK_ALTERNATES);
    return gpt_oss && is_null(parameters) ? require_key(r, "rope_scaling", false) : ASSAY_OK;
}

static bool is_same_rope(const assay_model_config *a, const assay_model_config *b)
{
    return strcmp(a->rope_type.text, b->rope_type.text) == 0 && a->rope_factor == b->rope_factor &&
           a->original_max_position_embeddings == b->original_max_position_embeddings && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->mscale == b->mscale && a->rope_truncate == b->rope_truncate &&
           a->rope_attention_scaling == b->rope_attention_scaling &&
           a->partial_rotary_factor == b->partial_rotary_factor;
}

/* An older key and a later one: which of the two transformers takes depends on its version. */
static assay_status read_ropes(const hf_reader *r)
{
    const yaml_node_t *scaling = assay_yaml_value(r->y, r->root, "rope_scaling"),
                      *parameters = assay_yaml_value(r->y, r->root, "rope_parameters");
    MUST(read_rope(r, scaling, "rope_scaling"));
    const assay_model_config before = *r->config;
    MUST(read_rope(r, parameters, "rope_parameters"));
    if (is_null(scaling) || is_null(parameters) || is_same_rope(&before, r->config)) return ASSAY_OK;
    return assay_yaml_refuse(r->y, parameters,
                             "rope_parameters says another rotation than rope_scaling, expected one of the two");
}

static assay_status read_config(hf_reader *r)
{
    MUST(require_keys(r));
    MUST(read_pairs(r, r->root, "a configuration"));
    settle_groups(r);
    settle_division(r);
    if (is_alone(r)) return settle_shared(r);
    MUST(read_ropes(r));
    MUST(check_layer_types(r, assay_yaml_value(r->y, r->root, "layer_types")));
    if (assay_block_has(r->config->decoder_block.text, ASSAY_BLOCK_LATENT)) {
        settle_scores(r);
    } else {
        settle_heads(r);
    }
    return ASSAY_OK;
}

/* What goes without saying, and where the keys stand. */
static assay_status read_family(hf_reader *r)
{
    const yaml_node_t *table = yaml_document_get_root_node(r->table->document);
    const yaml_node_t *names = assay_yaml_value(r->table, r->family, "sets"),
                      *own = assay_yaml_value(r->table, r->family, "keys"),
                      *is = assay_yaml_value(r->table, r->family, "is");
    r->router = assay_yaml_value(r->table, r->family, "router");
    const yaml_node_t *router =
        assay_yaml_value(r->table, assay_yaml_value(r->table, table, "routers"), text_of(r->router));
    snprintf(r->config->model_name.text, sizeof r->config->model_name.text, "%s", r->model_type);
    r->config->is_set[ASSAY_KEY_AT_model_name] = true;
    if (router != NULL) MUST(assay_model_read_mapping(r->table, router, r->config));
    if (is != NULL) MUST(assay_model_read_mapping(r->table, is, r->config));
    if (own != NULL) r->keys[r->sets++] = own;
    for (int i = 0; item_of(r->table, names, i)[0] != '\0' && r->sets < MOST_SETS; i++)
        r->keys[r->sets++] = assay_yaml_value(r->table, sets_of(r->table), item_of(r->table, names, i));
    return read_config(r);
}

typedef struct hf_request {
    const assay_yaml *y;
    const yaml_node_t *root;
    assay_model_config *config;
} hf_request;

static assay_status visit_table(const assay_yaml *table, const yaml_node_t *root, void *arg)
{
    const hf_request *request = arg;
    const yaml_node_t *node = assay_yaml_value(request->y, request->root, "model_type");
    const yaml_node_t *families = assay_yaml_value(table, root, "families");
    const char *type = text_of(node);
    hf_reader reader = {.y = request->y,
                        .table = table,
                        .root = request->root,
                        .family = assay_yaml_value(table, families, type),
                        .model_type = type,
                        .shared_width = -1,
                        .config = request->config};
    if (reader.family != NULL) return read_family(&reader);
    const char *why = text_of(assay_yaml_value(table, assay_yaml_value(table, root, "refused"), type));
    if (why[0] != '\0')
        return assay_yaml_refuse(request->y, node, "model_type: no operation here is of %s: %s", type, why);
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = type, .most = 2};
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(table, families, "families"); assay_yaml_next(&w, &status);)
        assay_nearest_offer(&nearest, w.key);
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_yaml_refuse(request->y, node != NULL ? node : request->root,
                             "model_type: expected one that docs/hugging-face.md has, found %.60s%s",
                             node != NULL ? type : "none", hint);
}

/* Of a model with images or sound: its language model. */
static const yaml_node_t *language_part(const assay_yaml *y, const yaml_node_t *root)
{
    static const char *const PARTS[] = {"thinker_config", "text_config"};
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++) {
        const yaml_node_t *part = assay_yaml_value(y, root, PARTS[i]);
        if (part != NULL && part->type == YAML_MAPPING_NODE) root = part;
    }
    return root;
}

assay_status assay_hugging_face_read(const assay_yaml *y, const yaml_node_t *root, assay_model_config *config)
{
    hf_request request = {y, language_part(y, root), config};
    const assay_embedded_file *file = assay_embedded_hugging_face;
    return assay_yaml_documents(y->ctx, "families.yml", true, (const char *)file->text, file->size, visit_table,
                                &request);
}
