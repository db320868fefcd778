/* What the files of the golden share: the same file, however its results come. Private to harness/golden. */
#ifndef ASSAY_HARNESS_GOLDEN_INTERNAL_H
#define ASSAY_HARNESS_GOLDEN_INTERNAL_H

#include "harness/golden/golden.h"

/* Who gives the results of a golden. */
typedef struct assay_golden_evaluator {
    void *self;
    assay_status (*evaluate)(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *source,
                             const assay_sink *out, bool quiet);
    bool (*gives)(void *self, const assay_tensor_spec *spec); /* NULL: every result */
    const char *partial;          /* the file grows there, and stays when work stops; NULL: without a name */
    assay_fixture_writer *writer; /* while it evaluates into a file that is this process's */
} assay_golden_evaluator;

/* assay_golden_write_from, assay_golden_recompute with results of the evaluator's. */
assay_status assay_golden_write_with(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, assay_golden_evaluator *evaluator, bool quiet);
assay_status assay_golden_recompute_with(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                         const assay_source *source, const assay_golden_evaluator *evaluator,
                                         bool quiet);

#endif
