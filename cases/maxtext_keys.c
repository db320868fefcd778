#define _GNU_SOURCE /* memmem */
#include "cases/maxtext_keys.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cases/case_internal.h"

const assay_maxtext_key assay_maxtext_keys[ASSAY_MAXTEXT_KEYS] = {
#define X(key, unchanging, components) {#key, unchanging, components},
    ASSAY_MAXTEXT_KEY_TABLE(X)
#undef X
};

static const char *const NEUTRAL_PATTERNS[] = {
    "*_for_vit",         "*_for_audio",       "wi_tile_*", "wo_tile_*",
    "ici_*_parallelism", "dcn_*_parallelism", "sa_*",      "local_sa_*",
};

int assay_maxtext_key_by_name(const char *name)
{
    for (int i = 0; i < ASSAY_MAXTEXT_KEYS; i++) {
        if (strcmp(name, assay_maxtext_keys[i].name) == 0) return i;
    }
    return -1;
}

static bool is_number(const char *text, double *value)
{
    char *end;
    *value = strtod(text, &end);
    return end != text && *end == '\0';
}

static bool same_value(const char *a, const char *b)
{
    double x, y;
    if (is_number(a, &x) && is_number(b, &y)) return x == y;
    return strcasecmp(a, b) == 0;
}

bool assay_maxtext_value_changes_nothing(const assay_maxtext_key *key, const char *value)
{
    char one[64];
    for (const char *p = key->unchanging;; p++) {
        const size_t length = strcspn(p, "|");
        memcpy(one, p, length);
        one[length] = '\0';
        if (same_value(one, value)) return true;
        p += length;
        if (*p == '\0') return false;
    }
}

/* The line of a text that the place stands in is a comment. */
static bool is_in_comment(const char *text, const char *at)
{
    while (at > text && at[-1] != '\n') at--;
    return *at == '#';
}

bool assay_key_is_neutral(const char *list, const char *name)
{
    const assay_embedded_file *file = assay_embedded_neutral_keys;
    while (strcmp(file->name, list) != 0) file++;
    const char *text = (const char *)file->text, *end = text + file->size;
    const size_t length = strlen(name);
    if (length == 0 || strpbrk(name, " \n") != NULL) return false;
    for (const char *at = text; (at = memmem(at, (size_t)(end - at), name, length)) != NULL; at += length) {
        const bool whole = at > text && isspace((unsigned char)at[-1]) && isspace((unsigned char)at[length]);
        if (whole && !is_in_comment(text, at)) return true;
    }
    return false;
}

bool assay_maxtext_key_is_neutral(const char *name)
{
    for (size_t i = 0; i < sizeof NEUTRAL_PATTERNS / sizeof *NEUTRAL_PATTERNS; i++) {
        if (fnmatch(NEUTRAL_PATTERNS[i], name, 0) == 0) return true;
    }
    return assay_key_is_neutral("maxtext", name);
}
