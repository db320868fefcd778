/* Inputs from a seed, made where they are needed: the same bits as assay draws (docs/random-inputs.md, which is the
 * specification of this file). One work-item makes two neighbouring elements. Needs IEEE float64: + - * / and sqrt
 * rounded to nearest even, nothing fused. */
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#pragma OPENCL FP_CONTRACT OFF

enum distribution { NORMAL, UNIFORM, INTEGERS, CONSTANT, POWERS, CANCEL };
enum type { FLOAT64, FLOAT32, BFLOAT16, FLOAT16, FLOAT8_E4M3FN, FLOAT8_E5M2 };

/* Word i of a tensor's stream: word i mod 4 of Philox4x32-10. */
uint word(uint2 key, uint stream, ulong i)
{
    const ulong block = i / 4;
    uint4 x = (uint4)((uint)block, (uint)(block >> 32), stream, 0);
    for (int round = 0; round < 10; round++) {
        const uint high_0 = mul_hi(0xD2511F53u, x.s0), high_1 = mul_hi(0xCD9E8D57u, x.s2);
        x = (uint4)(high_1 ^ x.s1 ^ key.s0, 0xCD9E8D57u * x.s2, high_0 ^ x.s3 ^ key.s1, 0xD2511F53u * x.s0);
        key += (uint2)(0x9E3779B9u, 0xBB67AE85u);
    }
    const uint lane = (uint)(i % 4);
    return lane < 2 ? (lane == 0 ? x.s0 : x.s1) : (lane == 2 ? x.s2 : x.s3);
}

/* ---- sums of two float64, the high part first ---- */

double upper(double x)
{
    return as_double(as_ulong(x) & 0xFFFFFFFFF8000000ul);
}

double2 two_sum(double a, double b)
{
    const double s = a + b, v = s - a;
    return (double2)(s, (a - (s - v)) + (b - v));
}

double2 plus(double2 x, double2 y)
{
    const double2 s = two_sum(x.s0, y.s0);
    return (double2)(s.s0, s.s1 + (x.s1 + y.s1));
}

/* x y, but for what the low parts give */
double2 product(double x, double y)
{
    const double xh = upper(x), yh = upper(y), xl = x - xh, yl = y - yh, high = x * y;
    return (double2)(high, (((xh * yh - high) + xl * yh) + xh * yl) + xl * yl);
}

double2 times(double2 x, double2 y)
{
    const double2 p = product(x.s0, y.s0);
    return (double2)(p.s0, (p.s1 + x.s0 * y.s1) + x.s1 * y.s0);
}

double2 times_one(double2 x, double y)
{
    const double2 p = product(x.s0, y);
    return (double2)(p.s0, p.s1 + x.s1 * y);
}

double2 divided(double2 n, double2 d)
{
    const double t = 1.0 / d.s0, x = n.s0 * t;
    const double dh = upper(d.s0), th = upper(t), nh = upper(n.s0), dl = d.s0 - dh, tl = t - th, nl = n.s0 - nh;
    const double left = (((1.0 - dh * th) - dh * tl) - dl * th) - dl * tl;
    const double low = ((((nh * th - x) + nh * tl) + nl * th) + nl * tl) + x * left;
    return (double2)(x, t * (n.s1 - x * d.s1) + low);
}

/* ---- ln, sine and cosine ---- */

/* u in (0, 1] */
double natural_log(double u)
{
    const long e = (long)(as_ulong(u * (1 / 0.75)) >> 52) - 1023;
    const double m = as_double(as_long(u) - (e << 52)); /* [0.75, 1.5) */
    const double2 x = divided(two_sum(-1.0, m), two_sum(1.0, m));
    const double x2 = x.s0 * x.s0, x4 = x2 * x2, x8 = x4 * x4;
    const double upper_terms = x4 * 0.1532076988502701353 + (x2 * 0.1525629051003428716 + 0.1818605932937785996);
    const double lower_terms = x4 * (x2 * 0.2222214519839380009 + 0.2857142932794299317) +
                               (x2 * 0.3999999999635251990 + 0.6666666666667333541);
    const double tail = x2 * x.s0 * (x8 * upper_terms + lower_terms);
    const double2 s = times_one((double2)(0.693147180559945286226764, 2.319046813846299558417771e-17), (double)e);
    const double a = 2 * x.s0, b = 2 * x.s1, sum = s.s0 + a, low = (((s.s0 - sum) + a) + s.s1) + b;
    const double whole = sum + tail;
    return whole + (((sum - whole) + tail) + low);
}

__constant double SINE[6] = {-2.02461120785182399295868e-14, 6.94821830580179461327784e-12,
                             -1.75724749952853179952664e-09, 3.13361688966868392878422e-07,
                             -3.6576204182161551920361e-05,  0.00249039457019271850274356};
__constant double COSINE[6] = {9.94480387626843774090208e-16, -3.89796226062932799164047e-13,
                               1.15011582539996035266901e-10, -2.4611369501044697495359e-08,
                               3.59086044859052754005062e-06, -0.000325991886927389905997954};

double horner(__constant double *c, double s)
{
    double u = c[0];
    for (int i = 1; i < 6; i++) u = u * s + c[i];
    return u;
}

/* (cosine, sine) of pi times half_turns, which are in [0, 2) */
double2 direction(double half_turns)
{
    const double u = half_turns * 4;
    const int q = ((int)u + 1) & ~1;
    const double t = u - q, s = t * t;
    const double2 s2 = product(t, t);
    double2 x = plus((double2)(horner(SINE, s) * s, 0),
                     (double2)(-0.0807455121882807852484731, 3.61852475067037104849987e-18));
    x = plus(times(s2, x), (double2)(0.785398163397448278999491, 3.06287113727155002607105e-17));
    x = times_one(x, t);
    const double sine = x.s0 + x.s1;
    x = plus((double2)(horner(COSINE, s) * s, 0),
             (double2)(0.0158543442438155018914259, -1.04693272280631521908845e-18));
    x = plus(times(s2, x), (double2)(-0.308425137534042437259529, -1.95698492133633550338345e-17));
    x = plus(times(x, s2), (double2)(1.0, 0));
    const double cosine = x.s0 + x.s1;
    const double first = q & 2 ? sine : cosine, second = q & 2 ? cosine : sine;
    return (double2)((q + 2) & 4 ? -first : first, q & 4 ? -second : second);
}

/* Box-Muller: normals number 2 j and 2 j + 1 */
double2 normal_pair(uint2 key, ulong j)
{
    const double u = ((double)word(key, 0, 2 * j) + 1) * 0x1p-32;
    return sqrt(-2.0 * natural_log(u)) * direction((double)word(key, 0, 2 * j + 1) * 0x1p-31);
}

/* ---- rounding, once, from float64 to the type that is stored ---- */

/* The code of x in a type of `bits` bits with `fraction` of them behind the leading one, least normal power 2^least,
 * largest finite number `largest`: adding c makes float64's last bit the type's. */
uint encode(double x, int bits, int fraction, int least, double largest, uint beyond)
{
    const double size = fmin(fabs(x), 0x1p200), least_normal = as_double((ulong)(1023 + least) << 52);
    const double power = fmax(as_double(as_ulong(size) & 0x7FF0000000000000ul), least_normal);
    const double c = power * as_double((ulong)(1023 + 52 - fraction) << 52), rounded = (size + c) - c;
    const uint steps = (uint)((as_ulong(power) - as_ulong(least_normal)) >> 52);
    const uint code = (steps << fraction) + (uint)(as_ulong(size + c) - as_ulong(c));
    return (rounded > largest ? beyond : code) | (uint)(as_ulong(x) >> 63) << (bits - 1);
}

void put(__global uchar *out, ulong i, enum type type, double x)
{
    switch (type) {
    case FLOAT64:
        ((__global double *)out)[i] = x;
        break;
    case FLOAT32: /* not by conversion, which may flush subnormals */
        ((__global uint *)out)[i] = encode(x, 32, 23, -126, 0x1.fffffep127, 0x7f800000);
        break;
    case BFLOAT16:
        ((__global ushort *)out)[i] = (ushort)encode(x, 16, 7, -126, 0x1.fep127, 0x7f80);
        break;
    case FLOAT16:
        ((__global ushort *)out)[i] = (ushort)encode(x, 16, 10, -14, 65504, 0x7c00);
        break;
    case FLOAT8_E4M3FN: /* has no infinity, and one NaN without a sign */
        out[i] = (uchar)encode(x, 8, 3, -6, 448, 0x7f);
        if ((out[i] & 0x7f) == 0x7f) out[i] = 0x7f;
        break;
    case FLOAT8_E5M2:
        out[i] = (uchar)encode(x, 8, 2, -14, 57344, 0x7c);
        break;
    }
}

/* A whole number from low to high. */
double whole(uint w, double low, double high)
{
    return low + (double)(uint)((ulong)w * ((ulong)(high - low) + 1) >> 32);
}

/* Elements 2 j and 2 j + 1 of `count`. start and step are mean and scale; powers are per `block` elements of a row. */
__kernel void random_fill(__global uchar *out, ulong count, uint2 key, int distribution, int type, double start,
                          double step, double low, double high, ulong row, ulong block)
{
    const ulong j = get_global_id(0), i = 2 * j;
    double x[2] = {start, start};
    if (i >= count) return;
    if (distribution == NORMAL || distribution == POWERS || distribution == CANCEL) {
        const double2 n = normal_pair(key, j);
        x[0] = start + step * n.s0;
        x[1] = start + step * n.s1;
    }
    for (int side = 0; side < 2; side++) {
        const uint w = word(key, 0, i + side);
        const ulong place = i + side, blocks = (row + block - 1) / block;
        if (distribution == UNIFORM) x[side] = low + (high - low) * ((double)w * 0x1p-32);
        if (distribution == INTEGERS) x[side] = start + step * whole(w, low, high);
        if (distribution == POWERS)
            x[side] = ldexp(x[side], (int)whole(word(key, 1, place / row * blocks + place % row / block), low, high));
    }
    if (distribution == CANCEL)
        x[1] = -(x[0] * (1 + 0x1p-10 * ((double)word(key, 1, i + 1) * 0x1p-31 - 1)));
    put(out, i, type, x[0]);
    if (i + 1 < count) put(out, i + 1, type, x[1]);
}
