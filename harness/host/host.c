#include "harness/host/host.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/backend.h"
#include "oracle/base/memory.h"

enum { GUARD = 16384, GUARD_BYTE = 0xa5, WIDEST = 8 };

typedef struct maker {
    assay_context *ctx;
    const assay_host_memory *memory;
    assay_host *host;
} maker;

static assay_status take(const maker *m, const char *what, int64_t count, int64_t size, void *out)
{
    void *memory = NULL;
    const assay_status status = m->memory->take(m->ctx, m->memory->self, what, count * size, &memory);
    if (status == ASSAY_OK) memset(memory, 0, (size_t)(count * size));
    memcpy(out, &memory, sizeof memory);
    return status;
}

static assay_status copy_text(const maker *m, const char *text, const char **copy)
{
    char *place = NULL;
    const size_t size = strlen(text) + 1;
    const assay_status status = take(m, "a text", (int64_t)size, 1, &place);
    if (status == ASSAY_OK) memcpy(place, text, size);
    *copy = place;
    return status;
}

static assay_status fill_settings(const maker *m, const assay_case *c)
{
    assay_status status;
    assay_backend_settings all = {0};
    TRY(assay_backend_settings_make(m->ctx, c, &all));
    TRY(take(m, "settings", all.count, sizeof *m->host->settings, &m->host->settings));
    for (; m->host->setting_count < all.count; m->host->setting_count++) {
        const assay_backend_setting *from = &all.items[m->host->setting_count];
        assay_backend_setting *to = &m->host->settings[m->host->setting_count];
        TRY(copy_text(m, from->key, &to->key));
        TRY(copy_text(m, from->value, &to->value));
    }
cleanup:
    assay_backend_settings_free(&all);
    return status;
}

/* A tensor of the request in its stored type. */
static assay_status load_tensor(const maker *m, const assay_source *in, const assay_tensor_spec *spec)
{
    assay_status status;
    assay_backend_tensor read = {0};
    void *data = NULL;
    int64_t *dims = NULL;
    const int64_t count = assay_shape_count(&spec->shape), size = (int64_t)assay_dtype_size(spec->type);
    assay_backend_tensor *tensor = &m->host->tensors[m->host->tensor_count++];
    TRY(take(m, spec->path, count, size, &data));
    TRY(take(m, spec->path, ASSAY_MAX_RANK, sizeof *dims, &dims));
    memcpy(dims, spec->shape.dims, sizeof spec->shape.dims);
    TRY(assay_backend_tensor_read(m->ctx, in, spec, &read));
    memcpy(data, read.data, (size_t)(count * size));
    *tensor = read;
    tensor->dims = dims;
    tensor->data = data;
    TRY(copy_text(m, spec->path, &tensor->path));
cleanup:
    free((void *)read.data);
    return status;
}

static int64_t bytes_of(const assay_tensor_spec *spec)
{
    return assay_shape_count(&spec->shape) * WIDEST;
}

static assay_status add_result(const maker *m, const assay_tensor_spec *spec)
{
    assay_host *h = m->host;
    h->specs[h->result_count] = *spec;
    return take(m, spec->path, bytes_of(spec) + 2 * GUARD, 1, &h->blocks[h->result_count++]);
}

assay_status assay_host_make(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                             const assay_host_memory *memory, assay_host *host)
{
    assay_status status;
    const maker m = {ctx, memory, host};
    const int64_t specs = plan->spec_count + 1;
    *host = (assay_host){0};
    TRY(take(&m, "tensors", specs, sizeof *host->tensors, &host->tensors));
    TRY(take(&m, "results", specs, sizeof *host->results, &host->results));
    TRY(take(&m, "results", specs, sizeof *host->specs, &host->specs));
    TRY(take(&m, "results", specs, sizeof *host->blocks, &host->blocks));
    TRY(take(&m, "message", ASSAY_HOST_MESSAGE, 1, &host->message));
    TRY(fill_settings(&m, plan->c));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i], *asked = assay_plan_asked(plan, i);
        if (assay_role_is_given(spec->role)) TRY(load_tensor(&m, in, spec));
        if (asked != NULL) TRY(add_result(&m, asked));
    }
cleanup:
    return status;
}

/* Results as the backend finds them: NaN in every float type, guards intact. */
static void poison(assay_host *h)
{
    for (int i = 0; i < h->result_count; i++) {
        const assay_tensor_spec *spec = &h->specs[i];
        const size_t bytes = (size_t)bytes_of(spec);
        memset(h->blocks[i], GUARD_BYTE, GUARD);
        memset(h->blocks[i] + GUARD, 0xff, bytes);
        memset(h->blocks[i] + GUARD + bytes, GUARD_BYTE, GUARD);
        h->results[i] = assay_backend_result_of(spec);
        h->results[i].data = h->blocks[i] + GUARD;
    }
    h->message[0] = '\0';
}

static bool is_whole(const unsigned char *guard)
{
    return guard[0] == GUARD_BYTE && memcmp(guard, guard + 1, GUARD - 1) == 0;
}

/* The result that the backend wrote beside, or NULL. */
static const char *broken_guard(const assay_host *h, const char **where)
{
    for (int i = 0; i < h->result_count; i++) {
        const size_t bytes = (size_t)bytes_of(&h->specs[i]);
        const bool before = is_whole(h->blocks[i]);
        if (before && is_whole(h->blocks[i] + GUARD + bytes)) continue;
        *where = before ? "behind" : "before";
        return h->specs[i].path;
    }
    return NULL;
}

int assay_host_call(assay_host *h, assay_backend_function backend)
{
    const char *where = "", *nothing = "the backend gave no reason";
    poison(h);
    const assay_backend_request request = {.version = ASSAY_BACKEND_VERSION,
                                           .setting_count = h->setting_count,
                                           .tensor_count = h->tensor_count,
                                           .result_count = h->result_count,
                                           .settings = h->settings,
                                           .tensors = h->tensors,
                                           .results = h->results,
                                           .message = h->message,
                                           .message_size = ASSAY_HOST_MESSAGE};
    const int code = backend(&request);
    h->message[ASSAY_HOST_MESSAGE - 1] = '\0';
    fflush(stdout); /* what the backend printed comes before what is said of it */
    const char *path = broken_guard(h, &where);
    if (path != NULL) {
        snprintf(h->message, ASSAY_HOST_MESSAGE, "the backend wrote %s the buffer of %s", where, path);
        return EXIT_FAILURE;
    }
    if (code == ASSAY_BACKEND_DONE) return ASSAY_BACKEND_EXIT_DONE;
    if (code == ASSAY_BACKEND_UNSUPPORTED) nothing = "the backend does not have this case";
    if (h->message[0] == '\0') snprintf(h->message, ASSAY_HOST_MESSAGE, "%s", nothing);
    return code == ASSAY_BACKEND_UNSUPPORTED ? ASSAY_BACKEND_EXIT_UNSUPPORTED : EXIT_FAILURE;
}

assay_status assay_host_result(assay_context *ctx, const assay_host *host, int index, assay_tensor_spec *spec,
                               const void **bytes, bool *written)
{
    *spec = host->specs[index];
    *bytes = host->blocks[index] + GUARD;
    *written = host->results[index].written != 0;
    if (!*written || assay_dtype_of_backend(host->results[index].type, &spec->type)) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the backend set type %d, which there is not", spec->path,
                      (int)host->results[index].type);
}

assay_backend_function assay_host_load(const char *library, char *why, size_t size)
{
    char resolved[PATH_MAX];
    assay_backend_function backend = NULL;
    /* a bare name would be looked for among the system's libraries */
    void *handle = dlopen(realpath(library, resolved) != NULL ? resolved : library, RTLD_NOW | RTLD_LOCAL);
    if (handle == NULL) {
        snprintf(why, size, "%s", dlerror());
        return NULL;
    }
    void *found = dlsym(handle, "assay_backend_run");
    memcpy(&backend, &found, sizeof found);
    if (found == NULL) snprintf(why, size, "%s exports no assay_backend_run (<assay/backend.h>)", library);
    return backend;
}
