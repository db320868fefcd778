/* RMS norm: a work-group for each row. */
float sum_of_lanes(__local float *parts, float mine)
{
    const int lane = get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE); /* the last sum was read by everyone */
    parts[lane] = mine;
    for (int span = LANES / 2; span > 0; span /= 2) {
        barrier(CLK_LOCAL_MEM_FENCE);
        if (lane < span) parts[lane] += parts[lane + span];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    return parts[0];
}

float reciprocal_root(__local float *parts, __global const stored *x, int n, float epsilon)
{
    float sum = 0;
    for (int i = get_local_id(0); i < n; i += LANES) sum += get(x[i]) * get(x[i]);
    return 1 / sqrt(sum_of_lanes(parts, sum) / n + epsilon);
}

__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
rms_norm(__global stored *y, __global const stored *x, __global const stored *scale, int n, float epsilon)
{
    __local float parts[LANES];
    const long row = (long)get_group_id(0) * n;
    const float r = reciprocal_root(parts, x + row, n, epsilon);
    for (int i = get_local_id(0); i < n; i += LANES) y[row + i] = put(get(x[row + i]) * r * get(scale[i]));
}

/* Also the rows' terms of the scale's gradient, [rows,n] in float32. */
__kernel __attribute__((reqd_work_group_size(LANES, 1, 1))) void
rms_norm_backward(__global stored *d_x, __global float *terms, __global const stored *d_y, __global const stored *x,
                  __global const stored *scale, int n, float epsilon)
{
    __local float parts[LANES];
    const long row = (long)get_group_id(0) * n;
    const float r = reciprocal_root(parts, x + row, n, epsilon);
    float sum = 0;
    for (int i = get_local_id(0); i < n; i += LANES)
        sum += get(d_y[row + i]) * get(scale[i]) * get(x[row + i]) * r;
    const float mean = sum_of_lanes(parts, sum) / n;
    for (int i = get_local_id(0); i < n; i += LANES) {
        const float unit = get(x[row + i]) * r, d = get(d_y[row + i]);
        d_x[row + i] = put(r * (d * get(scale[i]) - unit * mean));
        terms[row + i] = d * unit;
    }
}
