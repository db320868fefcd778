/* Mutants made from the steps of a case: a program whose text has the change gives the same, to the last gradient; what flows back
 * is the derivative of what is wrong; those that are none are recognised; and a failure names the step. */

#include "harness/mutants/step_changes.h"
#include "harness/power/power_test.h"
#include "harness/tests/golden_trial.h"
#include "oracle/graph/graph_kind.h"

TEST_LABELS(units);

/* A case whose text has `to` for `from`. */
static assay_case *with_text(const char *name, const char *from, const char *to)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(free_case) assay_case *c = case_named(name, "profiles=none");
    char *text = NULL, changed[8192];
    assert_ok(&ctx, assay_case_to_yaml(&ctx, c, &text));
    const char *at = strstr(text, from);
    if (at == NULL) fail_msg("%s has no %s", name, from);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return case_from(changed);
}

static const assay_mutant *named(const assay_mutant_list *list, const char *name)
{
    const int place = assay_mutant_place(list, name);
    if (place < 0) fail_msg("there is no mutant %s", name);
    return list->items[place];
}

static const struct {
    const char *name, *mutant, *from, *to;
} TEXTS[] = {
    {"program/swiglu", "step:h.silu:left_out", "silu(g)", "g"},
    {"program/swiglu", "step:h.silu:as_gelu", "silu(g)", "gelu(g)"},
    {"program/swiglu", "step:h.silu:negated", "silu(g)", "neg(silu(g))"},
    {"program/swiglu", "step:h.silu:doubled", "silu(g)", "mul(2, silu(g))"},
    {"program/swiglu", "step:h.mul:as_div", "mul(silu(g), u)", "div(silu(g), u)"},
    {"program/attention-masks", "step:begun.less2:one_longer", "window=2, prefix=1", "window=3, prefix=1"},
    {"program/attention-masks", "step:begun.less3:one_longer", "prefix=1", "prefix=2"},
    {"program/attention-masks", "step:o.less:other_alignment_back", "cap=5", "cap=5, mask=\\\"causal_first\\\""},
    {"program/attention-masks", "step:o.less:always", "cap=5", "cap=5, mask=\\\"full\\\""},
    {"program/transformer-layer", "step:o:window_longer", "window=6", "window=7"},
    {"program/transformer-layer", "step:o:window_ignored", ", window=6", ""},
    {"program/transformer-layer", "step:o:last_exchanged", "attention(q, k, v,", "attention(q, v, k,"},
    {"program/transformer-layer", "step:o.mul:left_out", "window=6", "window=6, scale=1"},
    {"program/transformer-layer", "step:o.mul:factor_twice", "window=6", "window=6, scale=0.125"},
    {"program/transformer-layer", "step:q.rotation_angles:other_theta", "wq), positions, theta=500000.0",
     "wq), positions, theta=25000000.0"},
    {"program/transformer-layer", "step:k:other_pairs", "wk), positions, theta=500000.0",
     "wk), positions, theta=500000.0, interleave=true"},
    {"program/transformer-layer", "step:n:other_epsilon", "rms_norm(x, pre)", "rms_norm(x, pre, epsilon=1e-5)"},
    {"program/transformer-layer", "step:r:as_sub", "add(x,", "sub(x,"},
    {"program/transformer-layer", "step:m:left_out", "rms_norm(r, post)", "mul(add(r, mul(post, 0)), 1)"},
    {"program/gemma3-layer", "step:n:by_w", "add(before_attention, 1)", "before_attention"},
    {"program/gemma4-layer", "step:n:by_1_plus_w", "rms_norm(x, before_attention)",
     "add(rms_norm(x, before_attention), rms_norm(x))"},
    {"program/lora-by-token", "step:own.float:none_as_first_of_adapter", "float(adapter)",
     "maximum(float(adapter), 0)"},
    {"program/gated-delta-net", "step:beta:always_open", "sigmoid(b)", "add(mul(b, 0), 1)"},
    {"program/gated-delta-net", "step:y:without_gate", "key, v, gate,", "key, v, mul(gate, 0),"},
    {"program/every-reduction", "step:p:over_T", "softmax(a, over=\\\"D\\\")", "softmax(a, over=\\\"T\\\")"},
    {"program/every-reduction", "step:m:as_sum", "mean(mul", "sum(mul"},
    {"program/every-move", "step:p:other_first", "\\\"D->P\\\", x", "\\\"D->P\\\", x, first=1"},
    {"program/every-move", "step:r:other_first", "first=2", "first=3"},
    {"program/hyper-connections", "step:y:transposed_h_IJ", "h, streams", "rearrange(\\\"IJ->JI\\\", h), streams"},
    {"program/merge-states", "step:d:exchanged", "sub(first_lse, second_lse)", "sub(second_lse, first_lse)"},
    {"program/top-k-softmax", "step:weights:of_all", "softmax(pick(logits, ids), over=\\\"K\\\")",
     "pick(softmax(logits, over=\\\"E\\\"), ids)"},
    {"program/every-reduction", "step:p:not_divided", "softmax(a, over=\\\"D\\\")",
     "exp(sub(a, max(a, over=\\\"D\\\")))"},
    {"program/every-reduction", "step:p:not_divided_maximum_detached", "softmax(a, over=\\\"D\\\")",
     "exp(sub(a, detach(max(a, over=\\\"D\\\"))))"},
};

/* The mutant of one case, which that frees, gives what the other gives. */
static void is_same(assay_case *c, const char *mutant, assay_case *other)
{
    trial plain, changed;
    OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
    bool applies = true;
    trial_evaluate(&plain, c, NULL);
    trial_evaluate(&changed, other, NULL);
    const assay_trial at = trial_at(&plain, "f32");
    assert_ok(&plain.ctx, assay_mutants_of(&plain.ctx, &plain.plan, -1, &list));
    assert_ok(&plain.ctx, assay_mutant_make(&plain.ctx, &at, named(&list, mutant), &results, &applies));
    assert_true(applies);
    for (int t = 0; t < results.count; t++) {
        const assay_tensor *own = &results.items[t], *its = assay_tensor_set_find(&changed.golden, own->spec.path);
        double largest = 0;
        if (!assay_role_is_required(own->spec.role) || own->values == NULL) continue;
        for (int64_t k = 0; k < its->count; k++)
            if (isfinite(its->values[k])) largest = fmax(largest, fabs(its->values[k]));
        for (int64_t k = 0; k < own->count; k++)
            if (own->values[k] != its->values[k] && !(fabs(own->values[k] - its->values[k]) <= 1e-13 * largest))
                fail_msg("%s of %s: %s[%d] is %.17g, expected %.17g", mutant, c->name, own->spec.path, (int)k,
                         own->values[k], its->values[k]);
    }
    trial_close(&plain);
    trial_close(&changed);
}

TEST(a_changed_program_gives_the_same)
{
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++)
        is_same(case_named(TEXTS[i].name, "profiles=none"), TEXTS[i].mutant,
                with_text(TEXTS[i].name, TEXTS[i].from, TEXTS[i].to));
}

#define WRITTEN "case: written\nop: program\nprofiles: none\n"
#define PRODUCT WRITTEN "inputs: {x: [T, D]}\nweights: {w: [D, E]}\nsizes: {T: 3, D: 20, E: 4"
#define SCAN                                                                                                           \
    WRITTEN "inputs: {a: {axes: [T, N, P], distribution: uniform, low: 0.5, high: 1}, b: [T, N, P]}\n"                 \
            "sizes: {T: 12, N: 2, P: 3"
#define SCANNED SCAN "}\nsteps: {}\noutputs:\n  y: linear_scan(a, b, over=\"T\")\n"
#define CONVOLUTION WRITTEN "inputs: {x: [T, C]}\nweights: {w: [C, K]}\nsizes: {T: 12, C: 5, K: 4"
#define CONVOLVED CONVOLUTION "}\nsteps: {}\noutputs:\n  y: causal_conv(x, w)\n"
#define FROM_STATE                                                                                                     \
    "  more: causal_conv(concatenate(\"S,L->W\", s, slice(\"T->L\", x, first=8)), w)\noutputs:\n"                      \
    "  y: concatenate(\"F,L->T\", causal_conv(slice(\"T->F\", x), w), slice(\"W->L\", more, first=3))\n"
#define ROUTER                                                                                                         \
    WRITTEN "sizes: {T: 9, D: 16, E: 8, K: 3, G: 4, P: 2, H: 2}\n"                                                     \
            "inputs:\n  x: [T, D]\n  number: {axes: [E], integers: [0, 3], values: [0, 0, 1, 1, 2, 2, 3, 3]}\n"        \
            "weights: {gate: [D, E], o: [E, D]}\nsteps:\n  scores: sigmoid(product(\"TD,DE->TE\", x, gate))\n"         \
            "  groups: reshape(\"TGP\", scores)\n  best: top_k(max(groups, over=\"P\"), \"G->H\")\n"                   \
            "  inside: max(equal(rearrange(\"TH->HT\", float(best)), float(number)), over=\"H\")\n"                    \
            "  ids: top_k(where(inside, scores, -1), \"E->K\")\n"
#define PICKED ROUTER "outputs:\n  w: pick(scores, ids)\n  z: gather(o, ids)\n"
#define WIDE                                                                                                           \
    WRITTEN "inputs: {x: [T, D]}\nweights: {w: [D, E]}\nsizes: {T: 9, D: 72, E: 16}\nsteps: {}\n"                      \
            "outputs:\n  y: product(\"TD,DE->TE\", x, w)\n"

#define DELTA                                                                                                          \
    WRITTEN "sizes: {T: 12, N: 2, K: 3, V: 2}\ninputs:\n  q: [T, N, K]\n  k: [T, N, K]\n  v: [T, N, V]\n"              \
            "  g: {axes: [T, N], distribution: uniform, low: -1, high: 0}\n"                                           \
            "  b: {axes: [T, N], distribution: uniform, low: 0, high: 1}\n"                                            \
            "steps: {}\noutputs:\n  y: gated_delta_rule(q, k, v, g, b)\n"

/* What they do, written out. */
static const struct {
    const char *right, *mutant, *wrong;
} WRONG[] = {
    {PRODUCT "}\nsteps: {}\noutputs:\n  y: product(\"TD,DE->TE\", x, w)\n", "step:y:reads_on_16_of_x",
     PRODUCT
     ", U: 2, O: 1, R: 12}\nsteps:\n  p: product(\"TD,DE->TE\", x, w)\n"
     "  next: product(\"UR,RE->UE\", slice(\"D->R\", slice(\"T->U\", x, first=1)), slice(\"D->R\", w, first=4))\n"
     "outputs:\n  y: concatenate(\"U,O->T\", add(slice(\"T->U\", p), next), slice(\"T->O\", p, first=2))\n"},
    {PRODUCT "}\nsteps: {}\noutputs:\n  y: product(\"TD,DE->TE\", x, w)\n", "step:y:tail_twice_16_of_x",
     PRODUCT ", R: 12}\nsteps: {}\noutputs:\n  y: add(product(\"TD,DE->TE\", x, w), "
             "product(\"TR,RE->TE\", slice(\"D->R\", x, first=4), slice(\"D->R\", w, first=4)))\n"},
    {PRODUCT "}\nsteps: {}\noutputs:\n  y: sum(x, over=\"D\")\n  z: product(\"TD,DE->TE\", x, w)\n",
     "step:y:reads_on_16_of_x",
     PRODUCT ", U: 2, O: 1, R: 12}\nsteps:\n  s: sum(x, over=\"D\")\n"
             "  next: sum(slice(\"D->R\", slice(\"T->U\", x, first=1)), over=\"R\")\noutputs:\n"
             "  y: concatenate(\"U,O->T\", add(slice(\"T->U\", s), next), slice(\"T->O\", s, first=2))\n"
             "  z: product(\"TD,DE->TE\", x, w)\n"},
    {SCANNED, "step:y:state_transposed_8",
     SCAN ", F: 8, L: 4, O: 1, M: 3}\nsteps:\n  f: linear_scan(slice(\"T->F\", a), slice(\"T->F\", b), over=\"F\")\n"
          "  s: rearrange(\"OPN->ONP\", reshape(\"OPN\", slice(\"F->O\", f, first=7)))\n"
          "  al: slice(\"T->L\", a, first=8)\n  bl: slice(\"T->L\", b, first=8)\n"
          "  from: concatenate(\"O,M->L\", add(slice(\"L->O\", bl), mul(slice(\"L->O\", al), s)), "
          "slice(\"L->M\", bl, first=1))\n"
          "outputs:\n  y: concatenate(\"F,L->T\", f, linear_scan(al, from, over=\"L\"))\n"},
    {CONVOLVED, "step:y:state_transposed_8",
     CONVOLUTION ", F: 8, L: 4, W: 7, S: 3}\nsteps:\n"
                 "  s: rearrange(\"CS->SC\", reshape(\"CS\", slice(\"T->S\", x, first=5)))\n" FROM_STATE},
    {CONVOLVED, "step:y:state_reversed_8",
     CONVOLUTION ", F: 8, L: 4, W: 7, S: 3, O: 1, I: 1, J: 1, V: 2}\nsteps:\n"
                 "  b: concatenate(\"O,I->V\", slice(\"T->O\", x, first=7), slice(\"T->I\", x, first=6))\n"
                 "  s: concatenate(\"V,J->S\", b, slice(\"T->J\", x, first=5))\n" FROM_STATE},
    {PICKED, "step:w:chooses_by_scores",
     ROUTER "  own: top_k(scores, \"E->K\")\noutputs:\n  w: pick(scores, own)\n  z: gather(o, ids)\n"},
};

static assay_case *of(const char *name, const char *profiles)
{
    assay_context ctx = assay_context_default(1);
    assay_case *c = strchr(name, '\n') != NULL ? case_from(name) : case_named(name, NULL);
    assert_ok(&ctx, assay_case_set(&ctx, c, profiles));
    return c;
}

TEST(what_is_wrong_can_be_written_out)
{
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++)
        is_same(case_from(WRONG[i].right), WRONG[i].mutant, case_from(WRONG[i].wrong));
}

/* Some direction, or the sum of what is along it. */
static double direction(int tensor, int64_t i)
{
    return sin(12.9898 * (double)(i + 1) + 78.233 * tensor);
}

/* The loss of outputs by their cotangents, and what its gradient is along the direction. */
static void measure(const assay_tensor_set *set, double *loss, double *slope, double *size)
{
    *loss = *slope = *size = 0;
    for (int t = 0; t < set->count; t++) {
        const assay_tensor *tensor = &set->items[t];
        char path[ASSAY_PATH_SIZE];
        if (tensor->spec.role == ASSAY_ROLE_OUTPUT) {
            snprintf(path, sizeof path, "cotangents/%s", strchr(tensor->spec.path, '/') + 1);
            const assay_tensor *cotangent = assay_tensor_set_find(set, path);
            for (int64_t k = 0; k < tensor->count; k++) *loss += cotangent->values[k] * tensor->values[k];
        }
        assay_gradient_path(tensor->spec.path, path);
        const assay_tensor *gradient = assay_tensor_set_find(set, path);
        if (!assay_role_is_input(tensor->spec.role) || gradient == NULL) continue;
        for (int64_t k = 0; k < tensor->count; k++) {
            *slope += direction(t, k) * gradient->values[k];
            *size += fabs(direction(t, k) * gradient->values[k]);
        }
    }
}

static double loss_at(trial *t, const assay_mutant *mutant, double step, double *slope, double *size)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set moved = {0}, results = {0};
    assay_trial at = trial_at(t, "f64");
    bool applies = true;
    double loss;
    assert_ok(&t->ctx, assay_tensor_set_copy(&t->ctx, &t->golden, &moved));
    for (int i = 0; i < moved.count; i++) {
        const assay_tensor *tensor = &moved.items[i];
        const assay_tensor_role role = tensor->spec.role;
        const bool moves = (role == ASSAY_ROLE_INPUT || role == ASSAY_ROLE_WEIGHT) && tensor->values != NULL;
        for (int64_t k = 0; moves && k < tensor->count; k++) tensor->values[k] += step * direction(i, k);
    }
    at.golden = &moved;
    assert_ok(&t->ctx, assay_tensor_set_copy(&t->ctx, &moved, &results));
    assert_ok(&t->ctx, assay_mutant_evaluate(&t->ctx, &at, mutant, &results, &applies));
    measure(&results, &loss, slope, size);
    if (!applies) *size = loss = 0; /* other indices, which are out of range */
    return loss;
}

/* Of what is detached, and of gradients that stay apart, there is none to be; what is rounded has none; a quotient by numbers near 0 has one that differences do not
 * show; and some steps go back by what they have made, wrong as it is. */
static bool has_derivative(const graph *g, const assay_mutant *mutant)
{
    const assay_step_change_kind change = (assay_step_change_kind)(mutant->step.change % ASSAY_STEP_CHANGE_COUNT);
    const bool spoilt = (change >= ASSAY_STEP_CHANGE_NEGATED && change <= ASSAY_STEP_CHANGE_LAST_ROW_STALE) ||
                        change == ASSAY_STEP_CHANGE_INTERLEAVED;
    const graph_kind *kind = g->steps[mutant->step.step - 1].kind;
    const bool quotient = strstr(mutant->name, ":as_div") != NULL;
    if (strstr(mutant->name, "_gradients_apart") != NULL || strstr(mutant->name, "_maximum_detached") != NULL)
        return false;
    return change < ASSAY_STEP_CHANGE_DETACHED && change != ASSAY_STEP_CHANGE_COARSER &&
           change != ASSAY_STEP_CHANGE_STORED && !quotient && !(spoilt && kind->reads >> GRAPH_READS_OUT != 0);
}

TEST(what_flows_back_is_the_derivative)
{
    static const char *const names[] = {"program/swiglu",
                                        "program/lora",
                                        "program/causal-conv",
                                        SCANNED,
                                        DELTA,
                                        "program/norm-rope",
                                        "program/transformer-layer",
                                        "program/every-move",
                                        "program/batched-product"};
    const double step = 1e-5;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        trial t;
        int tried = 0;
        OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
        OWNED graph *g = calloc(1, sizeof *g);
        assert_non_null(g);
        assay_case *c = of(names[i], "profiles=none");
        c->dtype = ASSAY_FLOAT64;
        trial_evaluate(&t, c, NULL);
        assert_ok(&t.ctx, assay_mutants_of(&t.ctx, &t.plan, -1, &list));
        assert_ok(&t.ctx, assay_operation_graph(&t.ctx, t.plan.operation, t.c, g));
        for (int k = assay_mutant_count; k < list.count; k++) {
            double slope, size, ignored;
            if (!has_derivative(g, list.items[k])) continue;
            loss_at(&t, list.items[k], 0, &slope, &size);
            if (size == 0) continue;
            tried++;
            const double found = (loss_at(&t, list.items[k], step, &ignored, &ignored) -
                                  loss_at(&t, list.items[k], -step, &ignored, &ignored)) /
                                 (2 * step);
            if (!(fabs(found - slope) <= 1e-6 * size))
                fail_msg("%s of %s: %.12g flows back, expected %.12g", list.items[k]->name, names[i], slope, found);
        }
        assert_true(tried > 10);
        trial_close(&t);
    }
}

/* Every operation that has a graph has some; each goes by its own name, which is a file's too. */
TEST(names_are_names_of_files_and_differ)
{
    static const char *const names[] = {"program/every-map", "program/transformer-layer", "mla/small", "gqa/gpt-oss",
                                        "mlp/silu",          "layer_norm/small"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        OWNED_BY(trial_close) trial t;
        OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
        trial_plan(&t, case_named(names[i], "profiles=none"));
        assert_ok(&t.ctx, assay_mutants_like(&t.ctx, &t.plan, "step:*", &list));
        for (int k = 0; k < list.count; k++) {
            const char *name = list.items[k]->name;
            assert_true(assay_mutant_is_of_step(list.items[k]) && strlen(name) < ASSAY_EXPLAINED_NAME - 1);
            assert_true(strchr(name, '/') == NULL && strchr(name, ' ') == NULL);
            assert_string_equal(assay_mutant_way(list.items[k]), "steps");
            if (assay_mutant_place(&list, name) != k) fail_msg("%s: %s is there twice", names[i], name);
        }
        assay_mutant_list_free(&list);
        assert_int_equal(assay_mutants_like(&t.ctx, &t.plan, "step:no_such:*", &list), ASSAY_BAD_INPUT);
    }
}

static const assay_mutant_result *result_of(const assay_power_test *found, const char *name)
{
    const int place = assay_mutant_place(&found->mutants, name);
    if (place < 0) fail_msg("there is no mutant %s", name);
    return &found->items[place];
}

/* Symmetric exchanges, factors and shifts of what is normalised after: they count nowhere. */
TEST(what_changes_nothing_is_equivalent)
{
    static const struct {
        const char *name, *mutant;
        bool equivalent;
    } table[] = {{"program/hyper-connections", "step:a.sum:doubled", true},
                 {"program/hyper-connections", "step:h:doubled", false},
                 {"program/hyper-connections", "step:c.sum:as_mean", true},
                 {"program/add-norm", "step:s:exchanged", true},
                 {"program/add-norm", "step:s:as_sub", false},
                 {"program/every-reduction", "step:a.max:as_mean", true},
                 {"program/every-reduction", "step:a:exchanged", false},
                 {"program/batched-product", "step:s.order:left_out", true}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        OWNED_BY(trial_close) trial t;
        OWNED_BY(assay_power_test_free) assay_power_test found = {0};
        trial_evaluate(&t, case_named(table[i].name, "profiles=[f32]"), NULL);
        t.plan.mutants_like = table[i].mutant;
        assert_ok(&t.ctx,
                  assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
        assert_ok(&t.ctx, assay_power_find_unshown(&t.ctx, &t.plan, &t.golden, &found));
        const assay_mutant_result *r = result_of(&found, table[i].mutant);
        if (r->equivalent != table[i].equivalent) fail_msg("%s: %s", table[i].name, table[i].mutant);
        assert_int_equal(r->outcome, table[i].equivalent ? ASSAY_MUTANT_NOT_APPLICABLE : ASSAY_MUTANT_DETECTED);
        assert_int_equal(found.power.effective, table[i].equivalent ? 0 : 1);
    }
}

static const char CROWDED[] = "case: test/crowded\nop: program\nsizes: {T: 8, E: 6, K: 1}\ninputs: {x: [T, E]}\n"
                              "weights: {bias: {axes: [E], scale: 1000}}\n"
                              "steps:\n  b: add(x, bias)\n  ids: top_k(b, \"E->K\")\n"
                              "outputs:\n  y: pick(x, ids)\nprofiles: [f32]\n";

/* A bias that chooses the same for all rows hides what another row would have chosen; its sign shows, and a factor never does. */
TEST(what_this_data_hides_is_not_equivalent)
{
    static const struct {
        const char *mutant;
        bool equivalent, unshown;
    } table[] = {{"step:b:last_row_stale", false, true},
                 {"step:b:first_alone", false, false},
                 {"step:b:doubled", true, false},
                 {"step:b:exchanged", true, false}};
    OWNED_BY(trial_close) trial t;
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    trial_evaluate(&t, case_from(CROWDED), NULL);
    assert_ok(&t.ctx,
              assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    assert_ok(&t.ctx, assay_power_find_unshown(&t.ctx, &t.plan, &t.golden, &found));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const assay_mutant_result *r = result_of(&found, table[i].mutant);
        if (r->equivalent != table[i].equivalent || r->unshown != table[i].unshown) fail_msg("%s", table[i].mutant);
    }
}

/* Of a program its steps' mutants are among those that count; of another operation they are where they are asked for. */
TEST(programs_have_them_and_others_are_asked)
{
    OWNED_BY(trial_close) trial t;
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    trial_evaluate(&t, case_named("program/lora", "profiles=[f32]"), NULL);
    assert_ok(&t.ctx,
              assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    assert_int_equal(result_of(&found, "step:low:tail_not_read")->outcome, ASSAY_MUTANT_DETECTED);
    assert_int_equal(result_of(&found, "step:y.product:second_detached")->changed, 1);
    assert_int_equal(result_of(&found, "zero_results")->outcome, ASSAY_MUTANT_DETECTED);
    assay_power_test_free(&found);
    trial_close(&t);

    trial_evaluate(&t, case_named("mla/small", "profiles=[f32]"), NULL);
    assay_mutant_list list = {0};
    assert_ok(&t.ctx, assay_mutants_of(&t.ctx, &t.plan, -1, &list));
    assert_int_equal(list.count, assay_mutant_count);
    assay_mutant_list_free(&list);
    t.plan.mutants_like = "step:mla_kv:*";
    assert_ok(&t.ctx,
              assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    assert_int_equal(result_of(&found, "step:mla_kv:left_out")->outcome, ASSAY_MUTANT_DETECTED);
    assert_int_equal(result_of(&found, "step:mla_kv:doubled")->outcome, ASSAY_MUTANT_DETECTED);
    assay_power_test_free(&found);
    /* of what expand gives nothing reads the key; and the case has no segments */
    t.plan.mutants_like = "step:*reads*";
    assert_ok(&t.ctx,
              assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    assert_int_equal(result_of(&found, "step:attention_out:second_reads_query_proj")->outcome, ASSAY_MUTANT_DETECTED);
    assert_int_equal(result_of(&found, "step:query_proj.rotation_angles:first_reads_segment_ids")->outcome,
                     ASSAY_MUTANT_NOT_APPLICABLE);
}

static bool is_required(const assay_tensor_spec *spec)
{
    return assay_role_is_required(spec->role);
}

/* A candidate that has a step wrong: the report says which. */
TEST_IN_FOLDER(a_failure_names_the_step)
{
    static const struct {
        const char *name, *mutant;
    } table[] = {{"program/swiglu", "step:h.silu:as_gelu"},
                 {"program/swiglu", "step:u:tail_not_read"},
                 {"program/swiglu", "step:h.mul:last_row_stale"},
                 {"program/swiglu", "step:g:second_reads_up"},
                 {WIDE, "step:y:reads_on_32_of_x"},
                 {WIDE, "step:y:tail_twice_64_of_x"},
                 {PICKED, "step:w:chooses_by_scores"},
                 {"program/causal-conv", "step:v:state_transposed_16"},
                 {"program/causal-conv", "step:v:state_reversed_16"},
                 {"program/linear-scan", "step:h:state_transposed_16"},
                 {"program/recurrent-state", "step:y:state_transposed_16"},
                 {"program/recurrent-state", "step:y:state_in_bf16_16"},
                 {"program/top-k-softmax", "step:weights:of_all"},
                 {"program/top-k-softmax", "step:weights:not_divided"},
                 {"program/every-reduction", "step:m:reads_on_16_of_m.mul"}};
    const assay_profile *profile = assay_profile_by_name("bf16");
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const char *mutant = table[i].mutant;
        OWNED_BY(trial_close) trial t;
        OWNED_BY(assay_mutant_list_free) assay_mutant_list list = {0};
        trial_write(&t, folder, of(table[i].name, "profiles=[bf16]"));
        assert_ok(&t.ctx, assay_mutants_of(&t.ctx, &t.plan, 0, &list));
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = {0};
        bool applies = true;
        const assay_trial at = trial_at(&t, "bf16");
        assert_ok(&t.ctx, assay_mutant_make(&t.ctx, &at, named(&list, mutant), &results, &applies));
        trial_write_candidate(&t, &results, profile, is_required);
        const assay_judging how = {.profile = profile, .false_alarm = 1e-6, .quiet = true};
        OWNED_BY(assay_report_free) assay_report report = trial_judge(&t, &how);
        if (report.verdict != ASSAY_FAIL) fail_msg("%s passes", mutant);
        bool is_named = false; /* up for gate is u for g: nobody can tell */
        for (int k = 0; k < report.explained_count; k++) is_named |= strcmp(report.explained_by[k], mutant) == 0;
        if (!is_named || report.explained_count > 2) fail_msg("%s: %s", mutant, report.explanation);
    }
}
