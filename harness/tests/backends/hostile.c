/* The example backend with a trap: HOSTILE=NAME says which. The example's own entry is called example_run here. */
#include <assay/backend.h>
#undef assay_backend_run

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int assay_backend_run(const assay_backend_request *request);

static long setting(const assay_backend_request *request, const char *key)
{
    for (int i = 0; i < request->setting_count; i++)
        if (strcmp(request->settings[i].key, key) == 0) return strtol(request->settings[i].value, NULL, 10);
    return -1;
}

static void spoil(const assay_backend_request *request, const char *path, float value)
{
    for (int i = 0; i < request->result_count; i++) {
        const assay_backend_result *r = &request->results[i];
        if (strcmp(r->path, path) != 0) continue;
        if (r->type == ASSAY_BACKEND_FLOAT32) memcpy(r->data, &value, sizeof value);
        if (r->type == ASSAY_BACKEND_BFLOAT16) memcpy(r->data, (char *)&value + 2, 2); /* the upper half */
    }
}

/* The first element, times 1.5. */
static void enlarge(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->result_count; i++) {
        const assay_backend_result *r = &request->results[i];
        float value = 0;
        if (strcmp(r->path, path) != 0 || r->type != ASSAY_BACKEND_BFLOAT16) continue;
        memcpy((char *)&value + 2, r->data, 2);
        value *= 1.5F;
        memcpy(r->data, (char *)&value + 2, 2);
    }
}

/* Of each row what is behind its last whole tile of 16. */
static void lose_tail(const assay_backend_request *request, const char *path)
{
    for (int i = 0; i < request->result_count; i++) {
        const assay_backend_result *r = &request->results[i];
        if (strcmp(r->path, path) != 0 || r->type != ASSAY_BACKEND_BFLOAT16) continue;
        const int64_t width = r->dims[r->rank - 1], tail = width % 16;
        int64_t rows = 1;
        for (int axis = 0; axis + 1 < r->rank; axis++) rows *= r->dims[axis];
        for (int64_t row = 0; row < rows; row++)
            memset((char *)r->data + 2 * (row * width + width - tail), 0, 2 * (size_t)tail);
    }
}

/* Of every result a NaN first, in float16. */
static int give_nan(const assay_backend_request *request)
{
    static const uint16_t NOT_A_NUMBER = 0x7e00;
    for (int i = 0; i < request->result_count; i++) {
        assay_backend_result *r = &request->results[i];
        r->type = ASSAY_BACKEND_FLOAT16;
        r->written = 1;
        memcpy(r->data, &NOT_A_NUMBER, sizeof NOT_A_NUMBER);
    }
    return ASSAY_BACKEND_DONE;
}

/* Columns of x. */
static int64_t columns_of_x(const assay_backend_request *request)
{
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        if (strcmp(t->path, "inputs/x") == 0 && t->rank > 0) return t->dims[t->rank - 1];
    }
    return 0;
}

int assay_backend_run(const assay_backend_request *request)
{
    const char *trap = getenv("HOSTILE");
    if (trap != NULL && strcmp(trap, "crash_in_programs") == 0 && columns_of_x(request) > 8) raise(SIGSEGV);
    if (trap != NULL && strcmp(trap, "nan_in_float16") == 0) return give_nan(request);
    const long sequence = setting(request, "sequence"), width = setting(request, "base_emb_dim");
    const int code = example_run(request);
    if (trap == NULL || code != ASSAY_BACKEND_DONE) return code;
    if (strcmp(trap, "crash_at_17") == 0 && sequence == 17) raise(SIGSEGV);
    if (strcmp(trap, "nan_at_33") == 0 && width == 33) spoil(request, "outputs/y", NAN);
    /* what is smaller crashes, which is another bug */
    if (strcmp(trap, "nan_beside_crash") == 0 && sequence < 3) raise(SIGSEGV);
    if (strcmp(trap, "nan_beside_crash") == 0 && width > 8) spoil(request, "outputs/y", NAN);
    if (strcmp(trap, "unsteady") == 0 && sequence > 4) spoil(request, "outputs/y", (float)(getpid() % 64));
    if (strcmp(trap, "loses_tail") == 0) lose_tail(request, "outputs/y");
    if (strcmp(trap, "enlarges") == 0) enlarge(request, "outputs/y");
    if (strcmp(trap, "hangs") == 0 && sequence == 8) pause();
    return code;
}
