/* Candidates whose rows are not where the golden has them: which pass, and which fail with what words. The candidates are
 * the golden's own results, with rows moved. */

#include "harness/plan/candidate_rows.h"
#include "harness/tests/golden_trial.h"
#include "oracle/moe/permute.h"

#define PROFILE "f32"

typedef struct moved {
    trial t;
    assay_tensor_set results;
    assay_tensor *order, *sizes;
} moved;

static void open_case(moved *f, const test_folder *folder, const char *name, const char *set)
{
    assay_case *c = case_named(name, set);
    *f = (moved){0};
    assert_ok(&f->t.ctx, assay_case_set(&f->t.ctx, c, "profiles=" PROFILE));
    trial_write(&f->t, folder, c);
    assert_ok(&f->t.ctx, assay_tensor_set_copy(&f->t.ctx, &f->t.golden, &f->results));
    trial_round(&f->results, ASSAY_FLOAT32);
    for (int i = 0; i < f->results.count; i++) {
        assay_tensor *tensor = &f->results.items[i];
        if (!assay_role_is_result(tensor->spec.role)) continue;
        if (assay_path_ends(tensor->spec.path, "sorted_selected_experts")) f->order = tensor;
        if (assay_path_ends(tensor->spec.path, "group_sizes")) f->sizes = tensor;
    }
}

static assay_report judged(moved *f)
{
    const assay_judging how = trial_judging(assay_profile_by_name(PROFILE));
    trial_write_candidate(&f->t, &f->results, how.profile, trial_is_result);
    return trial_judge(&f->t, &how);
}

/* NULL words: it passes, and the report says that the order is another. */
static void expect(moved *f, const char *words)
{
    OWNED_BY(assay_report_free) assay_report report = judged(f);
    const bool right = words == NULL ? report.verdict == ASSAY_PASS && strstr(report.order, "another order") != NULL
                                     : report.verdict == ASSAY_FAIL && strstr(report.message, words) != NULL;
    if (!right) fail_msg("%s: %s (%s)", f->t.c->name, report.message, report.order);
}

static void close_case(moved *f)
{
    assay_tensor_set_free(&f->results);
    trial_close(&f->t);
}

static void swap_rows(assay_tensor *tensor, int64_t a, int64_t b)
{
    const int64_t width = tensor->count / tensor->spec.shape.dims[0];
    for (int64_t i = 0; i < width && tensor->values != NULL; i++) {
        const double value = tensor->values[a * width + i];
        tensor->values[a * width + i] = tensor->values[b * width + i];
        tensor->values[b * width + i] = value;
    }
    for (int64_t i = 0; i < width && tensor->indices != NULL; i++) {
        const int32_t value = tensor->indices[a * width + i];
        tensor->indices[a * width + i] = tensor->indices[b * width + i];
        tensor->indices[b * width + i] = value;
    }
}

/* Rows of every expert from its last to its first, of the order and, with `rows`, of all that is in it. */
static void reverse_experts(moved *f, bool rows)
{
    for (int i = 0; i < f->results.count; i++) {
        assay_tensor *tensor = &f->results.items[i];
        const bool in_order = assay_role_is_result(tensor->spec.role) && tensor->spec.shape.rank > 0 &&
                              strcmp(tensor->spec.labels[0], "T*K") == 0;
        if (!in_order || (tensor != f->order && !rows)) continue;
        for (int64_t e = 0, end = 0; e < f->sizes->count; e++) {
            const int64_t first = end;
            end += f->sizes->indices[e];
            for (int64_t a = first, b = end - 1; a < b; a++, b--) swap_rows(tensor, a, b);
        }
    }
}

/* The gradient of permute goes by the order. */
static void follow_order(moved *f)
{
    const assay_tensor *dy = assay_tensor_set_find(&f->results, "cotangents/sorted_inputs");
    assay_tensor *dx = assay_tensor_set_find(&f->results, "gradients/inputs/x");
    const int64_t width = dx->spec.shape.dims[1], chosen = f->t.c->config.num_experts_per_tok;
    memset(dx->values, 0, (size_t)dx->count * sizeof *dx->values);
    for (int64_t j = 0; j < f->order->count; j++) {
        for (int64_t i = 0; i < width; i++)
            dx->values[f->order->indices[j] / chosen * width + i] += dy->values[j * width + i];
    }
    trial_round(&f->results, ASSAY_FLOAT32);
}

TEST_IN_FOLDER(another_order_passes_with_its_rows)
{
    static const char *const names[] = {"moe/small", "moe/deepseek3-tiny-checkpoints", "routing/hot-expert"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        OWNED_BY(close_case) moved f;
        open_case(&f, folder, names[i], strncmp(names[i], "moe", 3) == 0 ? "checkpoints=all" : NULL);
        reverse_experts(&f, true);
        expect(&f, NULL);
    }
}

TEST_IN_FOLDER(rows_that_do_not_follow_the_order_fail)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "moe/small", "checkpoints=all");
    reverse_experts(&f, false);
    expect(&f, "checkpoints/moe_mlpwi_0: ");
    /* and without a word on the order, as the golden has them */
    f.order->written = 0;
    reverse_experts(&f, true);
    expect(&f, "checkpoints/moe_mlpwi_0: ");
}

/* Of a stack every layer has an order of its own. */
TEST_IN_FOLDER(layers_have_their_own_orders)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "deepseek_stack/three-layers", "checkpoints=all");
    f.sizes = assay_tensor_set_find(&f.results, "routing/layers/1/group_sizes");
    f.order = assay_tensor_set_find(&f.results, "routing/layers/1/sorted_selected_experts");
    assert_non_null(f.order);
    int64_t first = 0, e = 0;
    while (f.sizes->indices[e] < 2) first += f.sizes->indices[e++];
    for (int i = 0; i < f.results.count; i++) {
        assay_tensor *tensor = &f.results.items[i];
        const bool in_layer = strstr(tensor->spec.path, "layers/1/") != NULL && assay_role_is_result(tensor->spec.role);
        if (in_layer && strcmp(tensor->spec.labels[0], "T*K") == 0) swap_rows(tensor, first, first + 1);
    }
    expect(&f, NULL);
    swap_rows(assay_tensor_set_find(&f.results, "checkpoints/layers/2/moe_mlpwo"), 0, 1);
    expect(&f, "checkpoints/layers/2/moe_mlpwo: ");
}

TEST_IN_FOLDER(gradients_go_by_an_order_that_is_an_output)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "permute/stable", NULL);
    reverse_experts(&f, true);
    expect(&f, "gradients/inputs/x: ");
    follow_order(&f);
    expect(&f, NULL);
    swap_rows(assay_tensor_set_find(&f.results, "outputs/sorted_inputs"), 0, 1);
    expect(&f, "outputs/sorted_inputs: ");
}

/* Each by itself; place 0 is of the first expert that has any, the last of another. */
static const struct {
    const char *what, *words;
} unlawful[] = {
    {"repeated", "] is 1, which stands at 0 already; "},
    {"other expert", ", among the rows of expert "},
    {"below", "[0] is -1, expected 0 to 15"},
    {"beyond", "[0] is 16, expected 0 to 15"},
};

TEST_IN_FOLDER(unlawful_orders_fail_with_the_place)
{
    for (size_t i = 0; i < sizeof unlawful / sizeof *unlawful; i++) {
        OWNED_BY(close_case) moved f;
        open_case(&f, folder, "moe/small", NULL);
        int32_t *order = f.order->indices;
        if (i == 0) order[1] = order[0];
        if (i == 1) swap_rows(f.order, 0, f.order->count - 1);
        if (i == 2) order[0] = -1;
        if (i == 3) order[0] = (int32_t)f.order->count;
        OWNED_BY(assay_report_free) assay_report report = judged(&f);
        assert_int_equal(report.verdict, ASSAY_FAIL);
        if (strstr(report.message, unlawful[i].words) == NULL || report.order[0] != '\0') {
            fail_msg("%s: %s", unlawful[i].what, report.message);
        }
    }
}

static assay_tensor *of_layer(moved *f, const char *folder, const char *layer, const char *name)
{
    char path[ASSAY_PATH_SIZE];
    snprintf(path, sizeof path, "%s/%s%s", folder, layer, name);
    return assay_tensor_set_find(&f->results, path);
}

static void check_replicas(const test_folder *folder, const char *name, const char *layer)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, name, NULL);
    assay_tensor *physical = of_layer(&f, "routing", layer, "physical_experts");
    const assay_tensor *selected = of_layer(&f, "routing", layer, "selected_experts");
    const assay_tensor *map = of_layer(&f, "inputs", layer, "physical_to_logical_map");
    int32_t other = 0;
    for (int64_t i = 0; i < physical->count; i++) {
        for (int32_t p = 0; p < map->count; p++) {
            if (map->indices[p] == selected->indices[i]) physical->indices[i] = p; /* the last one */
        }
    }
    assay_report report = judged(&f);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
    assert_non_null(strstr(report.order, "other replicas"));
    assay_report_free(&report);
    while (map->indices[other] == selected->indices[5]) other++;
    const int32_t was = physical->indices[5];
    physical->indices[5] = other;
    expect(&f, "physical_experts of token 2, slot 1 is ");
    physical->indices[5] = (int32_t)map->count;
    expect(&f, ", expected 0 to ");
    physical->indices[5] = was;
    swap_rows(assay_tensor_set_find(&f.results, "outputs/y"), 0, 1);
    expect(&f, "outputs/y: ");
}

/* Any replica of the chosen expert, and no other expert's; of a stack by each layer's own map. */
TEST_IN_FOLDER(replicas_may_be_chosen_otherwise)
{
    check_replicas(folder, "moe/replicas", "");
    check_replicas(folder, "decoder_stack/mixtral-replicas", "layers/0/");
    check_replicas(folder, "decoder_stack/mixtral-replicas", "layers/1/");
}

/* What padding that holds NaN gives is not looked at, and it may go to any expert or to none: the golden is evaluated with that. */
TEST_IN_FOLDER(padding_may_go_anywhere)
{
    static const int32_t choices[][2] = {{ASSAY_NO_EXPERT, ASSAY_NO_EXPERT}, {3, 2}, {ASSAY_NO_EXPERT, 0}};
    enum { PADDING = 8 }; /* tokens 8 and 9 */
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "deepseek_stack/padding-nan", NULL);
    assay_tensor *selected = of_layer(&f, "routing", "layers/1/", "selected_experts");
    assay_tensor *y = assay_tensor_set_find(&f.results, "outputs/y");
    const int64_t width = y->count / 10;
    const assay_permute_dims dims = {10, 2, f.sizes->count, width};
    for (int64_t i = PADDING * width; i < y->count; i++) y->values[i] = NAN;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++) selected->indices[2 * PADDING + k] = choices[i][k % 2];
        assert_ok(&f.t.ctx,
                  assay_permute_order(&f.t.ctx, f.order->indices, f.sizes->indices, selected->indices, &dims));
        OWNED_BY(assay_report_free) assay_report report = judged(&f);
        if (report.verdict != ASSAY_PASS) fail_msg("%d: %s", i, report.message);
    }
    selected->indices[2 * PADDING] = (int32_t)f.sizes->count;
    expect(&f, "not 2 different experts");
    selected->indices[2 * PADDING] = ASSAY_NO_EXPERT;
    selected->indices[0] = ASSAY_NO_EXPERT;
    expect(&f, "token [0,0]: not 2 different experts");
}

/* Of a split without keys nothing is judged but that its log-sum-exp says so, and stage by stage the merge does without it. */
TEST_IN_FOLDER(splits_without_keys_may_hold_anything)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "gqa_decode/splits", NULL);
    assay_tensor *out = assay_tensor_set_find(&f.results, "checkpoints/partial_out");
    const assay_tensor *lse = assay_tensor_set_find(&f.results, "checkpoints/partial_lse");
    int64_t used = -1, unused = 0;
    assert_true(out != NULL && lse != NULL);
    for (int64_t i = 0; i < out->count; i++) { /* S is 1: rows are in one order */
        if (isinf(lse->values[i / 8])) out->values[i] = NAN;
        if (isinf(lse->values[i / 8])) unused++;
        if (!isinf(lse->values[i / 8])) used = i;
    }
    assert_true(used >= 0 && unused > 0);
    assay_report report = judged(&f);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
    assay_report_free(&report);
    out->values[used] = NAN;
    expect(&f, "checkpoints/partial_out: ");
}

/* Rows of no group: whatever is there; those of groups: judged. */
TEST_IN_FOLDER(unused_rows_may_hold_anything)
{
    static const char *const names[] = {"gmm/contiguous-nan", "gmm/masked-primes", "gmm/psum-nan"};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        OWNED_BY(close_case) moved f;
        OWNED bool *used = NULL;
        open_case(&f, folder, names[n], NULL);
        const assay_source given = assay_input_source(&f.t.golden);
        const assay_tensor_entry *of = assay_tensor_list_find(&f.t.plan.list, "outputs/y");
        assert_ok(&f.t.ctx, f.t.plan.operation->used_rows(&f.t.ctx, f.t.c, of, &given, &used));
        assay_tensor *y = assay_tensor_set_find(&f.results, "outputs/y");
        assay_tensor *dlhs = assay_tensor_set_find(&f.results, "gradients/inputs/lhs");
        const int64_t width = f.t.c->config.base_moe_mlp_dim, deep = f.t.c->config.base_emb_dim;
        int64_t row = -1;
        for (int64_t i = 0; i < y->count; i++) {
            if (!used[i / width]) y->values[i] = i % 2 == 0 ? (double)NAN : 1e30;
        }
        for (int64_t i = 0; i < dlhs->count; i++) {
            if (!used[i / deep]) dlhs->values[i] = 7;
            if (used[i / deep]) row = i / deep;
        }
        assay_report report = judged(&f);
        if (report.verdict != ASSAY_PASS) fail_msg("%s: %s", names[n], report.message);
        assay_report_free(&report);
        y->values[row * width] += 1;
        expect(&f, "outputs/y: ");
        y->values[row * width] = NAN;
        expect(&f, "outputs/y: ");
    }
    moved f; /* of ragged rows those of no group are 0 */
    open_case(&f, folder, "gmm/padded-nan-tail", NULL);
    assay_tensor *y = assay_tensor_set_find(&f.results, "outputs/y");
    y->values[y->count - 1] = 1;
    expect(&f, "outputs/y: ");
    close_case(&f);
}

/* The eighth byte of a token's scales is of nothing; the padding of the page stays as it was. */
TEST_IN_FOLDER(bytes_of_no_number_may_hold_anything)
{
    enum { PAGE = 3456, TOKENS = 5, ROW = 576, OF_SCALES = 8 };
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "cache_append/fp8-model1", NULL);
    const assay_tensor *slots = assay_tensor_set_find(&f.t.golden, "inputs/slot_mapping");
    assay_tensor *cache = assay_tensor_set_find(&f.results, "outputs/kv_cache");
    assert_int_equal(slots->count, 7);
    assert_int_equal(cache->count, 2 * PAGE);
    const int64_t slot = slots->indices[0];
    int32_t *page = cache->indices + slot / TOKENS * PAGE;
    int32_t *unused = page + TOKENS * ROW + slot % TOKENS * OF_SCALES + 7;
    *unused ^= 0xff;
    assay_report report = judged(&f);
    if (report.verdict != ASSAY_PASS) fail_msg("%s", report.message);
    assay_report_free(&report);
    unused[-1] ^= 1;
    expect(&f, "outputs/kv_cache: 1 of 6912 integers differ");
    unused[-1] ^= 1;
    page[PAGE - 1] ^= 1;
    expect(&f, "outputs/kv_cache: 1 of 6912 integers differ");
}

/* For a number beyond e4m3's largest either code of NaN, and no other. */
TEST_IN_FOLDER(nan_codes_of_either_sign)
{
    OWNED_BY(close_case) moved f;
    open_case(&f, folder, "quantize/mxfp8-e4m3-ocp", "quant_saturate=false");
    assay_tensor *codes = assay_tensor_set_find(&f.results, "outputs/codes");
    int64_t number = -1, nan = -1;
    for (int64_t i = 0; i < codes->count; i++) {
        const bool is_nan = (codes->indices[i] & 0x7f) == 0x7f;
        *(is_nan ? &nan : &number) = i;
        if (is_nan) codes->indices[i] ^= 0x80;
    }
    assert_true(number >= 0 && nan >= 0);
    assay_report report = judged(&f);
    assert_int_equal(report.verdict, ASSAY_PASS);
    assay_report_free(&report);
    codes->indices[nan] = 0x7e;
    expect(&f, "outputs/codes: 1 of 512 integers differ");
    codes->indices[nan] = 0x7f;
    codes->indices[number] = 0xff;
    expect(&f, "outputs/codes: 1 of 512 integers differ");
}

TEST_IN_FOLDER(no_memory_is_reported)
{
    moved f;
    open_case(&f, folder, "moe/small", "checkpoints=all");
    reverse_experts(&f, true);
    const assay_profile *profile = assay_profile_by_name(PROFILE);
    trial_write_candidate(&f.t, &f.results, profile, trial_is_result);
    for (int64_t n = 0;; n++) {
        assay_fixture_reader *candidate = NULL;
        assay_row_orders orders = {0};
        assay_tensor_set given = {0};
        assay_context *ctx = &f.t.ctx;
        assert_ok(ctx, assay_fixture_open(ctx, f.t.candidate, &candidate));
        assay_fail_allocation(n);
        const assay_status status = assay_candidate_align_rows(ctx, &f.t.plan, f.t.reader, candidate, &orders, &given);
        assay_fixture_close(candidate);
        if (had_memory(ctx, status)) {
            assert_int_equal(orders.other, 1);
            break;
        }
    }
    close_case(&f);
}
