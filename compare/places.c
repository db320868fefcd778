#include "compare/compare_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void assay_outlier_keep(assay_outlier worst[ASSAY_WORST_COUNT], int *count, const assay_outlier *found)
{
    int place = *count;
    while (place > 0 && found->excess > worst[place - 1].excess) place--;
    if (place == ASSAY_WORST_COUNT) return;
    int kept = *count < ASSAY_WORST_COUNT ? *count + 1 : ASSAY_WORST_COUNT;
    memmove(&worst[place + 1], &worst[place], (size_t)(kept - place - 1) * sizeof *worst);
    worst[place] = *found;
    *count = kept;
}

double assay_outlier_bar(const assay_outlier worst[ASSAY_WORST_COUNT], int count)
{
    return count < ASSAY_WORST_COUNT ? 0.0 : worst[ASSAY_WORST_COUNT - 1].excess;
}

static void index_text(const int64_t *dims, int rank, int64_t index, char text[ASSAY_INDEX_TEXT])
{
    int64_t axes[ASSAY_MAX_RANK];
    int length = 0;
    for (int axis = rank - 1; axis >= 0; axis--) {
        axes[axis] = index % dims[axis];
        index /= dims[axis];
    }
    for (int axis = 0; axis < rank; axis++) {
        length += snprintf(text + length, (size_t)(ASSAY_INDEX_TEXT - length), "%s%" PRId64, axis == 0 ? "[" : ",",
                           axes[axis]);
    }
    snprintf(text + length, (size_t)(ASSAY_INDEX_TEXT - length), "%s", rank == 0 ? "" : "]");
}

void assay_element_text(const assay_shape *shape, int64_t element, char text[ASSAY_INDEX_TEXT])
{
    index_text(shape->dims, shape->rank, element, text);
}

void assay_row_text(const assay_shape *shape, int64_t row, char text[ASSAY_INDEX_TEXT])
{
    index_text(shape->dims, shape->rank > 0 ? shape->rank - 1 : 0, row, text);
}

const char *assay_statistic_name(int statistic)
{
    static const char *const names[] = {"size", "bias", "slope", "sign", "toward_zero", "row", "tile"};
    if (statistic >= ASSAY_STATISTIC_AXIS_SLOPE) return "axis_slope";
    if (statistic >= ASSAY_STATISTIC_TILE_SLOPE) return "tile_slope";
    return statistic < ASSAY_STATISTIC_AXIS ? names[statistic] : "axis";
}

/* One index of an axis, by the letter that the axis has in fixtures. */
static void slice_index_text(const assay_tensor_result *result, int axis, int64_t index, char text[ASSAY_SLICE_TEXT])
{
    static const char *const words[][2] = {{"B", "batch"},  {"S", "token"}, {"T", "token"},    {"T*K", "copy"},
                                           {"E", "expert"}, {"N", "head"},  {"E/P", "expert"}, {"shard", "shard"},
                                           {"G", "group"},  {"K", "choice"}};
    const bool last = axis == result->spec.shape.rank - 1;
    /* a grouped product's N is its width; heads have an axis behind theirs, or are all there is */
    const char *label =
        last && axis > 0 && strcmp(result->axis_labels[axis], "N") == 0 ? "" : result->axis_labels[axis];
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(words[i][0], label) != 0) continue;
        snprintf(text, ASSAY_SLICE_TEXT, "%s %" PRId64, words[i][1], index);
        return;
    }
    if (last) {
        snprintf(text, ASSAY_SLICE_TEXT, "column %" PRId64, index);
    } else if (label[0] != '\0') {
        snprintf(text, ASSAY_SLICE_TEXT, "index %" PRId64 " of axis %s", index, label);
    } else {
        snprintf(text, ASSAY_SLICE_TEXT, "index %" PRId64 " of axis %d", index, axis);
    }
}

/* "rows [1,0] to [1,7], columns 8-15" */
static void tile_text(const assay_shape *shape, int level, int64_t tile, char text[ASSAY_SLICE_TEXT])
{
    char first[ASSAY_INDEX_TEXT], last[ASSAY_INDEX_TEXT];
    const int64_t size = assay_tile_size(level), across = assay_tiles_across(shape, level);
    const int64_t columns = shape->dims[shape->rank - 1], rows = assay_shape_count(shape) / columns;
    const int64_t row = tile / across * size, column = tile % across * size;
    assay_row_text(shape, row, first);
    assay_row_text(shape, (row + size < rows ? row + size : rows) - 1, last);
    const int length = rows > 1 ? snprintf(text, ASSAY_SLICE_TEXT, "rows %s to %s, ", first, last) : 0;
    snprintf(text + length, (size_t)(ASSAY_SLICE_TEXT - length), "columns %" PRId64 "-%" PRId64, column,
             (column + size < columns ? column + size : columns) - 1);
}

void assay_slice_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT])
{
    const assay_shape *shape = &result->spec.shape;
    const int64_t slice = result->statistics[statistic].slice;
    text[0] = '\0';
    if (statistic >= ASSAY_STATISTIC_AXIS_SLOPE) {
        slice_index_text(result, statistic - ASSAY_STATISTIC_AXIS_SLOPE, slice, text);
    } else if (statistic >= ASSAY_STATISTIC_TILE_SLOPE) {
        tile_text(shape, statistic - ASSAY_STATISTIC_TILE_SLOPE, slice, text);
    } else if (statistic >= ASSAY_STATISTIC_AXIS) {
        slice_index_text(result, statistic - ASSAY_STATISTIC_AXIS, slice, text);
    } else if (statistic == ASSAY_STATISTIC_TILE) {
        const int64_t last = shape->dims[shape->rank - 1], end = (slice + 1) * ASSAY_TILE;
        snprintf(text, ASSAY_SLICE_TEXT, "columns %" PRId64 "-%" PRId64, slice * ASSAY_TILE,
                 (end < last ? end : last) - 1);
    } else if (statistic == ASSAY_STATISTIC_ROW) {
        char row[ASSAY_INDEX_TEXT];
        assay_row_text(shape, slice, row);
        snprintf(text, ASSAY_SLICE_TEXT, "row %s", row);
    }
}

void assay_statistic_text(const assay_tensor_result *result, int statistic, char text[ASSAY_SLICE_TEXT])
{
    const assay_statistic_result *s = &result->statistics[statistic];
    if (assay_statistic_is_slice_slope(statistic)) {
        snprintf(text, ASSAY_SLICE_TEXT,
                 "%.6g times the golden, off by %.3g deviations together, of a correct implementation up to %.3g",
                 1 + s->slope, s->value, s->most);
    } else if (assay_statistic_is_size(statistic)) {
        snprintf(text, ASSAY_SLICE_TEXT, "RMS of error / deviation %.3g, of a correct implementation up to %.3g",
                 exp(s->value), exp(s->most));
    } else if (statistic == ASSAY_STATISTIC_BIAS) {
        snprintf(text, ASSAY_SLICE_TEXT, "mean of error / deviation %.3g, of a correct implementation %.3g to %.3g",
                 s->value, s->least, s->most);
    } else if (statistic == ASSAY_STATISTIC_SLOPE) {
        snprintf(text, ASSAY_SLICE_TEXT, "%.6g times the golden, a correct implementation 1%+.3g to 1%+.3g",
                 1 + s->value, s->least, s->most);
    } else {
        static const char *const sides[2][2][2] = {
            {{"positive errors", "negative ones"}, {"negative errors", "positive ones"}},
            {{"errors towards zero", "those away from it"}, {"errors away from zero", "those towards it"}}};
        const bool negative = s->value < 0;
        const char *const *side = sides[statistic == ASSAY_STATISTIC_TOWARD_ZERO][negative];
        const double least = negative ? -s->most : s->least, most = negative ? -s->least : s->most;
        snprintf(text, ASSAY_SLICE_TEXT, "%s are %.3g of all more than %s, of a correct implementation %.3g to %.3g",
                 side[0], 2 * fabs(s->value), side[1], fmax(2 * least, -1), fmin(2 * most, 1));
    }
}
