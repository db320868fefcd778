/* The unit of a gated MLP in float64. */
#ifndef ASSAY_EXAMPLE_TESTS_NAIVE_GLU_H
#define ASSAY_EXAMPLE_TESTS_NAIVE_GLU_H

#include <stdbool.h>

/* h of a and b; activations as the setting has them, "silu,linear"; NULL is that, a limit of 0 none. */
double naive_glu(const char *activations, double limit, bool gpt_oss, double a, double b);

#endif
