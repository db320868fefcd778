#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "oracle/arithmetic/emulated.h"
#include "oracle/moe/tests/routing_cases.h"
#include "oracle/quad/tests/quad_case.h"

TEST_LABELS(threads);

static void poison(assay_routing *r, const assay_routing_config *config)
{
    const int64_t count = config->num_experts_per_tok;
    assay_fill_nan(r->weights, TOKENS * count);
    assay_fill_nan(r->margin, TOKENS);
    assay_fill_nan(r->scores, TOKENS * EXPERTS);
    assay_fill_nan(r->gathered, TOKENS * count);
    if (r->probabilities != NULL) assay_fill_nan(r->probabilities, TOKENS * EXPERTS);
    if (r->density != NULL) assay_fill_nan(r->density, BATCH * EXPERTS);
    if (r->bias_updates != NULL) assay_fill_nan(r->bias_updates, EXPERTS);
    memset(r->selected_experts, -1, sizeof(int32_t) * (size_t)(TOKENS * count));
    memset(r->group_sizes, -1, sizeof(int32_t) * EXPERTS);
    r->lb_loss = NAN;
}

static void run_forward(assay_routing *r, const case_data *data, int threads)
{
    assay_context ctx = assay_context_default(threads);
    assert_ok(&ctx, assay_routing_alloc(&ctx, r, &data->config));
    poison(r, &data->config);
    assert_ok(&ctx, assay_routing_forward(&ctx, r, &data->in, &data->config));
}

static void add(quad_case *c, bool there, const char *path, const double *values, assay_shape shape)
{
    if (there) assert_ok(&c->ctx, quad_tensors_copy_f64(&c->ctx, &c->results, path, &shape, values));
}

/* A gradient, whose terms are of order 1 and may cancel. */
static void add_gradient(quad_case *c, bool there, const char *of, const double *values, assay_shape shape)
{
    char path[ASSAY_PATH_SIZE];
    double scale[TOKENS * EXPERTS];
    for (int i = 0; i < TOKENS * EXPERTS; i++) scale[i] = 0x1p-53;
    snprintf(path, sizeof path, "gradients/%s", of);
    add(c, there, path, values, shape);
    snprintf(path, sizeof path, "error_scale/f64/gradients/%s", of);
    add(c, there, path, scale, shape);
}

/* What the second form reads of the case, at the choice of `r`. */
static void describe(quad_case *c, const case_data *data, const assay_routing *r, const double *d_weights,
                     double d_lb_loss, double d_z_loss)
{
    const int64_t k = data->config.num_experts_per_tok;
    case_start(c, 1);
    case_values(c, "inputs/logits", data->logits, DIMS(BATCH, SEQUENCE, EXPERTS));
    case_indices(c, "routing/selected_experts", r->selected_experts, DIMS(BATCH, SEQUENCE, k));
    if (data->in.bias != NULL) case_values(c, "weights/gate/bias", data->bias, DIMS(EXPERTS));
    if (data->in.per_expert_scale != NULL)
        case_values(c, "weights/per_expert_scale", data->expert_scale, DIMS(EXPERTS));
    if (data->in.tid2eid != NULL) case_indices(c, "weights/tid2eid", data->table, DIMS(HASH_ROWS, k));
    if (data->in.input_ids != NULL) case_indices(c, "inputs/input_ids", data->input_ids, DIMS(BATCH, SEQUENCE));
    if (d_weights != NULL) case_values(c, "cotangents/weights", d_weights, DIMS(BATCH, SEQUENCE, k));
    if (has_balance(data)) case_values(c, "cotangents/lb_loss", &d_lb_loss, assay_shape_of(0));
    if (data->config.z_loss_weight > 0) case_values(c, "cotangents/z_loss", &d_z_loss, assay_shape_of(0));
}

/* Not every router has one. */
static void turn_z_loss_on(case_data *data)
{
    if (data->config.family != ASSAY_ROUTER_FUSED && data->config.hash_rows == 0) data->config.z_loss_weight = 0.3;
}

static const quad_operation routing_form = {.form = quad_routing};

/* The weights' gradients alone, the losses' alone, both. */
TEST(test_every_case_against_the_second_form)
{
    static const double D_LB_LOSS[] = {0.0, 1.3, -0.8}, D_Z_LOSS[] = {0.0, -0.7, 0.4};
    static const quad_budget budget = {.directions = 1, .seed = 1};
    for (int part = 0; part < 3 * CASE_COUNT; part++) {
        case_data data;
        assay_routing r;
        assay_context ctx = assay_context_default(1);
        quad_case c;
        quad_certificates found = {0};
        double d_logits[TOKENS * EXPERTS], d_bias[EXPERTS], d_scale[EXPERTS];
        fill_case(&data, &CASES[part / 3]);
        turn_z_loss_on(&data);
        run_forward(&r, &data, 1);
        const double *d_weights = part % 3 == 1 ? NULL : data.d_weights, d_lb_loss = D_LB_LOSS[part % 3];
        const double d_z_loss = D_Z_LOSS[part % 3];
        assay_fill_nan(d_logits, TOKENS * EXPERTS);
        assay_fill_nan(d_bias, EXPERTS);
        assay_fill_nan(d_scale, EXPERTS);
        describe(&c, &data, &r, d_weights, d_lb_loss, d_z_loss);
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, d_scale, d_weights, d_lb_loss, d_z_loss, &r,
                                               &data.in, &data.config));
        add(&c, true, "outputs/weights", r.weights, DIMS(BATCH, SEQUENCE, data.config.num_experts_per_tok));
        add(&c, true, "routing/margin", r.margin, DIMS(BATCH, SEQUENCE));
        add(&c, has_balance(&data), "outputs/lb_loss", &r.lb_loss, assay_shape_of(0));
        add(&c, data.config.z_loss_weight > 0, "outputs/z_loss", &r.z_loss, assay_shape_of(0));
        add(&c, r.bias_updates != NULL, "outputs/bias_updates", r.bias_updates, DIMS(EXPERTS));
        const assay_shape experts = DIMS(EXPERTS);
        assert_ok(&c.ctx, quad_tensors_copy_i32(&c.ctx, &c.results, "routing/group_sizes", &experts, r.group_sizes));
        add_gradient(&c, true, "inputs/logits", d_logits, DIMS(BATCH, SEQUENCE, EXPERTS));
        add_gradient(&c, data.in.bias != NULL, "weights/gate/bias", d_bias, DIMS(EXPERTS));
        add_gradient(&c, data.in.per_expert_scale != NULL, "weights/per_expert_scale", d_scale, DIMS(EXPERTS));
        assert_ok(&c.ctx, quad_certify(&c.ctx, &routing_form, &data.config, &c.in, &c.results, &budget, &found));
        assert_true(found.count >= 4);
        for (int i = 0; i < found.count; i++) {
            if (found.items[i].excess <= 1 && (found.items[i].relative <= 4e-14 || found.items[i].error <= 0x1p-50))
                continue;
            fail_msg("%s, part %d: %s is off by %g", CASES[part / 3].name, part % 3, found.items[i].path,
                     found.items[i].relative);
        }
        quad_certificates_free(&found);
        case_end(&c);
        assay_routing_free(&r);
    }
}

/* The z-loss is of the logits as the gate gives them: with a bias that no score function comes before, unless it selects alone. */
TEST(test_which_bias_the_z_loss_has)
{
    int with = 0, without = 0;
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing r;
        double expected = 0;
        fill_case(&data, &CASES[c]);
        turn_z_loss_on(&data);
        if (data.in.bias == NULL || data.config.z_loss_weight == 0) continue;
        const bool linear =
            CASES[c].config.score_func == ASSAY_SCORE_NONE && CASES[c].config.family != ASSAY_ROUTER_DEEPSEEK3;
        for (int t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int e = 0; e < EXPERTS; e++) sum += exp(data.logits[t * EXPERTS + e] + (linear ? data.bias[e] : 0));
            expected += 0.3 * log(sum) * log(sum) / TOKENS;
        }
        run_forward(&r, &data, 1);
        if (!(fabs(r.z_loss - expected) < 1e-13)) fail_msg("%s: %g, expected %g", CASES[c].name, r.z_loss, expected);
        *(linear ? &with : &without) += 1;
        assay_routing_free(&r);
    }
    assert_true(with > 3 && without > 3);
}

/* MaxText's deepseek_scale_weights goes by the score function, whatever the model's name: 16 is the factor. */
TEST(test_deepseek2_divides_sigmoids)
{
    case_data data;
    for (int f = 0; f < 3; f++) {
        static const assay_score_func FUNCTIONS[] = {ASSAY_SCORE_SIGMOID, ASSAY_SCORE_SQRTSOFTPLUS,
                                                     ASSAY_SCORE_SOFTMAX};
        assay_routing r;
        fill_case(&data, case_named("deepseek2 sigmoid"));
        data.config.score_func = FUNCTIONS[f];
        run_forward(&r, &data, 1);
        for (int t = 0; t < TOKENS; t++) {
            double sum = 0;
            for (int k = 0; k < data.config.num_experts_per_tok; k++)
                sum += r.weights[t * data.config.num_experts_per_tok + k];
            assert_true((fabs(sum - 16) < 1e-13) == (FUNCTIONS[f] != ASSAY_SCORE_SOFTMAX));
        }
        assay_routing_free(&r);
    }
}

/* The largest magnitude. */
static double scale_of(const double *x, int64_t count)
{
    double largest = 0.0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(x[i]));
    return largest;
}

/* In deepseek3 the bias selects and does nothing else; in the other families it has a gradient. */
TEST(test_bias_gradient)
{
    const double zeros[EXPERTS] = {0};
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing r;
        assay_context ctx = assay_context_default(1);
        double d_logits[TOKENS * EXPERTS], d_bias[EXPERTS];
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, data.d_weights, 0.0, 0, &r, &data.in,
                                               &data.config));
        const bool one_is_all = data.config.family == ASSAY_ROUTER_DEFAULT && data.config.num_experts_per_tok == 1;
        if (data.config.family == ASSAY_ROUTER_DEEPSEEK3) {
            assert_same_bits(d_bias, zeros, EXPERTS);
            assert_true(scale_of(d_logits, TOKENS * EXPERTS) > 0.0);
        } else if (one_is_all) { /* a softmax over one: 1, whatever the logit */
            assert_same_bits(d_bias, zeros, EXPERTS);
        } else {
            assert_true(scale_of(d_bias, EXPERTS) > 1e-3);
        }
        assay_routing_free(&r);
    }
}

/* With balance_pre_bias the loss is another one, and the bias has no gradient from it. */
TEST(test_balance_before_the_bias)
{
    assay_context ctx = assay_context_default(1);
    double losses[2], d_logits[TOKENS * EXPERTS], d_bias[EXPERTS];
    const double zeros[EXPERTS] = {0};
    for (int pre = 0; pre < 2; pre++) {
        case_data data;
        assay_routing r;
        fill_case(&data, case_named("deepseek3"));
        data.config.load_balance_loss_weight = 0.5;
        data.config.balance_pre_bias = pre;
        run_forward(&r, &data, 1);
        losses[pre] = r.lb_loss;
        assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, NULL, 1.0, 0, &r, &data.in, &data.config));
        assert_true(scale_of(d_logits, TOKENS * EXPERTS) > 0.0);
        if (pre) assert_same_bits(d_bias, zeros, EXPERTS);
        if (!pre) assert_true(scale_of(d_bias, EXPERTS) > 1e-4);
        assay_routing_free(&r);
    }
    assert_true(fabs(losses[0] - losses[1]) > 1e-4 * losses[0]);
}

TEST(test_same_bits_for_any_threads)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        static const int THREADS[] = {1, 2, 7};
        assay_routing r[3];
        double d_logits[3][TOKENS * EXPERTS], d_bias[3][EXPERTS];
        case_data data;
        fill_case(&data, &CASES[c]);
        const int64_t choices = TOKENS * data.config.num_experts_per_tok;
        for (int i = 0; i < 3; i++) {
            assay_context ctx = assay_context_default(THREADS[i]);
            run_forward(&r[i], &data, THREADS[i]);
            assert_ok(&ctx, assay_routing_backward(&ctx, d_logits[i], d_bias[i], NULL, data.d_weights, 0.9, 0, &r[i],
                                                   &data.in, &data.config));
            assert_memory_equal(r[i].selected_experts, r[0].selected_experts, sizeof(int32_t) * (size_t)choices);
            assert_same_bits(r[i].weights, r[0].weights, choices);
            assert_same_bits(r[i].margin, r[0].margin, TOKENS);
            assert_same_bits(&r[i].lb_loss, &r[0].lb_loss, 1);
            assert_same_bits(d_logits[i], d_logits[0], TOKENS * EXPERTS);
            assert_same_bits(d_bias[i], d_bias[0], EXPERTS);
        }
        for (int i = 0; i < 3; i++) assay_routing_free(&r[i]);
    }
}

/* A given choice keeps its order; evaluating with one's own choice changes nothing; the margin stays the free one. */
TEST(test_given_choice)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        case_data data;
        assay_routing own, again;
        fill_case(&data, &CASES[c]);
        const int64_t choices = TOKENS * data.config.num_experts_per_tok;
        run_forward(&own, &data, 1);
        if (CASES[c].given) {
            assert_memory_equal(own.selected_experts, data.given, sizeof(int32_t) * (size_t)choices);
            data.in.given_experts = NULL;
            run_forward(&again, &data, 1);
            assert_same_bits(again.margin, own.margin, TOKENS);
            assert_true(memcmp(again.selected_experts, data.given, sizeof(int32_t) * (size_t)choices) != 0);
        } else {
            memcpy(data.given, own.selected_experts, sizeof(int32_t) * (size_t)choices);
            data.in.given_experts = data.given;
            run_forward(&again, &data, 1);
            assert_same_bits(again.weights, own.weights, choices);
            assert_same_bits(again.margin, own.margin, TOKENS);
            assert_same_bits(&again.lb_loss, &own.lb_loss, 1);
        }
        assay_routing_free(&own);
        assay_routing_free(&again);
    }
}

/* Hash routing takes the table's rows as they stand and has no margin. */
TEST(test_hash)
{
    for (int c = 0; c < CASE_COUNT; c++) {
        if (CASES[c].config.hash_rows == 0) continue;
        case_data data;
        assay_routing r;
        fill_case(&data, &CASES[c]);
        run_forward(&r, &data, 1);
        const int64_t count = data.config.num_experts_per_tok;
        for (int t = 0; t < TOKENS; t++) {
            assert_memory_equal(r.selected_experts + t * count, data.table + data.input_ids[t] * count,
                                sizeof(int32_t) * (size_t)count);
            assert_true(r.margin[t] == INFINITY);
        }
        assert_null(r.probabilities);
        assert_null(r.bias_updates);
        assay_routing_free(&r);
    }
}

/* Softmax over all, divided by the chosen ones' sum, is a softmax over the chosen; sigmoid likewise is deepseek3's. */
TEST(test_fused_equals_sparse)
{
    static const char *const PAIRS[][2] = {{"fused", "default"}, {"fused sigmoid", "deepseek3 exactly"}};
    for (int p = 0; p < 2; p++) {
        assay_routing r[2];
        case_data data;
        for (int i = 0; i < 2; i++) {
            fill_case(&data, case_named(PAIRS[p][i]));
            data.config.num_experts_per_tok = 4;
            data.config.load_balance_loss_weight = data.config.routed_bias_update_rate = 0.0;
            data.config.routed_scaling_factor = 1.0;
            data.in.bias = NULL;
            run_forward(&r[i], &data, 1);
        }
        assert_memory_equal(r[0].selected_experts, r[1].selected_experts, sizeof(int32_t) * TOKENS * 4);
        assert_close(r[0].weights, r[1].weights, TOKENS * 4, 1e-14, 0.0);
        assay_routing_free(&r[0]);
        assay_routing_free(&r[1]);
    }
}

/* The weights of a token share the error of the sum that they are divided by; one weight is a quotient of equal numbers. */
TEST(test_emulated_weights_share_an_error)
{
    enum { SEEDS = 128 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {0.25, -0.5, 0.7, 0.1};
    for (int k = 1; k <= 2; k++) {
        const assay_routing_config config = {.batch = 1,
                                             .sequence = 1,
                                             .num_experts = 4,
                                             .num_experts_per_tok = k,
                                             .family = ASSAY_ROUTER_DEFAULT,
                                             .routed_scaling_factor = 1,
                                             .n_routing_groups = -1,
                                             .topk_routing_group = -1,
                                             .norm_topk_prob = true};
        const assay_routing_inputs in = {.logits = logits};
        double squares = 0, exact = 0;
        for (uint64_t seed = 0; seed <= SEEDS; seed++) {
            double sum = 0;
            const assay_emulation emulation = {
                .precision = {.accumulate = unit}, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
            assay_context ctx = assay_context_default(1);
            assay_routing r = {0};
            if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
            assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
            assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
            for (int i = 0; i < k; i++) sum += r.weights[i];
            if (seed == 0) exact = sum;
            squares += (sum / exact - 1) * (sum / exact - 1);
            assay_routing_free(&r);
        }
        const double error = sqrt(squares / SEEDS) / unit;
        if (!(k == 1 ? error == 0 : error > 0.75 && error < 1.25)) fail_msg("%d: %g roundings", k, error);
    }
}

/* Logit plus bias is a number of its own, whose rounding a large bias makes large: weights of the softmax over the chosen have it. */
TEST(test_emulated_sums_with_a_large_bias)
{
    enum { SEEDS = 128 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {0.3, -0.2}, bias[] = {34.5, 34.4};
    const assay_routing_config config = {.batch = 1,
                                         .sequence = 1,
                                         .num_experts = 2,
                                         .num_experts_per_tok = 2,
                                         .family = ASSAY_ROUTER_DEFAULT,
                                         .routed_scaling_factor = 1,
                                         .n_routing_groups = -1,
                                         .topk_routing_group = -1};
    const assay_routing_inputs in = {.logits = logits, .bias = bias};
    double squares = 0, exact = 0;
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        const assay_emulation emulation = {
            .precision = {.router = unit}, .storage = ASSAY_FLOAT32, .multiply = ASSAY_FLOAT32, .seed = seed};
        assay_context ctx = assay_context_default(1);
        assay_routing r = {0};
        if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
        assert_ok(&ctx, assay_routing_alloc(&ctx, &r, &config));
        assert_ok(&ctx, assay_routing_forward(&ctx, &r, &in, &config));
        if (seed == 0) exact = r.weights[0];
        squares += (r.weights[0] - exact) * (r.weights[0] - exact) / SEEDS;
        assay_routing_free(&r);
    }
    const double error =
        sqrt(squares) / (exact * (1 - exact) * 34.5 * sqrt(2.0)) / unit; /* of the difference of two sums */
    if (!(error > 0.5 && error < 2)) fail_msg("%g roundings", error);
}

/* The gradients of a router of one token, exact with the seed 0, else of an emulated run in float32. */
static void run_backward(double *d_logits, double *d_bias, const assay_routing_config *config,
                         const assay_routing_inputs *in, const double *d_weights, double d_lb_loss, uint64_t seed)
{
    const double unit = 0x1p-24 / sqrt(3.0);
    const assay_emulation emulation = {.precision = {.accumulate = unit, .router = unit, .elementary = unit},
                                       .seed = seed};
    assay_context ctx = assay_context_default(1);
    assay_routing r = {0};
    if (seed > 0) ctx.arithmetic = &assay_arithmetic_emulated, ctx.emulation = &emulation;
    assert_ok(&ctx, assay_routing_alloc(&ctx, &r, config));
    assert_ok(&ctx, assay_routing_forward(&ctx, &r, in, config));
    assert_ok(&ctx, assay_routing_backward(&ctx, d_logits, d_bias, NULL, d_weights, d_lb_loss, 0, &r, in, config));
    assay_routing_free(&r);
}

/* Where a gradient cancels, what cancels is rounded: s (1 - s) of a sigmoid near 1, a softmax whose gradients are all the same. */
TEST(test_emulated_gradients_where_they_cancel)
{
    enum { SEEDS = 64 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {12, 11.5}, zeros[] = {0, 0}, d_weights[] = {1, 0};
    for (int balance = 0; balance <= 1; balance++) {
        const assay_routing_config config = {.batch = 1,
                                             .sequence = 1,
                                             .num_experts = 2,
                                             .num_experts_per_tok = 2,
                                             .family = ASSAY_ROUTER_DEEPSEEK3,
                                             .score_func = ASSAY_SCORE_SIGMOID,
                                             .routed_scaling_factor = 1,
                                             .n_routing_groups = -1,
                                             .topk_routing_group = -1,
                                             .load_balance_loss_weight = balance};
        const assay_routing_inputs in = {.logits = logits, .bias = zeros};
        double squares = 0, exact = 0;
        for (uint64_t seed = 0; seed <= SEEDS; seed++) {
            double d_logits[2], d_bias[2];
            const double *found = balance == 1 ? d_bias : d_logits;
            run_backward(d_logits, d_bias, &config, &in, balance == 1 ? NULL : d_weights, balance, seed);
            if (seed == 0) exact = found[0];
            squares += (found[0] - exact) * (found[0] - exact) / SEEDS;
        }
        /* the gradient of a probability is 2 here; that of the weight is relative to 1 - s */
        const double size = balance == 1 ? 1 : exact / (1 - 1 / (1 + exp(-logits[0])));
        const double error = sqrt(squares) / fabs(size) / unit;
        if (!(error > 0.5 && error < 3)) fail_msg("%d: %g roundings", balance, error);
        if (balance == 1) assert_true(exact == 0);
    }
}

/* A softmax over the chosen whose first weight is nearly 1: its mean has the errors of the first gradient, which the naive form
 * does not have. */
TEST(test_emulated_gradients_of_a_sure_choice)
{
    enum { SEEDS = 64 };
    const double unit = 0x1p-24 / sqrt(3.0), logits[] = {12, 0, -1}, d_weights[] = {1, 0};
    const assay_routing_config config = {.batch = 1,
                                         .sequence = 1,
                                         .num_experts = 3,
                                         .num_experts_per_tok = 2,
                                         .family = ASSAY_ROUTER_DEFAULT,
                                         .n_routing_groups = -1,
                                         .topk_routing_group = -1};
    const assay_routing_inputs in = {.logits = logits};
    double squares[3] = {0}, exact[3] = {0};
    for (uint64_t seed = 0; seed <= SEEDS; seed++) {
        double d_logits[3];
        run_backward(d_logits, NULL, &config, &in, d_weights, 0, seed);
        for (int e = 0; e < 3; e++) {
            if (seed == 0) exact[e] = d_logits[e];
            squares[e] += (d_logits[e] - exact[e]) * (d_logits[e] - exact[e]) / SEEDS;
        }
    }
    const double error = sqrt(squares[0]) / unit;
    if (!(error > 0.5 && error < 4)) fail_msg("%g roundings", error);
    assert_true(exact[2] == 0 && squares[2] > 0);
}
