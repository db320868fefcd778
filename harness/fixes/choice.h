/* A backend's choice of experts for one token: whether a correct router could have made it (docs/comparing.md, "Another
 * choice of experts"). */
#pragma once

#include "oracle/moe/routing.h"

typedef enum assay_choice_verdict {
    ASSAY_CHOICE_EXACT,      /* the oracle's experts, in any order of slots */
    ASSAY_CHOICE_ADMISSIBLE, /* others, whose scores lie within their errors */
    ASSAY_CHOICE_TIE,        /* wrong: of equal scores the higher index */
    ASSAY_CHOICE_WRONG,      /* too far off */
    ASSAY_CHOICE_INVALID     /* an id outside [0,E), or an expert twice; of a free token but for -1 */
} assay_choice_verdict;

/* One token. Arrays of a group limit are over consecutive experts. */
typedef struct assay_choice {
    int64_t experts, per_token;  /* E, K */
    int64_t groups, groups_kept; /* groups 1: no limit */
    assay_group_score group_score;
    bool fixed;       /* by a table (hash routing): scores decide nothing */
    bool free;        /* of a token that nobody judges: any experts, or none (-1) in a slot */
    bool any_of_tied; /* of the profile */
    bool padded;      /* -1 in the place of what is not above a number */
    double above;
    const double *scores, *tau;       /* [E]: what experts are chosen by; how far each may be off */
    const int32_t *golden, *selected; /* [K]: the oracle's choice, the backend's */
} assay_choice;

/* Admissible: scores that differ from the golden ones by tau each at most, equal ones alike, let a router choose so.
 * Without groups: min over chosen (score + tau) >= max over the others (score - tau). With groups it is so among the
 * experts of the groups that stay; and the scores of groups, from the same intervals, let those groups stay, among
 * which are all that experts were chosen from. Each level by itself: what one needs may deny the other its own. NaN
 * anywhere is not admissible. */
assay_choice_verdict assay_choice_judge(const assay_choice *c);

/* Whether its ids are K different ones of [0,E), of a free token or -1; asks for no scores. */
bool assay_choice_is_valid(const assay_choice *c);

/* How many times tau would have to be what it is for the choice to be admissible; above 1 of a wrong one, infinite where
 * no tau is enough. */
double assay_choice_excess(const assay_choice *c);

/* The lowest of the experts that the oracle did not choose, and the highest that it chose instead. Of a valid choice that
 * is not exact. */
void assay_choice_swap(const assay_choice *c, int32_t *chosen, int32_t *better);
