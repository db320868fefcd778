/* The experts of a MoE block: y[t] = sum over k of weights[t,k] * expert(selected[t,k])(x[t]), plus the shared expert's
 * gated MLP of x[t]. */
#include <string.h>

#include "oracle/quad/quad_internal.h"

enum { ROWS = 2048 }; /* that an expert computes at a time */

void quad_block_free(quad_block *block)
{
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) free(block->gathered[weight]);
    free(block->held_rows);
}

static int64_t slots_of(const assay_moe_config *config)
{
    return config->routing.num_experts_per_tok + config->fused_shared_experts;
}

assay_status quad_block_hold(assay_context *ctx, const quad_tensors *in, const quad_tensor *order, quad_block *block)
{
    assay_status status = ASSAY_OK;
    const assay_moe_config *config = block->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence, copies = tokens * slots_of(config);
    const bool dense = config->path == ASSAY_MOE_DENSE;
    const int64_t rows = dense ? tokens * config->routing.num_experts : copies;
    void *places = NULL;
    if (config->hidden.format == NULL) return ASSAY_OK;
    TRY(quad_read_optional(ctx, in, "checkpoints/moe_intermediate", rows * config->moe_mlp_dim, &block->held));
    if (config->shared_mlp_dim > 0)
        TRY(quad_read_optional(ctx, in, "checkpoints/mlp_intermediate", tokens * config->shared_mlp_dim,
                               &block->held_shared));
    if (dense || block->held == NULL) goto cleanup;
    TRY(assay_alloc(ctx, "rows of h", copies, sizeof *block->held_rows, &places));
    block->held_rows = places;
    for (int64_t i = 0; i < copies; i++) block->held_rows[i] = -1;
    for (int64_t row = 0; row < copies; row++) {
        if (order->indices[row] >= 0) block->held_rows[order->indices[row]] = row;
    }
cleanup:
    return status;
}

/* h that the codes of a row are of; NULL: its own. */
static const quad *held_of(const quad_block_row *row)
{
    const quad_block *block = row->block;
    const assay_moe_config *config = block->config;
    const int64_t k = config->routing.num_experts_per_tok, experts = config->routing.num_experts;
    const int64_t token = row->choice >= 0 ? row->choice / k : row->token;
    if (token < 0) return NULL;
    if (row->expert == QUAD_EXPERT_SHARED)
        return block->held_shared == NULL ? NULL : block->held_shared + token * config->shared_mlp_dim;
    if (block->held == NULL) return NULL;
    if (config->path == ASSAY_MOE_DENSE) return block->held + (token * experts + row->expert) * config->moe_mlp_dim;
    const int64_t slot = row->choice >= 0 ? row->choice % k : k + row->expert - experts;
    const int64_t place = block->held_rows[token * slots_of(config) + slot];
    return place < 0 ? NULL : block->held + place * config->moe_mlp_dim;
}

assay_status quad_block_read(assay_context *ctx, const assay_moe_config *config, const quad_tensors *in,
                             quad_block *block)
{
    assay_status status = ASSAY_OK;
    int64_t experts = config->local_num_experts > 0 ? config->local_num_experts
                                                    : config->routing.num_experts + config->fused_shared_experts;
    int64_t dim = config->emb_dim, width = config->moe_mlp_dim;
    int64_t tokens = config->routing.batch * config->routing.sequence, rows = 0, last = 0;
    block->config = config;
    TRY(quad_read_rows(ctx, in, "inputs/x", &block->x, &rows, &last));
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
                                                     .fused = config->fused_weights,
                                                     .hidden = config->hidden};
    block->shared.config = (assay_gated_mlp_config){.emb_dim = dim,
                                                    .mlp_dim = config->shared_mlp_dim,
                                                    .activation = {config->activation, ASSAY_LINEAR},
                                                    .hidden = config->hidden};
    const assay_tensor_table expert_weights = assay_mlp_weight_table(&block->experts.config, ASSAY_MLP_ROUTED);
    const assay_tensor_table shared_weights = assay_mlp_weight_table(&block->shared.config, ASSAY_MLP_SHARED);
    TRY(quad_read_weights(ctx, &expert_weights, in, experts, block->experts.w, block->streams));
    TRY(quad_read_weights(ctx, &shared_weights, in, 1, block->shared.w, NULL));
    if (config->shared_gate) TRY(quad_read(ctx, in, "weights/shared_expert_gate/kernel", dim, &block->shared_gate));
cleanup:
    return status;
}

assay_status quad_block_rows_alloc(assay_context *ctx, int64_t count, quad_block_row **rows)
{
    void *memory = NULL;
    const assay_status status = assay_alloc(ctx, "rows of experts", count, sizeof **rows, &memory);
    *rows = memory;
    return status;
}

/* Numbers of one expert in a tensor of weights. */
static int64_t weight_count(const quad_mlp *experts, int weight)
{
    const assay_tensor_row row = assay_mlp_weight_row(&experts->config, ASSAY_MLP_ROUTED, weight);
    return assay_tensor_row_count(&row);
}

/* The weights of an expert; those that are read are `loaded`'s. */
static assay_status load_expert(assay_context *ctx, const quad_block *block, int64_t e,
                                quad *loaded[ASSAY_MLP_WEIGHTS], quad_mlp *expert)
{
    assay_status status = ASSAY_OK;
    *expert = e == QUAD_EXPERT_SHARED ? block->shared : block->experts;
    for (int weight = 0; e != QUAD_EXPERT_SHARED && weight < ASSAY_MLP_WEIGHTS; weight++) {
        const quad_tensor *stream = block->streams[weight];
        if (expert->w[weight] == NULL && stream == NULL) continue;
        const int64_t count = weight_count(expert, weight);
        if (stream == NULL) {
            expert->w[weight] += e * count;
            continue;
        }
        if (loaded[weight] == NULL) TRY(quad_alloc(ctx, count, &loaded[weight]));
        TRY(quad_read_piece(ctx, stream, e * count, count, loaded[weight]));
        expert->w[weight] = loaded[weight];
    }
cleanup:
    return status;
}

/* Whether an expert is the same in two blocks, bit for bit. */
static bool same_expert(const quad_block *a, const quad_block *b, int64_t e)
{
    const bool shared = e == QUAD_EXPERT_SHARED;
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) {
        const quad *of_a = shared ? a->shared.w[weight] : a->experts.w[weight];
        const quad *of_b = shared ? b->shared.w[weight] : b->experts.w[weight];
        if (!shared && a->streams[weight] != b->streams[weight] &&
            (a->streams[weight] == NULL || b->streams[weight] == NULL ||
             a->streams[weight]->source != b->streams[weight]->source)) {
            return false;
        }
        if (of_a == of_b) continue;
        const assay_tensor_row row = assay_mlp_weight_row(shared ? &a->shared.config : &a->experts.config,
                                                          shared ? ASSAY_MLP_SHARED : ASSAY_MLP_ROUTED, weight);
        const int64_t count = assay_tensor_row_count(&row), first = shared ? 0 : e * count;
        if (of_a == NULL || of_b == NULL) return false;
        if (memcmp(of_a + first, of_b + first, (size_t)count * sizeof *of_a) != 0) return false;
    }
    return true;
}

/* Token t as its experts get it: llama4 scales it by the sigmoid of its weight. */
static void take_token(const quad_block *block, int64_t t, quad *to)
{
    const int64_t dim = block->config->emb_dim;
    const quad factor = block->config->routing.family == ASSAY_ROUTER_LLAMA4 ? quad_sigmoid(block->weights[t]) : 1;
    for (int64_t d = 0; d < dim; d++) to[d] = factor * block->x->values[t * dim + d];
}

static void take_row(const quad_block_row *row, quad *to)
{
    const quad_block *block = row->block;
    const int64_t dim = block->config->emb_dim;
    if (row->expert == QUAD_EXPERT_SHARED) {
        memcpy(to, block->x->values + row->token * dim, (size_t)dim * sizeof *to);
    } else if (row->choice >= 0) {
        take_token(block, row->choice / block->config->routing.num_experts_per_tok, to);
        for (int64_t d = 0; block->config->weight_on_input && d < dim; d++) to[d] *= block->weights[row->choice];
    } else if (row->token >= 0) {
        take_token(block, row->token, to);
    } else {
        for (int64_t d = 0; d < dim; d++) to[d] = 0;
    }
}

/* The rows that one expert gets, as far as it is the same. */
typedef struct batch {
    const quad_block_rows *rows;
    quad *x;            /* [ROWS,D]: those that differ */
    const quad **held;  /* [ROWS]: h that their codes are of */
    quad *weighted;     /* [D]: scratch */
    int64_t *places, *which; /* [rows->count]: rows of the list, and the row of x that each of them is */
    int64_t *of_choice;      /* [choices or tokens]: the row of x that the choice, or token, was first; -1 */
    int64_t count, differing, keys;
    bool *taken;                          /* [rows->count] */
    quad *loaded[ASSAY_MLP_WEIGHTS]; /* of one expert */
} batch;

static void empty(batch *s)
{
    s->count = s->differing = 0;
    for (int64_t i = 0; i < s->keys; i++) s->of_choice[i] = -1;
}

static void add(batch *s, int64_t place)
{
    const quad_block_row *row = &s->rows->rows[place];
    const int64_t dim = row->block->config->emb_dim, key = row->choice >= 0 ? row->choice : row->token;
    quad *x = s->x + s->differing * dim;
    take_row(row, x);
    int64_t which = key < 0 ? -1 : s->of_choice[key];
    if (which < 0 || memcmp(x, s->x + which * dim, (size_t)dim * sizeof *x) != 0) {
        which = s->differing++;
        s->held[which] = held_of(row);
        if (key >= 0 && s->of_choice[key] < 0) s->of_choice[key] = which;
    }
    s->places[s->count] = place;
    s->which[s->count++] = which;
}

static void keep(const batch *s, int64_t i, const quad_mlp_values *values, int64_t width, int64_t dim)
{
    const int64_t place = s->places[i], at = s->which[i], choice = s->rows->rows[place].choice;
    const quad_block *block = s->rows->rows[place].block;
    const quad *y = values->y + at * dim;
    if (choice >= 0 && block->weight_before_wo) {
        for (int64_t d = 0; d < dim; d++) s->weighted[d] = block->weights[choice] * y[d];
        y = s->weighted;
    }
    s->rows->keep(s->rows->self, place, values->a + at * width, values->b + at * width, values->h + at * width, y);
}

static assay_status compute_batch(assay_context *ctx, batch *s, const quad_mlp *expert)
{
    assay_status status;
    quad_mlp_values values = {.held = s->held};
    TRY(quad_mlp_values_alloc(ctx, &expert->config, s->differing, &values));
    TRY(quad_mlp_rows(ctx, expert, s->differing, s->x, &values));
    for (int64_t i = 0; i < s->count; i++) keep(s, i, &values, expert->config.mlp_dim, expert->config.emb_dim);
    empty(s);
cleanup:
    quad_mlp_values_free(&values);
    return status;
}

/* The rows of expert e from `first` on whose block has it as the first row's has; they are taken. */
static assay_status compute_same(assay_context *ctx, batch *s, int64_t first, int64_t e)
{
    assay_status status;
    const quad_block *leader = s->rows->rows[first].block, *block = leader;
    bool same = true;
    quad_mlp expert;
    TRY(load_expert(ctx, leader, e, s->loaded, &expert));
    empty(s);
    for (int64_t i = first; i < s->rows->count; i++) {
        const quad_block_row *row = &s->rows->rows[i];
        if (row->expert != e || s->taken[i]) continue;
        if (row->block != block) same = same_expert(leader, row->block, e);
        block = row->block;
        if (!same) continue;
        s->taken[i] = true;
        add(s, i);
        if (s->differing == ROWS) TRY(compute_batch(ctx, s, &expert));
    }
    if (s->count > 0) TRY(compute_batch(ctx, s, &expert));
cleanup:
    return status;
}

static assay_status keep_zeros(assay_context *ctx, const quad_block_rows *rows)
{
    assay_status status;
    const assay_gated_mlp_config *config = &rows->rows[0].block->experts.config;
    const int64_t most = config->mlp_dim > config->emb_dim ? config->mlp_dim : config->emb_dim;
    quad *zeros = NULL;
    TRY(quad_alloc(ctx, most, &zeros));
    for (int64_t i = 0; i < most; i++) zeros[i] = 0;
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->rows[i].expert == QUAD_EXPERT_NONE) rows->keep(rows->self, i, zeros, zeros, zeros, zeros);
    }
cleanup:
    free(zeros);
    return status;
}

static assay_status alloc_batch(assay_context *ctx, batch *s)
{
    assay_status status;
    const assay_moe_config *config = s->rows->rows[0].block->config;
    const int64_t count = s->rows->count, room = count < ROWS ? count : ROWS;
    void *places = NULL, *which = NULL, *of_choice = NULL, *taken = NULL, *held = NULL;
    s->keys = config->routing.batch * config->routing.sequence * config->routing.num_experts_per_tok;
    TRY(quad_alloc(ctx, (room + 1) * config->emb_dim, &s->x)); /* and one that turns out to be there already */
    TRY(assay_alloc(ctx, "rows of h", room + 1, sizeof *s->held, &held));
    s->held = held;
    TRY(quad_alloc(ctx, config->emb_dim, &s->weighted));
    TRY(assay_alloc(ctx, "rows of an expert", count, sizeof *s->places, &places));
    s->places = places;
    TRY(assay_alloc(ctx, "rows of an expert", count, sizeof *s->which, &which));
    s->which = which;
    TRY(assay_alloc(ctx, "rows of an expert", s->keys, sizeof *s->of_choice, &of_choice));
    s->of_choice = of_choice;
    TRY(assay_alloc(ctx, "rows of an expert", count, sizeof *s->taken, &taken));
    s->taken = taken;
    for (int64_t i = 0; i < count; i++) s->taken[i] = false;
cleanup:
    return status;
}

assay_status quad_block_compute(assay_context *ctx, const quad_block_rows *rows)
{
    assay_status status;
    batch s = {.rows = rows};
    int64_t experts = 0;
    if (rows->count == 0) return ASSAY_OK;
    TRY(keep_zeros(ctx, rows));
    TRY(alloc_batch(ctx, &s));
    for (int64_t i = 0; i < rows->count; i++) {
        if (rows->rows[i].expert >= experts) experts = rows->rows[i].expert + 1;
    }
    for (int64_t e = QUAD_EXPERT_SHARED; e < experts; e++) {
        for (int64_t i = 0; e != QUAD_EXPERT_NONE && i < rows->count; i++) {
            if (rows->rows[i].expert == e && !s.taken[i]) TRY(compute_same(ctx, &s, i, e));
        }
    }
cleanup:
    free(s.x);
    free(s.held);
    free(s.weighted);
    free(s.places);
    free(s.which);
    free(s.of_choice);
    free(s.taken);
    for (int weight = 0; weight < ASSAY_MLP_WEIGHTS; weight++) free(s.loaded[weight]);
    return status;
}

int64_t quad_capacity(const assay_moe_config *config)
{
    const assay_routing_config *routing = &config->routing;
    int64_t choices = routing->sequence * routing->num_experts_per_tok;
    int64_t average = (choices + routing->num_experts - 1) / routing->num_experts;
    /* In float64, as Python does it: the product of 10 and 0.7 is 7. */
    double factor = config->capacity_factor, room = (double)average * factor;
    return (int64_t)(room > factor ? room : factor);
}

int64_t quad_block_position(const quad_block *block, int64_t choice)
{
    int64_t in_row = block->config->routing.sequence * block->config->routing.num_experts_per_tok, rank = 0;
    for (int64_t i = choice / in_row * in_row; i < choice; i++) rank += block->selected[i] == block->selected[choice];
    return rank;
}

/* What an expert's y of a row counts for. */
static quad weight_of(const quad_block_row *row)
{
    const quad_block *block = row->block;
    const int64_t dim = block->config->emb_dim;
    quad gate = 0;
    if (row->expert == QUAD_EXPERT_SHARED && block->shared_gate != NULL) {
        quad_vector_matrix(dim, 1, block->x->values + row->token * dim, block->shared_gate, 1, &gate);
        return quad_sigmoid(gate);
    }
    const bool weighted = row->choice < 0 || block->config->routing.family == ASSAY_ROUTER_LLAMA4 ||
                          block->weight_before_wo || block->config->weight_on_input;
    return weighted ? 1 : block->weights[row->choice];
}

static void add_row(void *self, int64_t at, const quad *a, const quad *b, const quad *h,
                    const quad *y)
{
    const quad_block_row *row = (const quad_block_row *)self + at;
    const assay_moe_config *config = row->block->config;
    const int64_t dim = config->emb_dim;
    const int64_t token = row->choice >= 0 ? row->choice / config->routing.num_experts_per_tok : row->token;
    const quad weight = weight_of(row);
    quad *sum = row->block->y + token * dim;
    (void)a;
    (void)b;
    (void)h;
    for (int64_t d = 0; d < dim; d++) sum[d] += weight * y[d];
}

/* All choices that have room. Returns how many. */
static int64_t list_routed(const quad_block *block, quad_block_row *rows)
{
    const assay_moe_config *config = block->config;
    const int64_t choices = config->routing.batch * config->routing.sequence * config->routing.num_experts_per_tok;
    const bool dropping = config->path == ASSAY_MOE_DROPPING;
    int64_t count = 0;
    for (int64_t choice = 0; choice < choices; choice++) {
        if (dropping && quad_block_position(block, choice) >= quad_capacity(config)) continue;
        if (block->selected[choice] < 0 || (block->dropped != NULL && block->dropped[choice])) continue;
        rows[count++] = (quad_block_row){.block = block, .expert = block->selected[choice], .choice = choice};
    }
    return count;
}

/* The experts that every token goes to: those behind the routed ones, and the shared one. */
static int64_t list_shared(const quad_block *block, quad_block_row *rows)
{
    const assay_moe_config *config = block->config;
    const int64_t tokens = config->routing.batch * config->routing.sequence, fused = config->fused_shared_experts;
    const int64_t each = fused + (config->shared_mlp_dim > 0);
    for (int64_t i = 0; i < tokens * each; i++) {
        const int64_t number = i / tokens, expert = config->routing.num_experts + number;
        rows[i] = (quad_block_row){
            .block = block, .expert = number < fused ? expert : QUAD_EXPERT_SHARED, .choice = -1, .token = i % tokens};
    }
    return tokens * each;
}

assay_status quad_block_combine(assay_context *ctx, int count, const quad_block *blocks)
{
    assay_status status;
    const assay_moe_config *config = blocks[0].config;
    const int64_t tokens = config->routing.batch * config->routing.sequence, size = tokens * config->emb_dim;
    const int64_t k = config->routing.num_experts_per_tok, shared = config->fused_shared_experts + 1;
    quad_block_row *rows = NULL;
    TRY(quad_block_rows_alloc(ctx, count * tokens * (k > shared ? k : shared), &rows));
    quad_block_rows routed = {.rows = rows, .keep = add_row, .self = rows}, others = routed;
    for (int block = 0; block < count; block++) {
        for (int64_t i = 0; i < size; i++) blocks[block].y[i] = 0;
        routed.count += list_routed(&blocks[block], rows + routed.count);
    }
    TRY(quad_block_compute(ctx, &routed));
    for (int block = 0; block < count; block++) {
        for (int64_t i = 0; config->late_factor != 0 && i < size; i++) blocks[block].y[i] *= config->late_factor;
        others.count += list_shared(&blocks[block], rows + others.count);
    }
    TRY(quad_block_compute(ctx, &others));
cleanup:
    free(rows);
    return status;
}
