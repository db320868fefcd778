#include "cases/case.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "cases/case_internal.h"
#include "oracle/base/memory.h"
#include "oracle/program/program.h"

assay_status assay_text_list_append(assay_context *ctx, assay_text_list *list, const char *text, size_t length)
{
    MUST(assay_grow(ctx, "a list of texts", list->count + 1, sizeof *list->items, &list->items));
    char *item = malloc(length + 1);
    if (item == NULL) return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a text of %zu bytes", length);
    memcpy(item, text, length);
    item[length] = '\0';
    list->items[list->count++] = item;
    return ASSAY_OK;
}

void assay_text_list_free(assay_text_list *list)
{
    for (int i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (assay_text_list){0};
}

bool assay_text_list_matches(const assay_text_list *list, const char *prefix, const char *path)
{
    size_t length = strlen(prefix);
    if (strncmp(path, prefix, length) != 0) return false;
    for (int i = 0; i < list->count; i++) {
        if (strcmp(list->items[i], "all") == 0 || fnmatch(list->items[i], path + length, 0) == 0) return true;
    }
    return false;
}

assay_status assay_case_init(assay_context *ctx, assay_case *c)
{
    static const char *const PROFILES[] = {"f64", "f32", "bf16", "f16"};
    assay_status status = ASSAY_OK;
    *c = (assay_case){.config = assay_model_defaults,
                      .batch = 1,
                      .sequence = 1,
                      .mesh_data = 1,
                      .mesh_fsdp = 1,
                      .mesh_expert = 1,
                      .mesh_tensor = 1,
                      .mesh_mlp_tensor = 1,
                      .mesh_fsdp_transpose = 1,
                      .dtype = ASSAY_BFLOAT16,
                      .position_step = 1,
                      .only_layer = -1};
    TRY(assay_text_list_append(ctx, &c->gradients, "all", 3));
    TRY(assay_text_list_append(ctx, &c->checkpoints, "none", 4));
    for (size_t i = 0; i < sizeof PROFILES / sizeof *PROFILES; i++) {
        TRY(assay_text_list_append(ctx, &c->profiles, PROFILES[i], strlen(PROFILES[i])));
    }
cleanup:
    if (status != ASSAY_OK) assay_case_free(c);
    return status;
}

void assay_case_free(assay_case *c)
{
    for (int i = 0; i < c->input_count; i++) free(c->inputs[i].values);
    free(c->inputs);
    free(c->dtypes);
    free(c->quant_formats);
    assay_program_free(c->program);
    assay_text_list_free(&c->tags);
    assay_text_list_free(&c->gradients);
    assay_text_list_free(&c->checkpoints);
    assay_text_list_free(&c->profiles);
    *c = (assay_case){0};
}

void assay_cases_free(assay_case *cases, int count)
{
    for (int i = 0; i < count; i++) assay_case_free(&cases[i]);
    free(cases);
}

bool assay_case_is_exact(const assay_case *c)
{
    bool exact = false;
    for (int i = 0; i < c->tags.count; i++) exact |= strcmp(c->tags.items[i], "exact") == 0;
    return exact;
}
