#include "harness/scales/hidden.h"

#include <stdio.h>
#include <string.h>

#include "harness/operations/op_support.h"

/* How the paths of codes, scales and h end. */
static const struct {
    const char *codes, *scale, *h;
} ENDINGS[] = {{"hidden_codes", "hidden_codes_scale", "intermediate"}, {"/codes", "/scale", "/x"}};

/* "checkpoints/moe_hidden_codes" to "checkpoints/moe_intermediate" or, with another ending, to the scales. */
static const assay_tensor_spec *beside(const assay_tensor_list *list, const char *codes, size_t stem,
                                       const char *ending)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%.*s%s", (int)stem, codes, ending);
    const assay_tensor_entry *entry = assay_tensor_list_find(list, path);
    return entry == NULL ? NULL : &entry->spec;
}

static bool take(const assay_tensor_list *list, const assay_tensor_spec *spec, assay_hidden *hidden)
{
    const size_t length = strlen(spec->path);
    if (spec->role != ASSAY_ROLE_CHECKPOINT || !assay_path_is_hidden(spec->path)) return false;
    for (size_t i = 0; i < sizeof ENDINGS / sizeof *ENDINGS; i++) {
        const size_t stem = length - strlen(ENDINGS[i].codes);
        if (strcmp(spec->path + stem, ENDINGS[i].codes) != 0) continue;
        *hidden = (assay_hidden){.h = beside(list, spec->path, stem, ENDINGS[i].h),
                                 .codes = spec,
                                 .scale = beside(list, spec->path, stem, ENDINGS[i].scale)};
        return true;
    }
    return false;
}

int assay_hidden_list(const assay_tensor_list *list, assay_hidden hidden[ASSAY_MOST_HIDDEN])
{
    int count = 0;
    for (int i = 0; i < list->count && count < ASSAY_MOST_HIDDEN; i++)
        count += take(list, &list->entries[i].spec, &hidden[count]);
    return count;
}

assay_status assay_hidden_rules(assay_context *ctx, const assay_case *c, const assay_hidden *hidden,
                                assay_quantize_config *config)
{
    const assay_shape *shape = &hidden->h->shape;
    if (c->program == NULL) return assay_hidden_config_of(ctx, c, shape->dims[shape->rank - 1], config);
    const assay_program_line *line = assay_program_coded_line(c->program, hidden->codes->path);
    *config = assay_program_quantize(&c->program->nodes[line->node]);
    return ASSAY_OK;
}

int assay_intermediate_list(const assay_tensor_list *list, assay_hidden made[ASSAY_MOST_HIDDEN])
{
    int count = assay_hidden_list(list, made);
    for (int i = 0; i < list->count && count < ASSAY_MOST_HIDDEN; i++)
        if (list->entries[i].requantised) made[count++] = (assay_hidden){.h = &list->entries[i].spec};
    return count;
}
