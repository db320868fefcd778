/* What the files of given_choice.h share. */
#ifndef ASSAY_HARNESS_CONDITIONAL_INTERNAL_H
#define ASSAY_HARNESS_CONDITIONAL_INTERNAL_H

#include "compare/compare.h"
#include "harness/golden/golden.h"
#include "harness/plan/golden_open.h"
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

/* Where what it evaluates is made of: the golden's case at one profile. */
typedef struct assay_again {
    assay_context ctx;   /* with the golden's engine */
    assay_golden golden; /* what is evaluated, open once it is */
    assay_routing_config config;
} assay_again;

/* Plans it, stage by stage with all checkpoints; *a starts zeroed and is closed by assay_golden_close of its golden. */
assay_status assay_again_open(assay_context *ctx, const assay_golden *golden, const assay_profile *profile, bool staged,
                              assay_again *a);
/* From c->inputs and the choices, into a file that nobody else sees. */
assay_status assay_again_evaluate(assay_context *ctx, assay_given_choice *c, assay_again *a, bool quiet);

/* Fills the routers with the golden's choices and the candidate's. */
assay_status assay_given_choice_read(assay_context *ctx, assay_fixture_reader *golden, assay_order order,
                                     assay_fixture_reader *candidate, assay_given_choice *c);
void assay_given_choice_free(assay_given_choice *c);
/* The golden's own choices become indices: refuses those that are none of its case. */
assay_status assay_given_choice_check_golden(assay_context *ctx, const assay_given_choice *c, const assay_again *a);
/* The candidate's choices, where they are some, to evaluate with. */
assay_status assay_given_choice_take(assay_context *ctx, assay_given_choice *c, const assay_again *a);
/* Takes them, and the golden's where the candidate gives none. */
assay_status assay_given_choice_hold(assay_context *ctx, assay_given_choice *c, const assay_again *a);
/* All of it: takes and judges the candidate's choices. *wrong_path is the first wrong one's, or NULL. */
assay_status assay_given_choice_judge(assay_context *ctx, assay_given_choice *c, assay_again *a,
                                      const assay_profile *profile, double false_alarm, assay_routing_summary *summary,
                                      const char **wrong_path);
/* The report fails for the wrong choice. */
void assay_given_choice_fail(const assay_given_choice *c, const char *path, const char *message, assay_report *report);

/* The share of the probability of a false alarm where a choice is judged: the rest is for what is compared. */
#define ASSAY_CHOICE_SHARE 0.25

assay_tensor_spec assay_choice_spec(const assay_router_choice *router);
/* Fills golden and scores of every router from one run of the plan's operation, and the choices that are not given. */
assay_status assay_given_choice_scores(assay_context *ctx, assay_given_choice *c, const assay_plan *plan);
/* Fills tau: `deviations` times the spread of the scores over an ensemble of the plan's one profile. */
assay_status assay_given_choice_tau(assay_context *ctx, assay_given_choice *c, const assay_plan *plan,
                                    double deviations);

#endif
