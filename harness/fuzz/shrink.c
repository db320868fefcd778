#include "harness/fuzz/shrink.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/base/clock.h"

enum { TRIES_MOST = 600, ROUNDS_MOST = 4, KEYS = ASSAY_MODEL_KEYS };

bool assay_shrinking_is_over(const assay_shrinking *s)
{
    return s->tries >= TRIES_MOST || (s->stop != NULL && *s->stop != 0) ||
           (s->deadline > 0 && assay_clock() > s->deadline);
}

/* Whether the case fails alike, and is no known failure. A reason without a name may be any bug's: then the first wrong
 * tensor decides. */
static assay_status fails_alike(assay_context *ctx, assay_shrinking *s, assay_case *c, bool *alike)
{
    OWNED_BY(assay_attempt_free) assay_attempt a = {0};
    *alike = false;
    s->tries++;
    MUST(assay_attempt_make(ctx, s->tried, c, 0, &a));
    if (a.end != ASSAY_ATTEMPT_FAIL || !assay_reason_is_alike(&a.reason, &s->reason)) return ASSAY_OK;
    *alike = a.known == NULL;
    if (s->reason.bug[0] != '\0') MUST(assay_attempt_equals(ctx, &a, s->reason.bug, alike));
    return ASSAY_OK;
}

static assay_status differs(assay_context *ctx, const assay_case *c, const assay_case *other, bool *differ)
{
    OWNED char *one = NULL, *two = NULL;
    MUST(assay_case_to_short_yaml(ctx, c, &one));
    MUST(assay_case_to_short_yaml(ctx, other, &two));
    *differ = strcmp(one, two) != 0;
    return ASSAY_OK;
}

/* `changed` takes the place of the case where it is another one and fails alike; else it is freed. */
static assay_status offer(assay_context *ctx, assay_shrinking *s, assay_case *c, assay_case *changed, bool *taken)
{
    assay_status status;
    bool is_case = false, differ = false;
    *taken = false;
    TRY(assay_draw_settle(ctx, &s->sets, s->tried->profile, changed, &is_case));
    if (is_case) TRY(differs(ctx, c, changed, &differ));
    if (!differ || assay_shrinking_is_over(s)) goto cleanup;
    if (assay_draw_elements(changed, s->tried->profile) > assay_draw_elements(c, s->tried->profile)) goto cleanup;
    TRY(fails_alike(ctx, s, changed, taken));
    if (*taken) {
        const assay_case before = *c;
        *c = *changed;
        *changed = before;
        s->steps++;
    }
cleanup:
    assay_case_free(changed);
    return status;
}

/* With a setting, where it may have it. */
static assay_status offer_set(assay_context *ctx, assay_shrinking *s, assay_case *c, const char *set, bool *taken)
{
    assay_status status;
    assay_case changed = {0};
    *taken = false;
    TRY(assay_case_copy(ctx, c, &changed));
    status = assay_case_set(ctx, &changed, set);
    if (status == ASSAY_OK) return offer(ctx, s, c, &changed, taken);
cleanup:
    assay_case_free(&changed);
    return assay_draw_forgive(ctx, status);
}

/* ---- what is said ---- */

/* Sizes are for later; how halves are paired goes with the type of the rope where it is not given. */
static bool is_option(int key)
{
    return assay_model_keys[key].type != ASSAY_KEY_I && key != ASSAY_KEY_AT_rope_interleave &&
           key != ASSAY_KEY_AT_function;
}

/* Leaves keys [first, first + count) of the list open, all of them or none. */
static assay_status leave_open(assay_context *ctx, assay_shrinking *s, assay_case *c, const int *keys, int count,
                               bool *taken)
{
    assay_case changed = {0};
    MUST(assay_case_copy(ctx, c, &changed));
    for (int i = 0; i < count; i++) assay_case_leave_open(&changed, keys[i]);
    return offer(ctx, s, c, &changed, taken);
}

static assay_status shrink_options(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    int keys[KEYS], count = 0;
    for (int i = 0; i < KEYS; i++) {
        if (is_option(i) && assay_case_says_key(c, i)) keys[count++] = i;
    }
    for (int piece = count; piece > 0; piece /= 2) {
        for (int first = 0; first < count;) {
            const int size = first + piece < count ? piece : count - first;
            bool taken = false;
            MUST(leave_open(ctx, s, c, keys + first, size, &taken));
            if (!taken) {
                first += size;
                continue;
            }
            memmove(keys + first, keys + first + size, (size_t)(count - first - size) * sizeof *keys);
            count -= size;
        }
    }
    return ASSAY_OK;
}

/* Settings of a case that are simplest so. */
static const char *const plain[] = {
    "gradients=none",        "checkpoints=none", "positions.step=1", "positions.start=0", "mesh.data=1", "mesh.fsdp=1",
    "mesh.fsdp_transpose=1", "mesh.expert=1",    "mesh.tensor=1",    "mesh.mlp_tensor=1", "seed=1"};

static assay_status shrink_settings(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        bool taken = false;
        MUST(offer_set(ctx, s, c, plain[i], &taken));
    }
    return ASSAY_OK;
}

/* Operands that are quantised become numbers, where that fails as well. */
static assay_status shrink_formats(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    for (int i = c->quant_format_count - 1; i >= 0; i--) {
        assay_case changed = {0};
        bool taken = false;
        MUST(assay_case_copy(ctx, c, &changed));
        assay_case_drop_quant_format(&changed, i);
        MUST(offer(ctx, s, c, &changed, &taken));
    }
    return ASSAY_OK;
}

/* An exact case is judged by equality: as long as it is one, its numbers stay whole. */
static assay_status shrink_tags(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    assay_case changed = {0};
    bool taken = false;
    if (!assay_case_is_exact(c)) {
        assay_case_drop_tags(c);
        return ASSAY_OK;
    }
    MUST(assay_case_copy(ctx, c, &changed));
    assay_case_drop_tags(&changed);
    return offer(ctx, s, c, &changed, &taken);
}

static assay_status shrink_inputs(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    static const char *const fills[] = {"{distribution: constant, mean: 1}", "{distribution: normal, scale: 1}"};
    if (assay_case_is_exact(c)) return ASSAY_OK;
    for (int i = 0; i < c->input_count;) {
        assay_case changed = {0};
        bool taken = false;
        MUST(assay_case_copy(ctx, c, &changed));
        assay_case_drop_input(&changed, i);
        MUST(offer(ctx, s, c, &changed, &taken));
        i += !taken;
    }
    for (int i = 0; i < c->input_count; i++) {
        const bool is_plain = c->inputs[i].fill.distribution == ASSAY_CONSTANT || c->inputs[i].values != NULL;
        bool taken = is_plain;
        for (size_t f = 0; !taken && f < sizeof fills / sizeof *fills; f++) {
            char set[ASSAY_PATH_SIZE + 64];
            snprintf(set, sizeof set, "inputs.%s=%s", c->inputs[i].path, fills[f]);
            MUST(offer_set(ctx, s, c, set, &taken));
        }
    }
    return ASSAY_OK;
}

/* ---- sizes ---- */

/* A number of the case, by the place of its key in assay_model_keys or one of these. */
enum { BATCH = -1, SEQUENCE = -2, POSITION = -3 };

static int64_t *number_of(assay_case *c, int key)
{
    if (key == BATCH) return &c->batch;
    if (key == SEQUENCE) return &c->sequence;
    if (key == POSITION) return &c->position_start;
    return (int64_t *)((char *)&c->config + assay_model_keys[key].offset);
}

/* What must go with a size for the case to be one: nothing, or what follows. */
typedef enum companion {
    ALONE,
    FEWER_CHOSEN, /* no more experts chosen than there are */
    ONE_CHOSEN,
    NO_GROUPS,    /* and no groups of them */
    FEWER_GROUPS, /* or half as many groups */
    FEWER_HEADS,  /* of keys as of queries */
    LARGE_BIAS,   /* of the router: the usual one seldom decides among few experts */
    COMPANIONS
} companion;

static bool accompany(assay_context *ctx, assay_case *c, int key, companion which)
{
    assay_model_config *m = &c->config;
    const bool experts = key == ASSAY_KEY_AT_num_experts;
    switch (which) {
    case ALONE:
        return true;
    case ONE_CHOSEN:
        if (!experts || m->num_experts_per_tok <= 1) return false;
        m->num_experts_per_tok = 1;
        return true;
    case FEWER_CHOSEN:
    case NO_GROUPS:
    case FEWER_GROUPS:
    case LARGE_BIAS:
        if (!experts) return false;
        if (m->num_experts_per_tok > m->num_experts) m->num_experts_per_tok = m->num_experts;
        if (which == FEWER_CHOSEN) return true;
        if (which == LARGE_BIAS && !m->routed_bias) return false;
        if (which == LARGE_BIAS)
            return assay_case_set(ctx, c, "inputs.weights/gate/bias={distribution: normal, scale: 1}") == ASSAY_OK;
        if (m->n_routing_groups <= 1) return false;
        m->n_routing_groups = which == NO_GROUPS ? -1 : m->n_routing_groups / 2;
        m->topk_routing_group = which == NO_GROUPS ? -1 : (m->topk_routing_group + 1) / 2;
        return true;
    case FEWER_HEADS:
        if (key != ASSAY_KEY_AT_base_num_query_heads || m->base_num_kv_heads <= m->base_num_query_heads) return false;
        m->base_num_kv_heads = m->base_num_query_heads;
        return true;
    case COMPANIONS:
        break;
    }
    return false;
}

/* What a bug needs of the numbers, another choice of experts above all, few of them may have by chance. */
static int seeds_of(int key)
{
    const bool by_chance = key == SEQUENCE || key == BATCH || key == ASSAY_KEY_AT_num_experts;
    return by_chance ? 4 : 1;
}

static assay_status try_size(assay_context *ctx, assay_shrinking *s, assay_case *c, int key, int64_t value, bool *taken)
{
    const int tries = COMPANIONS * seeds_of(key);
    *taken = false;
    for (int i = 0; i < tries && !*taken; i++) {
        assay_case changed = {0};
        MUST(assay_case_copy(ctx, c, &changed));
        *number_of(&changed, key) = value;
        changed.seed += (uint64_t)(i / COMPANIONS);
        if (!accompany(ctx, &changed, key, (companion)(i % COMPANIONS))) {
            assay_case_free(&changed);
            continue;
        }
        MUST(offer(ctx, s, c, &changed, taken));
    }
    return ASSAY_OK;
}

/* The least, then halves, then one and two less. */
static assay_status shrink_size(assay_context *ctx, assay_shrinking *s, assay_case *c, int key, int64_t least)
{
    bool taken = false;
    if (*number_of(c, key) <= least) return ASSAY_OK;
    MUST(try_size(ctx, s, c, key, least, &taken));
    if (taken) return ASSAY_OK;
    do {
        const int64_t half = *number_of(c, key) / 2;
        if (half <= least) break;
        MUST(try_size(ctx, s, c, key, half, &taken));
    } while (taken);
    do {
        taken = false;
        for (int64_t less = 1; less <= 2 && !taken && *number_of(c, key) - less > least; less++)
            MUST(try_size(ctx, s, c, key, *number_of(c, key) - less, &taken));
    } while (taken);
    return ASSAY_OK;
}

static assay_status try_axis(assay_context *ctx, assay_shrinking *s, assay_case *c, int axis, int64_t size, bool *taken)
{
    assay_case changed = {0};
    *taken = false;
    if (size < 1 || size >= c->program->sizes[axis]) return ASSAY_OK;
    MUST(assay_case_copy(ctx, c, &changed));
    const assay_status status = assay_draw_size(ctx, &changed, axis, size);
    if (status == ASSAY_OK) return offer(ctx, s, c, &changed, taken);
    assay_case_free(&changed);
    return assay_draw_forgive(ctx, status);
}

/* Of a program: one, then halves, then one less. */
static assay_status shrink_axes(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    for (int axis = 0; c->program != NULL && axis < ASSAY_PROGRAM_LETTERS; axis++) {
        bool taken = false;
        MUST(try_axis(ctx, s, c, axis, 1, &taken));
        do {
            MUST(try_axis(ctx, s, c, axis, c->program->sizes[axis] / 2, &taken));
        } while (taken);
        do {
            MUST(try_axis(ctx, s, c, axis, c->program->sizes[axis] - 1, &taken));
        } while (taken);
    }
    return ASSAY_OK;
}

/* In this order, since the first make the others cheap; then every other whole number of the configuration. */
static const struct {
    int key;
    int64_t least;
} sizes[] = {
    {SEQUENCE, 1},
    {BATCH, 1},
    {ASSAY_KEY_AT_base_num_decoder_layers, 1},
    {ASSAY_KEY_AT_num_experts, 1},
    {ASSAY_KEY_AT_num_experts_per_tok, 1},
    {ASSAY_KEY_AT_base_emb_dim, 1},
    {ASSAY_KEY_AT_base_moe_mlp_dim, 1},
    {ASSAY_KEY_AT_base_mlp_dim, 1},
    {ASSAY_KEY_AT_base_num_query_heads, 1},
    {POSITION, 0},
};
enum { SIZES = sizeof sizes / sizeof *sizes };

static bool comes_first(int key)
{
    bool found = false;
    for (int i = 0; i < SIZES; i++) found |= sizes[i].key == key;
    return found;
}

static assay_status shrink_sizes(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    for (int i = 0; i < SIZES; i++) MUST(shrink_size(ctx, s, c, sizes[i].key, sizes[i].least));
    for (int i = 0; i < KEYS; i++) {
        bool taken = false;
        if (assay_model_keys[i].type != ASSAY_KEY_I || !assay_case_says_key(c, i)) continue;
        MUST(leave_open(ctx, s, c, &i, 1, &taken)); /* which makes no case larger that does not read it */
        if (!taken && !comes_first(i)) MUST(shrink_size(ctx, s, c, i, assay_model_keys[i].least < 1 ? 0 : 1));
    }
    return ASSAY_OK;
}

/* Numbers that are listed, one after the other. */
static assay_status shrink_values(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    assay_case fitting = {0};
    bool fits = false;
    if (assay_case_is_exact(c)) return ASSAY_OK;
    MUST(assay_case_copy(ctx, c, &fitting));
    assay_draw_fit(&fitting); /* lists have more than such a case reads */
    MUST(offer(ctx, s, c, &fitting, &fits));
    for (int i = 0; i < c->input_count; i++) {
        for (int64_t k = 0; c->inputs[i].values != NULL && k < c->inputs[i].fill.value_count && k < 16; k++) {
            const double value = c->inputs[i].values[k], simpler[] = {0, 1};
            bool taken = false;
            for (int n = 0; n < 2 && !taken && value > simpler[n]; n++) {
                assay_case changed = {0};
                MUST(assay_case_copy(ctx, c, &changed));
                changed.inputs[i].values[k] = simpler[n];
                MUST(offer(ctx, s, c, &changed, &taken));
            }
        }
    }
    return ASSAY_OK;
}

assay_status assay_shrink(assay_context *ctx, assay_shrinking *s, assay_case *c)
{
    static assay_status (*const passes[])(assay_context *, assay_shrinking *, assay_case *) = {
        shrink_tags,   shrink_formats, shrink_settings, shrink_options,
        shrink_inputs, shrink_sizes,   shrink_axes,     shrink_values};
    for (int round = 0, steps = -1; round < ROUNDS_MOST && steps != s->steps && !assay_shrinking_is_over(s); round++) {
        steps = s->steps;
        for (size_t i = 0; i < sizeof passes / sizeof *passes; i++) MUST(passes[i](ctx, s, c));
    }
    return ASSAY_OK;
}
