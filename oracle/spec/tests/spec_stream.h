/* A case as the source and the sink of an operation: it reads the case's inputs and writes what the case's results
 * list. */
#ifndef ASSAY_SPEC_TESTS_SPEC_STREAM_H
#define ASSAY_SPEC_TESTS_SPEC_STREAM_H

#include "oracle/spec/tests/spec_case.h"

typedef struct spec_stream {
    spec_case *c;
    int64_t written[SPEC_CASE_BUFFERS]; /* elements of each result */
} spec_stream;

assay_source spec_stream_source(spec_stream *stream);
assay_sink spec_stream_sink(spec_stream *stream);

#endif
