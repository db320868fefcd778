/* bfloat16, products, softmax, RMS norm. */
#include "example.h"

#include <math.h>
#include <string.h>

void round_bf16(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) x[i] = from_bf16(to_bf16(x[i]));
}

void product(float *out, int64_t out_row, int64_t m, int64_t n, int64_t k, matrix a, matrix b)
{
    for (int64_t i = 0; out != NULL && i < m; i++) {
        float *row = out + i * out_row;
        for (int64_t j = 0; j < n; j++) row[j] = 0;
        for (int64_t p = 0; p < k && b.column == 1; p++) /* along the rows of b */
            for (int64_t j = 0; j < n; j++) row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j];
        for (int64_t j = 0; j < n && b.column != 1; j++) /* down its columns, which are contiguous */
            for (int64_t p = 0; p < k; p++)
                row[j] += a.data[i * a.row + p * a.column] * b.data[p * b.row + j * b.column];
    }
}

void linear(float *y, const float *x, const float *w, int64_t rows, int64_t n, int64_t m)
{
    product(y, m, rows, m, n, (matrix){x, n, 1}, (matrix){w, m, 1});
    round_bf16(y, rows * m);
}

void linear_backward(float *dx, float *dw, const float *dy, const float *x, const float *w, int64_t rows, int64_t n,
                     int64_t m)
{
    product(dx, n, rows, n, m, (matrix){dy, m, 1}, (matrix){w, 1, m});
    round_bf16(dx, rows * n);
    product(dw, m, n, m, rows, (matrix){x, 1, n}, (matrix){dy, m, 1});
}

void add(float *sum, const float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) sum[i] += x[i];
}

float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

void softmax(float *y, const float *x, int64_t count)
{
    float largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) largest = x[i] > largest ? x[i] : largest;
    for (int64_t i = 0; i < count; i++) sum += y[i] = expf(x[i] - largest);
    for (int64_t i = 0; i < count; i++) y[i] /= sum;
}

void softmax_backward(float *d, const float *y, int64_t count)
{
    float mean = 0;
    for (int64_t i = 0; i < count; i++) mean += d[i] * y[i];
    for (int64_t i = 0; i < count; i++) d[i] = y[i] * (d[i] - mean);
}

static float reciprocal_root(const float *x, const norm *m)
{
    float sum = 0;
    for (int64_t i = 0; i < m->n; i++) sum += x[i] * x[i];
    return 1 / sqrtf(sum / (float)m->n + m->epsilon);
}

void norm_forward(float *y, const norm *m)
{
    for (int64_t t = 0; t < m->rows; t++) {
        const float *x = m->x + t * m->x_row, r = reciprocal_root(x, m);
        for (int64_t i = 0; i < m->n; i++) y[t * m->n + i] = x[i] * r * m->scale[i];
    }
    round_bf16(y, m->rows * m->n);
}

void norm_backward(float *dx, float *dscale, const float *dy, const norm *m)
{
    for (int64_t i = 0; i < m->n && dscale != NULL; i++) dscale[i] = 0;
    for (int64_t t = 0; t < m->rows; t++) {
        const float *x = m->x + t * m->x_row, *d = dy + t * m->n, r = reciprocal_root(x, m);
        float mean = 0; /* what the change of r takes away */
        for (int64_t i = 0; i < m->n; i++) mean += d[i] * m->scale[i] * x[i];
        mean *= r * r / (float)m->n;
        for (int64_t i = 0; i < m->n; i++) dx[t * m->x_row + i] = r * (d[i] * m->scale[i] - x[i] * mean);
        for (int64_t i = 0; i < m->n && dscale != NULL; i++) dscale[i] += d[i] * x[i] * r;
        round_bf16(dx + t * m->x_row, m->n);
    }
}
