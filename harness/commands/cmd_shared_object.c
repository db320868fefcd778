/* The process that hosts a backend's shared object: loads the request, gives buffers that hold NaN between guards,
 * calls the backend, writes the candidate. Started by `assay run`; a crash here is a result there. */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/backend.h"
#include "harness/commands/command.h"
#include "harness/plan/backend_view.h"
#include "harness/plan/golden_open.h"
#include "oracle/base/memory.h"

enum { GUARD = 4096, GUARD_BYTE = 0xa5, MESSAGE = 512, WIDEST = 8 };

typedef int (*backend_function)(const assay_backend_request *request);

/* Everything that the backend is shown, and what it gives. */
typedef struct host {
    const assay_plan *plan;
    assay_backend_settings settings;
    assay_backend_tensor *tensors;
    assay_backend_result *results;
    const assay_tensor_spec **specs; /* of the results */
    unsigned char **blocks;          /* guard, data, guard */
    int tensor_count, result_count;
    char message[MESSAGE];
} host;

static void host_free(host *h)
{
    for (int i = 0; h->tensors != NULL && i < h->tensor_count; i++) free((void *)h->tensors[i].data);
    for (int i = 0; h->blocks != NULL && i < h->result_count; i++) free(h->blocks[i]);
    assay_backend_settings_free(&h->settings);
    free(h->tensors);
    free(h->results);
    free(h->specs);
    free(h->blocks);
}

static assay_status host_make(assay_context *ctx, host *h, const assay_plan *plan, assay_fixture_reader *request)
{
    assay_status status = ASSAY_OK;
    const size_t specs = (size_t)plan->spec_count + 1;
    const assay_source source = assay_fixture_source(request);
    h->plan = plan;
    h->tensors = calloc(specs, sizeof *h->tensors);
    h->results = calloc(specs, sizeof *h->results);
    h->specs = calloc(specs, sizeof *h->specs);
    h->blocks = calloc(specs, sizeof *h->blocks);
    if (h->tensors == NULL || h->results == NULL || h->specs == NULL || h->blocks == NULL) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the backend's tensors");
    }
    TRY(assay_backend_settings_make(ctx, plan->c, &h->settings));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        void *block = NULL;
        if (spec->role == ASSAY_ROLE_ERROR_SCALE || spec->role == ASSAY_ROLE_NULL) continue;
        if (assay_role_is_given(spec->role)) {
            TRY(assay_backend_tensor_read(ctx, &source, spec, &h->tensors[h->tensor_count]));
            h->tensor_count++;
            continue;
        }
        TRY(assay_alloc(ctx, spec->path, assay_shape_count(&spec->shape) * WIDEST + 2 * GUARD, 1, &block));
        h->blocks[h->result_count] = block;
        h->specs[h->result_count++] = spec;
    }
cleanup:
    return status;
}

/* Results as the backend finds them: NaN in every float type, guards intact. */
static void poison(host *h)
{
    for (int i = 0; i < h->result_count; i++) {
        const assay_tensor_spec *spec = h->specs[i];
        size_t bytes = (size_t)assay_shape_count(&spec->shape) * WIDEST;
        memset(h->blocks[i], GUARD_BYTE, GUARD);
        memset(h->blocks[i] + GUARD, 0xff, bytes);
        memset(h->blocks[i] + GUARD + bytes, GUARD_BYTE, GUARD);
        h->results[i] = assay_backend_result_of(spec);
        h->results[i].data = h->blocks[i] + GUARD;
    }
    h->message[0] = '\0';
}

/* The result that the backend wrote beside, or NULL. */
static const char *broken_guard(const host *h, const char **where)
{
    for (int i = 0; i < h->result_count; i++) {
        size_t bytes = (size_t)assay_shape_count(&h->specs[i]->shape) * WIDEST;
        const unsigned char *before = h->blocks[i], *behind = h->blocks[i] + GUARD + bytes;
        for (int j = 0; j < GUARD; j++) {
            if (before[j] != GUARD_BYTE || behind[j] != GUARD_BYTE) {
                *where = before[j] != GUARD_BYTE ? "before" : "behind";
                return h->specs[i]->path;
            }
        }
    }
    return NULL;
}

/* One call; the exit status of this process, and a line to standard error when it is not DONE. */
static int call(host *h, backend_function backend)
{
    const char *where = "";
    poison(h);
    assay_backend_request request = {.version = ASSAY_BACKEND_VERSION,
                                     .setting_count = h->settings.count,
                                     .tensor_count = h->tensor_count,
                                     .result_count = h->result_count,
                                     .settings = h->settings.items,
                                     .tensors = h->tensors,
                                     .results = h->results,
                                     .message = h->message,
                                     .message_size = MESSAGE};
    int code = backend(&request);
    h->message[MESSAGE - 1] = '\0';
    fflush(stdout); /* what the backend printed comes before what is said of it */
    const char *path = broken_guard(h, &where);
    if (path != NULL) {
        fprintf(stderr, "the backend wrote %s the buffer of %s\n", where, path);
        return ASSAY_EXIT_FAIL;
    }
    if (code == ASSAY_BACKEND_UNSUPPORTED) {
        fprintf(stderr, "%s\n", h->message[0] != '\0' ? h->message : "the backend does not have this case");
        return ASSAY_BACKEND_EXIT_UNSUPPORTED;
    }
    if (code != ASSAY_BACKEND_DONE) {
        fprintf(stderr, "%s\n", h->message[0] != '\0' ? h->message : "the backend gave no reason");
        return ASSAY_EXIT_FAIL;
    }
    return ASSAY_BACKEND_EXIT_DONE;
}

static assay_status write_candidate(assay_context *ctx, const host *h, const char *path)
{
    assay_status status;
    assay_fixture_writer *writer = NULL;
    TRY(assay_fixture_create(ctx, path, &writer));
    TRY(assay_fixture_set_text(ctx, writer, "kind", "candidate"));
    TRY(assay_fixture_set_text(ctx, writer, "case", h->plan->c->name));
    for (int i = 0; i < h->result_count; i++) {
        assay_tensor_spec spec = *h->specs[i];
        if (!h->results[i].written) continue;
        if (!assay_dtype_of_backend(h->results[i].type, &spec.type)) {
            status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the backend set type %d, which there is not", spec.path,
                                (int)h->results[i].type);
            goto cleanup;
        }
        TRY(assay_fixture_declare(ctx, writer, &spec));
    }
    for (int i = 0; i < h->result_count; i++) {
        const assay_tensor_spec *spec = h->specs[i];
        if (!h->results[i].written) continue;
        TRY(assay_fixture_append_raw(ctx, writer, spec->path, assay_shape_count(&spec->shape), h->blocks[i] + GUARD));
    }
    assay_fixture_writer *done = writer;
    writer = NULL;
    TRY(assay_fixture_finish(ctx, done));
cleanup:
    assay_fixture_abandon(writer);
    return status;
}

/* The candidate is the last call's. It appears whole, and after the backend has returned from every call: no candidate
 * file, no result. */
static assay_status run_calls(assay_context *ctx, host *h, backend_function backend, int calls, const char *candidate,
                              int *exit_code)
{
    for (int i = 0; i < calls; i++) {
        *exit_code = call(h, backend);
        if (*exit_code != ASSAY_BACKEND_EXIT_DONE) return ASSAY_OK;
    }
    return write_candidate(ctx, h, candidate);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    const char *library = options->arguments[0], *candidate = options->arguments[2];
    const int calls = options->argument_count > 3 ? (int)strtol(options->arguments[3], NULL, 10) : 1;
    assay_golden request = {0};
    host h = {0};
    char resolved[PATH_MAX];
    *exit_code = ASSAY_EXIT_FAIL;
    TRY(assay_fixture_open(ctx, options->arguments[1], &request.reader));
    TRY(assay_golden_read(ctx, request.reader, options->arguments[1], &request));
    /* no backend gives error scales, and one of the profiles may be a user's own */
    TRY(assay_case_set(ctx, request.c, "profiles=none"));
    TRY(assay_golden_plan(ctx, &request, NULL));
    TRY(assay_plan_require_memory(ctx, &request.plan));
    TRY(host_make(ctx, &h, &request.plan, request.reader));
    /* a bare name would be looked for among the system's libraries */
    void *handle = dlopen(realpath(library, resolved) != NULL ? resolved : library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s", dlerror());
        goto cleanup;
    }
    backend_function backend;
    *(void **)&backend = dlsym(handle, "assay_backend_run");
    if (backend == NULL) {
        status = assay_fail(ctx, ASSAY_BAD_INPUT, "%s exports no assay_backend_run (<assay/backend.h>)", library);
        goto cleanup;
    }
    TRY(run_calls(ctx, &h, backend, calls, candidate, exit_code));
cleanup:
    host_free(&h);
    assay_golden_close(&request);
    return status;
}

const assay_command assay_command_shared_object = {
    .name = "shared-object",
    .arguments = "LIBRARY REQUEST CANDIDATE [CALLS]",
    .summary = NULL, /* not for people: assay run starts it */
    .details = "",
    .options = 0,
    .least = 3,
    .most = 4,
    .run = run,
};
