/* The verdict on a candidate: structure, types, missing and extra tensors, non-finite values, exact integers and exact
 * cases, and errors per element and per row against the error scale of the profile (docs/comparing.md). Streams: memory does
 * not grow with the fixture. Knows tensors, never operations. */
#pragma once

#include "compare/power.h"
#include "compare/profile.h"
#include "compare/statistics.h"
#include "fixtures/fixture.h"

typedef enum assay_verdict {
    ASSAY_PASS,
    ASSAY_FAIL,
    ASSAY_VACUOUS,
    ASSAY_NOT_COMPARABLE,
    ASSAY_UNSUPPORTED /* of a fixture alone: the backend says that it does not have the case */
} assay_verdict;
enum { ASSAY_VERDICTS = ASSAY_UNSUPPORTED + 1 };
const char *assay_verdict_name(assay_verdict verdict);  /* "PASS", ... */
const char *assay_verdict_color(assay_verdict verdict); /* what makes a terminal show it in its colour */

#define ASSAY_VERDICT_SIZE 512 /* of a line that says why: a path, and numbers in words */
#define ASSAY_WORST_COUNT 5
enum { ASSAY_EXPLAINED_MOST = 8, ASSAY_EXPLAINED_NAME = 112 };

/* One element or row that lies far out. */
typedef struct assay_outlier {
    int64_t index;            /* flattened element, or row (all axes but the last) */
    double golden, candidate; /* of an element; of a row: RMS of both */
    double excess;            /* |error| over its threshold: above 1 fails */
} assay_outlier;

/* What was found wrong with a tensor; the first that applies. */
typedef enum assay_finding {
    ASSAY_FINDING_NONE,
    ASSAY_FINDING_MISSING,
    ASSAY_FINDING_SHAPE,
    ASSAY_FINDING_TYPE,
    ASSAY_FINDING_NONFINITE, /* NaN or infinity where golden is finite, or another one than golden's */
    ASSAY_FINDING_INTEGERS,  /* integers or an exact case differ */
    ASSAY_FINDING_ELEMENTS,
    ASSAY_FINDING_ROWS,
    ASSAY_FINDING_SIZE,  /* errors too large over the tensor, ... */
    ASSAY_FINDING_SLICE, /* over a row, a tile, an index of an axis */
    ASSAY_FINDING_BIAS,
    ASSAY_FINDING_SLOPE,
    ASSAY_FINDING_SIGN,
    ASSAY_FINDING_TOWARD_ZERO,
    ASSAY_FINDING_NO_SCALE /* the golden has no error scale for this profile: not comparable */
} assay_finding;

/* A statistic against its null distribution (compare/statistics.h). */
typedef struct assay_statistic_result {
    double
        expected[ASSAY_NULL_COLUMNS]; /* the golden's null distribution; without a spread the statistic is not used */
    double value, least, most;        /* what was found, and what is allowed */
    double deviations;                /* how many of them beyond the range are allowed */
    int64_t slice;
    double slope;  /* of the slice, where the statistic is one of slopes */
    double excess; /* how far out over how far out it may be: above 1 fails */
} assay_statistic_result;

typedef struct assay_tensor_result {
    assay_tensor_spec spec;
    assay_dtype candidate_type;
    assay_verdict verdict;
    assay_finding finding;
    char message[ASSAY_VERDICT_SIZE]; /* one line, for a person */
    bool compared, required, exact;
    int64_t elements, rows, wrong_elements, wrong_rows;
    double max_error;                /* largest absolute error */
    double max_wrong_error;          /* of finite elements beyond their threshold */
    double rms_ratio;                /* RMS of error / error scale over the tensor */
    double seconds;                  /* that its comparison took */
    double worst_element, worst_row; /* largest excess */
    double
        worst_beyond; /* of elements, the largest error beyond the rounding of the result over what is allowed beyond it */
    assay_outlier elements_worst[ASSAY_WORST_COUNT], rows_worst[ASSAY_WORST_COUNT];
    int elements_worst_count, rows_worst_count;
    assay_statistic_result statistics[ASSAY_STATISTICS];
    int statistics_count; /* 0: the golden has no null distributions */
    int worst_statistic;  /* the one with the largest excess; -1: none was used */
    char axis_labels[ASSAY_MAX_RANK][16];
} assay_tensor_result;

/* What whoever knows the operation found out about the candidate's own choice of experts (harness/fixes/fixes.h). */
typedef struct assay_routing_summary {
    bool judged;
    int64_t tokens, exact, admissible, wrong; /* of a stack: once for each layer */
    bool evaluated_again; /* the tensors are compared with the golden given the candidate's choice */
    char message[256];    /* of a wrong token, or why nothing could be judged */
} assay_routing_summary;

/* What stands in brackets behind the names of an explanation. */
#define ASSAY_LEFT_TEXT "in brackets: standard deviations that the bug leaves"
#define ASSAY_INACCURATE_TEXT                                                                                          \
    "as the less accurate of two forms that a step has, whose error scales are its own; the accurate one's it exceeds"

typedef struct assay_report {
    char case_name[ASSAY_PATH_SIZE], op[64], profile[64];
    char golden_path[512], candidate_path[512]; /* "": there is no such file any more */
    char generator[64];                         /* what made the golden: "assay 0.2.0" */
    char program[128];                          /* what judges, with its version; "" */
    char reproduce[1024];                       /* the command that gives this again; "" */
    double seconds;                             /* of the backend's run; 0: none ran */
    bool one_process;                           /* both runs were a server's, which may hold in memory what it gave */
    double false_alarm;                         /* stated probability for the whole fixture */
    double statistic_tail;                      /* its part for one statistic on one side; 0: there are none */
    assay_verdict verdict;
    char message[ASSAY_VERDICT_SIZE]; /* why, in one line; names the first wrong tensor */
    char diagnosis[512];    /* what the first wrong tensor looks like (diagnosis.h); "" where nothing explains it */
    double factor;          /* where that is the golden times a factor; else 0 */
    char explanation[1024]; /* of a failure: which known bugs give this candidate, as far as somebody found out */
    char explained_by[ASSAY_EXPLAINED_MOST][ASSAY_EXPLAINED_NAME]; /* their names */
    int explained_count;
    char expected_failure[160];   /* why it is known to fail; "" when it is not */
    assay_power power;            /* as the golden states it */
    assay_tensor_result *tensors; /* in the order of the data flow: what stands first is blamed first */
    int count;
    char **unknown; /* datasets of the candidate that the golden does not know */
    int unknown_count;
    assay_routing_summary routing;
    char order[128];                 /* that rows come in an order of their own, by which they were judged; "" */
    char codes[256];                 /* how codes of h were judged that the candidate's kernel made itself; "" */
    bool inaccurate;                 /* it passes as the less accurate form of a step, by error scales of that */
    char kinks[256];                 /* that gradients on a kink are others than the golden's, and as right; "" */
    struct assay_picture **pictures; /* [count], once they are drawn (pictures.h); else NULL */
    struct assay_steps *steps;       /* likewise (steps.h); NULL also where the case has none */
    struct assay_report
        *stages; /* on each stage, evaluated from the candidate's own inputs to it; NULL: nobody asked */
} assay_report;

/* Tensors in the order of the data flow, as who knows the operations has it (harness/plan/plan.h). Others come behind
 * these, folder after folder: schedule/, routing/, checkpoints/, outputs/, gradients/; and so do all where it is zeroed. */
typedef struct assay_order {
    const assay_tensor_spec *specs;
    int count;
    /* Whether a candidate's tensor of schedule/, given whole beside the candidate itself, keeps the rules, by which it is
     * judged and not by equality: refuses with the rule that it breaks, as bad input. NULL: there are no rules. */
    assay_status (*lawful)(assay_context *ctx, const void *self, const char *path, const int32_t *values, int64_t count,
                           const assay_source *candidate);
    const void *self;
    bool with_stages;        /* checkpoints that the golden does not have are judged as stages: they are not unknown */
    const char *const *only; /* globs of the outputs and gradients that must be given; others may be */
    int only_count;          /* 0: all must */
} assay_order;

/* Where a tensor that is compared stands; what stands lower is computed before. */
int assay_order_rank(assay_order order, const assay_tensor_spec *spec);
/* Whether a candidate must give it. */
bool assay_order_requires(assay_order order, const assay_tensor_spec *spec);

enum { ASSAY_INDEX_TEXT = 160 };

/* "[1,3,17]": the index along each axis of an element, or of a row (all axes but the last; "" where there are none). */
void assay_element_text(const assay_shape *shape, int64_t element, char text[ASSAY_INDEX_TEXT]);
void assay_row_text(const assay_shape *shape, int64_t row, char text[ASSAY_INDEX_TEXT]);

assay_status assay_compare(assay_context *ctx, assay_fixture_reader *golden, assay_fixture_reader *candidate,
                           const assay_profile *profile, double false_alarm, assay_order order, assay_report *report);
/* The same without the diagnosis, for those who compare a hundred times. */
assay_status assay_compare_undiagnosed(assay_context *ctx, assay_fixture_reader *golden,
                                       assay_fixture_reader *candidate, const assay_profile *profile,
                                       double false_alarm, assay_order order, assay_report *report);
/* What each element of a float result may be off by, as the comparer has it for a candidate in the profile's type; of an element
 * that is not finite 0. Refuses what is no such result, and what has no error scale at the profile. thresholds: as many as elements. */
assay_status assay_compare_thresholds(assay_context *ctx, assay_fixture_reader *golden, const assay_profile *profile,
                                      double false_alarm, assay_order order, const char *path, double *thresholds);
/* A stage that is wrong fails the whole, and is what its line names. */
void assay_report_join_stages(assay_report *report);
/* PASS becomes VACUOUS where report->power says that a required mutant would pass too. */
void assay_report_weigh(assay_report *report);
/* "routing: 32 tokens: 30 exact, 2 admissible, 0 wrong; ..."; empty where nothing was judged. */
void assay_routing_text(const assay_routing_summary *routing, char text[512]);
void assay_report_free(assay_report *report); /* safe on a zeroed struct */
/* Of that tensor; NULL: the report has none. */
const assay_tensor_result *assay_result_of(const assay_report *report, const char *path);
