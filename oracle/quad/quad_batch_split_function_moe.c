/* Experts, and the stages of the MoE half. */
#include <string.h>

#include "oracle/quad/quad_batch_split_function_internal.h"

/* --- experts --- */

/* y [rows,n] = x [rows,k] times the kernel of each row's group; 0 behind the groups. */
static void grouped(const quad_call *c, const int32_t *sizes, const quad *x, int64_t k, const quad *kernels,
                    int64_t n, quad *y)
{
    int64_t row = 0;
    for (int64_t e = 0; e < c->s.local_experts; e++) {
        for (int64_t end = row + sizes[e]; row < end; row++)
            quad_vector_matrix(k, n, x + row * k, kernels + e * k * n, n, y + row * n);
    }
    for (int64_t i = row * n; i < c->s.copies * n; i++) y[i] = 0;
}

static void linear_rows(const quad_call *c, const int32_t *sizes, const quad *w0, const quad *w1,
                        const quad *weights, const quad *wo, quad *hidden, quad *y)
{
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    for (int64_t i = 0; i < c->s.copies * width; i++)
        hidden[i] = w0[i] * quad_sigmoid(w0[i]) * w1[i] * weights[i / width];
    grouped(c, sizes, hidden, width, wo, c->mla->emb_dim, y);
}

static assay_status gmm(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        grouped(c, quad_given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts,
                quad_in_shard(c, "inputs/inputs", shard), c->mla->emb_dim, quad_in_shard(c, "weights/kernel", shard),
                c->config->stack.moe.moe_mlp_dim, quad_out_shard(c, "outputs/output", shard));
    }
    return ASSAY_OK;
}

static assay_status compute_gating(quad_call *c)
{
    const int64_t dim = c->mla->emb_dim, width = c->config->stack.moe.moe_mlp_dim;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int32_t *sizes = quad_given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts;
        const quad *x = quad_in_shard(c, "inputs/x", shard);
        grouped(c, sizes, x, dim, quad_in_shard(c, "weights/w0", shard), width,
                quad_out_shard(c, "outputs/layer_w0", shard));
        grouped(c, sizes, x, dim, quad_in_shard(c, "weights/w1", shard), width,
                quad_out_shard(c, "outputs/layer_w1", shard));
    }
    return ASSAY_OK;
}

static assay_status compute_linear(quad_call *c)
{
    assay_status status = ASSAY_OK;
    quad *hidden = NULL;
    TRY(quad_alloc(c->ctx, c->s.copies * c->config->stack.moe.moe_mlp_dim, &hidden));
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        linear_rows(c, quad_given_indices(c, "inputs/group_sizes") + shard * c->s.local_experts,
                    quad_in_shard(c, "inputs/layer_w0", shard), quad_in_shard(c, "inputs/layer_w1", shard),
                    quad_in_shard(c, "inputs/weights", shard), quad_in_shard(c, "weights/wo", shard), hidden,
                    quad_out_shard(c, "outputs/layer_wo", shard));
    }
cleanup:
    free(hidden);
    return status;
}

static void shared_rows(const quad_call *c, int64_t shard, const quad *x, quad *y)
{
    const int64_t dim = c->mla->emb_dim, width = c->config->stack.moe.shared_mlp_dim;
    quad *a = c->scratch, *b = a + width;
    for (int64_t t = 0; t < c->s.tokens; t++) {
        quad_vector_matrix(dim, width, x + t * dim, quad_in_shard(c, "weights/shared_w0", shard), width, a);
        quad_vector_matrix(dim, width, x + t * dim, quad_in_shard(c, "weights/shared_w1", shard), width, b);
        for (int64_t i = 0; i < width; i++) a[i] *= quad_sigmoid(a[i]) * b[i];
        quad_vector_matrix(width, dim, a, quad_in_shard(c, "weights/shared_wo", shard), dim, y + t * dim);
    }
}

static assay_status shared_expert(quad_call *c)
{
    for (int64_t shard = 0; shard < c->s.shards; shard++)
        shared_rows(c, shard, quad_in_shard(c, "inputs/inputs", shard), quad_out_shard(c, "outputs/y", shard));
    return ASSAY_OK;
}

/* --- stages --- */

/* Of all shards' moe_inputs [M,T,D]; shared_out may be NULL. */
static assay_status route_stage(quad_call *c, const quad *inputs, quad *shared_out, const quad_routed *to)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * c->mla->emb_dim, chosen = c->s.tokens * c->routing->num_experts_per_tok;
    quad *normed = NULL;
    int32_t *choices = malloc((size_t)(c->s.shards * chosen) * sizeof *choices);
    if (choices == NULL) return assay_fail(c->ctx, ASSAY_NO_MEMORY, "no memory for choices");
    TRY(quad_alloc(c->ctx, c->s.shards * (count + chosen), &normed));
    quad *weights = normed + c->s.shards * count;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        quad_normalise(c, "weights/post_attn_scale", shard, inputs + shard * count, normed + shard * count);
        if (shared_out != NULL) shared_rows(c, shard, normed + shard * count, shared_out + shard * count);
        TRY(quad_select_rows(c, shard, "weights/gate_kernel", "weights/gate_bias", normed + shard * count,
                             choices + shard * chosen, weights + shard * chosen));
    }
    TRY(quad_route_rows(c, normed, choices, weights, to));
cleanup:
    free(normed);
    free(choices);
    return status;
}

static assay_status shared_expert_and_route(quad_call *c)
{
    const quad_routed to = quad_routed_outputs(c);
    const bool shared = quad_tensors_find(&c->out, "outputs/y") != NULL;
    return route_stage(c, quad_given(c, "inputs/inputs"), shared ? quad_out_shard(c, "outputs/y", 0) : NULL, &to);
}

/* One microbatch's arrays of the MoE half. */
typedef struct half {
    quad_routed r;
    quad *inputs, *shared, *w0, *w1, *hidden, *y;
} half;

static void half_free(half *h)
{
    quad *all[] = {h->r.x, h->r.weights, h->inputs, h->shared, h->w0, h->w1, h->hidden, h->y};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    free(h->r.rolled);
    free(h->r.sizes);
}

static assay_status half_open(quad_call *c, half *h)
{
    assay_status status = ASSAY_OK;
    const int64_t shards = c->s.shards, dim = c->mla->emb_dim, copies = shards * c->s.copies;
    const int64_t width = c->config->stack.moe.moe_mlp_dim;
    TRY(quad_alloc(c->ctx, copies * dim, &h->r.x));
    TRY(quad_alloc(c->ctx, copies, &h->r.weights));
    TRY(quad_alloc(c->ctx, shards * c->s.tokens * dim, &h->inputs));
    TRY(quad_alloc(c->ctx, shards * c->s.tokens * dim, &h->shared));
    TRY(quad_alloc(c->ctx, copies * width, &h->w0));
    TRY(quad_alloc(c->ctx, copies * width, &h->w1));
    TRY(quad_alloc(c->ctx, c->s.copies * width, &h->hidden));
    TRY(quad_alloc(c->ctx, copies * dim, &h->y));
    TRY(assay_alloc_i32(c->ctx, "choices", copies, &h->r.rolled));
    TRY(assay_alloc_i32(c->ctx, "sizes", shards * c->s.local_experts, &h->r.sizes));
cleanup:
    return status;
}

static void compute_stage(quad_call *c, const half *h, int64_t i)
{
    const int64_t dim = c->mla->emb_dim, width = c->config->stack.moe.moe_mlp_dim, copies = c->s.copies;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        const int32_t *sizes = h->r.sizes + shard * c->s.local_experts;
        quad *w0 = h->w0 + shard * copies * width, *w1 = h->w1 + shard * copies * width;
        grouped(c, sizes, h->r.x + shard * copies * dim, dim, quad_in_shard(c, "weights/routed_w0", shard), width, w0);
        grouped(c, sizes, h->r.x + shard * copies * dim, dim, quad_in_shard(c, "weights/routed_w1", shard), width, w1);
        int64_t rows = 0;
        for (int64_t e = 0; e < c->s.local_experts; e++) rows += sizes[e];
        if (rows <= c->s.capacity) { /* else both are computed again */
            quad_add_offset(c, "mlpwi_0", shard, i, c->s.capacity * width, w0);
            quad_add_offset(c, "mlpwi_1", shard, i, c->s.capacity * width, w1);
        }
        linear_rows(c, sizes, w0, w1, h->r.weights + shard * copies, quad_in_shard(c, "weights/routed_wo", shard),
                    h->hidden, h->y + shard * copies * dim);
    }
}

/* What the half leaves of microbatch i: its output, or of the last one what is deferred; and the residuals. */
static assay_status leave(quad_call *c, const half *h, int64_t i)
{
    assay_status status = ASSAY_OK;
    const int64_t dim = c->mla->emb_dim, width = c->config->stack.moe.moe_mlp_dim, count = c->s.tokens * dim;
    const int64_t kept = c->s.capacity * width;
    quad *sums = NULL;
    for (int64_t shard = 0; shard < c->s.shards; shard++) {
        memcpy(quad_out_part(c, "outputs/mlpwi_0", shard, i, c->factor), h->w0 + shard * c->s.copies * width,
               (size_t)kept * sizeof *sums);
        memcpy(quad_out_part(c, "outputs/mlpwi_1", shard, i, c->factor), h->w1 + shard * c->s.copies * width,
               (size_t)kept * sizeof *sums);
    }
    if (i == c->factor - 1) {
        memcpy(quad_out_shard(c, "outputs/moe_inputs", 0), h->inputs, (size_t)(c->s.shards * count) * sizeof *sums);
        memcpy(quad_out_shard(c, "outputs/shared_expert_out", 0), h->shared,
               (size_t)(c->s.shards * count) * sizeof *sums);
        memcpy(quad_out_shard(c, "outputs/routed_expert_out", 0), h->y,
               (size_t)(c->s.shards * c->s.copies * dim) * sizeof *sums);
        memcpy(quad_out_indices(c, "outputs/selected_experts", 0), h->r.rolled,
               (size_t)(c->s.shards * c->s.copies) * sizeof *h->r.rolled);
        return ASSAY_OK;
    }
    TRY(quad_alloc(c->ctx, c->s.shards * count, &sums));
    TRY(quad_unsort_rows(c, h->r.rolled, h->y, sums));
    for (int64_t k = 0; k < c->s.shards * count; k++)
        quad_out_part(c, "outputs/xs", k / count, i, c->factor - 1)[k % count] =
            h->inputs[k] + (sums[k] + h->shared[k]);
cleanup:
    free(sums);
    return status;
}

/* The microbatches' inputs are a tensor [M,f,...] of one of the two lists. */
static assay_status moe_half(quad_call *c, const quad_tensor *inputs)
{
    assay_status status = ASSAY_OK;
    const int64_t count = c->s.tokens * c->mla->emb_dim;
    half h = {0};
    TRY(half_open(c, &h));
    for (int64_t i = 0; i < c->factor; i++) {
        for (int64_t shard = 0; shard < c->s.shards; shard++) {
            memcpy(h.inputs + shard * count, quad_part_of(c, inputs, shard, i, c->factor),
                   (size_t)count * sizeof *h.inputs);
        }
        TRY(route_stage(c, h.inputs, h.shared, &h.r));
        compute_stage(c, &h, i);
        TRY(leave(c, &h, i));
    }
cleanup:
    half_free(&h);
    return status;
}

static assay_status route_compute_unroute(quad_call *c)
{
    return moe_half(c, quad_tensors_find(&c->in, "inputs/xs"));
}

static assay_status batch_split_schedule(quad_call *c)
{
    const assay_status status = quad_mla_with_norms(c);
    return status != ASSAY_OK ? status : moe_half(c, quad_tensors_find(&c->out, "outputs/mla_out"));
}

const quad_named_function quad_moe_functions[] = {
    {"shared_expert", shared_expert},
    {"gmm", gmm},
    {"compute_gating", compute_gating},
    {"compute_linear", compute_linear},
    {"shared_expert_and_route", shared_expert_and_route},
    {"shared_expert_and_route_remat", shared_expert_and_route},
    {"route_compute_unroute", route_compute_unroute},
    {"batch_split_schedule", batch_split_schedule},
    {NULL, NULL},
};
