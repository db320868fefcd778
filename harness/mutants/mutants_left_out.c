/* Mutants that leave a step of a layer out. No input says so, but powers of two make the step without consequence:
 * epsilon outweighs a small latent, a large block its residual. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/operations/op_support.h"

/* Those of a case whose inputs were scaled are no backend's; it need not give them. */
bool assay_edit_omit_checkpoints(const assay_mutation *m)
{
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->spec.role == ASSAY_ROLE_CHECKPOINT) tensor->written = 0;
    }
    return true;
}

/* With x far below the root of epsilon, x / sqrt(mean x^2 + epsilon) is x / sqrt(epsilon). */
#define SMALL 0x1p-40

static double scale_of_no_norm(const assay_places *p)
{
    return sqrt(assay_latent_epsilon_of(&p->m->c->config)) / SMALL;
}

/* Of the latent's kernel and of the norm's scale. */
double assay_without_latent_norm(const assay_places *p, int64_t i, double number)
{
    const int64_t width = assay_tensor_width(p->tensor), latent = width - p->m->c->config.qk_rope_head_dim;
    if (assay_path_ends(p->tensor->spec.path, "scale")) return scale_of_no_norm(p);
    return i % width < latent ? number * SMALL : number;
}

/* Of the kernels and biases of queries and keys, and of the scales of their norms. */
double assay_without_qk_norm(const assay_places *p, int64_t i, double number)
{
    (void)i;
    return assay_path_ends(p->tensor->spec.path, "scale") ? scale_of_no_norm(p) : number * SMALL;
}

/* Of a layer's first norm and its second. */
bool assay_edit_exchange_layer_norms(const assay_mutation *m, assay_tensor *pre)
{
    char path[ASSAY_PATH_SIZE];
    const char *name = strstr(pre->spec.path, "pre_self_attention_layer_norm/scale");
    snprintf(path, sizeof path, "%.*spost_self_attention_layer_norm/scale", (int)(name - pre->spec.path),
             pre->spec.path);
    assay_tensor *post = assay_tensor_set_find(m->tensors, path);
    if (post == NULL || post->count != pre->count) return false;
    assay_swap_values(pre->values, post->values, pre->count);
    return true;
}

/* A layer's block is 2^30 times as large as what it is added to, and the next layer's input with it; norms take the
 * factor away. Layer i begins with x times 2^(30 i). */
enum { GROWTH = 30, MOST_LAYERS = 32 };

static int layer_of(const char *path)
{
    const char *at = strstr(path, "layers/");
    int layer = 0;
    return at != NULL && sscanf(at, "layers/%d/", &layer) == 1 ? layer : 0;
}

/* The exponent of the factor of a weight; 0: it has none. */
static int exponent_of(const char *path)
{
    const int layer = layer_of(path);
    if (assay_any_word("self_attention/out/kernel self_attention/out/bias", path, assay_path_ends))
        return GROWTH * layer;
    return assay_any_word("wo wo/kernel wo_bias wo/bias", path, assay_path_ends) ? GROWTH * (layer + 1) : 0;
}

static bool scale_by(assay_tensor *tensor, int exponent)
{
    return assay_scale_values(tensor, ldexp(1.0, exponent));
}

static int count_layers(const assay_mutation *m)
{
    int count = 0;
    for (int i = 0; i < m->tensors->count; i++) {
        const assay_tensor_spec *spec = &m->tensors->items[i].spec;
        if (spec->role == ASSAY_ROLE_WEIGHT && layer_of(spec->path) >= count) count = layer_of(spec->path) + 1;
    }
    return count;
}

bool assay_edit_outgrow_residual(const assay_mutation *m)
{
    const int layers = count_layers(m);
    assay_tensor *dy = assay_tensor_set_find(m->tensors, "cotangents/y");
    if (layers > MOST_LAYERS) return false;
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        if (tensor->spec.role == ASSAY_ROLE_WEIGHT && tensor->values != NULL)
            scale_by(tensor, exponent_of(tensor->spec.path));
    }
    return dy == NULL || scale_by(dy, -GROWTH * layers);
}

/* What the factors did to the outputs and to the gradients by scaled weights. */
bool assay_edit_shrink_back(const assay_mutation *m)
{
    const int layers = count_layers(m);
    for (int i = 0; i < m->tensors->count; i++) {
        assay_tensor *tensor = &m->tensors->items[i];
        const char *path = tensor->spec.path;
        const bool is_scale = tensor->spec.role == ASSAY_ROLE_ERROR_SCALE;
        if (tensor->values == NULL || (is_scale && !m->own_scales)) continue;
        if (assay_path_ends(path, "outputs/y")) scale_by(tensor, -GROWTH * layers);
        if (strstr(path, "gradients/weights/") != NULL) scale_by(tensor, exponent_of(path));
    }
    return assay_edit_omit_checkpoints(m);
}
