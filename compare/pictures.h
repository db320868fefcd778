/* What a person looks at: where in a tensor the errors are, and how they are distributed. A pass of its own over golden
 * and candidate, for reports that show pictures; verdicts do not depend on it. */
#pragma once

#include "compare/compare.h"

enum { ASSAY_PICTURE_ROWS = 64, ASSAY_PICTURE_COLUMNS = 128, ASSAY_PICTURE_BINS = 48 };
enum { ASSAY_PICTURES_MOST = 1000 }; /* of one fixture */
#define ASSAY_PICTURE_LIMIT 6.0      /* error scales on each side of the histogram */

/* The tensor as a matrix, all axes but the last against the last, in at most ROWS x COLUMNS cells. */
typedef struct assay_picture {
    int rows, columns;
    /* the largest |error| / sigma of a cell, sigma with the rounding of the result in it; infinite where the candidate
     * is not finite and the golden is, or where no error is allowed */
    float cells[ASSAY_PICTURE_ROWS * ASSAY_PICTURE_COLUMNS];
    int64_t bins[ASSAY_PICTURE_BINS]; /* of error / sigma from -LIMIT to LIMIT; what is beyond is in the ends */
    int64_t counted;                  /* elements in the histogram */
} assay_picture;

/* Fills report->pictures: [i] belongs to tensors[i], NULL where there is nothing to draw (integers, no error scale, not
 * given, unreadable). Beyond ASSAY_PICTURES_MOST tensors, those that do not pass come first. */
assay_status assay_pictures_draw(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                                 const assay_profile *profile, assay_report *report);
