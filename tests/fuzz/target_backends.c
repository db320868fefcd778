/* What a backend is asked, and what it gives: the request, the results of a shared object, a candidate held against a golden. */
#include <stdlib.h>
#include <string.h>

#include "compare/report.h"
#include "harness/backends/backend.h"
#include "harness/golden/golden.h"
#include "harness/golden/golden_memory.h"
#include "harness/host/host.h"
#include "harness/judge/judge.h"
#include "harness/plan/inputs.h"
#include "tests/fuzz/fuzz.h"

static assay_case *small_case(void)
{
    static char name[] = "mlp/silu";
    char *names[] = {name};
    assay_case *c = NULL;
    int count = 0;
    assay_context ctx = fuzz_context();
    fuzz_require(assay_cases_find(&ctx, 1, names, &c, &count) == ASSAY_OK && count == 1, ctx.message);
    static const char *const sizes[] = {"batch=1", "sequence=2", "base_emb_dim=4", "base_mlp_dim=3", "profiles=f32"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        fuzz_require(assay_case_set(&ctx, c, sizes[i]) == ASSAY_OK, ctx.message);
    return c;
}

/* The host of a shared object that got a request: its tensors are those of a small case, its case is the input. */
static void try_request(const uint8_t *data, size_t size)
{
    static const char *path;
    assay_host_blocks blocks = {0};
    assay_context ctx = fuzz_context();
    if (path == NULL) {
        assay_case *c = small_case();
        assay_plan plan = {0};
        path = strdup(fuzz_path("request.safetensors"));
        fuzz_require(assay_plan_make(&ctx, &plan, c) == ASSAY_OK &&
                         assay_request_write(&ctx, &plan, path, NULL, true) == ASSAY_OK,
                     ctx.message);
        assay_plan_free(&plan);
        assay_cases_free(c, 1);
    }
    assay_golden request = {0};
    assay_host host = {0};
    assay_fixture_reader *reader = NULL;
    char *text = fuzz_text(data, size);
    fuzz_require(assay_fixture_open(&ctx, path, &reader) == ASSAY_OK, ctx.message);
    assay_status status = assay_golden_read(&ctx, reader, path, &request);
    fuzz_require(status == ASSAY_OK, ctx.message);
    assay_cases_free(request.c, request.case_count);
    request.c = NULL;
    request.case_count = 0;
    status = assay_cases_parse_stored(&ctx, path, text, strlen(text), &request.c, &request.case_count);
    if (status == ASSAY_OK) status = assay_case_set(&ctx, request.c, "profiles=none");
    if (status == ASSAY_OK) status = assay_golden_plan(&ctx, &request, NULL);
    if (status == ASSAY_OK && request.plan.elements > 1 << 16) status = assay_fail(&ctx, ASSAY_NO_MEMORY, "too large");
    if (status == ASSAY_OK) {
        const assay_source in = assay_fixture_source(request.reader);
        const assay_host_memory memory = assay_host_blocks_memory(&blocks);
        status = assay_host_make(&ctx, &request.plan, &in, &memory, &host);
    }
    fuzz_check(&ctx, status);
    assay_host_blocks_free(&blocks);
    assay_golden_close(&request);
    free(text);
}

static void request_seeds(fuzz_corpus *corpus)
{
    assay_case *c = small_case();
    char *text = NULL;
    assay_context ctx = fuzz_context();
    fuzz_require(assay_case_to_yaml(&ctx, c, &text) == ASSAY_OK, ctx.message);
    fuzz_seed_text(corpus, text);
    free(text);
    assay_cases_free(c, 1);
}

const fuzz_target fuzz_request = {"request", try_request, request_seeds, true};

static fuzz_bytes given; /* what the backend does */

/* A shared object that does what the input says. */
static int odd_backend(const assay_backend_request *request)
{
    const int code = (int)(int8_t)fuzz_byte(&given);
    for (int i = 0; i < request->result_count; i++) {
        assay_backend_result *result = &request->results[i];
        const int how = (int)fuzz_byte(&given);
        int64_t count = 1;
        size_t size = 0;
        for (int axis = 0; axis < result->rank; axis++) count *= result->dims[axis];
        if (how & 1) result->type = (assay_backend_type)(how & 2 ? (int)fuzz_number(&given) : fuzz_below(&given, 9));
        if (how & 4) result->written = (int32_t)fuzz_number(&given);
        if (how & 8) result->required = 0;
        if (how & 16) result->rank = (int32_t)fuzz_number(&given);
        if (how & 32) result->path = NULL;
        if (how & 64) result->dims = NULL;
        if (!(how & 128)) memset(result->data, (int)fuzz_byte(&given), (size_t)count * 8);
        const uint8_t *bytes = fuzz_consume(&given, fuzz_byte(&given), &size);
        if (size > (size_t)count * 8) size = (size_t)count * 8;
        if (size > 0) memcpy(result->data, bytes, size);
    }
    size_t size = 0;
    const uint8_t *message = fuzz_consume(&given, (size_t)request->message_size, &size);
    if (size > 0) memcpy(request->message, message, size);
    return code > 3 ? ASSAY_BACKEND_DONE : code;
}

typedef struct small_golden {
    assay_golden golden;
    assay_plan plan;
    assay_inputs inputs;
    assay_case *c;
    assay_host_blocks blocks;
    assay_host host;
} small_golden;

static small_golden *make_small(void)
{
    static small_golden s;
    static bool made;
    assay_context ctx = fuzz_context();
    if (made) return &s;
    made = true;
    char *path = strdup(fuzz_path("golden.safetensors"));
    s.c = small_case();
    fuzz_require(assay_plan_make(&ctx, &s.plan, s.c) == ASSAY_OK &&
                     assay_golden_write(&ctx, &s.plan, path, NULL, true) == ASSAY_OK &&
                     assay_golden_open(&ctx, path, &s.golden) == ASSAY_OK &&
                     assay_golden_plan(&ctx, &s.golden, NULL) == ASSAY_OK &&
                     assay_inputs_open(&ctx, &s.inputs, s.c, &s.plan.list, NULL) == ASSAY_OK,
                 ctx.message);
    const assay_source in = assay_inputs_source(&s.inputs);
    const assay_host_memory memory = assay_host_blocks_memory(&s.blocks);
    fuzz_require(assay_host_make(&ctx, &s.golden.plan, &in, &memory, &s.host) == ASSAY_OK, ctx.message);
    free(path);
    return &s;
}

static void check_report(const assay_report *report)
{
    assay_context ctx = fuzz_context();
    char *text = NULL;
    fuzz_require(report->verdict != ASSAY_PASS || report->count > 0, "a report passes that compares nothing");
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *tensor = &report->tensors[i];
        const bool good = tensor->verdict == ASSAY_PASS || tensor->verdict == ASSAY_VACUOUS || !tensor->compared;
        fuzz_require(report->verdict != ASSAY_PASS || good, "a report passes with a tensor that does not");
    }
    const assay_report_style style = {.verbosity = 1};
    assay_status (*const forms[])(assay_context *, int, const assay_report *, char **) = {assay_report_json,
                                                                                          assay_report_junit};
    fuzz_require(assay_report_text(&ctx, report, &style, &text) == ASSAY_OK, ctx.message);
    free(text);
    for (int i = 0; i < 2; i++) {
        fuzz_require(forms[i](&ctx, 1, report, &text) == ASSAY_OK, ctx.message);
        free(text);
    }
}

/* What a shared object gives, as its host takes it, in memory held against the golden. */
static void try_candidate(const uint8_t *data, size_t size)
{
    small_golden *s = make_small();
    assay_context ctx = fuzz_context();
    assay_tensor_set results = {0};
    assay_fixture_reader *candidate = NULL;
    assay_report report = {0};
    given = (fuzz_bytes){data, data + size};
    if (assay_host_call(&s->host, odd_backend) != ASSAY_BACKEND_EXIT_DONE) {
        fuzz_require(s->host.message[0] != '\0', "a backend that gave up said nothing");
        return;
    }
    assay_status status = assay_host_results(&ctx, &s->host, &results);
    fuzz_check(&ctx, status);
    if (status == ASSAY_OK) {
        const assay_judging how = {
            .profile = assay_profile_by_name("f32"), .false_alarm = 1e-6, .quiet = true, .unexplained = true};
        fuzz_require(assay_fixture_of_tensors(&ctx, "candidate", &results, &candidate) == ASSAY_OK, ctx.message);
        status = assay_judge(&ctx, &s->golden, candidate, &how, &report, NULL);
        fuzz_check(&ctx, status);
    }
    if (status == ASSAY_OK) check_report(&report);
    assay_report_free(&report);
    assay_fixture_close(candidate);
    assay_tensor_set_free(&results);
}

static void candidate_seeds(fuzz_corpus *corpus)
{
    uint8_t seed[200] = {0};
    fuzz_seed(corpus, seed, sizeof seed);
    memset(seed, 9, sizeof seed);
    fuzz_seed(corpus, seed, sizeof seed);
}

const fuzz_target fuzz_candidate = {"candidate", try_candidate, candidate_seeds, false};
