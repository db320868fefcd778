#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/printable.h"
#include "harness/certify/certificate.h"
#include "harness/commands/command.h"
#include "harness/fixes/fixes.h"
#include "harness/golden/golden.h"
#include "harness/plan/golden_open.h"
#include "harness/plan/golden_read.h"
#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"

/* What was found of a golden. Starts zeroed. */
typedef struct finding {
    bool golden;
    int drawn;            /* datasets that are recipes */
    char error_model[32]; /* of a golden whose error scales this assay does not make; "": it does */
    assay_certificate_scope scope;
    quad_certificates certificates;
    char numbers[65]; /* digest */
} finding;

static assay_status certify(assay_context *ctx, const assay_plan *plan, assay_fixture_reader *reader,
                            const assay_options *options, finding *found)
{
    OWNED_BY(assay_certificate_inputs_free) assay_certificate_inputs inputs = {0};
    const assay_source source = assay_golden_inputs(reader);
    found->scope = assay_certificate_scope_of(ctx, plan, options->budget);
    if (!found->scope.outputs && !found->scope.gradients) return ASSAY_OK;
    MUST(assay_certificate_inputs_collect(ctx, &inputs, plan, &source, NULL));
    MUST(assay_certify(ctx, &inputs, &found->scope, options->quiet, &found->certificates));
    MUST(assay_certificates_check(ctx, &found->certificates));
    return assay_certificates_compare(ctx, reader, &found->certificates);
}

/* Error scales, and what follows from them, can be made again by an assay of their error model alone. */
static assay_status plan_scales(assay_context *ctx, assay_plan *plan, const assay_fixture_reader *reader,
                                finding *found)
{
    const char *stored = assay_fixture_text(reader, "error_model");
    if (stored == NULL) stored = "1";
    if (!assay_fixture_has(reader, ASSAY_ROLE_NULL)) assay_plan_drop(plan, ASSAY_ROLE_NULL);
    if (strcmp(stored, ASSAY_ERROR_MODEL) == 0) {
        if (assay_fixture_has(reader, ASSAY_ROLE_DISCRIMINATION)) MUST(assay_plan_mutants(ctx, plan));
        plan->by_stage = &assay_stages_judge;
        return ASSAY_OK;
    }
    MUST(assay_golden_check_layout(ctx, plan, reader));
    assay_plan_drop(plan, ASSAY_ROLE_ERROR_SCALE);
    assay_plan_drop(plan, ASSAY_ROLE_NULL);
    snprintf(found->error_model, sizeof found->error_model, "%s", stored);
    return ASSAY_OK;
}

/* Refusals from here on are verdicts on the fixture, not on the command line. */
static assay_status verify_golden(assay_context *ctx, assay_golden *golden, const char *path,
                                  const assay_options *options, finding *found)
{
    assay_plan *plan = &golden->plan;
    assay_fixture_reader *reader = golden->reader;
    assay_context own = *ctx;
    MUST(assay_golden_read(ctx, reader, path, golden));
    own.arithmetic = assay_golden_engine(golden);
    if (own.arithmetic == NULL) {
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the attribute engine is missing or unknown", path);
    }
    MUST(assay_golden_plan(ctx, golden, NULL));
    MUST(assay_plan_require_memory(ctx, plan));
    MUST(plan_scales(ctx, plan, reader, found));
    assay_status status = assay_golden_recompute(&own, plan, reader, options->quiet);
    if (status == ASSAY_OK) status = certify(&own, plan, reader, options, found);
    if (status != ASSAY_OK) assay_fail(ctx, status, "%s", own.message);
    return status;
}

static assay_status verify(assay_context *ctx, assay_golden *golden, const char *path, const assay_options *options,
                           finding *found)
{
    MUST(assay_fixture_check_digests(ctx, golden->reader));
    for (int i = 0; i < assay_fixture_count(golden->reader); i++) {
        found->drawn += assay_fixture_recipe(golden->reader, assay_fixture_spec(golden->reader, i)->path) != NULL;
    }
    MUST(assay_fixture_numbers_digest(ctx, golden->reader, found->numbers));
    const char *kind = assay_fixture_text(golden->reader, "kind");
    found->golden = kind != NULL && strcmp(kind, "golden") == 0;
    return found->golden ? verify_golden(ctx, golden, path, options, found) : ASSAY_OK;
}

/* ", certified: outputs to 1.5 ulps (0.8 error scales), gradients to 3e-16 (62 checked, 2 left out at kinks)" */
static void print_certified(const finding *found)
{
    double ulps = 0, scales = 0, relative = 0;
    int64_t checked = 0, kinks = 0;
    for (int i = 0; i < found->certificates.count; i++) {
        const quad_certificate *c = &found->certificates.items[i];
        const assay_tensor_role role = assay_role_of(c->path);
        if (role == ASSAY_ROLE_GRADIENT) {
            relative = fmax(relative, c->relative);
            checked += c->checked;
            kinks += c->kinks;
        } else if (role == ASSAY_ROLE_OUTPUT || role == ASSAY_ROLE_CHECKPOINT) {
            ulps = fmax(ulps, c->ulps);
            scales = fmax(scales, c->scales);
        }
    }
    if (found->scope.outputs) printf(", certified: outputs to %.3g ulps (%.2g error scales)", ulps, scales);
    if (found->scope.gradients) {
        printf(", gradients to %.2g (%" PRId64 " checked", relative, checked);
        if (kinks > 0) printf(", %" PRId64 " left out at kinks", kinks);
        printf(")");
    }
    if (found->scope.left_out[0] != '\0') {
        printf("%s not certified: %s", found->scope.outputs ? ", gradients" : ",", found->scope.left_out);
    }
}

static void print_table(const finding *found)
{
    if (found->certificates.count == 0) return;
    printf("      %-48s %9s %6s %9s %9s %9s %8s\n", "", "checked", "left", "relative", "ulps", "gauge", "worst at");
    for (int i = 0; i < found->certificates.count; i++) {
        const quad_certificate *c = &found->certificates.items[i];
        printf("      %-48s %9" PRId64 " %6" PRId64 " %9.2g %9.3g %9.2g %8" PRId64 "\n", c->path, c->checked, c->kinks,
               c->relative, c->ulps, c->scales, c->worst);
    }
}

static void print_finding(const assay_context *ctx, assay_status status, const char *path, int digests,
                          const finding *found, bool verbose)
{
    if (status == ASSAY_OK) {
        printf("PASS  %s: %d digests", path, digests);
        if (found->drawn > 0) printf(" (%d of what was drawn again)", found->drawn);
        if (found->golden) printf(", recomputed bit for bit");
        if (found->error_model[0] != '\0') {
            printf(
                " but for error scales (of error model %s, here they are of %s) and 2^-44 of a tensor's largest number",
                found->error_model, ASSAY_ERROR_MODEL);
        }
        if (found->golden) print_certified(found);
        printf("\n");
        if (found->golden) printf("      numbers %s\n", found->numbers);
    } else {
        char shown[ASSAY_PRINTABLE_SIZE];
        printf("FAIL  %s: %s\n", path, assay_printable(ctx->message, shown));
    }
    if (verbose) print_table(found);
    fflush(stdout);
}

typedef struct verifying {
    const assay_options *options;
    int failed;
} verifying;

static double cost(void *self, int i)
{
    const verifying *v = self;
    assay_context ctx = {.threads = 1, .trusts = true};
    assay_golden golden = {0};
    double operations = 0;
    if (assay_golden_open(&ctx, v->options->arguments[i], &golden) == ASSAY_OK) operations = assay_case_cost(golden.c);
    assay_golden_close(&golden);
    return operations;
}

static assay_status work(assay_context *ctx, void *self, int i, FILE *result)
{
    const verifying *v = self;
    const char *path = v->options->arguments[i];
    assay_golden golden = {0};
    finding found = {0};
    /* what cannot be opened at all is bad input, and ends the command */
    assay_status status = assay_fixture_open(ctx, path, &golden.reader);
    if (status != ASSAY_OK) return status;
    status = verify(ctx, &golden, path, v->options, &found);
    /* else it is not the fixture's fault */
    const bool judged = status == ASSAY_OK || status == ASSAY_BAD_INPUT;
    if (judged) print_finding(ctx, status, path, assay_fixture_count(golden.reader), &found, v->options->verbose);
    quad_certificates_free(&found.certificates);
    assay_golden_close(&golden);
    if (!judged) return status;
    fputc(status == ASSAY_OK ? 'y' : 'n', result);
    ctx->message[0] = '\0';
    return ASSAY_OK;
}

static assay_status take(assay_context *ctx, void *self, int i, const char *result, size_t size)
{
    (void)ctx, (void)i;
    verifying *v = self;
    v->failed += size != 1 || result[0] != 'y';
    return ASSAY_OK;
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    verifying v = {.options = options};
    const int count = options->argument_count;
    const assay_each each = {
        .self = &v, .count = count, .ranks = options->ranks, .cost = cost, .work = work, .take = take};
    MUST(assay_each_case(ctx, &each));
    printf("%d of %d fixtures verified\n", count - v.failed, count);
    *exit_code = v.failed > 0 ? ASSAY_EXIT_FAIL : ASSAY_EXIT_PASS;
    return ASSAY_OK;
}

const assay_command assay_command_verify = {
    .name = "verify",
    .arguments = "FIXTURE...",
    .summary = "integrity of fixtures: digests, recomputation bit for bit, certification in binary128",
    .details =
        "A golden's results are computed again from its own inputs, and held against a second form of the operation "
        "in\n"
        "binary128; requests and candidates have digests only. -v: a line for each tensor, with the largest error by\n"
        "the tensor's largest value, in last places of float64 (ulps), and in error scales of the profile f64 "
        "(gauge).\n",
    .options = ASSAY_OPT_VERIFY,
    .least = 1,
    .most = -1,
    .shares = true,
    .run = run,
};
