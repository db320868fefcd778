#include "oracle/ops/tests/attention_problem.h"
#include "oracle/ops/tests/ops_test.h"

static void poison_padding(attention_problem *p)
{
    const assay_attention_config *c = &p->config;
    const int64_t kv = assay_attention_kv_heads(c);
    for (int64_t t = 0; t < p->tokens; t++) {
        if (!attention_is_padding(p, t / c->sequence, t % c->sequence)) continue;
        assay_fill_nan(p->query + t * c->heads * c->qk_dim, c->heads * c->qk_dim);
        assay_fill_nan(p->key + t * kv * c->qk_dim, kv * c->qk_dim);
        assay_fill_nan(p->value + t * kv * c->v_dim, kv * c->v_dim);
        assay_fill_nan(p->dout + t * c->heads * c->v_dim, c->heads * c->v_dim);
        for (int64_t head = 0; head < c->heads; head++)
            p->dlse[(t / c->sequence * c->heads + head) * c->sequence + t % c->sequence] = NAN;
    }
}

void attention_problem_make(attention_problem *p, const assay_attention_config *config, attention_pattern pattern)
{
    const int64_t tokens = config->batch * config->sequence, rows = tokens * config->heads;
    const int64_t kv_rows = tokens * assay_attention_kv_heads(config);
    const assay_dtype grid = ASSAY_FLOAT64;
    uint64_t seed = 23;
    *p = (attention_problem){.config = *config, .tokens = tokens};
    p->query = test_normals(&seed, 1 / sqrt((double)config->qk_dim), grid, rows * config->qk_dim);
    p->key = test_normals(&seed, 1, grid, kv_rows * config->qk_dim);
    p->value = test_normals(&seed, 1, grid, kv_rows * config->v_dim);
    p->dout = test_normals(&seed, 1, grid, rows * config->v_dim);
    p->dlse = test_normals(&seed, 1, grid, rows);
    if (pattern != ONE_SEGMENT) {
        p->segment_ids = malloc((size_t)tokens * sizeof *p->segment_ids);
        assert_non_null(p->segment_ids);
        for (int64_t t = 0; t < tokens; t++)
            p->segment_ids[t] = t / config->sequence % 2 == 0 && 3 * (t % config->sequence) <= 2 * config->sequence;
    }
    const int64_t counts[] = {rows * config->v_dim, rows, rows * config->qk_dim, kv_rows * config->qk_dim,
                              kv_rows * config->v_dim};
    for (int r = 0; r < ATTENTION_RESULTS; r++) {
        p->count[r] = counts[r];
        p->results[r] = test_nans(p->count[r]);
    }
    poison_padding(p);
}

void attention_problem_free(attention_problem *p)
{
    double *const inputs[] = {p->query, p->key, p->value, p->dout, p->dlse};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) free(inputs[i]);
    for (int r = 0; r < ATTENTION_RESULTS; r++) free(p->results[r]);
    free(p->segment_ids);
}

assay_attention_inputs attention_problem_inputs(const attention_problem *p)
{
    return (assay_attention_inputs){p->query, p->key, p->value, p->segment_ids, NULL};
}

assay_attention_gradients attention_problem_gradients(const attention_problem *p)
{
    return (assay_attention_gradients){p->results[ATTENTION_DQUERY], p->results[ATTENTION_DKEY],
                                       p->results[ATTENTION_DVALUE], NULL};
}

void attention_problem_run(assay_context *ctx, attention_problem *p)
{
    const assay_attention_inputs in = attention_problem_inputs(p);
    const assay_attention_gradients g = attention_problem_gradients(p);
    double *out = p->results[ATTENTION_OUT], *lse = p->results[ATTENTION_LSE];
    for (int r = 0; r < ATTENTION_RESULTS; r++) assay_fill_nan(p->results[r], p->count[r]);
    assert_ok(ctx, assay_attention_forward(ctx, out, lse, &in, &p->config));
    assert_ok(ctx, assay_attention_backward(ctx, &g, p->dout, p->dlse, out, lse, &in, &p->config));
}

bool attention_is_padding(const attention_problem *p, int64_t batch, int64_t i)
{
    return p->config.mask_padding && p->segment_ids != NULL && p->segment_ids[batch * p->config.sequence + i] == 0;
}
