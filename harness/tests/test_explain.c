/* Which known bug a failed candidate has: named where a mutant explains all of it, and not where none does. The sweep
 * over all mutants is explain_sweep.c. */

#include "harness/explain/explain.h"
#include "harness/explain/explain_internal.h"
#include "harness/mutants/mutants_tensors.h"
#include "harness/tests/golden_trial.h"
#include "oracle/arithmetic/emulated.h"

TEST_LABELS(catalogue);

/* A golden, and a profile at which it is explained. */
typedef struct fixture {
    trial t;
    assay_trial at;
} fixture;

static void fixture_close(fixture *f)
{
    trial_close(&f->t);
}

static void start(fixture *f, const test_folder *folder, const char *name, const char *set, const char *profile)
{
    trial_write(&f->t, folder, case_named(name, set));
    f->at = trial_at(&f->t, profile);
}

/* The mutant's results, or with NULL the golden's. */
static assay_tensor_set make(fixture *f, const char *name)
{
    assay_tensor_set results = {0};
    if (name != NULL) return trial_mutant(&f->t, f->at.profile->precision.name, name);
    assert_ok(&f->t.ctx, assay_tensor_set_copy(&f->t.ctx, &f->t.golden, &results));
    return results;
}

static assay_golden golden_of(const fixture *f)
{
    return (assay_golden){.reader = f->t.reader, .c = f->t.c, .plan = f->t.plan};
}

static assay_status try_explain(fixture *f, assay_tensor_set *results, assay_report *report)
{
    assay_status status;
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    assay_golden golden = golden_of(f);
    *report = (assay_report){0};
    trial_round(results, f->at.profile->storage);
    TRY(assay_trial_reader(&f->t.ctx, results, "candidate", f->at.profile, &candidate));
    TRY(assay_compare(&f->t.ctx, f->t.reader, candidate, f->at.profile, 1e-6, assay_plan_order(&f->t.plan), report));
    TRY(assay_explain(&f->t.ctx, &golden, NULL, candidate, f->at.profile, true, report));
cleanup:
    return status;
}

static assay_report explain(fixture *f, assay_tensor_set *results)
{
    assay_report report;
    assert_ok(&f->t.ctx, try_explain(f, results, &report));
    assay_tensor_set_free(results);
    return report;
}

static bool is_named(const assay_report *report, const char *name)
{
    for (int i = 0; i < report->explained_count; i++) {
        if (strcmp(report->explained_by[i], name) == 0) return true;
    }
    return false;
}

TEST_IN_FOLDER(mutants_are_named)
{
    static const char *const names[] = {
        "zero_results",          "nan_results",    "no_results",          "result_missing",  "other_seed",
        "gate_up_swapped",       "doubled",        "dx_without_up",       "scaling_twice",   "router_rolled",
        "nan_last_element",      "truncated",      "stored_coarser",      "columns_swapped", "runner_up_chosen",
        "zero_weight_gradients", "choice_dropped", "router_gradient_lost"};
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "moe/small", "profiles=[bf16]", "bf16");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        assay_tensor_set results = make(&f, names[i]);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        if (report.verdict == ASSAY_FAIL && !is_named(&report, names[i]))
            fail_msg("%s: %s", names[i], report.explanation);
        if (report.verdict == ASSAY_FAIL) assert_true(strncmp(report.explanation, "equals mutant ", 14) == 0);
        if (report.verdict != ASSAY_FAIL) assert_string_equal(report.explanation, "");
    }
}

/* A gradient that is not given counts as zeros. What the golden has as zeros is no bug's, and who gives no gradient at all has
 * no backward to be wrong. */
TEST_IN_FOLDER(missing_gradients_are_zeros)
{
    static const struct {
        const char *name, *mutant, *missing, *is; /* "": no name */
    } rows[] = {
        {"moe/small", "zero_router_gradient", "gradients/weights/gate/kernel", "zero_router_gradient"},
        {"moe/small", "zero_router_gradient", "gradients/weights/gate", "zero_router_gradient"},
        {"moe/small", "router_gradient_lost", "gradients/weights/gate", "router_gradient_lost"},
        {"moe/small", NULL, "gradients/weights", "zero_weight_gradients"},
        {"moe/small", NULL, "gradients/inputs", "zero_input_gradients"},
        {"moe/small", NULL, "gradients/weights/gate/bias", ""},
        {"moe/small", NULL, "gradients/weights/shared_experts", ""},
        {"moe/small", NULL, "gradients", ""},
        {"moe/small", "gate_up_swapped", "gradients", ""},
        {"decoder_layer/gpt-oss", NULL, "gradients/weights/self_attention/sinks", "sink_gradients_missing"},
    };
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start(&f, folder, rows[i].name, "profiles=[f32];checkpoints=none", "f32");
        assay_tensor_set results = make(&f, rows[i].mutant);
        for (int k = 0; k < results.count; k++) {
            const char *path = results.items[k].spec.path;
            if (strncmp(path, rows[i].missing, strlen(rows[i].missing)) == 0) results.items[k].written = 0;
        }
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        const int named = (rows[i].is[0] != '\0') + is_named(&report, "result_missing");
        if (report.explained_count > named || (named && !is_named(&report, rows[i].is)))
            fail_msg("%s without %s: %s", rows[i].name, rows[i].missing, report.explanation);
        trial_close(&f.t);
    }
}

/* The bugs of attention over a cache, of merges and of writers of caches (docs/bugs.csv: "Decoding over a cache", "Writing a
 * cache", and older ones): a kernel with one of them fails, and its name is among those that the case does not tell apart. */
TEST_IN_FOLDER(bugs_of_caches_are_named)
{
    static const struct {
        const char *name, *mutants;
    } rows[] = {
        {"gqa_decode/small", "lengths_ignored last_page_whole length_of_next table_of_first table_transposed "
                             "table_ignored table_wraps pages_adjacent pages_halved length_plus_one newest_key_missing "
                             "lanes_counted kv_heads_modulo cache_layout_other query_scale_missing lse_in_base_2"},
        {"gqa_decode/lengths", "blind_rows_nan empty_row_other empty_row_finite page_too_many last_page_lost"},
        {"gqa_decode/four-tokens", "next_key_seen causal_missing lse_transposed tail_times_zero"},
        {"gqa_decode/hnd-stride", "causal_from_start page_stride_ignored"},
        {"gqa_decode/window", "window_one_longer window_ignored window_of_pages"},
        {"gqa_decode/soft-cap", "masked_scores_capped"},
        {"gqa_decode/splits", "empty_split_nan split_weights_of_largest last_split_lost sinks_of_splits "
                              "merge_base_other sinks_missing sinks_twice sinks_in_base_2 sinks_in_lse"},
        {"mla_decode/small", "scale_of_latent value_of_last_numbers"},
        {"merge_states/two", "merge_unweighed merge_in_other_base partial_lse_transposed parts_at_other_strides"},
        {"merge_states/empty", "blind_rows_nan empty_split_nan empty_row_other empty_row_finite"},
        {"cache_append/latent",
         "slot_of_next skipped_slots_written page_cleared slots_of_half_pages rope_before_latents"},
        {"cache_append/fp8-ds-mla", "floor_of_amax cache_scales_inverted rope_quantised smallest_amax_missing"},
        {"cache_append/fp8-ds-mla-vllm", "cache_scales_as_e8m0 cache_scales_rolled written_stride_ignored"},
        {"cache_append/fp8-model1", "cache_rows_with_scales"},
        {"cache_append/fp8-tensor",
         "given_scale_multiplied given_scale_ignored given_scale_of_keys saturation_missing"},
        {"cache_append/fp8-heads", "given_scale_of_first_head written_layout_other"},
        {"cache_append/fp8-latent", "element_division_other"},
    };
    fixture f;
    int named = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[512], *rest = NULL;
        snprintf(words, sizeof words, "%s", rows[i].mutants);
        start(&f, folder, rows[i].name, "profiles=[bf16]", "bf16");
        for (char *name = strtok_r(words, " ", &rest); name != NULL; name = strtok_r(NULL, " ", &rest)) {
            assay_tensor_set results = make(&f, name);
            OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
            assert_true(assay_mutant_by_name(name)->bugs[0] != '\0');
            assert_int_equal(report.verdict, ASSAY_FAIL);
            if (!is_named(&report, name)) fail_msg("%s %s: %s", rows[i].name, name, report.explanation);
            named++;
        }
        trial_close(&f.t);
    }
    assert_true(named >= 60);
}

/* A backend may have the bug in one tensor alone. */
TEST_IN_FOLDER(one_tensor_is_enough_where_each_counts)
{
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "mlp/silu", "profiles=[bf16]", "bf16");
    assay_tensor_set results = make(&f, NULL);
    const assay_tensor *y = assay_tensor_set_find(&results, "outputs/y");
    for (int64_t i = 0; i < y->count; i++) y->values[i] *= 2;
    OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
    assert_true(is_named(&report, "doubled"));
    assay_report_free(&report);
    /* two tensors, two mutants: neither is claimed */
    results = make(&f, NULL);
    y = assay_tensor_set_find(&results, "outputs/y");
    const assay_tensor *dx = assay_tensor_set_find(&results, "gradients/inputs/x");
    for (int64_t i = 0; i < y->count; i++) y->values[i] *= 2;
    for (int64_t i = 0; i < dx->count; i++) dx->values[i] *= -1;
    report = explain(&f, &results);
    assert_int_equal(report.explained_count, 0);
    assert_non_null(strstr(report.explanation, "no known bug explains it"));
}

/* c [m,n] = a b over `k` terms. */
static void multiply(double *c, int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_term,
                     const double *b, int64_t b_term, int64_t b_column)
{
    for (int64_t i = 0; i < m * n; i++) {
        c[i] = 0.0;
        for (int64_t p = 0; p < k; p++) c[i] += a[i / n * a_row + p * a_term] * b[p * b_term + i % n * b_column];
    }
}

static double *values_of(const assay_tensor_set *results, const char *path)
{
    return assay_tensor_set_find(results, path)->values;
}

/* A grouped product that walks what it contracts in whole vectors of 8: forward alone, in one gradient, in both or in all
 * (the bits of `cut`). */
TEST_IN_FOLDER(tails_of_contracted_axes_are_named)
{
    enum { Y = 1, D_LHS = 2, D_RHS = 4, ALL = 7, VECTOR = 8 };
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "gmm/k124-n60", "profiles=[bf16]", "bf16");
    const int64_t k = f.t.c->config.base_emb_dim, n = f.t.c->config.base_moe_mlp_dim;
    for (unsigned cut = 1; cut <= ALL; cut++) {
        assay_tensor_set results = make(&f, NULL);
        const double *lhs = values_of(&results, "inputs/lhs"), *rhs = values_of(&results, "weights/rhs");
        const double *dy = values_of(&results, "cotangents/y");
        double *y = values_of(&results, "outputs/y"), *d_lhs = values_of(&results, "gradients/inputs/lhs");
        double *d_rhs = values_of(&results, "gradients/weights/rhs");
        const assay_tensor *sizes = assay_tensor_set_find(&results, "inputs/group_sizes");
        for (int64_t g = 0; g < sizes->count; g++) {
            const int64_t m = sizes->indices[g];
            multiply(y, m, n, cut & Y ? k / VECTOR * VECTOR : k, lhs, k, 1, rhs, n, 1);
            multiply(d_lhs, m, k, cut & D_LHS ? n / VECTOR * VECTOR : n, dy, n, 1, rhs, 1, n);
            multiply(d_rhs, k, n, cut & D_RHS ? m / VECTOR * VECTOR : m, lhs, 1, k, dy, n, 1);
            y += m * n, d_lhs += m * k, lhs += m * k, dy += m * n, rhs += k * n, d_rhs += k * n;
        }
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        if (!is_named(&report, "contraction_cut_to_8") || report.explained_count != 1)
            fail_msg("cut in %u: %s", cut, report.explanation);
    }
}

/* GPT-OSS's gate with another number than 1.702, also where most is clamped: the report says which. */
TEST_IN_FOLDER(any_alpha_is_named)
{
    static const struct {
        const char *name, *profile;
        double alpha;
    } rows[] = {
        {"mlp/gpt-oss-clamp", "f32", 1.7},   {"mlp/gpt-oss-clamp", "f32", 4},
        {"mlp/gpt-oss-clamp", "bf16", 1.6},  {"moe/requantised-gpt-oss", "f32", 1.5},
        {"decoder_layer/gpt-oss", "f32", 1}, {"decoder_layer/gpt-oss", "f32", 1.8},
    };
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char set[64], says[64];
        bool applies = false;
        assay_mutant other = *assay_mutant_by_name("alpha_other");
        assay_tensor_set results = {0};
        snprintf(set, sizeof set, "profiles=[%s];checkpoints=none", rows[i].profile);
        snprintf(says, sizeof says, "equals mutant alpha_other with %g (", rows[i].alpha);
        start(&f, folder, rows[i].name, set, rows[i].profile);
        other.step.by = rows[i].alpha;
        assert_ok(&f.t.ctx, assay_mutant_make(&f.t.ctx, &f.at, &other, &results, &applies));
        assert_true(applies);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        if (strncmp(report.explanation, says, strlen(says)) != 0)
            fail_msg("%s, %g: %s", rows[i].name, rows[i].alpha, report.explanation);
        trial_close(&f.t);
    }
}

/* Gradients by the weights that were given, not by those that the operation read in their place. */
TEST_IN_FOLDER(gradients_may_be_pulled_back)
{
    OWNED_BY(fixture_close) fixture f;
    bool changed = false;
    start(&f, folder, "mlp/silu", "profiles=[bf16]", "bf16");
    assay_tensor_set as_read = make(&f, "gate_up_swapped"), pulled = make(&f, "gate_up_swapped");
    const assay_mutant *swapped = assay_mutant_by_name("gate_up_swapped");
    assert_ok(&f.t.ctx, assay_mutant_pull_back(&f.t.ctx, &f.at, swapped, &pulled, &changed));
    assert_true(changed);
    const assay_tensor *gate = assay_tensor_set_find(&as_read, "gradients/weights/wi_0/kernel");
    const assay_tensor *up = assay_tensor_set_find(&pulled, "gradients/weights/wi_1/kernel");
    const assay_tensor *x = assay_tensor_set_find(&as_read, "gradients/inputs/x");
    assert_memory_equal(gate->values, up->values, (size_t)gate->count * sizeof(double));
    assert_memory_equal(x->values, assay_tensor_set_find(&pulled, "gradients/inputs/x")->values,
                        (size_t)x->count * sizeof(double));
    OWNED_BY(assay_report_free) assay_report report = explain(&f, &as_read);
    assert_true(is_named(&report, "gate_up_swapped"));
    assay_report_free(&report);
    report = explain(&f, &pulled);
    assert_true(is_named(&report, "gate_up_swapped"));
}

/* Rows that lag: two rows read the first one, whose gradients add up, and nobody reads the last. */
TEST_IN_FOLDER(pull_back_is_the_transpose)
{
    OWNED_BY(fixture_close) fixture f;
    bool changed = false;
    start(&f, folder, "rms_norm/deepseek", "profiles=[f32]", "f32");
    OWNED_BY(assay_tensor_set_free)
    assay_tensor_set as_read = make(&f, "previous_token"), pulled = make(&f, "previous_token");
    const assay_mutant *lags = assay_mutant_by_name("previous_token");
    assert_ok(&f.t.ctx, assay_mutant_pull_back(&f.t.ctx, &f.at, lags, &pulled, &changed));
    assert_true(changed);
    const assay_tensor *from = assay_tensor_set_find(&as_read, "gradients/inputs/x");
    const assay_tensor *to = assay_tensor_set_find(&pulled, "gradients/inputs/x");
    const int64_t width = from->spec.shape.dims[from->spec.shape.rank - 1];
    for (int64_t i = 0; i < from->count; i++) {
        const double next = i + width < from->count ? from->values[i + width] : 0.0;
        assert_true(to->values[i] == (i < width ? from->values[i] + next : next));
    }
    /* constants have no gradients, and what changes no inputs none to pull back */
    assert_ok(&f.t.ctx,
              assay_mutant_pull_back(&f.t.ctx, &f.at, assay_mutant_by_name("norm_scales_missing"), &pulled, &changed));
    assert_true(changed);
    const assay_tensor *scale = assay_tensor_set_find(&pulled, "gradients/weights/scale");
    for (int64_t i = 0; i < scale->count; i++) assert_true(scale->values[i] == 0.0);
    assert_ok(&f.t.ctx,
              assay_mutant_pull_back(&f.t.ctx, &f.at, assay_mutant_by_name("epsilon_other"), &pulled, &changed));
    assert_false(changed);
}

/* A factor with which places overflow: no index comes of it, and the gradients stay. */
TEST_IN_FOLDER(what_is_no_selection_stays)
{
    static const double factors[] = {1e308, -1e308, INFINITY, NAN};
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "moe/deepseek3-tiny-sparse", "profiles=[bf16]", "bf16");
    const assay_mutant *scaled = assay_mutant_by_name("shared_expert_scaled");
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        bool changed = true;
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = make(&f, NULL);
        f.t.c->config.routed_scaling_factor = factors[i];
        assert_ok(&f.t.ctx, assay_mutant_pull_back(&f.t.ctx, &f.at, scaled, &results, &changed));
        assert_false(changed);
        const char *path = "gradients/weights/shared_experts/wo/kernel";
        const assay_tensor *before = assay_tensor_set_find(&f.t.golden, path),
                           *after = assay_tensor_set_find(&results, path);
        assert_same_bits(after->values, before->values, before->count);
    }
}

/* --- a statistic alone fails: no element and no row does --- */

static void scale_tensor(fixture *f, assay_tensor_set *results, const char *path, double factor)
{
    (void)f;
    const assay_tensor *tensor = assay_tensor_set_find(results, path);
    for (int64_t i = 0; i < tensor->count; i++) tensor->values[i] *= factor;
}

/* Errors of so many deviations, this way and that, in the second half of the columns. */
static void shake_columns(fixture *f, assay_tensor_set *results, const char *path, double deviations)
{
    const assay_tensor *tensor = assay_tensor_set_find(results, path);
    const assay_tensor *scale = assay_results_scales(&f->t.golden, f->at.profile, path);
    const int64_t width = assay_tensor_width(tensor);
    for (int64_t i = 0; i < tensor->count; i++) {
        if (i % width >= width / 2) tensor->values[i] += (i * 7 % 3 == 1 ? -1 : 1) * deviations * scale->values[i];
    }
}

static bool only_statistics_fail(const assay_report *report)
{
    return report->verdict == ASSAY_FAIL && assay_only_statistics_fail(report);
}

/* Then whatever changes next to nothing passes where the golden would. A name is for what explains the statistic. */
TEST_IN_FOLDER(what_changes_nothing_is_not_named)
{
    static const struct {
        const char *name, *path;
        void (*change)(fixture *f, assay_tensor_set *results, const char *path, double by);
        double by;
        const char *must, *may;
    } rows[] = {
        {"mla/small", "outputs/y", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"mla/small", "gradients/inputs/x", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"moe/small", "outputs/y", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"moe/deepseek3-groups", "outputs/y", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"moe/float32-grid", "outputs/y", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"gqa/qwen3", "outputs/y", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"mlp/silu", "gradients/inputs/x", scale_tensor, 1 + 0x1p-8, "scaled_1_2^-8", ""},
        {"moe/float32-grid", "outputs/y", scale_tensor, 1 - 0x1p-8, "", "truncated"},
        {"moe/float32-grid", "outputs/y", shake_columns, 2, "", ""},
        {"mla/no-query-compression", "outputs/y", shake_columns, 3.5, "", ""},
    };
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start(&f, folder, rows[i].name, "profiles=[bf16];checkpoints=none", "bf16");
        assay_tensor_set results = make(&f, NULL);
        rows[i].change(&f, &results, rows[i].path, rows[i].by);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_true(only_statistics_fail(&report));
        if (rows[i].must[0] != '\0' && !is_named(&report, rows[i].must))
            fail_msg("%s, %s: %s", rows[i].name, rows[i].path, report.explanation);
        for (int k = 0; k < report.explained_count; k++) {
            const char *name = report.explained_by[k];
            if (strcmp(name, rows[i].must) != 0 && !assay_any_word(rows[i].may, name, assay_is_word))
                fail_msg("%s, %s: %s", rows[i].name, rows[i].path, report.explanation);
        }
        trial_close(&f.t);
    }
}

/* What the case gives with another value of a key, among the golden's tensors. */
static assay_tensor_set make_with(fixture *f, const char *name, const char *set)
{
    trial other;
    assay_tensor_set results = make(f, NULL);
    trial_evaluate(&other, case_named(name, set), NULL);
    for (int i = 0; i < results.count; i++) {
        assay_tensor *to = &results.items[i];
        const assay_tensor *from = assay_tensor_set_find(&other.golden, to->spec.path);
        if (!assay_role_is_required(to->spec.role) || to->values == NULL) continue;
        assert_non_null(from);
        assert_int_equal(from->count, to->count);
        memcpy(to->values, from->values, (size_t)to->count * sizeof *to->values);
    }
    trial_close(&other);
    return results;
}

/* A kernel that has not read a key gives what the case gives without it. */
TEST_IN_FOLDER(ignored_settings_are_named)
{
    static const struct {
        const char *name, *set, *is, *says;
    } rows[] = {
        {"moe/deepseek3-capacity", "capacity_factor=-1", "ignores_capacity_factor",
         "this case with capacity_factor -1"},
        {"yarn_rope/equal-betas", "beta_fast=32", "ignores_beta_fast", "this case with beta_fast 32"},
        {"mlp/sigmoid", "mlp_activations=[silu, linear]", "ignores_mlp_activations",
         "this case with mlp_activations silu"},
        {"gmm/mxfp4-weights", NULL, "codes_as_integers", "codes taken as plain integers, times their scales"},
        {"gmm/mxfp4-weights", NULL, "codes_as_integers_unscaled",
         "codes taken as plain integers, without their scales"},
        /* a mutant that says more keeps its name */
        {"attention/window", "sliding_window_size=0", "window_ignored", "equals mutant window_ignored"},
    };
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start(&f, folder, rows[i].name, "profiles=[bf16];checkpoints=none", "bf16");
        char set[128];
        snprintf(set, sizeof set, "profiles=none;checkpoints=none;%s", rows[i].set == NULL ? "" : rows[i].set);
        assay_tensor_set results = rows[i].set == NULL ? make(&f, rows[i].is) : make_with(&f, rows[i].name, set);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        if (!is_named(&report, rows[i].is) || report.explained_count != 1 ||
            strstr(report.explanation, rows[i].says) == NULL)
            fail_msg("%s: %s", rows[i].name, report.explanation);
        trial_close(&f.t);
    }
}

TEST_IN_FOLDER(one_wrong_element_is_not_known)
{
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "mlp/silu", "profiles=[f32]", "f32");
    for (int passes = 0; passes < 2; passes++) {
        assay_tensor_set results = make(&f, passes ? NULL : "gate_up_swapped");
        const assay_tensor *y = assay_tensor_set_find(&results, "outputs/y");
        y->values[7] += 1; /* also on top of a mutant */
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_int_equal(report.explained_count, 0);
        assert_non_null(strstr(report.explanation, "no known bug explains it"));
    }
}

/* Errors of a worse arithmetic are compared by their size: a remark, which names all whose errors are as large. At f32
 * they are a thousand times a correct candidate's, whose null distributions then say nothing. */
TEST_IN_FOLDER(arithmetics_are_remarked_on)
{
    static const char *const mutants[] = {"sums_in_bf16", "operands_in_fp8", "intermediates_in_bf16"};
    const assay_emulation draw = {.seed = 20240607};
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "mlp/one-wide", "profiles=[f32]", "f32");
    for (size_t i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        f.t.ctx.emulation = &draw;
        assay_tensor_set results = make(&f, mutants[i]);
        f.t.ctx.emulation = NULL;
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_int_equal(report.explained_count, 0);
        const char *remark = strstr(report.explanation, "; errors are as large as ");
        if (remark == NULL || strstr(remark, mutants[i]) == NULL) fail_msg("%s: %s", mutants[i], report.explanation);
    }
    assay_tensor_set coarser = make(&f, "stored_coarser");
    OWNED_BY(assay_report_free) assay_report report = explain(&f, &coarser);
    assert_string_equal(report.explained_by[0], "stored_coarser");
}

/* A draw of the emulated arithmetic of a profile, at which no bug is named but the profile is. */
TEST_IN_FOLDER(coarser_profiles_are_tried)
{
    static const struct {
        const char *name, *at, *has, *says;
    } rows[] = {
        {"mlp/silu", "bf16", "bf16_sums",
         "passes at the profile bf16_sums: does the kernel have sums in bfloat16 (accumulate: {type: bfloat16})?"},
        {"mla/no-query-compression", "f32", "tf32",
         "passes at the profile tf32: does the kernel have operands of products in TensorFloat-32?"},
    };
    static const assay_mutant none = {.name = "none", .golden_choice = true};
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char set[64];
        snprintf(set, sizeof set, "profiles=[%s]", rows[i].at);
        start(&f, folder, rows[i].name, set, rows[i].at);
        const assay_profile *has = assay_profile_by_name(rows[i].has);
        const assay_emulation draw = {.precision = has->precision,
                                      .storage = has->storage,
                                      .multiply = assay_case_multiply(f.t.c, has),
                                      .seed = 20240607};
        assay_context ctx = f.t.ctx;
        assay_tensor_set results = make(&f, NULL);
        bool applies = false;
        ctx.arithmetic = &assay_arithmetic_emulated;
        ctx.emulation = &draw;
        assert_ok(&ctx, assay_mutant_evaluate(&ctx, &f.at, &none, &results, &applies));
        assert_true(applies);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        assert_int_equal(report.explained_count, 0);
        if (strstr(report.explanation, rows[i].says) == NULL) fail_msg("%s: %s", rows[i].name, report.explanation);
        trial_close(&f.t);
    }
}

/* The comparer knows no constants of a case. */
TEST_IN_FOLDER(factors_are_named)
{
    static const struct {
        const char *name, *path, *is;
        double factor;
    } rows[] = {
        {"moe/small", "gradients/weights/wo", "; that factor is 1/routed_scaling_factor", 1 / 2.5},
        {"moe/small", "outputs/y", "; that factor is routed_scaling_factor", 2.5},
        {"gqa/qwen3", "outputs/y", NULL, 3.3},
    };
    fixture f;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        start(&f, folder, rows[i].name, "profiles=[bf16];checkpoints=none", "bf16");
        assay_tensor_set results = make(&f, NULL);
        scale_tensor(&f, &results, rows[i].path, rows[i].factor);
        OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
        const char *said = strstr(report.diagnosis, "; that factor is");
        assert_non_null(strstr(report.diagnosis, "the golden times"));
        if (rows[i].is == NULL) assert_null(said);
        if (rows[i].is != NULL && (said == NULL || strcmp(said, rows[i].is) != 0)) fail_msg("%s", report.diagnosis);
        trial_close(&f.t);
    }
}

/* Nothing is said of a candidate that passes, nor of shapes and types; a case that is too large is left out. */
TEST_IN_FOLDER(where_nothing_is_said)
{
    OWNED_BY(fixture_close) fixture f;
    start(&f, folder, "rms_norm/deepseek", "profiles=[bf16]", "bf16");
    assay_tensor_set results = make(&f, NULL);
    OWNED_BY(assay_report_free) assay_report report = explain(&f, &results);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assert_string_equal(report.explanation, "");
    assay_report_free(&report);
    assay_fixture_reader *candidate = NULL;
    assay_golden golden = golden_of(&f);
    const double one = 1.0;
    assay_memory_tensor y = {.spec = {.path = "outputs/y", .type = ASSAY_BFLOAT16, .shape = assay_shape_of(1, 1)},
                             .numbers = &one};
    assert_ok(&f.t.ctx, assay_fixture_of_memory(&f.t.ctx, "candidate", 1, &y, &candidate));
    assert_ok(&f.t.ctx,
              assay_compare(&f.t.ctx, f.t.reader, candidate, f.at.profile, 1e-6, assay_plan_order(&f.t.plan), &report));
    assert_ok(&f.t.ctx, assay_explain(&f.t.ctx, &golden, NULL, candidate, f.at.profile, true, &report));
    assert_string_equal(report.explanation, "");
    assay_report_free(&report);
    assay_fixture_close(candidate);
    trial_close(&f.t);
    start(&f, folder, "rms_norm/deepseek", "sequence=20000", "bf16");
    results = make(&f, "doubled");
    report = explain(&f, &results);
    assert_non_null(strstr(report.explanation, "not tried, the case is too large"));
    assert_int_equal(report.explained_count, 0);
}

/* A golden of a case that nobody can evaluate: the verdict stands, and the reason is said. */
TEST_IN_FOLDER(golden_of_an_unknown_operation)
{
    OWNED_BY(fixture_close) fixture f;
    OWNED_BY(assay_fixture_release) assay_fixture_reader *candidate = NULL;
    OWNED_BY(assay_report_free) assay_report report;
    start(&f, folder, "rms_norm/deepseek", "profiles=[bf16]", "bf16");
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = make(&f, "zero_outputs");
    assay_case other = *f.t.c;
    assay_golden golden = {.reader = f.t.reader, .c = &other};
    snprintf(other.op, sizeof other.op, "nothing");
    assert_ok(&f.t.ctx, assay_trial_reader(&f.t.ctx, &results, "candidate", f.at.profile, &candidate));
    assert_ok(&f.t.ctx,
              assay_compare(&f.t.ctx, f.t.reader, candidate, f.at.profile, 1e-6, assay_plan_order(&f.t.plan), &report));
    assert_ok(&f.t.ctx, assay_explain(&f.t.ctx, &golden, NULL, candidate, f.at.profile, true, &report));
    assert_int_equal(report.verdict, ASSAY_FAIL);
    assert_non_null(strstr(report.explanation, "not tried: rms_norm/deepseek: "));
    assert_string_equal(f.t.ctx.message, "");
}

TEST_IN_FOLDER(same_for_any_number_of_threads)
{
    OWNED_BY(fixture_close) fixture f;
    char texts[3][sizeof((assay_report *)NULL)->explanation];
    const int threads[] = {1, 2, 7};
    start(&f, folder, "mla/small", "profiles=[f32]", "f32");
    for (int i = 0; i < 3; i++) {
        assay_tensor_set results = make(&f, "mscale_missing");
        f.t.ctx.threads = threads[i];
        assay_report report = explain(&f, &results);
        assert_int_equal(f.t.ctx.threads, threads[i]);
        snprintf(texts[i], sizeof texts[i], "%s", report.explanation);
        assay_report_free(&report);
        f.t.ctx.threads = 1;
    }
    assert_non_null(strstr(texts[0], "mscale_missing"));
    assert_string_equal(texts[0], texts[1]);
    assert_string_equal(texts[0], texts[2]);
}

TEST_IN_FOLDER(failing_allocations)
{
    fixture f;
    start(&f, folder, "rms_norm/one-row", "profiles=[f32]", "f32");
    for (int64_t n = 0;; n += n < 100 ? 1 : 61) {
        assay_report report;
        assay_tensor_set results = make(&f, "epsilon_other");
        assay_fail_allocation(n);
        const assay_status status = try_explain(&f, &results, &report);
        assay_fail_allocation(-1);
        const bool said = strncmp(report.explanation, "not tried: ", 11) == 0;
        assert_true(said || report.explained_count > 0 || status != ASSAY_OK);
        assay_report_free(&report);
        assay_tensor_set_free(&results);
        if (!assay_allocation_failed()) break;
        assert_int_equal(status, said ? ASSAY_OK : ASSAY_NO_MEMORY);
    }
    trial_close(&f.t);
}
