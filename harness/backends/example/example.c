/* The entry: what the backend has, its single operations, its planted errors. */
#include "example.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- operations ---- */

static void run_rms_norm(example *e)
{
    const assay_backend_tensor *input = tensor(e->request, "inputs/x");
    const int64_t n = input->dims[2], size = e->tokens * n;
    float *x = whole(e, "inputs/", "x"), *d_y = whole(e, "cotangents/", "y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size);
    const float epsilon = (float)number(e->request, "normalization_layer_epsilon");
    const norm m = {e->tokens, n, n, epsilon, x, whole(e, "weights/", "scale")};
    norm_forward(y, &m);
    store(e, "outputs/", "", "y", true, y, size);
    if (d_y == NULL) return;
    norm_backward(d_x, gradient(e, "weights/", "scale", 0), d_y, &m);
    store(e, "gradients/", "", "inputs/x", true, d_x, size);
}

static void run_mlp(example *e)
{
    const int64_t emb = tensor(e->request, "inputs/x")->dims[2], size = e->tokens * emb;
    float *d_x = take(&e->memory, size);
    mlp m = {.bug = e->bug, .rows = e->tokens, .emb = emb};
    m.hidden = tensor(e->request, "weights/wo/kernel")->dims[0];
    m.x = whole(e, "inputs/", "x"), m.d_o = whole(e, "cotangents/", "y");
    m.glu = glu_of(e->request, DENSE);
    mlp_take(e, &m);
    mlp_load(e, &m, "weights/", "/kernel", 0);
    mlp_forward(&m);
    store(e, "outputs/", "", "y", true, m.o, size);
    if (m.d_o == NULL) return;
    mlp_backward(e, &m, d_x);
    store(e, "gradients/", "", "inputs/x", true, d_x, size);
}

static void run_yarn_rope(example *e)
{
    const assay_backend_tensor *input = tensor(e->request, "inputs/x");
    const int64_t heads = input->dims[2], dim = input->dims[3], rows = e->tokens * heads;
    float *x = whole(e, "inputs/", "x"), *d_y = whole(e, "cotangents/", "y"), *out = take(&e->memory, rows * dim);
    rope r;
    rope_set_up(e, &r, dim);
    for (int64_t i = 0; i < rows; i++) rope_rotate(out + i * dim, x + i * dim, &r, i / heads, false);
    store(e, "outputs/", "", "y", true, out, rows * dim);
    for (int64_t i = 0; i < rows && d_y != NULL; i++) rope_rotate(out + i * dim, d_y + i * dim, &r, i / heads, true);
    if (d_y != NULL) store(e, "gradients/", "", "inputs/x", true, out, rows * dim);
}

static void run_attention(example *e)
{
    const int64_t *q = tensor(e->request, "inputs/query")->dims, *v = tensor(e->request, "inputs/value")->dims;
    const assay_backend_tensor *segment_ids = tensor(e->request, "inputs/segment_ids");
    const int64_t rows = e->tokens * q[2], qk_size = rows * q[3], v_size = rows * v[3];
    attention a = {.batch = e->batch, .sequence = e->sequence, .heads = q[2], .qk_dim = q[3], .v_dim = v[3]};
    a.mask_padding = is(e->request, "mask_padding", "true");
    a.segment_ids = segment_ids == NULL ? NULL : segment_ids->data;
    a.query = whole(e, "inputs/", "query"), a.key = whole(e, "inputs/", "key"), a.value = whole(e, "inputs/", "value");
    a.out = take(&e->memory, v_size), a.lse = take(&e->memory, rows);
    attention_forward(e, &a);
    store(e, "outputs/", "", "attention_out", true, a.out, v_size);
    store(e, "outputs/", "", "lse", false, a.lse, rows);
    float *d_out = whole(e, "cotangents/", "attention_out"), *d_lse = whole(e, "cotangents/", "lse");
    float *d_query = take(&e->memory, qk_size), *d_key = take(&e->memory, qk_size), *d_value = take(&e->memory, v_size);
    attention_backward(e, &a, d_query, d_key, d_value, d_out != NULL ? d_out : take(&e->memory, v_size), d_lse);
    store(e, "gradients/", "", "inputs/query", true, d_query, qk_size);
    store(e, "gradients/", "", "inputs/key", true, d_key, qk_size);
    store(e, "gradients/", "", "inputs/value", true, d_value, v_size);
}

static void run_mla(example *e)
{
    const int64_t size = e->tokens * tensor(e->request, "inputs/x")->dims[2];
    float *x = whole(e, "inputs/", "x"), *d_y = whole(e, "cotangents/", "y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size);
    mla m;
    mla_forward(e, &m, "weights/", "", x, y);
    store(e, "outputs/", "", "y", true, y, size);
    if (d_y == NULL) return;
    mla_backward(e, &m, d_x, d_y);
    store(e, "gradients/", "", "inputs/x", true, d_x, size);
}

static void run_moe(example *e)
{
    const int64_t size = e->tokens * tensor(e->request, "inputs/x")->dims[2];
    float *x = whole(e, "inputs/", "x"), *d_y = whole(e, "cotangents/", "y"), *y = take(&e->memory, size),
          *d_x = take(&e->memory, size);
    moe m;
    moe_forward(e, &m, "weights/", "", x, y);
    store(e, "outputs/", "", "y", true, y, size);
    moe_backward(e, &m, d_x, d_y != NULL ? d_y : take(&e->memory, size));
    store(e, "gradients/", "", "inputs/x", true, d_x, size);
}

static const struct operation {
    const char *name;
    void (*run)(example *e);
    bool routes, gates; /* has a MoE block, has a gated MLP */
    const char *first;  /* the input whose first axes are batch and sequence */
} OPERATIONS[] = {
    {"rms_norm", run_rms_norm, false, false, "inputs/x"},
    {"mlp", run_mlp, false, true, "inputs/x"},
    {"yarn_rope", run_yarn_rope, false, false, "inputs/x"},
    {"attention", run_attention, false, false, "inputs/query"},
    {"mla", run_mla, false, false, "inputs/x"},
    {"moe", run_moe, true, true, "inputs/x"},
    {"routing", routing_run, true, false, "inputs/x"},
    {"permute", permute_run, false, false, "inputs/x"},
    {"gmm", gmm_run, false, false, "inputs/lhs"},
    {"unpermute", unpermute_run, false, false, "inputs/sorted"},
    {"deepseek_layer", stack_run, true, true, "inputs/x"},
    {"deepseek_stack", stack_run, true, true, "inputs/x"},
    {"quantize", quantize_run, false, false, "inputs/x"},
    {"dequantize", dequantize_run, false, false, "inputs/codes"},
};
enum { OPERATION_COUNT = sizeof OPERATIONS / sizeof *OPERATIONS };

/* ---- what it does not have ---- */

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
                                       "routing/dispatch_mask",
                                       "outputs/weights",
                                       "outputs/sorted_inputs",
                                       "outputs/sorted_selected_experts",
                                       "outputs/group_sizes",
                                       "outputs/codes",
                                       "outputs/scale",
                                       "outputs/tensor_scale"};
    const char *folder_end = strchr(path, '/'), *name = strrchr(path, '/');
    bool made = strncmp(path, "gradients/", 10) == 0 && tensor(request, path + 10) != NULL;
    for (size_t i = 0; i < sizeof MADE / sizeof *MADE && name != NULL; i++)
        made |= strncmp(path, MADE[i], (size_t)(folder_end + 1 - path)) == 0 && strcmp(name, strchr(MADE[i], '/')) == 0;
    return made;
}

/* Whether a slot of a sort has no expert. */
static bool slots_of_none(const assay_backend_request *request)
{
    bool none = false;
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        int64_t count = 1;
        if (!ends_with(t->path, "selected_experts")) continue;
        for (int axis = 0; axis < t->rank; axis++) count *= t->dims[axis];
        for (int64_t n = 0; n < count; n++) none |= ((const int32_t *)t->data)[n] < 0;
    }
    return none;
}

/* What blocks with a router may have, and this one has not. */
static const char *refused_of_blocks(const assay_backend_request *request)
{
    static const struct {
        const char *key, *refused;
    } words[] = {{"load_balance_loss_scope", "batch"},
                 {"load_balance_loss_scope", "global"},
                 {"load_balance_loss_pre_bias", "true"},
                 {"apply_router_weight_on_input", "true"},
                 {"apply_routed_scaling_factor_on_output", "false"},
                 {"weights_on_shards", "true"}};
    static const struct {
        const char *key;
        double most;
    } numbers[] = {{"ragged_buffer_factor", 0},
                   {"w13_reorder_size", 1},
                   {"local_num_experts", 0},
                   {"num_fused_shared_experts", 0}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is(request, words[i].key, words[i].refused)) return words[i].key;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (number(request, numbers[i].key) > numbers[i].most) return numbers[i].key;
    if (tensor(request, "weights/shared_expert_gate/kernel") != NULL) return "weights/shared_expert_gate";
    return setting(request, "routing_method")[0] != '\0' ? "routing_method" : NULL;
}

static const char *refused_setting(const assay_backend_request *request, const struct operation *o)
{
    const char *of_blocks = o->routes ? refused_of_blocks(request) : NULL;
    if (o->gates && !glu_known(request)) return setting(request, "mlp_activations");
    if (of_blocks != NULL) return of_blocks;
    if (is(request, "gmm_layout", "k_grouped")) return "gmm_layout";
    if (slots_of_none(request)) return "slots without an expert";
    if (o->run != run_attention) return NULL;
    if (tensor(request, "weights/sinks") != NULL) return "weights/sinks";
    if (number(request, "base_num_kv_heads") > 0) return "base_num_kv_heads";
    return number(request, "sliding_window_size") > 0 ? "sliding_window_size" : NULL;
}

/* The input whose first axes are batch and sequence; a router may be given logits for it. */
static const assay_backend_tensor *first_input(const assay_backend_request *request, const struct operation *o)
{
    const assay_backend_tensor *t = tensor(request, o->first);
    return t == NULL && is(request, "op", "routing") ? tensor(request, "inputs/logits") : t;
}

/* What this backend does not have, or NULL. */
static const char *refusal(const assay_backend_request *request, const struct operation *o)
{
    static const char *const INTEGERS[] = {"inputs/positions",        "inputs/segment_ids",
                                           "inputs/input_ids",        "weights/tid2eid",
                                           "inputs/selected_experts", "inputs/sorted_selected_experts",
                                           "inputs/group_sizes"};
    const char *missing = refused_setting(request, o);
    if (missing != NULL) return missing;
    if (has_quantised_operands(request)) return "quant_formats";
    if (o->run == quantize_run || o->run == dequantize_run) /* of any type */
        return quant_format_known(request) ? NULL : setting(request, "quant_format");
    if (first_input(request, o) == NULL) return "a case without the input that it reads first";
    if (is(request, "op", "moe") &&
        (tensor(request, "weights/gate/kernel") == NULL || tensor(request, "weights/wo") == NULL))
        return "a case without gate/kernel and wo";
    for (int i = 0; i < request->tensor_count; i++) {
        const assay_backend_tensor *t = &request->tensors[i];
        bool integers = false;
        for (size_t n = 0; n < sizeof INTEGERS / sizeof *INTEGERS; n++) integers |= strcmp(t->path, INTEGERS[n]) == 0;
        if (t->type == ASSAY_BACKEND_INT32 && (!integers || (o->routes && ends_with(t->path, "/selected_experts"))))
            return t->path;
        if (t->type != ASSAY_BACKEND_BFLOAT16 && !integers) return "operands that are not bfloat16";
    }
    for (int i = 0; i < request->result_count; i++) {
        const assay_backend_result *r = &request->results[i];
        const bool sharded =
            (ends_with(r->path, "/lb_loss") && r->rank > 0) ||
            (ends_with(r->path, "/bias_updates") && strncmp(r->path, "outputs/", 8) == 0 && r->rank > 1);
        if (sharded) return "results per shard";
        if (r->required && !makes(request, r->path)) return r->path;
    }
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
    const int64_t *dims = first_input(request, o)->dims;
    e.batch = dims[0], e.sequence = dims[1], e.tokens = dims[0] * dims[1];
    const int code = attempt(&e, o);
    give_back(&e.memory, 0);
    return code;
}
