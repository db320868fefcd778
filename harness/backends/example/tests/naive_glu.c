#include "harness/backends/example/tests/naive_glu.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

static double activation(const char *name, double x)
{
    if (strncmp(name, "silu", 4) == 0) return x / (1 + exp(-x));
    if (strncmp(name, "gelu_exact", 10) == 0) return x * erfc(-x / sqrt(2)) / 2;
    if (strncmp(name, "gelu", 4) == 0) return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    if (strncmp(name, "relu", 4) == 0) return x > 0 ? x : 0;
    if (strncmp(name, "sigmoid", 7) == 0) return 1 / (1 + exp(-x));
    return x;
}

double naive_glu(const char *activations, double limit, bool gpt_oss, double a, double b)
{
    const char *names = activations == NULL ? "silu,linear" : activations;
    if (limit > 0) a = fmin(a, limit), b = fmax(fmin(b, limit), -limit);
    if (gpt_oss) return a / (1 + exp(-1.702 * a)) * (b + 1);
    return activation(names, a) * activation(strchr(names, ',') + 1, b);
}
