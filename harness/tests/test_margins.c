/* No ordinary case of the catalogue stands or falls with a rounding (SPEC 5): in correct implementations of the case's own
 * type no token comes near another choice of experts, nor another order. Cases that are made of ties say so by a tag. */
#include <math.h>

#include "compare/profile.h"
#include "harness/plan/inputs.h"
#include "harness/tests/harness_test.h"
#include "oracle/arithmetic/emulated.h"

enum { MEMBERS = 24 };

/* A margin is to be so many of its own standard deviations: a correct backend errs by some, and 8 do not happen. */
#define DEVIATIONS 8.0

/* The routing of one run, every layer's one after the other. */
typedef struct decisions {
    double *margins;
    int32_t *experts;
    int64_t margin_count, expert_count, room;
} decisions;

static bool ends_with(const char *path, const char *name)
{
    const size_t length = strlen(path), tail = strlen(name);
    return assay_role_of(path) == ASSAY_ROLE_ROUTING && length > tail && strcmp(path + length - tail, name) == 0;
}

static bool wants(void *self, const char *path)
{
    (void)self;
    return ends_with(path, "/margin") || ends_with(path, "/selected_experts");
}

static assay_status write_margins(assay_context *ctx, void *self, const char *path, int64_t count, const double *values)
{
    decisions *d = self;
    (void)ctx;
    (void)path;
    assert_true(d->margin_count + count <= d->room);
    memcpy(d->margins + d->margin_count, values, (size_t)count * sizeof *values);
    d->margin_count += count;
    return ASSAY_OK;
}

static assay_status write_experts(assay_context *ctx, void *self, const char *path, int64_t count,
                                  const int32_t *values)
{
    decisions *d = self;
    (void)ctx;
    (void)path;
    assert_true(d->expert_count + count <= d->room);
    memcpy(d->experts + d->expert_count, values, (size_t)count * sizeof *values);
    d->expert_count += count;
    return ASSAY_OK;
}

static void decide(assay_context *ctx, const assay_plan *plan, decisions *d)
{
    assay_inputs inputs = {0};
    const assay_sink out = {.self = d, .wants = wants, .write = write_margins, .write_i32 = write_experts};
    d->margin_count = d->expert_count = 0;
    assert_ok(ctx, assay_inputs_open(ctx, &inputs, plan->c, &plan->list, NULL));
    assay_source in = assay_inputs_source(&inputs);
    assert_ok(ctx, plan->operation->run(ctx, plan->c, &in, &out, NULL, 0));
    assay_inputs_close(&inputs);
}

static decisions decisions_of(const assay_plan *plan)
{
    decisions d = {.room = plan->c->batch * plan->c->sequence * plan->c->config.num_experts_per_tok *
                           (1 + plan->c->config.base_num_decoder_layers)};
    d.margins = calloc((size_t)d.room, sizeof *d.margins);
    d.experts = calloc((size_t)d.room, sizeof *d.experts);
    assert_non_null(d.margins);
    assert_non_null(d.experts);
    return d;
}

static void decisions_free(decisions *d)
{
    free(d->margins);
    free(d->experts);
}

/* The least margin in standard deviations of it, over the tokens of all layers; 0 where a member decides otherwise. */
static double least_margin(const assay_case *c, const assay_profile *profile)
{
    assay_context ctx = assay_context_default(1);
    assay_plan plan = {0};
    assert_ok(&ctx, assay_plan_make(&ctx, &plan, c));
    decisions golden = decisions_of(&plan), member = decisions_of(&plan);
    decide(&ctx, &plan, &golden);
    double *squares = calloc((size_t)golden.room, sizeof *squares), least = INFINITY;
    assert_non_null(squares);
    assay_emulation emulation = {
        .precision = profile->precision, .storage = profile->storage, .multiply = profile->multiply};
    ctx.arithmetic = &assay_arithmetic_emulated;
    ctx.emulation = &emulation;
    for (int m = 0; m < MEMBERS; m++) {
        emulation.seed = (uint64_t)(1000 + m);
        decide(&ctx, &plan, &member);
        assert_int_equal(member.margin_count, golden.margin_count);
        assert_int_equal(member.expert_count, golden.expert_count);
        for (int64_t i = 0; i < golden.expert_count; i++) {
            if (member.experts[i] != golden.experts[i]) least = 0;
        }
        for (int64_t i = 0; i < golden.margin_count; i++)
            squares[i] += (member.margins[i] - golden.margins[i]) * (member.margins[i] - golden.margins[i]) / MEMBERS;
    }
    for (int64_t i = 0; i < golden.margin_count; i++) {
        if (golden.margins[i] == 0) least = 0;
        if (isfinite(golden.margins[i]) && squares[i] > 0) least = fmin(least, golden.margins[i] / sqrt(squares[i]));
    }
    free(squares);
    decisions_free(&golden);
    decisions_free(&member);
    assay_plan_free(&plan);
    return least;
}

static bool has_router(const assay_case *c)
{
    return c->config.num_experts > 1 && c->config.first_num_hash_layers == 0 &&
           (strcmp(c->op, "routing") == 0 || strcmp(c->op, "moe") == 0 || strncmp(c->op, "deepseek_", 9) == 0);
}

TEST(no_decision_hangs_on_a_rounding)
{
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    int count = 0, wrong = 0, seen = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    for (int i = 0; i < count; i++) {
        if (!has_router(&cases[i]) || has_tag(&cases[i], "near-tie") || has_tag(&cases[i], "true-size")) continue;
        const assay_profile *profile = assay_profile_for_dtype(cases[i].dtype);
        assert_non_null(profile);
        const double least = least_margin(&cases[i], profile);
        seen++;
        if (least >= DEVIATIONS) continue;
        wrong++;
        print_error("%s: a margin is %.3g standard deviations at %s: choose another seed, or tag it near-tie\n",
                    cases[i].name, least, profile->precision.name);
    }
    assert_true(seen > 80);
    assert_int_equal(wrong, 0);
    assay_cases_free(cases, count);
}

/* The check sees what it is for: ties, some of a few dozen seeds that put a token near one, and a router in bfloat16
 * where a case is made against it. */
TEST(ties_are_seen)
{
    static const struct {
        const char *name, *profile;
        double below;
    } table[] = {
        {"routing/exact-ties", "f32", 1},
        {"routing/exact-ties-groups", "f32", 1},
        {"routing/exact-ties-softmax", "f32", 1},
        {"routing/all-equal", "f32", 1},
        {"moe/near-ties", "f32", 1},
        {"routing/bias-offset-30", "bf16_router", 4},
        {"routing/logits-offset", "bf16_router", 4},
        {"moe/bias-offset-30", "bf16_router", 4},
    };
    assay_context ctx = assay_context_default(1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assay_case *c = case_named(&ctx, table[i].name, NULL);
        const double least = least_margin(c, assay_profile_by_name(table[i].profile));
        if (!(least < table[i].below)) fail_msg("%s: %g", c->name, least);
        assay_cases_free(c, 1);
    }
    int near = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        assay_case *c = case_named(&ctx, "deepseek_stack/tiny-4-layers", NULL);
        c->seed = seed;
        near += least_margin(c, assay_profile_by_name("bf16")) < 1;
        assay_cases_free(c, 1);
    }
    assert_true(near > 0);
}
