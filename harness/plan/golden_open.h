/* A golden with the case that it was made from. */
#pragma once

#include "harness/plan/plan_make.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/tensor_set.h"

/* Starts zeroed. */
typedef struct assay_golden {
    assay_fixture_reader *reader;
    assay_case *c; /* of case_yaml */
    int case_count;
    assay_plan plan;          /* of the case, once assay_golden_plan has made it; else zeroed */
    assay_tensor_set tensors; /* what the reader is over, where it is no file and this has them; else zeroed */
} assay_golden;

/* Opens the file as what is judged by (assay_fixture_open_golden) and reads its case. Recipes are those of the case;
 * another one is drawn, and refused where its digest is not that of the numbers (but with ctx->trusts). */
assay_status assay_golden_open(assay_context *ctx, const char *path, assay_golden *golden);
/* Reads the case of a file that is open, a request too; closing the golden closes it. `path` is for messages. */
assay_status assay_golden_read(assay_context *ctx, assay_fixture_reader *reader, const char *path,
                               assay_golden *golden);
/* Outputs of a golden of the case that is open have the types that `dtypes:` gives them. */
void assay_golden_keep(assay_fixture_reader *reader, const assay_case *c);
/* Plans the case, whose profiles may be the golden's own or `own` (NULL: none), unless it is planned. A golden that has
 * null distributions keeps them, however large. Who evaluates the case asks assay_plan_require_memory too. */
assay_status assay_golden_plan(assay_context *ctx, assay_golden *golden, const assay_profile *own);
/* The arithmetic that it was made with; NULL: it does not say, or nobody knows it. */
const assay_arithmetic *assay_golden_engine(const assay_golden *golden);
void assay_golden_close(assay_golden *golden); /* safe on a zeroed struct */
