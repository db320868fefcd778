/* Streams of random words, and the two loops that take the time, for each instruction set. Private to random*.c.
 * All instruction sets give the same bits; random_scalar.c is the one to read. */
#pragma once

#include "oracle/base/random.h"

/* What the words of a tensor are used for: the third word of Philox's counter. */
typedef enum assay_random_purpose {
    ASSAY_DRAW_ELEMENTS,
    ASSAY_DRAW_EXTRAS, /* powers of blocks and rows, what cancellation leaves, which groups are empty */
    ASSAY_DRAW_BITS    /* assay_random_bits */
} assay_random_purpose;

/* Lane i is word i mod 4 of Philox4x32-10 at the counter (low and high half of i / 4, purpose, 0). */
typedef struct assay_random_stream {
    uint32_t key[2];
    uint32_t purpose;
} assay_random_stream;

assay_random_stream assay_random_stream_of(uint64_t seed, const char *path, assay_random_purpose purpose);
uint32_t assay_random_lane(const assay_random_stream *stream, uint64_t index);

/* A whole number in [0, n), n at most 2^32. */
static inline uint64_t assay_random_below(uint32_t lane, uint64_t n)
{
    return lane * n >> 32;
}

/* Refuses parameters that the distribution cannot have. */
assay_status assay_random_check(assay_context *ctx, const assay_fill *fill, const char *path, const assay_shape *shape);

typedef struct assay_random_kernels {
    /* lanes [4 * blocks] of the counters from first_block on; blocks is a multiple of 16. All counters of a call have the
     * same upper half. */
    void (*lanes)(uint32_t *lanes, int64_t blocks, const assay_random_stream *stream, uint64_t first_block);
    /* Box-Muller: normals [count] from lanes [count], pair by pair; count is a multiple of 16. */
    void (*normals)(double *normals, int64_t count, const uint32_t *lanes);
    /* The same, each within 2^-45: for what is rounded to less than float64 afterwards. */
    void (*near_normals)(double *normals, int64_t count, const uint32_t *lanes);
    /* bells [4 * blocks]: mean + step * (the sum of the lane's bytes - 510), in float32, without its last `drop` bits:
     * rounded to even. The product is exact, so that it does not matter how it is done. mean is not -0. Blocks as above. */
    void (*bells)(double *bells, int64_t blocks, const assay_random_stream *stream, uint64_t first_block, float mean,
                  float step, int drop);
} assay_random_kernels;

/* Of a drop: (bits + half + (bits >> drop & one)) & kept rounds the bits of a float32. */
typedef struct assay_random_rounding {
    uint32_t half, one, kept;
} assay_random_rounding;

static inline assay_random_rounding assay_random_rounding_of(int drop)
{
    return (assay_random_rounding){drop > 0 ? (UINT32_C(1) << (drop - 1)) - 1 : 0, drop > 0, UINT32_MAX << drop};
}

extern const assay_random_kernels assay_random_scalar;
extern const assay_random_kernels assay_random_avx2;
extern const assay_random_kernels assay_random_avx512;
