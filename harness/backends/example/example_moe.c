/* The MoE block: copies of tokens sorted by expert, a gated MLP on each expert's rows, their weighted sums. */
#include "example.h"

#include <math.h>

/* Rows are copies of tokens: those of expert 0, 1, ..., then, for the shared expert (number E), one of every token. */
typedef struct copy {
    int64_t token, choice; /* choice: place in [T,K], -1 for the shared expert */
    float scale, weight;   /* of what goes into the expert, of what comes out */
} copy;

static copy copy_at(const moe *m, int64_t r)
{
    if (r >= m->dispatched) return (copy){r - m->dispatched, -1, 1, 1};
    const int64_t choice = m->dispatch[r], token = choice / m->chosen;
    const float weight = m->weights_of[choice];
    return m->scales_tokens ? (copy){token, choice, sigmoid(weight), 1} : (copy){token, choice, 1, weight};
}

/* Which choices experts compute: of each batch row the first `capacity` of an expert, the rest are dropped. */
static void dispatch(moe *m)
{
    const int64_t choices = m->tokens * m->chosen, row = m->sequence * m->chosen;
    int64_t place = 0;
    for (int64_t i = 0; i < choices; i++) {
        const int32_t choice = m->order[i], before = i > 0 ? m->order[i - 1] : choice;
        const bool same = m->selected[before] == m->selected[choice] && before / row == choice / row;
        place = i > 0 && same ? place + 1 : 0;
        m->place[choice] = place < m->capacity ? (int32_t)place : -1;
        if (place >= m->capacity) continue;
        m->dispatch[m->dispatched++] = choice;
        m->dispatch_sizes[m->selected[choice]]++;
    }
    m->rows.rows = m->dispatched + (m->shared_hidden > 0 ? m->tokens : 0);
}

/* Its weights, and its rows, which begin at `first`. */
static void load_expert(example *e, mlp *expert, const moe *m, int64_t number, int64_t first)
{
    const mlp *all = &m->rows;
    *expert = *all;
    expert->rows = number == m->experts ? m->tokens : m->dispatch_sizes[number];
    expert->hidden = number == m->experts ? m->shared_hidden : m->hidden;
    expert->x += first * m->emb, expert->o += first * m->emb, expert->d_o += first * m->emb;
    expert->a += first * all->hidden, expert->b += first * all->hidden, expert->h += first * all->hidden;
    expert->glu = glu_of(e->request, number == m->experts ? SHARED : ROUTED);
    if (number == m->experts) {
        mlp_load(e, expert, "weights/shared_experts/", "/kernel", 0);
    } else {
        mlp_load(e, expert, "weights/", "", number);
    }
}

static void gather(const moe *m)
{
    const int64_t D = m->emb;
    for (int64_t r = 0; r < m->rows.rows; r++) {
        const copy at = copy_at(m, r);
        for (int64_t i = 0; i < D; i++) m->rows.x[r * D + i] = m->x[at.token * D + i] * at.scale;
    }
    round_bf16(m->rows.x, m->rows.rows * D);
}

static void gather_backward(const moe *m, float *d_x, const float *d_rows)
{
    const int64_t D = m->emb;
    for (int64_t r = 0; r < m->rows.rows; r++) {
        const copy at = copy_at(m, r);
        const float slope = at.scale * (1 - at.scale); /* of the scale by the weight */
        for (int64_t i = 0; i < D; i++) {
            const float d = d_rows[r * D + i];
            d_x[at.token * D + i] += d * at.scale;
            if (at.choice >= 0 && m->scales_tokens) m->d_weights[at.choice] += d * m->x[at.token * D + i] * slope;
        }
    }
}

static void combine(const moe *m, float *y)
{
    const int64_t D = m->emb;
    for (int64_t r = 0; r < m->rows.rows; r++) {
        const copy at = copy_at(m, r);
        for (int64_t i = 0; i < D; i++) y[at.token * D + i] += at.weight * m->rows.o[r * D + i];
    }
}

static void combine_backward(const moe *m, const float *d_y)
{
    const int64_t D = m->emb;
    for (int64_t r = 0; r < m->rows.rows; r++) {
        const copy at = copy_at(m, r);
        for (int64_t i = 0; i < D; i++) {
            const float d = d_y[at.token * D + i];
            m->rows.d_o[r * D + i] = at.weight * d;
            if (at.choice >= 0 && !m->scales_tokens) m->d_weights[at.choice] += m->rows.o[r * D + i] * d;
        }
    }
    round_bf16(m->rows.d_o, m->rows.rows * D);
}

static void experts_forward(example *e, const moe *m, float *y)
{
    const int64_t experts = m->experts + (m->shared_hidden > 0);
    gather(m);
    for (int64_t number = 0, first = 0; number < experts; number++) {
        const int mark = e->memory.count;
        mlp expert;
        load_expert(e, &expert, m, number, first);
        mlp_forward(&expert);
        first += expert.rows;
        give_back(&e->memory, mark);
    }
    combine(m, y);
}

static void experts_backward(example *e, moe *m, float *d_x, const float *d_y)
{
    const int64_t D = m->emb, experts = m->experts + (m->shared_hidden > 0);
    float *d_rows = take(&e->memory, m->rows.rows * D);
    combine_backward(m, d_y);
    for (int64_t number = 0, first = 0; number < experts; number++) {
        const int mark = e->memory.count;
        mlp expert;
        load_expert(e, &expert, m, number, first);
        mlp_backward(e, &expert, d_rows + first * D);
        first += expert.rows;
        give_back(&e->memory, mark);
    }
    gather_backward(m, d_x, d_rows);
}

static void gate_backward(example *e, const moe *m, float *d_x)
{
    const int64_t T = m->tokens, D = m->emb, E = m->experts;
    float *through = take(&e->memory, T * D), *d_bias = gradient(e, "weights/gate/bias", 0);
    product(gradient(e, "weights/gate/kernel", 0), E, D, E, T, (matrix){m->x, 1, D}, (matrix){m->d_logits, E, 1});
    product(through, D, T, D, E, (matrix){m->d_logits, E, 1}, (matrix){m->gate, 1, E});
    add(d_x, through, T * D);
    for (int64_t i = 0; i < E && d_bias != NULL; i++) d_bias[i] = 0;
    for (int64_t t = 0; t < T && d_bias != NULL; t++) add(d_bias, m->d_biased + t * E, E);
}

static int64_t capacity_of(const moe *m, double factor)
{
    const int64_t choices = m->sequence * m->chosen, share = (choices + m->experts - 1) / m->experts;
    return m->drops ? (int64_t)fmax((double)share * factor, factor) : choices;
}

static void set_up(example *e, moe *m)
{
    const assay_backend_tensor *wo = tensor(e->request, "weights/wo");
    const assay_backend_tensor *shared = tensor(e->request, "weights/shared_experts/wo/kernel");
    m->batch = e->batch, m->sequence = e->sequence, m->tokens = e->tokens;
    m->experts = wo->dims[0], m->hidden = wo->dims[1], m->emb = wo->dims[2];
    m->shared_hidden = shared == NULL ? 0 : shared->dims[0];
    m->chosen = (int64_t)number(e->request, "num_experts_per_tok");
    m->drops = is(e->request, "sparse_matmul", "false") && number(e->request, "capacity_factor") > 0;
    m->capacity = capacity_of(m, number(e->request, "capacity_factor"));
    m->rows.bug = e->bug;
    m->rows.rows = m->tokens * m->chosen + (m->shared_hidden > 0 ? m->tokens : 0); /* at most */
    m->rows.emb = m->emb, m->rows.hidden = m->hidden > m->shared_hidden ? m->hidden : m->shared_hidden;
    m->rows.x = take(&e->memory, m->rows.rows * m->emb), m->rows.d_o = take(&e->memory, m->rows.rows * m->emb);
    mlp_take(e, &m->rows);
    m->place = take(&e->memory, m->tokens * m->chosen), m->dispatch = take(&e->memory, m->tokens * m->chosen);
    m->dispatch_sizes = take(&e->memory, m->experts);
    routing_set_up(e, m);
}

/* Of dropping: which place of which expert a token takes [T,E,C], with its weight and as 0 or 1. */
static void store_masks(example *e, const moe *m)
{
    const int mark = e->memory.count;
    const int64_t cells = m->tokens * m->experts * m->capacity;
    float *combine = take(&e->memory, cells);
    int32_t *taken = take(&e->memory, cells);
    for (int64_t r = 0; r < m->dispatched; r++) {
        const int32_t choice = m->dispatch[r];
        const int64_t row = choice / m->chosen * m->experts + m->selected[choice];
        combine[row * m->capacity + m->place[choice]] = m->weights_of[choice];
        taken[row * m->capacity + m->place[choice]] = m->weights_of[choice] != 0;
    }
    store(e, "routing/combine_mask", false, combine, cells);
    store(e, "routing/dispatch_mask", false, taken, cells);
    give_back(&e->memory, mark);
}

static void store_routing(example *e, const moe *m)
{
    const int64_t choices = m->tokens * m->chosen;
    float *updates = take(&e->memory, m->experts), loss = routing_balance(m, updates);
    if (m->drops) store_masks(e, m);
    store(e, "outputs/lb_loss", false, &loss, 1);
    store(e, "outputs/bias_updates", false, updates, m->experts);
    store(e, "routing/weights", false, m->weights_of, choices);
    store(e, "routing/selected_experts", false, m->selected, choices);
    store(e, "routing/sorted_selected_experts", false, m->order, choices);
    store(e, "routing/group_sizes", false, m->sizes, m->experts);
}

void moe_run(example *e)
{
    const int64_t size = e->tokens * tensor(e->request, "inputs/x")->dims[2];
    float *x = whole(e, "inputs/x"), *d_y = whole(e, "cotangents/y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size), d_loss = 0;
    moe m = {.x = x, .bug = e->bug, .variant = e->variant};
    set_up(e, &m);
    routing_forward(e, &m);
    dispatch(&m);
    experts_forward(e, &m, y);
    store_routing(e, &m);
    store(e, "outputs/y", true, y, size);

    load(&d_loss, tensor(e->request, "cotangents/lb_loss"), 0, 1);
    experts_backward(e, &m, d_x, d_y != NULL ? d_y : take(&e->memory, size));
    routing_backward(&m, d_loss);
    gate_backward(e, &m, d_x);
    store(e, "gradients/inputs/x", true, d_x, size);
}
