/* The grouped product. Rows lie in segments (first row, rows, group), in which a work-group has a tile of rows: a tile
 * table is made on the device, so that no size goes back to the host. */

/* Tiles of TILE rows of all segments, one after the other; what is left of the table has no rows. */
__kernel void tiles_of_segments(__global int4 *tiles, int tile_count, __global const int4 *segments, int segment_count)
{
    int tile = 0;
    for (int s = 0; s < segment_count; s++) {
        const int4 segment = segments[s];
        for (int row = 0; row < segment.s1; row += TILE)
            tiles[tile++] = (int4)(segment.s0 + row, min(TILE, segment.s1 - row), segment.s2, 0);
    }
    for (; tile < tile_count; tile++) tiles[tile] = (int4)(0);
}

/* How a [groups,k,n] kernel lies in memory, transposed or not: element (g,p,j) is at first + g group + p row + j column. */
typedef struct layout {
    long first, group, row, column;
} layout;

/* c[r,j] = bias[g,j] + the sum over p of a[r,p] b[g,p,j], for the rows of each tile; a [rows,k], c [rows,n]. Also
 * plus what is in `more` [rows,n]. bias and more may be NULL. */
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
product_rows(__global stored *c, __global const stored *a, __global const stored *b, __global const stored *bias,
             __global const stored *more, __global const int4 *tiles, int k, int n, layout of_b)
{
    __local float tile_a[TILE][TILE], tile_b[TILE][TILE];
    const int4 tile = tiles[get_group_id(1)];
    const int i = get_local_id(1), j = get_local_id(0), column = get_global_id(0);
    const long row = tile.s0 + i;
    const bool mine = i < tile.s1 && column < n;
    float sum = 0;
    if (tile.s1 == 0) return; /* the whole work-group */
    b += of_b.first + tile.s2 * of_b.group;
#ifdef TAIL_DROPPED
    k = k / TILE * TILE;
#endif
    for (int p = 0; p < k; p += TILE) {
        tile_a[i][j] = i < tile.s1 && p + j < k ? get(a[row * k + p + j]) : 0;
        tile_b[i][j] = p + i < k && column < n ? get(b[(p + i) * of_b.row + column * of_b.column]) : 0;
        TILE_WRITTEN();
        for (int q = 0; q < TILE; q++) sum += tile_a[i][q] * tile_b[q][j];
        TILE_READ();
    }
    if (!mine) return;
    if (bias) sum += get(bias[(long)tile.s2 * n + column]);
    if (more) sum += get(more[row * n + column]);
    c[row * n + column] = put(sum);
}

/* The gradient of b: d[g,p,j] = the sum over the rows of group g of a[r,p] c[r,j], in float32; an empty group has 0.
 * Plus what is in `more` [groups,k,n], which may be NULL. */
__kernel __attribute__((reqd_work_group_size(TILE, TILE, 1))) void
product_weights(__global float *d, __global const stored *a, __global const stored *c, __global const stored *more,
                __global const int4 *segments, int segment_count, int k, int n, layout of_d)
{
    __local float tile_a[TILE][TILE], tile_c[TILE][TILE];
    const int i = get_local_id(1), j = get_local_id(0), p = get_global_id(1), column = get_global_id(0);
    const int first_p = get_group_id(1) * TILE, group = get_group_id(2);
    float sum = 0;
    for (int s = 0; s < segment_count; s++) {
        const int4 segment = segments[s];
        if (segment.s2 != group) continue;
        for (int r = 0; r < segment.s1; r += TILE) {
            const long row = segment.s0 + r + i;
            const bool there = r + i < segment.s1;
            tile_a[i][j] = there && first_p + j < k ? get(a[row * k + first_p + j]) : 0;
            tile_c[i][j] = there && column < n ? get(c[row * n + column]) : 0;
            TILE_WRITTEN();
            for (int q = 0; q < TILE; q++) sum += tile_a[q][i] * tile_c[q][j];
            TILE_READ();
        }
    }
    if (p >= k || column >= n) return;
    if (more) sum += get(more[((long)group * k + p) * n + column]);
    d[of_d.first + group * of_d.group + p * of_d.row + column * of_d.column] = sum;
}

/* The gradient of a bias: d[g,j] = the sum over the rows of group g of c[r,j]. */
__kernel void sum_rows(__global float *d, __global const stored *c, __global const int4 *segments, int segment_count,
                       int n)
{
    const int j = get_global_id(0), group = get_global_id(1);
    float sum = 0;
    if (j >= n) return;
    for (int s = 0; s < segment_count; s++)
        for (long r = 0; r < segments[s].s1 && segments[s].s2 == group; r++) sum += get(c[(segments[s].s0 + r) * n + j]);
    d[(long)group * n + j] = sum;
}
