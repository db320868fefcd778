#include "harness/equivalences/equivalence.h"

#include <string.h>

#include "harness/equivalences/forms_internal.h"
#include "harness/equivalences/free_axes.h"

/* Each sum of a gradient that goes along such an axis has another order. */
static bool other_axes(const assay_case *c, assay_other_form *form)
{
    if (c->program == NULL || c->program->node_count == 0) return false;
    assay_program_free_axes(c->program, form->reversed);
    return form->reversed[0] != '\0';
}

/* clang-format off */
const assay_equivalence assay_equivalences[] = {
    {"fused-unfused", "gate and up as one product, or as two", ASSAY_HOLDS_BITS, form_other_fused},
    {"prefused-layouts", "gate and up of each tensor shard side by side, or whole", ASSAY_HOLDS_BITS, form_other_w13_layout},
    {"dense-sparse", "every expert on every token, or copies grouped by expert", ASSAY_HOLDS_SCALES, form_other_dense},
    {"sparse-fused_moe", "the fused path of inference, where its routing rule is the same", ASSAY_HOLDS_SCALES, form_other_fused_moe},
    {"capacity-dropless", "a capacity that drops nothing, or none", ASSAY_HOLDS_SCALES, form_other_capacity},
    {"shared-fused", "the shared expert as one more slot of every token, or apart", ASSAY_HOLDS_SCALES, form_other_shared},
    {"sharded-whole", "experts and tokens over a mesh, or one device", ASSAY_HOLDS_SCALES, form_other_sharded},
    {"tensor-whole", "the experts' hidden dimension over shards, or whole", ASSAY_HOLDS_SCALES, form_other_tensor},
    {"gathered-whole", "kernels gathered from the shards on which they lie, or whole", ASSAY_HOLDS_BITS, form_other_kernels},
    {"ring-alltoall", "a ring of experts, or a ragged all-to-all", ASSAY_HOLDS_SCALES, form_other_ring},
    {"chunked-whole", "the embedding or the tokens of a ring in chunks, or whole", ASSAY_HOLDS_SCALES, form_other_chunks},
    {"window-whole", "a window as long as the sequence, or none", ASSAY_HOLDS_BITS, form_other_window},
    {"paged-contiguous", "a cache in pages, or each sequence by itself", ASSAY_HOLDS_BITS, form_other_contiguous},
    {"pages-other", "pages of one size, order and layout, or of another", ASSAY_HOLDS_BITS, form_other_pages},
    {"splits-whole", "a cache in splits that are merged, or whole", ASSAY_HOLDS_SCALES, form_other_splits},
    {"prefill-chunked", "the context in chunks and the new tokens by themselves, or all keys at once", ASSAY_HOLDS_SCALES, form_other_prefill_chunks},
    {"tokens-stepwise", "several tokens over a cache at once, or each as a sequence of its own", ASSAY_HOLDS_BITS, form_other_steps},
    {"remat-kept", "intermediates computed again, or kept", ASSAY_HOLDS_BITS, form_other_remat},
    {"batchsplit-plain", "the batch-split schedule, or layer after layer", ASSAY_HOLDS_SCALES, form_other_batch_split},
    {"replicas-one", "several replicas of an expert, or one", ASSAY_HOLDS_SCALES, form_other_replicas},
    {"function-mesh", "a function whose shards do not talk on its mesh, or on one shard", ASSAY_HOLDS_SCALES, form_other_mesh},
    {"axes-reversed", "a program's axes along which no step tells indices apart, the last index first, or as they are", ASSAY_HOLDS_SCALES, other_axes},
    {NULL, NULL, ASSAY_HOLDS_BITS, NULL},
};
/* clang-format on */

bool assay_other_form_of(const assay_case *c, const assay_equivalence *equivalence, assay_other_form *form)
{
    *form = (assay_other_form){.c = *c, .holding = equivalence->holding};
    if (c->quant_format_count > 0) { /* on the numbers that codes and scales are */
        form->c.quant_format_count = 0;
        const bool quantises = c->config.quant_recipe.text[0] != '\0' || c->config.quant_hidden_format.text[0] != '\0';
        if (!quantises) form->c.config.quant_scale_rounding = assay_model_defaults.quant_scale_rounding;
    }
    assay_model_forget_set_keys(&form->c.config); /* what the user said was held against the form that it was said of */
    if (!equivalence->other(c, form)) return false;
    if (c->config.quant_recipe.text[0] == '\0') return true;
    return form_has_same_scales(c, &form->c) && form_is_case(&form->c); /* a recipe is not in every form */
}

const assay_equivalence *assay_equivalence_by_name(const char *name)
{
    for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
        if (strcmp(e->name, name) == 0) return e;
    }
    return NULL;
}
