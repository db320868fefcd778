/* Every key of a model gets another value in every operation that has one of its parts (cases/model_keys.inc): it is refused, or changes
 * a tensor. A key that is taken and changes nothing in any case of the catalogue is a kernel's setting that nobody tries. */
#include <fnmatch.h>

#include "harness/fuzz/draw_table.h"
#include "harness/operations/operation.h"
#include "harness/tests/golden_trial.h"
#include "oracle/base/memory.h"

TEST_LABELS(catalogue);

enum { CASES = 60, ELEMENTS = 60000, VALUES = 40, VALUE_SIZE = 200 };

typedef enum outcome { UNTRIED, CHANGES_NOTHING, REFUSED, CHANGES } outcome;

/* Where no number follows from a key, for a reason. */
static const struct {
    const char *operations, *key; /* a glob each */
} NOTHING_FOLLOWS[] = {
    /* what is kept between forward and backward, and in which layers' order, changes no number */
    {"*", "remat_policy"},
    {"*", "layer_axis"},
    {"*_layer", "base_num_decoder_layers"},
    {"batch_split", "capacity_factor"}, /* room for what is kept */
    {"batch_split", "merge_gating_gmm"},
    {"batch_split", "use_batch_split_schedule"},
    {"moe", "use_batch_split_schedule"},
    {"*", "shard_exp_on_fsdp"}, /* where weights lie */
    /* what another form of the operation reads */
    {"mla_decode", "base_num_kv_heads"}, /* one latent is the key of all heads */
    {"gqa_decode", "indexer_topk"},      /* MLA's, as what follows */
    {"gqa_decode", "mscale"},
    {"gqa_decode", "rope_factor"},
    {"gqa_decode", "*max_position_embeddings"},
    {"*_decode", "mask_padding"}, /* a cache has no padding */
    {"cache_append", "base_num_query_heads"},
    {"gqa", "qk_rope_head_dim"}, /* head_dim is whole */
    {"gqa", "return_lse"},       /* a checkpoint there */
    {"decoder_*", "return_lse"},
    {"batch_split", "mk_alignment_for_contiguous_layout"},
    /* what no case here shows: they have a table of all words, one sequence, frequencies that lie beside the ramp */
    {"*", "vocab_size"},
    {"*_stack", "load_balance_loss_scope"},
    {"*_stack", "norm_topk_prob"},
    {"*_stack", "beta_slow"},
    {"batch_split", "beta_slow"},
};

static bool nothing_follows(const char *operation, const char *key)
{
    bool found = is_checkpoint(key);
    for (size_t i = 0; i < sizeof NOTHING_FOLLOWS / sizeof *NOTHING_FOLLOWS; i++)
        found |=
            fnmatch(NOTHING_FOLLOWS[i].operations, operation, 0) == 0 && fnmatch(NOTHING_FOLLOWS[i].key, key, 0) == 0;
    return found;
}

/* What is given and what comes out. False: the case is refused, or too large for here. */
static bool run_case(const assay_case *c, assay_tensor_set *tensors)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(assay_plan_free) assay_plan plan = {0};
    OWNED_BY(assay_inputs_close) assay_inputs inputs = {0};
    int64_t elements = 0;
    bool ran = assay_plan_make_with(&ctx, &plan, c, NULL, NULL) == ASSAY_OK;
    for (int i = 0; ran && i < plan.list.count; i++) {
        int64_t count;
        const assay_shape *shape = &plan.list.entries[i].spec.shape;
        ran = assay_checked_count(&ctx, "", shape->rank, shape->dims, &count) == ASSAY_OK;
        elements += count;
    }
    ran = ran && elements <= ELEMENTS && assay_inputs_open(&ctx, &inputs, c, &plan.list, NULL) == ASSAY_OK;
    if (ran) {
        const assay_source source = assay_inputs_source(&inputs);
        const assay_sink sink = assay_results_sink(tensors);
        ran = assay_plan_tensors(&ctx, tensors, &plan, &source) == ASSAY_OK &&
              assay_operation_run(&ctx, plan.operation, plan.c, &source, &sink) == ASSAY_OK;
    }
    return ran;
}

static bool same_tensors(const assay_tensor_set *a, const assay_tensor_set *b)
{
    if (a->count != b->count) return false;
    for (int i = 0; i < a->count; i++) {
        const assay_tensor *x = &a->items[i], *y = &b->items[i];
        if (strcmp(x->spec.path, y->spec.path) != 0 || !assay_shape_equal(&x->spec.shape, &y->spec.shape)) return false;
        if (!assay_role_is_result(x->spec.role) && !assay_role_is_input(x->spec.role)) continue;
        if (x->values != NULL && memcmp(x->values, y->values, (size_t)x->count * sizeof *x->values) != 0) return false;
        if (x->indices != NULL && memcmp(x->indices, y->indices, (size_t)x->count * sizeof *x->indices) != 0)
            return false;
    }
    return true;
}

/* The case with settings, which have semicolons between, from the second one on or with all of them. */
static bool run_with(const assay_case *from, const char *settings, bool first, assay_tensor_set *tensors)
{
    assay_context ctx = assay_context_default(1);
    OWNED_BY(free_case) assay_case *c = calloc(1, sizeof *c);
    char text[ASSAY_KEY_VALUE_SIZE + 2 * VALUE_SIZE], *rest = text;
    bool set = true;
    assert_ok(&ctx, assay_case_copy(&ctx, from, c));
    snprintf(text, sizeof text, "%s", settings);
    if (!first) strsep(&rest, ";");
    for (char *one; set && (one = strsep(&rest, ";")) != NULL;) set = assay_case_set(&ctx, c, one) == ASSAY_OK;
    const bool ran = set && run_case(c, tensors);
    return ran;
}

static outcome try_value(const assay_case *from, const assay_model_key *key, const char value[VALUE_SIZE])
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set before = {0}, after = {0};
    char settings[ASSAY_KEY_VALUE_SIZE + VALUE_SIZE];
    outcome found = UNTRIED;
    snprintf(settings, sizeof settings, "%s=%.*s", key->name, VALUE_SIZE, value);
    if (run_with(from, settings, false, &before)) {
        found = !run_with(from, settings, true, &after) ? REFUSED
                : same_tensors(&before, &after)         ? CHANGES_NOTHING
                                                        : CHANGES;
    }
    return found;
}

/* Other values of a key: its choices, its neighbours, and what is drawn. */
static int values_of(const assay_model_key *key, const char *now, char values[VALUES][VALUE_SIZE])
{
    const char *const *choices = key->choices;
    int count = 0;
    for (; choices != NULL && count < VALUES && choices[count] != NULL; count++)
        snprintf(values[count], VALUE_SIZE, "%s", choices[count]);
    if (key->type == ASSAY_KEY_B) snprintf(values[count++], VALUE_SIZE, "%s", *now == 't' ? "false" : "true");
    if (key->type == ASSAY_KEY_I || key->type == ASSAY_KEY_D) {
        snprintf(values[count++], VALUE_SIZE, "%g", strtod(now, NULL) + 1);
        snprintf(values[count++], VALUE_SIZE, "%g", strtod(now, NULL) * 2);
        snprintf(values[count++], VALUE_SIZE, key->type == ASSAY_KEY_I ? "1" : "0.5");
    }
    for (const assay_draw_key *drawn = assay_draw_keys; drawn->key != NULL; drawn++) {
        char text[2048], *rest = text;
        if (drawn->weight == 0 || strcmp(drawn->key, key->name) != 0) continue;
        snprintf(text, sizeof text, "%s", drawn->values);
        for (char *one; count < VALUES && (one = strsep(&rest, " ")) != NULL;)
            if (strcmp(one, "edge") != 0) snprintf(values[count++], VALUE_SIZE, "%s", one);
    }
    return count;
}

static void try_values(const assay_case *from, const assay_model_key *key, outcome *best)
{
    char now[ASSAY_KEY_VALUE_SIZE], values[VALUES][VALUE_SIZE];
    assay_model_key_text(key, &from->config, now, sizeof now);
    const int count = values_of(key, now, values);
    for (int i = 0; i < count && *best != CHANGES; i++) {
        if (strcmp(values[i], now) == 0) continue;
        const outcome found = try_value(from, key, values[i]);
        if (found > *best) *best = found;
    }
}

static int keys_that_change_nothing(const assay_operation *operation, const assay_case *cases, int count)
{
    outcome best[ASSAY_MODEL_KEYS] = {UNTRIED};
    int tried = 0, found = 0;
    for (int i = 0; i < count && tried < CASES; i++) {
        assay_tensor_set tensors = {0};
        if (strcmp(cases[i].op, operation->name) != 0) continue;
        const bool ran = run_case(&cases[i], &tensors);
        assay_tensor_set_free(&tensors);
        if (!ran) continue;
        tried++;
        for (int key = 0; key < ASSAY_MODEL_KEYS; key++)
            if (best[key] != CHANGES && !nothing_follows(operation->name, assay_model_keys[key].name) &&
                (assay_model_keys[key].components & operation->components) != 0)
                try_values(&cases[i], &assay_model_keys[key], &best[key]);
    }
    for (int key = 0; key < ASSAY_MODEL_KEYS; key++) {
        const char *name = assay_model_keys[key].name;
        if (best[key] != CHANGES_NOTHING) continue;
        print_error("%s takes %s, and nothing changes\n", operation->name, name);
        found++;
    }
    return found;
}

TEST(no_key_is_taken_that_changes_nothing)
{
    int count, found = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; assay_operations[i] != NULL; i++)
        found += keys_that_change_nothing(assay_operations[i], cases, count);
    assert_int_equal(found, 0);
    assay_cases_free(cases, count);
}

TEST_WITH_CONTEXT(keys_that_show_leaves_out_change_nothing)
{
    int count;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        OWNED_BY(assay_tensor_set_free) assay_tensor_set whole = {0}, brief = {0};
        OWNED char *text = NULL;
        if (run_case(&cases[i], &whole)) {
            assert_ok(&ctx, assay_case_brief_yaml(&ctx, &cases[i], &text));
            OWNED_BY(free_case) assay_case *c = case_from(text);
            if (!run_case(c, &brief) || !same_tensors(&whole, &brief))
                fail_msg("%s is another case:\n%s", cases[i].name, text);
        }
    }
    assay_cases_free(cases, count);
}
