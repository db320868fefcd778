/* The entry: what the backend has and what it refuses, its planted errors. */
#include "example.h"

#include <stdlib.h>
#include <string.h>

static const struct operation {
    const char *name;
    void (*run)(example *e);
    const char *first; /* an input that every case which it has has */
} OPERATIONS[] = {{"rms_norm", rms_norm_run, "inputs/x"}, {"gmm", gmm_run, "inputs/group_sizes"}};
enum { OPERATION_COUNT = sizeof OPERATIONS / sizeof *OPERATIONS };

/* ---- what it does not have ---- */

/* Whether this backend writes a result of that name: y, and gradients of whatever it was given. */
static bool makes(const assay_backend_request *request, const char *path)
{
    return strcmp(path, "outputs/y") == 0 ||
           (strncmp(path, "gradients/", 10) == 0 && tensor(request, path + 10) != NULL);
}

/* What this backend does not have, or NULL. */
static const char *refusal(const assay_backend_request *request, const struct operation *o)
{
    for (int i = 0; i < request->setting_count; i++)
        if (strncmp(request->settings[i].key, "mesh.", 5) == 0 && number(request, request->settings[i].key) > 1)
            return "a mesh";
    if (has_quantised_operands(request)) return "quant_formats";
    if (is(request, "gmm_layout", "k_grouped")) return "gmm_layout";
    if (tensor(request, o->first) == NULL) return "a case without the input that it reads first";
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        if (strcmp(t->path, "inputs/group_sizes") == 0) continue;
        if (t->type == ASSAY_BACKEND_INT32) return t->path;
        if (t->type != ASSAY_BACKEND_BFLOAT16) return "operands that are not bfloat16";
    }
    for (int i = 0; i < request->result_count; i++)
        if (request->results[i].required && !makes(request, request->results[i].path)) return request->results[i].path;
    return NULL;
}

/* ---- the call ---- */

static bool find_bug(enum bug *bug, const char *name)
{
    static const char *const BUGS[] = {
#define X(code, bug_name, what) [code] = bug_name,
        BUG_TABLE(X)
#undef X
    };
    *bug = NO_BUG;
    if (name == NULL || name[0] == '\0') return true;
    for (int i = NO_BUG + 1; i < BUG_COUNT; i++)
        if (strcmp(BUGS[i], name) == 0) *bug = (enum bug)i;
    return *bug != NO_BUG;
}

static int attempt(example *e, const struct operation *o)
{
    if (setjmp(e->memory.out_of_memory) != 0) return say(e->request, ASSAY_BACKEND_ERROR, "out of memory");
    o->run(e);
    return ASSAY_BACKEND_DONE;
}

#pragma GCC visibility push(default)

int assay_backend_run(const assay_backend_request *request)
{
    example e = {.request = request};
    const struct operation *o = NULL;
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "made for another version of the interface");
#define X(code, name, what) " " name
    if (!find_bug(&e.bug, getenv("ASSAY_EXAMPLE_BUG")))
        return say(request, ASSAY_BACKEND_ERROR,
                   "ASSAY_EXAMPLE_BUG may be%s; others are those of harness/backends/numpy/planted_bugs.py",
                   BUG_TABLE(X));
#undef X
    for (int i = 0; i < OPERATION_COUNT; i++)
        if (is(request, "op", OPERATIONS[i].name)) o = &OPERATIONS[i];
    const char *missing = o == NULL ? setting(request, "op") : refusal(request, o);
    if (missing != NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "the example does not support %s", missing);
    for (int i = 0; i < request->result_count; i++)
        request->results[i].written = makes(request, request->results[i].path);
    const int code = attempt(&e, o);
    give_back(&e.memory, 0);
    return code;
}
