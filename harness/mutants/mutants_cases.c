/* What rows of the table ask of a case. Of shards: docs/expert-parallelism.md. */
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"

int64_t assay_case_replicas(const assay_case *c)
{
    return c->mesh_data * c->mesh_fsdp * c->mesh_fsdp_transpose;
}

int64_t assay_case_shards(const assay_case *c)
{
    return assay_case_replicas(c) * (c->config.fused_moe_func ? 1 : c->mesh_expert);
}

int64_t assay_rows_of_shard(const assay_case *c)
{
    const int64_t shards = assay_case_shards(c);
    return shards > 1 && c->batch % shards == 0 ? c->batch / shards : 0;
}

/* Row r of a shard is in microbatch r mod factor. 0: there are none. */
static int64_t microbatches(const assay_case *c)
{
    return c->config.use_batch_split_schedule && c->config.batch_split_factor > 1 ? c->config.batch_split_factor : 0;
}

int64_t assay_last_microbatch(const assay_case *c)
{
    return microbatches(c) - 1;
}

int64_t assay_microbatch_of(const assay_case *c, int64_t row)
{
    return row % (c->batch / assay_case_shards(c)) % microbatches(c);
}

static bool is(const assay_text *text, const char *value)
{
    return strcmp(text->text, value) == 0;
}

static bool has_expert_shards(const assay_case *c)
{
    return c->mesh_expert > 1 && c->config.num_experts % c->mesh_expert == 0 && !c->config.weights_on_shards;
}

static bool is_deepseek3(const assay_model_config *m)
{
    return assay_router_family_of(m) == ASSAY_ROUTER_DEEPSEEK3 && m->first_num_hash_layers == 0;
}

static bool divides(const assay_model_config *m)
{
    return is_deepseek3(m) && (is(&m->routed_score_func, "sigmoid") || is(&m->routed_score_func, "sqrtsoftplus"));
}

/* By any of the rules. */
static bool divides_anyhow(const assay_case *c)
{
    assay_context ctx = {0}; /* for the message of a case that was checked */
    assay_routing_config config;
    return assay_routing_config_of(&ctx, c, &config) == ASSAY_OK && assay_routing_divides(&config);
}

static bool sums_over_experts(const assay_text *function)
{
    static const char *const names[] = {"unroute",        "unroute_impl", "unroute_impl_fwd",
                                        "route_impl_bwd", "route_bwd",    "quantized_psum_scatter"};
    bool sums = false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) sums |= is(function, names[i]);
    return sums;
}

/* Of experts, each part with scales of its own. */
static bool has_parts_of_products(const assay_case *c)
{
    const bool experts = (assay_operation_by_name(c->op)->parts & ASSAY_PART_EXPERTS) != 0;
    return experts && c->mesh_mlp_tensor * c->mesh_tensor * c->config.num_moe_emb_chunks > 1;
}

bool assay_case_gathers_codes(const assay_case *c)
{
    return strncmp(c->config.function.text, "quantized_psum_scatter", 22) == 0;
}

bool assay_case_is_where(const assay_case *c, assay_where where)
{
    const assay_model_config *m = &c->config;
    switch (where) {
    case ASSAY_WHERE_always:
        return true;
    case ASSAY_WHERE_yarn:
        return is(&m->rope_type, "yarn");
    case ASSAY_WHERE_one_layer:
        return !assay_is_stack(c);
    case ASSAY_WHERE_no_layer:
        return !assay_is_layer(c);
    case ASSAY_WHERE_block_or_layer:
        return strcmp(c->op, "moe") == 0 || assay_is_layer(c);
    case ASSAY_WHERE_windows:
        return assay_is_layer(c) && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_ALTERNATES);
    case ASSAY_WHERE_window:
        return m->sliding_window_size > 0 && m->sliding_window_size < c->sequence && !is(&m->attention_type, "global");
    case ASSAY_WHERE_qk_norms:
        return m->use_qk_norm && !m->fused_qkv;
    case ASSAY_WHERE_gpt_oss_gate:
        return is(&m->decoder_block, "gpt_oss");
    case ASSAY_WHERE_shared_gate:
        return m->shared_experts > 0 && assay_block_has(m->decoder_block.text, ASSAY_BLOCK_GATED_SHARED);
    case ASSAY_WHERE_several_choices:
        return m->num_experts_per_tok > 1;
    case ASSAY_WHERE_groups:
        return m->n_routing_groups > 0;
    case ASSAY_WHERE_divides:
        return divides(m);
    case ASSAY_WHERE_divides_anyhow:
        return divides_anyhow(c);
    case ASSAY_WHERE_biased_choice:
        return m->routed_bias && is_deepseek3(m);
    case ASSAY_WHERE_divided_bias:
        return m->routed_bias && divides(m);
    case ASSAY_WHERE_biased_balance:
        return m->load_balance_loss_weight > 0 && m->routed_bias;
    case ASSAY_WHERE_gives_choice:
        return assay_gives_choice(c);
    case ASSAY_WHERE_drops_tokens:
        return !m->sparse_matmul && m->capacity_factor > 0;
    case ASSAY_WHERE_contiguous_layout:
        return is(&m->gmm_layout, "contiguous");
    case ASSAY_WHERE_psum_layout:
        return is(&m->gmm_layout, "psum");
    case ASSAY_WHERE_replicas:
        return m->num_redundant_experts > 0;
    case ASSAY_WHERE_products_of_recipe:
        return !assay_case_gathers_codes(c);
    case ASSAY_WHERE_gathers_codes:
        return assay_case_gathers_codes(c) && c->mesh_expert > 1;
    case ASSAY_WHERE_parts_of_products:
        return has_parts_of_products(c);
    case ASSAY_WHERE_deepseek_v3_recipe:
        return is(&m->quant_recipe, "deepseek_v3");
    case ASSAY_WHERE_fp8_full_recipe:
        return is(&m->quant_recipe, "fp8_full");
    case ASSAY_WHERE_expert_shards:
        return has_expert_shards(c);
    case ASSAY_WHERE_ring:
        return m->use_ring_of_experts && has_expert_shards(c) && assay_rows_of_shard(c) > 0;
    case ASSAY_WHERE_hidden_shards:
        return c->mesh_mlp_tensor > 1 && m->sparse_matmul && !m->weights_on_shards;
    case ASSAY_WHERE_head_shards:
        return (strcmp(c->op, "mla") == 0 || strcmp(c->op, "gqa") == 0) && c->mesh_expert * c->mesh_mlp_tensor > 1;
    case ASSAY_WHERE_weights_on_shards:
        return m->weights_on_shards;
    case ASSAY_WHERE_microbatches:
        return microbatches(c) > 0;
    case ASSAY_WHERE_function_shards:
        return m->function.text[0] != '\0' && assay_case_shards(c) > 1;
    case ASSAY_WHERE_function_sums:
        return sums_over_experts(&m->function) && has_expert_shards(c);
    }
    return false;
}

double assay_case_number_of(const assay_case *c, assay_case_number number)
{
    switch (number) {
    case ASSAY_CASE_no_number:
        return 1.0;
    case ASSAY_CASE_expert_shards:
        return (double)c->mesh_expert;
    case ASSAY_CASE_tensor_shards:
        return (double)c->mesh_tensor;
    case ASSAY_CASE_hidden_shards:
        return (double)c->mesh_mlp_tensor;
    case ASSAY_CASE_head_shards:
        return (double)(c->mesh_expert * c->mesh_mlp_tensor);
    case ASSAY_CASE_fsdp_shards:
        return (double)c->mesh_fsdp;
    case ASSAY_CASE_token_shards:
        return (double)assay_case_shards(c);
    case ASSAY_CASE_shards_of_rows:
        return assay_rows_of_shard(c) > 0 ? (double)assay_case_shards(c) : 1.0;
    case ASSAY_CASE_replicas:
        return (double)assay_case_replicas(c);
    case ASSAY_CASE_per_replica:
        return 1.0 / (double)assay_case_replicas(c);
    case ASSAY_CASE_rope_columns:
        return (double)c->config.qk_rope_head_dim;
    case ASSAY_CASE_scaling_factor:
        return c->config.routed_scaling_factor;
    case ASSAY_CASE_per_hidden_scale: /* as a kernel has it */
        return c->config.quant_hidden_tensor_scale > 0 ? 1.0 / (float)c->config.quant_hidden_tensor_scale : 1.0;
    }
    return 1.0;
}
