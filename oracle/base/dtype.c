#include "oracle/base/dtype_loops.inc"

const assay_dtype_kernels assay_dtype_scalar = {round_loop, encode_loop, decode_loop, decode_past_loop};

/* Chosen here, not by ctx->isa: there is no context, and the bits are the same. */
static const assay_dtype_kernels *kernels(void)
{
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq")) return &assay_dtype_avx512;
    return __builtin_cpu_supports("avx2") ? &assay_dtype_avx2 : &assay_dtype_scalar;
}

static double power_of_two(int exponent)
{
    return value_of((uint64_t)(exponent + DOUBLE_BIAS) << DOUBLE_FRACTION);
}

typedef struct type_row {
    const char *name;
    size_t bytes;
    int digits, least_exponent, largest_exponent;
} type_row;

static const type_row TYPES[ASSAY_DTYPE_COUNT] = {
#define X(code, name, bytes, digits, emin, emax) [code] = {name, bytes, digits, emin, emax},
    ASSAY_DTYPE_TABLE(X)
#undef X
};

assay_dtype_grid assay_dtype_grid_of(assay_dtype type)
{
    const type_row *row = &TYPES[type];
    assay_dtype_grid g = {.bytes = (int)row->bytes,
                          .fraction_bits = row->digits - 1,
                          .sign_bit = 8 * (int)row->bytes - 1,
                          .unused_bits = type == ASSAY_TFLOAT32 ? 13 : 0,
                          .least_normal = power_of_two(row->least_exponent),
                          .limit = power_of_two(row->largest_exponent + 1),
                          .rounding_scale = power_of_two(53 - row->digits),
                          .max = assay_dtype_max(type),
                          .beyond = INFINITY};
    int64_t infinity_code = (int64_t)(row->largest_exponent - row->least_exponent + 2) << g.fraction_bits;
    g.first_nan_code = infinity_code + 1;
    g.nan_code = infinity_code | INT64_C(1) << (g.fraction_bits - 1);
    if (type == ASSAY_FLOAT8_E4M3FN) { /* its largest exponent is used up to the last code, which is NaN */
        g.beyond = NAN;
        g.first_nan_code = g.nan_code = 0x7f;
    }
    if (type == ASSAY_FLOAT4_E2M1FN) { /* every code is a number */
        g.sign_bit = 3;
        g.limit = g.beyond = g.max;
        g.first_nan_code = g.nan_code = 8;
    }
    return g;
}

const char *assay_dtype_name(assay_dtype type)
{
    return TYPES[type].name;
}

bool assay_dtype_from_name(const char *name, assay_dtype *type)
{
    static const struct {
        const char *name;
        assay_dtype type;
    } SHORT_NAMES[] = {{"bf16", ASSAY_BFLOAT16},
                       {"f32", ASSAY_FLOAT32},
                       {"f64", ASSAY_FLOAT64},
                       {"f16", ASSAY_FLOAT16},
                       {"tf32", ASSAY_TFLOAT32}};
    for (size_t i = 0; i < sizeof SHORT_NAMES / sizeof *SHORT_NAMES; i++) {
        if (strcmp(name, SHORT_NAMES[i].name) == 0) {
            *type = SHORT_NAMES[i].type;
            return true;
        }
    }
    for (int i = 0; i < ASSAY_DTYPE_COUNT; i++) {
        if (strcmp(name, TYPES[i].name) == 0) {
            *type = (assay_dtype)i;
            return true;
        }
    }
    return false;
}

size_t assay_dtype_size(assay_dtype type)
{
    return TYPES[type].bytes;
}

double assay_dtype_unit_roundoff(assay_dtype type)
{
    return type == ASSAY_INT32 ? 0 : power_of_two(-TYPES[type].digits);
}

double assay_dtype_max(assay_dtype type)
{
    const type_row *row = &TYPES[type];
    if (type == ASSAY_INT32) return INT32_MAX;
    if (type == ASSAY_FLOAT8_E4M3FN) return 448;
    return (2 - power_of_two(1 - row->digits)) * power_of_two(row->largest_exponent);
}

double assay_dtype_least_subnormal(assay_dtype type)
{
    const type_row *row = &TYPES[type];
    if (type == ASSAY_INT32) return 1;
    if (type == ASSAY_FLOAT64) return value_of(1);
    return power_of_two(row->least_exponent - row->digits + 1);
}

static double round_to_int32(double x)
{
    double nearest = rint(x);
    if (nearest > INT32_MAX) return INT32_MAX;
    if (nearest < INT32_MIN) return INT32_MIN;
    return nearest;
}

enum { E8M0_BIAS = 127, E8M0_NAN = 0xff };

static uint8_t encode_e8m0(double x)
{
    int exponent = 0;
    if (!(x >= 0 && x < 0x1.8p127)) return E8M0_NAN;
    if (x < 0x1p-127) return 0;
    const bool up = frexp(x, &exponent) >= 0.75;
    return (uint8_t)(exponent - 1 + up + E8M0_BIAS);
}

static double decode_e8m0(uint8_t code)
{
    return code == E8M0_NAN ? (double)NAN : power_of_two(code - E8M0_BIAS);
}

double assay_dtype_round(assay_dtype type, double x, bool saturate)
{
    if (type == ASSAY_FLOAT8_E8M0FNU) return decode_e8m0(encode_e8m0(x));
    if (type == ASSAY_FLOAT64) return x;
    if (type == ASSAY_INT32) return round_to_int32(x);
    assay_dtype_grid g = assay_dtype_grid_of(type);
    if (saturate && (type == ASSAY_FLOAT8_E4M3FN || type == ASSAY_FLOAT8_E5M2)) g.beyond = g.max;
    return round_to(&g, x);
}

void assay_dtype_round_many(assay_dtype type, int64_t count, const double *x, double *y)
{
    if (type == ASSAY_FLOAT64) {
        memmove(y, x, (size_t)count * sizeof *y);
    } else if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++) y[i] = round_to_int32(x[i]);
    } else if (type == ASSAY_FLOAT8_E8M0FNU) {
        for (int64_t i = 0; i < count; i++) y[i] = decode_e8m0(encode_e8m0(x[i]));
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type);
        kernels()->round(&grid, count, x, y);
    }
}

static void encode_float64(int64_t count, const double *x, void *bytes)
{
    double *stored = bytes;
    for (int64_t i = 0; i < count; i++) stored[i] = x[i] != x[i] ? (double)NAN : x[i];
}

void assay_dtype_encode(assay_dtype type, int64_t count, const double *x, void *bytes)
{
    if (type == ASSAY_FLOAT64) {
        encode_float64(count, x, bytes);
    } else if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++) ((int32_t *)bytes)[i] = (int32_t)x[i];
    } else if (type == ASSAY_FLOAT8_E8M0FNU) {
        for (int64_t i = 0; i < count; i++) ((uint8_t *)bytes)[i] = encode_e8m0(x[i]);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type);
        kernels()->encode(&grid, count, x, bytes);
    }
}

void assay_dtype_decode(assay_dtype type, int64_t count, const void *bytes, double *x)
{
    if (type == ASSAY_FLOAT64) {
        memcpy(x, bytes, (size_t)count * sizeof *x);
    } else if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++) x[i] = ((const int32_t *)bytes)[i];
    } else if (type == ASSAY_FLOAT8_E8M0FNU) {
        for (int64_t i = 0; i < count; i++) x[i] = decode_e8m0(((const uint8_t *)bytes)[i]);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type == ASSAY_TFLOAT32 ? ASSAY_FLOAT32 : type);
        kernels()->decode(&grid, count, bytes, x);
    }
}

void assay_dtype_decode_past(assay_dtype type, int64_t count, const void *bytes, double *x)
{
    if (type == ASSAY_FLOAT64 || type == ASSAY_INT32 || type == ASSAY_FLOAT8_E8M0FNU) {
        assay_dtype_decode(type, count, bytes, x);
    } else {
        const assay_dtype_grid grid = assay_dtype_grid_of(type == ASSAY_TFLOAT32 ? ASSAY_FLOAT32 : type);
        kernels()->decode_past(&grid, count, bytes, x);
    }
}
