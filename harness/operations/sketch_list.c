#include <stdlib.h>

#include "harness/operations/op_support.h"
#include "harness/sketch/sketch.h"

/* Sketches in the place of the gradients that they are of. */
assay_status assay_sketch_list(assay_context *ctx, const assay_case *c, assay_tensor_list *list)
{
    int large = 0, count = 0;
    for (int i = 0; i < list->count; i++) large += assay_sketch_is_for(&list->entries[i].spec, c->sketch_above);
    if (large == 0) return ASSAY_OK;
    const size_t room = (size_t)list->count + (size_t)large * ASSAY_SKETCH_COMPONENTS;
    assay_tensor_entry *entries = calloc(room, sizeof *entries);
    list->sketched = calloc((size_t)large, sizeof *list->sketched);
    if (entries == NULL || list->sketched == NULL) {
        free(entries);
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the list of tensors");
    }
    for (int i = 0; i < list->count; i++) {
        const assay_tensor_entry *entry = &list->entries[i];
        if (!assay_sketch_is_for(&entry->spec, c->sketch_above)) {
            entries[count++] = *entry;
            continue;
        }
        list->sketched[list->sketched_count++] = entry->spec;
        for (int component = 0; component < ASSAY_SKETCH_COMPONENTS; component++) {
            const assay_tensor_spec spec =
                assay_sketch_spec(&entry->spec, c->sketch_above, (assay_sketch_component)component);
            if (spec.path[0] != '\0') entries[count++] = (assay_tensor_entry){.spec = spec};
        }
    }
    free(list->entries);
    list->entries = entries;
    list->count = count;
    return ASSAY_OK;
}
