/* Every sum of the oracle has its rounding in the emulated arithmetic. The catalogue is run with nothing but partial sums
 * rounded: what is a sum of several terms moves. */
#include <fnmatch.h>

#include "harness/operations/op_support.h"
#include "harness/tests/golden_trial.h"
#include "oracle/arithmetic/emulated.h"

TEST_LABELS(slow);

static const double MOST_FLOPS = 3e6;

static void round_sums(const assay_context *ctx, assay_rounding rounding, int64_t count, double *values)
{
    if (rounding == ASSAY_ROUND_ACCUMULATE) assay_arithmetic_emulated.round(ctx, rounding, count, values);
}

static void round_terms(const assay_context *ctx, int64_t terms, int64_t count, const double *squares, double *sums)
{
    assay_arithmetic_emulated.round_terms(ctx, terms, count, squares, sums);
}

static assay_status exact_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    return assay_arithmetic_reference.matmul(ctx, args);
}

static assay_status emulated_matmul(assay_context *ctx, const assay_matmul_args *args)
{
    return assay_arithmetic_emulated.matmul(ctx, args);
}

/* With products exact what moves is moved by another sum. */
static const assay_arithmetic sums_alone = {
    .name = "sums", .matmul = exact_matmul, .round = round_sums, .round_terms = round_terms};
static const assay_arithmetic with_products = {
    .name = "sums and products", .matmul = emulated_matmul, .round = round_sums, .round_terms = round_terms};

/* Results of operations, by globs. */
typedef struct results_of {
    const char *cases, *paths;
} results_of;

/* Sums that are no products, or of what such a sum is a part: with products exact they move in every case. Where a tensor
 * has several readers, its gradient is a sum of stored numbers, whose rounding is that of storage. */
static const results_of SUMS[] = {{"rms_norm/*", "*"},
                                  {"permute/*", "gradients/inputs/x"},
                                  {"unpermute/*", "outputs/y"},
                                  {"unpermute/*", "gradients/inputs/weights"},
                                  {"routing/*", "outputs/?*_loss"},
                                  {"routing/*", "gradients/weights/gate/bias"},
                                  {"routing/*", "gradients/weights/per_expert_scale"},
                                  {"mlp/*", "gradients/weights/*/bias"},
                                  {"moe/*", "outputs/?*_loss"},
                                  {"moe/*", "gradients/weights/*_bias"},
                                  {"moe/*", "gradients/weights/gate/*"},
                                  {"moe/*", "gradients/weights/per_expert_scale"},
                                  {"moe/*", "gradients/inputs/*"},
                                  {"attention/*", "*"},
                                  {"gqa/*", "gradients/inputs/x"},
                                  {"gqa/*", "gradients/weights/sinks"},
                                  {"mla/*", "gradients/inputs/x"},
                                  {"mla/*", "gradients/weights/*norm/scale"},
                                  {"decoder_layer/*", "outputs/*"},
                                  {"decoder_layer/*", "gradients/*"},
                                  {"batch_split/*", "outputs/*norm_scale_weights_grad"},
                                  {"batch_split/reduce-scatter-ws-grad-mesh8", "outputs/ws_grad/w*"},
                                  {"batch_split/all-reduce-ws-grad-dcn-mesh8", "outputs/ws_grad/w*"},
                                  {"batch_split/quantized-psum-scatter-mesh*", "outputs/out"},
                                  {"batch_split/unroute", "outputs/*"}};

/* Operands that a recipe quantises move where a code does: with products exact in few elements. */
static const results_of BY_CODES[] = {{"gqa/recipe-*", "gradients/inputs/x"}, {"mla/recipe-*", "gradients/inputs/x"}};

/* What is moved, weighed or rotated, and no sum of several terms. */
static const results_of NO_SUMS[] = {
    {"permute/*", "outputs/sorted_inputs"},
    {"permute/one-expert-each", "*"},
    {"unpermute/*", "gradients/inputs/sorted"},
    {"gmm/*", "gradients/inputs/c"},
    {"yarn_rope/*", "*"},
    {"quantize/*", "*"},
    {"cache_append/*rope*", "checkpoints/k_pe"},
    {"cache_append/key-norm*", "checkpoints/value"},
    {"cache_append/rope*", "*"},
    {"dequantize/*", "*"},
    {"*", "outputs/*bias_updates"},
    {"*", "*decoder_layer_input"},
    {"rms_norm/all-zero", "*"},
    {"program/every-m*", "*"},
    {"program/whole-numbers", "checkpoints/chosen"},
    {"program/whole-numbers", "checkpoints/turns"},
    {"program/whole-numbers", "checkpoints/early"},
    {"program/whole-numbers", "checkpoints/seen"},
    {"program/every-reduction", "checkpoints/a"},
    {"program/add-norm", "*/s*"},
    {"program/quantise-rules", "checkpoints/[abc]*"},
    {"program/quantise-rules", "outputs/c"},
    {"program/quantise-blocks", "checkpoints/*"},
    {"program/quantise-blocks", "outputs/column"},
    /* of few bits: they move where a code does */
    {"program/norm-rope-quantise", "outputs/y"},
    {"program/kinks", "checkpoints/[a-e]"},
    {"program/kinks", "outputs/y"},
    {"program/cross-entropy-padded", "checkpoints/counts"},
    {"program/cross-entropy-padded", "outputs/[at]*"},
    {"program/cross-entropy-padded", "gradients/weights/table"},
    {"program/moe-sorted", "checkpoints/rows"}, /* gathered */
    {"program/cast", "checkpoints/n"},
    {"program/cast", "outputs/p"},
    {"program/erf-gelu", "*"},
    {"program/linear-scan", "checkpoints/a"},
    {"program/scan-by-head", "checkpoints/a"},
    {"program/gated-delta-net", "checkpoints/[gb]*"},
    {"program/hyper-connections", "checkpoints/e"},
    {"program/mhc*", "checkpoints/flat"}, /* reshaped */
    {"program/hyper-connections-apart", "checkpoints/flat"},
    {"program/moe-align", "[co]*"}, /* whole numbers, and rows of x */
    {"program/dispatch-combine", "checkpoints/*"},
    {"program/dispatch-combine", "outputs/[pir]*"},
    {"program/eplb*", "*"},
    {"program/dispatch-low-latency", "checkpoints/*"},
    {"program/dispatch-low-latency", "outputs/[bcrs]*"},
    {"program/dispatch-low-latency", "gradients/inputs/[bx]*"},
    {"program/compressed-sparse-attention", "checkpoints/[jw]"},
    {"program/dispatch-combine", "gradients/inputs/back"},
    {"program/adamw", "*"}, /* number by number */
    {"program/muon*", "checkpoints/[bu]"},
    {"program/muon*", "outputs/buffer"},
    {"program/muon*", "gradients/weights/w"},
    {"program/linear-cross-entropy*", "checkpoints/counts"}, /* whole numbers, as all that follow */
    {"program/sparse-attention*", "checkpoints/[sc]*n"},
    {"program/glm5-layer", "checkpoints/[sc]*n"},
    {"program/indexer-loss", "checkpoints/seen"},
    {"program/masks*", "checkpoints/[ijens]*"},
    {"program/attention-masks", "checkpoints/odd"},
    {"program/causal-conv-state", "*/[al]*"},
    {"program/rope-frequencies", "*"},
    {"program/top-k-lengths", "*"},
    {"program/lora-by-token", "checkpoints/own"},
    {"program/mtp", "checkpoints/c[0-2]"},
    {"program/compressed-*", "checkpoints/near"},
    {"program/compressed-*", "checkpoints/past"},
    {"program/compressed-blocks-*", "checkpoints/*e[nwpa]*"},
    {"gqa/one-token", "gradients/weights/*bias"},
    {"*one-expert*", "outputs/weights"},
    {"*", "routing/*weights"}, /* routing has them as outputs, divided by a sum or not */
    {"routing/method-topk-sigmoid-saturated", "outputs/weights"}};

/* Whose sums are a router's own, which rounds terms and partial sums alike; and functions of the batch-split schedule, most of
 * which move what they are given. */
static const results_of OTHERS[] = {
    {"routing/*", "gradients/inputs/logits"}, {"routing/*", "outputs/weights"}, {"batch_split/*", "*"}};

static bool is_among(const results_of *rows, size_t count, const char *name, const char *path)
{
    for (size_t i = 0; i < count; i++)
        if (fnmatch(rows[i].cases, name, 0) == 0 && fnmatch(rows[i].paths, path, 0) == 0) return true;
    return false;
}

/* The results of a run, at the golden's choice of experts where there is a golden. */
static void run(trial *t, assay_context *ctx, const assay_tensor_set *golden, assay_tensor_set *results)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set choice = {0};
    for (int i = 0; i < t->plan.list.count; i++) {
        const assay_tensor_spec *spec = &t->plan.list.entries[i].spec;
        if (!assay_role_is_input(spec->role)) assert_ok(ctx, assay_tensor_set_add(ctx, results, spec, NULL));
        if (golden == NULL || !assay_path_is_choice(spec->path)) continue;
        const assay_tensor *from = assay_tensor_set_find(golden, spec->path);
        assay_tensor *to = NULL;
        assert_ok(ctx, assay_tensor_set_add(ctx, &choice, spec, &to));
        memcpy(to->indices, from->indices, (size_t)from->count * sizeof *from->indices);
        to->written = to->count;
    }
    assay_overlay given = {assay_tensor_set_source(&choice), t->source};
    const assay_source in = assay_overlay_source(&given);
    const assay_sink out = assay_tensor_set_sink(results);
    assert_ok(ctx, assay_operation_run(ctx, t->plan.operation, t->c, &in, &out));
}

/* Not every element is a sum of several terms that are not 0: a token may be alone with its expert. */
static bool moved(const assay_tensor *golden, const assay_tensor *found)
{
    int64_t count = 0, off = 0;
    for (int64_t i = 0; i < golden->count; i++) {
        if (golden->values[i] == 0 || !isfinite(golden->values[i])) continue;
        count++;
        off += golden->values[i] != found->values[i];
    }
    return count == 0 || 10 * off >= count;
}

typedef bool is_judged(const char *name, const char *path);

static bool is_sum(const char *name, const char *path)
{
    return is_among(SUMS, sizeof SUMS / sizeof *SUMS, name, path) &&
           !is_among(NO_SUMS, sizeof NO_SUMS / sizeof *NO_SUMS, name, path) &&
           !is_among(BY_CODES, sizeof BY_CODES / sizeof *BY_CODES, name, path);
}

static bool is_result(const char *name, const char *path)
{
    return !is_among(NO_SUMS, sizeof NO_SUMS / sizeof *NO_SUMS, name, path) &&
           !is_among(OTHERS, sizeof OTHERS / sizeof *OTHERS, name, path);
}

/* Adds to the counts of results that were judged and of those that did not move. */
static void check_case(assay_case *c, const assay_arithmetic *arithmetic, is_judged *is_one, int *judged, int *still)
{
    trial t;
    OWNED_BY(assay_tensor_set_free) assay_tensor_set golden = {0}, found = {0};
    const assay_emulation sums = {.precision = {.name = "sums", .accumulate = 0x1p-24, .inputs = ASSAY_FLOAT64},
                                  .storage = ASSAY_FLOAT64,
                                  .multiply = ASSAY_FLOAT64};
    trial_plan(&t, c);
    if (assay_operation_flops(t.plan.operation, c, true) <= MOST_FLOPS) {
        assay_context own = t.ctx;
        own.arithmetic = arithmetic;
        own.emulation = &sums;
        run(&t, &t.ctx, NULL, &golden);
        run(&t, &own, &golden, &found);
    }
    for (int i = 0; i < golden.count; i++) {
        assay_tensor *g = &golden.items[i], *f = &found.items[i];
        if (g->values == NULL || !assay_tensor_is_complete(g) || !assay_has_error_scale(&g->spec)) continue;
        if (!is_one(c->name, g->spec.path)) continue;
        ++*judged;
        if (moved(g, f)) continue;
        printf("%s: %s is a sum without its rounding\n", c->name, g->spec.path);
        ++*still;
    }
    assay_inputs_close(&t.inputs);
    assay_plan_free(&t.plan);
}

static void check_catalogue(const assay_arithmetic *arithmetic, is_judged *is_one, int least)
{
    assay_context ctx = assay_context_default(1);
    char *all = (char *)"*";
    assay_case *cases = NULL;
    int count = 0, judged = 0, still = 0;
    assert_ok(&ctx, assay_cases_find(&ctx, 1, &all, &cases, &count));
    for (int i = 0; i < count; i++) check_case(&cases[i], arithmetic, is_one, &judged, &still);
    assay_cases_free(cases, count);
    assert_int_equal(still, 0);
    if (judged < least) fail_msg("%d results were judged", judged);
}

TEST(test_sums_that_are_no_products)
{
    check_catalogue(&sums_alone, is_sum, 1400);
}

TEST(test_every_result)
{
    check_catalogue(&with_products, is_result, 5000);
}
