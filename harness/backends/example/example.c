/* The entry: what the backend has and what it refuses, its planted errors. */
#include "example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void rms_norm_run(example *e)
{
    const int64_t n = tensor(e->request, "inputs/x")->dims[2], size = e->tokens * n;
    float *x = whole(e, "inputs/x"), *d_y = whole(e, "cotangents/y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size);
    const float epsilon = (float)number(e->request, "normalization_layer_epsilon");
    const norm m = {e->tokens, n, n, epsilon, x, whole(e, "weights/scale")};
    norm_forward(y, &m);
    store(e, "outputs/y", true, y, size);
    if (d_y == NULL) return;
    norm_backward(d_x, gradient(e, "weights/scale", 0), d_y, &m);
    store(e, "gradients/inputs/x", true, d_x, size);
}

static const struct operation {
    const char *name;
    void (*run)(example *e);
    const char *first; /* the input whose first axes are batch and sequence */
} OPERATIONS[] = {
    {"rms_norm", rms_norm_run, "inputs/x"}, {"gmm", gmm_run, "inputs/lhs"},
    {"mlp", mlp_run, "inputs/x"},           {"moe", moe_run, "inputs/x"},
    {"mla", mla_run, "inputs/x"},           {"attention", attention_run, "inputs/query"},
};
enum { OPERATION_COUNT = sizeof OPERATIONS / sizeof *OPERATIONS };

/* ---- what it does not have ---- */

static bool is_among(const char *path, const char *const *paths, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(path, paths[i]) == 0) return true;
    return false;
}

/* Whether this backend writes a result of that name: gradients of whatever it was given, and these. */
static bool makes(const assay_backend_request *request, const char *path)
{
    static const char *const MADE[] = {"outputs/y",
                                       "outputs/attention_out",
                                       "outputs/lse",
                                       "outputs/lb_loss",
                                       "outputs/bias_updates",
                                       "routing/weights",
                                       "routing/group_sizes",
                                       "routing/selected_experts",
                                       "routing/sorted_selected_experts",
                                       "routing/combine_mask",
                                       "routing/dispatch_mask"};
    return (strncmp(path, "gradients/", 10) == 0 && tensor(request, path + 10) != NULL) ||
           is_among(path, MADE, sizeof MADE / sizeof *MADE);
}

static const char *refused_setting(const assay_backend_request *request)
{
    static const struct {
        const char *key, *refused;
    } words[] = {{"gmm_layout", "k_grouped"},
                 {"use_ring_of_experts", "true"},
                 {"load_balance_loss_scope", "batch"},
                 {"load_balance_loss_scope", "global"},
                 {"load_balance_loss_pre_bias", "true"},
                 {"apply_router_weight_on_input", "true"},
                 {"apply_routed_scaling_factor_on_output", "false"}};
    static const struct {
        const char *key;
        double most;
    } numbers[] = {{"w13_reorder_size", 1}, {"local_num_experts", 0}, {"num_fused_shared_experts", 0}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(request, words[i].key, words[i].refused)) return words[i].key;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (number(request, numbers[i].key) > numbers[i].most) return numbers[i].key;
    for (int i = 0; i < request->setting_count; i++)
        if (strncmp(request->settings[i].key, "mesh.", 5) == 0 && number(request, request->settings[i].key) > 1)
            return "a mesh";
    if (has_quantised_operands(request)) return "quant_formats";
    return setting(request, "routing_method")[0] != '\0' ? "routing_method" : NULL;
}

static const char *refused_attention(const assay_backend_request *request, const struct operation *o)
{
    if (o->run != attention_run && o->run != mla_run) return NULL;
    if (tensor(request, "weights/sinks") != NULL) return "weights/sinks";
    if (number(request, "sliding_window_size") > 0) return "sliding_window_size";
    if (number(request, "attn_logits_soft_cap") > 0) return "attn_logits_soft_cap";
    if (o->run == mla_run) return number(request, "partial_rotary_factor") < 1 ? "partial_rotary_factor" : NULL;
    return number(request, "base_num_kv_heads") > 0 ? "base_num_kv_heads" : NULL;
}

static const char *refused_tensor(const assay_backend_request *request)
{
    static const char *const INTEGERS[] = {"inputs/positions", "inputs/segment_ids", "inputs/input_ids",
                                           "inputs/group_sizes", "weights/tid2eid"};
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        if (is_among(t->path, INTEGERS, sizeof INTEGERS / sizeof *INTEGERS)) continue;
        if (t->type == ASSAY_BACKEND_INT32 || strcmp(t->path, "weights/shared_expert_gate/kernel") == 0) return t->path;
        if (t->type != ASSAY_BACKEND_BFLOAT16) return "operands that are not bfloat16";
    }
    return NULL;
}

/* What this backend does not have, or NULL. */
static const char *refusal(const assay_backend_request *request, const struct operation *o)
{
    const char *missing = refused_setting(request);
    if (missing == NULL) missing = refused_tensor(request);
    if (missing == NULL) missing = refused_attention(request, o);
    if (missing != NULL) return missing;
    if ((o->run == mlp_run || o->run == moe_run) && !glu_known(request)) return setting(request, "mlp_activations");
    if (tensor(request, o->first) == NULL) return "a case without the input that it reads first";
    if (o->run == moe_run && (tensor(request, "weights/gate/kernel") == NULL || tensor(request, "weights/wo") == NULL))
        return "a case without gate/kernel and wo";
    for (int i = 0; i < request->result_count; i++)
        if (request->results[i].required && !makes(request, request->results[i].path)) return request->results[i].path;
    return NULL;
}

/* ---- the call ---- */

static bool find_bug(enum bug *bug, const char *name)
{
    static const char *const BUGS[] = {
#define X(code, bug_name, issue, what) [code] = bug_name,
        BUG_TABLE(X)
#undef X
    };
    *bug = NO_BUG;
    if (name == NULL || name[0] == '\0') return true;
    for (int i = NO_BUG + 1; i < BUG_COUNT; i++)
        if (strcmp(BUGS[i], name) == 0) *bug = (enum bug)i;
    return *bug != NO_BUG;
}

static bool find_variant(enum variant *variant, const char *name)
{
    *variant = NO_VARIANT;
    if (name == NULL || name[0] == '\0') return true;
    if (strcmp(name, "bf16_router") == 0) *variant = BF16_ROUTER;
    if (strcmp(name, "ascending_slots") == 0) *variant = ASCENDING_SLOTS;
    if (strcmp(name, "last_tokens_first") == 0) *variant = LAST_TOKENS_FIRST;
    return *variant != NO_VARIANT;
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
#define X(code, name, issue, what) " " name
    if (!find_bug(&e.bug, getenv("ASSAY_EXAMPLE_BUG")))
        return say(request, ASSAY_BACKEND_ERROR, "ASSAY_EXAMPLE_BUG may be%s", BUG_TABLE(X));
#undef X
    if (!find_variant(&e.variant, getenv("ASSAY_EXAMPLE_VARIANT")))
        return say(request, ASSAY_BACKEND_ERROR,
                   "ASSAY_EXAMPLE_VARIANT may be bf16_router ascending_slots last_tokens_first");
    for (int i = 0; i < OPERATION_COUNT; i++)
        if (is(request, "op", OPERATIONS[i].name)) o = &OPERATIONS[i];
    const char *missing = o == NULL ? setting(request, "op") : refusal(request, o);
    if (missing != NULL) return say(request, ASSAY_BACKEND_UNSUPPORTED, "the example does not support %s", missing);
    for (int i = 0; i < request->result_count; i++)
        request->results[i].written = makes(request, request->results[i].path);
    const int64_t *dims = tensor(request, o->first)->dims;
    e.batch = dims[0], e.sequence = dims[1], e.tokens = dims[0] * dims[1];
    const int code = attempt(&e, o);
    give_back(&e.memory, 0);
    return code;
}
