#include "compare/outliers.h"

#include <inttypes.h>
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

int64_t assay_row_length(const assay_shape *shape)
{
    return shape->rank == 0 ? 1 : shape->dims[shape->rank - 1];
}
