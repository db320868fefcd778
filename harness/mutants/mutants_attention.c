/* Mutants by which keys a query sees. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"

/* Segment 0 is padding where padding is masked. */
static bool is_blind(const assay_mutation *m, const assay_tensor *segments, int64_t token)
{
    return m->c->config.mask_padding && segments != NULL && segments->indices[token] == 0;
}

/* Rows of padded tokens; a token has as many numbers as the axes after B and S. */
static bool blind_rows_to_nan(const assay_mutation *m, const char *path)
{
    assay_tensor *tensor = assay_tensor_set_find(m->tensors, path);
    const assay_tensor *segments = assay_tensor_set_find(m->tensors, "inputs/segment_ids");
    bool changed = false;
    if (tensor == NULL) return false;
    const int64_t size = assay_axes_product(&tensor->spec.shape, 2, tensor->spec.shape.rank);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (!is_blind(m, segments, i / size)) continue;
        tensor->values[i] = (double)NAN;
        changed = true;
    }
    return changed;
}

/* What was divided by a sum of 0. Of what follows only the product with the output's weights sees them: masked queries
 * and keys have no other gradient. */
bool assay_edit_blind_rows_to_nan(const assay_mutation *m)
{
    if (strcmp(m->c->op, "attention") == 0) return blind_rows_to_nan(m, "outputs/attention_out");
    const bool changed = blind_rows_to_nan(m, "outputs/y");
    assay_tensor *weight = assay_tensor_set_find(m->tensors, "gradients/weights/out/kernel");
    blind_rows_to_nan(m, "checkpoints/attention_out");
    blind_rows_to_nan(m, "checkpoints/out_proj");
    if (changed && weight != NULL) assay_fill_values(weight, 0, (double)NAN);
    return changed;
}

/* --- the next key --- */

/* Attention minds the order of tokens only where it masks: its keys are a set, and each token has a position of its
 * own. So where tokens t and t + 1 change places, t sees t + 1 and all that it saw, and nothing of its own is
 * different. One evaluation serves every other token: those of the part, even or odd. A token whose next one is in
 * another segment, or does not exist, stays. */
typedef struct exchange {
    const assay_tensor *segments;
    int64_t sequence, part;
} exchange;

static bool goes_on(const exchange *x, int64_t batch, int64_t token)
{
    if (token % 2 != x->part || token + 1 >= x->sequence) return false;
    const int64_t at = batch * x->sequence + token;
    return x->segments == NULL || x->segments->indices[at] == x->segments->indices[at + 1];
}

/* The row where a token of the batch row goes, and the token that comes from there. */
static int64_t other_place(const exchange *x, int64_t batch, int64_t token)
{
    if (goes_on(x, batch, token)) return token + 1;
    return token > 0 && goes_on(x, batch, token - 1) ? token - 1 : token;
}

/* A tensor with an axis of tokens, as blocks of numbers that a token has side by side. */
typedef struct blocks {
    int64_t outer, each_batch, inner; /* before the tokens; of those, in a batch row; after the tokens */
} blocks;

static bool blocks_of(const assay_tensor *tensor, blocks *b)
{
    const assay_shape *shape = &tensor->spec.shape;
    const int axis = assay_tensor_axis(tensor, "S");
    if (axis < 1 || assay_tensor_axis(tensor, "B") != 0) return false;
    *b = (blocks){.outer = assay_axes_product(shape, 0, axis),
                  .each_batch = assay_axes_product(shape, 1, axis),
                  .inner = assay_axes_product(shape, axis + 1, shape->rank)};
    return true;
}

static void exchange_rows(const exchange *x, const blocks *b, assay_tensor *tensor)
{
    for (int64_t o = 0; o < b->outer; o++) {
        for (int64_t token = 0; token < x->sequence; token++) {
            if (!goes_on(x, o / b->each_batch, token)) continue;
            const int64_t at = (o * x->sequence + token) * b->inner, next = at + b->inner;
            for (int64_t k = 0; k < b->inner; k++) {
                if (tensor->values != NULL) assay_swap_values(tensor->values + at + k, tensor->values + next + k, 1);
                if (tensor->indices != NULL) assay_swap_indices(&tensor->indices[at + k], &tensor->indices[next + k]);
            }
        }
    }
}

static void keep_part(const exchange *x, const blocks *b, assay_tensor *cotangent)
{
    for (int64_t i = 0; i < cotangent->count; i++) {
        const int64_t row = i / b->inner, batch = row / x->sequence / b->each_batch;
        if (other_place(x, batch, row % x->sequence) % 2 != x->part) cotangent->values[i] = 0.0;
    }
}

static exchange exchange_of(const assay_mutation *m)
{
    return (exchange){.segments = assay_tensor_set_find(m->tensors, "inputs/segment_ids"),
                      .sequence = m->c->sequence,
                      .part = m->part};
}

/* Results that are sums over tokens are none of this, nor are rows that other tokens push out of a buffer. */
static bool has_rows_alone(const assay_mutation *m)
{
    blocks b;
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->spec.role == ASSAY_ROLE_OUTPUT && !blocks_of(tensor, &b)) return false;
    }
    return !(m->c->config.capacity_factor > 0) && !(m->c->config.ragged_buffer_factor > 0);
}

bool assay_edit_exchange_tokens(const assay_mutation *m)
{
    const exchange x = exchange_of(m);
    blocks b;
    bool changed = false;
    for (int64_t i = 0; i < m->c->batch * (x.sequence - 1); i++) {
        const int64_t at = i / (x.sequence - 1) * x.sequence + i % (x.sequence - 1);
        changed |= x.segments == NULL || x.segments->indices[at] == x.segments->indices[at + 1];
    }
    if (!changed || !has_rows_alone(m)) return false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const assay_tensor_role role = tensor->spec.role;
        if (!blocks_of(tensor, &b) || !(assay_role_is_given(role) || role == ASSAY_ROLE_ROUTING)) continue;
        exchange_rows(&x, &b, tensor);
        if (role == ASSAY_ROLE_COTANGENT) keep_part(&x, &b, tensor);
    }
    return true;
}

/* The rows of the part's tokens, from where they went. */
static void take_rows(const exchange *x, const blocks *b, const assay_tensor *from, assay_tensor *to)
{
    for (int64_t i = 0; i < to->count; i++) {
        const int64_t row = i / b->inner, token = row % x->sequence, batch = row / x->sequence / b->each_batch;
        const int64_t at = i + (other_place(x, batch, token) - token) * b->inner;
        if (token % 2 != x->part) continue;
        if (to->values != NULL) to->values[i] = from->values[at];
        if (to->indices != NULL) to->indices[i] = from->indices[at];
    }
}

/* Gradients are sums over the tokens of both parts, and their error scales roots of sums of squares. */
static void add_gradient(const exchange *x, assay_tensor *from, assay_tensor *to, bool scales)
{
    blocks b;
    if (blocks_of(from, &b)) exchange_rows(x, &b, from);
    for (int64_t i = 0; i < to->count; i++) {
        const double before = x->part > 0 ? to->values[i] : 0.0;
        to->values[i] = scales ? (double)hypotl(before, from->values[i]) : before + from->values[i];
    }
}

void assay_take_exchanged(const assay_mutation *m, const assay_tensor_set *from, assay_tensor_set *to)
{
    const exchange x = exchange_of(m);
    blocks b;
    for (int i = 0; i < to->count; i++) {
        assay_tensor *wanted = &to->items[i], *found = assay_tensor_set_find(from, wanted->spec.path);
        const assay_tensor_role role = assay_role_of(assay_path_of(wanted->spec.path));
        if (found == NULL || !assay_tensor_is_complete(found) || wanted->spec.role == ASSAY_ROLE_NULL) continue;
        if (role == ASSAY_ROLE_GRADIENT) add_gradient(&x, found, wanted, wanted->spec.role == ASSAY_ROLE_ERROR_SCALE);
        if (role != ASSAY_ROLE_OUTPUT && role != ASSAY_ROLE_ROUTING) continue;
        if (blocks_of(wanted, &b)) take_rows(&x, &b, found, wanted);
    }
}

/* --- heads that share keys, sinks --- */

/* Queries, and what is theirs, of a case in which heads share keys. */
static bool reorder_heads(const assay_mutation *m, bool given, assay_place_map *from)
{
    const assay_model_config *c = &m->c->config;
    const bool shares = c->base_num_kv_heads > 1 && c->base_num_kv_heads < c->base_num_query_heads;
    if (assay_says_latent(c) || !shares) return false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const bool is_scale = tensor->spec.role == ASSAY_ROLE_ERROR_SCALE;
        if (assay_role_is_given(tensor->spec.role) != given || tensor->values == NULL) continue;
        if (is_scale && !m->own_scales) continue;
        assay_move_places(m, tensor, assay_tensor_axis(tensor, "N") >= 0 ? "N" : "N+2Nkv", from);
    }
    return true;
}

bool assay_edit_heads_modulo(const assay_mutation *m)
{
    return reorder_heads(m, true, assay_heads_modulo);
}

bool assay_edit_heads_back(const assay_mutation *m)
{
    return reorder_heads(m, false, assay_heads_back);
}

bool assay_edit_sinks_in_lse(const assay_mutation *m)
{
    assay_tensor *lse = assay_tensor_set_find(m->tensors, "outputs/lse");
    const assay_tensor *sinks = assay_tensor_set_find(m->tensors, "weights/sinks");
    if (lse == NULL || sinks == NULL) return false;
    for (int64_t i = 0; i < lse->count; i++) {
        const double sink = sinks->values[i / m->c->sequence % sinks->count];
        const double larger = fmax(lse->values[i], sink);
        lse->values[i] = larger + log1p(exp(fmin(lse->values[i], sink) - larger));
    }
    return true;
}
