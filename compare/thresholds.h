/* Thresholds from a stated false-alarm probability (docs/comparing.md). For compare/, and for choices of
 * experts. */
#pragma once

#include <stdint.h>

/* In standard deviations of a correct implementation. */
typedef struct assay_thresholds {
    double element, row;
    double statistic_tail; /* probability of one statistic on one side */
} assay_thresholds;

/* Equal parts of `false_alarm` are for all elements together, for all rows and, if there are any, for all statistics;
 * each is shared equally (Bonferroni): Gaussian quantiles, two-sided. Holds however the errors depend on each other. */
assay_thresholds assay_thresholds_of(double false_alarm, int64_t elements, int64_t rows, int64_t statistics);

/* How many spreads a statistic may lie from where `members` draws put it: Student's t, and their own uncertainty. */
double assay_statistic_quantile(const assay_thresholds *thresholds, double members);
