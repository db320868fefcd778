/* A bfloat16 candidate held against a golden with its error scales, 1 GB of both, as the command does: files of others
 * are tried in a process of their own first, and the golden's checksums checked. Against the same comparison without
 * the one and the other. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "bench/bench.h"
#include "bench/bench_files.h"
#include "compare/compare.h"
#include "harness/backends/examine_file.h"

static const int64_t ROWS = 36864, COLUMNS = 2048;
static const double FALSE_ALARM = 1e-6;
static const double LIMIT = 0.9; /* checks may take a tenth of the time */

typedef struct pair {
    char folder[256], golden[300], candidate[300];
} pair;

static assay_tensor_spec tensor(const void *self, int index)
{
    (void)self, (void)index;
    return (assay_tensor_spec){
        .path = "outputs/y", .type = ASSAY_BFLOAT16, .shape = assay_shape_of(2, ROWS, COLUMNS), .labels = {"T", "D"}};
}

static assay_status compare(assay_context *ctx, const pair *p, bool isolated, bool trusts)
{
    assay_fixture_reader *golden = NULL, *candidate = NULL;
    assay_report report = {0};
    assay_status status;
    const char *const paths[] = {p->golden, p->candidate};
    ctx->trusts = trusts;
    if (isolated) {
        TRY(assay_examine_structure(ctx, 2, paths));
        TRY(assay_examine_file(ctx, p->candidate));
    }
    TRY(assay_fixture_open_golden(ctx, p->golden, &golden));
    TRY(assay_fixture_open(ctx, p->candidate, &candidate));
    TRY(assay_compare(ctx, golden, candidate, assay_profile_by_name("bf16"), FALSE_ALARM, (assay_order){0}, &report));
    if (report.verdict != ASSAY_PASS) status = assay_fail(ctx, ASSAY_INTERNAL, "%s", report.message);
cleanup:
    ctx->trusts = false;
    assay_report_free(&report);
    assay_fixture_close(golden);
    assay_fixture_close(candidate);
    return status;
}

static assay_status run_compare(assay_context *ctx, void *self)
{
    return compare(ctx, self, true, false);
}

static assay_status run_isolated(assay_context *ctx, void *self)
{
    return compare(ctx, self, true, true);
}

static assay_status run_bare(assay_context *ctx, void *self)
{
    return compare(ctx, self, false, true);
}

assay_status bench_compare(assay_context *ctx, bench_report *report)
{
    const double gigabytes = 1e-9 * (double)(ROWS * COLUMNS) * (sizeof(double) + sizeof(float) + 2);
    const bench_pair isolation = {"files tried in a process of their own", run_isolated, run_bare, gigabytes, LIMIT},
                     checks = {"that, and the golden's checksums", run_compare, run_bare, gigabytes, LIMIT};
    const bench_files files = {.count = 1, .tensor = tensor};
    pair p = {0};
    assay_status status;
    TRY(bench_folder(ctx, p.folder, sizeof p.folder));
    snprintf(p.golden, sizeof p.golden, "%s/golden.h5", p.folder);
    snprintf(p.candidate, sizeof p.candidate, "%s/candidate.h5", p.folder);
    TRY(bench_write_file(ctx, &files, true, p.golden));
    TRY(bench_write_file(ctx, &files, false, p.candidate));
    bench_heading("Comparison of bf16 [36864,2048] with error scales and null", "checked", "bare", "GB/s");
    TRY(bench_lines(ctx, report, &isolation, &p));
    TRY(bench_lines(ctx, report, &checks, &p));
cleanup:
    unlink(p.golden);
    unlink(p.candidate);
    rmdir(p.folder);
    return status;
}
