/* Functions of numbers one by one, and what is made of the numbers along an axis: what steps of programs name. */
#pragma once

/* Of one number; clamp has two bounds, a and b. gelu is the tanh form. */
#define GRAPH_MAPS(X)                                                                                                  \
    X(neg)                                                                                                             \
    X(abs)                                                                                                             \
    X(square)                                                                                                          \
    X(reciprocal)                                                                                                      \
    X(exp)                                                                                                             \
    X(log)                                                                                                             \
    X(sqrt)                                                                                                            \
    X(rsqrt)                                                                                                           \
    X(sigmoid)                                                                                                         \
    X(silu)                                                                                                            \
    X(gelu)                                                                                                            \
    X(gelu_exact)                                                                                                      \
    X(erf)                                                                                                             \
    X(tanh)                                                                                                            \
    X(relu)                                                                                                            \
    X(softplus)                                                                                                        \
    X(sin)                                                                                                             \
    X(cos)                                                                                                             \
    X(cast)                                                                                                            \
    X(clamp)
typedef enum graph_map {
#define X(name) GRAPH_MAP_##name,
    GRAPH_MAPS(X)
#undef X
        GRAPH_MAP_COUNT
} graph_map;

/* Of two numbers, which are repeated along the axes that they lack. */
#define GRAPH_BINARIES(X)                                                                                              \
    X(add)                                                                                                             \
    X(sub)                                                                                                             \
    X(mul)                                                                                                             \
    X(div)                                                                                                             \
    X(maximum)                                                                                                         \
    X(minimum)                                                                                                         \
    X(less)                                                                                                            \
    X(equal)
typedef enum graph_binary {
#define X(name) GRAPH_BINARY_##name,
    GRAPH_BINARIES(X)
#undef X
        GRAPH_BINARY_COUNT
} graph_binary;

#define GRAPH_REDUCTIONS(X)                                                                                            \
    X(sum)                                                                                                             \
    X(mean)                                                                                                            \
    X(max)
typedef enum graph_reduction {
#define X(name) GRAPH_REDUCTION_##name,
    GRAPH_REDUCTIONS(X)
#undef X
        GRAPH_REDUCTION_COUNT
} graph_reduction;
