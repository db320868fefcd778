/* DeepSeek layers with all widths 1, so that their numbers can be worked out by hand. */
#ifndef ASSAY_QUAD_TESTS_NARROW_STACK_H
#define ASSAY_QUAD_TESTS_NARROW_STACK_H

#include "oracle/quad/tests/quad_case.h"

/* `batch` rows of one token each; two experts, of which one is chosen. */
assay_stack_config narrow_stack(int64_t batch, int64_t layers, int64_t dense);

void narrow_weight(quad_case *c, const char *prefix, const char *name, const double *values, assay_shape shape);
/* Whatever x > 0, the norm gives 3, kv_norm 4 and the value 40, of which 5 is added; of x < 0 all with the other sign. */
void narrow_attention(quad_case *c, const char *prefix);
/* With its attention. Expert 1 has the larger score; expert 0 gives 4 times 3, expert 1 4 times 5. */
void narrow_moe(quad_case *c, const char *prefix);

#endif
