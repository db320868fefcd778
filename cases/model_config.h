/* The configuration of a case: MaxText's model keys, and ours. One table (model_keys.inc) serves the YAML reader, --set, the writer of
 * case_yaml, `assay show` and the documentation. */
#pragma once

#include <stddef.h>

#include "cases/maxtext_keys.h"
#include "oracle/ops/attention.h"

#define ASSAY_TEXT_SIZE 64

struct assay_routing_rule; /* oracle/moe/routing_rule.h */

typedef struct assay_text_pair {
    char item[2][ASSAY_TEXT_SIZE]; /* mlp_activations: of gate and of up; the second is "linear" when not given */
} assay_text_pair;

#define ASSAY_KEY_TYPE_I int64_t
#define ASSAY_KEY_TYPE_D double
#define ASSAY_KEY_TYPE_B bool
#define ASSAY_KEY_TYPE_A assay_text_pair

typedef struct assay_text {
    char text[ASSAY_TEXT_SIZE];
} assay_text;
#define ASSAY_KEY_TYPE_S assay_text

/* The place of each key in the table. */
enum {
#define KEY(type, key, ...) ASSAY_KEY_AT_##key,
#include "cases/model_keys.inc"
    ASSAY_MODEL_KEYS
};

typedef struct assay_model_config {
#define KEY(type, key, ...) ASSAY_KEY_TYPE_##type key;
#include "cases/model_keys.inc"
    bool is_set[ASSAY_MODEL_KEYS];          /* by a model or over it; what is not given is left open */
    assay_text maxtext[ASSAY_MAXTEXT_KEYS]; /* of keys that are none of a case, where they might change something */
    /* No keys: what mutants have other. */
    bool windows_in_odd_layers;
    void (*other_rule)(struct assay_routing_rule *rule); /* of the router */
    const struct assay_quant_recipe *other_recipe;       /* instead of the named one */
    assay_attention_variant attention_variant;
    bool value_last; /* of a cache of latents: a value is the last numbers of its key */
    struct {
        bool norm_of_others, norm_last, rope_of_rest;
    } cache_variant; /* of oracle/ops/cache_numbers.h */
} assay_model_config;

extern const assay_model_config assay_model_defaults;

typedef enum assay_key_type { ASSAY_KEY_I, ASSAY_KEY_D, ASSAY_KEY_B, ASSAY_KEY_S, ASSAY_KEY_A } assay_key_type;

typedef struct assay_model_key {
    const char *name;
    assay_key_type type;
    size_t offset;              /* of the value within assay_model_config */
    int64_t least;              /* of a whole number: -1 and 0 where the default is that, else 1 */
    unsigned components;        /* ASSAY_USES_...: an operation with one of these reads it */
    const char *const *choices; /* the texts that it takes, ended by NULL; NULL when it takes any */
} assay_model_key;

extern const assay_model_key assay_model_keys[ASSAY_MODEL_KEYS];
const assay_model_key *assay_model_key_by_name(const char *name); /* NULL when there is none */

/* The place of a text among its key's choices. Enumerations that such a key stands for have their order. */
int assay_model_choice(const assay_model_config *config, int key);

/* No key counts as given any more; rope_interleave stays as it was settled. */
void assay_model_forget_set_keys(assay_model_config *config);

/* Room for any value below. */
#define ASSAY_KEY_VALUE_SIZE (9 * ASSAY_TEXT_SIZE)

/* The value of a key as YAML: "64", "1.0e-06", "true", "\"\"", "[silu, linear]". */
void assay_model_key_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size);
