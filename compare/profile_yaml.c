#include "compare/profile_yaml.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/yaml_reader.h"
#include "oracle/base/memory.h"

enum { LEAST_BITS = 2, MOST_BITS = 52, LONGEST = 1 << 30, MOST_ULPS = 1 << 20 };

#define KEYS "name, like, storage, multiply, accumulate, router, statistics, elementary or ties"

static assay_status read_type(const assay_yaml *y, const yaml_node_t *node, const char *what, unsigned types,
                              assay_dtype *type)
{
    char name[ASSAY_PATH_SIZE], wanted[128] = "";
    MUST(assay_yaml_text(y, node, what, name, sizeof name));
    if (assay_dtype_from_name(name, type) && (types >> *type & 1) != 0) return ASSAY_OK;
    for (int i = 0; i < ASSAY_DTYPE_COUNT; i++) {
        if ((types >> i & 1) == 0) continue;
        const bool last = types >> i == 1;
        const size_t used = strlen(wanted);
        snprintf(wanted + used, sizeof wanted - used, "%s%s",
                 used == 0 ? ""
                 : last    ? " or "
                           : ", ",
                 assay_dtype_name((assay_dtype)i));
    }
    return assay_yaml_refuse_value(y, node, what, wanted);
}

/* Sets of types. */
enum {
    STORED = 1 << ASSAY_FLOAT64 | 1 << ASSAY_FLOAT32 | 1 << ASSAY_BFLOAT16 | 1 << ASSAY_FLOAT16,
    MULTIPLIED = STORED | 1 << ASSAY_TFLOAT32,
    SCALED = 1 << ASSAY_FLOAT8_E4M3FN | 1 << ASSAY_FLOAT8_E5M2
};

/* The significand's, after the point. */
static int bits_of(assay_dtype type)
{
    int bits = -1;
    for (double unit = assay_dtype_unit_roundoff(type); unit < 1; unit *= 2) bits++;
    return bits;
}

static assay_status read_name(const assay_yaml *y, const yaml_node_t *node, assay_profile *p)
{
    char name[ASSAY_PRECISION_NAME_SIZE];
    assay_dtype type;
    MUST(assay_yaml_text(y, node, "name", name, sizeof name));
    bool plain = islower((unsigned char)name[0]) != 0;
    for (const char *c = name; *c != '\0'; c++)
        plain &= islower((unsigned char)*c) || isdigit((unsigned char)*c) || *c == '_';
    if (!plain || strcmp(name, "none") == 0 || strcmp(name, "all") == 0) {
        return assay_yaml_refuse_value(y, node, "name",
                                       "small letters, digits and _, a letter first, and not all or none");
    }
    if (assay_profile_by_name(name) != NULL || assay_dtype_from_name(name, &type)) {
        return assay_yaml_refuse_value(y, node, "name", "a name that is not built in");
    }
    memcpy(p->precision.name, name, sizeof name);
    return ASSAY_OK;
}

/* A mapping's keys, one after the other. */
typedef assay_status (*key_reader)(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                   const yaml_node_t *value, assay_profile *p);

static assay_status read_keys(const assay_yaml *y, const yaml_node_t *node, const char *what, key_reader read,
                              assay_profile *p)
{
    assay_status status = ASSAY_OK;
    for (assay_yaml_walk w = assay_yaml_pairs(y, node, what); assay_yaml_next(&w, &status);)
        status = read(y, w.key, w.key_node, w.value, p);
    return status;
}

static assay_status unknown_key(const assay_yaml *y, const yaml_node_t *at, const char *key, const char *wanted)
{
    return assay_yaml_refuse(y, at, "unknown key %.60s, expected %s", key, wanted);
}

static assay_status read_multiply_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                      const yaml_node_t *value, assay_profile *p)
{
    assay_block_scaling *scaled = &p->precision.scaled;
    if (strcmp(key, "type") == 0) return read_type(y, value, "multiply type", SCALED, &scaled->type);
    if (strcmp(key, "block") == 0) return assay_yaml_integer(y, value, "multiply block", 1, LONGEST, &scaled->block);
    return unknown_key(y, key_node, key, "type or block of multiply");
}

static assay_status read_multiply(const assay_yaml *y, const yaml_node_t *node, assay_profile *p)
{
    assay_block_scaling *scaled = &p->precision.scaled;
    *scaled = (assay_block_scaling){0};
    if (node->type != YAML_MAPPING_NODE) return read_type(y, node, "multiply", MULTIPLIED, &p->multiply);
    scaled->type = ASSAY_FLOAT8_E4M3FN;
    MUST(read_keys(y, node, "multiply", read_multiply_key, p));
    if (scaled->block == 0) return assay_yaml_refuse(y, node, "multiply: expected type and block, found no block");
    p->multiply = p->storage;
    return ASSAY_OK;
}

/* One of two words; `second` says which. */
static assay_status read_word(const assay_yaml *y, const yaml_node_t *value, const char *what, const char *no,
                              const char *yes, bool *second)
{
    char word[16], wanted[64];
    if (assay_yaml_text(y, value, what, word, sizeof word) == ASSAY_OK) {
        *second = strcmp(word, yes) == 0;
        if (*second || strcmp(word, no) == 0) return ASSAY_OK;
    }
    snprintf(wanted, sizeof wanted, "%s or %s", no, yes);
    return assay_yaml_refuse_value(y, value, what, wanted);
}

static assay_status read_accumulate_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                        const yaml_node_t *value, assay_profile *p)
{
    assay_dtype type = ASSAY_FLOAT32;
    int64_t bits = 0;
    if (strcmp(key, "type") == 0) {
        MUST(read_type(y, value, "accumulate type", MULTIPLIED, &type));
        p->accumulate_bits = bits_of(type);
    } else if (strcmp(key, "bits") == 0) {
        MUST(assay_yaml_integer(y, value, "accumulate bits", LEAST_BITS, MOST_BITS, &bits));
        p->accumulate_bits = (int)bits;
    } else if (strcmp(key, "rounding") == 0) {
        MUST(read_word(y, value, "accumulate rounding", "nearest", "truncate", &p->precision.accumulator.truncate));
    } else if (strcmp(key, "block") == 0) {
        MUST(assay_yaml_integer(y, value, "accumulate block", 0, LONGEST, &p->precision.accumulator.block));
    } else {
        return unknown_key(y, key_node, key, "type, bits, rounding or block of accumulate");
    }
    return ASSAY_OK;
}

static assay_status read_accumulate(const assay_yaml *y, const yaml_node_t *node, assay_profile *p)
{
    assay_dtype type = ASSAY_FLOAT32;
    p->precision.accumulator = (assay_accumulator){0};
    if (node->type == YAML_MAPPING_NODE) return read_keys(y, node, "accumulate", read_accumulate_key, p);
    assay_status status = read_type(y, node, "accumulate", MULTIPLIED, &type);
    if (status == ASSAY_OK) p->accumulate_bits = bits_of(type);
    return status;
}

static assay_status read_elementary_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                        const yaml_node_t *value, assay_profile *p)
{
    if (strcmp(key, "type") == 0) return read_type(y, value, "elementary type", STORED, &p->elementary);
    if (strcmp(key, "ulps") != 0) return unknown_key(y, key_node, key, "type or ulps of elementary");
    double ulps = 0;
    MUST(assay_yaml_real(y, value, "elementary ulps", &ulps));
    if (!(ulps >= 0.5 && ulps <= MOST_ULPS)) {
        return assay_yaml_refuse_value(y, value, "elementary ulps", "a number from 0.5 to 1048576");
    }
    p->elementary_ulps = ulps;
    return ASSAY_OK;
}

static assay_status read_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                             const yaml_node_t *value, assay_profile *p)
{
    if (strcmp(key, "name") == 0) return read_name(y, value, p);
    if (strcmp(key, "like") == 0 || strcmp(key, "storage") == 0) return ASSAY_OK; /* read before */
    if (strcmp(key, "multiply") == 0) return read_multiply(y, value, p);
    if (strcmp(key, "accumulate") == 0) return read_accumulate(y, value, p);
    if (strcmp(key, "router") == 0) return read_type(y, value, "router", STORED, &p->router);
    if (strcmp(key, "statistics") == 0) return read_type(y, value, "statistics", STORED, &p->statistics);
    if (strcmp(key, "ties") == 0) return read_word(y, value, "ties", "lower", "any", &p->any_of_tied);
    if (strcmp(key, "elementary") == 0) return read_keys(y, value, "elementary", read_elementary_key, p);
    return unknown_key(y, key_node, key, KEYS);
}

/* What other keys start from. */
static assay_status read_first_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                   const yaml_node_t *value, assay_profile *p)
{
    char name[ASSAY_PATH_SIZE];
    (void)key_node;
    if (strcmp(key, "like") != 0) return ASSAY_OK;
    MUST(assay_yaml_text(y, value, "like", name, sizeof name));
    const assay_profile *like = assay_profile_by_name(name);
    if (like == NULL) return assay_yaml_refuse_value(y, value, "like", assay_profile_names());
    *p = *like;
    return ASSAY_OK;
}

static assay_status read_storage_key(const assay_yaml *y, const char *key, const yaml_node_t *key_node,
                                     const yaml_node_t *value, assay_profile *p)
{
    (void)key_node;
    if (strcmp(key, "storage") != 0) return ASSAY_OK;
    const bool stored = p->multiply == p->storage; /* operands as they are stored stay so */
    assay_status status = read_type(y, value, "storage", STORED, &p->storage);
    if (stored) p->multiply = p->storage;
    return status;
}

typedef struct parsed {
    assay_profile profile;
    int documents;
} parsed;

static assay_status read_document(const assay_yaml *y, const yaml_node_t *root, void *arg)
{
    parsed *out = arg;
    if (out->documents++ > 0) return assay_yaml_refuse(y, root, "expected one profile, found another document");
    out->profile = *assay_profile_by_name("bf16");
    MUST(read_keys(y, root, "", read_first_key, &out->profile));
    out->profile.precision.name[0] = '\0';
    out->profile.summary = "a user's own";
    MUST(read_keys(y, root, "", read_storage_key, &out->profile));
    MUST(read_keys(y, root, "", read_key, &out->profile));
    if (out->profile.precision.name[0] == '\0')
        return assay_yaml_refuse(y, root, "name: expected the profile's name, found nothing");
    return ASSAY_OK;
}

assay_status assay_profile_parse(assay_context *ctx, const char *origin, const char *text, size_t size,
                                 assay_profile *profile)
{
    parsed out = {0};
    MUST(assay_yaml_documents(ctx, origin, true, text, size, read_document, &out));
    if (out.documents == 0) return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: expected a profile, found nothing", origin);
    *profile = out.profile;
    profile->precision = assay_profile_precision(&out.profile);
    return ASSAY_OK;
}

assay_status assay_profile_read_file(assay_context *ctx, const char *path, assay_profile *profile)
{
    OWNED char *text = NULL;
    size_t size = 0;
    MUST(assay_read_text_file(ctx, path, &text, &size));
    return assay_profile_parse(ctx, path, text, size, profile);
}

void assay_profile_to_yaml(const assay_profile *profile, char text[ASSAY_PROFILE_YAML_SIZE])
{
    const assay_precision *p = &profile->precision;
    char multiply[96];
    if (p->scaled.block > 0) {
        snprintf(multiply, sizeof multiply, "{type: %s, block: %lld}", assay_dtype_name(p->scaled.type),
                 (long long)p->scaled.block);
    } else {
        snprintf(multiply, sizeof multiply, "%s", assay_dtype_name(profile->multiply));
    }
    snprintf(text, ASSAY_PROFILE_YAML_SIZE,
             "name: %s\nstorage: %s\nmultiply: %s\naccumulate: {bits: %d, rounding: %s, block: %lld}\nrouter: "
             "%s\nstatistics: %s\n"
             "elementary: {type: %s, ulps: %.17g}\nties: %s\n",
             p->name, assay_dtype_name(profile->storage), multiply, profile->accumulate_bits,
             p->accumulator.truncate ? "truncate" : "nearest", (long long)p->accumulator.block,
             assay_dtype_name(profile->router), assay_dtype_name(profile->statistics),
             assay_dtype_name(profile->elementary), profile->elementary_ulps, profile->any_of_tied ? "any" : "lower");
}

assay_status assay_profiles_of_golden(assay_context *ctx, const assay_fixture_reader *golden, assay_profile **profiles,
                                      int *count)
{
    assay_status status = ASSAY_OK;
    const char *const *texts = NULL;
    *profiles = NULL;
    *count = 0;
    const int total = assay_fixture_texts(golden, "profiles", &texts);
    if (total == 0) return ASSAY_OK;
    MUST(assay_alloc_list(ctx, "the golden's profiles", total, sizeof **profiles, profiles));
    for (int i = 0; i < total; i++) {
        TRY(assay_profile_parse(ctx, "attribute profiles", texts[i], strlen(texts[i]), &(*profiles)[i]));
        (*count)++;
    }
cleanup:
    if (status != ASSAY_OK) {
        free(*profiles);
        *profiles = NULL;
        *count = 0;
    }
    return status;
}

const char *assay_profile_left_out(const assay_fixture_reader *golden, const char *name)
{
    const char *const *texts = NULL;
    const size_t length = strlen(name);
    const int count = assay_fixture_texts(golden, ASSAY_PROFILES_LEFT_OUT, &texts);
    for (int i = 0; i < count; i++) {
        if (strncmp(texts[i], name, length) == 0 && strncmp(texts[i] + length, ": ", 2) == 0)
            return texts[i] + length + 2;
    }
    return NULL;
}

/* *found is false where the golden has no profile of that name. */
static assay_status find_in_golden(assay_context *ctx, const assay_fixture_reader *golden, const char *name,
                                   assay_profile *profile, bool *found)
{
    assay_profile *own = NULL;
    int count = 0;
    const assay_status status = assay_profiles_of_golden(ctx, golden, &own, &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(own[i].precision.name, name) != 0) continue;
        *profile = own[i];
        *found = true;
    }
    free(own);
    return status;
}

/* The lines of two texts that have as many: the first pair that differs. */
static assay_status refuse_difference(assay_context *ctx, const char *name, const char *golden, const char *given)
{
    while (strcspn(golden, "\n") == strcspn(given, "\n") && strncmp(golden, given, strcspn(golden, "\n")) == 0) {
        golden += strcspn(golden, "\n") + 1;
        given += strcspn(given, "\n") + 1;
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT,
                      "the golden's error scales are of another profile %s: it has \"%.*s\", found \"%.*s\"", name,
                      (int)strcspn(golden, "\n"), golden, (int)strcspn(given, "\n"), given);
}

assay_status assay_profile_check_golden(assay_context *ctx, const assay_fixture_reader *golden,
                                        const assay_profile *profile)
{
    assay_profile own = {0};
    bool found = false;
    char stored[ASSAY_PROFILE_YAML_SIZE], given[ASSAY_PROFILE_YAML_SIZE];
    MUST(find_in_golden(ctx, golden, profile->precision.name, &own, &found));
    if (!found) return ASSAY_OK;
    assay_profile_to_yaml(profile, given);
    assay_profile_to_yaml(&own, stored);
    return strcmp(stored, given) == 0 ? ASSAY_OK : refuse_difference(ctx, profile->precision.name, stored, given);
}

/* The one that goes with a grid. */
static assay_status usual_profile(assay_context *ctx, const char *option, const char *dtype, assay_profile *profile)
{
    assay_dtype type;
    const assay_profile *usual = assay_dtype_from_name(dtype, &type) ? assay_profile_for_dtype(type) : NULL;
    if (usual == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "no profile goes with dtype %s: name one with %s", dtype, option);
    }
    *profile = *usual;
    return ASSAY_OK;
}

assay_status assay_profile_named(assay_context *ctx, const char *option, const char *name,
                                 const assay_fixture_reader *golden, const char *dtype, assay_profile *profile)
{
    assay_status status = ASSAY_OK;
    bool found = false;
    if (name == NULL) return usual_profile(ctx, option, dtype, profile);
    const assay_profile *built_in = assay_profile_by_name(name);
    if (assay_yaml_extension(name) != NULL) return assay_profile_read_file(ctx, name, profile);
    if (built_in != NULL) {
        *profile = *built_in;
        return ASSAY_OK;
    }
    if (golden != NULL) status = find_in_golden(ctx, golden, name, profile, &found);
    if (status != ASSAY_OK || found) return status;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s is \"%s\", expected %s, or a profile of your own in a .yml file",
                      option, name, assay_profile_names());
}
