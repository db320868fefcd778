/* Quantiles of the upper tail, for compare/thresholds.c: to 1e-12 down to the least tails, where the GNU Scientific Library's err by
 * 4e-8 and would put binaries under the GPL. */
#pragma once

/* What a standard normal variable exceeds with probability `tail`, DBL_MIN to 1/2. */
double assay_normal_upper_quantile(double tail);

/* The same of Student's t with that many degrees of freedom, above 0. */
double assay_student_upper_quantile(double tail, double freedom);
