/* A backend of OpenCL C kernels: the template for a kernel author with a GPU. docs/your-kernel.md builds, runs and copies it. */
#include <stdlib.h>
#include <string.h>

#include "call.h"

static const struct operation {
    const char *name;
    void (*run)(call *c);
    bool routes, gates; /* has a router, has a gated MLP */
} OPERATIONS[] = {
    {"rms_norm", run_rms_norm, false, false},
    {"gmm", run_gmm, false, false},
    {"permute", run_permute, false, false},
    {"unpermute", run_unpermute, false, false},
    {"routing", run_routing, true, false},
    {"mlp", run_mlp, false, true},
    {"moe", run_moe, true, true},
    {"attention", run_attention, false, false},
};

/* A setting that would change the numbers, and that this backend has not; or NULL. */
static const char *refused(const assay_backend_request *request, const struct operation *o)
{
    static const struct {
        const char *key;
        double most;
    } NUMBERS[] = {{"mesh.data", 1},
                   {"mesh.fsdp", 1},
                   {"mesh.expert", 1},
                   {"mesh.tensor", 1},
                   {"mesh.mlp_tensor", 1},
                   {"mesh.fsdp_transpose", 1},
                   {"w13_reorder_size", 1},
                   {"local_num_experts", 0},
                   {"num_fused_shared_experts", 0},
                   {"num_redundant_experts", 0}};
    static const char *const WORDS[][2] = {{"routing_method", ""},
                                           {"apply_router_weight_on_input", "false"},
                                           {"apply_routed_scaling_factor_on_output", "true"},
                                           {"use_random_routing", "false"}};
    for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++)
        if (number(request, NUMBERS[i].key) > NUMBERS[i].most) return NUMBERS[i].key;
    if (has_quantised_operands(request)) return "quant_formats";
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS && o->routes; i++)
        if (!is(request, WORDS[i][0], WORDS[i][1])) return WORDS[i][0];
    if (o->routes && o->gates && is(request, "sparse_matmul", "false") && number(request, "capacity_factor") > 0)
        return "capacity_factor";
    return o->gates ? mlp_refused(request) : NULL;
}

/* float32 holds the numbers of every smaller type; of float64 nothing is here. */
static const char *choose_storage(call *c)
{
    const char *dtype = setting(c->request, "dtype"), *wanted = getenv("ASSAY_OPENCL_STORAGE");
    const bool in_bfloat16 = strcmp(dtype, "bfloat16") == 0;
    if (strcmp(dtype, "float64") == 0) return "float64";
    c->d.storage = in_bfloat16 ? ASSAY_BACKEND_BFLOAT16 : ASSAY_BACKEND_FLOAT32;
    if (wanted == NULL || wanted[0] == '\0') return NULL;
    if (strcmp(wanted, "float32") == 0) c->d.storage = ASSAY_BACKEND_FLOAT32;
    return strcmp(wanted, "float32") == 0 || (in_bfloat16 && strcmp(wanted, "bfloat16") == 0) ? NULL
                                                                                              : "ASSAY_OPENCL_STORAGE";
}

/* What the case has beyond what was read and written: it is another case than this backend computes. */
static int unsupported_rest(const call *c)
{
    for (int i = 0; i < c->request->tensor_count; i++)
        if (!c->used[i]) return say(c->request, ASSAY_BACKEND_UNSUPPORTED, "%s", c->request->tensors[i].path);
    for (int i = 0; i < c->request->result_count; i++)
        if (c->request->results[i].required && !c->request->results[i].written)
            return say(c->request, ASSAY_BACKEND_UNSUPPORTED, "%s", c->request->results[i].path);
    return ASSAY_BACKEND_DONE;
}

static int run_on_device(call *c, const struct operation *o)
{
    if (setjmp(c->d.failed) != 0) return c->d.code;
    for (int i = 0; i < c->request->result_count; i++) c->request->results[i].written = 0; /* until `give` */
    device_open(&c->d);
    o->run(c);
    return unsupported_rest(c);
}

int assay_backend_run(const assay_backend_request *request)
{
    static const int COUNT = sizeof OPERATIONS / sizeof *OPERATIONS;
    const struct operation *o = NULL;
    for (int i = 0; i < COUNT; i++)
        if (is(request, "op", OPERATIONS[i].name)) o = &OPERATIONS[i];
    if (request->version != ASSAY_BACKEND_VERSION)
        return say(request, ASSAY_BACKEND_ERROR, "version %d of the request", request->version);
    if (o == NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "op %s", setting(request, "op"));
    if (request->tensor_count > MOST_TENSORS) return say(request, ASSAY_BACKEND_UNSUPPORTED, "so many tensors");
    call *c = calloc(1, sizeof *c);
    if (c == NULL) return say(request, ASSAY_BACKEND_ERROR, "no memory");
    c->request = request, c->d.message = request->message, c->d.message_size = request->message_size;
    const char *reason = rare_setting(request) != NULL ? rare_setting(request) : refused(request, o);
    if (reason == NULL) reason = choose_storage(c);
    const int code = reason == NULL ? run_on_device(c, o) : say(request, ASSAY_BACKEND_UNSUPPORTED, "%s", reason);
    device_close(&c->d);
    free(c);
    return code;
}
