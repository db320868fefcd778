/* Bytes of a cache that a kernel makes of numbers which it computed itself (cache_norm, cache_rope): near a boundary a correct
 * kernel writes another code than the golden has. The golden holds the numbers with their error scales (assay_tensor_entry.held),
 * and each code, scale and plain number of the candidate must be what these may become (docs/comparing.md, "Bytes of a cache").
 * Bytes that no number is written to are compared as they are. So is an output that its case gives an fp8 type: the golden has what is
 * rounded to that, and the candidate must have what it may be rounded to. */
#pragma once

#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"

/* Of the probability of a false alarm; the rest is for what is compared. */
#define ASSAY_CODES_SHARE 0.25

/* Starts zeroed. */
typedef struct assay_written_codes {
    assay_tensor_set written; /* the candidate's bytes and outputs as they were */
    int64_t codes, scales, outputs, exact, admissible, wrong;
    char wrong_path[ASSAY_PATH_SIZE]; /* of the first wrong one; "" */
    char message[256];                /* on it */
} assay_written_codes;

/* A block whose scale and codes are admissible, and a plain number that is, become the golden's in the candidate. Nothing happens where
 * the case computes no numbers. `golden` may be a mutant's results; false_alarm is that of the whole report. `staged`:
 * numbers are the candidate's own, as far as it gives them. */
assay_status assay_written_codes_adopt(assay_context *ctx, const assay_plan *plan, const assay_profile *profile,
                                       double false_alarm, bool staged, assay_fixture_reader *golden,
                                       assay_fixture_reader *candidate, assay_written_codes *codes);
/* The candidate has its own bytes again. */
assay_status assay_written_codes_put_back(assay_context *ctx, assay_fixture_reader *candidate,
                                          assay_written_codes *codes);
void assay_written_codes_free(assay_written_codes *codes);
