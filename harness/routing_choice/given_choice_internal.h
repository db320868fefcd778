/* What the files of given_choice.h share. */
#ifndef ASSAY_HARNESS_CONDITIONAL_INTERNAL_H
#define ASSAY_HARNESS_CONDITIONAL_INTERNAL_H

#include "compare/compare.h"
#include "harness/golden/golden.h"
#include "oracle/base/tensor_set.h"

/* The choice of one router: routing/selected_experts, or that of a layer. */
typedef struct assay_router_choice {
    char path[ASSAY_PATH_SIZE];
    int rank; /* in the order of the data flow */
    int64_t tokens, per_token;
    bool given;         /* by the candidate; else the oracle chooses */
    int32_t *golden;    /* [T,K] as stored; then what the oracle would choose, given the choices of the layers before */
    int32_t *candidate; /* [T,K] */
    double *scores;     /* [T,E] what experts are chosen by, given all choices: one of `results` */
    double *tau;        /* [T,E] how far a correct implementation's may be off */
} assay_router_choice;

typedef struct assay_given_choice {
    assay_source inputs;      /* of the golden */
    assay_tensor_set choices; /* to evaluate with: the candidate's, the golden's where that is none at all; those of
                                 routers whose choice the candidate does not give come with the scores */
    assay_tensor_set results; /* of the run that gives the scores */
    assay_router_choice *routers;
    int count;
} assay_given_choice;

assay_tensor_spec assay_choice_spec(const assay_router_choice *router);
/* Fills golden and scores of every router from one run of the plan's operation, and the choices that are not given. */
assay_status assay_given_choice_scores(assay_context *ctx, assay_given_choice *c, const assay_plan *plan);
/* Fills tau: `deviations` times the spread of the scores over an ensemble of the plan's one profile. */
assay_status assay_given_choice_tau(assay_context *ctx, assay_given_choice *c, const assay_plan *plan,
                                    double deviations);

#endif
