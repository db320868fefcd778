/* Two backends' results of a case against each other: whether rounding explains how far they lie apart (docs/further-checks.md).
 *
 * Each is held against the golden first, given its own choice of experts. What is left is the difference of their errors, and is
 * judged as errors are, by error scales and null distributions of differences of two correct kernels (assay_plan.less). */
#pragma once

#include "harness/judge/judge.h"

typedef struct assay_between_side {
    assay_fixture_reader *candidate;
    const assay_profile *profile; /* the golden has its error scales */
} assay_between_side;

/* Of a case whose outputs/logits are scores of a next token: Kullback and Leibler's divergence of the second's distribution from the
 * first's, in nats; and tokens whose two best scores lie within what the difference of two correct kernels may be. */
typedef struct assay_next_token {
    int64_t tokens, near_ties, other; /* other: the best one is another */
    double mean, largest;
} assay_next_token;

/* Starts zeroed. */
typedef struct assay_between {
    assay_report of[2];     /* each one's own verdict, without explanations */
    assay_report apart;     /* on the difference; zeroed where a choice of experts is wrong */
    bool same;              /* all results that both have are the same bits */
    int64_t tokens, differ; /* choices of experts: of how many, and how many differ */
    double margin;          /* of those the largest margin of the golden; 0 */
    assay_next_token next;
} assay_between;

/* The golden has its plan. */
assay_status assay_between_compare(assay_context *ctx, assay_golden *golden, const assay_between_side sides[2],
                                   double false_alarm, bool quiet, assay_between *between);
void assay_between_free(assay_between *between); /* safe on a zeroed struct */

typedef enum assay_between_verdict {
    ASSAY_BETWEEN_SAME,
    ASSAY_BETWEEN_ROUNDING,
    ASSAY_BETWEEN_BEYOND
} assay_between_verdict;
assay_between_verdict assay_between_verdict_of(const assay_between *between);
const char *assay_between_name(assay_between_verdict verdict); /* "SAME BITS", "ROUNDING", "BEYOND ROUNDING" */
/* In one line; of what is beyond rounding the first tensor of the data flow. */
void assay_between_message(const assay_between *between, char message[ASSAY_VERDICT_SIZE]);
