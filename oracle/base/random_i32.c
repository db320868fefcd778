/* Tensors of whole numbers: a tensor at once, since most of these distributions tie all elements to each other. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "oracle/base/memory.h"
#include "oracle/base/random_kernels.h"

/* The number of rank d among those that the row does not hold yet: the least id with id = d + (held ones up to id). */
static int32_t unused_of_rank(int64_t rank, const int32_t *row, int64_t held)
{
    int64_t id = -1, next = rank;
    while (next != id) {
        id = next;
        next = rank;
        for (int64_t i = 0; i < held; i++) next += row[i] <= id;
    }
    return (int32_t)id;
}

static void draw_experts(const assay_context *ctx, const assay_fill *fill, const assay_random_stream *stream,
                         int64_t rows, int64_t columns, int32_t *out)
{
    const int64_t experts = (int64_t)fill->high + 1;
#pragma omp parallel for num_threads(ctx->threads)
    for (int64_t r = 0; r < rows; r++) {
        int32_t *row = out + r * columns;
        for (int64_t j = 0; j < columns; j++) {
            uint32_t lane = assay_random_lane(stream, (uint64_t)(r * columns + j));
            row[j] = unused_of_rank((int64_t)assay_random_below(lane, (uint64_t)(experts - j)), row, j);
        }
    }
}

static int ascending(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* One group, drawn, is empty, each other one with probability 1/4, but not all of them. */
static bool group_is_open(const assay_random_stream *extras, int64_t group, int64_t groups, int64_t *open_anyway)
{
    int64_t closed = (int64_t)assay_random_below(assay_random_lane(extras, (uint64_t)groups), (uint64_t)groups);
    *open_anyway = (closed + 1) % groups;
    return group != closed && assay_random_lane(extras, (uint64_t)group) >= UINT32_C(1) << 30;
}

static void draw_group_sizes(const assay_fill *fill, const assay_random_stream *elements,
                             const assay_random_stream *extras, int64_t groups, int32_t *out)
{
    const int64_t total = (int64_t)fill->high;
    int64_t open = 0, open_anyway = 0;
    for (int64_t g = 0; g < groups; g++) open += group_is_open(extras, g, groups, &open_anyway);
    bool none = open == 0;
    if (none) open = 1;

    /* The sizes of the open groups are the gaps between sorted cuts of [0, total]. */
    for (int64_t i = 0; i < open - 1; i++) {
        out[i] = (int32_t)assay_random_below(assay_random_lane(elements, (uint64_t)i), (uint64_t)total + 1);
    }
    qsort(out, (size_t)(open - 1), sizeof *out, ascending);
    out[open - 1] = (int32_t)total;
    for (int64_t i = open - 1; i > 0; i--) out[i] -= out[i - 1];

    /* Spread out from the end: group g reads at most from place g. */
    for (int64_t g = groups - 1; g >= 0; g--) {
        bool is_open = none ? g == open_anyway : group_is_open(extras, g, groups, &open_anyway);
        out[g] = is_open ? out[--open] : 0;
    }
}

static void draw_permutation(const assay_random_stream *stream, int64_t count, int32_t *out)
{
    for (int64_t i = 0; i < count; i++) out[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint64_t j = assay_random_below(assay_random_lane(stream, (uint64_t)i), (uint64_t)i + 1);
        int32_t swapped = out[i];
        out[i] = out[j];
        out[j] = swapped;
    }
}

/* The distributions of single elements, which must come out as whole numbers. */
static assay_status draw_elements(assay_context *ctx, const assay_fill *fill, uint64_t seed, const char *path,
                                  const assay_shape *shape, int64_t total, int32_t *out)
{
    enum { CHUNK = 4096 };
    double values[CHUNK];
    for (int64_t first = 0; first < total; first += CHUNK) {
        int64_t count = total - first < CHUNK ? total - first : CHUNK;
        assay_status status = assay_random_fill(ctx, fill, seed, path, shape, ASSAY_FLOAT64, first, count, values);
        if (status != ASSAY_OK) return status;
        for (int64_t i = 0; i < count; i++) {
            if (!(values[i] >= INT32_MIN && values[i] <= INT32_MAX && values[i] == rint(values[i]))) {
                return assay_refuse(ctx, "%s: element %" PRId64 " would be %g, expected a whole number of 32 bits",
                                    path, first + i, values[i]);
            }
            out[first + i] = (int32_t)values[i];
        }
    }
    return ASSAY_OK;
}

static void pass_over(const assay_random_stream *extras, int32_t over, int64_t total, int32_t *out)
{
    int64_t count = 0;
    const int32_t last = total > 0 ? out[total - 1] : 0;
    for (int64_t i = 0; i < total && total > 1; i++) {
        if (assay_random_lane(extras, (uint64_t)i) >= UINT32_C(1) << 30) continue;
        out[i] = over;
        count++;
    }
    if (count == 0 && total > 1) out[0] = over;
    if (count == total && total > 1) out[total - 1] = last;
}

assay_status assay_random_fill_i32(assay_context *ctx, const assay_fill *fill, uint64_t seed, const char *path,
                                   const assay_shape *shape, int32_t *out)
{
    int64_t total = 0;
    assay_status status = assay_checked_count(ctx, path, shape->rank, shape->dims, &total);
    if (status == ASSAY_OK) status = assay_random_check(ctx, fill, path, shape);
    if (status != ASSAY_OK) return status;
    const assay_random_stream elements = assay_random_stream_of(seed, path, ASSAY_DRAW_ELEMENTS);
    const assay_random_stream extras = assay_random_stream_of(seed, path, ASSAY_DRAW_EXTRAS);
    switch (fill->distribution) {
    case ASSAY_INTEGERS:
        MUST(draw_elements(ctx, fill, seed, path, shape, total, out));
        if (fill->passes_over) pass_over(&extras, (int32_t)fill->over, total, out);
        return ASSAY_OK;
    case ASSAY_CONSTANT:
    case ASSAY_VALUES:
        return draw_elements(ctx, fill, seed, path, shape, total, out);
    case ASSAY_EXPERTS:
        if (total > 0) {
            int64_t columns = shape->dims[shape->rank - 1];
            draw_experts(ctx, fill, &elements, total / columns, columns, out);
        }
        return ASSAY_OK;
    case ASSAY_GROUP_SIZES:
        if (total > 0) draw_group_sizes(fill, &elements, &extras, total, out);
        return ASSAY_OK;
    case ASSAY_PERMUTATION:
        draw_permutation(&elements, total, out);
        return ASSAY_OK;
    case ASSAY_RAMP:
        for (int64_t i = 0; i < total; i++)
            out[i] = (int32_t)(fill->mean + fill->scale * (double)(i % shape->dims[shape->rank - 1]));
        return ASSAY_OK;
    default:
        return assay_refuse(ctx, "%s: distribution %s does not make int32 tensors", path,
                            assay_distribution_name(fill->distribution));
    }
}
