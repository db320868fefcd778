#include "harness/operations/hidden.h"

#include <stdio.h>
#include <string.h>

static const char CODES[] = "hidden_codes";

/* "checkpoints/moe_hidden_codes" to "checkpoints/moe_intermediate" or, with another ending, to the scales. */
static const assay_tensor_spec *beside(const assay_tensor_list *list, const char *codes, const char *ending)
{
    char path[ASSAY_PATH_SIZE];
    const int stem = (int)(strlen(codes) - strlen(CODES));
    snprintf(path, sizeof path, "%.*s%s", stem, codes, ending);
    const assay_tensor_entry *entry = assay_tensor_list_find(list, path);
    return entry == NULL ? NULL : &entry->spec;
}

static bool is_codes(const assay_tensor_spec *spec)
{
    const size_t length = strlen(spec->path), of_ending = strlen(CODES);
    return spec->role == ASSAY_ROLE_CHECKPOINT && length >= of_ending &&
           strcmp(spec->path + length - of_ending, CODES) == 0;
}

int assay_hidden_list(const assay_tensor_list *list, assay_hidden hidden[ASSAY_MOST_HIDDEN])
{
    int count = 0;
    for (int i = 0; i < list->count && count < ASSAY_MOST_HIDDEN; i++) {
        const assay_tensor_spec *spec = &list->entries[i].spec;
        if (!is_codes(spec)) continue;
        hidden[count++] = (assay_hidden){.h = beside(list, spec->path, "intermediate"),
                                         .codes = spec,
                                         .scale = beside(list, spec->path, "hidden_codes_scale")};
    }
    return count;
}

int assay_made_list(const assay_tensor_list *list, assay_hidden made[ASSAY_MOST_HIDDEN])
{
    int count = assay_hidden_list(list, made);
    for (int i = 0; i < list->count && count < ASSAY_MOST_HIDDEN; i++) {
        if (list->entries[i].made) made[count++] = (assay_hidden){.h = &list->entries[i].spec};
    }
    return count;
}
