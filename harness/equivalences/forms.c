/* What a case has, as far as its other forms ask. */
#include "harness/equivalences/forms_internal.h"

#include <string.h>

#include "harness/operations/op_support.h"

bool form_is_op(const assay_case *c, const char *name)
{
    return strcmp(c->op, name) == 0;
}

bool form_has_moe(const assay_case *c)
{
    const int64_t layers = assay_is_stack(c) ? c->config.base_num_decoder_layers : 1;
    return form_is_op(c, "moe") || (assay_is_layer(c) && c->config.first_num_dense_layers < layers);
}

bool form_has_sparse_moe(const assay_case *c)
{
    return form_has_moe(c) && c->config.sparse_matmul && !c->config.fused_moe_func;
}

/* Rows beyond the buffer of a shard are lost. */
bool form_drops_rows(const assay_case *c)
{
    return c->config.ragged_buffer_factor > 0;
}

/* Layers under the schedule; a block alone only takes its rule of dividing the weights. */
bool form_is_batch_split(const assay_case *c)
{
    return assay_is_layer(c) && c->config.use_batch_split_schedule;
}

bool form_is_sharded(const assay_case *c)
{
    assay_context ctx = {0};
    assay_moe_config config;
    assay_sharding sharding;
    return form_has_moe(c) && assay_moe_config_of(&ctx, c, &config) == ASSAY_OK &&
           assay_sharding_of(&ctx, c, &sharding) == ASSAY_OK && assay_is_sharded(&config, &sharding);
}

void form_on_one_device(assay_case *c)
{
    c->mesh_data = c->mesh_fsdp = c->mesh_expert = c->mesh_tensor = c->mesh_mlp_tensor = c->mesh_fsdp_transpose = 1;
    c->config.weights_on_shards = false;
    c->config.use_ring_of_experts = false;
    c->config.ragged_buffer_factor = -1;
    c->config.num_moe_emb_chunks = 0;
    c->config.num_moe_token_chunks = 1;
}

/* Whether a shard, or a chunk of its tokens, has losses of its own. */
bool form_has_own_loss(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    const bool any = m->load_balance_loss_weight > 0 || m->router_z_loss_weight > 0;
    return any && !m->fused_moe_func && strcmp(m->load_balance_loss_scope.text, "global") != 0;
}

/* Whether the MoE blocks are what a block of another kind on one device computes as well: nothing is lost, all experts
 * are there, no shard has a loss of its own, and no token an expert twice. */
bool form_is_complete(const assay_case *c)
{
    const bool own_loss = form_is_sharded(c) && form_has_own_loss(c);
    return !form_drops_rows(c) && !form_is_batch_split(c) && !own_loss && !c->config.use_random_routing &&
           c->config.local_num_experts == 0;
}

bool form_fuses_experts(const assay_case *c)
{
    return c->config.prefuse_moe_weights || c->config.fused_moe_mlp;
}

/* What the sparse path alone has. */
bool form_has_engine_form(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return m->apply_router_weight_on_input || m->num_fused_shared_experts > 0 || m->local_num_experts > 0 ||
           m->num_redundant_experts > 0 || !m->apply_routed_scaling_factor_on_output;
}

/* Whether a form that was made up here is a case. */
bool form_is_case(const assay_case *c)
{
    assay_context ctx = {0};
    const assay_operation *operation = NULL;
    assay_tensor_list list = {0};
    const bool fits = assay_operation_prepare(&ctx, c, &operation, &list) == ASSAY_OK;
    assay_tensor_list_free(&list);
    return fits;
}
