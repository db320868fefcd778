/* The certificate of a golden (docs/promises.md, "Certification"): its results held against oracle/quad's second form in binary128.
 *
 *   outputs/, checkpoints/, routing/   the second form's results, element by element, at the golden's choice of experts;
 *                                      the choice itself against the one that the second form makes
 *   gradients/                         those of the second form's tape, element by element, which are held themselves against
 *                                      central differences in binary128 along a random direction each
 *
 * harness/certify/certify.h says what is allowed. A fixture may store it: certificate/<path of the tensor> [9] holds the
 * fields below. */
#pragma once

#include "harness/certify/certify.h"
#include "harness/plan/plan.h"

/* The numbers of a stored certificate. */
#define ASSAY_CERTIFICATE_TABLE(X)                                                                                     \
    X(CHECKED, "checked")     /* elements, and directions of a gradient */                                             \
    X(KINKS, "kinks")         /* directions left out: a kink (a clamp, relu) lies on them */                           \
    X(WORST, "worst")         /* the worst element, or -1: a random direction */                                       \
    X(COMPUTED, "computed")   /* there: the golden's value */                                                          \
    X(REFERENCE, "reference") /* there: the value in binary128, rounded */                                             \
    X(ERROR, "error")         /* there: their distance */                                                              \
    X(RELATIVE, "relative")   /* the largest error over the tensor's largest value (a direction: over the norm) */     \
    X(ULPS, "ulps")           /* the largest error in last places of float64 */                                        \
    X(SCALES, "gauge")        /* the largest error in error scales of the profile f64; 0 without them */

enum {
#define X(code, name) ASSAY_CERTIFICATE_##code,
    ASSAY_CERTIFICATE_TABLE(X)
#undef X
        ASSAY_CERTIFICATE_FIELDS
};

/* certificate/<path> [9]. */
assay_status assay_certificate_spec(assay_context *ctx, const char *path, assay_tensor_spec *spec);
void assay_certificate_fields(const quad_certificate *certificate, double fields[ASSAY_CERTIFICATE_FIELDS]);

/* How much is certified of a plan's case. What does not fit in memory is left out, and, nobody having asked for a
 * budget, what takes many minutes. */
typedef struct assay_certificate_scope {
    bool outputs, gradients; /* gradients: false too where the golden has none, or the budget is 0 */
    quad_budget budget;      /* its seed is the case's */
    int64_t directions;      /* of all gradients */
    double seconds;          /* about what it takes on one core, all of it */
    char left_out[128];      /* why not all: "needs about 12 min; ask with --budget N"; else empty */
} assay_certificate_scope;

#define ASSAY_BUDGET_UNSAID (-1)
#define ASSAY_BUDGET_ALL INT64_MAX
/* `budget`: elements of each sketch of a gradient, 0 for outputs alone, or one of the two above. */
assay_certificate_scope assay_certificate_scope_of(const assay_context *ctx, const assay_plan *plan, int64_t budget);

/* The golden is to hold its certificate. Refuses what nobody would wait for, unless a budget is given. */
assay_status assay_plan_certify(assay_context *ctx, assay_plan *plan, int64_t budget);

/* A golden's numbers in memory. Starts zeroed. */
typedef struct assay_certificate_inputs {
    const assay_plan *plan;
    quad_tensors in;      /* what was given, and the golden's choice of experts */
    quad_tensors results; /* what the plan's golden holds of results, and error_scale/f64/ of them */
    assay_source source;  /* of the weights that are read a piece at a time (quad_operation.streams); must live on */
} assay_certificate_inputs;

/* Whether a weight is not held but read where it is needed: a large one, of which no gradient is tested. */
bool assay_certificate_streams(const assay_plan *plan, const assay_tensor_spec *spec);

/* Evaluates the plan's case from `source`, keeps the results, and passes on to `next` what it wants; `next` may be
 * NULL. */
assay_status assay_certificate_inputs_collect(assay_context *ctx, assay_certificate_inputs *inputs,
                                              const assay_plan *plan, const assay_source *source,
                                              const assay_sink *next);
void assay_certificate_inputs_free(assay_certificate_inputs *inputs); /* safe on a zeroed struct */

/* One certificate for each certified tensor that the scope takes in. Runs on ctx->threads threads, which change
 * nothing. */
assay_status assay_certify(assay_context *ctx, const assay_certificate_inputs *inputs,
                           const assay_certificate_scope *scope, bool quiet, quad_certificates *certificates);

/* Refuses with the first certificate that is beyond what is allowed. */
assay_status assay_certificates_check(assay_context *ctx, const quad_certificates *certificates);
/* Holds the certificates that an open golden stores against those found now. Those of gradients that were made with
 * another budget need only be within what is allowed. */
assay_status assay_certificates_compare(assay_context *ctx, assay_fixture_reader *golden,
                                        const quad_certificates *certificates);

/* assay_evaluate for a plan that certifies: results to the sink, and if all are within what is allowed, certificates.
 */
assay_status assay_evaluate_certified(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                      const assay_sink *out, bool quiet);
/* That where the plan certifies, else assay_evaluate. */
assay_status assay_evaluate_as_planned(assay_context *ctx, const assay_plan *plan, const assay_source *source,
                                       const assay_sink *out, bool quiet);
