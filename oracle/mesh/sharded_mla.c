#include "oracle/mesh/sharded_mla.h"

assay_mla_config assay_mla_shard_config(const assay_mla_config *config, const assay_mesh *mesh)
{
    assay_mla_config own = *config;
    own.heads /= assay_head_shards(mesh);
    own.batch /= assay_head_batch_shards(mesh);
    return own;
}

assay_status assay_sharded_mla_check(assay_context *ctx, const assay_mla_config *config, const assay_mesh *mesh)
{
    const assay_status status = assay_mla_check(ctx, config);
    if (status != ASSAY_OK) return status;
    return assay_head_shards_check(ctx, "mla", mesh, config->heads, config->heads, config->batch);
}

typedef struct shard {
    assay_mla_config config;
    assay_mla_residuals r;
} shard;

static assay_tensor_row row(const void *self, int i)
{
    const shard *s = self;
    return assay_mla_tensor_row(&s->config, (assay_mla_tensor)i);
}

static assay_mla_inputs inputs_of(const assay_head_inputs *in)
{
    return (assay_mla_inputs){in->x, in->positions, in->segment_ids};
}

static assay_mla_weights weights_of(const double *const *weights)
{
    assay_mla_weights w;
    for (int i = 0; i < ASSAY_MLA_WEIGHTS; i++) w.w[i] = weights[i];
    return w;
}

static assay_status compute(assay_context *ctx, void *self, int i, const assay_head_inputs *in, const double *const *w)
{
    shard *s = self;
    const assay_mla_inputs inputs = inputs_of(in);
    const assay_mla_weights weights = weights_of(w);
    return assay_mla_compute(ctx, &s->r, (assay_mla_tensor)i, &inputs, &weights, &s->config);
}

static const double *value(const void *self, int i)
{
    const shard *s = self;
    return i == ASSAY_MLA_LSE ? s->r.lse : s->r.values[i];
}

static assay_status backward(assay_context *ctx, void *self, double *dx, double *const *gradients, const double *dy,
                             const assay_head_inputs *in, const double *const *w)
{
    shard *s = self;
    const assay_mla_inputs inputs = inputs_of(in);
    const assay_mla_weights weights = weights_of(w);
    const assay_mla_gradients g = assay_mla_gradients_of(dx, gradients);
    return assay_mla_backward(ctx, &g, dy, &s->r, &inputs, &weights, &s->config);
}

static void drop(void *self)
{
    shard *s = self;
    assay_mla_residuals_free(&s->r);
}

assay_status assay_sharded_mla_run(assay_context *ctx, const assay_mla_config *config, const assay_head_run *m)
{
    const assay_status status = assay_sharded_mla_check(ctx, config, m->mesh);
    shard own = {.config = assay_mla_shard_config(config, m->mesh)};
    const assay_head_layer layer = {.self = &own,
                                    .heads = config->heads,
                                    .kv_heads = config->heads,
                                    .tokens = own.config.batch * own.config.sequence,
                                    .emb_dim = config->emb_dim,
                                    .whole = assay_mla_weight_table(config),
                                    .own = assay_mla_weight_table(&own.config),
                                    .tensors = ASSAY_MLA_TENSORS,
                                    .out_proj = ASSAY_MLA_OUT_PROJ,
                                    .once = -1,
                                    .row = row,
                                    .compute = compute,
                                    .value = value,
                                    .backward = backward,
                                    .drop = drop};
    return status == ASSAY_OK ? assay_head_shards_run(ctx, &layer, m) : status;
}
