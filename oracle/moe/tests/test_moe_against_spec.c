/* The MoE block against its second form in binary128, at awkward shapes and loads: outputs and checkpoints, and every
 * gradient by central differences at a fixed choice. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/arithmetic.h"
#include "oracle/moe/tests/moe_case.h"
#include "oracle/spec/certify.h"
#include "tests/support/assay_test.h"

#define OUTPUT_LIMIT 1e-14
#define GRADIENT_LIMIT 1e-12

static assay_shape shape_of(const moe_case *c, const char *path, int64_t count)
{
    const assay_routing_config *r = &c->config.routing;
    int64_t b = r->batch, s = r->sequence, e = r->num_experts, h = c->config.moe_mlp_dim;
    bool hidden = strcmp(path, "checkpoints/moe_mlpwo") != 0;
    if (strncmp(path, "checkpoints/", 12) == 0) {
        int64_t width = strcmp(path, "checkpoints/moe_mlpwi") == 0 ? 2 * h : hidden ? h : c->config.emb_dim;
        return c->config.path == ASSAY_MOE_DENSE ? assay_shape_of(4, b, s, e, width)
                                                 : assay_shape_of(2, count / width, width);
    }
    if (strstr(path, "lb_loss") != NULL) return assay_shape_of(0);
    if (strcmp(path, "routing/margin") == 0) return assay_shape_of(2, b, s);
    if (strcmp(path, "routing/weights") == 0 || strcmp(path, "routing/selected_experts") == 0)
        return assay_shape_of(3, b, s, r->num_experts_per_tok);
    if (strcmp(path, "inputs/x") == 0 || strcmp(path, "outputs/y") == 0)
        return assay_shape_of(3, b, s, count / (b * s));
    return assay_shape_of(1, count);
}

static void to_spec(assay_context *ctx, const moe_case *c, const memory_store *store, spec_tensors *tensors)
{
    for (int i = 0; i < store->count; i++) {
        const memory_tensor *t = &store->items[i];
        assay_shape shape = shape_of(c, t->path, t->count);
        if (t->values != NULL) {
            assert_ok(ctx, spec_tensors_copy_f64(ctx, tensors, t->path, &shape, t->values));
        } else {
            assert_ok(ctx, spec_tensors_copy_i32(ctx, tensors, t->path, &shape, t->indices));
        }
    }
}

static void assert_certificates(const spec_certificates *certificates, double limit, int least)
{
    assert_true(certificates->count >= least);
    for (int i = 0; i < certificates->count; i++) {
        const spec_certificate *certificate = &certificates->items[i];
        assert_true(certificate->checked > 0);
        assert_int_equal(certificate->kinks, 0);
        if (!(certificate->relative <= limit)) {
            fail_msg("'%s' is off by %g of its scale at %lld: %.17g, expected %.17g", certificate->path,
                     certificate->relative, (long long)certificate->worst, certificate->computed,
                     certificate->reference);
        }
    }
}

/* experts: a choice to be made, or NULL. */
static void certify(moe_case *c, const int32_t *experts)
{
    static const char *const wanted[] = {"outputs/*",
                                         "gradients/*",
                                         "checkpoints/moe*",
                                         "routing/selected_experts",
                                         "routing/weights",
                                         "routing/margin",
                                         "routing/group_sizes",
                                         "routing/sorted_selected_experts",
                                         NULL};
    static const char *const numbers[] = {"outputs/*", "gradients/*", "routing/*", NULL};
    const spec_operation *moe = spec_operation_by_name("moe");
    const spec_moe_config config = {.moe = c->config};
    const spec_budget budget = {.coordinates = 3, .directions = 1, .seed = 5};
    assay_context ctx = assay_context_default(2);
    spec_tensors in = {0}, computed = {0};
    spec_certificates outputs = {0}, gradients = {0};
    /* The second form lists the rows of dropped choices too. */
    memory_store out = {.wanted = c->config.path == ASSAY_MOE_DROPPING ? numbers : wanted};
    moe_case_fill(c, false);
    if (experts != NULL) {
        int64_t count = c->config.routing.batch * c->config.routing.sequence * c->config.routing.num_experts_per_tok;
        memcpy(memory_store_add_i32(&c->in, "routing/selected_experts", count), experts,
               (size_t)count * sizeof *experts);
    }
    moe_case_run(&ctx, c, &out, NULL, 0);
    memory_store_remove(&out, "routing/biased_scores"); /* in no fixture */
    memory_store_remove(&out, "routing/combine_mask");
    memory_store_remove(&out, "routing/dispatch_mask");
    to_spec(&ctx, c, &c->in, &in);
    to_spec(&ctx, c, &out, &computed);
    assert_ok(&ctx, spec_certify_outputs(&ctx, moe, &config, &in, &computed, &outputs));
    assert_certificates(&outputs, OUTPUT_LIMIT, 6);
    if (experts == NULL) {
        const memory_tensor *selected = moe_case_get(&out, "routing/selected_experts");
        assay_shape shape = shape_of(c, selected->path, selected->count);
        assert_ok(&ctx, spec_tensors_copy_i32(&ctx, &in, selected->path, &shape, selected->indices));
    }
    assert_ok(&ctx, spec_certify_gradients(&ctx, moe, &config, &in, &computed, &budget, &gradients));
    assert_certificates(&gradients, GRADIENT_LIMIT, 5);
    spec_certificates_free(&outputs);
    spec_certificates_free(&gradients);
    spec_tensors_free(&in);
    spec_tensors_free(&computed);
    memory_store_free(&out);
    moe_case_free(c);
}

static const assay_moe_path paths[] = {ASSAY_MOE_SPARSE, ASSAY_MOE_DENSE, ASSAY_MOE_DROPPING};
enum { PATHS = 3 };

static void test_awkward_shapes(void **state)
{
    (void)state;
    static const int64_t shapes[][6] = {
        /* B, S, E, K, D, H */
        {1, 1, 1, 1, 1, 1},   {1, 1, 5, 1, 3, 2},   {1, 7, 1, 1, 5, 3},  {1, 3, 4, 4, 5, 3},
        {3, 5, 7, 3, 11, 13}, {1, 2, 13, 2, 17, 1}, {2, 1, 3, 2, 1, 19},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (int path = 0; path < PATHS; path++) {
            const int64_t *s = shapes[i];
            moe_case c = moe_case_deepseek3(s[0], s[1], s[2], s[3], s[4], s[5]);
            c.seed = i + 1;
            c.expert_bias = i % 2 == 1;
            c.config.shared_mlp_dim = i % 3 == 0 ? 2 : 0;
            c.config.path = paths[path];
            c.config.capacity_factor = 1;
            certify(&c, NULL);
        }
    }
}

static void test_loads(void **state)
{
    (void)state;
    static const int32_t hot[] = {2, 0, 2, 1, 2, 0, 2, 0, 2, 1, 2, 3};  /* all tokens with expert 2, none with 4 */
    static const int32_t last[] = {4, 3, 3, 4, 4, 3, 4, 3, 3, 4, 4, 3}; /* the first experts have nothing */
    static const int32_t *const loads[] = {hot, last};
    for (int load = 0; load < 2; load++) {
        for (int path = 0; path < PATHS; path++) {
            moe_case c = moe_case_deepseek3(2, 3, 5, 2, 4, 3);
            c.expert_bias = load == 1;
            c.config.path = paths[path];
            c.config.capacity_factor = 1.5;
            certify(&c, loads[load]);
        }
    }
}

/* Activations, clamps that bite, biases, groups, balance loss, hash routing. */
static void test_models(void **state)
{
    (void)state;
    for (int model = 0; model < 8; model++) {
        for (int path = 0; path < PATHS; path++) {
            moe_case c = moe_case_deepseek3(2, 3, 6, 2, 7, 5);
            assay_routing_config *r = &c.config.routing;
            c.seed = 10 + (uint64_t)model;
            c.config.path = paths[path];
            c.config.capacity_factor = 1;
            switch (model) {
            case 0: /* DeepSeek-V3 */
                r->n_routing_groups = 3;
                r->topk_routing_group = 2;
                r->load_balance_loss_weight = 0.3;
                r->routed_bias_update_rate = 1e-3;
                c.cotangent_lb_loss = true;
                c.config.shared_mlp_dim = 5;
                break;
            case 1: /* DeepSeek-V2 */
                r->family = ASSAY_ROUTER_DEEPSEEK2;
                r->score_func = ASSAY_SCORE_SOFTMAX;
                r->n_routing_groups = 2;
                r->topk_routing_group = 1;
                r->group_score = ASSAY_GROUP_MAX;
                c.gate_bias = false;
                c.config.shared_mlp_dim = 10;
                break;
            case 2: /* DeepSeek-V4 */
                r->score_func = ASSAY_SCORE_SQRTSOFTPLUS;
                c.config.glu = ASSAY_GLU_CLAMPED;
                c.config.limit = 0.4;
                break;
            case 3: /* its first layers */
                r->score_func = ASSAY_SCORE_SQRTSOFTPLUS;
                r->hash_rows = 5;
                c.gate_bias = false;
                c.config.glu = ASSAY_GLU_CLAMPED;
                c.config.limit = 0.4;
                break;
            case 4: /* GPT-OSS */
                r->family = ASSAY_ROUTER_DEFAULT;
                r->score_func = ASSAY_SCORE_NONE;
                c.expert_bias = true;
                c.config.activation = ASSAY_SIGMOID;
                c.config.glu = ASSAY_GLU_GPT_OSS;
                c.config.limit = 0.5;
                break;
            case 5: /* Qwen3 */
                r->family = ASSAY_ROUTER_DEFAULT;
                r->score_func = ASSAY_SCORE_NONE;
                r->norm_topk_prob = true;
                c.gate_bias = false;
                break;
            case 6: /* Gemma4 */
                r->family = ASSAY_ROUTER_GEMMA4;
                r->score_func = ASSAY_SCORE_NONE;
                r->norm_topk_prob = true;
                c.gate_bias = false;
                c.per_expert_scale = true;
                c.config.activation = ASSAY_GELU;
                c.config.shared_mlp_dim = 9;
                break;
            default: /* Llama4 */
                if (paths[path] == ASSAY_MOE_DROPPING) continue;
                r->family = ASSAY_ROUTER_LLAMA4;
                r->score_func = ASSAY_SCORE_NONE;
                r->num_experts_per_tok = 1;
                c.gate_bias = false;
                c.config.shared_mlp_dim = 5;
                break;
            }
            certify(&c, NULL);
        }
    }
}

static void test_fused(void **state)
{
    (void)state;
    for (int path = 0; path < 2; path++) {
        moe_case c = moe_case_deepseek3(2, 4, 5, 2, 7, 3);
        c.config.fused_weights = true;
        c.expert_bias = path == 0;
        if (path == 1) {
            c.config.path = ASSAY_MOE_FUSED;
            c.config.routing.family = ASSAY_ROUTER_FUSED;
            c.config.routing.norm_topk_prob = true;
        }
        certify(&c, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_awkward_shapes),
        cmocka_unit_test(test_loads),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
