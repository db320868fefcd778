/* What the files of the golden share: the same file, however its results come. Private to harness/golden. */
#pragma once

#include "harness/golden/golden.h"
#include "harness/plan/progress.h"
#include "oracle/base/tensor_set.h"

/* A sink that appends to a fixture what a plan's file holds; of ranks that share an evaluation the first has it. */
typedef struct assay_file_sink {
    const assay_plan *plan;
    assay_fixture_writer *writer; /* NULL: the file is another rank's */
    int64_t *written;             /* elements so far of each spec */
    assay_progress progress;
} assay_file_sink;
assay_status assay_file_sink_open(assay_context *ctx, assay_file_sink *sink, const assay_plan *plan);
assay_sink assay_file_sink_of(assay_file_sink *sink);
/* The file is in place where all went well, what `status` says, and gone else. */
assay_status assay_file_sink_close(assay_context *ctx, assay_file_sink *sink, assay_status status);

/* All elements of a tensor, some at a time. */
assay_status assay_golden_copy(assay_context *ctx, const assay_source *from, const assay_tensor_spec *spec,
                               const assay_sink *out);

/* Who gives the results of a golden. */
typedef struct assay_golden_evaluator {
    void *self;
    assay_status (*evaluate)(assay_context *ctx, void *self, const assay_plan *plan, const assay_source *source,
                             const assay_sink *out, bool quiet);
    const char *partial;          /* the file grows there, and stays when work stops; NULL: without a name */
    assay_fixture_writer *writer; /* while it evaluates into a file that is this process's */
} assay_golden_evaluator;

/* assay_golden_write_from, assay_golden_recompute with results of the evaluator's. */
assay_status assay_golden_write_with(assay_context *ctx, const assay_plan *plan, const char *path,
                                     const assay_source *source, assay_golden_evaluator *evaluator, bool quiet);
assay_status assay_golden_recompute_with(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *golden,
                                         const assay_source *source, const assay_golden_evaluator *evaluator,
                                         bool quiet);

/* The plan's results, but for filters and mutants; and an evaluator that gives those of a set, its `self`, and mutants. */
assay_status assay_golden_results(assay_context *ctx, const assay_plan *plan, const assay_source *source, bool quiet,
                                  assay_tensor_set *results);
assay_status assay_golden_give_results(assay_context *ctx, void *self, const assay_plan *plan,
                                       const assay_source *source, const assay_sink *out, bool quiet);
