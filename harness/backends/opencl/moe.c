/* The router, the sort of copies by expert and back, and the MoE block made of them and of the gated MLP. */
#include <stdio.h>
#include <string.h>

#include "call.h"

/* ---- permute and unpermute: kernels of dispatch.cl ---- */

typedef struct dispatch {
    int64_t tokens, chosen, choices, experts;
    cl_mem selected, sizes, places, order; /* [T,K], [E], [T*K] twice */
    rows rows;                             /* of the copies */
} dispatch;

static cl_mem minus_ones(call *c, int64_t count)
{
    const cl_int none = -1;
    cl_mem buffer = word_room(c, count);
    if (clEnqueueFillBuffer(c->d.queue, buffer, &none, sizeof none, 0, (size_t)count * 4, 0, NULL, NULL) != CL_SUCCESS)
        leave(&c->d, ASSAY_BACKEND_ERROR, "OpenCL: clEnqueueFillBuffer");
    return buffer;
}

static void sort_copies(call *c, dispatch *s)
{
    s->choices = s->tokens * s->chosen;
    s->sizes = word_room(c, s->experts), s->places = minus_ones(c, s->choices), s->order = minus_ones(c, s->choices);
    cl_mem segments = room(&c->d, s->experts * (int64_t)sizeof(cl_int4));
    LAUNCH(&c->d, STORED, "count_choices", LINE, s->experts * LANES, 1, 1, mem(s->sizes), mem(s->selected),
           num(s->choices));
    LAUNCH(&c->d, STORED, "segments_of_sizes", ONE, 1, 1, 1, mem(segments), mem(s->sizes), num(s->experts));
    LAUNCH(&c->d, STORED, "sort_choices", LINE, s->experts * LANES, 1, 1, mem(s->places), mem(s->order),
           mem(s->selected), mem(segments), num(s->choices));
    s->rows = rows_of(c, segments, s->experts, s->experts, s->choices);
}

/* scales [T*K] may be NULL */
static cl_mem gather(call *c, const dispatch *s, cl_mem x, cl_mem scales, int64_t width)
{
    cl_mem out = stored_room(c, STORED, s->choices * width);
    LAUNCH(&c->d, STORED, "gather", LINE, width, s->choices, 1, mem(out), mem(x), mem(scales), mem(s->order),
           num(s->choices), num(s->chosen), num(width));
    return out;
}

/* weights [T,K] may be NULL: a plain sum, which is also the gradient of gather */
static cl_mem combine(call *c, const dispatch *s, cl_mem in_rows, cl_mem weights, int64_t width)
{
    cl_mem y = stored_room(c, STORED, s->tokens * width);
    LAUNCH(&c->d, STORED, "combine", LINE, width, s->tokens, 1, mem(y), mem(in_rows), mem(weights), mem(s->places),
           num(s->tokens), num(s->chosen), num(width));
    return y;
}

static cl_mem combine_weights(call *c, const dispatch *s, cl_mem in_rows, cl_mem d_y, cl_mem slopes, int64_t width)
{
    cl_mem d_weights = word_room(c, s->choices);
    LAUNCH(&c->d, STORED, "combine_weights", LINE, s->choices * LANES, 1, 1, mem(d_weights), mem(in_rows), mem(d_y),
           mem(slopes), mem(s->places), num(s->chosen), num(width));
    return d_weights;
}

void run_permute(call *c)
{
    const assay_backend_tensor *x = given(c, "inputs/x"), *selected = given(c, "inputs/selected_experts");
    const int64_t width = x->dims[1];
    dispatch s = {
        .tokens = x->dims[0], .chosen = selected->dims[1], .selected = integers(c, "inputs/selected_experts")};
    s.experts = (int64_t)number(c->request, "num_experts");
    sort_copies(c, &s);
    give(c, "outputs/sorted_inputs", gather(c, &s, stored(c, STORED, "inputs/x"), NULL, width), c->d.storage);
    give(c, "outputs/sorted_selected_experts", s.order, ASSAY_BACKEND_INT32);
    give(c, "outputs/group_sizes", s.sizes, ASSAY_BACKEND_INT32);
    cl_mem d_rows = stored(c, STORED, "cotangents/sorted_inputs");
    if (d_rows != NULL) give(c, "gradients/inputs/x", combine(c, &s, d_rows, NULL, width), c->d.storage);
}

void run_unpermute(call *c)
{
    const assay_backend_tensor *weights = given(c, "inputs/weights");
    const int64_t width = given(c, "inputs/sorted")->dims[1];
    dispatch s = {.tokens = weights->dims[0], .chosen = weights->dims[1]};
    s.choices = s.tokens * s.chosen;
    s.order = integers(c, "inputs/sorted_selected_experts"), s.places = minus_ones(c, s.choices);
    LAUNCH(&c->d, STORED, "places_of_order", LINE, s.choices, 1, 1, mem(s.places), mem(s.order), num(s.choices));
    cl_mem sorted = stored(c, STORED, "inputs/sorted"), w = stored(c, WIDE, "inputs/weights");
    give(c, "outputs/y", combine(c, &s, sorted, w, width), c->d.storage);
    cl_mem d_y = stored(c, STORED, "cotangents/y");
    if (d_y == NULL) return;
    give(c, "gradients/inputs/sorted", gather(c, &s, d_y, w, width), c->d.storage);
    give(c, "gradients/inputs/weights", combine_weights(c, &s, sorted, d_y, NULL, width), ASSAY_BACKEND_FLOAT32);
}

/* ---- the router: float32, kernels of router.cl ---- */

enum score { LOGIT, SIGMOID_SCORE, SOFTMAX_SCORE, SQRTSOFTPLUS };

/* As in router.cl. */
typedef struct family {
    cl_int experts, chosen, score, bias_inside, select_scores, weights_from_biased, softmax_chosen, divide;
    cl_int groups, groups_kept, groups_by_max;
    cl_float epsilon, factor;
} family;

typedef struct router {
    family family;
    bool scales_tokens;            /* llama4: tokens times sigmoid(weight), weights 1 */
    int64_t tokens, emb, sequence; /* sequence: tokens that the balance loss counts together */
    rows one;                      /* all tokens */
    float loss_scale;              /* of the sum over tokens and experts of density [B,E] times probability [T,E] */
    cl_mem density, probabilities;
    cl_mem x, gate, bias, expert_scale, logits, scores, gathered, weights, selected;
    dispatch sorted;
} router;

static bool begins(const char *text, const char *with)
{
    return strncmp(text, with, strlen(with)) == 0;
}

/* DeepSeek's versions go by the name of the model, or, without one, by how it scores. */
static family family_of(const assay_backend_request *request, bool has_bias, bool *scales_tokens)
{
    const char *block = setting(request, "decoder_block"), *name = setting(request, "model_name");
    const char *score = setting(request, "routed_score_func");
    const bool fused = is(request, "fused_moe_func", "true"), divided = is(request, "norm_topk_prob", "true");
    const bool llama4 = strcmp(block, "llama4") == 0, gemma4 = strcmp(block, "gemma4") == 0;
    const bool like_v3 = strcmp(block, "glm4_moe") == 0 || strcmp(block, "kimi_k2") == 0;
    const bool deepseek = (like_v3 || begins(block, "deepseek")) && !fused;
    const bool v2 = deepseek && !like_v3 &&
                    (name[0] != '\0' ? begins(name, "deepseek2") : strcmp(score, "softmax") == 0 && !has_bias);
    const bool grouped = deepseek && number(request, "n_routing_groups") > 0;
    family f = {.groups = 1, .groups_kept = 1, .epsilon = deepseek ? 1e-20F : 0, .factor = 1};
    f.score = strcmp(score, "sigmoid") == 0 ? SIGMOID_SCORE : strcmp(score, "sqrtsoftplus") == 0 ? SQRTSOFTPLUS : LOGIT;
    if (strcmp(score, "softmax") == 0 || (gemma4 && !fused) || (fused && score[0] == '\0')) f.score = SOFTMAX_SCORE;
    f.bias_inside = fused || gemma4, f.select_scores = fused;
    f.weights_from_biased = !f.bias_inside && (!deepseek || v2);
    f.softmax_chosen = !deepseek && !fused && !llama4 && !gemma4;
    f.divide = divided || (fused && !llama4 && !gemma4);
    if (deepseek) f.divide = f.score == SIGMOID_SCORE || f.score == SQRTSOFTPLUS;
    if (deepseek) f.factor = (cl_float)number(request, "routed_scaling_factor");
    if (grouped) f.groups = (cl_int)number(request, "n_routing_groups");
    if (grouped) f.groups_kept = (cl_int)number(request, "topk_routing_group");
    f.groups_by_max = is(request, "group_score", "") ? !has_bias : is(request, "group_score", "max");
    *scales_tokens = llama4 && !fused;
    return f;
}

/* The loss that balances experts, and the step of the bias by which they are balanced instead. */
static void balance(call *c, router *r)
{
    if (is(c->request, "load_balance_loss_pre_bias", "true"))
        leave(&c->d, ASSAY_BACKEND_UNSUPPORTED, "the balance loss has the bias in it");
    const bool of_sequences = is(c->request, "load_balance_loss_scope", "sequence");
    const int64_t T = r->tokens, E = r->family.experts, K = r->family.chosen;
    const int64_t S = of_sequences ? (int64_t)number(c->request, "sequence") : T;
    cl_mem loss = word_room(c, 1), updates = word_room(c, E);
    r->density = word_room(c, T / S * E);
    r->sequence = S;
    r->loss_scale = (float)(number(c->request, "load_balance_loss_weight") * (double)E / (double)T);
    LAUNCH(&c->d, WIDE, "choice_density", LINE, E, T / S, 1, mem(r->density), mem(r->selected), num(S), num(K), num(E));
    LAUNCH(&c->d, WIDE, "balance_loss", LINE, LANES, 1, 1, mem(loss), mem(r->density), mem(r->probabilities), num(T),
           num(S), num(E), real(r->loss_scale));
    LAUNCH(&c->d, WIDE, "bias_updates", LINE, E, 1, 1, mem(updates), mem(r->sorted.sizes), num(T * K), num(E),
           real(number(c->request, "routed_bias_update_rate")));
    give(c, "outputs/lb_loss", loss, ASSAY_BACKEND_FLOAT32);
    give(c, "outputs/bias_updates", updates, ASSAY_BACKEND_FLOAT32);
}

static void route(call *c, router *r)
{
    const assay_backend_tensor *gate = given(c, "weights/gate/kernel"), *logits = given(c, "inputs/logits");
    if (gate == NULL && logits == NULL) leave(&c->d, ASSAY_BACKEND_UNSUPPORTED, "a choice of experts that is given");
    r->gate = stored(c, WIDE, "weights/gate/kernel"), r->bias = stored(c, WIDE, "weights/gate/bias");
    r->expert_scale = stored(c, WIDE, "weights/per_expert_scale");
    r->family = family_of(c->request, r->bias != NULL, &r->scales_tokens);
    r->family.experts = (cl_int)(gate != NULL ? gate->dims[1] : logits->dims[2]);
    r->family.chosen = (cl_int)number(c->request, "num_experts_per_tok");
    const int64_t T = r->tokens, E = r->family.experts, K = r->family.chosen;
    cl_mem table = integers(c, "weights/tid2eid"), ids = integers(c, "inputs/input_ids");
    r->one = rows_of_one(c, T);
    r->logits = gate == NULL ? stored(c, WIDE, "inputs/logits") : word_room(c, T * E);
    if (gate != NULL) product(c, WIDE, r->logits, r->x, r->gate, NULL, NULL, &r->one, r->emb, E, plain(r->emb, E));
    r->scores = word_room(c, T * E), r->gathered = word_room(c, T * K), r->weights = word_room(c, T * K);
    r->selected = word_room(c, T * K);
    r->probabilities = word_room(c, T * E);
    LAUNCH(&c->d, WIDE, "route", LINE, T * LANES, 1, 1, mem(r->logits), mem(r->scores), mem(r->probabilities),
           mem(r->gathered), mem(r->weights), mem(r->selected), mem(r->bias), mem(r->expert_scale), mem(table),
           mem(ids), bytes(&r->family, sizeof r->family), local_floats(E), local_floats(E),
           local_floats(r->family.groups), local_floats(K));
    r->sorted = (dispatch){.tokens = T, .chosen = K, .experts = E, .selected = r->selected};
    sort_copies(c, &r->sorted);
    give(c, "routing/weights", r->weights, ASSAY_BACKEND_FLOAT32);
    give(c, "routing/selected_experts", r->selected, ASSAY_BACKEND_INT32);
    give(c, "routing/sorted_selected_experts", r->sorted.order, ASSAY_BACKEND_INT32);
    give(c, "routing/group_sizes", r->sorted.sizes, ASSAY_BACKEND_INT32);
    balance(c, r);
}

/* d_x [T,D] in float32, NULL where the router has logits for its input. */
static cl_mem route_backward(call *c, router *r, cl_mem d_weights)
{
    const int64_t T = r->tokens, E = r->family.experts, K = r->family.chosen, D = r->emb;
    cl_mem d_logits = word_room(c, T * E), d_biased = word_room(c, T * E), d_scaled = word_room(c, T * K);
    cl_mem d_bias = word_room(c, E), d_expert_scale = word_room(c, E);
    float d_loss = 0;
    load(&d_loss, given(c, "cotangents/lb_loss"), 0, 1);
    LAUNCH(&c->d, WIDE, "route_backward", LINE, T * LANES, 1, 1, mem(d_logits), mem(d_biased), mem(d_scaled),
           mem(d_weights), mem(r->logits), mem(r->scores), mem(r->gathered), mem(r->selected), mem(r->expert_scale),
           mem(r->density), mem(r->probabilities), num(r->sequence), real(d_loss * r->loss_scale),
           bytes(&r->family, sizeof r->family), local_floats(K));
    LAUNCH(&c->d, WIDE, "sum_rows", LINE, E, 1, 1, mem(d_bias), mem(d_biased), mem(r->one.segment_table), num(1),
           num(E));
    LAUNCH(&c->d, WIDE, "sum_of_choices", LINE, E, 1, 1, mem(d_expert_scale), mem(d_scaled), mem(r->sorted.order),
           mem(r->sorted.rows.segment_table), num(E));
    give(c, "gradients/inputs/logits", d_logits, ASSAY_BACKEND_FLOAT32);
    give(c, "gradients/weights/gate/bias", d_bias, ASSAY_BACKEND_FLOAT32);
    give(c, "gradients/weights/per_expert_scale", d_expert_scale, ASSAY_BACKEND_FLOAT32);
    if (r->gate == NULL) return NULL;
    cl_mem d_gate = word_room(c, D * E), d_x = word_room(c, T * D);
    product_weights(c, WIDE, d_gate, r->x, d_logits, NULL, &r->one, D, E, plain(D, E));
    product(c, WIDE, d_x, d_logits, r->gate, NULL, NULL, &r->one, E, D, transposed(plain(D, E)));
    give(c, "gradients/weights/gate/kernel", d_gate, ASSAY_BACKEND_FLOAT32);
    return d_x;
}

static int64_t tokens_of(const assay_backend_tensor *t)
{
    return count_of(t->rank - 1, t->dims);
}

void run_routing(call *c)
{
    const assay_backend_tensor *x = given(c, "inputs/x");
    router r = {.tokens = tokens_of(x != NULL ? x : given(c, "inputs/logits")), .emb = x != NULL ? x->dims[2] : 0};
    r.x = stored(c, WIDE, "inputs/x");
    cl_mem d_weights = stored(c, WIDE, "cotangents/weights");
    route(c, &r);
    give(c, "outputs/weights", r.weights, ASSAY_BACKEND_FLOAT32);
    if (d_weights == NULL) return;
    cl_mem d_x = route_backward(c, &r, d_weights);
    if (d_x != NULL) give(c, "gradients/inputs/x", d_x, ASSAY_BACKEND_FLOAT32);
}

/* ---- the block ---- */

static cl_mem sum_of(call *c, cl_mem a, cl_mem b, cl_mem wide, int64_t count)
{
    cl_mem y = stored_room(c, STORED, count);
    LAUNCH(&c->d, STORED, "sum_parts", LINE, count, 1, 1, mem(y), mem(a), mem(b), mem(wide), num(count));
    return y;
}

void run_moe(call *c)
{
    const assay_backend_tensor *input = given(c, "inputs/x");
    const int64_t T = tokens_of(input), D = input->dims[2];
    const bool shares = given(c, "weights/shared_experts/wo/kernel") != NULL;
    cl_mem x = stored(c, STORED, "inputs/x"), d_y = stored(c, STORED, "cotangents/y");
    router r = {.tokens = T, .emb = D, .x = word_room(c, T * D)};
    LAUNCH(&c->d, STORED, "widen", LINE, T * D, 1, 1, mem(r.x), mem(x), num(T * D));
    route(c, &r);

    /* llama4 scales what goes into an expert, the others what comes out of it */
    const int64_t choices = r.sorted.choices;
    cl_mem scales = NULL, slopes = NULL, weights = r.weights;
    if (r.scales_tokens) {
        scales = word_room(c, choices), slopes = word_room(c, choices), weights = NULL;
        LAUNCH(&c->d, WIDE, "sigmoid_of_weights", LINE, choices, 1, 1, mem(scales), mem(slopes), mem(r.weights),
               num(choices));
    }
    mlp experts, shared;
    mlp_load(c, &experts, &r.sorted.rows, ROUTED, "weights/", "");
    cl_mem o = mlp_forward(c, &experts, gather(c, &r.sorted, x, scales, D));
    cl_mem y = combine(c, &r.sorted, o, weights, D);
    if (shares) mlp_load(c, &shared, &r.one, SHARED, "weights/shared_experts/", "/kernel");
    give(c, "outputs/y", shares ? sum_of(c, y, mlp_forward(c, &shared, x), NULL, T * D) : y, c->d.storage);
    if (d_y == NULL) return;

    cl_mem d_rows = mlp_backward(c, &experts, gather(c, &r.sorted, d_y, weights, D));
    cl_mem d_weights = r.scales_tokens ? combine_weights(c, &r.sorted, d_rows, x, slopes, D)
                                       : combine_weights(c, &r.sorted, o, d_y, NULL, D);
    cl_mem d_x = combine(c, &r.sorted, d_rows, scales, D), of_router = route_backward(c, &r, d_weights);
    d_x = sum_of(c, d_x, shares ? mlp_backward(c, &shared, d_y) : NULL, of_router, T * D);
    give(c, "gradients/inputs/x", d_x, c->d.storage);
}
