/* The steps of a MoE block by themselves: routing, permute, the grouped product, unpermute. */
#include "example.h"

#include <string.h>

void routing_run(example *e)
{
    moe m = {.weights = "weights/", .bug = e->bug, .variant = e->variant};
    const assay_backend_tensor *x = tensor(e->request, "inputs/x"), *logits = tensor(e->request, "inputs/logits");
    m.batch = e->batch, m.sequence = e->sequence, m.tokens = e->tokens;
    m.emb = x == NULL ? 0 : x->dims[2];
    m.experts = logits != NULL ? logits->dims[2] : tensor(e->request, "weights/gate/kernel")->dims[1];
    m.chosen = (int64_t)number(e->request, "num_experts_per_tok");
    m.x = whole(e, "inputs/", "x");
    routing_set_up(e, &m);
    load(m.logits, logits, 0, m.tokens * m.experts);
    routing_forward(e, &m);
    routing_store(e, &m);
    store(e, "outputs/", "", "weights", false, m.weights_of, m.tokens * m.chosen);

    float d_loss = 0, *d_x = take(&e->memory, m.tokens * m.emb);
    load(&d_loss, tensor(e->request, "cotangents/lb_loss"), 0, 1);
    load(m.d_weights, tensor(e->request, "cotangents/weights"), 0, m.tokens * m.chosen);
    routing_backward(&m, d_loss);
    gate_backward(e, &m, d_x);
    store(e, "gradients/", "", "inputs/x", true, d_x, m.tokens * m.emb);
    store(e, "gradients/", "", "inputs/logits", true, m.d_logits, m.tokens * m.experts);
}

/* Room for T*K integers, and those of the input where the case has it. */
static int32_t *choices(example *e, const moe *m, const char *path)
{
    const assay_backend_tensor *t = tensor(e->request, path);
    int32_t *values = take(&e->memory, m->rows.rows);
    if (t != NULL) memcpy(values, t->data, (size_t)m->rows.rows * sizeof *values);
    return values;
}

void permute_run(example *e)
{
    const int64_t *dims = tensor(e->request, "inputs/x")->dims;
    moe m = {.bug = e->bug, .variant = e->variant, .tokens = dims[0], .emb = dims[1]};
    m.chosen = tensor(e->request, "inputs/selected_experts")->dims[1];
    m.experts = (int64_t)number(e->request, "num_experts");
    m.rows.rows = m.tokens * m.chosen;
    const int64_t size = m.tokens * m.emb, copies = m.rows.rows * m.emb;
    m.x = whole(e, "inputs/", "x"), m.rows.x = take(&e->memory, copies), m.weights_of = take(&e->memory, m.rows.rows);
    m.selected = choices(e, &m, "inputs/selected_experts"), m.order = take(&e->memory, m.rows.rows),
    m.sizes = take(&e->memory, m.experts);
    sort_by_expert(&m);
    m.dispatch = m.order, m.dispatched = m.rows.rows;
    copies_gather(&m);
    store(e, "outputs/", "", "sorted_inputs", true, m.rows.x, copies);
    moe told = m;
    if (e->bug == UNSTABLE_SORT) { /* indices of another sort than the rows' */
        told.bug = NO_BUG, told.order = take(&e->memory, m.rows.rows);
        sort_by_expert(&told);
    }
    store(e, "outputs/", "", "sorted_selected_experts", false, told.order, m.rows.rows);
    store(e, "outputs/", "", "group_sizes", false, m.sizes, m.experts);

    const float *d_rows = whole(e, "cotangents/", "sorted_inputs");
    float *d_x = take(&e->memory, size);
    if (d_rows == NULL) return;
    copies_gather_backward(&m, d_x, d_rows);
    store(e, "gradients/", "", "inputs/x", true, d_x, size);
}

void unpermute_run(example *e)
{
    const assay_backend_tensor *weights = tensor(e->request, "inputs/weights");
    moe m = {.tokens = weights->dims[0], .chosen = weights->dims[1]};
    m.emb = tensor(e->request, "inputs/sorted")->dims[1], m.rows.rows = m.tokens * m.chosen;
    const int64_t size = m.tokens * m.emb, copies = m.rows.rows * m.emb;
    float *y = take(&e->memory, size);
    m.rows.o = whole(e, "inputs/", "sorted"), m.weights_of = whole(e, "inputs/", "weights");
    m.dispatch = choices(e, &m, "inputs/sorted_selected_experts"), m.dispatched = m.rows.rows;
    for (int64_t i = 0; i < m.rows.rows && m.chosen == 1 && e->bug == SINGLE_WEIGHT_SKIPPED; i++) m.weights_of[i] = 1;
    copies_combine(&m, y);
    store(e, "outputs/", "", "y", true, y, size);

    const float *d_y = whole(e, "cotangents/", "y");
    m.rows.d_o = take(&e->memory, copies), m.d_weights = take(&e->memory, m.rows.rows);
    if (d_y == NULL) return;
    copies_combine_backward(&m, d_y);
    store(e, "gradients/", "", "inputs/sorted", true, m.rows.d_o, copies);
    store(e, "gradients/", "", "inputs/weights", true, m.d_weights, m.rows.rows);
}

static const int32_t *group_sizes(example *e, int64_t groups, int64_t rows)
{
    const int32_t *given = tensor(e->request, "inputs/group_sizes")->data;
    int32_t *sizes = take(&e->memory, groups);
    int64_t place = 0, sum = 0;
    for (int64_t g = 0; g < groups; g++) {
        sizes[place] = given[g];
        sum += given[g];
        place += e->bug != EMPTY_GROUP_SHIFTS || given[g] > 0;
    }
    if (e->bug == PADDING_IN_LAST_GROUP) sizes[groups - 1] += (int32_t)(rows - sum);
    return sizes;
}

/* Rows of no group are never read, whatever they hold, and stay 0 in what is written. */
void gmm_run(example *e)
{
    const assay_backend_tensor *rhs = tensor(e->request, "weights/rhs"), *lhs = tensor(e->request, "inputs/lhs");
    const int64_t M = lhs->dims[0], groups = rhs->dims[0], k = rhs->dims[1], n = rhs->dims[2];
    const int32_t *sizes = group_sizes(e, groups, M);
    float *x = whole(e, "inputs/", "lhs"), *y = take(&e->memory, M * n), *w = take(&e->memory, k * n);
    float *d_y = whole(e, "cotangents/", "y"), *d_x = take(&e->memory, M * k);
    for (int64_t g = 0, first = 0; g < groups; first += sizes[g++]) {
        float *of_x = x + first * k, *d_w = gradient(e, "weights/", "rhs", g * k * n);
        load(w, rhs, g * k * n, k * n);
        linear(y + first * n, of_x, w, sizes[g], k, n);
        if (e->bug == VECTOR_TAIL_DROPPED) { /* forward alone */
            product(y + first * n, n, sizes[g], n, k / 8 * 8, (matrix){of_x, k, 1}, (matrix){w, n, 1});
            round_bf16(y + first * n, sizes[g] * n);
        }
        if (d_y != NULL) linear_backward(d_x + first * k, d_w, d_y + first * n, of_x, w, sizes[g], k, n);
    }
    store(e, "outputs/", "", "y", true, y, M * n);
    if (d_y != NULL) store(e, "gradients/", "", "inputs/lhs", true, d_x, M * k);
}
