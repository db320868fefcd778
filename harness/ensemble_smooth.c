#include <math.h>
#include <stdlib.h>

#include "harness/ensemble.h"
#include "oracle/arithmetic/elementary.h"
#include "oracle/base/memory.h"

enum {
    VIEWS = ASSAY_MAX_RANK + 1,
    CHUNK = 512,      /* elements or columns that a thread takes at a time */
    SHARED = 1 << 14, /* elements from which on threads pay */
    ENOUGH = 64,      /* squares in a mean that can stand alone: known to 18 % */
};

/* The tensor as `blocks` matrices, of which each has the model of_row times of_column. The columns of every view are
 * whole rows of the last axis. */
typedef struct view {
    int64_t blocks, rows, columns;
    double *of_row;    /* [blocks,rows] */
    double *of_column; /* [blocks,columns], about 1 on average */
} view;

static int64_t product_of(const assay_shape *shape, int first, int end)
{
    int64_t product = 1;
    for (int axis = first; axis < end; axis++) product *= shape->dims[axis];
    return product;
}

/* The first view is all axes but the last against the last. */
static int views_of(const assay_shape *shape, view *views)
{
    const int rank = shape->rank, last = rank > 0 ? rank - 1 : 0;
    int count = 0;
    views[count++] = (view){.blocks = 1, .rows = product_of(shape, 0, last), .columns = product_of(shape, last, rank)};
    for (int cut = 1; cut < last; cut++) {
        views[count++] =
            (view){.blocks = 1, .rows = product_of(shape, 0, cut), .columns = product_of(shape, cut, rank)};
    }
    if (rank >= 3) {
        views[count++] =
            (view){.blocks = shape->dims[0], .rows = product_of(shape, 1, last), .columns = shape->dims[last]};
    }
    return count;
}

/* A mean of fewer squares than ENOUGH is drawn towards `towards`; 0 stays. */
static double steadied(double mean, double towards, int64_t squares)
{
    const double own = squares >= ENOUGH ? 1 : (double)squares / ENOUGH;
    return mean > 0 ? own * mean + (1 - own) * towards : 0;
}

static void steady(double *means, int64_t count, int64_t squares)
{
    double sum = 0, positive = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += means[i];
        positive += means[i] > 0;
    }
    for (int64_t i = 0; i < count; i++) means[i] = steadied(means[i], sum / fmax(positive, 1), squares);
}

/* of_row = the mean of values / of_column, over the columns that are not 0. */
static void fit_rows(const assay_context *ctx, const view *v, int members, const double *values)
{
#pragma omp parallel for num_threads(ctx->threads) if (v->blocks * v->rows * v->columns >= SHARED)
    for (int64_t row = 0; row < v->blocks * v->rows; row++) {
        const double *from = values + row * v->columns, *columns = v->of_column + row / v->rows * v->columns;
        double sum = 0, count = 0;
        for (int64_t i = 0; i < v->columns; i++) {
            const bool counts = isfinite(from[i]) && columns[i] > 0;
            sum += counts ? from[i] / columns[i] : 0;
            count += counts;
        }
        v->of_row[row] = sum / fmax(count, 1);
    }
    for (int64_t block = 0; block < v->blocks; block++) {
        steady(v->of_row + block * v->rows, v->rows, v->columns * members);
    }
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
            const double *from = values + row * v->columns + first, of_row = v->of_row[row];
            for (int64_t i = 0; of_row > 0 && i < count; i++) {
                means[i] += isfinite(from[i]) ? from[i] / of_row : 0;
                counts[i] += isfinite(from[i]);
            }
        }
        for (int64_t i = 0; i < count; i++) means[i] = steadied(means[i] / fmax(counts[i], 1), 1, v->rows * members);
    }
}

/* Dividing before the mean is taken lets every element count alike, however large its row is: the most likely factors
 * for squares that are chi-squared (two rounds come near). */
static void fit(const assay_context *ctx, const view *v, int members, const double *values)
{
    for (int64_t i = 0; i < v->blocks * v->columns; i++) v->of_column[i] = 1;
    for (int round = 0; round < 2; round++) {
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

static bool can_stand_alone(const view *v, int members)
{
    return v->rows * members >= ENOUGH && v->columns * members >= ENOUGH;
}

static const view *best_of(const view *views, int count, int members, double mean)
{
    const view *best = NULL;
    double least = 0;
    for (int i = 0; i < count; i++) {
        if (!can_stand_alone(&views[i], members)) continue;
        const double found = misfit(&views[i], members, mean);
        if (best == NULL || found < least) {
            best = &views[i];
            least = found;
        }
    }
    return best != NULL ? best : &views[0];
}

static double mean_of(int64_t count, const double *values)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += isfinite(values[i]) ? values[i] : 0;
    return sum / (double)count;
}

static bool is_zero_throughout(const view *views, int count, int64_t element)
{
    bool zero = false;
    for (int i = 0; i < count; i++) {
        const view *v = &views[i];
        const int64_t row = element / v->columns, column = element % v->columns;
        zero |= v->of_row[row] == 0 || v->of_column[row / v->rows * v->columns + column] == 0;
    }
    return zero;
}

static void smooth(const assay_context *ctx, const view *views, int count, const view *best, int members,
                   double *values)
{
    const int64_t rows = best->blocks * best->rows, columns = best->columns;
#pragma omp parallel for num_threads(ctx->threads) if (rows * columns >= SHARED)
    for (int64_t row = 0; row < rows; row++) {
        const double of_row = best->of_row[row], *of_column = best->of_column + row / best->rows * columns;
        for (int64_t i = 0; i < columns; i++) {
            const int64_t element = row * columns + i;
            if (values[element] == 0 && is_zero_throughout(views, count, element)) continue;
            values[element] = sqrt(0.5 * (values[element] + of_row * of_column[i]) / members);
        }
    }
}

assay_status assay_ensemble_smooth(assay_context *ctx, const assay_shape *shape, int members, double *values)
{
    assay_status status = ASSAY_OK;
    view views[VIEWS] = {0};
    double *memory = NULL, *next;
    int64_t factors = 0;
    const int count = views_of(shape, views);
    const int64_t elements = views[0].rows * views[0].columns;
    if (elements == 0) return ASSAY_OK;
    for (int i = 0; i < count; i++) factors += views[i].blocks * (views[i].rows + views[i].columns);
    TRY(assay_alloc_f64(ctx, "factors of error scales", factors, &memory));
    const double mean = mean_of(elements, values);
    next = memory;
    for (int i = 0; i < count; i++) {
        views[i].of_row = next;
        views[i].of_column = next + views[i].blocks * views[i].rows;
        next = views[i].of_column + views[i].blocks * views[i].columns;
        fit(ctx, &views[i], members, values);
    }
    if (mean > 0) smooth(ctx, views, count, best_of(views, count, members, mean), members, values);
cleanup:
    free(memory);
    return status;
}
