/* The process that hosts a backend's shared object: loads the request, calls the backend, writes the candidate. Started by
 * `assay run`; a crash here is a result there. */
#include <stdio.h>
#include <stdlib.h>

#include "harness/backends/backend.h"
#include "harness/commands/command.h"
#include "harness/commands/ending.h"
#include "harness/host/host.h"
#include "harness/plan/golden_open.h"

static assay_status write_candidate(assay_context *ctx, const assay_host *h, const char *name, const char *path)
{
    assay_status status;
    assay_fixture_writer *writer = NULL;
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", "candidate"));
    TRY(assay_fixture_set_text(ctx, writer, "case", name));
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < h->result_count; i++) {
            assay_tensor_spec spec;
            const void *bytes = NULL;
            bool written = false;
            TRY(assay_host_result(ctx, h, i, &spec, &bytes, &written));
            if (!written) continue;
            TRY(pass == 0 ? assay_fixture_declare(ctx, writer, &spec)
                          : assay_fixture_append_raw(ctx, writer, spec.path, assay_shape_count(&spec.shape), bytes));
        }
    }
cleanup:
    return assay_fixture_end(ctx, writer, status);
}

/* The candidate is the last call's; with `hostile` those before have other numbers at the same addresses. It appears whole, and
 * after the backend has returned from every call: no candidate file, no result. */
static assay_status run_calls(assay_context *ctx, assay_host *h, assay_backend_function backend, int calls,
                              bool hostile, const char *name, const char *candidate, int *exit_code)
{
    for (int i = 0; i < calls; i++) {
        const bool others = hostile && i + 1 < calls;
        if (others) assay_host_negate(h);
        *exit_code = assay_host_call(h, backend);
        if (others) assay_host_negate(h);
        if (hostile && assay_host_writes_on(h)) *exit_code = EXIT_FAILURE;
        if (*exit_code == ASSAY_BACKEND_EXIT_DONE) continue;
        fprintf(stderr, "%s\n", h->message);
        return ASSAY_OK;
    }
    return write_candidate(ctx, h, name, candidate);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    const char *library = options->arguments[0], *candidate = options->arguments[2];
    const int calls = options->argument_count > 3 ? (int)strtol(options->arguments[3], NULL, 10) : 1;
    OWNED_BY(assay_golden_close) assay_golden request = {0};
    assay_host host = {0};
    OWNED_BY(assay_host_blocks_free) assay_host_blocks blocks = {0};
    char why[ASSAY_MESSAGE_SIZE / 2];
    *exit_code = ASSAY_EXIT_FAIL;
    assay_end_by_library("shared-object"); /* before the backend it is not the backend that crashes */
    MUST(assay_fixture_open(ctx, options->arguments[1], &request.reader));
    MUST(assay_golden_read(ctx, request.reader, options->arguments[1], &request));
    /* no backend gives error scales, and one of the profiles may be a user's own */
    MUST(assay_case_set(ctx, request.c, "profiles=none"));
    MUST(assay_golden_plan(ctx, &request, NULL));
    MUST(assay_plan_require_memory(ctx, &request.plan));
    const assay_source in = assay_fixture_source(request.reader);
    const assay_host_memory memory = assay_host_blocks_memory(&blocks);
    MUST(assay_host_make(ctx, &request.plan, &in, &memory, &host));
    assay_end_is_meant();
    const assay_backend_function backend = assay_host_load(library, why, sizeof why);
    if (backend == NULL) {
        fprintf(stderr, "%s\n", why);
        *exit_code = ASSAY_BACKEND_EXIT_NOT_STARTED;
        return ASSAY_OK;
    }
    return run_calls(ctx, &host, backend, calls, options->argument_count > 4, request.c->name, candidate, exit_code);
}

const assay_command assay_command_shared_object = {
    .name = "shared-object",
    .arguments = "LIBRARY REQUEST CANDIDATE [CALLS [hostile]]",
    .summary = NULL, /* not for people: assay run starts it */
    .details = "",
    .options = 0,
    .least = 3,
    .most = 5,
    .run = run,
};
