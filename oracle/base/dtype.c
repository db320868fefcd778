/* Rounding and encoding from the bits of a float64.
 *
 * Of |x| with leading power 2^e (at least the grid's least normal power), the grid's spacing is 2^(e - digits + 1).
 * Adding c = 2^(e + 53 - digits) makes float64's own last bit that spacing: |x| + c is rounded to the grid, to nearest
 * even, subnormals included; its low bits are the significand, and subtracting c gives the value. Nothing here forms a
 * float64 or float32 subnormal, so a backend that sets flush-to-zero in our process changes nothing. */
#include "oracle/base/dtype.h"

#include <math.h>
#include <string.h>

enum { DOUBLE_BIAS = 1023, DOUBLE_FRACTION = 52, CHUNK = 512 };

static const uint64_t EXPONENT_MASK = UINT64_C(0x7ff) << DOUBLE_FRACTION;
static const uint64_t SIGN_MASK = UINT64_C(1) << 63;

static inline uint64_t bits_of(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static inline double value_of(uint64_t bits) {
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double power_of_two(int exponent) {
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

/* What the loops need of a type of at most 32 bits. */
typedef struct grid {
    int fraction_bits;
    double least_normal, limit;                       /* limit: 2^(largest exponent + 1) */
    double spread;                                    /* c = leading power * spread */
    double max, beyond;                               /* what lies above max becomes `beyond` */
    uint64_t infinity_code, first_nan_code, nan_code; /* nan_code: the one that is written */
    int unused_bits;                                  /* low bits of the stored form that are 0 (tfloat32) */
    int sign_bit;
} grid;

static grid grid_of(assay_dtype type) {
    const type_row *row = &TYPES[type];
    grid g = {.fraction_bits = row->digits - 1,
              .least_normal = power_of_two(row->least_exponent),
              .limit = power_of_two(row->largest_exponent + 1),
              .spread = power_of_two(53 - row->digits),
              .max = assay_dtype_max(type),
              .beyond = INFINITY,
              .unused_bits = type == ASSAY_TFLOAT32 ? 13 : 0};
    g.infinity_code = (uint64_t)(row->largest_exponent - row->least_exponent + 2) << g.fraction_bits;
    g.nan_code = g.infinity_code | UINT64_C(1) << (g.fraction_bits - 1);
    g.first_nan_code = g.infinity_code + 1;
    g.sign_bit = 8 * (int)row->bytes - 1;
    if (type == ASSAY_FLOAT8_E4M3FN) { /* its largest exponent is used up to the last code, which is NaN */
        g.beyond = NAN;
        g.infinity_code = g.first_nan_code = g.nan_code = 0x7f;
    }
    return g;
}

const char *assay_dtype_name(assay_dtype type) {
    return TYPES[type].name;
}

bool assay_dtype_from_name(const char *name, assay_dtype *type) {
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

size_t assay_dtype_size(assay_dtype type) {
    return TYPES[type].bytes;
}

double assay_dtype_unit_roundoff(assay_dtype type) {
    return type == ASSAY_INT32 ? 0 : power_of_two(-TYPES[type].digits);
}

double assay_dtype_max(assay_dtype type) {
    const type_row *row = &TYPES[type];
    if (type == ASSAY_INT32) return INT32_MAX;
    if (type == ASSAY_FLOAT8_E4M3FN) return 448;
    return (2 - power_of_two(1 - row->digits)) * power_of_two(row->largest_exponent);
}

double assay_dtype_least_subnormal(assay_dtype type) {
    const type_row *row = &TYPES[type];
    if (type == ASSAY_INT32) return 1;
    if (type == ASSAY_FLOAT64) return value_of(1);
    return power_of_two(row->least_exponent - row->digits + 1);
}

static inline double leading_power(const grid *g, double magnitude) {
    double power = value_of(bits_of(magnitude) & EXPONENT_MASK);
    return power > g->least_normal ? power : g->least_normal;
}

static inline double round_to(const grid *g, double x) {
    double magnitude = fabs(x);
    magnitude = g->limit < magnitude ? g->limit : magnitude; /* NaN stays */
    double c = leading_power(g, magnitude) * g->spread;
    double rounded = (magnitude + c) - c;
    rounded = rounded > g->max ? g->beyond : rounded;
    return value_of(bits_of(rounded) | (bits_of(x) & SIGN_MASK));
}

static double round_to_int32(double x) {
    double nearest = rint(x);
    if (nearest > INT32_MAX) return INT32_MAX;
    if (nearest < INT32_MIN) return INT32_MIN;
    return nearest;
}

double assay_dtype_round(assay_dtype type, double x, bool saturate) {
    if (type == ASSAY_FLOAT64) return x;
    if (type == ASSAY_INT32) return round_to_int32(x);
    grid g = grid_of(type);
    if (saturate && (type == ASSAY_FLOAT8_E4M3FN || type == ASSAY_FLOAT8_E5M2)) g.beyond = g.max;
    return round_to(&g, x);
}

void assay_dtype_round_many(assay_dtype type, int64_t count, const double *x, double *y) {
    if (type == ASSAY_FLOAT64) {
        memmove(y, x, (size_t)count * sizeof *y);
    } else if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++)
            y[i] = round_to_int32(x[i]);
    } else {
        const grid g = grid_of(type);
        for (int64_t i = 0; i < count; i++)
            y[i] = round_to(&g, x[i]);
    }
}

/* The code of |x|; beyond the finite codes for what is not finite. */
static inline uint64_t code_of(const grid *g, double x) {
    double magnitude = fabs(x);
    magnitude = g->limit < magnitude ? g->limit : magnitude;
    double power = leading_power(g, magnitude);
    double c = power * g->spread;
    /* |x| + c has the significand, leading bit included, in its low bits; that bit is worth one step of the exponent.
     */
    uint64_t exponent = (bits_of(power) - bits_of(g->least_normal)) >> (DOUBLE_FRACTION - g->fraction_bits);
    uint64_t code = exponent + (bits_of(magnitude + c) - bits_of(c));
    return x != x ? g->nan_code : code;
}

static void encode_chunk(const grid *g, int64_t count, const double *x, uint32_t *codes) {
    const uint32_t nan_code = (uint32_t)g->nan_code;
    for (int64_t i = 0; i < count; i++) {
        uint32_t code = (uint32_t)code_of(g, x[i]);
        code = code > nan_code ? nan_code : code; /* e4m3fn: what overflows */
        uint32_t sign = (uint32_t)(bits_of(x[i]) >> 63) << g->sign_bit;
        sign = code == nan_code ? 0 : sign;
        codes[i] = code << g->unused_bits | sign;
    }
}

static void encode_float64(int64_t count, const double *x, void *bytes) {
    double *stored = bytes;
    for (int64_t i = 0; i < count; i++)
        stored[i] = x[i] != x[i] ? (double)NAN : x[i];
}

void assay_dtype_encode(assay_dtype type, int64_t count, const double *x, void *bytes) {
    if (type == ASSAY_FLOAT64) {
        encode_float64(count, x, bytes);
        return;
    }
    if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++)
            ((int32_t *)bytes)[i] = (int32_t)x[i];
        return;
    }
    const grid g = grid_of(type);
    for (int64_t first = 0; first < count; first += CHUNK) {
        uint32_t codes[CHUNK];
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        encode_chunk(&g, n, x + first, codes);
        switch (TYPES[type].bytes) {
        case 1:
            for (int64_t i = 0; i < n; i++)
                ((uint8_t *)bytes)[first + i] = (uint8_t)codes[i];
            break;
        case 2:
            for (int64_t i = 0; i < n; i++)
                ((uint16_t *)bytes)[first + i] = (uint16_t)codes[i];
            break;
        default:
            memcpy((uint32_t *)bytes + first, codes, (size_t)n * sizeof *codes);
        }
    }
}

static inline double decode_one(const grid *g, uint32_t stored) {
    uint64_t sign = (uint64_t)(stored >> g->sign_bit) << 63;
    uint64_t code = stored & ((UINT32_C(1) << g->sign_bit) - 1);
    double c = g->least_normal * g->spread;
    double subnormal = value_of(bits_of(c) + code) - c;
    double normal = value_of((code << (DOUBLE_FRACTION - g->fraction_bits)) + bits_of(g->least_normal) -
                             (UINT64_C(1) << DOUBLE_FRACTION));
    double magnitude = code >> g->fraction_bits == 0 ? subnormal : normal;
    magnitude = code >= g->infinity_code ? INFINITY : magnitude;
    magnitude = code >= g->first_nan_code ? (double)NAN : magnitude;
    return value_of(bits_of(magnitude) | sign);
}

static void decode_chunk(const grid *g, int64_t count, const uint32_t *codes, double *x) {
    for (int64_t i = 0; i < count; i++)
        x[i] = decode_one(g, codes[i]);
}

void assay_dtype_decode(assay_dtype type, int64_t count, const void *bytes, double *x) {
    if (type == ASSAY_FLOAT64) {
        memcpy(x, bytes, (size_t)count * sizeof *x);
        return;
    }
    if (type == ASSAY_INT32) {
        for (int64_t i = 0; i < count; i++)
            x[i] = ((const int32_t *)bytes)[i];
        return;
    }
    const grid g = grid_of(type == ASSAY_TFLOAT32 ? ASSAY_FLOAT32 : type);
    for (int64_t first = 0; first < count; first += CHUNK) {
        uint32_t codes[CHUNK];
        int64_t n = count - first < CHUNK ? count - first : CHUNK;
        switch (TYPES[type].bytes) {
        case 1:
            for (int64_t i = 0; i < n; i++)
                codes[i] = ((const uint8_t *)bytes)[first + i];
            break;
        case 2:
            for (int64_t i = 0; i < n; i++)
                codes[i] = ((const uint16_t *)bytes)[first + i];
            break;
        default:
            memcpy(codes, (const uint32_t *)bytes + first, (size_t)n * sizeof *codes);
        }
        decode_chunk(&g, n, codes, x + first);
    }
}
