/* Copies of tokens sorted by expert, and back. `places` [T*K] says in which row a choice is, `order` [T*K] which choice
 * a row is of; -1 where there is none. */

/* How many choices each expert has: one work-group for each, a tree sum in local memory. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
count_choices(__global int *sizes, __global const int *selected, int choices)
{
    __local int counts[LANES];
    const int lane = get_local_id(0), expert = get_group_id(0);
    int count = 0;
    for (int i = lane; i < choices; i += LANES) count += selected[i] == expert;
    counts[lane] = count;
    for (int span = LANES / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < span) counts[lane] += counts[lane + span];
    }
    if (lane == 0) sizes[expert] = counts[0];
}

/* An expert's rows begin where those of the one before end. */
__kernel void segments_of_sizes(__global int4 *segments, __global const int *sizes, int experts)
{
    int first = 0;
    for (int e = 0; e < experts; e++) {
        segments[e] = (int4)(first, sizes[e], e, 0);
        first += sizes[e];
    }
}

/* A stable sort: one work-group for each expert goes through all choices, LANES at a time. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
sort_choices(__global int *places, __global int *order, __global const int *selected, __global const int4 *segments,
             int choices)
{
    __local int before[LANES];
    const int lane = get_local_id(0), expert = get_group_id(0);
    int place = segments[expert].s0;
    for (int first = 0; first < choices; first += LANES) {
        const int choice = first + lane, mine = choice < choices && selected[choice] == expert;
        before[lane] = mine;
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int step = 1; step < LANES; step *= 2) { /* an inclusive scan */
            const int more = lane >= step ? before[lane - step] : 0;
            barrier(CLK_LOCAL_MEM_FENCE);
            before[lane] += more;
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (mine) {
            places[choice] = place + before[lane] - 1;
            order[place + before[lane] - 1] = choice;
        }
        place += before[LANES - 1];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

/* The places that an order says. */
__kernel void places_of_order(__global int *places, __global const int *order, int choices)
{
    const int row = get_global_id(0);
    if (row < choices && order[row] >= 0) places[order[row]] = row;
}

/* Rows from tokens, times scales [T*K] where these are given; 0 in a row of no choice. */
__kernel void gather(__global stored *rows, __global const stored *x, __global const float *scales,
                     __global const int *order, int row_count, int k, int width)
{
    const int column = get_global_id(0), row = get_global_id(1);
    if (column >= width || row >= row_count) return;
    const int choice = order[row];
    const float scale = choice >= 0 && scales ? scales[choice] : 1;
    rows[(long)row * width + column] = choice < 0 ? put(0) : put(get(x[(long)(choice / k) * width + column]) * scale);
}

/* y[t] = the sum over k of weights[t,k] times the row of choice (t,k); weights of NULL are 1. Also the gradient of
 * gather. */
__kernel void combine(__global stored *y, __global const stored *rows, __global const float *weights,
                      __global const int *places, int tokens, int k, int width)
{
    const int column = get_global_id(0), token = get_global_id(1);
    float sum = 0;
    if (column >= width || token >= tokens) return;
    for (int choice = token * k; choice < (token + 1) * k; choice++)
        if (places[choice] >= 0)
            sum += (weights ? weights[choice] : 1) * get(rows[(long)places[choice] * width + column]);
    y[(long)token * width + column] = put(sum);
}

/* d_weights[t,k] = the product of the row of choice (t,k) with d_y[t], times slopes [T*K] where these are given: one
 * work-group for each choice. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
combine_weights(__global float *d_weights, __global const stored *rows, __global const stored *d_y,
                __global const float *slopes, __global const int *places, int k, int width)
{
    __local float parts[LANES];
    const int lane = get_local_id(0), choice = get_group_id(0), row = places[choice];
    float sum = 0;
    for (int i = lane; i < width && row >= 0; i += LANES)
        sum += get(rows[(long)row * width + i]) * get(d_y[(long)(choice / k) * width + i]);
    parts[lane] = sum;
    for (int span = LANES / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < span) parts[lane] += parts[lane + span];
    }
    if (lane == 0) d_weights[choice] = parts[0] * (slopes ? slopes[choice] : 1);
}
