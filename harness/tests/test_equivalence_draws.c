/* Cases drawn as `assay fuzz` draws them: whatever two forms they have agree. Of each equivalence some are tried. */

#include "harness/equivalences/equivalence.h"
#include "harness/fuzz/draw.h"
#include "harness/tests/harness_test.h"

TEST_LABELS(slow);

enum { EQUIVALENCES = 64, MOST_ELEMENTS = 20000, LEAST_TIMES = 5 };

/* All cases; and those that the fused path of inference computes as well, which are rare among them. */
static const struct {
    const char *op;
    assay_draw_sets sets;
} runs[] = {{NULL, {NULL, 0}},
            {"moe",
             {(const char *const[]){"sequence=16", "routed_bias=false", "mlp_bias=false", "routed_scaling_factor=1",
                                    "n_routing_groups=-1", "topk_routing_group=-1", "load_balance_loss_weight=0",
                                    "router_z_loss_weight=0", "routed_bias_update_rate=0", "sparse_matmul=true"},
              10}}};

static bool has_form(const assay_case *c, const assay_equivalence *e)
{
    assay_other_form form;
    return assay_other_form_of(c, e, &form);
}

/* Numbers that make no case are refused by the operation, and nothing is shown of them. */
static void check(const assay_case *c, int times[EQUIVALENCES])
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_form_free) assay_form one = {0};
    const assay_status status = assay_form_evaluate(&ctx, c, assay_profile_by_name("f64"), &one);
    if (status != ASSAY_BAD_INPUT) assert_ok(&ctx, status);
    for (int e = 0; status == ASSAY_OK && assay_equivalences[e].name != NULL; e++) {
        assay_equivalence_result result;
        assert_ok(&ctx, assay_equivalence_check(&ctx, &one, &assay_equivalences[e], &result));
        times[e] += result.applies;
        if (!result.applies || result.holds) continue;
        char *yaml = NULL;
        assert_ok(&ctx, assay_case_to_yaml(&ctx, c, &yaml));
        print_error("%s", yaml);
        fail_msg("%s: %g at %s[%d]: %.17g and %.17g", assay_equivalences[e].name, result.worst, result.path,
                 (int)result.index, result.one, result.other);
    }
}

/* Small ones, of which an equivalence holds that was tried fewer than `most` times. */
static void draw_and_check(int run, int64_t draws, int most, int times[EQUIVALENCES])
{
    OWNED_BY(assay_draws_free) assay_draws drawing;
    assay_context ctx = assay_context_default(1);
    assert_ok(&ctx, assay_draws_start(&ctx, &drawing, 1, runs[run].op, &runs[run].sets));
    for (int64_t i = 0; i < draws; i++) {
        OWNED_BY(assay_case_free) assay_case c = {0};
        assay_drawn drawn;
        bool is_news = false;
        assert_ok(&ctx, assay_draw(&ctx, &drawing, i, &c, &drawn));
        const bool small = assay_draw_elements(&c, NULL) <= MOST_ELEMENTS;
        assay_draws_learn(&drawing, &drawn, &c, small);
        for (int e = 0; small && assay_equivalences[e].name != NULL; e++)
            is_news |= times[e] < most && has_form(&c, &assay_equivalences[e]);
        if (is_news) check(&c, times);
    }
}

/* ASSAY_DRAWS asks for another number of draws, all of which are tried. */
TEST(drawn_configurations_agree)
{
    const char *asked = getenv("ASSAY_DRAWS");
    int times[EQUIVALENCES] = {0};
    draw_and_check(0, asked == NULL ? 5000 : atoi(asked), asked == NULL ? 16 : INT32_MAX, times);
    draw_and_check(1, 300, LEAST_TIMES, times);
    for (int e = 0; assay_equivalences[e].name != NULL; e++) {
        print_message("%-24s %d configurations\n", assay_equivalences[e].name, times[e]);
        if (asked == NULL && times[e] < LEAST_TIMES) fail_msg("%s was hardly tried", assay_equivalences[e].name);
    }
}
