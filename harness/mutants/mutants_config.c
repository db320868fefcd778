/* Mutants by a changed configuration. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cases/decoder_block.h"
#include "harness/mutants/mutants_tensors.h"
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

bool assay_has_yarn(const assay_case *c)
{
    return is(&c->config.rope_type, "yarn");
}

/* The layout of the pairs goes by the type, but is no part of this error. */
bool assay_edit_other_rope_type(assay_case *c)
{
    c->config.given[ASSAY_KEY_AT_rope_interleave] = true;
    return set_text(&c->config.rope_type, assay_has_yarn(c) ? "default" : "yarn");
}

bool assay_has_one_layer(const assay_case *c)
{
    return !assay_is_stack(c);
}

bool assay_is_no_layer(const assay_case *c)
{
    return !assay_is_layer(c);
}

bool assay_has_windows(const assay_case *c)
{
    return assay_is_layer(c) && assay_block_has(c->config.decoder_block.text, ASSAY_BLOCK_ALTERNATES);
}

bool assay_has_qk_norms(const assay_case *c)
{
    return c->config.use_qk_norm && !c->config.fused_qkv;
}

static bool has_window(const assay_case *c)
{
    const assay_model_config *m = &c->config;
    return m->sliding_window_size > 0 && m->sliding_window_size < c->sequence && !is(&m->attention_type, "global");
}

bool assay_edit_longer_window(assay_case *c)
{
    const bool applies = has_window(c);
    c->config.sliding_window_size += 1;
    return applies;
}

bool assay_edit_no_window(assay_case *c)
{
    const bool applies = has_window(c);
    c->config.sliding_window_size = c->sequence;
    return applies;
}

bool assay_edit_other_query_scale(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->query_pre_attn_scalar = assay_query_scale_of(m) == 1 ? 1 / sqrt((double)m->head_dim) : 1;
    return m->head_dim > 1;
}

/* Flags and whole numbers are numbers too. */
static double changed_number(const assay_key_change *change, double value)
{
    if (change->how == ASSAY_KEY_FLIP) return value == 0.0;
    if (!(value > 0.0)) return value;
    return change->how == ASSAY_KEY_TO ? change->by : value * (change->how == ASSAY_KEY_TIMES ? change->by : value);
}

/* Whether it had another value. */
static bool read_as(const assay_model_key *key, const char *text, assay_model_config *config)
{
    char *at = (char *)config + key->offset, before[ASSAY_KEY_VALUE_SIZE], after[ASSAY_KEY_VALUE_SIZE];
    assay_model_key_text(key, config, before, sizeof before);
    if (key->type == ASSAY_KEY_I) *(int64_t *)(void *)at = strtoll(text, NULL, 10);
    if (key->type == ASSAY_KEY_D) *(double *)(void *)at = strtod(text, NULL);
    if (key->type == ASSAY_KEY_B) *(bool *)at = strcmp(text, "true") == 0;
    if (key->type == ASSAY_KEY_S) set_text((assay_text *)at, text);
    if (key->type == ASSAY_KEY_A) snprintf(at, ASSAY_TEXT_SIZE, "%s", text); /* of the gate */
    assay_model_key_text(key, config, after, sizeof after);
    return strcmp(before, after) != 0;
}

static bool change_key(const assay_key_change *change, assay_model_config *config)
{
    const assay_model_key *key = &assay_model_keys[change->key];
    char *at = (char *)config + key->offset;
    if (change->how == ASSAY_KEY_READ_AS) return read_as(key, change->value, config);
    if (change->how == ASSAY_KEY_ALPHA) {
        config->gate_alpha = change->by;
        return true;
    }
    bool *flag = (bool *)at;
    int64_t *whole = (int64_t *)(void *)at;
    double *number = (double *)(void *)at;
    const bool is_flag = key->type == ASSAY_KEY_B, is_whole = key->type == ASSAY_KEY_I;
    const double before = is_flag ? *flag : is_whole ? (double)*whole : *number;
    const double after = changed_number(change, before);
    if (is_flag) {
        *flag = after != 0.0;
    } else if (is_whole) {
        *whole = (int64_t)after;
    } else {
        *number = after;
    }
    return after != before;
}

bool assay_mutant_configure(const assay_mutant *mutant, assay_case *c)
{
    if (mutant->where != NULL && !mutant->where(c)) return false;
    if (mutant->key.how != ASSAY_KEY_STAYS && !change_key(&mutant->key, &c->config)) return false;
    return mutant->configure == NULL || mutant->configure(c);
}

static bool is_deepseek3(const assay_model_config *m)
{
    return assay_router_family_of(m) == ASSAY_ROUTER_DEEPSEEK3 && m->first_num_hash_layers == 0;
}

static bool divides(const assay_model_config *m)
{
    return is(&m->routed_score_func, "sigmoid") || is(&m->routed_score_func, "sqrtsoftplus");
}

bool assay_edit_not_divided(assay_case *c)
{
    c->config.undivided = true;
    return is_deepseek3(&c->config) && divides(&c->config);
}

bool assay_edit_biased_weights(assay_case *c)
{
    c->config.weigh_biased = c->config.undivided = true;
    return c->config.routed_bias && is_deepseek3(&c->config);
}

/* Of the model that divides: no other one's rule is this. */
bool assay_edit_biased_weights_divided(assay_case *c)
{
    c->config.weigh_biased = true;
    return c->config.routed_bias && is_deepseek3(&c->config) && divides(&c->config);
}

bool assay_edit_other_score(assay_case *c)
{
    assay_text *score = &c->config.routed_score_func;
    if (score->text[0] == '\0') return false;
    return set_text(score, is(score, "softmax") ? "sigmoid" : "softmax");
}

bool assay_edit_other_group_score(assay_case *c)
{
    assay_model_config *m = &c->config;
    const bool sums = is(&m->group_score, "top2_sum") || (m->group_score.text[0] == '\0' && m->routed_bias);
    return m->n_routing_groups > 0 && set_text(&m->group_score, sums ? "max" : "top2_sum");
}

bool assay_edit_no_groups(assay_case *c)
{
    const bool applies = c->config.n_routing_groups > 0;
    c->config.n_routing_groups = c->config.topk_routing_group = -1;
    return applies;
}

bool assay_edit_masked_at_zero(assay_case *c)
{
    c->config.masked_at_zero = true;
    return c->config.n_routing_groups > 0;
}

bool assay_edit_detached_division(assay_case *c)
{
    assay_context ctx = {0}; /* for the message of a case that was checked */
    assay_routing_config config;
    c->config.division_detached = true;
    return assay_routing_config_of(&ctx, c, &config) == ASSAY_OK && assay_routing_divides(&config);
}

bool assay_has_gpt_oss_gate(const assay_case *c)
{
    return strcmp(c->config.decoder_block.text, "gpt_oss") == 0;
}

bool assay_edit_no_shared_gate(assay_case *c)
{
    const bool applies =
        c->config.shared_experts > 0 && assay_block_has(c->config.decoder_block.text, ASSAY_BLOCK_GATED_SHARED);
    return applies && set_text(&c->config.decoder_block, "qwen3_moe");
}

bool assay_has_biased_balance(const assay_case *c)
{
    return c->config.load_balance_loss_weight > 0 && c->config.routed_bias;
}

/* Over a mesh one loss of all shards is one of one device, where each sequence may have densities of its own. */
bool assay_edit_other_densities(assay_case *c)
{
    assay_text *scope = &c->config.load_balance_loss_scope;
    const bool sequence = is(scope, "sequence"), global = is(scope, "global");
    if (global) c->mesh_data = c->mesh_fsdp = c->mesh_expert = c->mesh_tensor = c->config.num_moe_token_chunks = 1;
    if (global) c->config.use_ring_of_experts = false;
    return c->config.load_balance_loss_weight > 0 && set_text(scope, sequence ? "batch" : "sequence");
}

bool assay_edit_other_group_count(assay_case *c)
{
    assay_model_config *m = &c->config;
    m->topk_routing_group += m->topk_routing_group < m->n_routing_groups ? 1 : -1;
    return m->n_routing_groups > 1 && m->topk_routing_group > 0;
}

bool assay_edit_other_interleave(assay_case *c)
{
    c->config.given[ASSAY_KEY_AT_rope_interleave] = true;
    c->config.rope_interleave = !c->config.rope_interleave;
    return true;
}

bool assay_edit_other_epsilon(assay_case *c)
{
    double *epsilon = &c->config.normalization_layer_epsilon, *latent = &c->config.latent_norm_epsilon;
    *epsilon = *epsilon < 5e-6 ? 1e-5 : 1e-6;
    if (*latent != -1.0) *latent = *latent < 5e-6 ? 1e-5 : 1e-6;
    return true;
}

bool assay_edit_double_epsilon(assay_case *c)
{
    const bool changes = c->config.normalization_layer_epsilon > 0 || c->config.latent_norm_epsilon > 0;
    c->config.normalization_layer_epsilon *= 2;
    if (c->config.latent_norm_epsilon > 0) c->config.latent_norm_epsilon *= 2;
    return changes;
}

bool assay_edit_other_windows(assay_case *c)
{
    c->config.windows_in_odd_layers = true;
    return true;
}

bool assay_edit_other_activation(assay_case *c)
{
    char *gate = c->config.mlp_activations.item[0];
    const bool applies = strcmp(gate, "silu") == 0 || strcmp(gate, "gelu") == 0;
    if (applies) snprintf(gate, ASSAY_TEXT_SIZE, "%s", strcmp(gate, "silu") == 0 ? "gelu" : "silu");
    return applies;
}

/* Rows that a shard may receive: half of them, or what the balanced case needs where all are kept. */
bool assay_edit_half_buffer(assay_case *c)
{
    double *factor = &c->config.ragged_buffer_factor;
    *factor = *factor > 0 ? *factor / 2 : 1.0;
    return c->mesh_expert > 1 && !c->config.use_ring_of_experts && c->config.sparse_matmul;
}

/* What is divided is not, and the reverse; a softmax over all is one over the chosen. */
bool assay_edit_other_method(assay_case *c)
{
    static const char *const others[][2] = {
        {"Default", "Renormalize"},      {"Renormalize", "Default"},   {"DeepSeekV3", "Sigmoid"},
        {"RenormalizeNaive", "Default"}, {"TopK", "Renormalize"},      {"SigmoidRenorm", "Sigmoid"},
        {"MiniMax2", "Sigmoid"},         {"Sigmoid", "SigmoidRenorm"}, {"TopKSigmoid", "SigmoidRenorm"},
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (is(&c->config.routing_method, others[i][0])) return set_text(&c->config.routing_method, others[i][1]);
    }
    return false;
}

bool assay_edit_one_expert_fewer(assay_case *c)
{
    const bool applies = c->config.num_experts_per_tok > 1;
    c->config.num_experts_per_tok -= 1;
    return applies;
}
