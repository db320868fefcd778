/* The experts of a MoE block: y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]), plus the shared expert's
 * gated MLP of x[t]. */
#include "oracle/spec/spec_internal.h"

void spec_block_free(spec_block *block)
{
    free(block->token);
    free(block->a);
    free(block->b);
    free(block->h);
    free(block->y);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) free(block->gathered[weight]);
}

assay_status spec_block_read(assay_context *ctx, const assay_moe_config *config, const spec_tensors *in,
                             spec_block *block)
{
    assay_status status = ASSAY_OK;
    int64_t experts = config->local_num_experts > 0 ? config->local_num_experts
                                                    : config->routing.num_experts + config->fused_shared_experts;
    int64_t dim = config->emb_dim, width = config->moe_mlp_dim;
    int64_t tokens = config->routing.batch * config->routing.sequence, rows = 0, last = 0;
    int64_t scratch = width > config->shared_mlp_dim ? width : config->shared_mlp_dim;
    block->config = config;
    TRY(spec_read_rows(ctx, in, "inputs/x", &block->x, &rows, &last));
    if (rows != tokens || last != dim) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "'inputs/x' has %lld rows of %lld, expected %lld of %lld",
                            (long long)rows, (long long)last, (long long)tokens, (long long)dim);
        goto cleanup;
    }
    block->experts.config = (assay_gated_mlp_config){.emb_dim = dim,
                                                     .mlp_dim = width,
                                                     .activation = {config->activation, ASSAY_LINEAR},
                                                     .glu = config->glu,
                                                     .limit = config->limit,
                                                     .fused = config->fused_weights};
    block->shared.config = (assay_gated_mlp_config){
        .emb_dim = dim, .mlp_dim = config->shared_mlp_dim, .activation = {config->activation, ASSAY_LINEAR}};
    const assay_tensor_table expert_weights = assay_mlp_weight_table(&block->experts.config, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared_weights = assay_mlp_weight_table(&block->shared.config, ASSAY_MLP_SHARED);
    TRY(spec_read_weights(ctx, &expert_weights, in, experts, block->experts.w));
    TRY(spec_read_weights(ctx, &shared_weights, in, 1, block->shared.w));
    if (config->shared_gate) TRY(spec_read(ctx, in, "weights/shared_expert_gate/kernel", dim, &block->shared_gate));
    TRY(spec_alloc(ctx, dim, &block->token));
    TRY(spec_alloc(ctx, scratch, &block->a));
    TRY(spec_alloc(ctx, scratch, &block->b));
    TRY(spec_alloc(ctx, scratch, &block->h));
    TRY(spec_alloc(ctx, dim, &block->y));
cleanup:
    return status;
}

void spec_block_expert(const spec_block *block, const spec_quad *x, int64_t e)
{
    spec_mlp expert = block->experts;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row row = assay_mlp_weight_row(&expert.config, ASSAY_MLP_ROUTED, weight);
        if (expert.w[weight] != NULL) expert.w[weight] += e * assay_tensor_row_count(&row);
    }
    spec_mlp_row(&expert, x, block->a, block->b, block->h, block->y);
}

void spec_block_choice(const spec_block *block, int64_t choice)
{
    spec_block_expert(block, spec_block_input(block, choice), block->selected[choice]);
    if (!block->weight_before_wo) return;
    for (int64_t d = 0; d < block->config->emb_dim; d++) block->y[d] *= block->weights[choice];
}

const spec_quad *spec_block_input(const spec_block *block, int64_t choice)
{
    const spec_quad *token = spec_block_token(block, choice / block->config->routing.num_experts_per_tok);
    for (int64_t d = 0; block->config->weight_on_input && d < block->config->emb_dim; d++)
        block->token[d] *= block->weights[choice];
    return token;
}

const spec_quad *spec_block_token(const spec_block *block, int64_t t)
{
    int64_t dim = block->config->emb_dim;
    spec_quad factor = block->config->routing.family == ASSAY_ROUTER_LLAMA4 ? spec_sigmoid(block->weights[t]) : 1;
    for (int64_t d = 0; d < dim; d++) block->token[d] = factor * block->x->values[t * dim + d];
    return block->token;
}

int64_t spec_capacity(const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t choices = routing->sequence * routing->num_experts_per_tok;
    int64_t average = (choices + routing->num_experts - 1) / routing->num_experts;
    /* In float64, as Python does it: the product of 10 and 0.7 is 7. */
    double factor = config->capacity_factor, room = (double)average * factor;
    return (int64_t)(room > factor ? room : factor);
}

int64_t spec_block_position(const spec_block *block, int64_t choice)
{
    int64_t in_row = block->config->routing.sequence * block->config->routing.num_experts_per_tok, rank = 0;
    for (int64_t i = choice / in_row * in_row; i < choice; i++) rank += block->selected[i] == block->selected[choice];
    return rank;
}

static void combine_token(const spec_block *block, int64_t t, spec_quad *y)
{
    const assay_moe_config *config = block->config;
    int64_t dim = config->emb_dim, per_token = config->routing.num_experts_per_tok;
    bool llama4 = config->routing.family == ASSAY_ROUTER_LLAMA4, dropping = config->path == ASSAY_MOE_DROPPING;
    for (int64_t d = 0; d < dim; d++) y[d] = 0;
    for (int64_t choice = t * per_token; choice < (t + 1) * per_token; choice++) {
        if (dropping && spec_block_position(block, choice) >= spec_capacity(config)) continue;
        if (block->selected[choice] < 0 || (block->dropped != NULL && block->dropped[choice])) continue;
        spec_block_choice(block, choice);
        spec_quad weight = llama4 || block->weight_before_wo || config->weight_on_input ? 1 : block->weights[choice];
        for (int64_t d = 0; d < dim; d++) y[d] += weight * block->y[d];
    }
    for (int64_t d = 0; config->late_factor != 0 && d < dim; d++) y[d] *= config->late_factor;
    for (int64_t i = 0; i < config->fused_shared_experts; i++) {
        spec_block_expert(block, block->x->values + t * dim, config->routing.num_experts + i);
        for (int64_t d = 0; d < dim; d++) y[d] += block->y[d];
    }
    if (config->shared_mlp_dim == 0) return;
    const spec_quad *x = block->x->values + t * dim;
    spec_quad gate = 1;
    spec_mlp_row(&block->shared, x, block->a, block->b, block->h, block->y);
    if (block->shared_gate != NULL) {
        spec_vector_matrix(dim, 1, x, block->shared_gate, 1, &gate);
        gate = spec_sigmoid(gate);
    }
    for (int64_t d = 0; d < dim; d++) y[d] += gate * block->y[d];
}

void spec_block_combine(const spec_block *block, spec_quad *y)
{
    const assay_moe_config *config = block->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence;
    for (int64_t t = 0; t < tokens; t++) combine_token(block, t, y + t * config->emb_dim);
}
