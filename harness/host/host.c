#include "harness/host/host.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "harness/backends/backend.h"
#include "oracle/base/memory.h"

/* Guards before and behind a result, which lies further on by MOVED in every second call. */
enum { GUARD = 16384, MOVED = 4096, GUARD_BYTE = 0xa5, NAN_BYTE = 0xff, WIDEST = 8 };

static assay_status take_block(assay_context *ctx, void *self, const char *what, int64_t bytes, void **out)
{
    assay_host_blocks *b = self;
    MUST(assay_grow(ctx, "the backend's tensors", b->count + 1, sizeof *b->items, &b->items));
    const assay_status status = assay_alloc_aligned(ctx, what, bytes, 1, out);
    if (status == ASSAY_OK) b->items[b->count++] = *out;
    return status;
}

assay_host_memory assay_host_blocks_memory(assay_host_blocks *blocks)
{
    return (assay_host_memory){blocks, take_block};
}

void assay_host_blocks_free(assay_host_blocks *blocks)
{
    for (int i = 0; i < blocks->count; i++) free(blocks->items[i]);
    free(blocks->items);
    *blocks = (assay_host_blocks){0};
}

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
    OWNED_BY(assay_backend_settings_free) assay_backend_settings all = {0};
    MUST(assay_backend_settings_make(m->ctx, c, &all));
    MUST(take(m, "settings", all.count, sizeof *m->host->settings, &m->host->settings));
    for (; m->host->setting_count < all.count; m->host->setting_count++) {
        const assay_backend_setting *from = &all.items[m->host->setting_count];
        assay_backend_setting *to = &m->host->settings[m->host->setting_count];
        MUST(copy_text(m, from->key, &to->key));
        MUST(copy_text(m, from->value, &to->value));
    }
    return ASSAY_OK;
}

static int64_t size_of(const assay_backend_tensor *tensor)
{
    assay_dtype type = ASSAY_FLOAT64;
    int64_t size = assay_dtype_of_backend(tensor->type, &type) ? (int64_t)assay_dtype_size(type) : 0;
    for (int32_t i = 0; i < tensor->rank; i++) size *= tensor->dims[i];
    return size;
}

static uint64_t sum_of(const assay_backend_tensor *tensor)
{
    return XXH3_64bits(tensor->data, (size_t)size_of(tensor));
}

/* A tensor of the request in its stored type. */
static assay_status load_tensor(const maker *m, const assay_source *in, const assay_tensor_spec *spec)
{
    assay_status status;
    assay_backend_tensor read = {0};
    void *data = NULL;
    int64_t *dims = NULL;
    const int64_t count = assay_shape_count(&spec->shape), size = (int64_t)assay_dtype_size(spec->type);
    const int at = m->host->tensor_count++;
    assay_backend_tensor *tensor = &m->host->tensors[at];
    TRY(take(m, spec->path, count, size, &data));
    TRY(take(m, spec->path, ASSAY_MAX_RANK, sizeof *dims, &dims));
    memcpy(dims, spec->shape.dims, sizeof spec->shape.dims);
    TRY(assay_backend_tensor_read(m->ctx, in, spec, &read));
    memcpy(data, read.data, (size_t)(count * size));
    *tensor = read;
    tensor->dims = dims;
    tensor->data = data;
    m->host->sums[at] = sum_of(tensor);
    TRY(copy_text(m, spec->path, &tensor->path));
cleanup:
    free((void *)read.data);
    return status;
}

/* Of a result whose type is not known yet. Integers have but one. */
static int64_t room_of(const assay_tensor_spec *spec)
{
    return assay_shape_count(&spec->shape) * (spec->type == ASSAY_INT32 ? (int64_t)sizeof(int32_t) : WIDEST);
}

static assay_status add_result(const maker *m, const assay_tensor_spec *spec)
{
    assay_host *h = m->host;
    h->specs[h->result_count] = *spec;
    h->filled[h->result_count] = room_of(spec);
    return take(m, spec->path, room_of(spec) + 2 * GUARD + MOVED, 1, &h->blocks[h->result_count++]);
}

assay_status assay_host_make(assay_context *ctx, const assay_plan *plan, const assay_source *in,
                             const assay_host_memory *memory, assay_host *host)
{
    const maker m = {ctx, memory, host};
    const int64_t specs = plan->spec_count + 1;
    *host = (assay_host){0};
    MUST(take(&m, "tensors", specs, sizeof *host->tensors, &host->tensors));
    MUST(take(&m, "tensors", specs, sizeof *host->sums, &host->sums));
    MUST(take(&m, "results", specs, sizeof *host->results, &host->results));
    MUST(take(&m, "results", specs, sizeof *host->specs, &host->specs));
    MUST(take(&m, "results", specs, sizeof *host->blocks, &host->blocks));
    MUST(take(&m, "results", specs, sizeof *host->filled, &host->filled));
    MUST(take(&m, "message", ASSAY_HOST_MESSAGE, 1, &host->message));
    MUST(fill_settings(&m, plan->c));
    for (int i = 0; i < plan->spec_count; i++) {
        const assay_tensor_spec *spec = &plan->specs[i], *asked = assay_plan_asked(plan, i);
        if (assay_role_is_input(spec->role)) MUST(load_tensor(&m, in, spec));
        if (asked != NULL) MUST(add_result(&m, asked));
    }
    return ASSAY_OK;
}

/* What the backend says of a result's type; float64, which is the widest, where that is none. */
static assay_dtype type_of(const assay_host *h, int i)
{
    assay_dtype type;
    return assay_dtype_of_backend(h->results[i].type, &type) ? type : ASSAY_FLOAT64;
}

/* Bytes that the backend may have written; all that there is room for where it says that it wrote none. */
static int64_t written_of(const assay_host *h, int i)
{
    const int64_t room = room_of(&h->specs[i]);
    const int64_t bytes = assay_shape_count(&h->specs[i].shape) * (int64_t)assay_dtype_size(type_of(h, i));
    return h->results[i].written != 0 && bytes < room ? bytes : room;
}

/* Results as the backend finds them: NaN in every float type, guards intact. From the second call on the guard behind begins
 * where the type of the call before ends: what is added to a NaN there would not show. */
static void poison(assay_host *h)
{
    h->guard = h->guard == GUARD ? GUARD + MOVED : GUARD;
    for (int i = 0; i < h->result_count; i++) {
        unsigned char *data = h->blocks[i] + h->guard;
        memset(h->blocks[i], GUARD_BYTE, (size_t)h->guard);
        memset(data, NAN_BYTE, (size_t)h->filled[i]);
        memset(data + h->filled[i], GUARD_BYTE, (size_t)(room_of(&h->specs[i]) + GUARD - h->filled[i]));
        h->results[i] = assay_backend_result_of(&h->specs[i]);
        h->results[i].data = data;
    }
    h->message[0] = '\0';
}

/* The first of them that is not `byte`; count where all are. */
static int64_t first_other(const unsigned char *bytes, int64_t count, unsigned char byte)
{
    int64_t i = 0;
    if (count > 0 && bytes[0] == byte && memcmp(bytes, bytes + 1, (size_t)count - 1) == 0) return count;
    while (i < count && bytes[i] == byte) i++;
    return i;
}

/* The byte, counted from the first of the data, that the backend wrote beside a result, before it or behind it; false: none. */
static bool is_broken(const assay_host *h, int i, int64_t *at)
{
    const unsigned char *data = h->blocks[i] + h->guard;
    const int64_t written = written_of(h, i), end = room_of(&h->specs[i]) + GUARD;
    const int64_t guard = h->filled[i] > written ? h->filled[i] : written;
    *at = first_other(h->blocks[i], h->guard, GUARD_BYTE) - h->guard;
    if (*at < 0) return true;
    *at = written + first_other(data + written, guard - written, NAN_BYTE);
    if (*at == guard) *at += first_other(data + guard, end - guard, GUARD_BYTE);
    return *at < end;
}

/* What the backend wrote beside a result, if anything, as the call's message. */
static bool say_broken(assay_host *h)
{
    for (int i = 0; i < h->result_count; i++) {
        int64_t at = 0;
        if (!is_broken(h, i, &at)) continue;
        const assay_dtype type = type_of(h, i);
        const int64_t size = (int64_t)assay_dtype_size(type), count = assay_shape_count(&h->specs[i].shape);
        snprintf(h->message, ASSAY_HOST_MESSAGE,
                 "the backend wrote %s the buffer of %s, which has %" PRId64 " elements of %s: first at index %" PRId64,
                 at < 0 ? "before" : "behind", h->specs[i].path, count, assay_dtype_name(type),
                 at < 0 ? -((size - 1 - at) / size) : at / size);
        return true;
    }
    return false;
}

/* A float result whose every bit is set as before the call. A byte of a code may lawfully be so. */
static bool is_untouched(const assay_host *h, int i)
{
    const int64_t bytes = written_of(h, i);
    const bool fills = h->specs[i].type != ASSAY_INT32 && assay_dtype_size(type_of(h, i)) > 1;
    return fills && bytes > 0 && first_other(h->blocks[i] + h->guard, bytes, NAN_BYTE) == bytes;
}

void assay_host_negate(assay_host *h)
{
    for (int i = 0; i < h->tensor_count; i++) {
        const assay_backend_tensor *t = &h->tensors[i];
        assay_dtype type;
        if (!assay_dtype_of_backend(t->type, &type) || !assay_dtype_is_negated(type)) continue;
        const int64_t size = (int64_t)assay_dtype_size(type), end = size_of(t);
        for (int64_t at = 2 * size - 1; at < end; at += size) ((unsigned char *)t->data)[at] ^= 0x80;
        h->sums[i] = sum_of(t);
    }
}

bool assay_host_writes_on(assay_host *h)
{
    uint64_t sums[2] = {0, 0};
    for (int pass = 0; pass < 2; pass++) {
        if (pass == 1) nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        for (int i = 0; i < h->result_count; i++)
            sums[pass] = XXH3_64bits_withSeed(h->blocks[i], (size_t)(room_of(&h->specs[i]) + 2 * GUARD), sums[pass]);
    }
    if (sums[0] != sums[1]) snprintf(h->message, ASSAY_HOST_MESSAGE, "the backend wrote after it had returned");
    return sums[0] != sums[1];
}

int assay_host_call(assay_host *h, assay_backend_function backend)
{
    const char *nothing = "the backend gave no reason";
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
    for (int i = 0; code != ASSAY_BACKEND_DONE && i < h->result_count; i++) h->results[i].written = 0; /* no type yet */
    if (say_broken(h)) return EXIT_FAILURE;
    for (int i = 0; i < h->tensor_count; i++) {
        if (sum_of(&h->tensors[i]) == h->sums[i]) continue;
        snprintf(h->message, ASSAY_HOST_MESSAGE, "the backend changed %s", h->tensors[i].path);
        return EXIT_FAILURE;
    }
    for (int i = 0; i < h->result_count; i++) h->filled[i] = written_of(h, i);
    if (code == ASSAY_BACKEND_DONE) return ASSAY_BACKEND_EXIT_DONE;
    if (code == ASSAY_BACKEND_UNSUPPORTED) nothing = "the backend does not have this case";
    if (h->message[0] == '\0') snprintf(h->message, ASSAY_HOST_MESSAGE, "%s", nothing);
    return code == ASSAY_BACKEND_UNSUPPORTED ? ASSAY_BACKEND_EXIT_UNSUPPORTED : EXIT_FAILURE;
}

assay_status assay_host_result(assay_context *ctx, const assay_host *host, int index, assay_tensor_spec *spec,
                               const void **bytes, bool *written)
{
    *spec = host->specs[index];
    *bytes = host->blocks[index] + host->guard;
    *written = host->results[index].written != 0 && !is_untouched(host, index);
    if (!*written || assay_dtype_of_backend(host->results[index].type, &spec->type)) return ASSAY_OK;
    return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: the backend set type %d, which there is not", spec->path,
                      (int)host->results[index].type);
}

assay_status assay_host_results(assay_context *ctx, const assay_host *host, assay_tensor_set *results)
{
    for (int i = 0; i < host->result_count; i++) {
        assay_tensor_spec spec;
        assay_tensor *tensor = NULL;
        const void *bytes = NULL;
        bool written = false;
        MUST(assay_host_result(ctx, host, i, &spec, &bytes, &written));
        if (!written) continue;
        MUST(assay_tensor_set_add(ctx, results, &spec, &tensor));
        tensor->written = tensor->count;
        if (tensor->indices != NULL) memcpy(tensor->indices, bytes, (size_t)tensor->count * sizeof *tensor->indices);
        if (tensor->values != NULL) assay_dtype_decode(spec.type, tensor->count, bytes, tensor->values);
    }
    return ASSAY_OK;
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
