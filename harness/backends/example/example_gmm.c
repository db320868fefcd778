/* The grouped product: rows sorted by group, each group with its own matrix. */
#include "example.h"

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
    float *x = whole(e, "inputs/lhs"), *y = take(&e->memory, M * n), *w = take(&e->memory, k * n);
    float *d_y = whole(e, "cotangents/y"), *d_x = take(&e->memory, M * k);
    for (int64_t g = 0, first = 0; g < groups; first += sizes[g++]) {
        float *of_x = x + first * k, *d_w = gradient(e, "weights/rhs", g * k * n);
        load(w, rhs, g * k * n, k * n);
        linear(y + first * n, of_x, w, sizes[g], k, n);
        if (e->bug == VECTOR_TAIL_DROPPED) { /* forward alone */
            product(y + first * n, n, sizes[g], n, k / 8 * 8, (matrix){of_x, k, 1}, (matrix){w, n, 1});
            round_bf16(y + first * n, sizes[g] * n);
        }
        if (d_y != NULL) linear_backward(d_x + first * k, d_w, d_y + first * n, of_x, w, sizes[g], k, n);
    }
    store(e, "outputs/y", true, y, M * n);
    if (d_y != NULL) store(e, "gradients/inputs/lhs", true, d_x, M * k);
}
