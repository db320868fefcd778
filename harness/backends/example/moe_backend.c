/* An example backend: a sparse MoE layer, forward and backward, as a kernel for bfloat16 tensors would do it. Copy it.
 *
 *     cc -O2 -shared -fPIC -I include moe_backend.c -o libassay_example.so -lm
 *     assay run moe/deepseek3-tiny-sparse --backend ./libassay_example.so
 *
 * Activations that a kernel would leave in memory are rounded to bfloat16 (x, the two branches a and b, the hidden row
 * h, the experts' outputs, their gradients, y and dx); sums, the router and the gradients of weights are float32.
 *
 * The environment variable ASSAY_EXAMPLE_BUG=NAME puts one of BUG_TABLE's errors in, to see it caught. */
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <assay/backend.h>

/*    code, name, number in the list of bugs that real implementations had, what is wrong */
#define BUG_TABLE(X)                                                                                                   \
    X(BIASED_WEIGHTS, "biased_weights", 1, "weights gathered from the biased scores")                                  \
    X(GROUP_FILL_ZERO, "group_fill_zero", 3, "experts of masked groups count as 0: more than a negative score")        \
    X(GROUP_SCORE_OTHER, "group_score_other", 4, "groups ranked by their maximum, not their top two, or reversed")     \
    X(NO_RENORMALISATION, "no_renormalisation", 6, "the chosen weights are not divided by their sum")                  \
    X(SCALING_TWICE, "scaling_twice", 8, "routed_scaling_factor applied twice")                                        \
    X(EMPTY_EXPERT_UNWRITTEN, "empty_expert_unwritten", 25, "weight gradients of experts without tokens left alone")   \
    X(LAST_TILE_DROPPED, "last_tile_dropped", 28, "a product's summed axis cut to a multiple of 16")                   \
    X(GATE_UP_SWAPPED, "gate_up_swapped", 34, "the activation applied to the other branch")                            \
    X(DX_WITHOUT_UP, "dx_without_up", 41, "the gradient of x lacks the up branch")                                     \
    X(ROUTER_GRADIENT_MISSING, "router_gradient_missing", 59, "no gradient through the routing weights")

enum bug {
    NO_BUG,
#define X(code, name, issue, what) code,
    BUG_TABLE(X)
#undef X
        BUG_COUNT
};

#define SHARED "weights/shared_experts/"

/* ---- the request ---- */

static int say(const assay_backend_request *request, int code, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(request->message, (size_t)request->message_size, format, arguments);
    va_end(arguments);
    return code;
}

static const char *setting(const assay_backend_request *request, const char *key) {
    for (int i = 0; i < request->setting_count; i++)
        if (strcmp(request->settings[i].key, key) == 0) return request->settings[i].value;
    return "";
}

static double number(const assay_backend_request *request, const char *key) {
    return strtod(setting(request, key), NULL);
}

static bool is(const assay_backend_request *request, const char *key, const char *value) {
    return strcmp(setting(request, key), value) == 0;
}

static const assay_backend_tensor *tensor(const assay_backend_request *request, const char *path) {
    for (int i = 0; i < request->tensor_count; i++)
        if (strcmp(request->tensors[i].path, path) == 0) return &request->tensors[i];
    return NULL;
}

static assay_backend_result *result(const assay_backend_request *request, const char *path) {
    for (int i = 0; i < request->result_count; i++)
        if (strcmp(request->results[i].path, path) == 0) return &request->results[i];
    return NULL;
}

/* Whether this backend writes a result of that name: gradients of whatever it was given, and these. */
static bool makes(const assay_backend_request *request, const char *path) {
    static const char *const MADE[] = {
        "outputs/y",          "outputs/lb_loss",          "outputs/bias_updates",
        "routing/weights",    "routing/selected_experts", "routing/sorted_selected_experts",
        "routing/group_sizes"};
    bool made = strncmp(path, "gradients/", 10) == 0 && tensor(request, path + 10) != NULL;
    for (size_t i = 0; i < sizeof MADE / sizeof *MADE; i++)
        made |= strcmp(path, MADE[i]) == 0;
    return made;
}

/* ---- numbers ---- */

static uint16_t to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fc0;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float from_bf16(uint16_t code) {
    uint32_t bits = (uint32_t)code << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Nothing where the case has no such tensor. */
static void load(float *out, const assay_backend_tensor *t, int64_t first, int64_t count) {
    if (t == NULL) return;
    const uint16_t *codes = (const uint16_t *)t->data + first;
    for (int64_t i = 0; i < count; i++)
        out[i] = from_bf16(codes[i]);
}

static void round_bf16(float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        x[i] = from_bf16(to_bf16(x[i]));
}

/* All of a result, in bfloat16 or as the 32-bit type that it has at first. One of another size (a mesh has results per
 * shard) stays unwritten. */
static void store(assay_backend_result *r, bool in_bf16, const void *values, int64_t count) {
    int64_t room = 1;
    for (int axis = 0; r != NULL && axis < r->rank; axis++)
        room *= r->dims[axis];
    if (r != NULL && room != count) r->written = 0;
    if (r == NULL || room != count) return;
    if (!in_bf16) memcpy(r->data, values, (size_t)count * sizeof(float));
    if (in_bf16) r->type = ASSAY_BACKEND_BFLOAT16;
    for (int64_t i = 0; i < count && in_bf16; i++)
        ((uint16_t *)r->data)[i] = to_bf16(((const float *)values)[i]);
}

/* Everything that a call allocates, freed together. */
typedef struct pool {
    void *blocks[40];
    int count;
    bool failed;
} pool;

static void *take(pool *p, int64_t count) { /* float or int32_t */
    void *block = calloc((size_t)count + 1, sizeof(float));
    p->failed |= block == NULL;
    return p->blocks[p->count++] = block;
}

static int finish(pool *p, const assay_backend_request *request, int code) {
    for (int i = 0; i < p->count; i++)
        free(p->blocks[i]);
    return p->failed ? say(request, ASSAY_BACKEND_ERROR, "out of memory") : code;
}

/* Element (i,p) is data[i * row + p * column]. */
typedef struct matrix {
    const float *data;
    int64_t row, column;
} matrix;

/* out [m,n] = a [m,k] * b [k,n], summed in float32; nothing where out is NULL. */
static void product(float *out, int64_t out_row, int64_t m, int64_t n, int64_t k, matrix a, matrix b) {
    for (int64_t i = 0; out != NULL && i < m; i++) {
        float *row = out + i * out_row;
        for (int64_t j = 0; j < n; j++)
            row[j] = 0;
        for (int64_t p = 0; p < k && b.column == 1; p++) /* along the rows of b */
            for (int64_t j = 0; j < n; j++)
                row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j];
        for (int64_t j = 0; j < n && b.column != 1; j++) /* down its columns, which are contiguous */
            for (int64_t p = 0; p < k; p++)
                row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j * b.column];
    }
}

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

static void softmax(float *y, const float *x, int64_t count) {
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i++)
        sum += y[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < count; i++)
        y[i] /= sum;
}

/* d [count], a gradient by y = softmax(x), becomes that by x. */
static void softmax_backward(float *d, const float *y, int64_t count) {
    float mean = 0;
    for (int64_t i = 0; i < count; i++)
        mean += d[i] * y[i];
    for (int64_t i = 0; i < count; i++)
        d[i] = y[i] * (d[i] - mean);
}

/* ---- the layer ---- */

typedef struct layer {
    const assay_backend_request *request;
    enum bug bug;
    pool memory;
    int64_t batch, sequence, tokens, emb, hidden, shared_hidden, experts, chosen; /* B, S, T, D, H, F, E, K */
    bool deepseek, weights_from_biased, divide, groups_by_max, sigmoid, softmax;
    int64_t groups, groups_kept;
    float factor, loss_weight;
    float *x, *gate, *bias;                                /* [T,D], [D,E], [E] (zeros where the case has none) */
    float *logits, *scores, *biased, *d_logits, *d_biased; /* [T,E] */
    float *gathered, *weights, *d_weights;                 /* [T,K] */
    int32_t *selected, *order, *sizes;                     /* [T,K], [T*K] by expert, [E] */
} layer;

/* ---- routing ---- */

static float group_score(const float *values, int64_t count, bool by_max) {
    float first = -INFINITY, second = -INFINITY;
    for (int64_t i = 0; i < count; i++) {
        second = fmaxf(second, fminf(first, values[i]));
        first = fmaxf(first, values[i]);
    }
    return by_max || count == 1 ? first : first + second;
}

/* The index of the largest value, the lower one of equals. */
static int32_t largest(const float *values, int64_t count) {
    int32_t best = 0;
    for (int32_t i = 1; i < count; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

static void choose(const layer *l, int32_t *selected, const float *biased, float *candidates, float *group_scores) {
    const int64_t size = l->experts / l->groups;
    for (int64_t e = 0; e < l->experts; e++)
        candidates[e] = l->bug == GROUP_FILL_ZERO ? 0 : -INFINITY;
    for (int64_t g = 0; g < l->groups; g++)
        group_scores[g] = group_score(biased + g * size, size, l->groups_by_max);
    for (int64_t i = 0; i < l->groups_kept; i++) {
        const int64_t g = largest(group_scores, l->groups);
        memcpy(candidates + g * size, biased + g * size, (size_t)size * sizeof *biased);
        group_scores[g] = -INFINITY;
    }
    for (int64_t k = 0; k < l->chosen; k++) {
        selected[k] = largest(candidates, l->experts);
        candidates[selected[k]] = -INFINITY;
    }
}

static float divisor(const layer *l, const float *gathered) {
    float sum = l->deepseek ? 1e-20F : 0;
    for (int64_t k = 0; k < l->chosen; k++)
        sum += gathered[k];
    return l->divide ? sum : 1;
}

static void route(layer *l, float *scratch) { /* scratch: [E] and a value for each group */
    const int64_t E = l->experts, K = l->chosen;
    product(l->logits, E, l->tokens, E, l->emb, (matrix){l->x, l->emb, 1}, (matrix){l->gate, E, 1});
    for (int64_t t = 0; t < l->tokens; t++) {
        float *scores = l->scores + t * E, *biased = l->biased + t * E, *gathered = l->gathered + t * K;
        int32_t *selected = l->selected + t * K;
        const float *logits = l->logits + t * E;
        for (int64_t e = 0; e < E; e++)
            scores[e] = l->sigmoid ? sigmoid(logits[e]) : logits[e];
        if (l->softmax) softmax(scores, logits, E);
        for (int64_t e = 0; e < E; e++)
            biased[e] = scores[e] + l->bias[e];
        choose(l, selected, biased, scratch, scratch + E);
        for (int64_t k = 0; k < K; k++) {
            gathered[k] = l->weights_from_biased ? biased[selected[k]] : scores[selected[k]];
            l->sizes[selected[k]]++;
        }
        if (!l->deepseek) softmax(gathered, gathered, K);
        for (int64_t k = 0; k < K; k++)
            l->weights[t * K + k] = gathered[k] / divisor(l, gathered) * l->factor;
    }
    int64_t place = 0;
    for (int32_t e = 0; e < E; e++)
        for (int32_t i = 0; i < l->tokens * K; i++)
            if (l->selected[i] == e) l->order[place++] = i;
}

/* d_logits and d_biased from d_weights and the gradient of the balance loss. probabilities, density: [T,E], [B,E]. */
static void route_backward(const layer *l, float d_loss, const float *probabilities, const float *density) {
    const int64_t E = l->experts, K = l->chosen;
    for (int64_t t = 0; t < l->tokens; t++) {
        float *d_biased = l->d_biased + t * E, *d_scores = l->d_logits + t * E, *d = l->d_weights + t * K;
        const float *scores = l->scores + t * E, *gathered = l->gathered + t * K;
        const float sum = divisor(l, gathered);
        float mean = 0; /* what the division takes away */
        for (int64_t e = 0; e < E; e++)
            d_biased[e] = d_loss * l->loss_weight * (float)E * density[t / l->sequence * E + e] / (float)l->tokens;
        softmax_backward(d_biased, probabilities + t * E, E);
        memcpy(d_scores, d_biased, (size_t)E * sizeof *d_scores);
        for (int64_t k = 0; k < K && l->divide; k++)
            mean += d[k] * gathered[k] / sum;
        for (int64_t k = 0; k < K; k++)
            d[k] = l->bug == ROUTER_GRADIENT_MISSING ? 0 : (d[k] - mean) / sum * l->factor;
        if (!l->deepseek) softmax_backward(d, gathered, K);
        for (int64_t k = 0; k < K; k++) {
            d_scores[l->selected[t * K + k]] += d[k];
            if (l->weights_from_biased) d_biased[l->selected[t * K + k]] += d[k];
        }
        if (l->softmax) softmax_backward(d_scores, scores, E);
        for (int64_t e = 0; e < E && l->sigmoid; e++)
            d_scores[e] *= scores[e] * sigmoid(-l->logits[t * E + e]);
    }
}

/* Load balance: the loss, and the step of the bias by which it is kept instead. */
static float balance(const layer *l, float *probabilities, float *density, float *bias_updates) {
    const int64_t E = l->experts, K = l->chosen;
    const float rate = (float)number(l->request, "routed_bias_update_rate");
    float loss = 0;
    for (int64_t i = 0; i < l->tokens * K; i++)
        density[i / (l->sequence * K) * E + l->selected[i]] += 1 / (float)l->sequence;
    for (int64_t t = 0; t < l->tokens; t++) {
        softmax(probabilities + t * E, l->biased + t * E, E);
        for (int64_t e = 0; e < E; e++)
            loss += density[t / l->sequence * E + e] * probabilities[t * E + e];
    }
    for (int64_t e = 0; e < E; e++) {
        const int64_t missing = l->tokens * K - l->sizes[e] * E;
        bias_updates[e] = missing > 0 ? rate : missing < 0 ? -rate : 0;
    }
    return loss * l->loss_weight * (float)E / (float)l->tokens;
}

/* ---- experts ---- */

typedef struct expert {
    const layer *l;
    int64_t rows, hidden, wi_row;   /* wi_row: elements from a row of wi_0 and wi_1 to the next */
    float *wi_0, *wi_1, *wo;        /* [D,H], [D,H], [H,D] */
    float *d_wi_0, *d_wi_1, *d_wo;  /* their gradients in the results, NULL where nobody asks */
    float *x, *a, *b, *h, *o, *d_o; /* [rows,D], [rows,H] three times, [rows,D] twice */
} expert;

static float *gradient(const layer *l, const char *weight, int64_t first) {
    char path[128];
    snprintf(path, sizeof path, "gradients/%s", weight);
    assay_backend_result *r = result(l->request, path);
    return r == NULL ? NULL : (float *)r->data + first;
}

/* Expert e of wi_0, wi_1 [E,D,H] (or wi [E,D,2H], named twice) and wo [E,H,D]. */
static void load_expert(expert *m, const char *wi_0, const char *wi_1, const char *wo, int64_t e) {
    const assay_backend_request *request = m->l->request;
    const bool fused = strcmp(wi_0, wi_1) == 0;
    const int64_t size = m->l->emb * m->hidden, size_0 = fused ? 2 * size : size, up = fused ? m->hidden : size;
    m->wi_row = fused ? 2 * m->hidden : m->hidden;
    load(m->wi_0, tensor(request, wi_0), e * size_0, size_0);
    if (!fused) load(m->wi_0 + size, tensor(request, wi_1), e * size, size);
    load(m->wo, tensor(request, wo), e * size, size);
    m->wi_1 = m->wi_0 + up;
    m->d_wi_0 = gradient(m->l, wi_0, e * size_0);
    m->d_wi_1 = gradient(m->l, wi_1, e * size_0 + (fused ? up : 0));
    m->d_wo = gradient(m->l, wo, e * size);
    if (m->l->bug == GATE_UP_SWAPPED) {
        float *wi = m->wi_0, *d_wi = m->d_wi_0;
        m->wi_0 = m->wi_1, m->d_wi_0 = m->d_wi_1;
        m->wi_1 = wi, m->d_wi_1 = d_wi;
    }
}

static void expert_forward(const expert *m) {
    const int64_t D = m->l->emb, H = m->hidden, tile = m->l->bug == LAST_TILE_DROPPED ? 16 : 1;
    product(m->a, H, m->rows, H, D / tile * tile, (matrix){m->x, D, 1}, (matrix){m->wi_0, m->wi_row, 1});
    product(m->b, H, m->rows, H, D / tile * tile, (matrix){m->x, D, 1}, (matrix){m->wi_1, m->wi_row, 1});
    round_bf16(m->a, m->rows * H);
    round_bf16(m->b, m->rows * H);
    for (int64_t i = 0; i < m->rows * H; i++)
        m->h[i] = m->a[i] * sigmoid(m->a[i]) * m->b[i];
    round_bf16(m->h, m->rows * H);
    product(m->o, D, m->rows, D, H / tile * tile, (matrix){m->h, H, 1}, (matrix){m->wo, D, 1});
    round_bf16(m->o, m->rows * D);
}

/* d_x [rows,D]; a and b become their own gradients. Scratch: d_h [rows,H], d_x_up [rows,D]. */
static void expert_backward(const expert *m, float *d_x, float *d_h, float *d_x_up) {
    const int64_t D = m->l->emb, H = m->hidden, rows = m->rows;
    const bool unwritten = rows == 0 && m->l->bug == EMPTY_EXPERT_UNWRITTEN;
    product(d_h, H, rows, H, D, (matrix){m->d_o, D, 1}, (matrix){m->wo, 1, D});
    for (int64_t i = 0; i < rows * H; i++) {
        const float a = m->a[i], s = sigmoid(a);
        m->a[i] = d_h[i] * m->b[i] * s * (1 + a * sigmoid(-a));
        m->b[i] = d_h[i] * a * s;
    }
    round_bf16(m->a, rows * H);
    round_bf16(m->b, rows * H);
    product(d_x, D, rows, D, H, (matrix){m->a, H, 1}, (matrix){m->wi_0, 1, m->wi_row});
    product(d_x_up, D, rows, D, H, (matrix){m->b, H, 1}, (matrix){m->wi_1, 1, m->wi_row});
    for (int64_t i = 0; i < rows * D && m->l->bug != DX_WITHOUT_UP; i++)
        d_x[i] += d_x_up[i];
    if (unwritten) return;
    product(m->d_wi_0, m->wi_row, D, H, rows, (matrix){m->x, 1, D}, (matrix){m->a, H, 1});
    product(m->d_wi_1, m->wi_row, D, H, rows, (matrix){m->x, 1, D}, (matrix){m->b, H, 1});
    product(m->d_wo, D, H, D, rows, (matrix){m->h, 1, H}, (matrix){m->d_o, D, 1});
}

/* ---- the whole ---- */

/* Rows are copies of tokens: those of expert 0, 1, ..., then, for the shared expert (number E), one of every token. */
typedef struct copy {
    int64_t token, choice; /* choice: place in [T,K], -1 for the shared expert */
    float weight;
} copy;

static copy copy_at(const layer *l, int64_t r) {
    const int64_t routed = l->tokens * l->chosen;
    if (r >= routed) return (copy){r - routed, -1, 1};
    return (copy){l->order[r] / l->chosen, l->order[r], l->weights[l->order[r]]};
}

static void set_expert(expert *m, const expert *all, int64_t e, int64_t first_row) {
    const layer *l = all->l;
    const int64_t D = l->emb, H = all->hidden;
    *m = *all;
    m->rows = e == l->experts ? l->tokens : l->sizes[e];
    m->x = all->x + first_row * D, m->o = all->o + first_row * D, m->d_o = all->d_o + first_row * D;
    m->a = all->a + first_row * H, m->b = all->b + first_row * H, m->h = all->h + first_row * H;
    m->hidden = e == l->experts ? l->shared_hidden : l->hidden;
    if (e == l->experts) {
        load_expert(m, SHARED "wi_0/kernel", SHARED "wi_1/kernel", SHARED "wo/kernel", 0);
    } else if (tensor(l->request, "weights/wi") != NULL) {
        load_expert(m, "weights/wi", "weights/wi", "weights/wo", e);
    } else {
        load_expert(m, "weights/wi_0", "weights/wi_1", "weights/wo", e);
    }
}

static void forward(const layer *l, const expert *all, float *y) {
    const int64_t D = l->emb, experts = l->experts + (l->shared_hidden > 0);
    for (int64_t r = 0; r < all->rows; r++)
        memcpy(all->x + r * D, l->x + copy_at(l, r).token * D, (size_t)D * sizeof(float));
    for (int64_t e = 0, first = 0; e < experts; e++) {
        expert m;
        set_expert(&m, all, e, first);
        expert_forward(&m);
        first += m.rows;
    }
    for (int64_t r = 0; r < all->rows; r++) {
        const copy at = copy_at(l, r);
        for (int64_t i = 0; i < D; i++)
            y[at.token * D + i] += at.weight * all->o[r * D + i];
    }
}

static void backward(layer *l, const expert *all, float *d_x, const float *d_y, float *d_rows, float *scratch) {
    const int64_t D = l->emb, experts = l->experts + (l->shared_hidden > 0);
    for (int64_t r = 0; r < all->rows; r++) {
        const copy at = copy_at(l, r);
        for (int64_t i = 0; i < D; i++) {
            const float d = d_y[at.token * D + i];
            all->d_o[r * D + i] = at.weight * d;
            if (at.choice >= 0) l->d_weights[at.choice] += all->o[r * D + i] * d;
        }
    }
    round_bf16(all->d_o, all->rows * D);
    for (int64_t e = 0, first = 0; e < experts; e++) {
        expert m;
        set_expert(&m, all, e, first);
        expert_backward(&m, d_rows + first * D, scratch, scratch + m.rows * m.hidden);
        first += m.rows;
    }
    for (int64_t r = 0; r < all->rows; r++)
        for (int64_t i = 0; i < D; i++)
            d_x[copy_at(l, r).token * D + i] += d_rows[r * D + i];
}

/* What the router's logits give to dx [T,D] and to its own weights. */
static void gate_backward(layer *l, float *d_x, float *scratch) {
    const int64_t D = l->emb, E = l->experts;
    float *d_bias = gradient(l, "weights/gate/bias", 0);
    product(gradient(l, "weights/gate/kernel", 0), E, D, E, l->tokens, (matrix){l->x, 1, D},
            (matrix){l->d_logits, E, 1});
    product(scratch, D, l->tokens, D, E, (matrix){l->d_logits, E, 1}, (matrix){l->gate, 1, E});
    for (int64_t i = 0; i < l->tokens * D; i++)
        d_x[i] += scratch[i];
    for (int64_t e = 0; e < E && d_bias != NULL; e++) {
        d_bias[e] = 0;
        for (int64_t t = 0; t < l->tokens; t++)
            d_bias[e] += l->d_biased[t * E + e];
    }
}

static int run_layer(layer *l) {
    const assay_backend_request *request = l->request;
    pool *memory = &l->memory;
    const int64_t T = l->tokens, D = l->emb, E = l->experts, K = l->chosen;
    const int64_t H = l->hidden > l->shared_hidden ? l->hidden : l->shared_hidden;
    const int64_t R = T * K + (l->shared_hidden > 0 ? T : 0);
    expert all = {.l = l, .rows = R, .hidden = H};
    l->x = take(memory, T * D), l->gate = take(memory, D * E), l->bias = take(memory, E);
    l->logits = take(memory, T * E), l->scores = take(memory, T * E), l->biased = take(memory, T * E);
    l->d_logits = take(memory, T * E), l->d_biased = take(memory, T * E);
    l->gathered = take(memory, T * K), l->weights = take(memory, T * K), l->d_weights = take(memory, T * K);
    l->selected = take(memory, T * K), l->order = take(memory, T * K), l->sizes = take(memory, E);
    all.wi_0 = take(memory, 2 * D * H), all.wo = take(memory, D * H);
    all.x = take(memory, R * D), all.o = take(memory, R * D), all.d_o = take(memory, R * D);
    all.a = take(memory, R * H), all.b = take(memory, R * H), all.h = take(memory, R * H);
    float *y = take(memory, T * D), *d_y = take(memory, T * D), *d_x = take(memory, T * D);
    float *d_rows = take(memory, R * D), *scratch = take(memory, R * (D + H) + E + l->groups);
    float *probabilities = take(memory, T * E), *density = take(memory, l->batch * E), *updates = take(memory, E);
    if (memory->failed) return finish(memory, request, ASSAY_BACKEND_ERROR);

    load(l->x, tensor(request, "inputs/x"), 0, T * D);
    load(l->gate, tensor(request, "weights/gate/kernel"), 0, D * E);
    load(l->bias, tensor(request, "weights/gate/bias"), 0, E);
    load(d_y, tensor(request, "cotangents/y"), 0, T * D);
    route(l, scratch);
    forward(l, &all, y);
    float loss = balance(l, probabilities, density, updates), d_loss = 0;
    store(result(request, "outputs/y"), true, y, T * D);
    store(result(request, "outputs/lb_loss"), false, &loss, 1);
    store(result(request, "outputs/bias_updates"), false, updates, E);
    store(result(request, "routing/weights"), false, l->weights, T * K);
    store(result(request, "routing/selected_experts"), false, l->selected, T * K);
    store(result(request, "routing/sorted_selected_experts"), false, l->order, T * K);
    store(result(request, "routing/group_sizes"), false, l->sizes, E);

    load(&d_loss, tensor(request, "cotangents/lb_loss"), 0, 1);
    backward(l, &all, d_x, d_y, d_rows, scratch);
    route_backward(l, d_loss, probabilities, density);
    gate_backward(l, d_x, scratch);
    store(result(request, "gradients/inputs/x"), true, d_x, T * D);
    return finish(memory, request, ASSAY_BACKEND_DONE);
}

/* What this backend does not have, or NULL. */
static const char *refusal(const assay_backend_request *request) {
    static const char *const BLOCKS[] = {"llama4", "gemma4", "gpt_oss", "deepseek4"};
    static const char *const NEEDED[] = {"inputs/x", "weights/gate/kernel", "weights/wo"};
    static const char *const TENSORS[] = {"weights/wo_bias", "weights/per_expert_scale"};
    static const char *const POSITIVE[] = {"mlp_activations_limit", "capacity_factor", "ragged_buffer_factor"};
    const assay_backend_result *loss = result(request, "outputs/lb_loss");
    const assay_backend_result *updates = result(request, "outputs/bias_updates");
    if (!is(request, "op", "moe")) return setting(request, "op");
    for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; i++)
        if (tensor(request, NEEDED[i]) == NULL) return "a case without x, gate/kernel and wo";
    for (size_t i = 0; i < sizeof BLOCKS / sizeof *BLOCKS; i++)
        if (is(request, "decoder_block", BLOCKS[i])) return BLOCKS[i];
    for (size_t i = 0; i < sizeof TENSORS / sizeof *TENSORS; i++)
        if (tensor(request, TENSORS[i]) != NULL) return TENSORS[i];
    for (size_t i = 0; i < sizeof POSITIVE / sizeof *POSITIVE; i++)
        if (number(request, POSITIVE[i]) > 0) return POSITIVE[i];
    if (strncmp(setting(request, "mlp_activations"), "silu", 4) != 0) return setting(request, "mlp_activations");
    if (is(request, "routed_score_func", "sqrtsoftplus")) return "sqrtsoftplus";
    if (is(request, "fused_moe_func", "true")) return "fused_moe_func";
    if (number(request, "num_moe_token_chunks") > 1) return "num_moe_token_chunks";
    if ((loss != NULL && loss->rank > 0) || (updates != NULL && updates->rank > 1)) return "results per shard";
    for (int i = 0; i < request->tensor_count; i++)
        if (request->tensors[i].type != ASSAY_BACKEND_BFLOAT16) return "operands that are not bfloat16";
    for (int i = 0; i < request->result_count; i++)
        if (request->results[i].required && !makes(request, request->results[i].path)) return request->results[i].path;
    return NULL;
}

static void set_up(layer *l) {
    const assay_backend_request *request = l->request;
    const bool has_bias = tensor(request, "weights/gate/bias") != NULL;
    const assay_backend_tensor *x = tensor(request, "inputs/x"), *wo = tensor(request, "weights/wo");
    const assay_backend_tensor *shared = tensor(request, SHARED "wo/kernel");
    l->batch = x->dims[0], l->sequence = x->dims[1], l->emb = x->dims[2];
    l->tokens = l->batch * l->sequence;
    l->experts = wo->dims[0], l->hidden = wo->dims[1];
    l->shared_hidden = shared == NULL ? 0 : shared->dims[0];
    l->chosen = (int64_t)number(request, "num_experts_per_tok");
    l->loss_weight = (float)number(request, "load_balance_loss_weight");
    l->sigmoid = is(request, "routed_score_func", "sigmoid");
    l->softmax = is(request, "routed_score_func", "softmax");
    l->deepseek = is(request, "decoder_block", "deepseek");
    const bool deepseek2 = is(request, "model_name", "") ? l->softmax && !has_bias
                                                         : strncmp(setting(request, "model_name"), "deepseek2", 9) == 0;
    l->weights_from_biased = !l->deepseek || deepseek2 || l->bug == BIASED_WEIGHTS;
    l->divide = (l->deepseek ? l->sigmoid : is(request, "norm_topk_prob", "true")) && l->bug != NO_RENORMALISATION;
    l->factor = l->deepseek ? (float)number(request, "routed_scaling_factor") : 1;
    l->factor *= l->bug == SCALING_TWICE ? l->factor : 1;
    const bool grouped = l->deepseek && number(request, "n_routing_groups") > 0;
    l->groups = grouped ? (int64_t)number(request, "n_routing_groups") : 1;
    l->groups_kept = grouped ? (int64_t)number(request, "topk_routing_group") : 1;
    l->groups_by_max = is(request, "group_score", "") ? !has_bias : is(request, "group_score", "max");
    l->groups_by_max ^= l->bug == GROUP_SCORE_OTHER;
}

int assay_backend_run(const assay_backend_request *request) {
    static const char *const BUGS[] = {
#define X(code, name, issue, what) [code] = name,
        BUG_TABLE(X)
#undef X
    };
    const char *wanted_bug = getenv("ASSAY_EXAMPLE_BUG");
    layer l = {.request = request};
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "made for another version of the interface");
    for (int bug = NO_BUG + 1; bug < BUG_COUNT && wanted_bug != NULL; bug++)
        if (strcmp(BUGS[bug], wanted_bug) == 0) l.bug = (enum bug)bug;
#define X(code, name, issue, what) " " name
    if (wanted_bug != NULL && wanted_bug[0] != '\0' && l.bug == NO_BUG)
        return say(request, ASSAY_BACKEND_ERROR, "ASSAY_EXAMPLE_BUG may be%s", BUG_TABLE(X));
#undef X
    const char *missing = refusal(request);
    if (missing != NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "the example does not support %s", missing);
    for (int i = 0; i < request->result_count; i++)
        request->results[i].written = makes(request, request->results[i].path);
    set_up(&l);
    return run_layer(&l);
}
