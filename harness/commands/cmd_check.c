#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "harness/command.h"
#include "harness/equivalence.h"

typedef struct tally {
    int held, failed;
} tally;

static void print_result(const assay_case *c, const assay_equivalence *e, const assay_equivalence_result *r)
{
    const bool bits = e->holding == ASSAY_HOLDS_BITS;
    printf("%s  %-36s %-18s %d tensors", r->holds ? "PASS" : "FAIL", c->name, e->name, r->tensors);
    if (bits && r->holds) {
        printf(", same bits\n");
    } else if (r->worst == 0) {
        printf(", no difference\n");
    } else {
        printf(", largest %s%.3g of %s: %s[%" PRId64 "] is %.17g and %.17g\n", bits ? "difference: " : "", r->worst,
               bits ? "0" : "10 gauges", r->path, r->index, r->one, r->other);
    }
    if (!r->holds) printf("    reproduce: assay check '%s' --equivalence %s\n", c->name, e->name);
}

static assay_status check_case(assay_context *ctx, const assay_case *c, const assay_equivalence *only, tally *t)
{
    assay_status status = ASSAY_OK;
    for (const assay_equivalence *e = only != NULL ? only : assay_equivalences; e->name != NULL; e++) {
        assay_equivalence_result result;
        TRY(assay_equivalence_check(ctx, c, e, &result));
        if (result.applies) {
            print_result(c, e, &result);
            fflush(stdout);
            t->held += result.holds;
            t->failed += !result.holds;
        }
        if (only != NULL) break;
    }
cleanup:
    return status;
}

static assay_status unknown_equivalence(assay_context *ctx, const char *name)
{
    char names[512] = "";
    for (const assay_equivalence *e = assay_equivalences; e->name != NULL; e++) {
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s, ", e->name);
    }
    return assay_fail(ctx, ASSAY_BAD_INPUT, "--equivalence is \"%s\", expected one of %sor all", name, names);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    assay_case *cases = NULL;
    const assay_equivalence *only = NULL;
    const char *name = options->equivalence;
    tally t = {0};
    int count = 0;
    *exit_code = ASSAY_EXIT_PASS;
    if (name != NULL && strcmp(name, "all") != 0) {
        only = assay_equivalence_by_name(name);
        if (only == NULL) return unknown_equivalence(ctx, name);
    }
    TRY(assay_command_cases(ctx, options, &cases, &count));
    for (int i = 0; i < count; i++) TRY(check_case(ctx, &cases[i], only, &t));
    if (t.held + t.failed == 0) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "none of the %d cases has another form by %s", count,
                            name == NULL ? "any equivalence" : name);
        goto cleanup;
    }
    printf("%d cases: %d equivalences held, %d failed\n", count, t.held, t.failed);
    if (t.failed > 0) *exit_code = ASSAY_EXIT_FAIL;
cleanup:
    assay_cases_free(cases, count);
    return status;
}

const assay_command assay_command_check = {
    .name = "check",
    .arguments = "CASE...",
    .summary = "two ways of computing the same thing, against each other",
    .details = "fused-unfused, remat-kept, threads: the same bits; dense-sparse, sparse-fused_moe, capacity-dropless,\n"
               "mla-absorbed, blas-reference: within 10 error scales of float64.\n",
    .options = ASSAY_OPT_SET | ASSAY_OPT_EQUIVALENCE,
    .least = 1,
    .most = -1,
    .run = run,
};
