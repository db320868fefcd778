#include "harness/equivalence.h"

#include <stdio.h>
#include <string.h>

#include "harness/operations/op_support.h"
#include "oracle/arithmetic/arithmetic.h"

static bool is_op(const assay_case *c, const char *name)
{
    return strcmp(c->op, name) == 0;
}

static bool is_layer(const assay_case *c)
{
    return is_op(c, "deepseek_layer") || is_op(c, "deepseek_stack");
}

static bool has_moe(const assay_case *c)
{
    const int64_t layers = is_op(c, "deepseek_layer") ? 1 : c->config.base_num_decoder_layers;
    return is_op(c, "moe") || (is_layer(c) && c->config.first_num_dense_layers < layers);
}

static bool fuses_experts(const assay_case *c)
{
    return c->config.prefuse_moe_weights || c->config.fused_moe_mlp;
}

static bool other_fused(const assay_case *c, assay_other_form *form)
{
    const bool experts = has_moe(c) && c->config.sparse_matmul && !c->config.fused_moe_func;
    const bool dense = is_op(c, "mlp") || (is_layer(c) && c->config.first_num_dense_layers > 0);
    if (dense) form->c.config.fused_mlp = !c->config.fused_mlp;
    if (experts) form->c.config.prefuse_moe_weights = !fuses_experts(c);
    if (experts) form->c.config.fused_moe_mlp = false;
    return dense || experts;
}

/* Biases of a fused product are those of its halves, so only the kernels change. */
static bool other_dense(const assay_case *c, assay_other_form *form)
{
    const bool dropping = !c->config.sparse_matmul && c->config.capacity_factor > 0;
    if (!has_moe(c) || dropping || fuses_experts(c) || c->config.fused_moe_func) return false;
    form->c.config.sparse_matmul = !c->config.sparse_matmul;
    form->c.config.capacity_factor = -1;
    return true;
}

/* Room for every choice: nothing is dropped. */
static bool other_capacity(const assay_case *c, assay_other_form *form)
{
    const bool dropless = c->config.sparse_matmul || !(c->config.capacity_factor > 0);
    const bool llama4 = strcmp(c->config.decoder_block.text, "llama4") == 0;
    if (!has_moe(c) || !dropless || fuses_experts(c) || c->config.fused_moe_func || llama4) return false;
    form->c.config.sparse_matmul = false;
    form->c.config.capacity_factor = (double)c->config.num_experts;
    return true;
}

/* Where the fused path's own routing rule gives the same weights (SPEC 8). */
static bool other_fused_moe(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_moe_config config;
    const assay_model_config *m = &c->config;
    if (!is_op(c, "moe") || m->fused_moe_func || !m->sparse_matmul || m->routed_bias || m->mlp_bias) return false;
    if (assay_moe_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    const assay_routing_config *r = &config.routing;
    const bool sigmoid = r->family == ASSAY_ROUTER_DEEPSEEK3 && r->score_func == ASSAY_SCORE_SIGMOID &&
                         r->routed_scaling_factor == 1;
    const bool softmax = r->family == ASSAY_ROUTER_DEFAULT && r->score_func == ASSAY_SCORE_NONE;
    if (!(sigmoid || softmax) || r->n_routing_groups > 0 || r->hash_rows > 0) return false;
    if (r->load_balance_loss_weight > 0 || r->routed_bias_update_rate > 0) return false;
    if (r->batch * r->sequence * r->num_experts_per_tok % 16 != 0) return false;
    form->c.config.fused_moe_func = true;
    form->c.config.prefuse_moe_weights = true;
    form->c.config.fused_moe_mlp = false;
    return true;
}

static void set_policies(assay_model_config *m, const char *policy)
{
#define X(code, name) snprintf(m->name.text, sizeof m->name.text, "%s", policy);
    ASSAY_REMAT_TABLE(X)
#undef X
    snprintf(m->decoder_layer_input.text, sizeof m->decoder_layer_input.text, "device");
}

/* Everything kept, or, where that is the case's own policy, nothing. */
static bool other_remat(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_stack_config config;
    bool kept = true;
    if (!is_layer(c) || assay_stack_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) kept &= config.policy.action[name] == ASSAY_DEVICE;
    snprintf(form->c.config.remat_policy.text, sizeof form->c.config.remat_policy.text, "custom");
    set_policies(&form->c.config, kept ? "remat" : "device");
    return true;
}

static bool other_absorbed(const assay_case *c, assay_other_form *form)
{
    form->run = assay_mla_run_absorbed;
    return is_op(c, "mla");
}

static bool other_blas(const assay_case *c, assay_other_form *form)
{
    (void)c;
    const bool reference = form->ctx.arithmetic == &assay_arithmetic_reference;
    form->ctx.arithmetic = reference ? &assay_arithmetic_blas : &assay_arithmetic_reference;
    return !is_op(c, "permute") && !is_op(c, "unpermute") && !is_op(c, "rms_norm") && !is_op(c, "yarn_rope");
}

static bool other_threads(const assay_case *c, assay_other_form *form)
{
    enum { MANY = 7 };
    (void)c;
    form->ctx.threads = form->ctx.threads == MANY ? 1 : MANY;
    return true;
}

const assay_equivalence assay_equivalences[] = {
    {"fused-unfused", "gate and up as one product, or as two", ASSAY_HOLDS_BITS, other_fused},
    {"dense-sparse", "every expert on every token, or copies grouped by expert", ASSAY_HOLDS_GAUGE, other_dense},
    {"sparse-fused_moe", "the fused path of inference, where its routing rule is the same", ASSAY_HOLDS_GAUGE,
     other_fused_moe},
    {"capacity-dropless", "a capacity that drops nothing", ASSAY_HOLDS_GAUGE, other_capacity},
    {"mla-absorbed", "scores from the latents, without key and value", ASSAY_HOLDS_GAUGE, other_absorbed},
    {"remat-kept", "intermediates computed again, or kept", ASSAY_HOLDS_BITS, other_remat},
    {"blas-reference", "products by OpenBLAS", ASSAY_HOLDS_GAUGE, other_blas},
    {"threads", "7 threads, or 1", ASSAY_HOLDS_BITS, other_threads},
    {NULL, NULL, ASSAY_HOLDS_BITS, NULL},
};

const assay_equivalence *assay_equivalence_by_name(const char *name)
{
    for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
        if (strcmp(e->name, name) == 0) return e;
    }
    return NULL;
}
