#include <math.h>
#include <stdlib.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/arithmetic/precision.h"
#include "oracle/base/memory.h"

typedef enum operand_form { ABSOLUTE, SQUARED } operand_form;

/* |x| or x^2 of every element that an operand's layout spans (`rows` stored rows of `columns`, `ld` apart). */
static void transform(const assay_context *ctx, double *out, const double *x, int64_t rows, int64_t columns, int64_t ld,
                      operand_form form) {
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t row = 0; row < rows; row++) {
        const double *in = x + row * ld;
        double *to = out + row * ld;
        for (int64_t i = 0; i < columns; i++)
            to[i] = form == ABSOLUTE ? fabs(in[i]) : in[i] * in[i];
    }
}

typedef struct operand {
    const double *values, *variance;
    double *work; /* |x| or x^2, in the operand's layout */
    int64_t rows, columns, ld;
} operand;

static assay_status operand_alloc(assay_context *ctx, operand *o, const double *values, const double *variance,
                                  int64_t rows, int64_t columns, int64_t ld) {
    *o = (operand){.values = values, .variance = variance, .rows = rows, .columns = columns, .ld = ld};
    return assay_alloc_f64(ctx, "error scale of a product", rows * ld, &o->work);
}

static void operand_fill(const assay_context *ctx, operand *o, operand_form form) {
    transform(ctx, o->work, o->values, o->rows, o->columns, o->ld, form);
}

/* variance += a b, through `scratch` [m,n]. */
static assay_status add_product(assay_context *ctx, const assay_matmul_args *args, double *scratch, const double *a,
                                const double *b, double factor) {
    assay_matmul_args product = *args;
    product.a = a;
    product.b = b;
    product.c = scratch;
    product.ldc = args->n;
    assay_status status = assay_matmul(ctx, &product);
    RETURN_IF(status != ASSAY_OK, status);
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++)
            args->c[i * args->ldc + j] += factor * scratch[i * args->n + j];
    }
    return ASSAY_OK;
}

assay_status assay_gauge_matmul(assay_context *ctx, const assay_precision *precision, const assay_matmul_args *args,
                                const double *variance_a, const double *variance_b) {
    assay_status status;
    operand a = {0}, b = {0};
    double *scratch = NULL;
    TRY(operand_alloc(ctx, &a, args->a, variance_a, args->transpose_a ? args->k : args->m,
                      args->transpose_a ? args->m : args->k, args->lda));
    TRY(operand_alloc(ctx, &b, args->b, variance_b, args->transpose_b ? args->n : args->k,
                      args->transpose_b ? args->k : args->n, args->ldb));
    TRY(assay_alloc_f64(ctx, "error scale of a product", args->m * args->n, &scratch));

    /* (sqrt(k) accumulate S)^2 */
    assay_matmul_args sums = *args;
    operand_fill(ctx, &a, ABSOLUTE);
    operand_fill(ctx, &b, ABSOLUTE);
    sums.a = a.work;
    sums.b = b.work;
    TRY(assay_matmul(ctx, &sums));
    double growth = precision->accumulate * precision->accumulate * (double)args->k;
    for (int64_t i = 0; i < args->m; i++) {
        for (int64_t j = 0; j < args->n; j++) {
            double s = args->c[i * args->ldc + j];
            args->c[i * args->ldc + j] = growth * s * s;
        }
    }

    operand_fill(ctx, &a, SQUARED);
    operand_fill(ctx, &b, SQUARED);
    if (variance_b != NULL) TRY(add_product(ctx, args, scratch, a.work, variance_b, 1.0));
    if (variance_a != NULL) TRY(add_product(ctx, args, scratch, variance_a, b.work, 1.0));
    if (precision->multiply > 0.0) {
        TRY(add_product(ctx, args, scratch, a.work, b.work, 2.0 * precision->multiply * precision->multiply));
    }
cleanup:
    free(a.work);
    free(b.work);
    free(scratch);
    return status;
}

void assay_gauge_store(double unit, int64_t count, const double *value, double *variance) {
    for (int64_t i = 0; i < count; i++) {
        double error = unit * value[i];
        variance[i] += error * error;
    }
}
