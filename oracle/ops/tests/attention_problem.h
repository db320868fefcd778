/* Attention with inputs, results and gradients, all allocated. */
#pragma once

#include "oracle/base/dtype.h"
#include "oracle/ops/attention.h"

/* How the tokens of a batch row get their segment ids. */
typedef enum attention_pattern {
    ONE_SEGMENT, /* no ids */
    PADDED_END   /* 1 1 1 1 0 0 0; odd batch rows: nothing but padding */
} attention_pattern;

enum { ATTENTION_OUT, ATTENTION_LSE, ATTENTION_DQUERY, ATTENTION_DKEY, ATTENTION_DVALUE, ATTENTION_RESULTS };

typedef struct attention_problem {
    assay_attention_config config;
    int64_t tokens;                            /* B*S */
    double *query, *key, *value, *dout, *dlse; /* standard deviation 1; query 1/sqrt(Dq) */
    int32_t *segment_ids;                      /* or NULL */
    double *results[ATTENTION_RESULTS];
    int64_t count[ATTENTION_RESULTS];
} attention_problem;

/* Results hold NaN; so do the rows of padding when it is masked. */
void attention_problem_make(attention_problem *p, const assay_attention_config *config, attention_pattern pattern);
void attention_problem_free(attention_problem *p);
assay_attention_inputs attention_problem_inputs(const attention_problem *p);
assay_attention_gradients attention_problem_gradients(const attention_problem *p);

/* Forward and backward into results filled with NaN. */
void attention_problem_run(assay_context *ctx, attention_problem *p);

bool attention_is_padding(const attention_problem *p, int64_t batch, int64_t i);
