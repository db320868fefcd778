/* Statistics of errors against the plain formulas, and what they are there to see. */

#include "compare/compare_internal.h"
#include "compare/statistics.h"
#include "compare/tests/compare_test.h"
#include "compare/thresholds.h"

#define UNIT 0x1p-9
#define TINY 0x1p-30

typedef struct errors {
    assay_shape shape;
    int64_t count;
    double *golden, *candidate, *scale, *inverse;
    double tiny; /* half of the least number */
} errors;

static errors errors_of(int rank, const int64_t *dims)
{
    errors e = {.shape = {.rank = rank}, .tiny = TINY};
    for (int axis = 0; axis < rank; axis++) e.shape.dims[axis] = dims[axis];
    e.count = assay_shape_count(&e.shape);
    e.golden = calloc((size_t)e.count, sizeof *e.golden);
    e.candidate = calloc((size_t)e.count, sizeof *e.candidate);
    e.scale = calloc((size_t)e.count, sizeof *e.scale);
    e.inverse = calloc((size_t)e.count, sizeof *e.inverse);
    assert_true(e.golden != NULL && e.candidate != NULL && e.scale != NULL && e.inverse != NULL);
    for (int64_t i = 0; i < e.count; i++) {
        e.golden[i] = draw(3, "golden", i);
        e.scale[i] = 0.01 * (1.5 + draw(3, "scale", i));
        e.candidate[i] = e.golden[i] + e.scale[i] * draw_normal(3, "error", i);
    }
    return e;
}

static void errors_free(errors *e)
{
    free(e->golden);
    free(e->candidate);
    free(e->scale);
    free(e->inverse);
}

/* In pieces of this size. */
static assay_statistics measure(const errors *e, int64_t piece)
{
    assay_context ctx = {.threads = 1};
    OWNED_BY(assay_statistics_free) assay_statistics_pass pass;
    assay_statistics found;
    assert_ok(&ctx, assay_statistics_start(&ctx, &e->shape, UNIT, e->tiny, &pass));
    for (int64_t first = 0; first < e->count; first += piece) {
        const int64_t n = e->count - first < piece ? e->count - first : piece;
        for (int64_t i = first; i < first + n; i++) e->inverse[i] = e->scale[i] * e->scale[i];
        assay_statistics_weigh(&pass, n, e->golden + first, e->inverse + first, e->inverse + first);
        assay_statistics_add(&pass, n, e->golden + first, e->candidate + first, e->inverse + first);
    }
    assay_statistics_finish(&pass, &found);
    return found;
}

static double ratio(const errors *e, int64_t i, double *size)
{
    const double rounding = UNIT * fabs(e->golden[i]) + TINY;
    const double deviation = sqrt(e->scale[i] * e->scale[i] + rounding * rounding / 3);
    const double r = (e->candidate[i] - e->golden[i]) / deviation;
    const bool counts = e->scale[i] > 0 && isfinite(r);
    *size = counts ? e->golden[i] / deviation : 0;
    return counts ? r : NAN;
}

/* The largest |z| over the slices to which `of` assigns elements, and the slope there. */
static double steepest_of(const errors *e, int64_t slices, int64_t (*of)(const errors *e, int64_t i, int axis),
                          int axis, int64_t *where, double *slope)
{
    double largest = 0;
    *where = 0, *slope = 0;
    for (int64_t slice = 0; slice < slices; slice++) {
        double products = 0, weights = 0, size;
        for (int64_t i = 0; i < e->count; i++) {
            const double r = ratio(e, i, &size);
            if (of(e, i, axis) != slice || isnan(r)) continue;
            products += r * size, weights += size * size;
        }
        if (!(fabs(products) / sqrt(weights) > largest)) continue;
        largest = fabs(products) / sqrt(weights);
        *where = slice, *slope = products / weights;
    }
    return largest;
}

/* Logarithm of the largest RMS over the slices to which `of` assigns elements. */
static double largest_of(const errors *e, int64_t slices, int64_t (*of)(const errors *e, int64_t i, int axis), int axis,
                         int64_t *where)
{
    double largest = 0;
    *where = 0;
    for (int64_t slice = 0; slice < slices; slice++) {
        double sum = 0, count = 0, size;
        for (int64_t i = 0; i < e->count; i++) {
            const double r = ratio(e, i, &size);
            if (of(e, i, axis) != slice || isnan(r)) continue;
            sum += r * r, count++;
        }
        if (count == 0 || sum / count <= largest) continue;
        largest = sum / count;
        *where = slice;
    }
    return log(fmax(sqrt(largest), 0x1p-60));
}

static int64_t index_on_axis(const errors *e, int64_t i, int axis)
{
    for (int a = e->shape.rank - 1; a > axis; a--) i /= e->shape.dims[a];
    return i % e->shape.dims[axis];
}

static int64_t row_of(const errors *e, int64_t i, int axis)
{
    (void)axis;
    return i / e->shape.dims[e->shape.rank - 1];
}

static int64_t tile_of(const errors *e, int64_t i, int axis)
{
    return index_on_axis(e, i, axis) / ASSAY_TILE;
}

/* `axis`: the size's number. */
static int64_t square_of(const errors *e, int64_t i, int axis)
{
    const int64_t columns = e->shape.dims[e->shape.rank - 1], size = 8 << axis;
    return i / columns / size * ((columns + size - 1) / size) + i % columns / size;
}

static void check_largest(const assay_statistics *found, int statistic, double expected, int64_t slice)
{
    assert_close(&found->values[statistic], &expected, 1, 1e-12, 1e-12);
    assert_int_equal(found->slices[statistic], slice);
}

static void check(const errors *e)
{
    const assay_statistics found = measure(e, e->count);
    double sum = 0, squares = 0, products = 0, weights = 0, positive = 0, signs = 0, inward = 0, count = 0, size;
    const int last = e->shape.rank - 1;
    int64_t slice;
    for (int64_t i = 0; i < e->count; i++) {
        const double r = ratio(e, i, &size);
        if (isnan(r)) continue;
        count++, sum += r, squares += r * r, products += r * size, weights += size * size;
        positive += r > 0x1p-6, signs += fabs(r) > 0x1p-6;
        inward += r * e->golden[i] > 0 ? -(fabs(r) > 0x1p-6) : r * e->golden[i] < 0 ? fabs(r) > 0x1p-6 : 0;
    }
    const double expected[] = {log(sqrt(squares / count)), sum / count, products / weights,
                               (positive - signs / 2) / count, inward / 2 / count};
    assert_close(found.values, expected, 5, 1e-12, 1e-12);
    const double row = largest_of(e, e->count / e->shape.dims[last], row_of, 0, &slice);
    check_largest(&found, ASSAY_STATISTIC_ROW, row, slice);
    const double tile = largest_of(e, (e->shape.dims[last] + ASSAY_TILE - 1) / ASSAY_TILE, tile_of, last, &slice);
    check_largest(&found, ASSAY_STATISTIC_TILE, tile, slice);
    for (int axis = 0; axis <= last; axis++) {
        const double value = largest_of(e, e->shape.dims[axis], index_on_axis, axis, &slice);
        check_largest(&found, ASSAY_STATISTIC_AXIS + axis, value, slice);
    }
    for (int s = ASSAY_STATISTIC_TILE_SLOPE; s < ASSAY_STATISTIC_AXIS_SLOPE + e->shape.rank; s++) {
        const bool of_axis = s >= ASSAY_STATISTIC_AXIS_SLOPE;
        const int number = s - (of_axis ? ASSAY_STATISTIC_AXIS_SLOPE : ASSAY_STATISTIC_TILE_SLOPE);
        const int64_t slices = of_axis ? e->shape.dims[number] : assay_tiles_count(&e->shape, number);
        const double value = steepest_of(e, slices, of_axis ? index_on_axis : square_of, number, &slice, &size);
        check_largest(&found, s, value, slice);
        assert_close(&found.slopes[s], &size, 1, 1e-12, 1e-12);
    }
}

TEST(the_plain_formulas)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 1, 7},  {3, 5, 1},   {2, 3, 131},
                                        {1, 2, 513}, {13, 1, 8}, {5, 7, 100}, {2, 9, 17}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        OWNED_BY(errors_free) errors e = errors_of(3, shapes[i]);
        check(&e);
    }
}

TEST(what_does_not_count)
{
    OWNED_BY(errors_free) errors e = errors_of(2, DIMS(5, 150));
    for (int64_t i = 0; i < e.count; i += 7) e.scale[i] = 0;
    e.candidate[3] = NAN, e.candidate[400] = INFINITY, e.golden[5] = NAN;
    check(&e);
    for (int64_t i = 0; i < e.count; i++) e.scale[i] = 0;
    const assay_statistics found = measure(&e, e.count);
    for (int s = 0; s < ASSAY_STATISTICS; s++) assert_true(found.values[s] == 0 && found.least_deviations[s] == 0);
}

TEST(pieces_make_no_difference)
{
    static const int64_t pieces[] = {1, 3, 8, 511, 512, 513, 1000};
    OWNED_BY(errors_free) errors e = errors_of(3, DIMS(3, 4, 131));
    const assay_statistics whole = measure(&e, e.count);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        const assay_statistics found = measure(&e, pieces[i]);
        assert_memory_equal(&found, &whole, sizeof found);
    }
}

/* A slice that is wrong shows in its own statistic, and in which. */
TEST(slices_are_seen)
{
    OWNED_BY(errors_free) errors e = errors_of(3, DIMS(4, 16, 256));
    for (int64_t i = 0; i < e.count; i++) {
        if (index_on_axis(&e, i, 1) == 11) e.candidate[i] += 3 * e.scale[i];
    }
    assay_statistics found = measure(&e, e.count);
    assert_int_equal(found.slices[ASSAY_STATISTIC_AXIS + 1], 11);
    assert_true(found.values[ASSAY_STATISTIC_AXIS + 1] > log(2.5));
    assert_true(found.values[ASSAY_STATISTIC_SIZE] < log(1.4));
    errors_free(&e);
    e = errors_of(2, DIMS(64, 256));
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] *= index_on_axis(&e, i, 1) >= 128 ? 1.02 : 1;
    found = measure(&e, e.count);
    assert_int_equal(found.slices[ASSAY_STATISTIC_TILE], 1);
}

/* A factor on one tile, of which no element and no size says anything. */
TEST(tiles_are_seen)
{
    OWNED_BY(errors_free) errors e = errors_of(3, DIMS(2, 64, 96));
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] *= square_of(&e, i, 2) == 5 ? 1.012 : 1;
    const assay_statistics found = measure(&e, e.count);
    const int of_32 = ASSAY_STATISTIC_TILE_SLOPE + 2;
    assert_int_equal(found.slices[of_32], 5);
    assert_true(fabs(found.slopes[of_32] - 0.012) < 0.002);
    assert_true(found.values[of_32] > 8 && found.values[ASSAY_STATISTIC_SIZE] < log(1.2));
    for (int s = ASSAY_STATISTIC_TILE_SLOPE; s < ASSAY_STATISTICS; s++) {
        assert_true(found.values[s] <= found.values[of_32]);
    }
}

/* What is the whole tensor is none of its slices. */
TEST(tiles_that_count)
{
    const assay_shape square = assay_shape_of(2, (int64_t)16, (int64_t)16), vector = assay_shape_of(1, (int64_t)24),
                      none = assay_shape_of(2, (int64_t)3, (int64_t)ASSAY_LONGEST_AXIS + 1);
    assert_true(assay_statistic_counts(&square, ASSAY_STATISTIC_TILE_SLOPE));
    assert_false(assay_statistic_counts(&square, ASSAY_STATISTIC_TILE_SLOPE + 1));
    assert_true(assay_statistic_counts(&vector, ASSAY_STATISTIC_TILE_SLOPE + 1));
    assert_false(assay_statistic_counts(&vector, ASSAY_STATISTIC_TILE_SLOPE + 2));
    assert_false(assay_statistic_counts(&none, ASSAY_STATISTIC_TILE_SLOPE));
    assert_true(assay_statistic_counts(&square, ASSAY_STATISTIC_AXIS_SLOPE));
    assert_false(assay_statistic_counts(&vector, ASSAY_STATISTIC_AXIS_SLOPE + 1));
}

/* Rounding less than the profile: tiny errors, all to one side, are no bias of signs. */
TEST(tiny_errors_have_no_sign)
{
    OWNED_BY(errors_free) errors e = errors_of(2, DIMS(8, 100));
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] = e.golden[i] + 1e-3 * e.scale[i];
    assay_statistics found = measure(&e, e.count);
    assert_true(found.values[ASSAY_STATISTIC_SIGN] == 0);
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] = e.golden[i] + 0.1 * e.scale[i];
    found = measure(&e, e.count);
    assert_true(found.values[ASSAY_STATISTIC_SIGN] == 0.5);
    e.tiny = 1;
    found = measure(&e, e.count);
    assert_true(found.values[ASSAY_STATISTIC_SIGN] == 0);
}

/* All magnitudes too small by much less than the errors' deviation. */
TEST(errors_towards_zero)
{
    OWNED_BY(errors_free) errors e = errors_of(2, DIMS(8, 100));
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] = e.golden[i] - copysign(0.1 * e.scale[i], e.golden[i]);
    e.golden[3] = e.candidate[3] = 0; /* neither */
    assay_statistics found = measure(&e, e.count);
    assert_true(found.values[ASSAY_STATISTIC_TOWARD_ZERO] == 0.5 * 799 / 800);
    assert_true(fabs(found.values[ASSAY_STATISTIC_SIGN]) < 0.1);
    for (int64_t i = 0; i < e.count; i++) e.candidate[i] = 2 * e.golden[i] - e.candidate[i];
    found = measure(&e, e.count);
    assert_true(found.values[ASSAY_STATISTIC_TOWARD_ZERO] == -0.5 * 799 / 800);
}

/* It stands behind the statistics that goldens before it have, in their order. */
TEST(rows_of_null_distributions)
{
    const assay_shape shape = assay_shape_of(2, (int64_t)3, (int64_t)5);
    const int rows = assay_statistics_rows(&shape), earlier = 9;
    static const int before[] = {ASSAY_STATISTIC_SIZE, ASSAY_STATISTIC_BIAS,    ASSAY_STATISTIC_SLOPE,
                                 ASSAY_STATISTIC_SIGN, ASSAY_STATISTIC_ROW,     ASSAY_STATISTIC_TILE,
                                 ASSAY_STATISTIC_AXIS, ASSAY_STATISTIC_AXIS + 1};
    assert_int_equal(rows, earlier + ASSAY_TILE_SIZES + 2);
    for (int row = 0; row < earlier - 1; row++) assert_int_equal(assay_statistic_row(&shape, before[row]), row);
    assert_int_equal(assay_statistic_row(&shape, ASSAY_STATISTIC_TOWARD_ZERO), earlier - 1);
    assert_int_equal(assay_statistic_row(&shape, ASSAY_STATISTIC_TILE_SLOPE), earlier);
    assert_int_equal(assay_statistic_row(&shape, ASSAY_STATISTIC_AXIS_SLOPE + 1), rows - 1);
    assert_int_equal(assay_statistic_row(&shape, ASSAY_STATISTIC_AXIS + 2), -1);
    assert_int_equal(assay_statistic_row(&shape, ASSAY_STATISTIC_AXIS_SLOPE + 2), -1);
    static const int known[] = {8, 9, 18}, unknown[] = {0, 7, 10, 17, 19};
    for (size_t i = 0; i < 3; i++) assert_true(assay_statistics_rows_are_known(&shape, known[i]));
    for (size_t i = 0; i < 5; i++) assert_false(assay_statistics_rows_are_known(&shape, unknown[i]));
}

/* Errors below an eighth of a deviation: the smaller, the farther their signs may go together. */
TEST(signs_of_small_errors_count_less)
{
    assay_statistics found = {0};
    found.values[ASSAY_STATISTIC_SIZE] = log(0.5);
    assert_true(assay_statistic_widening(ASSAY_STATISTIC_SIGN, &found) == 1);
    found.values[ASSAY_STATISTIC_SIZE] = log(0x1p-5);
    assert_true(fabs(assay_statistic_widening(ASSAY_STATISTIC_SIGN, &found) - 4) < 1e-12);
    assert_true(assay_statistic_widening(ASSAY_STATISTIC_BIAS, &found) == 1);
    assert_true(assay_statistic_widening(ASSAY_STATISTIC_SLOPE, &found) == 1);
    assert_true(assay_statistic_widening(ASSAY_STATISTIC_SIZE, &found) == 1);
    found.values[ASSAY_STATISTIC_SIZE] = -(double)INFINITY; /* no error at all */
    assert_true(assay_statistic_widening(ASSAY_STATISTIC_SIGN, &found) > 1);
}

/* N is the heads' axis, and the width of a grouped product, which has nothing behind it. */
TEST(an_axis_is_called_by_what_it_is)
{
    static const struct {
        int rank, axis;
        const char *labels[4], *text;
    } table[] = {{2, 1, {"M", "N"}, "column 23"},
                 {3, 2, {"G", "Kd", "N"}, "column 23"},
                 {3, 1, {"B", "N", "S"}, "head 23"},
                 {1, 0, {"N"}, "head 23"},
                 {3, 0, {"E", "D", "H"}, "expert 23"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        char text[ASSAY_SLICE_TEXT];
        assay_tensor_result result = {.spec.shape.rank = table[i].rank};
        for (int axis = 0; axis < table[i].rank; axis++)
            snprintf(result.axis_labels[axis], sizeof result.axis_labels[axis], "%s", table[i].labels[axis]);
        const int statistic = ASSAY_STATISTIC_AXIS + table[i].axis;
        result.statistics[statistic].slice = 23;
        assay_slice_text(&result, statistic, text);
        assert_string_equal(text, table[i].text);
    }
}

TEST(axes_that_are_too_long)
{
    const int64_t longest = ASSAY_LONGEST_AXIS;
    const assay_shape fits = assay_shape_of(2, (int64_t)3, longest),
                      long_last = assay_shape_of(2, (int64_t)3, longest + 1),
                      long_first = assay_shape_of(2, longest + 1, (int64_t)129);
    assert_true(assay_statistic_counts(&fits, ASSAY_STATISTIC_AXIS + 1));
    assert_true(assay_statistic_counts(&fits, ASSAY_STATISTIC_TILE));
    assert_false(assay_statistic_counts(&long_last, ASSAY_STATISTIC_AXIS + 1));
    assert_false(assay_statistic_counts(&long_last, ASSAY_STATISTIC_TILE));
    assert_true(assay_statistic_counts(&long_last, ASSAY_STATISTIC_AXIS));
    assert_false(assay_statistic_counts(&long_first, ASSAY_STATISTIC_AXIS));
    assert_true(assay_statistic_counts(&long_first, ASSAY_STATISTIC_TILE));
    OWNED_BY(errors_free) errors e = errors_of(2, DIMS(2, ASSAY_LONGEST_AXIS + 1));
    e.candidate[5] += 100;
    assay_statistics found = measure(&e, 1 << 16);
    assert_true(found.values[ASSAY_STATISTIC_AXIS] > found.values[ASSAY_STATISTIC_SIZE]);
    assert_int_equal(found.slices[ASSAY_STATISTIC_AXIS], 0);
    assert_true(found.values[ASSAY_STATISTIC_AXIS + 1] == 0 && found.values[ASSAY_STATISTIC_TILE] == 0);
    errors_free(&e);
    e = errors_of(2, DIMS(ASSAY_LONGEST_AXIS + 1, 2));
    found = measure(&e, 1 << 16);
    assert_true(found.values[ASSAY_STATISTIC_AXIS] == 0);
}

/* Ten statistics share a third of 0.06, half of it on either side: Student's t from a table for 3 members, and the
 * Gaussian quantile for very many. */
TEST(quantiles)
{
    const assay_thresholds t = assay_thresholds_of(0.06, 10, 10, 10);
    assert_true(fabs(t.statistic_tail - 0.001) < 1e-15);
    const double two_freedoms = assay_statistic_quantile(&t, 3) / sqrt(4.0 / 3),
                 many = assay_statistic_quantile(&t, 1e9);
    assert_true(fabs(two_freedoms - 22.327) < 1e-3);
    assert_true(fabs(many - 3.0902) < 1e-4);
}

TEST(deviations)
{
    const double row[ASSAY_NULL_COLUMNS] = {-1, 2, 0.5, 16}, unused[ASSAY_NULL_COLUMNS] = {0};
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_BIAS, 0, row) == 0);
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_BIAS, 3, row) == 2);
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_BIAS, -2, row) == 2);
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_SIZE, 3, row) == 2);
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_SIZE, -9, row) == 0);
    assert_true(assay_statistic_deviation(ASSAY_STATISTIC_BIAS, 9, unused) == 0);
}
