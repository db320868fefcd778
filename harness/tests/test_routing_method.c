/* Each routing method of serving engines against its definition: the best K, by what, and what is done to them. */

#include "cases/routing_method.h"
#include "harness/equivalences/equivalence.h"
#include "harness/tests/harness_test.h"

enum { E = 6, K = 3 };
static const double LOGITS[E] = {0.5, -1, 2, 1.5, -0.25, 0.75}, BIAS[E] = {0.5, 0, -0.25, 0, 0.625, 0};

/* Softmax or sigmoid of all; or of the chosen alone. */
typedef enum stage { NOTHING, SOFTMAX, SIGMOID } stage;

typedef struct definition {
    const char *method;
    stage before, after; /* the choice */
    bool biased, divided;
    double factor;
} definition;

static const definition DEFINITIONS[] = {
    {"Default", SOFTMAX, NOTHING, false, false, 1},         {"Renormalize", NOTHING, SOFTMAX, false, false, 1},
    {"DeepSeekV3", SIGMOID, NOTHING, true, true, 2.5},      {"Llama4", NOTHING, NOTHING, false, false, 1},
    {"RenormalizeNaive", SOFTMAX, NOTHING, false, true, 1}, {"TopK", NOTHING, NOTHING, false, false, 1},
    {"SigmoidRenorm", SIGMOID, NOTHING, false, true, 1},    {"MiniMax2", SIGMOID, NOTHING, true, true, 2.5},
    {"Sigmoid", SIGMOID, NOTHING, false, false, 1},         {"TopKSigmoid", NOTHING, SIGMOID, false, false, 1},
};

static void pass(stage s, int count, double *x)
{
    double sum = 0;
    for (int i = 0; i < count; i++) sum += exp(x[i]);
    for (int i = 0; i < count; i++) x[i] = s == SOFTMAX ? exp(x[i]) / sum : s == SIGMOID ? 1 / (1 + exp(-x[i])) : x[i];
}

static void weigh(const definition *d, int count, int32_t *chosen, double *weights)
{
    double scores[E], by[E], sum = 0;
    memcpy(scores, LOGITS, sizeof scores);
    pass(d->before, E, scores);
    for (int e = 0; e < E; e++) by[e] = scores[e] + (d->biased ? BIAS[e] : 0);
    for (int k = 0; k < count; k++) {
        int best = 0;
        for (int e = 1; e < E; e++) best = by[e] > by[best] ? e : best;
        chosen[k] = best;
        weights[k] = scores[best];
        by[best] = -INFINITY;
    }
    pass(d->after, count, weights);
    for (int k = 0; k < count; k++) sum += weights[k];
    for (int k = 0; k < count; k++) weights[k] *= d->factor / (d->divided ? sum : 1);
}

TEST(every_method_is_its_definition)
{
    assert_int_equal(sizeof DEFINITIONS / sizeof *DEFINITIONS, 10);
    for (int i = 0; i < 10; i++) {
        const definition *d = &DEFINITIONS[i];
        assay_context ctx = assay_context_default(1);
        OWNED_BY(assay_form_free) assay_form form = {0};
        char yaml[1024];
        int32_t chosen[K];
        double weights[K];
        const int count = strcmp(d->method, "Llama4") == 0 ? 1 : K;
        assert_string_equal(assay_routing_method_names[i + 1], d->method); /* flashinfer's number */
        snprintf(yaml, sizeof yaml,
                 "{case: t, op: routing, dtype: float64, profiles: none, config: {num_experts: 6, num_experts_per_tok: "
                 "%d, routing_method: %s, routed_bias: %s, routed_scaling_factor: %g}, inputs: {logits: {values: "
                 "[0.5, -1, 2, 1.5, -0.25, 0.75]}%s}}",
                 count, d->method, d->biased ? "true" : "false", d->factor,
                 d->biased ? ", gate/bias: {values: [0.5, 0, -0.25, 0, 0.625, 0]}" : "");
        OWNED_BY(free_case) assay_case *c = case_from(yaml);
        assert_ok(&ctx, assay_form_evaluate(&ctx, c, NULL, &form));
        weigh(d, count, chosen, weights);
        const assay_tensor *found = assay_tensor_set_find(&form.results, "routing/selected_experts");
        assert_memory_equal(found->indices, chosen, (size_t)count * sizeof *chosen);
        assert_close(assay_tensor_set_find(&form.results, "outputs/weights")->values, weights, count, 1e-14, 0);
    }
    assert_null(assay_routing_method_names[11]);
    assert_null(assay_routing_method_by_name(""));
}
