/* The few elements or rows that lie farthest out, and how they are named. Private to compare/. */
#pragma once

#include "compare/compare.h"

/* Keeps the ASSAY_WORST_COUNT with the largest excess, in descending order; of equal ones those that came first. */
void assay_outlier_keep(assay_outlier worst[ASSAY_WORST_COUNT], int *count, const assay_outlier *found);

/* Excess that the next one must surpass to be kept; 0 while there is room. */
double assay_outlier_bar(const assay_outlier worst[ASSAY_WORST_COUNT], int count);

enum { ASSAY_INDEX_TEXT = 160 };

/* "[1,3,17]": the index along each axis of an element, or of a row (all axes but the last; "" where there are none). */
void assay_element_text(const assay_shape *shape, int64_t element, char text[ASSAY_INDEX_TEXT]);
void assay_row_text(const assay_shape *shape, int64_t row, char text[ASSAY_INDEX_TEXT]);

/* Elements of a row: the last axis; of a scalar 1. */
int64_t assay_row_length(const assay_shape *shape);
