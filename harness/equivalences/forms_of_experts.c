/* Other forms of experts: fused, dense, with a capacity, replicas. */
#include "harness/equivalences/forms_internal.h"

#include <string.h>

#include "harness/operations/op_support.h"

/* Scales by a recipe are those of rows or blocks of gate and up together; but blocks that end with gate. Of shards of H gate and
 * up give dx sums of their own, which only a fused one has together. */
static bool fuses_scales(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const int64_t width = form_is_op(c, "moe") ? m->base_moe_mlp_dim : m->base_mlp_dim;
    return m->quant_recipe.text[0] != '\0' &&
           (strcmp(m->quant_recipe.text, "deepseek_v3") != 0 || width % 128 != 0 || c->mesh_mlp_tensor > 1);
}

bool form_other_fused(const assay_case *c, assay_other_form *form)
{
    if (fuses_scales(c)) return false;
    const bool experts = form_has_sparse_moe(c) && !form_is_batch_split(c); /* which has no fused experts */
    const bool dense = form_is_op(c, "mlp") || (assay_is_layer(c) && c->config.first_num_dense_layers > 0);
    if (dense) form->c.config.fused_mlp = !c->config.fused_mlp;
    if (experts) form->c.config.prefuse_moe_weights = !form_fuses_experts(c);
    if (experts) form->c.config.fused_moe_mlp = false;
    if (experts) form->c.config.w13_reorder_size = 1;
    return dense || experts;
}

/* Where there are two tensor shards to have. */
bool form_other_w13_layout(const assay_case *c, assay_other_form *form)
{
    int64_t *shards = &form->c.config.w13_reorder_size;
    *shards = *shards > 1 ? 1 : c->mesh_mlp_tensor > 1 ? c->mesh_mlp_tensor : 2;
    return form_is_op(c, "moe") && (form_fuses_experts(c) || c->config.fused_moe_func) &&
           !c->config.weights_on_shards && c->config.base_moe_mlp_dim % *shards == 0;
}

/* Biases of a fused product are those of its halves, so only the kernels change. */
bool form_other_dense(const assay_case *c, assay_other_form *form)
{
    const bool dropping = !c->config.sparse_matmul && c->config.capacity_factor > 0;
    if (!form_has_moe(c) || form_has_engine_form(c) || dropping || form_fuses_experts(c) || c->config.fused_moe_func ||
        !form_is_complete(c))
        return false;
    form_on_one_device(&form->c);
    form->c.config.sparse_matmul = !c->config.sparse_matmul;
    form->c.config.capacity_factor = -1;
    return true;
}

/* Room for every choice: nothing is dropped. */
bool form_other_capacity(const assay_case *c, assay_other_form *form)
{
    const bool dropless = c->config.sparse_matmul || !(c->config.capacity_factor > 0);
    const bool llama4 =
        strcmp(c->config.decoder_block.text, "llama4") == 0 || strcmp(c->config.routing_method.text, "Llama4") == 0;
    if (!form_has_moe(c) || form_has_engine_form(c) || !dropless || form_fuses_experts(c) || c->config.fused_moe_func ||
        llama4)
        return false;
    if (!form_is_complete(c)) return false;
    form_on_one_device(&form->c);
    form->c.config.sparse_matmul = false;
    form->c.config.capacity_factor = (double)c->config.num_experts;
    return form_is_case(&form->c);
}

/* Where the fused path's own routing rule gives the same weights (docs/operations.md, "moe"). */
bool form_other_fused_moe(const assay_case *c, assay_other_form *form)
{
    assay_context ctx = {0};
    assay_moe_config config;
    const assay_model_config *m = &c->config;
    if (!form_is_op(c, "moe") || !form_has_sparse_moe(c) || form_has_engine_form(c) || m->routed_bias || m->mlp_bias ||
        !form_is_complete(c))
        return false;
    if (m->weights_on_shards) return false; /* whole and fused at once is no counterpart */
    if (assay_moe_config_of(&ctx, c, &config) != ASSAY_OK) return false;
    const assay_routing_config *r = &config.routing;
    const bool sigmoid =
        r->family == ASSAY_ROUTER_DEEPSEEK3 && r->score_func == ASSAY_SCORE_SIGMOID && r->routed_scaling_factor == 1;
    /* The fused path has no 1e-20 beside the sum of the weights: with one expert a token, that is all of their
     * gradient. */
    if (sigmoid && r->num_experts_per_tok == 1) return false;
    const bool softmax = r->family == ASSAY_ROUTER_DEFAULT && r->score_func == ASSAY_SCORE_NONE;
    if (m->routing_method.text[0] != '\0') return false;
    if (!(sigmoid || softmax) || r->n_routing_groups > 0 || r->hash_rows > 0) return false;
    if (r->load_balance_loss_weight > 0 || r->z_loss_weight > 0 || r->routed_bias_update_rate > 0) return false;
    if (r->batch * r->sequence * r->num_experts_per_tok % 16 != 0) return false;
    assay_case *other = &form->c;
    other->config.fused_moe_func = true;
    other->config.prefuse_moe_weights = true;
    other->config.fused_moe_mlp = false;
    /* On the same mesh where the fused path has such a one; a shard has other tokens there. */
    const int64_t sizes[] = {c->mesh_data, c->mesh_fsdp, c->mesh_expert, c->mesh_mlp_tensor};
    form_on_one_device(other);
    form->other_shards = form_is_sharded(c);
    other->mesh_data = sizes[0], other->mesh_fsdp = sizes[1];
    other->mesh_expert = sizes[2], other->mesh_mlp_tensor = sizes[3];
    if (!form_is_case(other)) form_on_one_device(other);
    return true;
}

/* One of the routed width beside them, or the last of them. */
bool form_other_shared(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_fused_shared_experts = 0;
    return form_has_moe(c) && c->config.num_fused_shared_experts == 1;
}

/* Every expert once; where shards have as many of them. A ring rolls ids of experts, and not what it counts of replicas. */
bool form_other_replicas(const assay_case *c, assay_other_form *form)
{
    form->c.config.num_redundant_experts = 0;
    form->other_shards = c->config.use_ring_of_experts;
    return form_has_moe(c) && c->config.num_redundant_experts > 0 && c->config.num_experts % c->mesh_expert == 0;
}
