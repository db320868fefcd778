/* A case as the source and the sink of an operation: it reads the case's inputs and writes what the case's results
 * list. */
#ifndef ASSAY_SPEC_TESTS_SPEC_STREAM_H
#define ASSAY_SPEC_TESTS_SPEC_STREAM_H

#include "oracle/spec/tests/spec_case.h"

enum { SPEC_CASE_RESULTS = 192 };

typedef struct spec_stream {
    spec_case *c;
    int64_t written[SPEC_CASE_RESULTS]; /* elements of each result */
} spec_stream;

assay_source spec_stream_source(spec_stream *stream);
assay_sink spec_stream_sink(spec_stream *stream);

/* A result that the operation is to write: NaN, or -1 for indices, until then. */
void case_want(spec_case *c, const char *path, assay_shape shape);
void case_want_indices(spec_case *c, const char *path, assay_shape shape);
/* An input, and its gradient among the results. */
void case_variable(spec_case *c, const char *path, double scale, assay_shape shape);
/* Every result has come, whole. */
void assert_all_written(const spec_stream *stream);

#endif
