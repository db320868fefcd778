/* Streams of random words, and the two loops that take the time, for each instruction set. Private to random*.c.
 * All instruction sets give the same bits; random_scalar.c is the one to read. */
#ifndef ASSAY_BASE_RANDOM_KERNELS_H
#define ASSAY_BASE_RANDOM_KERNELS_H

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
    /* lanes [4 * blocks] of the counters from first_block on; blocks is a multiple of 8. */
    void (*lanes)(uint32_t *lanes, int64_t blocks, const assay_random_stream *stream, uint64_t first_block);
    /* Box-Muller: normals [count] from lanes [count], pair by pair; count is a multiple of 16. */
    void (*normals)(double *normals, int64_t count, const uint32_t *lanes);
    /* mean + step * (the sum of the lane's bytes - 510), in float32. */
    void (*bells)(double *bells, int64_t count, const uint32_t *lanes, float mean, float step);
} assay_random_kernels;

/* The loop of all three: the compiler makes vectors of it, and the product is exact, so that nothing depends on how. */
static inline void assay_random_bells(double *bells, int64_t count, const uint32_t *lanes, float mean, float step)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t pairs = (lanes[i] & 0x00ff00ff) + (lanes[i] >> 8 & 0x00ff00ff);
        const int32_t sum = (int32_t)((pairs + (pairs >> 16)) & 0xffff);
        bells[i] = (double)(mean + step * (float)(sum - 510));
    }
}

extern const assay_random_kernels assay_random_scalar;
extern const assay_random_kernels assay_random_avx2;
extern const assay_random_kernels assay_random_avx512;

#endif
