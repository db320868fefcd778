/* Products of slices: the scalar form judges them. */
#include "oracle/quad/quad_product.h"

#include <quadmath.h>

#include "oracle/quad/quad_slices.h"
#include "tests/support/assay_test.h"

TEST_LABELS(threads);

/* Rows of x and y are 3 numbers further apart than they are long, those of w 2. */
typedef struct problem {
    quad_product product;
    quad *x, *w, *scalar, *sliced;
} problem;

typedef enum numbers {
    NORMAL,     /* float64 */
    WIDE,       /* all 113 bits */
    SHORT,      /* bfloat16: few slices */
    RANGE,      /* over 400 powers of two */
    CANCELLING, /* what a row sums to is 2^-60 of its terms */
    ONE_LARGE,  /* in each line, which meets 0 */
    WITH_ZEROS, /* lines of them as well */
    NUMBERS
} numbers;

static quad draw(numbers kind, uint64_t *seed)
{
    const quad x = test_normal(seed);
    switch (kind) {
    case WIDE:
    case CANCELLING:
        return x + (quad)test_normal(seed) * 0x1p-55 + (quad)test_normal(seed) * 0x1p-108;
    case SHORT:
        return (float)lrint(128 * (double)x) / 128;
    case RANGE:
        return ldexpq(x, (int)(test_bits(seed) % 400) - 200);
    case WITH_ZEROS:
        return test_bits(seed) % 2 ? x : 0;
    default:
        return x;
    }
}

static void make_special(problem *p, numbers kind)
{
    const quad_product *a = &p->product;
    for (int64_t i = 0; kind == CANCELLING && i < a->m; i++) {
        for (int64_t s = 0; s + 1 < a->k; s += 2) p->x[i * a->ldx + s + 1] = -p->x[i * a->ldx + s] * (1 + 0x1p-60Q);
    }
    for (int64_t j = 0; j < a->n; j++) {
        for (int64_t s = 0; s < a->k; s++) {
            quad *w = &p->w[a->w_transposed ? j * a->ldw + s : s * a->ldw + j];
            const int64_t before = s > 0 ? s - 1 : 0;
            if (kind == CANCELLING && s % 2 == 1)
                *w = p->w[a->w_transposed ? j * a->ldw + before : before * a->ldw + j];
            if (kind == ONE_LARGE && s == 0) *w = 0;
            if (kind == ONE_LARGE && s == 1) *w = 0x1p300;
            if (kind == WITH_ZEROS && j % 3 == 1) *w = 0;
        }
    }
    for (int64_t i = 0; i < a->m; i++) {
        if (kind == ONE_LARGE) p->x[i * a->ldx] = 0x1p200;
        if (kind == ONE_LARGE && a->k > 1) p->x[i * a->ldx + 1] = 0;
        for (int64_t s = 0; kind == WITH_ZEROS && i % 4 == 2 && s < a->k; s++) p->x[i * a->ldx + s] = 0;
    }
}

static quad *room(int64_t count)
{
    quad *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = nanq("");
    return values;
}

static problem make(int64_t m, int64_t n, int64_t k, bool transposed, numbers kind)
{
    uint64_t seed = (uint64_t)(m * 31 + n * 7 + k + kind);
    problem p = {.product = {.m = m, .n = n, .k = k, .ldx = k + 3, .ldy = n + 3, .w_transposed = transposed}};
    p.product.ldw = (transposed ? k : n) + 2;
    const int64_t runs = transposed ? n : k, length = transposed ? k : n;
    p.x = room(m * p.product.ldx);
    p.w = room(runs * p.product.ldw);
    p.scalar = room(m * p.product.ldy);
    p.sliced = room(m * p.product.ldy);
    for (int64_t i = 0; i < m * k; i++) p.x[i / k * p.product.ldx + i % k] = draw(kind, &seed);
    for (int64_t i = 0; i < runs * length; i++) p.w[i / length * p.product.ldw + i % length] = draw(kind, &seed);
    make_special(&p, kind);
    p.product.x = p.x;
    p.product.w = p.w;
    return p;
}

static void release(problem *p)
{
    free(p->x);
    free(p->w);
    free(p->scalar);
    free(p->sliced);
}

/* The largest error over what is allowed of the two forms; infinite where one alone is no number. */
static double worst_of(const problem *p)
{
    const quad_product *a = &p->product;
    double worst = 0;
    for (int64_t at = 0; at < a->m * a->n; at++) {
        const int64_t i = at / a->n, j = at % a->n;
        const quad scalar = p->scalar[i * a->ldy + j], sliced = p->sliced[i * a->ldy + j];
        quad size = 0;
        if (scalar == sliced || (isnanq(scalar) && isnanq(sliced))) continue;
        for (int64_t s = 0; s < a->k; s++)
            size += fabsq(a->x[i * a->ldx + s] * a->w[a->w_transposed ? j * a->ldw + s : s * a->ldw + j]);
        const double share = (double)(fabsq(scalar - sliced) / (size * (0x1p-96Q + (quad)a->k * 0x1p-113Q)));
        worst = isnan(share) ? INFINITY : fmax(worst, share);
    }
    return worst;
}

static double judge(assay_context *ctx, problem *p)
{
    p->product.y = p->scalar;
    quad_matmul_scalar(ctx, &p->product);
    p->product.y = p->sliced;
    assert_ok(ctx, quad_matmul_sliced(ctx, &p->product, &assay_arithmetic_reference));
    return worst_of(p);
}

TEST(test_slices_are_as_good_as_scalars)
{
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 5, 300}, {7, 1, 13}, {13, 17, 101}, {5, 3, 7168}, {33, 70, 64}};
    assay_context ctx = assay_context_default(2);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int kind = 0; kind < NUMBERS; kind++) {
            for (int transposed = 0; transposed < 2; transposed++) {
                OWNED_BY(release) problem p = make(shapes[i][0], shapes[i][1], shapes[i][2], transposed, (numbers)kind);
                assert_true(judge(&ctx, &p) <= 1);
            }
        }
    }
}

/* Beyond 1024 rows and 256 columns a product is made in pieces. */
TEST(test_pieces)
{
    assay_context ctx = assay_context_default(2);
    OWNED_BY(release) problem p = make(1030, 300, 3, false, WIDE);
    assert_true(judge(&ctx, &p) <= 1);
}

TEST(test_numbers_that_are_none)
{
    assay_context ctx = assay_context_default(2);
    const quad special[] = {nanq(""), INFINITY, -INFINITY, FLT128_DENORM_MIN, FLT128_MAX};
    for (size_t i = 0; i < sizeof special / sizeof *special; i++) {
        OWNED_BY(release) problem p = make(6, 7, 40, false, WIDE);
        p.x[2 * p.product.ldx + 5] = special[i];
        p.w[9 * p.product.ldw + 3] = special[i];
        assert_true(judge(&ctx, &p) <= 1);
    }
}

/* The same bits with any number of threads and any instruction set. */
TEST_WITH_CONTEXT(test_same_bits)
{
    OWNED_BY(release) problem p = make(61, 67, 129, false, WIDE);
    const size_t bytes = (size_t)(61 * p.product.ldy) * sizeof *p.sliced;
    OWNED quad *first = room(61 * p.product.ldy);
    int count = 0;
    for (int form = 0; test_next_context(&form, &ctx); count++) {
        p.product.y = p.sliced;
        assert_ok(&ctx, quad_matmul(&ctx, &p.product));
        if (count == 0) memcpy(first, p.sliced, bytes);
        for (int64_t i = 0; i < 61; i++) {
            assert_memory_equal(p.sliced + i * p.product.ldy, first + i * p.product.ldy, 67 * sizeof *first);
        }
    }
    assert_true(count >= 3);
    /* and large enough for slices, of which those behind the first give what follows float64's digits */
    p.product.y = p.scalar;
    quad_matmul_scalar(&ctx, &p.product);
    assert_true(worst_of(&p) <= 1);
}

/* Digits add up to their number. */
TEST_WITH_CONTEXT(test_digits)
{
    for (int kind = 0; kind < NUMBERS; kind++) {
        OWNED_BY(release) problem p = make(5, 4, 300, false, (numbers)kind);
        const quad_cut cut = quad_cut_for(300);
        const quad_layout layout = {.values = p.x, .outer = 5, .inner = 300, .ld = p.product.ldx};
        OWNED_BY(quad_slices_free) quad_slices slices = {0};
        assert_ok(&ctx, quad_slices_make(&ctx, &layout, &cut, &slices));
        assert_true(kind != SHORT || slices.used == 1);
        for (int64_t i = 0; i < 5 * 300; i++) {
            const quad number = p.x[i / 300 * p.product.ldx + i % 300], power = slices.powers[i / 300];
            quad sum = 0;
            for (int digit = slices.used - 1; digit >= 0; digit--) {
                assert_true(fabs(slices.digits[digit][i]) <= ldexp(1, cut.bits - 1));
                sum += ldexpq(slices.digits[digit][i] * power, 2 - (digit + 1) * cut.bits);
            }
            assert_true(fabsq(sum - number) <= ldexpq(power, 2 - cut.most * cut.bits));
            assert_true((double)fabsq(slices.sizes[i] * power - fabsq(number)) <= 0x1p-52 * (double)fabsq(number));
        }
    }
}

/* Sums of so many products of digits are below 2^53. */
TEST(test_cuts)
{
    for (int64_t k = 1; k <= 299593; k = k * 3 / 2 + 1) {
        const quad_cut cut = quad_cut_for(k);
        assert_true(cut.most * cut.bits - 2 >= 112);
        assert_true((double)k * cut.most * ldexp(1, 2 * cut.bits - 2) <= 0x1p53);
    }
    assert_int_equal(quad_cut_for(300000).bits, 0);
}

/* An engine that is wrong in one element of one product, by one in its last digit. */
static assay_status wrong(assay_context *ctx, const assay_matmul_args *args)
{
    const assay_status status = assay_arithmetic_reference.matmul(ctx, args);
    if (args->accumulate) args->c[args->m * args->n - 1] += 1;
    return status;
}

TEST_WITH_CONTEXT(test_a_wrong_engine_is_refused)
{
    const assay_arithmetic engine = {.name = "wrong", .matmul = wrong};
    OWNED_BY(release) problem p = make(20, 20, 20, false, WIDE);
    p.product.y = p.sliced;
    assert_int_equal(quad_matmul_sliced(&ctx, &p.product, &engine), ASSAY_INTERNAL);
    assert_non_null(strstr(ctx.message, "not what integers give"));
}

TEST(test_allocation_failures)
{
    OWNED_BY(release) problem p = make(20, 20, 20, false, WIDE);
    p.product.y = p.sliced;
    for (int64_t n = 0;; n++) {
        assay_context ctx = assay_context_default(1);
        assay_fail_allocation(n);
        const assay_status status = quad_matmul_sliced(&ctx, &p.product, &assay_arithmetic_reference);
        if (had_memory(&ctx, status)) break;
    }
}
