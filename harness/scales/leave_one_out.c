/* A member of an ensemble against the error scales of the others. The model of the others is that of all with what the
 * member adds to each factor left out; it is not fitted again for every member. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "harness/scales/ensemble_internal.h"
#include "oracle/base/memory.h"

enum { LANES = 8 };

static int64_t positive(int64_t count, const double *x)
{
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++) found += x[i] > 0;
    return found;
}

/* One row: the sum of e^2 / of_column; e^2 / of_row is added to the columns. */
static double add_row(int64_t count, const float *errors, const double *per_column, double per_row, double *of_column)
{
    double sums[LANES] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        for (int64_t lane = 0; lane < LANES; lane++) {
            const double error = errors[i + lane], square = fabs(error) <= FLT_MAX ? error * error : 0;
            sums[lane] += square * per_column[i + lane];
            of_column[i + lane] += square * per_row;
        }
    }
    for (; i < count; i++) {
        const double error = errors[i], square = fabs(error) <= FLT_MAX ? error * error : 0;
        sum += square * per_column[i];
        of_column[i] += square * per_row;
    }
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

/* A member's own factors, those of the model given; columns to a constant. */
static void factors(const assay_error_view *v, const float *errors, double *of_row, double *of_column)
{
    for (int64_t i = 0; i < v->blocks * v->columns; i++) of_column[i] = 0;
    for (int64_t block = 0; block < v->blocks; block++) {
        const double *per_column = v->per_column + block * v->columns;
        const double counted = fmax((double)positive(v->columns, per_column), 1);
        for (int64_t row = block * v->rows; row < (block + 1) * v->rows; row++) {
            of_row[row] = add_row(v->columns, errors + row * v->columns, per_column, assay_per(v->of_row[row]),
                                  of_column + block * v->columns) /
                          counted;
        }
    }
}

static void add_squares(int64_t count, const float *errors, double *squares)
{
    for (int64_t i = 0; i < count; i++) squares[i] += (double)errors[i] * errors[i];
}

/* Of elements of one row. What rounding leaves of a difference, where only the member errs, is no error of the others.
 */
static void variances(int64_t count, const float *own, const double *squares, double of_row, const double *of_column,
                      double per_other, double *variance)
{
    for (int64_t i = 0; i < count; i++) {
        const double others = squares[i] - (double)own[i] * own[i];
        const double left = others > 0x1p-40 * squares[i] ? others : 0;
        variance[i] = per_other * (left + of_row * of_column[i]);
    }
}

/* The sum of the others in place of each member's own: of those before it and those behind it. (All less one would leave
 * rounding where the others are 0.) */
static void sum_others(int members, int64_t count, double *sums)
{
    for (int64_t i = 0; i < count; i++) {
        double behind[ASSAY_MOST_MEMBERS], before = 0, sum = 0;
        for (int m = members - 1; m >= 0; m--) {
            behind[m] = sum;
            sum += sums[m * count + i];
        }
        for (int m = 0; m < members; m++) {
            const double own = sums[m * count + i];
            sums[m * count + i] = before + behind[m];
            before += own;
        }
    }
}

/* Columns above 0 are 1 on average: how large errors are at all is in the rows. */
static void level_columns(int64_t count, int64_t squares, double *of_column)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += of_column[i];
    const double per_mean = assay_per(sum / fmax((double)positive(count, of_column), 1));
    for (int64_t i = 0; i < count; i++) of_column[i] = assay_steadied(of_column[i] * per_mean, 1, squares);
}

assay_status assay_leave_one_out_start(assay_context *ctx, const assay_error_model *model, int64_t count,
                                       const float *errors, assay_leave_one_out *held)
{
    const assay_error_view *v = &model->views[model->best];
    const int members = model->members;
    const int64_t rows = v->blocks * v->rows, columns = v->blocks * v->columns;
    *held =
        (assay_leave_one_out){.view = v, .tails = model->tails, .members = members, .errors = errors, .count = count};
    if (count == 0) return ASSAY_OK;
    MUST(assay_alloc_f64(ctx, "factors of error scales", members * (rows + columns), &held->memory));
    held->of_row = held->memory;
    held->of_column = held->memory + members * rows;
    for (int64_t i = 0; i < columns; i++) v->per_column[i] = assay_per(v->of_column[i]);
#pragma omp parallel for num_threads(ctx->threads)
    for (int m = 0; m < members; m++)
        factors(v, errors + m * count, held->of_row + m * rows, held->of_column + m * columns);
    sum_others(members, rows, held->of_row);
    sum_others(members, columns, held->of_column);
    for (int64_t part = 0; part < members * v->blocks; part++) {
        assay_steady(held->of_row + part * v->rows, v->rows, v->columns * (members - 1));
        level_columns(v->columns, v->rows * (members - 1), held->of_column + part * v->columns);
    }
    return ASSAY_OK;
}

void assay_leave_one_out_squares(const assay_leave_one_out *held, int64_t first, int64_t count, double *squares)
{
    for (int64_t i = 0; i < count; i++) squares[i] = 0;
    for (int m = 0; m < held->members; m++) {
        const float *errors = held->errors + m * held->count + first;
        add_squares(count, errors, squares);
    }
}

void assay_leave_one_out_variances(const assay_leave_one_out *held, int member, int64_t first, int64_t count,
                                   const double *squares, double *variance)
{
    const assay_error_view *v = held->view;
    const double per_other = held->tails * held->tails * 0.5 / (held->members - 1);
    while (count > 0) {
        const int64_t row = first / v->columns, column = first % v->columns, left = v->columns - column;
        const int64_t n = count < left ? count : left;
        variances(n, held->errors + member * held->count + first, squares,
                  held->of_row[member * v->blocks * v->rows + row],
                  held->of_column + (member * v->blocks + row / v->rows) * v->columns + column, per_other, variance);
        first += n, squares += n, variance += n;
        count -= n;
    }
}

void assay_leave_one_out_free(assay_leave_one_out *held)
{
    free(held->memory);
    held->memory = NULL;
}
