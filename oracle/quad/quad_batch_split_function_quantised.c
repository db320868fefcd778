/* The functions of the batch-split module by a training recipe, shard after shard. Gradients are what kernels compute and no
 * derivatives, so they are written out. */
#include <stdio.h>
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"
#include "oracle/quad/quad_recipe.h"

/* The gradient of the result `name`, as a _bwd or a case of the forward function is given it; NULL: none is. */
static const quad *cotangent_of(const quad_call *c, const quad_tensors *in, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, c->view->backward ? "inputs/%s_grad" : "cotangents/%s", name);
    const quad_tensor *tensor = quad_tensors_find(in, path);
    return tensor == NULL ? NULL : tensor->values;
}

/* Room for the gradient of an argument of the forward function, zero. */
static assay_status add_gradient(quad_call *c, quad_tensors *out, const char *folder, const char *name,
                                 const assay_shape *shape, quad **values)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, c->view->backward ? "outputs/%s%s_grad" : "gradients/%s/%s",
             c->view->backward ? "" : folder, name);
    const assay_status status = quad_tensors_add(c->ctx, out, path, shape, values);
    for (int64_t i = 0; status == ASSAY_OK && i < assay_shape_count(shape); i++) (*values)[i] = 0;
    return status;
}

/* --- the sum over shards --- */

static int64_t peer_of(const quad_call *c, int64_t shard, int64_t place)
{
    return shard / c->s.expert_shards * c->s.expert_shards + place;
}

static assay_status psum_scatter(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    const int64_t parts = c->s.expert_shards, count = c->s.tokens * c->mla->emb_dim;
    const quad *x = quad_given(c, "inputs/x"), *dy = cotangent_of(c, in, "out");
    const assay_shape shape = quad_tensors_find(&c->in, "inputs/x")->shape;
    quad *y = c->out.items[0].values, *numbers = NULL, *dx = NULL;
    for (int64_t i = 0; i < c->s.shards * count; i++) {
        const int64_t shard = i / count;
        y[i] = 0;
        for (int64_t place = 0; place < parts; place++)
            y[i] += x[(peer_of(c, shard, place) * parts + shard % parts) * count + i % count];
    }
    if (dy == NULL) return ASSAY_OK;
    TRY(quad_alloc(c->ctx, c->s.shards * count, &numbers));
    TRY(add_gradient(c, out, "inputs", "x", &shape, &dx));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(quad_quantise_gradient(c->ctx, &c->config->recipe, c->s.tokens, c->mla->emb_dim, dy + shard * count,
                                   numbers + shard * count));
    }
    for (int64_t i = 0; i < c->s.shards * parts * count; i++) {
        const int64_t shard = i / (parts * count), place = i / count % parts;
        dx[i] = numbers[peer_of(c, shard, place) * count + i % count];
    }
cleanup:
    free(numbers);
    return status;
}

/* --- grouped products --- */

/* x [R,k] of each shard times its experts' kernels side by side, each [k,n]; what is left of each is in the same order. */
typedef struct product {
    const char *rows;
    const char *kernels[2], *results[2];
    int64_t first, count; /* of kernels: those that are one product */
} product;

/* [rows,n] of one of several matrices side by side, and back. */
static void part_of(quad *part, const quad *joined, int64_t rows, int64_t n, int64_t at, int64_t count)
{
    for (int64_t i = 0; i < rows * n; i++) part[i] = joined[(i / n * count + at) * n + i % n];
}

static void join(quad *joined, const quad *part, int64_t rows, int64_t n, int64_t at, int64_t count)
{
    for (int64_t i = 0; i < rows * n; i++) joined[(i / n * count + at) * n + i % n] = part[i];
}

/* One shard's as the tensors of op gmm -> its results. */
static assay_status shard_product(quad_call *c, const quad_tensors *in, const product *p, int64_t shard,
                                  quad_tensors *of_gmm)
{
    assay_status status;
    const int64_t k = c->mla->emb_dim, n = c->config->stack.moe.moe_mlp_dim, groups = c->s.local_experts;
    const assay_gmm_config config = {.layout = ASSAY_GMM_RAGGED,
                                     .dims = {.m = c->s.copies, .k = k, .n = p->count * n, .groups = groups}};
    const assay_shape sizes = assay_shape_of(1, groups), of_x = assay_shape_of(2, c->s.copies, k);
    const assay_shape of_y = assay_shape_of(2, c->s.copies, p->count * n);
    const assay_shape of_w = assay_shape_of(3, groups, k, p->count * n);
    char path[ASSAY_PATH_SIZE];
    quad *x = NULL, *w = NULL, *dy = NULL;
    quad_tensors given = {0};
    TRY(quad_tensors_copy_i32(c->ctx, &given, "inputs/group_sizes", &sizes,
                              quad_given_indices(c, "inputs/group_sizes") + shard * groups));
    TRY(quad_tensors_add(c->ctx, &given, "inputs/lhs", &of_x, &x));
    TRY(quad_tensors_add(c->ctx, &given, "weights/rhs", &of_w, &w));
    TRY(quad_tensors_add(c->ctx, &given, "cotangents/y", &of_y, &dy));
    snprintf(path, sizeof path, "inputs/%s", p->rows);
    memcpy(x, quad_in_shard(c, path, shard), (size_t)(c->s.copies * k) * sizeof *x);
    for (int64_t i = 0; i < p->count; i++) {
        const quad *of = cotangent_of(c, in, p->results[p->first + i]);
        snprintf(path, sizeof path, "weights/%s", p->kernels[p->first + i]);
        join(w, quad_in_shard(c, path, shard), groups * k, n, i, p->count);
        join(dy, of + shard * c->s.copies * n, c->s.copies, n, i, p->count);
    }
    TRY(quad_quantised_gmm(c->ctx, &config, &c->config->recipe, &given, of_gmm));
cleanup:
    quad_tensors_free(&given);
    return status;
}

/* What one product gives, added to `dx` of all shards and `dw` of each of its kernels. */
static assay_status add_product(quad_call *c, const quad_tensors *in, const product *p, quad *dx, quad **dw)
{
    assay_status status = ASSAY_OK;
    const int64_t k = c->mla->emb_dim, n = c->config->stack.moe.moe_mlp_dim, kernel = c->s.local_experts * k * n;
    quad *part = NULL;
    quad_tensors of_gmm = {0};
    TRY(quad_alloc(c->ctx, kernel, &part));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int64_t at = c->view->backward ? shard : shard % c->s.expert_shards; /* of forward the sum over shards */
        TRY(shard_product(c, in, p, shard, &of_gmm));
        const quad *y = quad_tensors_find(&of_gmm, "outputs/y")->values;
        const quad *dlhs = quad_tensors_find(&of_gmm, "gradients/inputs/lhs")->values;
        const quad *drhs = quad_tensors_find(&of_gmm, "gradients/weights/rhs")->values;
        for (int64_t i = 0; i < c->s.copies * k; i++) dx[shard * c->s.copies * k + i] += dlhs[i];
        for (int64_t i = 0; i < p->count; i++) {
            char path[ASSAY_PATH_SIZE];
            snprintf(path, sizeof path, "outputs/%s", p->results[p->first + i]);
            part_of(quad_out_shard(c, path, shard), y, c->s.copies, n, i, p->count);
            part_of(part, drhs, c->s.local_experts * k, n, i, p->count);
            for (int64_t e = 0; e < kernel; e++) dw[p->first + i][at * kernel + e] += part[e];
        }
        quad_tensors_free(&of_gmm);
        of_gmm = (quad_tensors){0};
    }
cleanup:
    quad_tensors_free(&of_gmm);
    free(part);
    return status;
}

static assay_status products_of(quad_call *c, const quad_tensors *in, quad_tensors *out, const product *all)
{
    assay_status status = ASSAY_OK;
    const int64_t k = c->mla->emb_dim, n = c->config->stack.moe.moe_mlp_dim, local = c->s.local_experts;
    const assay_shape of_w = c->view->backward ? assay_shape_of(4, c->s.shards, local, k, n)
                                               : assay_shape_of(3, c->s.expert_shards * local, k, n);
    const assay_shape of_x = assay_shape_of(3, c->s.shards, c->s.copies, c->mla->emb_dim);
    const bool merged = c->config->stack.merge_gating_gmm;
    quad *dx = NULL, *dw[2] = {NULL, NULL};
    TRY(add_gradient(c, out, "inputs", all->rows, &of_x, &dx));
    for (int64_t i = 0; i < all->count; i++) TRY(add_gradient(c, out, "weights", all->kernels[i], &of_w, &dw[i]));
    product one = *all;
    if (!merged) one.count = 1;
    for (; one.first < all->count; one.first += one.count) TRY(add_product(c, in, &one, dx, dw));
cleanup:
    return status;
}

/* --- from gate and up on: what is quantised is their h, weighed --- */

/* What one shard has, and its results. */
typedef struct linear {
    const quad *a, *b, *weights;
    quad *hidden, *da, *db, *d_weights;
} linear;

static quad gated(quad a)
{
    return a * quad_sigmoid(a);
}

static quad slope_of_gated(quad a)
{
    return quad_sigmoid(a) * (1 + a * (1 - quad_sigmoid(a)));
}

/* d_hidden [R,H]: the gradient of h weighed. */
static void linear_gradients(const linear *l, const quad *d_hidden, int64_t count, int64_t width)
{
    for (int64_t i = 0; i < count; i++) {
        const int64_t row = i / width;
        const quad dh = d_hidden[i] * l->weights[row];
        l->da[i] = dh * l->b[i] * slope_of_gated(l->a[i]);
        l->db[i] = dh * gated(l->a[i]);
        l->d_weights[row] += d_hidden[i] * gated(l->a[i]) * l->b[i];
    }
}

/* dwo [E/P,H,D] is added to. */
static assay_status shard_linear(quad_call *c, const linear *l, const quad *dy, int64_t shard, quad *dwo)
{
    assay_status status;
    const int64_t copies = c->s.copies, width = c->config->stack.moe.moe_mlp_dim, dim = c->mla->emb_dim;
    const int64_t groups = c->s.local_experts, kernel = groups * width * dim;
    const int32_t *sizes = quad_given_indices(c, "inputs/group_sizes") + shard * groups;
    quad_recipe_layer layer = {.recipe = &c->config->recipe,
                               .rows = copies,
                               .k = width,
                               .n = dim,
                               .groups = groups,
                               .counts_all = true,
                               .x = l->hidden,
                               .w = quad_in_shard(c, "weights/wo", shard),
                               .dy = dy};
    void *group = NULL;
    quad *d_hidden = NULL, *part = NULL;
    TRY(assay_alloc(c->ctx, "groups of rows", copies, sizeof *layer.group, &group));
    TRY(quad_alloc(c->ctx, copies * width, &d_hidden));
    TRY(quad_alloc(c->ctx, kernel, &part));
    for (int64_t row = 0, g = 0, end = sizes[0]; row < copies; row++) {
        while (g < groups && row == end) end += ++g < groups ? sizes[g] : 0;
        ((int64_t *)group)[row] = g < groups ? g : -1;
    }
    layer.group = group;
    for (int64_t i = 0; i < copies * width; i++) l->hidden[i] = gated(l->a[i]) * l->b[i] * l->weights[i / width];
    TRY(quad_recipe_take(c->ctx, &layer));
    TRY(quad_recipe_take_back(c->ctx, &layer));
    quad_recipe_forward(&layer, quad_out_shard(c, "outputs/layer_wo", shard));
    quad_recipe_backward(&layer, d_hidden, part);
    linear_gradients(l, d_hidden, copies * width, width);
    for (int64_t i = 0; i < kernel; i++) dwo[i] += part[i];
cleanup:
    quad_recipe_free(&layer);
    free(group);
    free(d_hidden);
    free(part);
    return status;
}

static assay_status compute_linear(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status;
    const int64_t copies = c->s.copies, width = c->config->stack.moe.moe_mlp_dim, dim = c->mla->emb_dim;
    const int64_t kernel = c->s.local_experts * width * dim;
    const assay_shape of_h = assay_shape_of(3, c->s.shards, copies, width),
                      of_rows = assay_shape_of(2, c->s.shards, copies);
    const assay_shape of_wo = c->view->backward
                                  ? assay_shape_of(4, c->s.shards, c->s.local_experts, width, dim)
                                  : assay_shape_of(3, c->s.expert_shards * c->s.local_experts, width, dim);
    const quad *dy = cotangent_of(c, in, "layer_wo");
    quad *hidden = NULL, *da = NULL, *db = NULL, *d_weights = NULL, *dwo = NULL;
    TRY(quad_tensors_add(c->ctx, out, "checkpoints/intermediate_layer", &of_h, &hidden));
    TRY(add_gradient(c, out, "inputs", "layer_w0", &of_h, &da));
    TRY(add_gradient(c, out, "inputs", "layer_w1", &of_h, &db));
    TRY(add_gradient(c, out, "inputs", "weights", &of_rows, &d_weights));
    TRY(add_gradient(c, out, "weights", "wo", &of_wo, &dwo));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int64_t at = shard * copies * width, of = c->view->backward ? shard : shard % c->s.expert_shards;
        const linear l = {.a = quad_in_shard(c, "inputs/layer_w0", shard),
                          .b = quad_in_shard(c, "inputs/layer_w1", shard),
                          .weights = quad_in_shard(c, "inputs/weights", shard),
                          .hidden = hidden + at,
                          .da = da + at,
                          .db = db + at,
                          .d_weights = d_weights + shard * copies};
        TRY(shard_linear(c, &l, dy + shard * copies * dim, shard, dwo + of * kernel));
    }
cleanup:
    return status;
}

/* --- the shared expert: a gated MLP of each shard --- */

static assay_status shared_expert(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    enum { WEIGHTS = 3, MADE = 3 };
    static const char *const weights[WEIGHTS] = {"shared_w0", "shared_w1", "shared_wo"};
    static const char *const made[MADE] = {"shared_intermediate", "shared_mlpwi_0_gradient", "shared_mlpwi_1_gradient"};
    static const int places[WEIGHTS] = {ASSAY_MLP_WI_0, ASSAY_MLP_WI_1, ASSAY_MLP_WO};
    assay_status status = ASSAY_OK;
    const int64_t rows = c->s.tokens, dim = c->mla->emb_dim, width = c->config->stack.moe.shared_mlp_dim;
    const assay_gated_mlp_config config = {.rows = rows,
                                           .emb_dim = dim,
                                           .mlp_dim = width,
                                           .activation = {ASSAY_SILU, ASSAY_LINEAR},
                                           .recipe = c->config->recipe};
    const assay_shape of_x = quad_tensors_find(&c->in, "inputs/inputs")->shape;
    const assay_shape of_h = assay_shape_of(4, of_x.dims[0], of_x.dims[1], of_x.dims[2], width);
    const quad *dy = cotangent_of(c, in, "y");
    quad *dx = NULL, *dw[WEIGHTS], *shown[MADE];
    quad_recipe_mlp m = {0};
    void *group = NULL;
    TRY(add_gradient(c, out, "inputs", "inputs", &of_x, &dx));
    for (int i = 0; i < WEIGHTS; i++) {
        const int64_t k = i < 2 ? dim : width, n = i < 2 ? width : dim;
        const assay_shape own = assay_shape_of(3, c->s.shards, k, n), whole = assay_shape_of(2, k, n);
        TRY(add_gradient(c, out, "weights", weights[i], c->view->backward ? &own : &whole, &dw[i]));
    }
    for (int i = 0; i < MADE; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "checkpoints/%s", made[i]);
        TRY(quad_tensors_add(c->ctx, out, path, &of_h, &shown[i]));
    }
    TRY(assay_alloc(c->ctx, "groups of rows", rows, sizeof *m.group, &group));
    memset(group, 0, (size_t)rows * sizeof *m.group);
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        m = (quad_recipe_mlp){.config = &config, .rows = rows, .groups = 1, .group = group};
        m.x = quad_in_shard(c, "inputs/inputs", shard);
        m.dy = dy + shard * rows * dim;
        for (int i = 0; i < WEIGHTS; i++) {
            char path[ASSAY_PATH_SIZE];
            snprintf(path, sizeof path, "weights/%s", weights[i]);
            m.w[places[i]] = quad_in_shard(c, path, shard);
        }
        TRY(quad_recipe_mlp_run(c->ctx, &m));
        const quad *const values[MADE] = {m.h, m.gradient[0], m.gradient[1]};
        memcpy(quad_out_shard(c, "outputs/y", shard), m.y, (size_t)(rows * dim) * sizeof *m.y);
        memcpy(dx + shard * rows * dim, m.dx, (size_t)(rows * dim) * sizeof *m.dx);
        for (int i = 0; i < MADE; i++)
            memcpy(shown[i] + shard * rows * width, values[i], (size_t)(rows * width) * sizeof *values[i]);
        for (int i = 0; i < WEIGHTS; i++) {
            quad *to = dw[i] + (c->view->backward ? shard * dim * width : 0); /* of forward the sum over shards */
            for (int64_t k = 0; k < dim * width; k++) to[k] += m.dw[places[i]][k];
        }
        quad_recipe_mlp_free(&m);
        m = (quad_recipe_mlp){0};
    }
cleanup:
    quad_recipe_mlp_free(&m);
    free(group);
    return status;
}

/* --- choosing: the gradient of the logits is quantised --- */

/* d_logits [T,E] of a shard from those of its weights [T,K], which are the chosen scores over their sum. */
static void logits_gradients(const quad_call *c, const quad *logits, const int32_t *selected,
                             const quad *d_weights, quad *d_logits)
{
    const int64_t experts = c->routing->num_experts, chosen = c->routing->num_experts_per_tok;
    for (int64_t i = 0; i < c->s.tokens * experts; i++) d_logits[i] = 0;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        quad sum = 0, mean = 0;
        for (int64_t k = 0; k < chosen; k++) {
            const quad score = quad_sigmoid(logits[t * experts + selected[t * chosen + k]]);
            sum += score;
            mean += score * d_weights[t * chosen + k];
        }
        for (int64_t k = 0; k < chosen; k++) {
            const int64_t at = t * experts + selected[t * chosen + k];
            const quad score = quad_sigmoid(logits[at]), slope = score * (1 - score);
            d_logits[at] = c->routing->routed_scaling_factor * (d_weights[t * chosen + k] - mean / sum) / sum * slope;
        }
    }
}

static assay_status shard_selection(quad_call *c, const quad *d_weights, int64_t shard, const int64_t *group,
                                    quad *d_logits, quad *dx, quad *dw)
{
    assay_status status;
    const int64_t experts = c->routing->num_experts, dim = c->mla->emb_dim, tokens = c->s.tokens;
    quad_recipe_layer layer = {.recipe = &c->config->recipe,
                               .rows = tokens,
                               .k = dim,
                               .n = experts,
                               .groups = 1,
                               .group = group,
                               .x = quad_in_shard(c, "inputs/x", shard),
                               .w = quad_in_shard(c, "weights/routing_kernel", shard),
                               .dy = d_logits};
    quad *logits = NULL, *part = NULL;
    int32_t *selected = quad_out_indices(c, "outputs/selected_experts", shard);
    TRY(quad_alloc(c->ctx, tokens * experts, &logits));
    TRY(quad_alloc(c->ctx, dim * experts, &part));
    TRY(quad_recipe_take(c->ctx, &layer));
    quad_recipe_forward(&layer, logits);
    TRY(quad_select_by_logits(c, shard, "weights/routing_bias", logits, selected,
                              quad_out_shard(c, "outputs/weights", shard)));
    quad_count_groups(tokens * c->routing->num_experts_per_tok, selected, experts,
                      quad_out_indices(c, "outputs/group_sizes", shard));
    logits_gradients(c, logits, selected, d_weights, d_logits);
    TRY(quad_recipe_take_back(c->ctx, &layer));
    quad_recipe_backward(&layer, dx, part);
    for (int64_t i = 0; i < dim * experts; i++) dw[i] += part[i];
cleanup:
    quad_recipe_free(&layer);
    free(logits);
    free(part);
    return status;
}

static assay_status expert_selection(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status;
    const int64_t experts = c->routing->num_experts, dim = c->mla->emb_dim, tokens = c->s.tokens;
    const assay_shape of_x = assay_shape_of(3, c->s.shards, tokens, dim), of_bias = assay_shape_of(1, experts);
    const assay_shape of_logits = assay_shape_of(3, c->s.shards, tokens, experts);
    const assay_shape of_w =
        c->view->backward ? assay_shape_of(3, c->s.shards, dim, experts) : assay_shape_of(2, dim, experts);
    const quad *d_weights = cotangent_of(c, in, "weights");
    quad *d_logits = NULL, *dx = NULL, *dw = NULL, *d_bias = NULL; /* of the bias nothing: it only chooses */
    void *group = NULL;
    TRY(add_gradient(c, out, "inputs", "x", &of_x, &dx));
    TRY(add_gradient(c, out, "weights", "routing_kernel", &of_w, &dw));
    TRY(add_gradient(c, out, "weights", "routing_bias", &of_bias, &d_bias));
    TRY(quad_tensors_add(c->ctx, out, "checkpoints/logits_gradient", &of_logits, &d_logits));
    TRY(assay_alloc(c->ctx, "groups of rows", tokens, sizeof(int64_t), &group));
    memset(group, 0, (size_t)tokens * sizeof(int64_t));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        TRY(shard_selection(c, d_weights + shard * tokens * c->routing->num_experts_per_tok, shard, group,
                            d_logits + shard * tokens * experts, dx + shard * tokens * dim,
                            dw + (c->view->backward ? shard * dim * experts : 0)));
    }
cleanup:
    free(group);
    return status;
}

/* --- keys and values: one product of all rows --- */

static assay_status key_value(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status;
    const assay_mla_config *m = c->mla;
    const int64_t rank = m->kv_lora_rank, nope = m->qk_nope_head_dim, dim = m->v_head_dim, rope = m->rope.dim;
    const int64_t both = nope + dim, width = nope + rope, n = m->heads * both, rows = c->s.tokens * m->heads;
    const assay_gmm_config config = {.layout = ASSAY_GMM_RAGGED, .dims = {c->s.tokens, rank, n, 1}};
    const assay_shape one = assay_shape_of(1, (int64_t)1), of_x = assay_shape_of(2, c->s.tokens, rank);
    const assay_shape of_y = assay_shape_of(2, c->s.tokens, n), of_w = assay_shape_of(3, (int64_t)1, rank, n);
    const assay_shape of_rope = quad_tensors_find(&c->in, "inputs/key_rope")->shape;
    const assay_shape of_latent = quad_tensors_find(&c->in, "inputs/low_rank_main")->shape;
    const assay_shape of_kernel = c->view->backward ? assay_shape_of(4, (int64_t)1, rank, m->heads, both)
                                                    : assay_shape_of(3, rank, m->heads, both);
    const int32_t all = (int32_t)c->s.tokens;
    const quad *dkey = cotangent_of(c, in, "key"), *dvalue = cotangent_of(c, in, "value");
    quad *x = NULL, *w = NULL, *dy = NULL, *d_latent = NULL, *d_rope = NULL, *d_kernel = NULL;
    quad_tensors given = {0}, of_gmm = {0};
    TRY(quad_tensors_copy_i32(c->ctx, &given, "inputs/group_sizes", &one, &all));
    TRY(quad_tensors_add(c->ctx, &given, "inputs/lhs", &of_x, &x));
    TRY(quad_tensors_add(c->ctx, &given, "weights/rhs", &of_w, &w));
    TRY(quad_tensors_add(c->ctx, &given, "cotangents/y", &of_y, &dy));
    TRY(add_gradient(c, out, "inputs", "low_rank_main", &of_latent, &d_latent));
    TRY(add_gradient(c, out, "inputs", "key_rope", &of_rope, &d_rope));
    TRY(add_gradient(c, out, "weights", "wkv_b_weights", &of_kernel, &d_kernel));
    memcpy(x, quad_in_shard(c, "inputs/low_rank_main", 0), (size_t)(c->s.tokens * rank) * sizeof *x);
    memcpy(w, quad_in_shard(c, "weights/wkv_b_weights", 0), (size_t)(rank * n) * sizeof *w);
    for (int64_t i = 0; i < rows * both; i++) {
        const int64_t row = i / both, at = i % both;
        dy[i] = at < nope ? dkey[row * width + at] : dvalue[row * dim + at - nope];
    }
    for (int64_t i = 0; i < rows * rope; i++)
        d_rope[i / rope / m->heads * rope + i % rope] += dkey[i / rope * width + nope + i % rope];
    TRY(quad_quantised_gmm(c->ctx, &config, &c->config->recipe, &given, &of_gmm));
    const quad *y = quad_tensors_find(&of_gmm, "outputs/y")->values;
    const quad *dlhs = quad_tensors_find(&of_gmm, "gradients/inputs/lhs")->values;
    const quad *drhs = quad_tensors_find(&of_gmm, "gradients/weights/rhs")->values;
    quad *key = quad_out_shard(c, "outputs/key", 0), *value = quad_out_shard(c, "outputs/value", 0);
    for (int64_t i = 0; i < rows * both; i++) {
        const int64_t row = i / both, at = i % both;
        *(at < nope ? &key[row * width + at] : &value[row * dim + at - nope]) = y[i];
    }
    for (int64_t i = 0; i < rows * rope; i++)
        key[i / rope * width + nope + i % rope] =
            quad_in_shard(c, "inputs/key_rope", 0)[i / rope / m->heads * rope + i % rope];
    memcpy(d_latent, dlhs, (size_t)(c->s.tokens * rank) * sizeof *dlhs);
    memcpy(d_kernel, drhs, (size_t)(rank * n) * sizeof *drhs);
cleanup:
    quad_tensors_free(&given);
    quad_tensors_free(&of_gmm);
    return status;
}

assay_status quad_quantised_function(quad_call *c, const quad_tensors *in, quad_tensors *out)
{
    assay_status status = ASSAY_OK;
    static const product gmm = {.rows = "inputs", .kernels = {"kernel"}, .results = {"output"}, .count = 1};
    static const product gating = {
        .rows = "x", .kernels = {"w0", "w1"}, .results = {"layer_w0", "layer_w1"}, .count = 2};
    if (strcmp(c->view->name, "gmm") == 0) {
        TRY(products_of(c, in, out, &gmm));
    } else if (strcmp(c->view->name, "compute_gating") == 0) {
        TRY(products_of(c, in, out, &gating));
    } else if (strcmp(c->view->name, "compute_linear") == 0) {
        TRY(compute_linear(c, in, out));
    } else if (strcmp(c->view->name, "shared_expert") == 0) {
        TRY(shared_expert(c, in, out));
    } else if (strcmp(c->view->name, "expert_selection") == 0) {
        TRY(expert_selection(c, in, out));
    } else if (strcmp(c->view->name, "get_key_value") == 0) {
        TRY(key_value(c, in, out));
    } else {
        TRY(psum_scatter(c, in, out));
    }
    for (int i = 0; !c->view->backward && i < c->out.count; i++)
        TRY(quad_tensors_move(c->ctx, &c->out, c->out.items[i].path, out));
cleanup:
    return status;
}
