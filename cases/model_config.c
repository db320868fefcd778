#include "cases/model_config.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "cases/routing_method.h"
#include "cases/yaml_text.h"
#include "oracle/base/block_format.h"

#define DEFAULT_I(value) value
#define DEFAULT_D(value) value
#define DEFAULT_B(value) value
#define DEFAULT_S(value)                                                                                               \
    {                                                                                                                  \
        value                                                                                                          \
    }
#define DEFAULT_A(value)                                                                                               \
    {                                                                                                                  \
        {                                                                                                              \
            value, "linear"                                                                                            \
        }                                                                                                              \
    }
const assay_model_config assay_model_defaults = {
#define KEY(type, key, value, ...) .key = DEFAULT_##type(value),
#include "cases/model_keys.inc"
};

/* A key that is on by default has no off. */
#define LEAST_I(value) ((value) < 0 ? -1 : (value) > 0)
#define LEAST_D(value) 0
#define LEAST_B(value) 0
#define LEAST_S(value) 0
#define LEAST_A(value) 0

#include "cases/model_components.inc"

const assay_model_key assay_model_keys[ASSAY_MODEL_KEYS] = {
#define KEY(type, key, value, components, weight, draws, choices)                                                      \
    {#key, ASSAY_KEY_##type, offsetof(assay_model_config, key), LEAST_##type(value), components, choices},
#include "cases/model_keys.inc"
};

const assay_model_key *assay_model_key_by_name(const char *name)
{
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        if (strcmp(name, assay_model_keys[i].name) == 0) return &assay_model_keys[i];
    }
    return NULL;
}

int assay_model_choice(const assay_model_config *config, int key)
{
    const assay_text *value = (const assay_text *)((const char *)config + assay_model_keys[key].offset);
    const char *const *choices = assay_model_keys[key].choices;
    int place = 0;
    while (choices[place] != NULL && strcmp(choices[place], value->text) != 0) place++;
    return place;
}

void assay_model_forget_set_keys(assay_model_config *config)
{
    const bool interleave = config->is_set[ASSAY_KEY_AT_rope_interleave];
    memset(config->is_set, 0, sizeof config->is_set);
    config->is_set[ASSAY_KEY_AT_rope_interleave] = interleave;
}

void assay_model_key_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size)
{
    const void *value = (const char *)config + key->offset;
    char first[ASSAY_KEY_VALUE_SIZE], second[ASSAY_KEY_VALUE_SIZE];
    switch (key->type) {
    case ASSAY_KEY_I:
        snprintf(text, size, "%" PRId64, *(const int64_t *)value);
        break;
    case ASSAY_KEY_D:
        assay_yaml_number_text(*(const double *)value, text, size);
        break;
    case ASSAY_KEY_B:
        snprintf(text, size, "%s", *(const bool *)value ? "true" : "false");
        break;
    case ASSAY_KEY_S:
        assay_yaml_quoted_text(((const assay_text *)value)->text, text, size);
        break;
    case ASSAY_KEY_A:
        assay_yaml_quoted_text(((const assay_text_pair *)value)->item[0], first, sizeof first);
        assay_yaml_quoted_text(((const assay_text_pair *)value)->item[1], second, sizeof second);
        snprintf(text, size, "[%s, %s]", first, second);
        break;
    }
}
