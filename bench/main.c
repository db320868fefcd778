/* assay-bench [SECTION...]: how fast the oracle is, against what the same machine does otherwise at the same time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/bench.h"
#include "oracle/arithmetic/arithmetic.h"
#include "oracle/base/memory.h"

static const struct section {
    const char *name;
    assay_status (*run)(assay_context *ctx, bench_report *report);
} sections[] = {
    {"matmul", bench_matmul},     {"moe", bench_moe},           {"attention", bench_attention},
    {"ensemble", bench_ensemble}, {"fixtures", bench_fixtures}, {"compare", bench_compare},
    {"program", bench_program},   {"steps", bench_steps},       {"torch", bench_torch},
};
enum { SECTIONS = sizeof sections / sizeof *sections };

static const struct section *section_named(const char *name)
{
    for (int i = 0; i < SECTIONS; i++) {
        if (strcmp(sections[i].name, name) == 0) return &sections[i];
    }
    return NULL;
}

static int usage(const char *unknown)
{
    fprintf(stderr, "assay-bench: no section '%s'; there are:", unknown);
    for (int i = 0; i < SECTIONS; i++) fprintf(stderr, " %s", sections[i].name);
    fprintf(stderr, "\n");
    return 2;
}

/* The instruction set of $ASSAY_ISA, for OpenBLAS as well, unless its own variable says otherwise: it is loaded later. */
static assay_status choose_isa(assay_context *ctx)
{
    MUST(assay_isa_from_environment(ctx));
    if (ctx->isa == ASSAY_ISA_AVX2 && setenv("OPENBLAS_CORETYPE", "Haswell", 0) != 0)
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for OPENBLAS_CORETYPE");
    return ASSAY_OK;
}

int main(int argc, char **argv)
{
    assay_context ctx = assay_context_default(1);
    bench_report report = {0};
    assay_keep_freed_memory(); /* as the program does */
    for (int i = 1; i < argc; i++) {
        if (section_named(argv[i]) == NULL) return usage(argv[i]);
    }
    if (choose_isa(&ctx) != ASSAY_OK) {
        fprintf(stderr, "assay-bench: %s\n", ctx.message);
        return 2;
    }
    printf("assay-bench: instruction set %s; two kinds of work in turn, medians, ratio of each pair\n",
           assay_isa_name(ctx.isa));
    for (int i = 0; i < (argc > 1 ? argc - 1 : SECTIONS); i++) {
        const struct section *section = argc > 1 ? section_named(argv[i + 1]) : &sections[i];
        assay_status status = section->run(&ctx, &report);
        if (status != ASSAY_OK) {
            fprintf(stderr, "assay-bench %s: %s: %s\n", section->name, assay_status_text(status), ctx.message);
            return 2;
        }
    }
    printf("\n%d of %d targets met\n", report.met, report.targets);
    return report.met == report.targets ? 0 : 1;
}
