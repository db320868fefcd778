#include "cases/case_filter.h"

#include <fnmatch.h>
#include <string.h>

#include "cases/case_internal.h"

typedef bool (*word_test)(const assay_case *c, const char *word);

static bool has_tag(const assay_case *c, const char *tag)
{
    bool found = false;
    for (int i = 0; i < c->tags.count; i++) found |= strcmp(c->tags.items[i], tag) == 0;
    return found;
}

static bool has_op(const assay_case *c, const char *op)
{
    return strcmp(c->op, op) == 0;
}

static bool has_any(const assay_case *c, const char *word)
{
    return has_tag(c, word) || has_op(c, word) || fnmatch(word, c->name, 0) == 0;
}

static bool one_holds(const assay_text_list *words, word_test test, const assay_case *c)
{
    bool holds = false;
    for (int i = 0; i < words->count; i++) holds |= test(c, words->items[i]);
    return holds;
}

static bool has_mesh(const assay_case *c)
{
    return c->mesh_data > 1 || c->mesh_fsdp > 1 || c->mesh_expert > 1 || c->mesh_tensor > 1 || c->mesh_mlp_tensor > 1 ||
           c->mesh_fsdp_transpose > 1;
}

bool assay_case_filter_is_set(const assay_case_filter *filter)
{
    return filter->no_mesh || filter->tags.count + filter->ops.count + filter->excludes.count > 0;
}

bool assay_case_filter_matches(const assay_case_filter *filter, const assay_case *c)
{
    return (filter->tags.count == 0 || one_holds(&filter->tags, has_tag, c)) &&
           (filter->ops.count == 0 || one_holds(&filter->ops, has_op, c)) &&
           !one_holds(&filter->excludes, has_any, c) && !(filter->no_mesh && has_mesh(c));
}

static bool some_case_has(const assay_case *cases, int count, word_test test, const char *word)
{
    for (int i = 0; i < count; i++) {
        if (test(&cases[i], word)) return true;
    }
    return false;
}

/* One kind of words: the option that they came with, and what they may be. */
typedef struct word_kind {
    const assay_text_list *words;
    word_test test;
    const char *option, *expected;
    bool tags, ops, names;
} word_kind;

static assay_status refuse(assay_context *ctx, const word_kind *kind, const char *word, const assay_case *catalogue,
                           int count)
{
    char hint[ASSAY_MESSAGE_SIZE / 2];
    assay_nearest nearest = {.word = word, .most = ASSAY_NEAREST_MOST};
    for (int i = 0; i < count; i++) {
        for (int k = 0; kind->tags && k < catalogue[i].tags.count; k++)
            assay_nearest_offer(&nearest, catalogue[i].tags.items[k]);
        if (kind->ops) assay_nearest_offer(&nearest, catalogue[i].op);
        if (kind->names) assay_nearest_offer(&nearest, catalogue[i].name);
    }
    assay_nearest_text(&nearest, hint, sizeof hint);
    return assay_refuse(ctx, "--%s is \"%.100s\", which no case has, expected %s%s", kind->option, word, kind->expected,
                        hint);
}

assay_status assay_case_filter_check(assay_context *ctx, const assay_case_filter *filter, const assay_case *cases,
                                     int count)
{
    assay_status status;
    assay_case *catalogue = NULL;
    int catalogue_count = 0;
    const word_kind kinds[] = {
        {&filter->tags, has_tag, "tag", "a tag", true, false, false},
        {&filter->ops, has_op, "op", "an operation", false, true, false},
        {&filter->excludes, has_any, "exclude", "a tag, an operation, or a glob over names", true, true, true},
    };
    TRY(assay_catalogue(ctx, &catalogue, &catalogue_count));
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < kinds[k].words->count; i++) {
            const char *word = kinds[k].words->items[i];
            if (some_case_has(catalogue, catalogue_count, kinds[k].test, word)) continue;
            if (some_case_has(cases, count, kinds[k].test, word)) continue;
            TRY(refuse(ctx, &kinds[k], word, catalogue, catalogue_count));
        }
    }
cleanup:
    assay_cases_free(catalogue, catalogue_count);
    return status;
}

assay_status assay_words_add(assay_context *ctx, assay_text_list *words, const char *option, const char *text)
{
    for (;; text++) {
        const size_t length = strcspn(text, ",");
        if (length == 0) return assay_refuse(ctx, "--%s has an empty word", option);
        const assay_status status = assay_text_list_append(ctx, words, text, length);
        text += length;
        if (status != ASSAY_OK || *text == '\0') return status;
    }
}
