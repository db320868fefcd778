#include "oracle/mesh/sharded_gqa.h"

assay_gqa_config assay_gqa_shard_config(const assay_gqa_config *config, const assay_mesh *mesh)
{
    assay_gqa_config own = *config;
    own.heads /= assay_head_shards(mesh);
    own.kv_heads /= assay_head_shards(mesh);
    own.batch /= assay_head_batch_shards(mesh);
    return own;
}

assay_status assay_sharded_gqa_check(assay_context *ctx, const assay_gqa_config *config, const assay_mesh *mesh)
{
    const assay_status status = assay_gqa_check(ctx, config);
    if (status != ASSAY_OK) return status;
    return assay_head_shards_check(ctx, "gqa", mesh, config->heads, config->kv_heads, config->batch);
}

typedef struct shard {
    assay_gqa_config config;
    assay_gqa_residuals r;
} shard;

static assay_tensor_row row(const void *self, int i)
{
    const shard *s = self;
    return assay_gqa_tensor_row(&s->config, (assay_gqa_tensor)i);
}

static assay_gqa_inputs inputs_of(const assay_head_inputs *in)
{
    return (assay_gqa_inputs){in->x, in->positions, in->segment_ids};
}

static assay_gqa_weights weights_of(const double *const *weights)
{
    assay_gqa_weights w;
    for (int i = 0; i < ASSAY_GQA_WEIGHTS; i++) w.w[i] = weights[i];
    return w;
}

static assay_status compute(assay_context *ctx, void *self, int i, const assay_head_inputs *in, const double *const *w)
{
    shard *s = self;
    const assay_gqa_inputs inputs = inputs_of(in);
    const assay_gqa_weights weights = weights_of(w);
    return assay_gqa_compute(ctx, &s->r, (assay_gqa_tensor)i, &inputs, &weights, &s->config);
}

static const double *value(const void *self, int i)
{
    const shard *s = self;
    return i == ASSAY_GQA_LSE ? s->r.lse : s->r.values[i];
}

static assay_status backward(assay_context *ctx, void *self, double *dx, double *const *gradients, const double *dy,
                             const assay_head_inputs *in, const double *const *w)
{
    shard *s = self;
    const assay_gqa_inputs inputs = inputs_of(in);
    const assay_gqa_weights weights = weights_of(w);
    const assay_gqa_gradients g = assay_gqa_gradients_of(dx, gradients);
    return assay_gqa_backward(ctx, &g, dy, &s->r, &inputs, &weights, &s->config);
}

static void drop(void *self)
{
    shard *s = self;
    assay_gqa_residuals_free(&s->r);
}

assay_status assay_sharded_gqa_run(assay_context *ctx, const assay_gqa_config *config, const assay_head_run *m)
{
    const assay_status status = assay_sharded_gqa_check(ctx, config, m->mesh);
    shard own = {.config = assay_gqa_shard_config(config, m->mesh)};
    const assay_head_layer layer = {.self = &own,
                                    .heads = config->heads,
                                    .kv_heads = config->kv_heads,
                                    .tokens = own.config.batch * own.config.sequence,
                                    .emb_dim = config->emb_dim,
                                    .whole = assay_gqa_weight_table(config),
                                    .own = assay_gqa_weight_table(&own.config),
                                    .tensors = ASSAY_GQA_TENSORS,
                                    .out_proj = ASSAY_GQA_OUT_PROJ,
                                    .once = config->bias ? ASSAY_GQA_OUT_BIAS : -1,
                                    .row = row,
                                    .compute = compute,
                                    .value = value,
                                    .backward = backward,
                                    .drop = drop};
    return status == ASSAY_OK ? assay_head_shards_run(ctx, &layer, m) : status;
}
