/* The routing methods of flashinfer (include/flashinfer/trtllm/fused_moe/runner.h, RoutingMethodType, in its order), and
 * what each is in a router's own terms. */
#pragma once

#include "oracle/moe/routing.h"

enum {
    ASSAY_METHOD_DIVIDES = 1 << 0,   /* the weights by their sum */
    ASSAY_METHOD_BY_LOGITS = 1 << 1, /* experts are chosen by the logits, not by their scores */
    ASSAY_METHOD_BIAS = 1 << 2,      /* it may have these: a bias of the choice, groups, a factor of the weights */
    ASSAY_METHOD_GROUPS = 1 << 3,
    ASSAY_METHOD_FACTOR = 1 << 4,
};

/* name, router, score function, what it has. RenormalizeNaive divides a softmax over all experts, which is one over the
 * chosen. */
#define ASSAY_ROUTING_METHOD_TABLE(X)                                                                                  \
    X("Default", DEEPSEEK2, SOFTMAX, 0)                                                                                \
    X("Renormalize", DEFAULT, NONE, 0)                                                                                 \
    X("DeepSeekV3", DEEPSEEK3, SIGMOID,                                                                                \
      ASSAY_METHOD_DIVIDES | ASSAY_METHOD_BIAS | ASSAY_METHOD_GROUPS | ASSAY_METHOD_FACTOR)                            \
    X("Llama4", LLAMA4, NONE, 0)                                                                                       \
    X("RenormalizeNaive", DEFAULT, NONE, ASSAY_METHOD_DIVIDES)                                                         \
    X("TopK", DEEPSEEK3, NONE, 0)                                                                                      \
    X("SigmoidRenorm", DEEPSEEK3, SIGMOID, ASSAY_METHOD_DIVIDES)                                                       \
    X("MiniMax2", DEEPSEEK3, SIGMOID, ASSAY_METHOD_DIVIDES | ASSAY_METHOD_BIAS | ASSAY_METHOD_FACTOR)                  \
    X("Sigmoid", DEEPSEEK3, SIGMOID, 0)                                                                                \
    X("TopKSigmoid", DEEPSEEK3, SIGMOID, ASSAY_METHOD_BY_LOGITS)

typedef struct assay_routing_method {
    const char *name;
    assay_router_family router;
    assay_score_func score_func;
    unsigned has; /* ASSAY_METHOD_... */
} assay_routing_method;

extern const char *const assay_routing_method_names[];                      /* "" first; ends with NULL */
const assay_routing_method *assay_routing_method_by_name(const char *name); /* NULL when there is none */
