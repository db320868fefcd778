/* A report as it comes from another process: of a worker that may have been ended while it wrote, or of another rank. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/commands/report_parcel.h"
#include "tests/fuzz/fuzz.h"

static void try_parcel(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    assay_report report = {0};
    assay_context ctx = fuzz_context();
    const assay_status status = assay_report_unpack(&ctx, &at, end, &report);
    fuzz_require(status == ASSAY_OK || ctx.message[0] != '\0', "a refusal says nothing");
    fuzz_require(at >= (const char *)data && at <= end, "it reads behind the end");
    assay_report_free(&report);
}

static void parcel_seeds(fuzz_corpus *corpus)
{
    char *unknown[] = {"outputs/z"};
    assay_tensor_result tensors[1] = {{.verdict = ASSAY_FAIL, .elements = 3}};
    assay_report stages = {.case_name = "a", .verdict = ASSAY_PASS};
    assay_report report = {.case_name = "mlp/silu",
                           .tensors = tensors,
                           .count = 1,
                           .unknown = unknown,
                           .unknown_count = 1,
                           .stages = &stages};
    for (int i = 0; i < 2; i++) {
        char *text = NULL;
        size_t size = 0;
        FILE *out = open_memstream(&text, &size);
        fuzz_require(out != NULL, "no memory");
        assay_report_pack(i == 0 ? &stages : &report, out);
        fclose(out);
        fuzz_seed(corpus, text, size);
        free(text);
    }
}

const fuzz_target fuzz_parcel = {"parcel", try_parcel, parcel_seeds, false};
