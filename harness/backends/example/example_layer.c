/* The decoder layer, h = x + mla(rms_norm(x)), y = h + mlp(rms_norm(h)) or h + moe(rms_norm(h)), and stacks of it. */
#include "example.h"

#include <stdio.h>
#include <string.h>

typedef struct layer {
    char weights[64], results[32]; /* "weights/layers/3/", "layers/3/"; of a layer alone "weights/", "" */
    int64_t emb;
    bool dense;
    norm pre, post;
    float *x, *x_norm, *h, *h_norm; /* [T,D] */
    mla mla;
    mlp mlp;
    moe moe;
} layer;

/* Whether the case has layer `number`, or a single one without a number (-1). */
static bool set_up(const example *e, layer *l, int64_t number)
{
    *l = (layer){.emb = tensor(e->request, "inputs/x")->dims[2]};
    if (number >= 0) snprintf(l->results, sizeof l->results, "layers/%lld/", (long long)number);
    snprintf(l->weights, sizeof l->weights, "weights/%s", l->results);
    l->dense = tensor_in(e, l->weights, "mlp/wo/kernel") != NULL;
    return tensor_in(e, l->weights, "pre_self_attention_layer_norm/scale") != NULL;
}

static norm norm_of(example *e, const layer *l, const float *x, const char *scale)
{
    const float epsilon = (float)number(e->request, "normalization_layer_epsilon");
    return (norm){e->tokens, l->emb, l->emb, epsilon, x, whole(e, l->weights, scale)};
}

/* y [T,D] of the second half's block. */
static void block_forward(example *e, layer *l, float *y)
{
    char prefix[96];
    snprintf(prefix, sizeof prefix, "%s%s", l->weights, l->dense ? "mlp/" : "moe/");
    if (!l->dense) {
        moe_forward(e, &l->moe, prefix, l->results, l->h_norm, y);
        round_bf16(y, e->tokens * l->emb);
        return;
    }
    const int64_t hidden = tensor_in(e, prefix, "wo/kernel")->dims[0];
    l->mlp = (mlp){.bug = e->bug, .rows = e->tokens, .emb = l->emb, .hidden = hidden, .x = l->h_norm};
    l->mlp.glu = glu_of(e->request, DENSE);
    mlp_take(e, &l->mlp);
    mlp_load(e, &l->mlp, prefix, "/kernel", 0);
    mlp_forward(&l->mlp);
    memcpy(y, l->mlp.o, (size_t)(e->tokens * l->emb) * sizeof *y);
}

static void block_backward(example *e, layer *l, float *d_x, float *d_y)
{
    if (!l->dense) {
        moe_backward(e, &l->moe, d_x, d_y);
        return;
    }
    l->mlp.d_o = d_y;
    mlp_backward(e, &l->mlp, d_x);
    round_bf16(d_x, e->tokens * l->emb);
}

/* x [T,D] stays for backward; y [T,D] in bfloat16. */
static void layer_forward(example *e, layer *l, float *x, float *y)
{
    const int64_t size = e->tokens * l->emb;
    char attention_weights[96];
    l->x = x, l->x_norm = take(&e->memory, size), l->h = take(&e->memory, size), l->h_norm = take(&e->memory, size);
    l->pre = norm_of(e, l, l->x, "pre_self_attention_layer_norm/scale");
    norm_forward(l->x_norm, &l->pre);
    snprintf(attention_weights, sizeof attention_weights, "%sself_attention/", l->weights);
    mla_forward(e, &l->mla, attention_weights, l->results, l->x_norm, l->h);
    add(l->h, l->x, size);
    round_bf16(l->h, size);
    l->post = norm_of(e, l, l->h, "post_self_attention_layer_norm/scale");
    norm_forward(l->h_norm, &l->post);
    block_forward(e, l, y);
    if (e->bug != RESIDUAL_MISSING) add(y, l->h, size);
    round_bf16(y, size);
}

/* d, the gradient by the layer's output, becomes that by its input. */
static void layer_backward(example *e, layer *l, float *d)
{
    const int mark = e->memory.count;
    const int64_t size = e->tokens * l->emb;
    float *d_block = take(&e->memory, size), *d_norm = take(&e->memory, size);
    block_backward(e, l, d_block, d);
    norm_backward(d_norm, gradient(e, l->weights, "post_self_attention_layer_norm/scale", 0), d_block, &l->post);
    for (int64_t i = 0; i < size; i++) d[i] = e->bug == RESIDUAL_MISSING ? d_norm[i] : d[i] + d_norm[i];
    round_bf16(d, size);
    mla_backward(e, &l->mla, d_block, d);
    norm_backward(d_norm, gradient(e, l->weights, "pre_self_attention_layer_norm/scale", 0), d_block, &l->pre);
    add(d, d_norm, size);
    round_bf16(d, size);
    give_back(&e->memory, mark);
}

void stack_run(example *e)
{
    const assay_backend_tensor *input = tensor(e->request, "inputs/x");
    const int64_t size = count_of(input->rank, input->dims);
    const bool single = is(e->request, "op", "deepseek_layer");
    layer probe;
    const int64_t first = single ? 0 : (int64_t)number(e->request, "only_layer");
    int64_t count = single;
    while (!single && set_up(e, &probe, first + count)) count++;
    layer *layers = take(&e->memory, count * (int64_t)(sizeof(layer) / sizeof(float)));
    float *x = whole(e, "inputs/", "x"), *d = whole(e, "cotangents/", "y");
    for (int64_t i = 0; i < count; i++) {
        float *y = take(&e->memory, size);
        set_up(e, &layers[i], single ? -1 : first + i);
        layer_forward(e, &layers[i], x, y);
        x = y;
    }
    store(e, "outputs/", "", "y", true, x, size);
    if (d == NULL) return;
    for (int64_t i = count; i-- > 0;) layer_backward(e, &layers[i], d);
    store(e, "gradients/", "", "inputs/x", true, d, size);
}
