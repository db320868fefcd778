/* The two operations. Formulas: docs/operations.md, "rms_norm" and docs/operations.md, "gmm". */
#include "example.h"

#include <math.h>

static float reciprocal_root(const float *x, int64_t n, float epsilon)
{
    float sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum / (float)n + epsilon);
}

/* d becomes the gradient by x. */
static void norm_row_backward(float *d, float *d_scale, const float *x, const float *scale, int64_t n, float r)
{
    float mean = 0; /* what the change of r takes away */
    for (int64_t i = 0; i < n; i++) mean += d[i] * scale[i] * x[i];
    mean *= r * r / (float)n;
    for (int64_t i = 0; i < n && d_scale != NULL; i++) d_scale[i] += d[i] * x[i] * r;
    for (int64_t i = 0; i < n; i++) d[i] = r * (d[i] * scale[i] - x[i] * mean);
}

void rms_norm_run(example *e)
{
    const assay_backend_tensor *given = tensor(e->request, "inputs/x");
    const int64_t n = given->dims[2], size = given->dims[0] * given->dims[1] * n;
    const float epsilon = (float)number(e->request, "normalization_layer_epsilon");
    float *x = whole(e, "inputs/x"), *scale = whole(e, "weights/scale"), *y = take(&e->memory, size);
    float *d = whole(e, "cotangents/y"), *d_scale = d == NULL ? NULL : gradient(e, "weights/scale", 0);
    for (int64_t i = 0; i < n && d_scale != NULL; i++) d_scale[i] = 0;
    for (int64_t first = 0; first < size; first += n) {
        const float r = reciprocal_root(x + first, n, epsilon);
        for (int64_t i = 0; i < n; i++) y[first + i] = x[first + i] * r * scale[i];
        if (d != NULL) norm_row_backward(d + first, d_scale, x + first, scale, n, r);
    }
    store(e, "outputs/y", y, size);
    if (d != NULL) store(e, "gradients/inputs/x", d, size);
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

/* Rows sorted by group, each group with its own matrix. Those of no group are never read, whatever they hold, and stay 0 in what is
 * written. */
void gmm_run(example *e)
{
    const assay_backend_tensor *rhs = tensor(e->request, "weights/rhs"), *lhs = tensor(e->request, "inputs/lhs");
    const int64_t rows = lhs->dims[0], groups = rhs->dims[0], k = rhs->dims[1], n = rhs->dims[2];
    const int64_t summed = e->bug == VECTOR_TAIL_DROPPED ? k / 8 * 8 : k; /* forward alone */
    const int32_t *sizes = group_sizes(e, groups, rows);
    float *x = whole(e, "inputs/lhs"), *y = take(&e->memory, rows * n), *w = take(&e->memory, k * n);
    float *d_y = whole(e, "cotangents/y"), *d_x = take(&e->memory, rows * k);
    for (int64_t g = 0, first = 0; g < groups; first += sizes[g++]) {
        const float *of_x = x + first * k, *of_y = d_y == NULL ? NULL : d_y + first * n;
        load(w, rhs, g * k * n, k * n);
        product(y + first * n, sizes[g], n, summed, (matrix){of_x, k, 1}, (matrix){w, n, 1});
        if (d_y == NULL) continue;
        product(d_x + first * k, sizes[g], k, n, (matrix){of_y, n, 1}, (matrix){w, 1, n});
        product(gradient(e, "weights/rhs", g * k * n), k, n, sizes[g], (matrix){of_x, 1, k}, (matrix){of_y, n, 1});
    }
    store(e, "outputs/y", y, rows * n);
    if (d_y != NULL) store(e, "gradients/inputs/lhs", d_x, rows * k);
}
