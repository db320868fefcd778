/* Inputs from a seed, made where they are needed (docs/random-inputs.md). Behind the text of include/assay/random.h, which has
 * the formulas; one work-item makes two neighbouring elements. */

void put(__global uchar *out, ulong i, assay_draw_type type, double x)
{
    const ulong code = assay_draw_code(type, x);
    switch (type) {
    case ASSAY_DRAW_FLOAT64:
        ((__global ulong *)out)[i] = code;
        break;
    case ASSAY_DRAW_FLOAT32:
    case ASSAY_DRAW_TFLOAT32:
        ((__global uint *)out)[i] = (uint)code;
        break;
    case ASSAY_DRAW_BFLOAT16:
    case ASSAY_DRAW_FLOAT16:
        ((__global ushort *)out)[i] = (ushort)code;
        break;
    default:
        out[i] = (uchar)code;
    }
}

__kernel void random_fill(__global uchar *out, ulong count, ulong key, int distribution, int type, double mean,
                          double scale, double low, double high, ulong row)
{
    const assay_draw t = {key, row, scale, mean, low, high, (assay_draw_distribution)distribution, (assay_draw_type)type};
    const ulong j = get_global_id(0);
    double x[2];
    if (2 * j >= count) return;
    assay_draw_pair(&t, j, x);
    put(out, 2 * j, t.type, x[0]);
    if (2 * j + 1 < count) put(out, 2 * j + 1, t.type, x[1]);
}
