/* Thresholds from a stated false-alarm probability (docs/comparing.md). For compare/, and for choices of
 * experts. */
#ifndef ASSAY_COMPARE_THRESHOLDS_H
#define ASSAY_COMPARE_THRESHOLDS_H

#include <stdint.h>

/* In standard deviations of a correct implementation. */
typedef struct assay_thresholds {
    double element, row;
} assay_thresholds;

/* Half of `false_alarm` is for all elements together and half for all rows together, each shared equally (Bonferroni):
 * Gaussian quantiles, two-sided. Holds however the errors depend on each other. */
assay_thresholds assay_thresholds_of(double false_alarm, int64_t elements, int64_t rows);

#endif
