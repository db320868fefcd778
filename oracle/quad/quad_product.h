/* Products of matrices in binary128: y [m,n] = x [m,k] times w [k,n].
 *
 * Small ones are made as they are written, one multiplication and one addition at a time: the scalar form. Others are made
 * of slices (quad_slices.h), whose products the float64 engine gives exactly, added from the smallest to the largest. Both
 * forms of an operation would share an error of that engine; hence each product of slices is held against a random vector
 * in integers modulo 2^64 (Freivalds 1979), which costs next to nothing.
 *
 * An element is within 2^-96 of the sum of its terms' sizes (the scalar form: k 2^-113). Where that can't be said, since
 * a number meets zeros alone that is far larger than all others of its line, and where a NaN or an infinity is in its row
 * or column, it is made in the scalar form. Which form makes an element is decided by sizes and numbers, never by threads
 * or the instruction set, and so are its bits. */
#pragma once

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/quad/quad.h"

/* Rows of x and y are ldx and ldy apart. w [k,n]; transposed it lies as [n,k]: rows ldw apart either way. y may not
 * overlap the others. */
typedef struct quad_product {
    int64_t m, n, k;
    const quad *x;
    int64_t ldx;
    const quad *w;
    int64_t ldw;
    bool w_transposed;
    quad *y;
    int64_t ldy;
} quad_product;

/* All rows without a gap. */
static inline quad_product quad_product_xw(quad *y, const quad *x, const quad *w, int64_t m, int64_t n, int64_t k)
{
    return (quad_product){.m = m, .n = n, .k = k, .x = x, .ldx = k, .w = w, .ldw = n, .y = y, .ldy = n};
}

assay_status quad_matmul(assay_context *ctx, const quad_product *product);

/* The two ways of it, each for any size. k beyond 299593 is too large for slices, and is made in the scalar form. `engine`
 * makes the products of slices, and is refused where it makes one wrong. */
void quad_matmul_scalar(const assay_context *ctx, const quad_product *product);
assay_status quad_matmul_sliced(assay_context *ctx, const quad_product *product, const assay_arithmetic *engine);
