/* Mutants by a changed configuration. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants.h"
#include "harness/operations/op_support.h"

static bool is(const assay_text *text, const char *value)
{
    return strcmp(text->text, value) == 0;
}

static bool set_text(assay_text *text, const char *value)
{
    snprintf(text->text, sizeof text->text, "%s", value);
    return true;
}

static bool flip(bool *flag)
{
    *flag = !*flag;
    return true;
}

bool assay_mutant_factor_missing(assay_case *c)
{
    const bool applies = c->config.routed_scaling_factor != 1.0;
    c->config.routed_scaling_factor = 1.0;
    return applies;
}

bool assay_mutant_factor_twice(assay_case *c)
{
    const bool applies = c->config.routed_scaling_factor != 1.0;
    c->config.routed_scaling_factor *= c->config.routed_scaling_factor;
    return applies;
}

bool assay_mutant_divided_or_not(assay_case *c)
{
    return flip(&c->config.norm_topk_prob);
}

static bool is_deepseek3(const assay_model_config *m)
{
    return assay_router_family_of(m) == ASSAY_ROUTER_DEEPSEEK3 && m->first_num_hash_layers == 0;
}

/* DeepSeek-V3's rule without its division is DeepSeek-V2's. */
static bool as_deepseek2(assay_case *c)
{
    return is_deepseek3(&c->config) && set_text(&c->config.decoder_block, "deepseek") &&
           set_text(&c->config.model_name, "deepseek2");
}

static bool divides(const assay_model_config *m)
{
    return is(&m->routed_score_func, "sigmoid") || is(&m->routed_score_func, "sqrtsoftplus");
}

bool assay_mutant_not_divided(assay_case *c)
{
    return divides(&c->config) && as_deepseek2(c);
}

bool assay_mutant_biased_weights(assay_case *c)
{
    return c->config.routed_bias && as_deepseek2(c);
}

/* Of the model that divides: no other one's rule is this. */
bool assay_mutant_biased_weights_divided(assay_case *c)
{
    c->config.weigh_biased = true;
    return c->config.routed_bias && is_deepseek3(&c->config) && divides(&c->config);
}

bool assay_mutant_other_score(assay_case *c)
{
    assay_text *score = &c->config.routed_score_func;
    if (score->text[0] == '\0') return false;
    return set_text(score, is(score, "softmax") ? "sigmoid" : "softmax");
}

bool assay_mutant_other_group_score(assay_case *c)
{
    assay_model_config *m = &c->config;
    const bool sums = is(&m->group_score, "top2_sum") || (m->group_score.text[0] == '\0' && m->routed_bias);
    return m->n_routing_groups > 0 && set_text(&m->group_score, sums ? "max" : "top2_sum");
}

bool assay_mutant_no_groups(assay_case *c)
{
    const bool applies = c->config.n_routing_groups > 0;
    c->config.n_routing_groups = c->config.topk_routing_group = -1;
    return applies;
}

bool assay_mutant_other_group_count(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->topk_routing_group += m->topk_routing_group < m->n_routing_groups ? 1 : -1;
    return m->n_routing_groups > 1 && m->topk_routing_group > 0;
}

bool assay_mutant_no_shared_expert(assay_case *c)
{
    const bool applies = c->config.shared_experts > 0;
    c->config.shared_experts = 0;
    return applies;
}

bool assay_mutant_no_mscale(assay_case *c)
{
    const bool applies = c->config.mscale != 0.0 && is(&c->config.rope_type, "yarn");
    c->config.mscale = 0.0;
    return applies;
}

bool assay_mutant_other_pairing(assay_case *c)
{
    return flip(&c->config.rope_pairwise);
}

bool assay_mutant_other_interleave(assay_case *c)
{
    c->config.given[ASSAY_KEY_AT_rope_interleave] = true;
    return flip(&c->config.rope_interleave);
}

bool assay_mutant_other_truncation(assay_case *c)
{
    return flip(&c->config.rope_truncate);
}

bool assay_mutant_other_attention_scaling(assay_case *c)
{
    return flip(&c->config.rope_attention_scaling);
}

/* The layout of the pairs goes by the type, but is no part of this mutant. */
bool assay_mutant_other_rope_type(assay_case *c)
{
    assay_text *type = &c->config.rope_type;
    c->config.given[ASSAY_KEY_AT_rope_interleave] = true;
    return set_text(type, is(type, "yarn") ? "default" : "yarn");
}

bool assay_mutant_other_rope_factor(assay_case *c)
{
    c->config.rope_factor *= 2;
    return is(&c->config.rope_type, "yarn");
}

bool assay_mutant_other_timescale(assay_case *c)
{
    c->config.rope_max_timescale *= 50;
    return true;
}

bool assay_mutant_other_betas(assay_case *c)
{
    c->config.beta_fast /= 2;
    return is(&c->config.rope_type, "yarn");
}

bool assay_mutant_other_epsilon(assay_case *c)
{
    double *epsilon = &c->config.normalization_layer_epsilon;
    *epsilon = *epsilon < 5e-6 ? 1e-5 : 1e-6;
    return true;
}

bool assay_mutant_other_activation(assay_case *c)
{
    char *gate = c->config.mlp_activations.item[0];
    const bool applies = strcmp(gate, "silu") == 0 || strcmp(gate, "gelu") == 0;
    if (applies) snprintf(gate, ASSAY_TEXT_SIZE, "%s", strcmp(gate, "silu") == 0 ? "gelu" : "silu");
    return applies;
}

bool assay_mutant_no_clamp(assay_case *c)
{
    const bool applies = c->config.mlp_activations_limit > 0;
    c->config.mlp_activations_limit = 1e30;
    return applies;
}

bool assay_mutant_half_capacity(assay_case *c)
{
    const bool applies = c->config.capacity_factor > 0;
    c->config.capacity_factor /= 2;
    return applies;
}

/* Rows that a shard may receive: half of them, or what the balanced case needs where all are kept. */
bool assay_mutant_half_buffer(assay_case *c)
{
    double *factor = &c->config.ragged_buffer_factor;
    *factor = *factor > 0 ? *factor / 2 : 1.0;
    return c->mesh_expert > 1 && !c->config.use_ring_of_experts && c->config.sparse_matmul;
}

bool assay_mutant_no_buffer_limit(assay_case *c)
{
    const bool applies = c->config.ragged_buffer_factor > 0;
    c->config.ragged_buffer_factor = -1.0;
    return applies;
}

bool assay_mutant_padding_unmasked(assay_case *c)
{
    const bool applies = c->config.mask_padding;
    c->config.mask_padding = false;
    return applies;
}

bool assay_mutant_twice_balance_loss(assay_case *c)
{
    const bool applies = c->config.load_balance_loss_weight > 0;
    c->config.load_balance_loss_weight *= 2;
    return applies;
}

bool assay_mutant_one_expert_fewer(assay_case *c)
{
    const bool applies = c->config.num_experts_per_tok > 1;
    c->config.num_experts_per_tok -= 1;
    return applies;
}
