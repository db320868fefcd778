/* Policies from their texts, and the store from forward to backward. */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include "oracle/layer/remat.h"
#include "tests/support/assay_test.h"

static void default_texts(const char *texts[ASSAY_REMAT_NAMES])
{
    for (int name = 0; name < ASSAY_REMAT_NAMES; name++) texts[name] = name >= ASSAY_REMAT_MOE_MLPWI ? "" : "remat";
    texts[ASSAY_REMAT_DECODER_LAYER_INPUT] = "device";
}

/* MaxText's lists (layers/decoders.py get_remat_policy, utils/maxtext_utils.py get_save_and_offload_names); a routed
 * tensor has a plain name too. */
TEST_WITH_CONTEXT(test_presets)
{
#define QKV " query_proj key_proj value_proj qkv_proj "
#define WI " mlpwi mlpwi_0 mlpwi_1 moe_mlpwi moe_mlpwi_0 moe_mlpwi_1 "
#define WO " mlpwo moe_mlpwo "
    static const struct {
        const char *preset;
        assay_remat_action action;
        const char *names;
    } presets[] = {{"full", ASSAY_REMAT, ""},
                   {"minimal", ASSAY_DEVICE, QKV " out_proj " WI WO},
                   {"minimal_offloaded", ASSAY_OFFLOAD, QKV " out_proj " WI WO},
                   {"minimal_with_context", ASSAY_DEVICE, QKV " out_proj context " WI WO},
                   {"save_dot_with_context_except_mlp", ASSAY_DEVICE, QKV " out_proj context "},
                   {"save_dot_except_mlpwi", ASSAY_DEVICE, QKV " out_proj " WO},
                   {"save_dot_except_mlp", ASSAY_DEVICE, QKV " out_proj "},
                   {"save_qkv_proj", ASSAY_DEVICE, QKV},
                   {"qkv_proj_offloaded", ASSAY_OFFLOAD, " query_proj key_proj value_proj "},
                   {"save_out_proj", ASSAY_DEVICE, " out_proj "},
                   {"custom", ASSAY_REMAT, ""}};
    const char *texts[ASSAY_REMAT_NAMES];
    default_texts(texts);
    for (size_t i = 0; i < sizeof presets / sizeof *presets; i++) {
        assay_remat_policy policy;
        assert_ok(&ctx, assay_remat_policy_make(&ctx, &policy, presets[i].preset, texts));
        assert_int_equal(policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT], ASSAY_DEVICE);
        for (int name = 1; name < ASSAY_REMAT_NAMES; name++) {
            char word[64];
            snprintf(word, sizeof word, " %s ", assay_remat_names[name]);
            const bool listed = strstr(presets[i].names, word) != NULL;
            if (policy.action[name] == (listed ? presets[i].action : ASSAY_REMAT)) continue;
            fail_msg("%s: %s", presets[i].preset, assay_remat_names[name]);
        }
    }
}

/* context is attention_out and lse, unless attention_out says otherwise. */
TEST(test_context)
{
    assay_remat_policy policy = {0};
    assert_int_equal(assay_remat_action_of(&policy, ASSAY_REMAT_ATTENTION_OUT), ASSAY_REMAT);
    policy.action[ASSAY_REMAT_CONTEXT] = ASSAY_OFFLOAD;
    assert_int_equal(assay_remat_action_of(&policy, ASSAY_REMAT_ATTENTION_OUT), ASSAY_OFFLOAD);
    assert_int_equal(assay_remat_action_of(&policy, ASSAY_REMAT_LSE), ASSAY_OFFLOAD);
    policy.action[ASSAY_REMAT_ATTENTION_OUT] = ASSAY_DEVICE;
    assert_int_equal(assay_remat_action_of(&policy, ASSAY_REMAT_LSE), ASSAY_DEVICE);
}

/* The routed tensors follow the plain names until they have a policy of their own. */
TEST_WITH_CONTEXT(test_names)
{
    assay_remat_policy policy;
    const char *texts[ASSAY_REMAT_NAMES];
    default_texts(texts);
    texts[ASSAY_REMAT_MLPWI_0] = "offload";
    texts[ASSAY_REMAT_MLPWO] = "device";
    texts[ASSAY_REMAT_MOE_MLPWO] = "remat";
    texts[ASSAY_REMAT_DECODER_LAYER_INPUT] = "offload";
    assert_ok(&ctx, assay_remat_policy_make(&ctx, &policy, "custom", texts));
    assert_int_equal(policy.action[ASSAY_REMAT_MLPWI_0], ASSAY_OFFLOAD);
    assert_int_equal(policy.action[ASSAY_REMAT_MOE_MLPWI_0], ASSAY_OFFLOAD);
    assert_int_equal(policy.action[ASSAY_REMAT_MLPWO], ASSAY_DEVICE);
    assert_int_equal(policy.action[ASSAY_REMAT_MOE_MLPWO], ASSAY_REMAT);
    assert_int_equal(policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT], ASSAY_OFFLOAD);
    assert_int_equal(assay_remat_action_of(&policy, ASSAY_REMAT_LSE), policy.action[ASSAY_REMAT_ATTENTION_OUT]);
}

TEST(test_refusals)
{
    static const struct {
        const char *preset;
        int name;
        const char *text, *message;
    } cases[] = {
        {"none", ASSAY_REMAT_MLPWO, "remat", "remat_policy is \"none\""},
        {"custom", ASSAY_REMAT_MLPWO, "host", "mlpwo is \"host\""},
        {"custom", ASSAY_REMAT_MLPWO, "", "mlpwo is \"\""},
        {"custom", ASSAY_REMAT_MOE_MLPWO, "Device", "moe_mlpwo is \"Device\""},
        {"full", ASSAY_REMAT_DECODER_LAYER_INPUT, "remat", "decoder_layer_input is \"remat\""},
        {"minimal", ASSAY_REMAT_DECODER_LAYER_INPUT, "remat", "decoder_layer_input is \"remat\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assay_context ctx = assay_context_default(1);
        assay_remat_policy policy;
        const char *texts[ASSAY_REMAT_NAMES];
        default_texts(texts);
        texts[cases[i].name] = cases[i].text;
        assert_bad_input(&ctx, assay_remat_policy_make(&ctx, &policy, cases[i].preset, texts), cases[i].message);
    }
}

static assay_remat_policy three_policies(void)
{
    assay_remat_policy policy = {0};
    policy.action[ASSAY_REMAT_DECODER_LAYER_INPUT] = ASSAY_DEVICE;
    policy.action[ASSAY_REMAT_ATTENTION_OUT] = ASSAY_OFFLOAD;
    return policy;
}

static double *numbers(int64_t count, double first)
{
    double *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < count; i++) values[i] = first + (double)i;
    return values;
}

static void put_numbers(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, int64_t count)
{
    double *values = numbers(count, (double)(100 * layer + slot));
    assert_ok(ctx, assay_remat_put(ctx, store, layer, slot, count, &values));
    assert_null(values);
}

static void assert_taken(assay_context *ctx, assay_remat_store *store, int64_t layer, int slot, int64_t count)
{
    double *values = NULL, *expected = numbers(count, (double)(100 * layer + slot));
    assert_ok(ctx, assay_remat_load(ctx, store, layer, slot, &values));
    assert_non_null(values);
    assert_same_bits(values, expected, count);
    free(values);
    assert_ok(ctx, assay_remat_load(ctx, store, layer, slot, &values));
    assert_null(values); /* once */
    free(expected);
}

TEST_WITH_CONTEXT(test_store)
{
    const assay_remat_policy policy = three_policies();
    assay_remat_store *store = NULL;
    double *values = NULL;
    assert_ok(&ctx, assay_remat_open(&ctx, &store, &policy, 3));
    for (int64_t layer = 0; layer < 3; layer++) {
        put_numbers(&ctx, store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, 5 + layer);
        put_numbers(&ctx, store, layer, ASSAY_REMAT_ATTENTION_OUT, 7 + layer);
        put_numbers(&ctx, store, layer, ASSAY_REMAT_LSE, 2);
        put_numbers(&ctx, store, layer, ASSAY_REMAT_MLPWO, 4);
    }
    assay_remat_recomputed(store, 10);
    assay_remat_recomputed(store, 4);
    const assay_remat_report report = assay_remat_report_of(store);
    assert_int_equal(report.bytes_kept, 8 * (5 + 6 + 7));
    assert_int_equal(report.bytes_offloaded, 8 * (7 + 8 + 9 + 3 * 2));
    assert_true(report.operations_recomputed == 14);
    for (int64_t layer = 2; layer >= 0; layer--) {
        assert_taken(&ctx, store, layer, ASSAY_REMAT_DECODER_LAYER_INPUT, 5 + layer);
        assert_taken(&ctx, store, layer, ASSAY_REMAT_ATTENTION_OUT, 7 + layer);
        assert_taken(&ctx, store, layer, ASSAY_REMAT_LSE, 2);
        assert_ok(&ctx, assay_remat_load(&ctx, store, layer, ASSAY_REMAT_MLPWO, &values));
        assert_null(values);
    }
    assay_remat_close(store);
}

static int entries(const char *folder)
{
    int count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (const struct dirent *entry = readdir(open); entry != NULL; entry = readdir(open))
        count += entry->d_name[0] != '.';
    closedir(open);
    return count;
}

/* The spill file has no name at any time, so nothing can be left of it. */
TEST_WITH_CONTEXT(test_spill_file)
{
    char folder[] = "/tmp/assay-remat-XXXXXX";
    const assay_remat_policy policy = three_policies();
    assay_remat_store *store = NULL;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(setenv("TMPDIR", folder, 1), 0);
    assert_ok(&ctx, assay_remat_open(&ctx, &store, &policy, 1));
    put_numbers(&ctx, store, 0, ASSAY_REMAT_ATTENTION_OUT, 100000);
    assert_int_equal(entries(folder), 0);
    assert_taken(&ctx, store, 0, ASSAY_REMAT_ATTENTION_OUT, 100000);
    assay_remat_close(store);
    assert_int_equal(rmdir(folder), 0);
    assert_ok(&ctx, assay_remat_open(&ctx, &store, &policy, 1));
    double *values = numbers(3, 0);
    assert_int_equal(assay_remat_put(&ctx, store, 0, ASSAY_REMAT_ATTENTION_OUT, 3, &values), ASSAY_IO);
    assert_non_null(strstr(ctx.message, folder));
    assert_null(values);
    assay_remat_close(store);
    unsetenv("TMPDIR");
}

/* No room: an error, not a signal and not a short file. */
TEST_WITH_CONTEXT(test_full_disk)
{
    const assay_remat_policy policy = three_policies();
    assay_remat_store *store = NULL;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_ok(&ctx, assay_remat_open(&ctx, &store, &policy, 1));
    double *values = numbers(10000, 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const assay_status status = assay_remat_put(&ctx, store, 0, ASSAY_REMAT_ATTENTION_OUT, 10000, &values);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, ASSAY_IO);
    assert_non_null(strstr(ctx.message, "spill file"));
    assay_remat_close(store);
}
