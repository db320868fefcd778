/* What test_margins.c holds for routers alone, for layers and stacks, whose routers see what the layers before left: in
 * correct implementations of the case's own type no token comes near another choice of experts, nor another order. */
#include <math.h>

#include "compare/profile.h"
#include "harness/operations/paths.h"
#include "harness/plan/inputs.h"
#include "harness/tests/harness_test.h"
#include "oracle/arithmetic/emulated.h"

enum { MEMBERS = 24 };

/* A margin is to be so many of its own standard deviations. */
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
    return assay_path_in(path, "routing") && length > tail && strcmp(path + length - tail, name) == 0;
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
        if (isfinite(golden.margins[i])) least = fmin(least, golden.margins[i] / sqrt(squares[i]));
    }
    free(squares);
    decisions_free(&golden);
    decisions_free(&member);
    assay_plan_free(&plan);
    return least;
}

static bool has_layer(const assay_case *c)
{
    return strcmp(c->op, "deepseek_layer") == 0 || strcmp(c->op, "deepseek_stack") == 0;
}

TEST(no_decision_hangs_on_a_rounding)
{
    assay_context ctx = assay_context_default(1);
    assay_case *cases = NULL;
    int count = 0, wrong = 0, seen = 0;
    assert_ok(&ctx, assay_catalogue(&ctx, &cases, &count));
    for (int i = 0; i < count; i++) {
        if (!has_layer(&cases[i]) || has_tag(&cases[i], "near-tie") || has_tag(&cases[i], "true-size")) continue;
        const assay_profile *profile = assay_profile_for_dtype(cases[i].dtype);
        assert_non_null(profile);
        double least = least_margin(&cases[i], profile);
        seen++;
        if (least >= DEVIATIONS) continue;
        wrong++;
        print_error("%s: a margin is %.3g standard deviations at %s: choose another seed, or tag it near-tie\n",
                    cases[i].name, least, profile->precision.name);
    }
    assert_true(seen > 20);
    assert_int_equal(wrong, 0);
    assay_cases_free(cases, count);
}

/* The check sees what it is for: some of a few dozen seeds put a token near a tie. */
TEST(ties_are_seen)
{
    assay_context ctx = assay_context_default(1);
    int near = 0;
    for (uint64_t seed = 1; seed <= 12; seed++) {
        assay_case *c = case_named(&ctx, "deepseek_stack/tiny-4-layers", NULL);
        c->seed = seed;
        near += least_margin(c, assay_profile_by_name("bf16")) < 1;
        assay_cases_free(c, 1);
    }
    assert_true(near > 0);
}
