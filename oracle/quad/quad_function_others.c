/* Functions of the batch-split module that are no part of a layer: tables of rotations, masks, and what is given otherwise. */
#include <quadmath.h>
#include <string.h>

#include "oracle/quad/quad_function.h"
#include "oracle/quad/quad_internal.h"

static void initialize_yarn_mask(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim;
    quad *mask;
    quad_give(c, "outputs/mask", quad_constant(c->t, dim, dim, &mask));
    for (int64_t at = 0; mask != NULL && at < dim * dim; at++) {
        const int64_t i = at / dim, j = at % dim, swapped = i % 2 == 0 ? i + 1 : i - 1;
        mask[at] = swapped == j ? (j % 2 == 0 ? -1 : 1) : 0;
    }
}

static void initialize_yarn_freqs(quad_call *c)
{
    const assay_rope_config *rope = &c->mla->rope;
    const int32_t *positions = c->integers[MB_OTHER_IN][0];
    const int64_t tokens = c->s.shards * c->s.tokens;
    quad *freqs;
    quad_give(c, "outputs/yarn_freqs", quad_constant(c->t, tokens, rope->dim, &freqs));
    for (int64_t i = 0; freqs != NULL && i < tokens * rope->dim; i++)
        freqs[i] = positions[i / rope->dim] * quad_frequency(rope, i % rope->dim / 2);
}

static void yarn(quad_call *c)
{
    const int64_t dim = c->mla->rope.dim, heads = c->mla->heads;
    quad_give(c, "outputs/output",
              quad_turned(c, quad_in(c, "inputs/inputs", heads * dim), quad_in(c, "inputs/freqs", dim)));
}

static void expert_group_mask(quad_call *c)
{
    assay_routing_config config = *c->routing;
    const int64_t experts = config.num_experts, tokens = c->s.shards * c->s.tokens;
    const int64_t groups = config.n_routing_groups > 0 ? config.n_routing_groups : 1;
    bool *allowed = quad_keep(c->t, experts, sizeof *allowed);
    int32_t *selected = quad_keep(c->t, experts, sizeof *selected);
    const quad *logits = quad_values(c->t, quad_in(c, "inputs/gate_logits", experts));
    quad margin, *mask;
    quad_give(c, "outputs/mask", quad_constant(c->t, tokens, experts, &mask));
    /* every allowed expert is chosen */
    config.num_experts_per_tok = experts / groups * (config.n_routing_groups > 0 ? config.topk_routing_group : 1);
    for (int64_t token = 0; c->t->status == ASSAY_OK && token < tokens; token++) {
        c->t->status = quad_select(c->t->ctx, &config, logits + token * experts, allowed, selected, &margin);
        for (int64_t e = 0; c->t->status == ASSAY_OK && e < experts; e++)
            mask[token * experts + e] = allowed[e] ? 1 : 0;
    }
}

static void expert_indices_and_weights(quad_call *c)
{
    const int64_t experts = c->routing->num_experts;
    int32_t *selected = quad_give_indices(c, "outputs/indices");
    quad_give(c, "outputs/weights",
              quad_choose(c, quad_in(c, "inputs/gate_logits", experts), quad_in(c, "inputs/pre_bias_logits", experts),
                          selected));
}

/* Of a shard's part of the tokens the sum over its expert axis, whose gradient a kernel quantises. */
static void quantized_psum_scatter(quad_call *c)
{
    const int64_t parts = c->s.expert_shards, tokens = c->s.tokens, shards = c->s.shards;
    const quad_node x = quad_in(c, "inputs/x", c->mla->emb_dim);
    quad_node *all = quad_keep(c->t, shards, sizeof *all);
    for (int64_t shard = 0; all != NULL && shard < shards; shard++) {
        quad_node sum = 0;
        for (int64_t place = 0; place < parts; place++) {
            const int64_t first = (shard / parts * parts + place) * parts + shard % parts;
            sum = quad_add(c->t, sum, quad_rows_of(c->t, x, first * tokens, tokens));
        }
        all[shard] = quad_quantised_gradient(c->t, sum, c->recipe);
    }
    if (all != NULL) quad_give(c, "outputs/out", quad_concatenate(c->t, all, shards));
}

bool quad_others(quad_call *c)
{
    static const struct {
        const char *name;
        void (*evaluate)(quad_call *c);
    } others[] = {{"initialize_yarn_mask", initialize_yarn_mask},
                  {"initialize_yarn_freqs", initialize_yarn_freqs},
                  {"yarn", yarn},
                  {"expert_group_mask", expert_group_mask},
                  {"expert_indices_and_weights", expert_indices_and_weights},
                  {"quantized_psum_scatter", quantized_psum_scatter}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (strcmp(others[i].name, c->view->name) != 0) continue;
        if (c->t->status == ASSAY_OK) others[i].evaluate(c);
        return true;
    }
    return false;
}
