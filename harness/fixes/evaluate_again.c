#include "harness/fixes/evaluate_again.h"

#include <stdio.h>

#include "harness/backends/backend_files.h"
#include "harness/golden/golden.h"
#include "harness/golden/golden_memory.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/golden_read.h"
#include "harness/plan/results.h"

static assay_status evaluate_in_memory(assay_context *ctx, assay_fixture_reader *golden, assay_golden *again,
                                       const assay_source *in, bool quiet)
{
    const assay_source source = assay_golden_inputs(golden);
    MUST(assay_plan_tensors(ctx, &again->tensors, &again->plan, &source));
    return assay_golden_in_memory(ctx, &again->plan, in, quiet, &again->tensors, &again->reader);
}

static assay_status evaluate_in_file(assay_context *ctx, assay_golden *again, const assay_source *in, bool quiet)
{
    OWNED_BY(assay_backend_folder_end) assay_backend_folder folder = {0};
    char path[2304];
    MUST(assay_backend_folder_make(ctx, NULL, &folder));
    snprintf(path, sizeof path, "%s/golden.h5", folder.path);
    MUST(assay_golden_write_from(ctx, &again->plan, path, in, quiet));
    MUST(assay_fixture_open(ctx, path, &again->reader));
    assay_golden_keep(again->reader, again->plan.c);
    return ASSAY_OK;
}

assay_status assay_evaluate_again(assay_context *ctx, assay_fixture_reader *golden, assay_golden *again,
                                  const assay_source *in, int64_t most_elements, bool quiet)
{
    return again->plan.elements <= most_elements ? evaluate_in_memory(ctx, golden, again, in, quiet)
                                                 : evaluate_in_file(ctx, again, in, quiet);
}
