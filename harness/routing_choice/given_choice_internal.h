/* What the files of conditional.h share. */
#ifndef ASSAY_HARNESS_CONDITIONAL_INTERNAL_H
#define ASSAY_HARNESS_CONDITIONAL_INTERNAL_H

#include "compare/compare.h"
#include "harness/golden/golden.h"

/* The choice of one router: routing/selected_experts, or that of a layer. */
typedef struct assay_router_choice {
    char path[ASSAY_PATH_SIZE];
    int rank; /* in the order of the data flow */
    int64_t tokens, per_token;
    bool given;         /* by the candidate */
    bool known;         /* `experts` is what to evaluate with; else the oracle chooses */
    int32_t *golden;    /* [T,K] as stored; then what the oracle would choose, given the choices of the layers before */
    int32_t *candidate; /* [T,K] */
    int32_t *experts;   /* [T,K] the candidate's; golden where that is no choice at all */
    double *scores;     /* [T,E] what experts are chosen by, given all choices */
    double *tau;        /* [T,E] how far a correct implementation's may be off */
} assay_router_choice;

typedef struct assay_conditional {
    assay_source inputs; /* of the golden */
    assay_router_choice *routers;
    int count;
} assay_conditional;

/* The golden's inputs and the choices that are known. */
assay_source assay_conditional_source(assay_conditional *c);

/* Fills golden and scores of every router from one run of the plan's operation, and `experts` where it is not known. */
assay_status assay_conditional_scores(assay_context *ctx, assay_conditional *c, const assay_plan *plan);
/* Fills tau: `deviations` times the spread of the scores over an ensemble of the plan's one profile. */
assay_status assay_conditional_tau(assay_context *ctx, assay_conditional *c, const assay_plan *plan, double deviations);

#endif
