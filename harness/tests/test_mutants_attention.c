/* Queries that see the key after their own: against attention that is computed so, and
 * gradients against differences of the mutant's own outputs. Also what makes no mutant of a key or an arithmetic. */

#include "harness/tests/golden_trial.h"

static void start(trial *t, const char *name, const char *set)
{
    assay_context ctx = assay_context_default(1);
    assay_case *c = case_named(name, set);
    assert_ok(&ctx, assay_case_set(&ctx, c, "profiles=[f64]"));
    trial_evaluate(t, c, NULL);
}

typedef struct attention {
    const assay_tensor *query, *key, *value, *segments;
    int64_t sequence, heads;
    bool mask_padding;
} attention;

static bool sees(const attention *a, int64_t batch, int64_t i, int64_t j)
{
    const int32_t *ids = a->segments == NULL ? NULL : a->segments->indices + batch * a->sequence;
    return j <= i + 1 && (ids == NULL || (ids[i] == ids[j] && !(a->mask_padding && ids[i] == 0)));
}

/* Column `column` of the output of one query, and its log-sum-exp; false: it sees nothing. */
static bool attend(const attention *a, int64_t batch, int64_t head, int64_t i, int64_t column, double *out, double *lse)
{
    const int64_t width = a->key->spec.shape.dims[3], v_width = a->value->spec.shape.dims[3];
    double sum = 0.0, weighted = 0.0;
    for (int64_t j = 0; j < a->sequence; j++) {
        if (!sees(a, batch, i, j)) continue;
        const int64_t q = ((batch * a->sequence + i) * a->heads + head) * width;
        const int64_t k = ((batch * a->sequence + j) * a->heads + head) * width;
        double score = 0.0;
        for (int64_t d = 0; d < width; d++) score += a->query->values[q + d] * a->key->values[k + d];
        sum += exp(score);
        weighted += exp(score) * a->value->values[((batch * a->sequence + j) * a->heads + head) * v_width + column];
    }
    *out = weighted / sum, *lse = log(sum);
    return sum > 0.0;
}

static void check_attention(const char *name, const char *set)
{
    trial f;
    start(&f, name, set);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = trial_mutant(&f, "f64", "next_key_seen");
    const attention a = {.query = assay_tensor_set_find(&f.golden, "inputs/query"),
                         .key = assay_tensor_set_find(&f.golden, "inputs/key"),
                         .value = assay_tensor_set_find(&f.golden, "inputs/value"),
                         .segments = assay_tensor_set_find(&f.golden, "inputs/segment_ids"),
                         .sequence = f.c->sequence,
                         .heads = f.c->config.base_num_query_heads,
                         .mask_padding = f.c->config.mask_padding};
    const assay_tensor *out = assay_tensor_set_find(&results, "outputs/attention_out");
    const assay_tensor *lse = assay_tensor_set_find(&results, "outputs/lse");
    const int64_t width = a.value->spec.shape.dims[3];
    for (int64_t n = 0; n < out->count; n++) {
        const int64_t column = n % width, head = n / width % a.heads, i = n / width / a.heads % a.sequence;
        const int64_t batch = n / width / a.heads / a.sequence;
        double expected, expected_lse;
        if (!attend(&a, batch, head, i, column, &expected, &expected_lse)) continue;
        assert_true(fabs(out->values[n] - expected) < 1e-12);
        if (lse != NULL) {
            assert_true(fabs(lse->values[(batch * a.heads + head) * a.sequence + i] - expected_lse) < 1e-12);
        }
    }
    trial_close(&f);
}

TEST(is_attention_with_the_next_key)
{
    check_attention("attention/segments", NULL);
    check_attention("attention/narrow-values", "sequence=7");
    check_attention("attention/padding-nan", NULL);
    check_attention("attention/narrow-values", "sequence=2");
}

/* Of the outputs by their cotangents. */
static double loss_of(const assay_tensor_set *golden, const assay_tensor_set *results)
{
    double loss = 0.0;
    for (int i = 0; i < results->count; i++) {
        const assay_tensor *output = &results->items[i];
        char path[ASSAY_PATH_SIZE];
        if (output->spec.role != ASSAY_ROLE_OUTPUT) continue;
        snprintf(path, sizeof path, "cotangents/%.100s", output->spec.path + strlen("outputs/"));
        const assay_tensor *cotangent = assay_tensor_set_find(golden, path);
        assert_non_null(cotangent);
        for (int64_t k = 0; k < output->count; k++) loss += output->values[k] * cotangent->values[k];
    }
    return loss;
}

static double loss_at(trial *f, double *number, double value)
{
    const double before = *number;
    *number = value;
    assay_tensor_set results = trial_mutant(f, "f64", "next_key_seen");
    const double loss = loss_of(&f->golden, &results);
    assay_tensor_set_free(&results);
    *number = before;
    return loss;
}

static void check_gradients(const char *name, const char *set)
{
    enum { EACH = 3 };
    const double step = 0x1p-18;
    trial f;
    start(&f, name, set);
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = trial_mutant(&f, "f64", "next_key_seen");
    for (int i = 0; i < f.plan.spec_count; i++) {
        const assay_tensor *gradient = &results.items[i];
        if (gradient->spec.role != ASSAY_ROLE_GRADIENT) continue;
        const assay_tensor *given = assay_tensor_set_find(&f.golden, gradient->spec.path + strlen("gradients/"));
        assert_non_null(given);
        for (int n = 0; n < EACH; n++) {
            const int64_t k = (gradient->count - 1) * n / (EACH - 1);
            double *number = &given->values[k];
            const double above = loss_at(&f, number, *number + step), below = loss_at(&f, number, *number - step);
            const double expected = (above - below) / (2 * step);
            if (!(fabs(gradient->values[k] - expected) < 1e-5 * (1 + fabs(expected))))
                fail_msg("%s: %s[%lld] is %g, expected %g", name, gradient->spec.path, (long long)k,
                         gradient->values[k], expected);
        }
    }
    trial_close(&f);
}

TEST(gradients_are_those_of_the_outputs)
{
    check_gradients("attention/segments", NULL);
    check_gradients("mla/one-head", NULL);
    check_gradients("mla/packed", NULL);
    check_gradients("deepseek_layer/dense-fused", NULL);
    check_gradients("deepseek_layer/moe-segments", NULL);
    check_gradients("deepseek_stack/segments", NULL);
    check_gradients("gqa/gpt-oss", NULL);
}

/* Where there is no next one. */
TEST(does_not_apply)
{
    static const char *const cases[][2] = {{"attention/one-token", "sequence=1"}, {"mla/one-head", "sequence=1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        OWNED_BY(trial_close) trial f;
        bool applies = true;
        start(&f, cases[i][0], cases[i][1]);
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        const assay_trial f64 = trial_at(&f, "f64");
        const assay_mutant *next = assay_mutant_by_name("next_key_seen");
        assert_ok(&f.ctx, assay_mutant_make(&f.ctx, &f64, next, &results, &applies));
        if (applies) fail_msg("next_key_seen applies to %s", cases[i][0]);
    }
}

/* A worse arithmetic of a part that the case does not have, or has as bad already, is no mutant. */
TEST(arithmetic_needs_its_part)
{
    static const struct {
        const char *name, *mutant, *profile;
        bool applies;
    } table[] = {{"deepseek_layer/dense-fused", "router_in_bf16", "f32", false},
                 {"deepseek_layer/moe-segments", "router_in_bf16", "f32", true},
                 {"routing/balance-even", "router_in_bf16", "f32", true},
                 {"moe/small", "router_in_bf16", "bf16", true},
                 {"moe/small", "router_in_bf16", "bf16_router", false},
                 {"mlp/one-wide", "intermediates_in_bf16", "f32", true},
                 {"mlp/one-wide", "intermediates_in_bf16", "bf16", false}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial f;
        bool applies = !table[i].applies;
        start(&f, table[i].name, NULL);
        const assay_trial at = trial_at(&f, table[i].profile);
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        assert_ok(&f.ctx, assay_mutant_make(&f.ctx, &at, assay_mutant_by_name(table[i].mutant), &results, &applies));
        if (applies != table[i].applies) fail_msg("%s, %s", table[i].name, table[i].mutant);
    }
}

/* A number that is off, or that would stay as it is, is no mutant; whether a key was given stays as it was. */
TEST(keys_are_changed)
{
    static const struct {
        assay_key_change key;
        bool changes;
        const char *set; /* before */
        double expected;
    } table[] = {
        {{ASSAY_KEY_AT_routed_scaling_factor, ASSAY_KEY_SQUARED, 0, NULL}, true, "routed_scaling_factor=2.5", 6.25},
        {{ASSAY_KEY_AT_routed_scaling_factor, ASSAY_KEY_SQUARED, 0, NULL}, false, "routed_scaling_factor=1", 1},
        {{ASSAY_KEY_AT_routed_scaling_factor, ASSAY_KEY_TO, 1, NULL}, false, "routed_scaling_factor=1", 1},
        {{ASSAY_KEY_AT_capacity_factor, ASSAY_KEY_TIMES, 0.5, NULL}, true, "capacity_factor=3", 1.5},
        {{ASSAY_KEY_AT_capacity_factor, ASSAY_KEY_TIMES, 0.5, NULL}, false, "capacity_factor=-1", -1},
        {{ASSAY_KEY_AT_shared_experts, ASSAY_KEY_TO, 0, NULL}, true, "shared_experts=2", 0},
        {{ASSAY_KEY_AT_shared_experts, ASSAY_KEY_TO, 0, NULL}, false, "shared_experts=0", 0},
        {{ASSAY_KEY_AT_mask_padding, ASSAY_KEY_TO, false, NULL}, true, "mask_padding=true", 0},
        {{ASSAY_KEY_AT_mask_padding, ASSAY_KEY_TO, false, NULL}, false, "mask_padding=false", 0},
        {{ASSAY_KEY_AT_norm_topk_prob, ASSAY_KEY_FLIP, 0, NULL}, true, "norm_topk_prob=false", 1},
        {{ASSAY_KEY_AT_norm_topk_prob, ASSAY_KEY_FLIP, 0, NULL}, true, "norm_topk_prob=true", 0},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(free_case) assay_case *c = case_named("moe/small", table[i].set);
        const assay_mutant mutant = {.name = "key", .keys = {table[i].key}};
        const assay_model_key *key = &assay_model_keys[table[i].key.key];
        assay_model_config expected = c->config;
        char *at = (char *)&expected + key->offset;
        if (key->type == ASSAY_KEY_B) *(bool *)at = table[i].expected != 0;
        if (key->type == ASSAY_KEY_I) *(int64_t *)(void *)at = (int64_t)table[i].expected;
        if (key->type == ASSAY_KEY_D) *(double *)(void *)at = table[i].expected;
        assert_int_equal(assay_mutant_configure(&mutant, c), table[i].changes);
        assert_memory_equal(&c->config, &expected, sizeof expected);
    }
}
