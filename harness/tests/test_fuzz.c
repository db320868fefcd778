/* Drawing, shrinking and the whole loop, on backends with traps. */

#include "harness/backends/server.h"
#include "harness/fuzz/fuzz.h"
#include "harness/fuzz/shrink.h"
#include "harness/tests/golden_trial.h"
#include "oracle/base/clock.h"

TEST_LABELS(catalogue);

#define SHARED_BYTES (INT64_C(64) << 20)

/* The hostile backend with a trap. */
static assay_tried start(assay_context *ctx, const char *trap)
{
    assay_tried tried = {.spec = HOSTILE, .false_alarm = 1e-6, .timeout = 60};
    setenv("HOSTILE", trap, 1);
    assert_ok(ctx, assay_forks_start(ctx, &tried.forks, HOSTILE, SHARED_BYTES));
    unsetenv("HOSTILE");
    return tried;
}

/* numpy's as a server, with a planted bug; NULL: without. */
static assay_tried start_numpy(assay_context *ctx, const char *folder, const char *bug)
{
    static char command[1024]; /* the server keeps it */
    assay_tried tried = {.spec = "numpy", .false_alarm = 1e-6, .timeout = 60, .folder = folder, .container = "h5"};
    snprintf(command, sizeof command, NUMPY "%s %s", bug == NULL ? "backend.py" : "planted_bugs.py",
             bug == NULL ? "" : bug);
    assert_ok(ctx, assay_backend_server_make(ctx, command, 0, &tried.server));
    return tried;
}

static void stop(assay_tried *tried)
{
    assay_forks_stop(&tried->forks);
    assay_backend_server_free(tried->server);
}

static char *yaml_of(assay_context *ctx, const assay_case *c)
{
    char *yaml = NULL;
    assert_ok(ctx, assay_case_yaml(ctx, c, &yaml));
    return yaml;
}

/* Each row of the table names a key that there is, and a first value that it takes. */
TEST_WITH_CONTEXT(keys_of_the_table_are_keys)
{
    for (int i = 0; assay_draw_keys[i].key != NULL; i++) {
        char set[256];
        const char *value = assay_draw_keys[i].values;
        assert_true(i < ASSAY_DRAW_KEYS_MOST && assay_draw_choices(value) <= ASSAY_CHOICES_MOST);
        if (assay_draw_keys[i].weight == 0) continue;
        OWNED_BY(free_case) assay_case *c = case_from("{case: c, op: moe, model: {base_emb_dim: 4}}");
        const size_t word = strcspn(value, " ;"), number = strspn(value, "0123456789");
        const bool range = number > 0 && value[number] == '-'; /* "1-9", of which the least is tried */
        snprintf(set, sizeof set, "%s=%.*s", assay_draw_keys[i].key, (int)(range ? number : word), value);
        assert_ok(&ctx, assay_case_set(&ctx, c, set));
    }
}

/* The same seed, the same cases; another one, others; and each can be planned. */
TEST_WITH_CONTEXT(draws_follow_from_the_seed)
{
    enum { DRAWS = 60 };
    assay_draws draws[3];
    int differ = 0, changed = 0;
    for (int i = 0; i < 3; i++) assert_ok(&ctx, assay_draws_start(&ctx, &draws[i], i < 2 ? 7 : 8, NULL, NULL));
    for (int n = 0; n < DRAWS; n++) {
        char *yaml[3];
        for (int i = 0; i < 3; i++) {
            OWNED_BY(assay_case_free) assay_case c = {0};
            assay_drawn drawn;
            bool is_case = false;
            assert_ok(&ctx, assay_draw(&ctx, &draws[i], n, &c, &drawn));
            assert_ok(&ctx, assay_draw_check(&ctx, &c, NULL, &is_case));
            assert_true(is_case);
            changed += drawn.count > 0;
            assay_draws_learn(&draws[i], &drawn, &c, n % 3 != 0);
            yaml[i] = yaml_of(&ctx, &c);
        }
        assert_string_equal(yaml[0], yaml[1]);
        differ += strcmp(yaml[0], yaml[2]) != 0;
        for (int i = 0; i < 3; i++) free(yaml[i]);
    }
    assert_true(differ > DRAWS / 2 && changed > 2 * DRAWS);
    for (int i = 0; i < 3; i++) assay_draws_free(&draws[i]);
}

/* What is refused of numbers is not drawn: group sizes, keys that a cache has, bytes, scales, codes that are no number. */
TEST_WITH_CONTEXT(drawn_cases_are_cases)
{
    static const char *const operations[] = {"gqa_decode", "cache_append", "program", "gmm", "permute", "dequantize"};
    enum { DRAWS = 40 };
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++) {
        OWNED_BY(assay_draws_free) assay_draws draws;
        assert_ok(&ctx, assay_draws_start(&ctx, &draws, 1, operations[i], NULL));
        for (int n = 0; n < DRAWS; n++) {
            OWNED_BY(assay_case_free) assay_case c = {0};
            assay_drawn drawn;
            OWNED_BY(trial_close) trial t;
            assert_ok(&ctx, assay_draw(&ctx, &draws, n, &c, &drawn));
            assert_ok(&ctx, assay_case_set(&ctx, &c, "profiles=none"));
            OWNED char *yaml = yaml_of(&ctx, &c);
            trial_evaluate(&t, case_from(yaml), NULL); /* which takes it */
        }
    }
}

TEST_WITH_CONTEXT(unsupported_operations_are_drawn_less)
{
    OWNED_BY(assay_draws_free) assay_draws draws;
    int first = 0, last = 0;
    assert_ok(&ctx, assay_draws_start(&ctx, &draws, 3, NULL, NULL));
    for (int n = 0; n < 400; n++) {
        OWNED_BY(assay_case_free) assay_case c = {0};
        assay_drawn drawn;
        assert_ok(&ctx, assay_draw(&ctx, &draws, n, &c, &drawn));
        const bool supported = strcmp(c.op, "rms_norm") == 0;
        if (!supported && n < 100) first++;
        if (!supported && n >= 300) last++;
        assay_draws_learn(&draws, &drawn, &c, supported);
    }
    assert_true(first > 60 && last < first * 2 / 3);
}

/* What is set stays so in every draw and through shrinking. */
TEST_WITH_CONTEXT(settings_stay)
{
    static const char *const items[] = {"gradients=none", "base_emb_dim=20", "inputs.x={scale: 3}"};
    const assay_draw_sets sets = {items, 3};
    assay_draws draws;
    int changed = 0;
    assert_ok(&ctx, assay_draws_start(&ctx, &draws, 5, "rms_norm", &sets));
    assert_true(draws.base_count > 5);
    for (int n = 0; n < 60; n++) {
        OWNED_BY(assay_case_free) assay_case c = {0};
        assay_drawn drawn;
        assert_ok(&ctx, assay_draw(&ctx, &draws, n, &c, &drawn));
        assert_true(strcmp(c.gradients.items[0], "none") == 0 && c.config.base_emb_dim == 20 &&
                    !assay_case_is_exact(&c));
        double scale = 0;
        for (int i = 0; i < c.input_count; i++)
            scale += strcmp(c.inputs[i].path, "x") == 0 ? c.inputs[i].fill.scale : 0;
        assert_true(scale == 3);
        changed += drawn.count > 0;
        assay_draws_learn(&draws, &drawn, &c, true);
    }
    assert_true(changed > 20);
    assay_draws_free(&draws);

    OWNED_BY(stop) assay_tried tried = start(&ctx, "crash_at_17");
    OWNED_BY(free_case)
    assay_case *c = case_named("rms_norm/deepseek", "sequence=17;batch=2;base_emb_dim=20;inputs.x={scale: 3}");
    assay_shrinking s = {.tried = &tried, .sets = sets, .reason = {.what = "the backend crashed: Segmentation fault"}};
    assert_ok(&ctx, assay_shrink(&ctx, &s, c));
    assert_true(c->config.base_emb_dim == 20 && c->batch == 1 && c->sequence == 17 && c->input_count == 1);
    assert_true(s.tries < 60);
}

TEST(settings_that_go_with_no_case_are_refused)
{
    static const struct {
        const char *set, *says;
    } rows[] = {
        {"no_such_key=1", "no_such_key"}, {"base_emb_dim=many", "base_emb_dim"}, {"base_emb_dim=100000000", "--set"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        const assay_draw_sets sets = {&rows[i].set, 1};
        assay_draws draws;
        assert_bad_input(&ctx, assay_draws_start(&ctx, &draws, 1, "rms_norm", &sets), rows[i].says);
    }
}

TEST_WITH_CONTEXT(an_operation_that_there_is_not_is_refused)
{
    assay_draws draws;
    assert_bad_input(&ctx, assay_draws_start(&ctx, &draws, 1, "rmsnorm", NULL), "rms_norm");
}

/* What was found first of a trap, or of a planted bug. */
typedef struct hunt {
    assay_tried tried;
    assay_fuzzing f;
} hunt;

static const assay_found *find_first(assay_context *ctx, hunt *h, assay_tried tried, const char *op)
{
    h->tried = tried;
    h->f = (assay_fuzzing){.tried = &h->tried, .seed = 1, .op = op, .cases = 2000, .stop_after = 1, .quiet = true};
    assert_ok(ctx, assay_fuzz(ctx, &h->f));
    assert_int_equal(h->f.found_count, 1);
    assert_false(h->f.found[0].is_unsteady);
    return &h->f.found[0];
}

static void end_hunt(hunt *h)
{
    assay_fuzz_free(&h->f);
    stop(&h->tried);
}

TEST(failures_are_shrunk_to_their_triggers)
{
    static const struct {
        const char *trap, *op, *where, *what;
        int64_t batch, sequence, emb_dim, mlp_dim; /* 0: any */
    } rows[] = {
        {"crash_at_17", "rms_norm", "", "the backend crashed: Segmentation fault", 1, 17, 1, 0},
        {"nan_at_33", "gmm", "outputs/y", "not finite", 1, 1, 33, 1},
        {"unsteady", "rms_norm", "outputs/y", "two runs gave different bits", 0, 5, 0, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        hunt h;
        const assay_found *found = find_first(&ctx, &h, start(&ctx, rows[i].trap), rows[i].op);
        const assay_model_config *m = &found->c.config;
        assert_string_equal(found->reason.where, rows[i].where);
        assert_string_equal(found->reason.what, rows[i].what);
        assert_int_equal(found->c.sequence, rows[i].sequence);
        assert_int_equal(found->c.input_count, 0);
        assert_true(rows[i].batch == 0 || found->c.batch == rows[i].batch);
        assert_true(rows[i].emb_dim == 0 || m->base_emb_dim == rows[i].emb_dim);
        assert_true(rows[i].mlp_dim == 0 || m->base_moe_mlp_dim == rows[i].mlp_dim);
        end_hunt(&h);
    }
}

/* x's last axis is all that the trap needs; the others are one, where nothing ties them to that. */
TEST_WITH_CONTEXT(sizes_of_programs_are_drawn_and_shrunk)
{
    enum { LEAST = 9 };
    hunt h;
    int of_least = 0, larger = 0;
    const assay_found *found = find_first(&ctx, &h, start(&ctx, "crash_in_programs"), "program");
    const assay_program *p = found->c.program;
    assert_string_equal(found->reason.what, "the backend crashed: Segmentation fault");
    for (int axis = 0; axis < ASSAY_PROGRAM_LETTERS; axis++) {
        of_least += p->sizes[axis] == LEAST;
        larger += p->sizes[axis] > LEAST;
    }
    assert_true(of_least > 0);
    assert_int_equal(larger, 0);
    end_hunt(&h);
}

/* Indices that an axis ends go where it ends. */
TEST_WITH_CONTEXT(indices_follow_their_axis)
{
    OWNED_BY(free_case)
    assay_case *c =
        case_from("{case: c, op: program, sizes: {T: 3, V: 5}, inputs: {x: [T, V], i: {axes: [T], integers: [0, 4]}},"
                  " steps: {}, outputs: {y: 'pick(x, i)'}}");
    assert_ok(&ctx, assay_draw_size(&ctx, c, 'V', 2));
    assert_int_equal(c->program->sizes['V'], 2);
    assert_int_equal(c->program->tensors[1].high, 1);
}

/* The case names a profile that its caller alone has. */
TEST_WITH_CONTEXT(a_case_of_a_profile_of_ones_own_is_shrunk)
{
    assay_profile own = *assay_profile_by_name("bf16");
    snprintf(own.precision.name, sizeof own.precision.name, "own");
    OWNED_BY(stop) assay_tried tried = start(&ctx, "nan_at_33");
    tried.profile = &own;
    OWNED_BY(free_case) assay_case *c = case_named("gmm/ragged", "base_emb_dim=33;sequence=12;profiles=own");
    assay_shrinking s = {.tried = &tried, .reason = {.where = "outputs/y", .what = "not finite"}};
    assert_ok(&ctx, assay_shrink(&ctx, &s, c));
    assert_int_equal(c->sequence, 1);
    assert_int_equal(c->config.base_moe_mlp_dim, 1);
}

/* Smaller cases fail as well, but for another reason. */
TEST_WITH_CONTEXT(shrinking_does_not_slip_to_another_bug)
{
    OWNED_BY(stop) assay_tried tried = start(&ctx, "nan_beside_crash");
    OWNED_BY(free_case) assay_case *c = case_named("rms_norm/deepseek", "batch=2;sequence=12");
    assay_shrinking s = {.tried = &tried, .reason = {.where = "outputs/y", .what = "not finite"}};
    assert_ok(&ctx, assay_shrink(&ctx, &s, c));
    assert_int_equal(c->sequence, 3);
    assert_int_equal(c->batch, 1);
    assert_int_equal(c->config.base_emb_dim, 9);
    assert_true(s.steps > 2 && s.tries > s.steps);
}

TEST(known_failures_are_those_of_their_line)
{
    static const struct {
        const char *pattern, *op;
        assay_reason reason;
        bool known;
    } rows[] = {
        {"fuzz/mlp:outputs/y:values", "mlp", {.where = "outputs/y", .what = "values", .excess = 9}, true},
        {"fuzz/mlp:outputs/y:values", "moe", {.where = "outputs/y", .what = "values", .excess = 9}, false},
        {"fuzz/mlp:outputs/y:values", "mlp", {.where = "outputs/x", .what = "values", .excess = 9}, false},
        {"fuzz/mlp:outputs/y:values", "mlp", {.where = "outputs/y", .what = "not finite"}, false},
        {"fuzz/mlp:outputs/y:not_finite", "mlp", {.where = "outputs/y", .what = "not finite"}, true},
        {"fuzz/mlp:outputs/y:values<4", "mlp", {.where = "outputs/y", .what = "values", .excess = 3.9}, true},
        {"fuzz/mlp:outputs/y:values<4", "mlp", {.where = "outputs/y", .what = "values", .excess = 4}, false},
        {"fuzz/mlp:*:values<4", "mlp", {.where = "gradients/weights/wi_#", .what = "values", .excess = 2}, true},
        {"fuzz/mlp:gradients/weights/wi_N:*", "mlp", {.where = "gradients/weights/wi_#", .what = "values"}, true},
        {"fuzz/mlp::the_backend_crashed*", "mlp", {.what = "the backend crashed: Killed"}, true},
        /* integers that differ are off without end */
        {"fuzz/moe:routing/*:values", "moe", {.where = "routing/x", .what = "values", .excess = INFINITY}, true},
        {"fuzz/moe:routing/*:values<4", "moe", {.where = "routing/x", .what = "values", .excess = INFINITY}, false},
        {"fuzz/mlp{base_emb_dim=20}:*:values<4", "mlp", {.what = "values", .excess = 3}, true},
        {"fuzz/mlp{base_emb_dim=20}:*:values<4", "mlp", {.what = "values", .excess = 5}, false},
        {"fuzz/mlp{base_emb_dim=2}:*:values", "mlp", {.what = "values"}, false},
        {"fuzz/m*{base_emb_dim=2*}{mlp_activations=silu,*}:*:values", "mlp", {.what = "values"}, true},
        {"fuzz/m*{base_emb_dim=2*}{mlp_activations=gelu,*}:*:values", "mlp", {.what = "values"}, false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_expected_failure entry = {.line = 1};
        snprintf(entry.pattern, sizeof entry.pattern, "%s", rows[i].pattern);
        const assay_expected_failures list = {.entries = &entry, .count = 1};
        char yaml[128];
        assay_context ctx = assay_context_default(1);
        assay_expected_failure *found = NULL;
        snprintf(yaml, sizeof yaml,
                 "{case: c, op: %s, model: {base_emb_dim: 20, num_experts: 4, num_experts_per_tok: 2}}", rows[i].op);
        assay_case *c = case_from(yaml);
        assert_ok(&ctx, assay_known_find(&ctx, &list, c, &rows[i].reason, &found));
        assay_cases_free(c, 1);
        const bool known = found == &entry;
        if (known != rows[i].known) fail_msg("row %zu: %s", i, rows[i].pattern);
    }
}

/* Beside a known failure there is another, which is found; it does not shrink to the known one. */
TEST_WITH_CONTEXT(known_failures_are_counted_and_not_shrunk_to)
{
    static char known_line[] = "fuzz/rms_norm::the_backend_crashed*";
    assay_expected_failure entry = {.line = 1, .reason = "it crashes"};
    snprintf(entry.pattern, sizeof entry.pattern, "%s", known_line);
    assay_expected_failures list = {.entries = &entry, .count = 1};
    OWNED_BY(stop) assay_tried tried = start(&ctx, "crash_at_17");
    tried.known = &list;
    assay_fuzzing f = {.tried = &tried, .seed = 1, .op = "rms_norm", .cases = 400, .quiet = true};
    assert_ok(&ctx, assay_fuzz(&ctx, &f));
    assert_int_equal(f.found_count, 0);
    assert_int_equal(f.failed, 0);
    assert_true(f.known > 0 && f.known == entry.seen);
    assert_int_equal(f.passed + f.known + f.unsupported + f.refused, 400);
    assay_fuzz_free(&f);
    OWNED_BY(free_case) assay_case *c = case_named("rms_norm/deepseek", "batch=2;sequence=17");
    assay_shrinking s = {.tried = &tried, .reason = {.what = "the backend crashed: Segmentation fault"}};
    assert_ok(&ctx, assay_shrink(&ctx, &s, c));
    assert_int_equal(s.steps, 0);
}

/* The smallest case that loses its tail is one element, which any bug may be; sizes around it name the tile. */
TEST_WITH_CONTEXT(sizes_that_pass_and_fail_name_a_tile)
{
    hunt h;
    const assay_found *found = find_first(&ctx, &h, start(&ctx, "loses_tail"), "rms_norm");
    assert_true(found->c.config.base_emb_dim < 16 && found->steps > 0 && !found->ran_out);
    assert_non_null(strstr(found->edges,
                           "base_emb_dim: 1 to 15 fail, 16 passes, 17 to 31 fail, 32 passes, 33 to 63 fail, "
                           "64 passes, 65 fails (16 sizes tried)\n"));
    assert_null(strstr(found->edges, "sequence:")); /* which decides nothing */
    /* as it was drawn */
    assert_non_null(strstr(found->message, "outputs/y"));
    assert_true(found->explanation[0] != '\0');
    end_hunt(&h);
}

/* What a user has set is no size to be tried. */
TEST_WITH_CONTEXT(sizes_that_are_set_stay)
{
    static const char *const items[] = {"base_emb_dim=20"};
    OWNED_BY(stop) assay_tried tried = start(&ctx, "loses_tail");
    char text[ASSAY_EDGES_TEXT];
    OWNED_BY(free_case)
    assay_case *c = case_named("rms_norm/deepseek", "sequence=2;batch=1;base_emb_dim=20;gradients=none");
    assay_shrinking s = {.tried = &tried, .sets = {items, 1}, .reason = {.where = "outputs/y", .what = "values"}};
    assert_ok(&ctx, assay_edges_find(&ctx, &s, c, text));
    assert_string_equal(text, "");
    s.sets.count = 0;
    assert_ok(&ctx, assay_edges_find(&ctx, &s, c, text));
    assert_non_null(strstr(text, "16 passes"));
    /* no time, no try */
    s.deadline = assay_clock() - 1;
    s.tries = 0;
    assert_ok(&ctx, assay_shrink(&ctx, &s, c));
    assert_int_equal(s.tries, 0);
    assert_ok(&ctx, assay_edges_find(&ctx, &s, c, text));
    assert_string_equal(text, "");
}

/* ci/fuzz-planted has all of them. */
TEST_IN_FOLDER(planted_bugs_are_found_and_named)
{
    static const struct {
        const char *bug, *op, *name;
    } rows[] = {{"gate_up_swapped", "mlp", "gate_up_swapped"},
                {"biased_weights", "moe", "biased_weights"},
                {"lse_base_2", "attention", "lse_in_base_2"},
                {"kv_norm_omitted", "mla", "kv_norm_missing"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        hunt h;
        const assay_found *found = find_first(&ctx, &h, start_numpy(&ctx, folder->path, rows[i].bug), rows[i].op);
        assert_string_equal(found->reason.bug, rows[i].name);
        assert_true(found->c.batch * found->c.sequence <= 4);
        assert_true(found->c.config.num_experts <= 4);
        end_hunt(&h);
    }
}

/* Without a bug there is nothing: the judge of all the above can be content. */
TEST_IN_FOLDER_WITH_CONTEXT(a_correct_backend_passes)
{
    OWNED_BY(stop) assay_tried tried = start_numpy(&ctx, folder->path, NULL);
    OWNED_BY(assay_fuzz_free) assay_fuzzing f = {.tried = &tried, .seed = 5, .cases = 90, .quiet = true};
    assert_ok(&ctx, assay_fuzz(&ctx, &f));
    assert_int_equal(f.found_count, 0);
    assert_int_equal(f.drawn, 90);
    assert_int_equal(f.passed + f.unsupported + f.refused, 90);
    assert_true(f.passed > 20);
    int ran = 0, all = 0;
    assay_fuzz_coverage(&f, &ran, &all);
    assert_true(ran > 20 && ran < all);
}

#define MLP(keys) "{case: a, op: mlp, seed: 1, model: {" keys
#define CONSTANT(x, wi)                                                                                                \
    MLP("base_emb_dim: 33, base_mlp_dim: 2}, sequence: 1, gradients: none, inputs: {x: {distribution: constant, "      \
        "mean: " x "}, wi_0/kernel: " wi ", wi_1/kernel: " wi "}}")
#define ROWS(low, high)                                                                                                \
    "{case: a, op: gmm, model: {base_emb_dim: 4, base_moe_mlp_dim: 2, num_experts: 1}, batch: 1, sequence: 9, seed: "  \
    "3, "                                                                                                              \
    "inputs: {lhs: {distribution: row_powers, low: " low ", high: " high "}}, gradients: [none]}"

TEST_IN_FOLDER(attempts_end_as_they_must)
{
    static const struct {
        const char *trap, *bug, *profile, *yaml; /* without a trap numpy's backend */
        assay_attempt_end end;
    } rows[] = {
        /* a right backend was called wrong here, for the error scales of an activation far below 0 were too small: those of
         * kernels' forms of gelu, which cancel there, and those of two gradients that move together */
        {NULL, NULL, NULL, MLP("base_emb_dim: 1, base_mlp_dim: 6, mlp_activations: gelu}, inputs: {x: {scale: 15}}}"),
         ASSAY_ATTEMPT_PASS},
        {NULL, NULL, NULL,
         MLP("base_emb_dim: 1, base_mlp_dim: 6, mlp_activations: gelu_exact}, inputs: {x: {scale: 15}}}"),
         ASSAY_ATTEMPT_PASS},
        {NULL, NULL, NULL,
         "{case: a, op: mlp, model: {base_emb_dim: 33, base_mlp_dim: 1}, seed: 22, inputs: {x: {scale: 30}}}",
         ASSAY_ATTEMPT_PASS},
        {NULL, NULL, NULL,
         "{case: a, op: mlp, model: {base_emb_dim: 1, base_mlp_dim: 2, mlp_activations: [sigmoid, linear]}, seed: 3, "
         "inputs: {x: {scale: 30}}}",
         ASSAY_ATTEMPT_PASS},
        /* seven of each token, whose errors are the same */
        {NULL, NULL, NULL,
         "{case: a, op: moe, model: {decoder_block: deepseek, base_emb_dim: 4, base_moe_mlp_dim: 2, num_experts: 4, "
         "num_experts_per_tok: 2, routed_score_func: sigmoid, routed_bias: true, load_balance_loss_weight: 0.01}, "
         "batch: 2, sequence: 14, seed: 3, inputs: {x: {distribution: values, values: [0, 1, -1, -2, -1, -2, 1, 0, 0, "
         "-2, 0, -1, -1, 0, -2, 0]}, weights/gate/kernel: {distribution: values, values: [1, 0, 0, 0, 0, 1, 0, 0, 0, "
         "0, "
         "1, 0, 0, 0, 0, 1]}}}",
         ASSAY_ATTEMPT_PASS},
        /* in float16 a hidden value of 70000 is infinite, in a right kernel too; in bfloat16 it is not */
        {"nan_in_float16", NULL, "f16", CONSTANT("1", "{scale: 1}"), ASSAY_ATTEMPT_FAIL},
        {"nan_in_float16", NULL, "f16", CONSTANT("1", "{distribution: constant, mean: 100}"), ASSAY_ATTEMPT_REFUSED},
        {"nan_in_float16", NULL, "bf16", CONSTANT("1", "{distribution: constant, mean: 100}"), ASSAY_ATTEMPT_FAIL},
        /* a right kernel has 0 in place of the least numbers; what is wrong before them in the data flow is wrong all the same */
        {NULL, NULL, NULL, MLP("base_emb_dim: 8, base_mlp_dim: 6}, inputs: {x: {scale: 60}}}"), ASSAY_ATTEMPT_PASS},
        {NULL, "gate_up_swapped", NULL, MLP("base_emb_dim: 8, base_mlp_dim: 6}, inputs: {x: {scale: 60}}}"),
         ASSAY_ATTEMPT_FAIL},
        {NULL, NULL, NULL,
         "{case: a, op: moe, model: {decoder_block: deepseek, base_emb_dim: 192, base_moe_mlp_dim: 2, num_experts: 8, "
         "num_experts_per_tok: 3, routed_score_func: sigmoid, routed_bias: true, n_routing_groups: 2, "
         "topk_routing_group: 1}, batch: 2, sequence: 5, seed: 2, inputs: {weights/gate/kernel: {scale: 1, mean: 2}}, "
         "gradients: [none]}",
         ASSAY_ATTEMPT_PASS},
        /* a lost product of less than 1e-19 excuses one wrong element among larger ones, not a tensor of such numbers */
        {"enlarges", NULL, NULL, ROWS("-110", "0"), ASSAY_ATTEMPT_REFUSED},
        {"enlarges", NULL, NULL, ROWS("-20", "0"), ASSAY_ATTEMPT_FAIL},
        {"enlarges", NULL, NULL, ROWS("-110", "-80"), ASSAY_ATTEMPT_FAIL},
        {"hangs", NULL, NULL, "{case: a, op: rms_norm, model: {base_emb_dim: 8}, sequence: 8}", ASSAY_ATTEMPT_FAIL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assay_context ctx = assay_context_default(1);
        OWNED_BY(stop)
        assay_tried tried =
            rows[i].trap != NULL ? start(&ctx, rows[i].trap) : start_numpy(&ctx, folder->path, rows[i].bug);
        const bool hangs = rows[i].trap != NULL && strcmp(rows[i].trap, "hangs") == 0;
        OWNED_BY(free_case) assay_case *c = case_from(rows[i].yaml);
        OWNED_BY(assay_attempt_free) assay_attempt a = {0};
        if (hangs) tried.timeout = 1;
        tried.profile = rows[i].profile == NULL ? NULL : assay_profile_by_name(rows[i].profile);
        assert_ok(&ctx, assay_attempt_make(&ctx, &tried, c, 0, &a));
        if (a.end != rows[i].end) fail_msg("row %zu: %d: %s", i, a.end, a.message);
        if (hangs) assert_string_equal(a.message, "the backend took longer than 1 s and was stopped");
    }
}
