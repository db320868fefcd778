#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "harness/scales/ensemble_internal.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

enum {
    CHUNK = 512,      /* elements or columns that a thread takes at a time */
    SHARED = 1 << 14, /* elements from which on threads pay */
    ENOUGH = 64,      /* squares in a mean that can stand alone: known to 18 % */
    LANES = 8,        /* sums side by side, which need not wait for each other */
};

typedef assay_error_view view;

/* The first view is all axes but the last against the last. An axis of 1 does not make another one. */
static int views_of(const assay_shape *shape, view *views)
{
    const int rank = shape->rank, last = rank > 0 ? rank - 1 : 0;
    int count = 0;
    views[count++] = (view){
        .blocks = 1, .rows = assay_axes_product(shape, 0, last), .columns = assay_axes_product(shape, last, rank)};
    for (int cut = 1; cut < last; cut++) {
        if (shape->dims[cut] == 1) continue;
        views[count++] = (view){
            .blocks = 1, .rows = assay_axes_product(shape, 0, cut), .columns = assay_axes_product(shape, cut, rank)};
    }
    if (rank >= 3 && shape->dims[0] > 1) {
        views[count++] =
            (view){.blocks = shape->dims[0], .rows = assay_axes_product(shape, 1, last), .columns = shape->dims[last]};
    }
    return count;
}

double assay_steadied(double mean, double towards, int64_t squares)
{
    const double own = squares >= ENOUGH ? 1 : (double)squares / ENOUGH;
    return mean > 0 ? own * mean + (1 - own) * towards : 0;
}

void assay_steady(double *means, int64_t count, int64_t squares)
{
    double sum = 0, positive = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += means[i];
        positive += means[i] > 0;
    }
    for (int64_t i = 0; i < count; i++) means[i] = assay_steadied(means[i], sum / fmax(positive, 1), squares);
}

static double sum_of(int64_t count, const double *x)
{
    double sums[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += x[i + lane];
    for (; i < count; i++) sum += x[i];
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

static double mean_of_row(int64_t count, const double *values, const double *per_column)
{
    double products[CHUNK], counts[CHUNK], sum = 0, counted = 0;
    for (int64_t first = 0; first < count; first += CHUNK) {
        const int64_t length = count - first < CHUNK ? count - first : CHUNK;
#pragma omp simd
        for (int64_t i = 0; i < length; i++) {
            const double value = values[first + i], per_this = per_column[first + i];
            const double product = value * per_this, one = per_this > 0 ? 1 : 0;
            products[i] = isfinite(value) ? product : 0;
            counts[i] = isfinite(value) ? one : 0;
        }
        sum += sum_of(length, products);
        counted += sum_of(length, counts);
    }
    return sum / fmax(counted, 1);
}

double assay_per(double x)
{
    return x > 0 ? fmin(1 / x, DBL_MAX) : 0;
}

/* of_row = the mean of values / of_column, over the columns that are not 0. */
static void fit_rows(const assay_context *ctx, const view *v, int members, const double *values)
{
#pragma omp parallel for num_threads(ctx->threads) if (v->blocks * v->rows * v->columns >= SHARED)
    for (int64_t row = 0; row < v->blocks * v->rows; row++)
        v->of_row[row] = mean_of_row(v->columns, values + row * v->columns, v->per_column + row / v->rows * v->columns);
    for (int64_t block = 0; block < v->blocks; block++)
        assay_steady(v->of_row + block * v->rows, v->rows, v->columns * members);
}

/* of_column = the mean of values / of_row, over the rows that are not 0. */
static void fit_columns(const assay_context *ctx, const view *v, int members, const double *values)
{
    const int64_t chunks = (v->columns + CHUNK - 1) / CHUNK;
#pragma omp parallel for num_threads(ctx->threads) if (v->blocks * v->rows * v->columns >= SHARED)
    for (int64_t part = 0; part < v->blocks * chunks; part++) {
        const int64_t block = part / chunks, first = part % chunks * CHUNK;
        const int64_t count = v->columns - first < CHUNK ? v->columns - first : CHUNK;
        double counts[CHUNK] = {0}, *means = v->of_column + block * v->columns + first;
        for (int64_t i = 0; i < count; i++) means[i] = 0;
        for (int64_t row = block * v->rows; row < (block + 1) * v->rows; row++) {
            const double *from = values + row * v->columns + first, per_row = assay_per(v->of_row[row]);
            if (per_row == 0) continue;
            for (int64_t i = 0; i < count; i++) {
                means[i] += isfinite(from[i]) ? from[i] * per_row : 0;
                counts[i] += isfinite(from[i]) ? 1 : 0;
            }
        }
        for (int64_t i = 0; i < count; i++)
            means[i] = assay_steadied(means[i] / fmax(counts[i], 1), 1, v->rows * members);
    }
}

/* Dividing before the mean is taken lets every element count alike, however large its row is: the most likely factors
 * for squares that are chi-squared (two rounds come near). */
static void fit(const assay_context *ctx, const view *v, int members, const double *values)
{
    const int64_t columns = v->blocks * v->columns;
    for (int64_t i = 0; i < columns; i++) v->of_column[i] = 1;
    for (int round = 0; round < 2; round++) {
        for (int64_t i = 0; i < columns; i++) v->per_column[i] = assay_per(v->of_column[i]);
        fit_rows(ctx, v, members, values);
        fit_columns(ctx, v, members, values);
    }
}

/* The mean of log (x / unit). A factor of 0 fits best of all: it counts as a very small one. */
static double mean_log(int64_t count, const double *x, double unit)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += assay_log(fmax(x[i] / unit, 0x1p-60));
    return sum / (double)count;
}

/* Minus twice the logarithm of the likelihood and Akaike's two for each factor, per element and member; without what
 * all views have in common. `mean`: of all values. */
static double misfit(const view *v, int members, double mean)
{
    const double factors = (double)(v->blocks * (v->rows + v->columns));
    const double elements = (double)(v->blocks * v->rows * v->columns);
    return mean_log(v->blocks * v->rows, v->of_row, mean) + mean_log(v->blocks * v->columns, v->of_column, 1) +
           2 * factors / (elements * members);
}

/* A view of one row says nothing that its columns do not. It is not fitted, but for the first. */
static bool is_fitted(const view *views, int i)
{
    return i == 0 || views[i].rows > 1;
}

static int best_of(const view *views, int count, int members, double mean)
{
    int best = 0;
    double least = INFINITY;
    for (int i = 0; i < count; i++) {
        if (!is_fitted(views, i) || views[i].rows * members < ENOUGH || views[i].columns * members < ENOUGH) continue;
        const double found = misfit(&views[i], members, mean);
        if (found < least) {
            best = i;
            least = found;
        }
    }
    return best;
}

static double mean_of(int64_t count, const double *values)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += isfinite(values[i]) ? values[i] : 0;
    return sum / (double)count;
}

/* A view of one row has columns of one element. */
static bool is_zero_throughout(const view *views, int count, int64_t element)
{
    bool zero = false;
    for (int i = 0; i < count; i++) {
        const view *v = &views[i];
        const int64_t row = element / v->columns, column = element % v->columns;
        zero |= v->rows == 1 || v->of_row[row] == 0 || v->of_column[row / v->rows * v->columns + column] == 0;
    }
    return zero;
}

static void smooth(const assay_context *ctx, const assay_error_model *model, double *values)
{
    const view *best = &model->views[model->best];
    const int64_t rows = best->blocks * best->rows, columns = best->columns;
#pragma omp parallel for num_threads(ctx->threads) if (rows * columns >= SHARED)
    for (int64_t row = 0; row < rows; row++) {
        const double of_row = best->of_row[row], *of_column = best->of_column + row / best->rows * columns;
        for (int64_t i = 0; i < columns; i++) {
            const int64_t element = row * columns + i;
            if (values[element] == 0 && is_zero_throughout(model->views, model->count, element)) continue;
            values[element] = sqrt(0.5 * (values[element] + of_row * of_column[i]) / model->members);
        }
    }
}

assay_status assay_error_model_fit(assay_context *ctx, const assay_shape *shape, int members, const double *squares,
                                   assay_error_model *model)
{
    int64_t factors = 0;
    *model = (assay_error_model){.members = members, .tails = 1};
    model->count = views_of(shape, model->views);
    const int64_t elements = model->views[0].rows * model->views[0].columns;
    if (elements == 0) return ASSAY_OK;
    for (int i = 0; i < model->count; i++)
        factors += model->views[i].blocks * (model->views[i].rows + 2 * model->views[i].columns);
    MUST(assay_alloc_f64(ctx, "factors of error scales", factors, &model->memory));
    double *next = model->memory;
    for (int i = 0; i < model->count; i++) {
        view *v = &model->views[i];
        v->of_row = next;
        v->of_column = v->of_row + v->blocks * v->rows;
        v->per_column = v->of_column + v->blocks * v->columns;
        next = v->per_column + v->blocks * v->columns;
        if (is_fitted(model->views, i)) fit(ctx, v, members, squares);
    }
    model->mean = mean_of(elements, squares);
    if (model->mean > 0) model->best = best_of(model->views, model->count, members, model->mean);
    return ASSAY_OK;
}

void assay_error_model_scale(const assay_context *ctx, const assay_error_model *model, double *squares)
{
    if (model->mean > 0) smooth(ctx, model, squares);
}

void assay_error_model_free(assay_error_model *model)
{
    free(model->memory);
    model->memory = NULL;
}

assay_status assay_ensemble_smooth(assay_context *ctx, const assay_shape *shape, int members, double *values)
{
    assay_error_model model;
    assay_status status = assay_error_model_fit(ctx, shape, members, values, &model);
    if (status == ASSAY_OK) assay_error_model_scale(ctx, &model, values);
    assay_error_model_free(&model);
    return status;
}
