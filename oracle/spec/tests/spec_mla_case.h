/* What the cases of rotary embedding, attention and MLA share. */
#ifndef ASSAY_SPEC_TESTS_SPEC_MLA_CASE_H
#define ASSAY_SPEC_TESTS_SPEC_MLA_CASE_H

#include "oracle/spec/tests/spec_case.h"

/* A case for the float64 operations, which need an arithmetic. */
void mla_case_start(spec_case *c, uint64_t seed);

/* DeepSeek-V3's, of width `dim`. */
assay_rope_config deepseek3_rope(int64_t dim);

/* Who sees whom, as inputs/segment_ids [batch,sequence], every row alike. */
typedef enum segment_kind { NO_SEGMENTS, ALL_PADDING, PADDED_TAIL, SCATTERED } segment_kind;
const int32_t *case_segments(spec_case *c, segment_kind kind, int64_t batch, int64_t sequence); /* NO_SEGMENTS: NULL */

#endif
