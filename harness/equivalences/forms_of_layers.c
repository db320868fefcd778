/* Other forms of layers: rematerialised, under the schedule. */
#include "harness/equivalences/forms_internal.h"

#include <stdio.h>

#include "harness/operations/op_support.h"

static void set_policies(assay_model_config *m, const char *policy)
{
#define X(code, name) snprintf(m->name.text, sizeof m->name.text, "%s", policy);
    ASSAY_REMAT_TABLE(X)
#undef X
    snprintf(m->decoder_layer_input.text, sizeof m->decoder_layer_input.text, "device");
}

/* Everything kept, or, where that is the case's own policy, nothing. */
bool form_other_remat(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_stack_config config;
    assay_remat_report own, all;
    if (!assay_is_layer(c) || form_is_batch_split(c)) return false; /* the schedule has a policy of its own */
    if (assay_stack_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    if (assay_stack_remat_model(&ctx, &config, &own) != ASSAY_OK) return false;
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) config.policy.action[name] = ASSAY_DEVICE;
    if (assay_stack_remat_model(&ctx, &config, &all) != ASSAY_OK) return false;
    const bool kept = own.bytes_kept == all.bytes_kept;
    snprintf(form->c.config.remat_policy.text, sizeof form->c.config.remat_policy.text, "custom");
    set_policies(&form->c.config, kept ? "remat" : "device");
    return true;
}

bool form_other_batch_split(const assay_case *c, assay_other_form *form)
{
    assay_model_config *m = &form->c.config;
    if (!assay_is_layer(c) || form_has_engine_form(c)) return false;
    /* The schedule's router has a bias. Its weights lack the 1e-20 beside their sum: with one expert a token, that is
     * all of their gradient. */
    if (!m->routed_bias || m->num_experts_per_tok == 1) return false;
    if (m->quant_recipe.text[0] != '\0') return false; /* each shard quantises its own microbatch */
    m->use_batch_split_schedule = !form_is_batch_split(c);
    if (form_is_batch_split(c)) {
        form_on_one_device(&form->c);
        return true;
    }
    for (m->batch_split_factor = 2; m->batch_split_factor >= 1; m->batch_split_factor--) {
        if (form_is_case(&form->c)) return true;
    }
    return false;
}
