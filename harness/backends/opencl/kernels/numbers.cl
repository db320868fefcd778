/* Numbers in memory are bfloat16 (-DSTORE_BFLOAT16) or float32 (-DSTORE_FLOAT32); all arithmetic is float32.
 * Errors to see caught are build flags: -DWITHOUT_WRITE_BARRIER, -DWITHOUT_READ_BARRIER, -DTAIL_DROPPED. */
#ifdef STORE_BFLOAT16
typedef ushort stored;
float get(stored x)
{
    return as_float((uint)x << 16);
}
/* to nearest, ties to even */
stored put(float x)
{
    const uint bits = as_uint(x);
    return isnan(x) ? (stored)0x7fc0 : (stored)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
#else
typedef float stored;
float get(stored x)
{
    return x;
}
stored put(float x)
{
    return x;
}
#endif

/* Around a tile in local memory: it is written whole before anyone reads it, and read before the next one is written. */
#ifdef WITHOUT_WRITE_BARRIER
#define TILE_WRITTEN()
#else
#define TILE_WRITTEN() barrier(CLK_LOCAL_MEM_FENCE)
#endif
#ifdef WITHOUT_READ_BARRIER
#define TILE_READ()
#else
#define TILE_READ() barrier(CLK_LOCAL_MEM_FENCE)
#endif

float sigmoid(float x)
{
    return 1 / (1 + exp(-x));
}

/* ---- between types; sums of parts ---- */

__kernel void widen(__global float *y, __global const stored *x, int count)
{
    const int i = get_global_id(0);
    if (i < count) y[i] = get(x[i]);
}

/* y = a + b + c; b and c may be NULL */
__kernel void sum_parts(__global stored *y, __global const stored *a, __global const stored *b, __global const float *c,
                        int count)
{
    const int i = get_global_id(0);
    if (i < count) y[i] = put(get(a[i]) + (b ? get(b[i]) : 0) + (c ? c[i] : 0));
}
