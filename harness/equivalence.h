/* Two ways of computing the same thing, held against each other. */
#ifndef ASSAY_HARNESS_EQUIVALENCE_H
#define ASSAY_HARNESS_EQUIVALENCE_H

#include "harness/golden.h"

/* What must hold between the two. */
typedef enum assay_holding {
    ASSAY_HOLDS_BITS, /* the same bits */
    ASSAY_HOLDS_GAUGE /* within ASSAY_EQUIVALENCE_GAUGES error scales of float64, the rounding of the result included */
} assay_holding;

#define ASSAY_EQUIVALENCE_GAUGES 10.0

/* The other form of a case: another configuration, another context, or another function altogether. */
typedef struct assay_other_form {
    assay_case c;        /* a copy whose lists are the case's own: not to be freed */
    assay_context ctx;
    assay_status (*run)(assay_context *ctx, const assay_case *c, const assay_source *in, const assay_sink *out);
} assay_other_form;

typedef struct assay_equivalence {
    const char *name, *summary;
    assay_holding holding;
    /* Fills the other form, which starts as the case itself; false where the case has none. */
    bool (*other)(const assay_case *c, assay_other_form *form);
} assay_equivalence;

extern const assay_equivalence assay_equivalences[];                  /* ends with a NULL name */
const assay_equivalence *assay_equivalence_by_name(const char *name); /* NULL when there is none */

/* What was found. */
typedef struct assay_equivalence_result {
    bool applies, holds;
    int tensors;                 /* compared */
    double worst;                /* largest difference in gauges; of the bits: elements that differ */
    char path[ASSAY_PATH_SIZE];  /* of the worst, or of the first that differs */
    int64_t index;               /* there */
    double one, other;           /* values there */
} assay_equivalence_result;

assay_status assay_equivalence_check(assay_context *ctx, const assay_case *c, const assay_equivalence *equivalence,
                                     assay_equivalence_result *result);

#endif
