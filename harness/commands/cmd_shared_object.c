/* The process that hosts a backend's shared object: loads the request, gives buffers that hold NaN between guards,
 * calls the backend, writes the candidate. Started by `assay run`; a crash here is a result there. */
#include <assay/backend.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness/backends/backend.h"
#include "harness/commands/command.h"
#include "harness/plan/golden_open.h"
#include "oracle/base/memory.h"

enum { GUARD = 4096, GUARD_BYTE = 0xa5, MESSAGE = 512, WIDEST = 8 };

typedef int (*backend_function)(const assay_backend_request *request);

static const struct {
    assay_dtype dtype;
    assay_backend_type type;
} type_table[] = {
    {ASSAY_FLOAT64, ASSAY_BACKEND_FLOAT64},         {ASSAY_FLOAT32, ASSAY_BACKEND_FLOAT32},
    {ASSAY_TFLOAT32, ASSAY_BACKEND_FLOAT32},        {ASSAY_BFLOAT16, ASSAY_BACKEND_BFLOAT16},
    {ASSAY_FLOAT16, ASSAY_BACKEND_FLOAT16},         {ASSAY_FLOAT8_E4M3FN, ASSAY_BACKEND_FLOAT8_E4M3FN},
    {ASSAY_FLOAT8_E5M2, ASSAY_BACKEND_FLOAT8_E5M2}, {ASSAY_INT32, ASSAY_BACKEND_INT32},
};
enum { TYPES = sizeof type_table / sizeof *type_table };

static assay_backend_type backend_type(assay_dtype dtype)
{
    for (int i = 0; i < TYPES; i++) {
        if (type_table[i].dtype == dtype) return type_table[i].type;
    }
    return ASSAY_BACKEND_FLOAT64;
}

static bool dtype_of(assay_backend_type type, assay_dtype *dtype)
{
    for (int i = 0; i < TYPES; i++) {
        if (type_table[i].type == type) {
            *dtype = type_table[i].dtype;
            return true;
        }
    }
    return false;
}

/* Everything that the backend is shown, and what it gives. */
typedef struct host {
    const assay_plan *plan;
    assay_backend_setting *settings;
    char (*values)[ASSAY_KEY_VALUE_SIZE];
    assay_backend_tensor *tensors;
    assay_backend_result *results;
    const assay_tensor_spec **specs; /* of the results */
    unsigned char **blocks;          /* guard, data, guard */
    int setting_count, tensor_count, result_count;
    char message[MESSAGE];
} host;

static void host_free(host *h)
{
    for (int i = 0; h->tensors != NULL && i < h->tensor_count; i++) free((void *)h->tensors[i].data);
    for (int i = 0; h->blocks != NULL && i < h->result_count; i++) free(h->blocks[i]);
    free(h->settings);
    free(h->values);
    free(h->tensors);
    free(h->results);
    free(h->specs);
    free(h->blocks);
}

/* Texts as they are, a pair joined by a comma, numbers and booleans as YAML writes them. */
static void setting_text(const assay_model_key *key, const assay_model_config *config, char *text, size_t size)
{
    const void *value = (const char *)config + key->offset;
    if (key->type == ASSAY_KEY_S) {
        snprintf(text, size, "%s", ((const assay_text *)value)->text);
    } else if (key->type == ASSAY_KEY_A) {
        const assay_text_pair *pair = value;
        snprintf(text, size, "%s,%s", pair->item[0], pair->item[1]);
    } else {
        assay_model_key_text(key, config, text, size);
    }
}

static void add_setting(host *h, const char *key)
{
    h->settings[h->setting_count].key = key;
    h->settings[h->setting_count].value = h->values[h->setting_count];
    h->setting_count++;
}

static void add_number(host *h, const char *key, int64_t value)
{
    snprintf(h->values[h->setting_count], ASSAY_KEY_VALUE_SIZE, "%" PRId64, value);
    add_setting(h, key);
}

static void fill_settings(host *h)
{
    const assay_case *c = h->plan->c;
    enum { SIZE = ASSAY_KEY_VALUE_SIZE };
    for (int i = 0; i < ASSAY_MODEL_KEYS; i++) {
        setting_text(&assay_model_keys[i], &c->config, h->values[h->setting_count], SIZE);
        add_setting(h, assay_model_keys[i].name);
    }
    snprintf(h->values[h->setting_count], SIZE, "%s", c->op);
    add_setting(h, "op");
    snprintf(h->values[h->setting_count], SIZE, "%s", c->name);
    add_setting(h, "case");
    add_number(h, "batch", c->batch);
    add_number(h, "sequence", c->sequence);
    add_number(h, "mesh.data", c->mesh_data);
    add_number(h, "mesh.fsdp", c->mesh_fsdp);
    add_number(h, "mesh.expert", c->mesh_expert);
    add_number(h, "mesh.tensor", c->mesh_tensor);
    add_number(h, "mesh.mlp_tensor", c->mesh_mlp_tensor);
    add_number(h, "mesh.fsdp_transpose", c->mesh_fsdp_transpose);
    snprintf(h->values[h->setting_count], SIZE, "%s", assay_dtype_name(c->dtype));
    add_setting(h, "dtype");
}

/* A tensor of the request in its stored type. */
static assay_status load_tensor(assay_context *ctx, host *h, assay_fixture_reader *request,
                                const assay_tensor_spec *spec)
{
    assay_status status;
    double *values = NULL;
    void *data = NULL;
    int64_t count = assay_shape_count(&spec->shape);
    TRY(assay_alloc(ctx, spec->path, count, assay_dtype_size(spec->type), &data));
    TRY(assay_alloc_f64(ctx, spec->path, count, &values));
    TRY(assay_fixture_read(ctx, request, spec->path, 0, count, values));
    assay_dtype_encode(spec->type, count, values, data);
    h->tensors[h->tensor_count++] = (assay_backend_tensor){.path = spec->path,
                                                           .type = backend_type(spec->type),
                                                           .rank = spec->shape.rank,
                                                           .dims = spec->shape.dims,
                                                           .data = data};
    data = NULL;
cleanup:
    free(values);
    free(data);
    return status;
}

static assay_status host_make(assay_context *ctx, host *h, const assay_plan *plan, assay_fixture_reader *request)
{
    assay_status status = ASSAY_OK;
    size_t settings = (size_t)ASSAY_MODEL_KEYS + 11, specs = (size_t)plan->spec_count + 1;
    h->plan = plan;
    h->settings = calloc(settings, sizeof *h->settings);
    h->values = calloc(settings, sizeof *h->values);
    h->tensors = calloc(specs, sizeof *h->tensors);
    h->results = calloc(specs, sizeof *h->results);
    h->specs = calloc(specs, sizeof *h->specs);
    h->blocks = calloc(specs, sizeof *h->blocks);
    if (h->settings == NULL || h->values == NULL || h->tensors == NULL || h->results == NULL || h->specs == NULL ||
        h->blocks == NULL) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for the backend's tensors");
    }
    fill_settings(h);
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i];
        void *block = NULL;
        if (spec->role == ASSAY_ROLE_ERROR_SCALE || spec->role == ASSAY_ROLE_NULL) continue;
        if (assay_role_is_given(spec->role)) {
            TRY(load_tensor(ctx, h, request, spec));
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
        h->results[i] =
            (assay_backend_result){.path = spec->path,
                                   .type = spec->type == ASSAY_INT32 ? ASSAY_BACKEND_INT32 : ASSAY_BACKEND_FLOAT32,
                                   .rank = spec->shape.rank,
                                   .dims = spec->shape.dims,
                                   .data = h->blocks[i] + GUARD,
                                   .required = assay_role_is_required(spec->role),
                                   .written = 1};
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
                                     .setting_count = h->setting_count,
                                     .tensor_count = h->tensor_count,
                                     .result_count = h->result_count,
                                     .settings = h->settings,
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
        if (!dtype_of(h->results[i].type, &spec.type)) {
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
