/* The experts of a MoE block: y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]), plus the shared expert's
 * gated MLP of x[t]. */
#include "oracle/spec/spec_internal.h"

enum { ROWS = 2048 }; /* that an expert computes at a time */

void spec_block_free(spec_block *block)
{
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
cleanup:
    return status;
}

/* Expert e of `experts`. */
static spec_mlp expert_of(const spec_mlp *experts, int64_t e)
{
    spec_mlp expert = *experts;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const assay_tensor_row row = assay_mlp_weight_row(&expert.config, ASSAY_MLP_ROUTED, weight);
        if (expert.w[weight] != NULL) expert.w[weight] += e * assay_tensor_row_count(&row);
    }
    return expert;
}

/* Token t as its experts get it: llama4 scales it by the sigmoid of its weight. */
static void take_token(const spec_block *block, int64_t t, spec_quad *to)
{
    const int64_t dim = block->config->emb_dim;
    const spec_quad factor = block->config->routing.family == ASSAY_ROUTER_LLAMA4 ? spec_sigmoid(block->weights[t]) : 1;
    for (int64_t d = 0; d < dim; d++) to[d] = factor * block->x->values[t * dim + d];
}

static void take_row(const spec_block *block, const spec_block_row *row, spec_quad *to)
{
    const int64_t dim = block->config->emb_dim;
    if (row->choice >= 0) {
        take_token(block, row->choice / block->config->routing.num_experts_per_tok, to);
        for (int64_t d = 0; block->config->weight_on_input && d < dim; d++) to[d] *= block->weights[row->choice];
    } else if (row->token >= 0) {
        take_token(block, row->token, to);
    } else {
        for (int64_t d = 0; d < dim; d++) to[d] = 0;
    }
}

/* Rows [0,count) of x, which are those of `places`, by one expert. */
static assay_status compute_expert(assay_context *ctx, const spec_block *block, const spec_mlp *expert,
                                   const spec_block_rows *rows, int64_t count, const int64_t *places,
                                   const spec_quad *x)
{
    assay_status status;
    const int64_t dim = expert->config.emb_dim, width = expert->config.mlp_dim;
    spec_mlp_values values = {0};
    TRY(spec_mlp_values_alloc(ctx, &expert->config, count, &values));
    TRY(spec_mlp_rows(ctx, expert, count, x, &values));
    for (int64_t i = 0; i < count; i++) {
        const int64_t choice = rows->rows[places[i]].choice;
        spec_quad *y = values.y + i * dim;
        for (int64_t d = 0; choice >= 0 && block->weight_before_wo && d < dim; d++) y[d] *= block->weights[choice];
        rows->keep(rows->self, places[i], values.a + i * width, values.b + i * width, values.h + i * width, y);
    }
cleanup:
    spec_mlp_values_free(&values);
    return status;
}

static assay_status keep_zeros(assay_context *ctx, const spec_block *block, const spec_block_rows *rows)
{
    assay_status status;
    const assay_gated_mlp_config *config = &block->experts.config;
    const int64_t most = config->mlp_dim > config->emb_dim ? config->mlp_dim : config->emb_dim;
    spec_quad *zeros = NULL;
    TRY(spec_alloc(ctx, most, &zeros));
    for (int64_t i = 0; i < most; i++) zeros[i] = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->rows[i].expert < 0) rows->keep(rows->self, i, zeros, zeros, zeros, zeros);
    }
cleanup:
    free(zeros);
    return status;
}

/* Expert by expert, so that each one's weights are gone through once. */
assay_status spec_block_compute(assay_context *ctx, const spec_block *block, const spec_block_rows *rows)
{
    assay_status status;
    const int64_t dim = block->config->emb_dim;
    const int64_t room = rows->count < ROWS ? rows->count : ROWS;
    spec_quad *x = NULL;
    void *places = NULL;
    int64_t experts = 0;
    TRY(keep_zeros(ctx, block, rows));
    TRY(spec_alloc(ctx, room * dim, &x));
    TRY(assay_alloc(ctx, "rows of an expert", room, sizeof(int64_t), &places));
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->rows[i].expert >= experts) experts = rows->rows[i].expert + 1;
    }
    for (int64_t e = 0; e < experts; e++) {
        const spec_mlp expert = expert_of(&block->experts, e);
        int64_t count = 0;
        for (int64_t i = 0; i < rows->count; i++) {
            if (rows->rows[i].expert != e) continue;
            take_row(block, &rows->rows[i], x + count * dim);
            ((int64_t *)places)[count++] = i;
            if (count < room) continue;
            TRY(compute_expert(ctx, block, &expert, rows, count, places, x));
            count = 0;
        }
        if (count > 0) TRY(compute_expert(ctx, block, &expert, rows, count, places, x));
    }
cleanup:
    free(x);
    free(places);
    return status;
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

/* Where rows are added up. */
typedef struct sum {
    const spec_block *block;
    const spec_block_row *rows;
    spec_quad *y; /* [T,D] */
} sum;

static void add_row(void *self, int64_t row, const spec_quad *a, const spec_quad *b, const spec_quad *h,
                    const spec_quad *y)
{
    const sum *to = self;
    const assay_moe_config *config = to->block->config;
    const int64_t choice = to->rows[row].choice, dim = config->emb_dim;
    const int64_t token = choice >= 0 ? choice / config->routing.num_experts_per_tok : to->rows[row].token;
    const bool weighted = choice < 0 || config->routing.family == ASSAY_ROUTER_LLAMA4 || to->block->weight_before_wo ||
                          config->weight_on_input;
    const spec_quad weight = weighted ? 1 : to->block->weights[choice];
    (void)a;
    (void)b;
    (void)h;
    for (int64_t d = 0; d < dim; d++) to->y[token * dim + d] += weight * y[d];
}

/* y += the experts of all choices that have room. */
static assay_status add_routed(assay_context *ctx, const spec_block *block, spec_block_row *rows, spec_quad *y)
{
    const assay_moe_config *config = block->config;
    const int64_t choices = config->routing.batch * config->routing.sequence * config->routing.num_experts_per_tok;
    const bool dropping = config->path == ASSAY_MOE_DROPPING;
    sum to = {.block = block, .rows = rows, .y = y};
    spec_block_rows list = {.rows = rows, .keep = add_row, .self = &to};
    for (int64_t choice = 0; choice < choices; choice++) {
        if (dropping && spec_block_position(block, choice) >= spec_capacity(config)) continue;
        if (block->selected[choice] < 0 || (block->dropped != NULL && block->dropped[choice])) continue;
        rows[list.count++] = (spec_block_row){.expert = block->selected[choice], .choice = choice};
    }
    return spec_block_compute(ctx, block, &list);
}

/* y += the experts behind the routed ones, which every token goes to. */
static assay_status add_fused(assay_context *ctx, const spec_block *block, spec_block_row *rows, spec_quad *y)
{
    const assay_moe_config *config = block->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence;
    sum to = {.block = block, .rows = rows, .y = y};
    for (int64_t i = 0; i < tokens * config->fused_shared_experts; i++) {
        rows[i] =
            (spec_block_row){.expert = config->routing.num_experts + i / tokens, .choice = -1, .token = i % tokens};
    }
    return spec_block_compute(
        ctx, block,
        &(spec_block_rows){.rows = rows, .count = tokens * config->fused_shared_experts, .keep = add_row, .self = &to});
}

assay_status spec_block_shared(assay_context *ctx, const spec_block *block, const spec_mlp_values *to)
{
    const int64_t tokens = block->config->routing.batch * block->config->routing.sequence;
    return spec_mlp_rows(ctx, &block->shared, tokens, block->x->values, to);
}

/* y += the shared expert, under its gate. */
static assay_status add_shared(assay_context *ctx, const spec_block *block, spec_quad *y)
{
    assay_status status;
    const int64_t tokens = block->config->routing.batch * block->config->routing.sequence;
    const int64_t dim = block->config->emb_dim;
    spec_mlp_values values = {0};
    TRY(spec_mlp_values_alloc(ctx, &block->shared.config, tokens, &values));
    TRY(spec_block_shared(ctx, block, &values));
    for (int64_t t = 0; t < tokens; t++) {
        spec_quad gate = 1;
        if (block->shared_gate != NULL) {
            spec_vector_matrix(dim, 1, block->x->values + t * dim, block->shared_gate, 1, &gate);
            gate = spec_sigmoid(gate);
        }
        for (int64_t d = 0; d < dim; d++) y[t * dim + d] += gate * values.y[t * dim + d];
    }
cleanup:
    spec_mlp_values_free(&values);
    return status;
}

assay_status spec_block_combine(assay_context *ctx, const spec_block *block, spec_quad *y)
{
    assay_status status;
    const assay_moe_config *config = block->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence, count = tokens * config->emb_dim;
    void *rows = NULL;
    TRY(assay_alloc(ctx, "rows of experts",
                    tokens * (config->routing.num_experts_per_tok + config->fused_shared_experts),
                    sizeof(spec_block_row), &rows));
    for (int64_t i = 0; i < count; i++) y[i] = 0;
    TRY(add_routed(ctx, block, rows, y));
    for (int64_t i = 0; config->late_factor != 0 && i < count; i++) y[i] *= config->late_factor;
    TRY(add_fused(ctx, block, rows, y));
    if (config->shared_mlp_dim > 0) TRY(add_shared(ctx, block, y));
cleanup:
    free(rows);
    return status;
}
