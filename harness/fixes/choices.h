/* The candidate's choice of experts, held against the oracle's by what a correct router could have chosen. */
#pragma once

#include "compare/compare.h"
#include "harness/plan/plan.h"
#include "oracle/base/tensor_set.h"
#include "oracle/moe/routing.h"

/* The choice of one router: routing/selected_experts, or that of a layer. */
typedef struct assay_router_choice {
    char path[ASSAY_PATH_SIZE];
    int rank; /* in the order of the data flow */
    int64_t tokens, per_token;
    assay_routing_config config; /* of the case that is evaluated again; of a program's top_k its sizes alone */
    double above;                /* only what is above is chosen, else -1; of a program's top_k */
    bool any_of_tied;            /* whatever the profile says: of a top_k without `lowest` */
    bool known;                  /* by the candidate; else the oracle chooses */
    int32_t *golden;    /* [T,K] as stored; then what the oracle would choose, given the choices of the layers before */
    int32_t *candidate; /* [T,K] */
    const double *scores; /* [T,E] what experts are chosen by, given all choices: one of `results` */
    double *tau;          /* [T,E] how far a correct implementation's may be off */
} assay_router_choice;

/* Starts zeroed. */
typedef struct assay_choices {
    assay_router_choice *routers; /* layer after layer */
    int count;
    bool *used; /* [T]: tokens whose choice is judged; NULL: every one. Padding that holds NaN may go anywhere */
    assay_tensor_set results;      /* of the run that gives the scores */
    assay_routing_summary summary; /* of those that are judged */
    const char *wrong_path;        /* of the first wrong one */
} assay_choices;

/* Fills the routers with the golden's choices and the candidate's. */
assay_status assay_choices_read(assay_context *ctx, assay_fixture_reader *golden, assay_order order,
                                assay_fixture_reader *candidate, assay_choices *c);
void assay_choices_free(assay_choices *c);

/* Whether the candidate gives one that is another than the golden's; whether it gives all. */
bool assay_choices_differ(const assay_choices *c);
bool assay_choices_all_known(const assay_choices *c);
/* Of choices that do not differ: there is nothing to judge. */
void assay_choices_count(assay_choices *c);

/* Puts the candidate's choices into what the case is evaluated with; where what it gives is none, the golden's, and with
 * `others` also where it gives nothing. Refuses golden ones that are none of the case. */
assay_status assay_choices_adopt(assay_context *ctx, assay_choices *c, const assay_plan *evaluated,
                                 const assay_source *in, bool others, assay_tensor_set *adopted);

/* Judges those that were taken, by what experts are chosen by given all of them, and by its errors at the plan's one
 * profile (an ensemble of emulated runs). `in` has them and the case's inputs; the choices of other routers come to `given`. */
assay_status assay_choices_judge(assay_context *ctx, assay_choices *c, const assay_plan *plan,
                                 const assay_profile *profile, double false_alarm, const assay_source *in,
                                 assay_tensor_set *adopted);

/* The report says what came of it, and fails for a wrong one. */
void assay_choices_note(const assay_choices *c, assay_report *report);
