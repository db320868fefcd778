/* Quantiles of the upper tail, for compare/thresholds.c. Two libraries have them, of which a program links one: assay_quantiles
 * (quantiles.c, ours, under our licence) and assay_quantiles_gsl (quantiles_gsl.c, the GNU Scientific Library's). */
#pragma once

/* What a standard normal variable exceeds with probability `tail`, DBL_MIN to 1/2. */
double assay_normal_upper_quantile(double tail);

/* The same of Student's t with that many degrees of freedom, above 0. */
double assay_student_upper_quantile(double tail, double freedom);
