/* Small stacks with random tensors, for tests. */
#pragma once

#include "oracle/layer/decoder_stack.h"
#include "tests/support/test_tensors.h"

typedef struct layer_case {
    assay_stack_config config;
    uint64_t seed;
    test_tensors in;
} layer_case;

/* DeepSeek-V3's form at tiny sizes: the first `dense` of `layers` have a gated MLP, the others 4 experts and a shared one. */
layer_case layer_case_make(int64_t layers, int64_t dense, int64_t batch, int64_t sequence);
/* With everything that gqa.h has, its window in the even layers; all layers have experts, and none a shared one. */
layer_case layer_case_gqa(int64_t layers, int64_t batch, int64_t sequence);
/* Sizes, batch and sequence of every part follow the attention's and the MoE block's own keys. Fills `in`. */
void layer_case_fill(layer_case *c);
void layer_case_free(layer_case *c);

/* Asserts success. */
void layer_case_run(assay_context *ctx, layer_case *c, test_tensors *out);
const assay_tensor *layer_case_get(const test_tensors *store, const char *path); /* asserts that it is there */
/* Every tensor of `actual` but those under remat/ has the bits that `expected` has under its path. */
void layer_case_assert_same(const test_tensors *actual, const test_tensors *expected);

double layer_case_uniform(uint64_t *state); /* in (-1,1) */
